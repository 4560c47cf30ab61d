//! Libraries: their contents, the contexts that they are loaded in, and their images.

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

use green_ctx_sys::{CUkernel, CUlibrary};
use serde_json::json;

use super::{Case, Needs};
use crate::answer::{Answer, Fact, Failure, Outcome};
use crate::gpu::Gpu;

/// The PTX of these cases.
const TEXT: &str = concat!(include_str!("../library.ptx"), "\0");

/// The probe compiled for another architecture, and for this one.
const OTHER_CUBIN: &[u8] = include_bytes!("../../../../green-ctx/sim/images/probe.sm_80.cubin");
const CUBIN: &[u8] = include_bytes!("../../../../green-ctx/sim/images/probe.sm_90.cubin");

/// Fat binaries of two kernels: one for two architectures and as PTX, one as PTX only.
const ZSTD: &[u8] = include_bytes!("../../../../green-ctx/sim/images/kernels.zstd.fatbin");
const LZ4: &[u8] = include_bytes!("../../../../green-ctx/sim/images/kernels.lz4.fatbin");

/// The kernels in `TEXT`.
pub(super) const KERNELS: [&CStr; 5] = [c"first", c"second", c"exact", c"clustered", c"open"];

pub(super) fn text() -> &'static CStr {
    CStr::from_bytes_until_nul(TEXT.as_bytes()).unwrap_or(c"")
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = of_libraries();
    cases.extend(of_images());
    cases
}

/// Loads `TEXT` as a library.
pub(super) fn library(gpu: &Gpu) -> Result<CUlibrary, Failure> {
    gpu.cuLibraryLoadData(text())?.must()
}

pub(super) fn kernel(gpu: &Gpu, library: CUlibrary, name: &CStr) -> Result<CUkernel, Failure> {
    gpu.cuLibraryGetKernel(library, name)?.must()
}

fn of_libraries() -> Vec<Case> {
    vec![
        Case::new("library/kernel-names", |gpu, answer| {
            let library = library(gpu)?;
            for name in KERNELS {
                let reply = gpu.cuKernelGetName(kernel(gpu, library, name)?)?;
                answer.add(name.to_string_lossy(), gpu.text(&reply));
            }
            answer.add("null", gpu.cuKernelGetName(null_mut())?);
            gpu.cuLibraryUnload(library)?.must()
        }),
        Case::new("library/module-and-function-by-context", |gpu, answer| {
            let library = library(gpu)?;
            let second = kernel(gpu, library, c"second")?;
            let function = gpu.cuKernelGetFunction(second)?.must()?;
            gpu.push(gpu.context_of(gpu.green_with(64)?)?)?;
            let of_green = gpu.cuKernelGetFunction(second)?;
            answer.add("get_function", of_green);
            answer.add("same_function", of_green.out == function);
            gpu.cuLibraryUnload(library)?.must()
        }),
        Case::new("library/without-context", |gpu, answer| {
            let library = library(gpu)?;
            let second = kernel(gpu, library, c"second")?;
            answer.add("get_function", gpu.cuKernelGetFunction(second)?);
            answer.add("get_name", gpu.cuKernelGetName(second)?);
            answer.add("load_module", gpu.cuModuleLoadData(text())?);
            answer.add("load_nothing", gpu.load_module(null_mut())?);
            answer.add("unload", gpu.cuLibraryUnload(library)?);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("library/parameters-without-context", |gpu, answer| {
            let library = library(gpu)?;
            let second = kernel(gpu, library, c"second")?;
            answer.add("of_a_kernel", gpu.cuKernelGetParamInfo(second, 0)?);
            answer.add("of_no_kernel", gpu.cuKernelGetParamInfo(null_mut(), 0)?);
            answer.add("unload", gpu.cuLibraryUnload(library)?);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("library/of-other-text-in-use", |gpu, answer| {
            for (name, text) in [("words", c"only words"), ("no_target", c".version 5.0\n")] {
                let library = gpu.cuLibraryLoadData(text)?.must()?;
                answer.add(format!("{name}_count"), gpu.cuLibraryGetKernelCount(library)?.out);
                gpu.cuLibraryUnload(library)?.must()?;
            }
            Ok(())
        }),
        Case::new("library/null", |gpu, answer| {
            answer.add("load_null", gpu.load_library(null_mut())?);
            answer.add("get_kernel", gpu.cuLibraryGetKernel(null_mut(), c"second")?);
            answer.add("count", gpu.cuLibraryGetKernelCount(null_mut())?);
            answer.add("unload", gpu.cuLibraryUnload(null_mut())?);
            Ok(())
        })
        .alone(),
        Case::new("library/unload-twice", |gpu, answer| {
            let library = library(gpu)?;
            answer.add("first", gpu.cuLibraryUnload(library)?);
            answer.add("second", gpu.cuLibraryUnload(library)?);
            Ok(())
        })
        .alone(),
        Case::new("library/loaded-twice", |gpu, answer| {
            let (one, two) = (library(gpu)?, library(gpu)?);
            answer.add("same_library", one == two);
            answer.add("same_kernel", kernel(gpu, one, c"first")? == kernel(gpu, two, c"first")?);
            answer.add("unload", gpu.cuLibraryUnload(one)?);
            answer.add("other_is_there", gpu.cuLibraryGetKernel(two, c"first")?);
            gpu.cuLibraryUnload(two)?.must()
        }),
    ]
}

fn of_images() -> Vec<Case> {
    vec![
        Case::new("library/from-a-file", |gpu, answer| {
            let path = std::env::temp_dir().join(format!("green-ctx-{}.ptx", std::process::id()));
            for (name, content) in
                [("text", text().to_bytes()), ("cubin", CUBIN), ("fat", ZSTD), ("empty", b"")]
            {
                std::fs::write(&path, content)
                    .map_err(|error| Failure::Other(error.to_string()))?;
                let path = c_path(&path)?;
                let library = gpu.cuLibraryLoadFromFile(&path)?;
                answer.add(format!("{name}_library"), library);
                if library.is_ok() {
                    let count = gpu.cuLibraryGetKernelCount(library.out)?;
                    answer.add(
                        format!("{name}_kernels"),
                        json!({ "status": count.value(), "count": count.out }),
                    );
                    gpu.cuLibraryUnload(library.out)?.must()?;
                }
            }
            std::fs::remove_file(&path).map_err(|error| Failure::Other(error.to_string()))
        }),
        Case::new("library/from-no-file", |gpu, answer| {
            for (name, path) in
                [("missing", c"/no/such/file"), ("folder", c"/"), ("empty_name", c"")]
            {
                answer.add(format!("{name}_library"), gpu.cuLibraryLoadFromFile(path)?);
            }
            Ok(())
        }),
        Case::new("library/cubin", |gpu, answer| {
            let library = gpu.load_library(CUBIN.as_ptr().cast())?;
            answer.add("load", library);
            answer.add("kernels", gpu.cuLibraryGetKernelCount(library.out)?.out);
            let kernel = gpu.cuLibraryGetKernel(library.out, c"green_ctx_probe")?;
            answer.add("get_kernel", kernel);
            for index in 0..3 {
                let reply = gpu.cuKernelGetParamInfo(kernel.out, index)?;
                answer.add(
                    format!("parameter {index}"),
                    json!([reply.value(), reply.out.0, reply.out.1]),
                );
            }
            let module = gpu.load_module(CUBIN.as_ptr().cast())?;
            answer.add("module", module);
            answer.add("function", gpu.cuModuleGetFunction(module.out, c"green_ctx_probe")?);
            answer.add("unknown", gpu.cuModuleGetFunction(module.out, c"none")?);
            gpu.cuLibraryUnload(library.out)?.must()
        }),
        Case::new("library/cubin-for-another-architecture", |gpu, answer| {
            answer.add("module", gpu.load_module(OTHER_CUBIN.as_ptr().cast())?);
            let library = gpu.load_library(OTHER_CUBIN.as_ptr().cast())?;
            answer.add("library", library);
            if library.is_ok() {
                answer.add("count", gpu.cuLibraryGetKernelCount(library.out)?);
                answer.add("get_kernel", gpu.cuLibraryGetKernel(library.out, c"green_ctx_probe")?);
                answer.add("unload", gpu.cuLibraryUnload(library.out)?);
            }
            Ok(())
        })
        .alone(),
        fat_binary("library/fat-binary", ZSTD),
        fat_binary("library/fat-binary-of-text", LZ4),
        damaged("library/damaged-cubin-of-another-machine", CUBIN, 18, &[62, 0]),
        damaged("library/damaged-cubin-without-sections", CUBIN, 60, &[0, 0, 0, 0]),
        damaged("library/damaged-fat-binary-of-nothing", ZSTD, 8, &[0; 8]),
        damaged("library/damaged-fat-binary-of-other-things", LZ4, 16, &[0x40, 0]),
        Case::new("library/targets-of-text", |gpu, answer| {
            for target in [
                "sm_52",
                "sm_80",
                "sm_89",
                "sm_90",
                "sm_90a",
                "sm_100",
                "sm_100a",
                "sm_100f",
                "sm_91",
                "compute_90",
            ] {
                try_text(
                    gpu,
                    answer,
                    target,
                    &format!(
                        ".version 9.0\n.target {target}\n.address_size 64\n.entry x() {{ ret; }}"
                    ),
                )?;
            }
            Ok(())
        }),
        Case::new("library/versions-of-text", |gpu, answer| {
            for version in
                ["1.0", "3.0", "6.0", "8.8", "9.0", "9.1", "9.9", "10.0", "99.0", "9", "x.y"]
            {
                try_text(
                    gpu,
                    answer,
                    version,
                    &format!(
                        ".version {version}\n.target sm_52\n.address_size 64\n.entry x() {{ ret; }}"
                    ),
                )?;
            }
            Ok(())
        }),
        Case::new("library/forms-of-text", |gpu, answer| {
            for (name, rest) in [
                ("bare", ".entry x { ret; }"),
                ("weak", ".weak .entry x() { ret; }"),
                ("comments", "/* .entry y() */ .entry /* x */ x // (\n() { ret; }"),
                (
                    "announced",
                    ".visible .entry x(.param .u64 p); .visible .entry x(.param .u64 p) { ret; }",
                ),
                ("only_announced", ".visible .entry x(.param .u64 p);"),
                ("unfinished", ".entry x() { ret;"),
                ("no_name", ".entry () { ret; }"),
                ("words", "some words"),
                ("twice", ".entry x() { ret; } .entry x() { ret; }"),
                ("comma", ".entry x(.param .u64 p,) { ret; }"),
                ("no_type", ".entry x(.param p) { ret; }"),
                ("alignment_of_3", ".entry x(.param .align 3 .b8 p[3]) { ret; }"),
                ("large", ".entry x(.param .b8 p[4097]) { ret; }"),
                ("too_large", ".entry x(.param .b8 p[40000]) { ret; }"),
            ] {
                try_text(
                    gpu,
                    answer,
                    name,
                    &format!(".version 6.0\n.target sm_52\n.address_size 64\n{rest}"),
                )?;
            }
            Ok(())
        }),
        Case::new("library/layouts-of-text", |gpu, answer| {
            let text = c".version 8.3\n.target sm_90\n.address_size 64\n.visible .entry x(
                .param .align 8 .f32 pair[2], .param .b16 half, .param .u32 grid[6],
                .param .b8 byte, .param .align 16 .b8 block[5],
                .param .u64 .ptr .global .align 1 pointer, .param .b8 last) { ret; }";
            let library = gpu.cuLibraryLoadData(text)?.must()?;
            let x = kernel(gpu, library, c"x")?;
            for index in 0..8 {
                let one = gpu.cuKernelGetParamInfo(x, index)?;
                answer.add(index.to_string(), json!([one.value(), one.out.0, one.out.1]));
            }
            gpu.cuLibraryUnload(library)?.must()
        }),
    ]
}

fn c_path(path: &std::path::Path) -> Result<CString, Failure> {
    let bytes = path.as_os_str().as_encoded_bytes();
    CString::new(bytes).map_err(|error| Failure::Other(error.to_string()))
}

/// Loads a text as a module and as a library, and requests a kernel of the library.
fn try_text(gpu: &Gpu, answer: &mut Answer<'_>, name: &str, text: &str) -> Outcome {
    let text = CString::new(text).map_err(|error| Failure::Other(error.to_string()))?;
    let module = gpu.cuModuleLoadData(&text)?;
    let library = gpu.cuLibraryLoadData(&text)?;
    let mut facts = json!({ "module": module.value(), "library": library.value() });
    if module.is_ok() {
        facts["function"] = gpu.cuModuleGetFunction(module.out, c"x")?.value();
        gpu.cuModuleUnload(module.out)?.must()?;
    }
    if library.is_ok() {
        facts["kernel"] = gpu.cuLibraryGetKernel(library.out, c"x")?.value();
        gpu.cuLibraryUnload(library.out)?.must()?;
    }
    answer.add(name, facts);
    Ok(())
}

/// A case with a fat binary, as it is in a file and as the runtime library wraps it.
fn fat_binary(name: &str, image: &'static [u8]) -> Case {
    /// `__fatBinC_Wrapper_t` of `fatbinary_section.h`.
    #[repr(C)]
    struct Wrapper {
        magic: u32,
        version: u32,
        data: *const c_void,
        prelinked: *const c_void,
    }
    Case::new(name, move |gpu, answer| {
        let data = image.as_ptr().cast();
        let wrapper = Wrapper { magic: 0x4662_43b1, version: 1, data, prelinked: std::ptr::null() };
        for (name, image) in [("plain", data), ("wrapped", (&raw const wrapper).cast())] {
            let library = gpu.load_library(image)?;
            answer.add(format!("{name}_library"), library);
            if library.is_ok() {
                let count = gpu.cuLibraryGetKernelCount(library.out)?;
                answer.add(format!("{name}_count"), json!([count.value(), count.out]));
                let first = gpu.cuLibraryGetKernel(library.out, c"first")?;
                answer.add(format!("{name}_kernel"), first);
                if first.is_ok() {
                    let (offset, size) = gpu.cuKernelGetParamInfo(first.out, 2)?.out;
                    answer.add(format!("{name}_parameter"), json!([offset, size]));
                }
                gpu.cuLibraryUnload(library.out)?.must()?;
            }
            let module = gpu.load_module(image)?;
            answer.add(format!("{name}_module"), module);
            if module.is_ok() {
                gpu.cuModuleUnload(module.out)?.must()?;
            }
        }
        Ok(())
    })
    .alone()
}

/// A case with an image in which some bytes are replaced.
fn damaged(name: &str, image: &'static [u8], at: usize, with: &'static [u8]) -> Case {
    Case::new(name, move |gpu, answer| {
        let mut image = image.to_vec();
        image[at..at + with.len()].copy_from_slice(with);
        // A driver that reads past the end of the image finds zeros.
        image.resize(image.len() + (1 << 16), 0);
        answer.add("module", gpu.load_module(image.as_ptr().cast())?);
        let library = gpu.load_library(image.as_ptr().cast())?;
        answer.add("library", library);
        if library.is_ok() {
            answer.add("kernel", gpu.cuLibraryGetKernel(library.out, c"first")?);
            answer.add("unload", gpu.cuLibraryUnload(library.out)?);
        }
        Ok(())
    })
    .alone()
}
