//! Locates the CUDA headers: in a given folder, in an installed toolkit, or in the pinned package.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::{Failure, workspace_root};

/// The header version that the committed files are generated from.
const CUDA_VERSION: u32 = 13050;
const PACKAGE: &str = "nvidia-cuda-runtime";
const PACKAGE_VERSION: &str = "13.5.37";
const WHEEL: &str =
    "nvidia_cuda_runtime-13.5.37-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl";
const WHEEL_SHA256: &str = "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d";
const INCLUDE_IN_WHEEL: &str = "nvidia/cu13/include";

/// Returns a folder with `cuda.h` and `cudaTypedefs.h`.
pub(crate) fn locate(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(folder) = given {
        let found = version(folder)?;
        if found != CUDA_VERSION {
            eprintln!(
                "warning: these are the headers of CUDA {found}; the committed files are generated \
                 from {CUDA_VERSION}"
            );
        }
        return Ok(folder.to_owned());
    }
    if let Some(home) = std::env::var_os("CUDA_HOME") {
        let folder = Path::new(&home).join("include");
        match version(&folder) {
            Ok(CUDA_VERSION) => return Ok(folder),
            Ok(found) => eprintln!(
                "CUDA_HOME has the headers of CUDA {found}, not {CUDA_VERSION}: using the package"
            ),
            Err(error) => eprintln!("CUDA_HOME cannot be used ({error}): using the package"),
        }
    }
    package()
}

/// Reads `CUDA_VERSION` from `cuda.h`.
fn version(folder: &Path) -> Result<u32, Failure> {
    let path = folder.join("cuda.h");
    let text =
        std::fs::read_to_string(&path).map_err(|error| Failure::io("reading", &path, error))?;
    if !folder.join("cudaTypedefs.h").is_file() {
        return Err(Failure::new(format!("{} has no cudaTypedefs.h", folder.display())));
    }
    text.lines()
        .find_map(|line| line.strip_prefix("#define CUDA_VERSION ")?.trim().parse().ok())
        .ok_or_else(|| Failure::new(format!("{} defines no CUDA_VERSION", path.display())))
}

/// Downloads the pinned package once, and unpacks its headers under `target/`.
fn package() -> Result<PathBuf, Failure> {
    let cache = workspace_root().join("target/cuda-headers");
    let wheel = cache.join(WHEEL);
    if !wheel.is_file() {
        eprintln!("downloading {PACKAGE} {PACKAGE_VERSION} with pip");
        download(&cache)?;
    }
    verify(&wheel)?;
    // Unpacked again from the verified archive each time, so that edits of the cache cannot reach the generated files.
    let unpacked = cache.join("unpacked");
    let status = python()
        .args(["-m", "zipfile", "-e"])
        .arg(&wheel)
        .arg(&unpacked)
        .status()
        .map_err(no_python)?;
    if !status.success() {
        return Err(Failure::new(format!("unpacking {} failed", wheel.display())));
    }
    let include = unpacked.join(INCLUDE_IN_WHEEL);
    match version(&include)? {
        CUDA_VERSION => Ok(include),
        found => {
            Err(Failure::new(format!("the package contains CUDA {found}, not {CUDA_VERSION}")))
        }
    }
}

fn download(cache: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(cache).map_err(|error| Failure::io("creating", cache, error))?;
    let status = python()
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"])
        .args(["--platform", "manylinux2014_x86_64", "--dest"])
        .arg(cache)
        .arg(format!("{PACKAGE}=={PACKAGE_VERSION}"))
        .status()
        .map_err(no_python)?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "pip could not download {PACKAGE} {PACKAGE_VERSION}; give a CUDA toolkit's include folder \
         with --cuda-include DIR"
    )))
}

fn verify(wheel: &Path) -> Result<(), Failure> {
    let bytes = std::fs::read(wheel).map_err(|error| Failure::io("reading", wheel, error))?;
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if digest == WHEEL_SHA256 {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} has the checksum {digest}, not {WHEEL_SHA256}; delete it and run this again",
        wheel.display()
    )))
}

fn python() -> Command {
    Command::new("python3")
}

fn no_python(error: std::io::Error) -> Failure {
    Failure::new(format!(
        "python3 could not be run ({error}); install Python with pip, or give a CUDA toolkit's \
         include folder with --cuda-include DIR"
    ))
}
