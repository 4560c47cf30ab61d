//! Names the library `libcuda.so.1`, the name under which programs load a driver, and prevents it
//! from being unloaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
        // The thread of a real clock executes the library's code until the process ends.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
