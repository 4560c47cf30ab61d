//! Tests that read intact and damaged images.

use super::*;

const TEXT: &[u8] = include_bytes!("../../images/kernels.ptx");
const LZ4: &[u8] = include_bytes!("../../images/kernels.lz4.fatbin");
const ZSTD: &[u8] = include_bytes!("../../images/kernels.zstd.fatbin");
const CUBIN: &[u8] = include_bytes!("../../images/probe.sm_90.cubin");

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_IMAGE;
const INVALID_PTX: CUresult = CUresult::CUDA_ERROR_INVALID_PTX;
const NO_BINARY: CUresult = CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;

fn target(architecture: u32) -> Target {
    Target { architecture, ptx_version: 90 }
}

fn error(bytes: &[u8], architecture: u32) -> Option<CUresult> {
    read(bytes, target(architecture)).err()
}

fn params(sizes: &[(usize, usize)]) -> Vec<Param> {
    sizes.iter().map(|&(offset, size)| Param { offset, size }).collect()
}

/// Returns an unpacked entry of a fat binary.
fn entry(kind: u16, architecture: u32, payload: &[u8]) -> Vec<u8> {
    let mut head = vec![0; 64];
    head[0..2].copy_from_slice(&kind.to_le_bytes());
    head[4..8].copy_from_slice(&64_u32.to_le_bytes());
    head[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    head[28..32].copy_from_slice(&architecture.to_le_bytes());
    [&head, payload].concat()
}

fn fat(entries: &[Vec<u8>]) -> Vec<u8> {
    let entries = entries.concat();
    let mut head = fatbin::MAGIC.to_vec();
    head.extend([1, 0, 16, 0]);
    head.extend((entries.len() as u64).to_le_bytes());
    [head, entries].concat()
}

#[test]
fn text_packed_text_and_binaries_say_the_same() {
    // The binary for 9.0, the text for 10.0, and the text packed in the other format.
    for (bytes, architecture) in
        [(TEXT, 90), (ZSTD, 80), (ZSTD, 86), (ZSTD, 90), (ZSTD, 100), (LZ4, 90)]
    {
        let image = read(bytes, target(architecture)).expect("it is an image");
        let kernel = |name| &image.kernels[image.kernel(name).expect("it has the kernel")];
        let first = kernel("first");
        assert_eq!(first.params, params(&[(0, 8), (8, 4), (16, 24), (40, 1)]));
        assert_eq!(first.param_bytes(), 41);
        assert_eq!(first.symbol.as_c_str(), c"first");
        assert_eq!((first.max_threads, first.required_block), (Some(128), None));
        assert_eq!((first.shared_bytes, first.constant_bytes), (256, 4));
        assert_eq!(first.virtual_architecture, 80);
        let is_binary = bytes == ZSTD && architecture < 100;
        assert_eq!(first.registers.is_some(), is_binary, "{architecture}");
        assert_eq!(kernel("second").params, []);
        assert_eq!(image.kernel("third"), None);
    }
}

#[test]
fn a_binary_says_how_many_registers() {
    let image = read(CUBIN, target(90)).expect("it is a cubin");
    let [probe] = &image.kernels[..] else { panic!("{:?}", image.kernels) };
    assert_eq!(&*probe.name, "green_ctx_probe");
    assert_eq!(probe.params, params(&[(0, 8), (8, 8)]));
    assert!(probe.registers.is_some_and(|registers| (8..=32).contains(&registers)));
    assert_eq!(probe.virtual_architecture, 52);
    assert_eq!((probe.shared_bytes, probe.local_bytes), (0, 0));
}

#[test]
fn a_binary_runs_on_its_major_version() {
    for (architecture, expected) in [(80, Some(NO_BINARY)), (89, Some(NO_BINARY)), (90, None)] {
        assert_eq!(error(CUBIN, architecture), expected, "{architecture}");
    }
    assert_eq!(error(CUBIN, 100), Some(NO_BINARY));
    // A binary for one architecture only.
    let mut exact = CUBIN.to_vec();
    exact[48] |= 8;
    exact[49] = 86;
    assert_eq!([86, 89].map(|it| error(&exact, it)), [None, Some(NO_BINARY)]);
    // A cubin in the layout from before CUDA 13, and one for another machine.
    let mut old = CUBIN.to_vec();
    (old[7], old[8]) = (51, 7);
    old[48..52].copy_from_slice(&0x0050_0550_u32.to_le_bytes());
    assert_eq!([80, 86, 90].map(|it| error(&old, it)), [None, None, Some(NO_BINARY)]);
    let mut other = CUBIN.to_vec();
    other[18] = 62;
    assert_eq!(error(&other, 90), Some(INVALID));
}

#[test]
fn a_fat_binary_gives_the_newest_that_runs() {
    let text = |number: u32, kernel: &str| {
        let text = format!(".version 8.8 .target sm_{number} .entry {kernel}() {{ ret; }}\0\0\0");
        entry(1, number, text.as_bytes())
    };
    let image = fat(&[
        text(52, "old"),
        text(75, "newer"),
        text(103, "too_new"),
        entry(2, 90, CUBIN),
        entry(0x40, 90, b"something else"),
        // For one architecture only; the fat binary's entry does not tell.
        entry(1, 80, b".version 8.0 .target sm_80a .entry exact() { ret; }"),
    ]);
    let first = |architecture| {
        read(&image, target(architecture)).map(|image| image.kernels[0].name.to_string())
    };
    assert_eq!(first(50), Err(NO_BINARY));
    assert_eq!(first(60).as_deref(), Ok("old"));
    assert_eq!(first(89).as_deref(), Ok("newer"));
    assert_eq!(first(90).as_deref(), Ok("green_ctx_probe"));
    assert_eq!(first(100).as_deref(), Ok("newer"));
    assert_eq!(first(103).as_deref(), Ok("too_new"));
    assert_eq!(error(&fat(&[]), 90), Some(NO_BINARY));
    // Text that is marked as something else is still text.
    let marked = fat(&[entry(0x40, 52, b".version 7.8 .target sm_52 .entry x() { ret; }")]);
    assert_eq!((error(&marked, 90), error(&marked, 50)), (None, Some(NO_BINARY)));
    assert_eq!(error(&fat(&[entry(1, 52, b".version 3.0 .target sm_52")]), 90), Some(INVALID_PTX));
    assert_eq!(error(&fat(&[entry(2, 90, b"no ELF")]), 90), Some(INVALID));
}

#[test]
fn text_is_read_for_a_driver_and_a_device() {
    let with = |version: &str, suffix: &str, architecture| {
        let text = format!(".version {version}\n.target sm_{suffix}\n.entry x() {{ ret; }}");
        error(text.as_bytes(), architecture)
    };
    assert_eq!(with("9.0", "90", 90), None);
    assert_eq!(with("9.1", "90", 90), Some(CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION));
    assert_eq!([90, 100].map(|it| with("8.0", "90a", it)), [None, Some(INVALID_PTX)]);
    assert_eq!([100, 103].map(|it| with("9.0", "100f", it)), [None, None]);
    assert_eq!(with("9.0", "100f", 110), Some(INVALID_PTX));
    assert_eq!(with("9.0", "100", 90), Some(INVALID_PTX));
    let versions = [12_040, 12_050, 12_080, 13_000, 13_010, 13_040].map(ptx_version);
    assert_eq!(versions, [84, 85, 87, 90, 91, 94]);
}

/// Returns the length that a cubin reports. Reading beyond the end of `bytes` is an error.
fn length(bytes: &[u8]) -> Answer<u64> {
    cubin::len(|offset, out| {
        let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..));
        let found = rest.and_then(|rest| rest.get(..out.len())).ok_or(INVALID)?;
        out.copy_from_slice(found);
        Ok(())
    })
}

#[test]
fn a_cubin_has_its_length() {
    assert_eq!(length(CUBIN), Ok(CUBIN.len() as u64));
    // Bytes after the cubin do not count.
    assert_eq!(length(&[CUBIN, &[9; 100]].concat()), Ok(CUBIN.len() as u64));
    // Another machine type is reported only later.
    let mut other = CUBIN.to_vec();
    other[18] = 62;
    assert_eq!(length(&other), Ok(CUBIN.len() as u64));
    for (at, with) in [(60, 0), (58, 0), (4, 1), (5, 2)] {
        let mut other = CUBIN.to_vec();
        other[at] = with;
        assert_eq!(length(&other), Err(INVALID), "{at}");
    }
    let mut damaged = CUBIN.to_vec();
    for at in 0..CUBIN.len() - 8 {
        damaged[at..at + 8].fill(0xff);
        // The length may be an error or too large, but computing it must not fail.
        let _ = length(&damaged);
        damaged[at..at + 8].copy_from_slice(&CUBIN[at..at + 8]);
    }
}

/// Reads an image, and checks the values that are used later.
fn survive(bytes: &[u8]) {
    if let Ok(image) = read(bytes, target(90)) {
        let total: usize = image.kernels.iter().map(|kernel| kernel.param_bytes()).sum();
        assert!(total <= image.kernels.len() << 18, "{total}");
    }
}

/// Damages each image in three ways: cuts it at every position, changes each byte, and makes its numbers
/// huge.
#[test]
fn damaged_images_are_read_or_refused() {
    let plain = fat(&[entry(2, 90, CUBIN), entry(1, 80, TEXT)]);
    for bytes in [TEXT, LZ4, ZSTD, CUBIN, &plain] {
        for len in 0..bytes.len() {
            survive(&bytes[..len]);
        }
        let mut damaged = bytes.to_vec();
        for at in 0..bytes.len() {
            for with in [bytes[at] ^ 1 << (at % 8), 0xff] {
                damaged[at] = with;
                survive(&damaged);
            }
            damaged[at] = bytes[at];
        }
        for at in (0..bytes.len().saturating_sub(8)).step_by(4) {
            // Alternates between all ones and the maximum signed number.
            let huge = u64::MAX >> (at / 4 % 2);
            damaged[at..at + 8].copy_from_slice(&huge.to_le_bytes());
            survive(&damaged);
            damaged[at..at + 8].copy_from_slice(&bytes[at..at + 8]);
        }
    }
}
