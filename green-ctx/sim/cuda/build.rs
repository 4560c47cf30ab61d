//! Gives the library the name by which programs ask for a driver, and keeps it loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
        // The thread of a clock that runs is in the library's code for as long as the process lives.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
