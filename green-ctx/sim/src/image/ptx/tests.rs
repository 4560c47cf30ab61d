//! PTX texts and their parsed contents.

use super::*;

fn body(statements: &str) -> Option<Ptx> {
    parse(&format!(".version 8.3\n.target sm_90\n.address_size 64\n{statements}"))
}

fn kernel(declaration: &str) -> KernelInfo {
    let mut kernels = body(declaration).expect("it is PTX").kernels;
    assert_eq!(kernels.len(), 1, "{declaration}");
    kernels.remove(0)
}

#[test]
fn entries_and_layouts_are_read() {
    let text = "
        .version 7.0 // .entry not_this()
        .target sm_52, debug
        .address_size 64
        /* .entry nor_this() */
        .visible .entry first(
            .param .u64 out,
            .param .u32 count,
            .param .f64 scale,
            .param .align 16 .b8 block[24],
            .param .u8 flag
        ) { ret; }
        .entry none() { ret; }
        .entry bare { ret; }
        .visible .entry pointer(.param .u64 .ptr .global .align 1 p, .param .u64 q) .maxntid 128, 1, 1 { ret; }
    ";
    let ptx = parse(text).expect("it is PTX");
    assert_eq!((ptx.version, ptx.target), (70, PtxTarget { number: 52, suffix: None }));
    let names: Vec<&str> = ptx.kernels.iter().map(|kernel| &*kernel.name).collect();
    assert_eq!(names, ["first", "none", "bare", "pointer"]);
    let offsets: Vec<_> = ptx.kernels[0].params.iter().map(|p| (p.offset, p.size)).collect();
    assert_eq!(offsets, [(0, 8), (8, 4), (16, 8), (32, 24), (56, 1)]);
    assert_eq!(ptx.kernels[0].param_bytes(), 57);
    assert_eq!(ptx.kernels[1].param_bytes(), 0);
    let two = [Param { offset: 0, size: 8 }, Param { offset: 8, size: 8 }];
    assert_eq!(ptx.kernels[3].params, two);
}

#[test]
fn parameters_have_their_own_alignment() {
    let kernel = kernel(
        ".entry x(.param .align 8 .f32 pair[2], .param .b16 half, .param .u32 grid[6],
            .param .b128 wide, .param .texref image, .param .bf16 last) { ret; }",
    );
    let layout: Vec<_> = kernel.params.iter().map(|p| (p.offset, p.size)).collect();
    assert_eq!(layout, [(0, 8), (8, 2), (12, 24), (48, 16), (64, 8), (72, 2)]);
    for declaration in ["", ".param", ".param .u32", ".param x", ".param .align 3 .b8 x[4]"] {
        assert_eq!(body(&format!(".entry x({declaration},) {{ }}")), None, "{declaration}");
    }
    for declaration in [".param .v2 .f32 x", ".param .u32 x[3][2]", ".param .b8 x[32765]"] {
        assert_eq!(body(&format!(".entry x({declaration}) {{ }}")), None, "{declaration}");
    }
    assert!(body(".entry x(.param .b8 p[32764]) { }").is_some());
}

#[test]
fn what_a_kernel_asks_for_is_read() {
    let bounded = kernel(".entry x() .maxntid 8, 4 .minnctapersm 2 .maxnreg 64 { }");
    assert_eq!((bounded.max_threads, bounded.required_block), (Some(32), None));
    let exact = kernel(".entry x() .reqntid 64, 2, 1 .pragma \"nounroll\"; { }");
    assert_eq!((exact.max_threads, exact.required_block), (None, Some([64, 2, 1])));
    let clustered = kernel(".entry x() .explicitcluster .reqnctapercluster 2, 2, 1 { }");
    assert_eq!((clustered.required_cluster, clustered.explicit_cluster), (Some([2, 2, 1]), true));
    assert!(kernel(".entry x() .explicitcluster .maxclusterrank 8 { }").explicit_cluster);
}

#[test]
fn shared_and_local_memory_is_counted() {
    let kernel = kernel(
        ".shared .align 8 .b8 of_all[40];
         .shared .b8 unused[1000];
         .extern .shared .align 16 .b8 dynamic[];
         .entry x() {
            .shared .b8 a; .shared .align 16 .b8 b[32];
            { .local .f64 l[4]; .reg .b32 r; st.shared.u32 [of_all], r; ld.shared.u32 r, [of_all + 4]; }
            ld.shared.u32 r, [dynamic];
         }",
    );
    assert_eq!((kernel.shared_bytes, kernel.local_bytes), (88, 32));
}

#[test]
fn variables_are_counted() {
    let ptx = body(
        ".visible .global .align 4 .u32 one = 5, two;
         .extern .global .u32 elsewhere;
         .global .attribute(.managed) .s16 signed[4] = { -1, 0x10, 2 };
         .const .f64 factor = 0d3FF0000000000000;
         .global .f32 decimal = 1.5;
         .global .u64 address[2] = { generic(one) + 4, 7U };
         .global .u8 counted[] = { 1, 2, 3 };
         .const .u8 more;
         .entry x() { }",
    )
    .expect("it is PTX");
    assert_eq!(ptx.kernels[0].constant_bytes, 9);
    assert_eq!(body(".global .u8 little[1] = { 1, 2 };"), None);
    assert_eq!(body(".global .b8 huge[4294967295][4294967295][4294967295];"), None);
}

#[test]
fn the_rest_of_a_text_is_passed_over() {
    let ptx = body(
        ".file 1 \"some.cu\", 5, 7
         .func (.reg .u32 r) helper(.reg .u32 a) { { add.u32 r, a, 1; } ret; }
         .extern .func outside (.param .b64 p);
         .visible .entry x();
         .section .debug_info { .b8 1 .b8 2 }
         .pragma \"nounroll\";
         .weak .entry x() { .loc 1 2 3 call helper; @%p bra L; L: ret; }",
    )
    .expect("it is PTX");
    let names: Vec<&str> = ptx.kernels.iter().map(|kernel| &*kernel.name).collect();
    assert_eq!(names, ["x"]);
}

/// Expects the recorded behaviour. In cases that were not recorded, expects the behaviour of ptxas.
#[test]
fn a_kernel_is_there_once() {
    let announced = ".entry x(.param .u64 p); ";
    let defined = ".entry x(.param .u64 p) { ret; } ";
    let is_ptx = |parts: &[&str]| body(&parts.concat()).is_some();
    assert!(is_ptx(&[announced, announced, defined]));
    assert!(is_ptx(&[".extern ", announced]));
    assert!(!is_ptx(&[announced]));
    assert!(!is_ptx(&[announced, ".entry y() { ret; }"]));
    assert!(!is_ptx(&[defined, defined]));
    assert!(!is_ptx(&[defined, announced]));
}

#[test]
fn targets_have_the_version_that_they_came_with() {
    for (target, before, since) in [
        ("sm_52", "4.0", "4.1"),
        ("compute_52", "4.0", "4.1"),
        ("sm_90", "7.7", "7.8"),
        ("sm_90a", "7.8", "8.0"),
        ("sm_100a", "8.5", "8.6"),
        ("sm_100f", "8.7", "8.8"),
        ("sm_110", "8.8", "9.0"),
    ] {
        let is_ptx = |version| parse(&format!(".version {version} .target {target}")).is_some();
        assert_eq!([before, since].map(is_ptx), [false, true], "{target}");
    }
}

#[test]
fn other_text_is_refused() {
    for text in [
        "",
        "hello",
        ".version 7.0",
        ".version x\n.target sm_52",
        ".version 7.0\n.target gpu",
        ".version 7.0\n.target sm_1234",
        ".version 7.0\n.target sm_52\nhello",
        ".version 7.0\n.target sm_52\n.entry x( {",
        ".version 7.0\n.target sm_52\n.entry x() { ret;",
        ".version 7.0\n.target sm_52\n.entry x() hello { }",
        ".version 7.0\n.target sm_52\n.entry 1() { }",
        ".version 7.0\n.target sm_52\n.global .u32 x",
        ".version 7.0\n.target sm_52\n.global .u32 x = ;",
    ] {
        assert_eq!(parse(text), None, "{text:?}");
    }
}
