//! Compiles the libraries in `front/` for the target, with the target's linker. The crate carries them as bytes.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The text in place of the real library's path, which the program writes over it. It is longer than any usual path.
const PLACE: usize = 1000;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=front");
    println!("cargo:rustc-env=GREEN_CTX_RESERVE_PLACE={PLACE}");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(folder.join("empty.rs"), EMPTY).expect("OUT_DIR can be written");
    // Its only purpose is its name, which the next library then needs.
    let real = compile(&folder, &folder.join("empty.rs"), "real.so", &"X".repeat(PLACE), None);
    let front =
        compile(&folder, Path::new("front/front.rs"), "front.so", "libcuda.so.1", Some(&real));
    compile(&folder, &folder.join("empty.rs"), "name.so", "libcuda.so", Some(&front));
    compile(&folder, Path::new("front/audit.rs"), "audit.so", "green-ctx-audit.so", None);
}

const EMPTY: &str = "#![no_std]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
";

/// Compiles a library without std or libc that has the name `name`, and needs another library.
fn compile(folder: &Path, source: &Path, file: &str, name: &str, needs: Option<&Path>) -> PathBuf {
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let library = folder.join(file);
    // Its own calls do not go to a function of the same name in the program.
    let mut options = vec!["--no-as-needed".to_owned(), "-Bsymbolic".to_owned()];
    options.push(format!("-soname={name}"));
    // The loader gives this library no other one to call.
    options.extend((file == "audit.so").then(|| "--no-undefined".to_owned()));
    let mut target = vec!["-Clink-arg=-nostdlib".to_owned(), "-Clink-arg=-nostartfiles".to_owned()];
    target.extend(env::var("RUSTC_LINKER").map(|linker| format!("-Clinker={linker}")));
    let own = vec!["-Clinker=rust-lld".to_owned(), "-Clinker-flavor=ld.lld".to_owned()];
    let mut failures = String::new();
    // The target's linker, or the one that comes with Rust, which links for every target.
    for (linker, prefix) in [(target, "-Wl,"), (own, "")] {
        let mut rustc = Command::new(variable("RUSTC"));
        rustc.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=green_ctx_front"]);
        rustc.args(["-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols", "--target"]);
        rustc.arg(variable("TARGET")).arg("-o").arg(&library).arg(source).args(linker);
        rustc.args(options.iter().map(|option| format!("-Clink-arg={prefix}{option}")));
        rustc.args(needs.map(|needs| format!("-Clink-arg={}", needs.display())));
        let done = rustc.output().expect("rustc starts");
        if done.status.success() {
            let bytes = std::fs::read(&library).expect("rustc wrote it");
            // The library is loaded into any process, so it must run with any version of the C library.
            let is_bound = bytes.windows(6).any(|text| text == b"GLIBC_");
            assert!(!is_bound, "{} needs a version of the C library", library.display());
            return library;
        }
        failures += &format!("{rustc:?}\n{}\n", String::from_utf8_lossy(&done.stderr));
    }
    panic!("{} was not compiled:\n{failures}", source.display());
}
