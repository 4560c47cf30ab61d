//! `--driver auto` and `--driver cuda`, on machines with a broken driver and on machines without a driver.

use std::fs;

use crate::{Folder, SIMULATED, driver_is_here, refused, run};

/// The part of the message that tells the user of a broken driver about the simulated one.
const CURE: &str = "--driver sim";

#[test]
fn a_file_that_is_not_a_driver_is_refused() {
    let folder = Folder::new("library");
    let text = folder.file("text.so");
    fs::write(&text, "not a library").expect("a text file");
    let part = format!("the CUDA driver library {text} exists but cannot be loaded");
    refused(&["--driver", &format!("cuda:{text}"), "info"], 3, "driver", &part);
    let missing = folder.file("missing.so");
    let part = format!("no CUDA driver library {missing}");
    refused(&["--driver", &format!("cuda:{missing}"), "info"], 3, "no_driver", &part);
}

/// The examples read the same variable.
#[test]
fn a_variable_names_the_driver() {
    let named = |name: &str, arguments: &[&str]| {
        let output = crate::command(arguments).env("GREEN_CTX_DRIVER", name).output();
        crate::Run::of(output.expect("the command starts"))
    };
    assert!(named("sim:a100@12.8", &["info"]).out.starts_with("driver  simulated a100, CUDA 12.8"));
    let both = named("sim:a100", &["--driver", "sim:thor", "info"]);
    assert!(both.out.starts_with("driver  simulated thor"), "{}", both.out);
    let wrong = named("gpu", &["info"]);
    assert!(
        wrong.status == 2 && wrong.err.contains("invalid value 'gpu' for '--driver"),
        "{}",
        wrong.err
    );
    assert_eq!(named("sim:a100", &["info", "--all"]).status, 0);
}

#[test]
fn cuda_never_falls_back() {
    if driver_is_here("cuda_never_falls_back") {
        return;
    }
    for command in [&["info"][..], &["split", "--counts", "8"], &["verify", "--counts", "8"]] {
        let arguments = [&["--driver", "cuda"], command].concat();
        refused(&arguments, 3, "no_driver", "no CUDA driver library libcuda.so.1");
    }
    // The driver that the command simulates cannot be given to a program.
    #[cfg(target_os = "linux")]
    for command in [&["run", "--sms", "8", "true"][..], &["curve", "--", "true"]] {
        refused(command, 3, "no_driver", "build the simulated driver with `cargo xtask sim-lib`");
    }
    let answer = run(&["--driver", "cuda", "info"]);
    let begin = "error: no usable CUDA driver: no CUDA driver library libcuda.so.1: ";
    assert!(answer.err.starts_with(begin), "{}", answer.err);
}

#[test]
#[cfg(target_os = "linux")]
fn a_reserve_that_is_no_number_is_bad_usage() {
    for choice in ["auto", "cuda"] {
        let mut command = crate::command(&["--driver", choice, "info"]);
        let output = command.env("GREEN_CTX_RESERVE", "many").output();
        let answer = crate::Run::of(output.expect("the command starts"));
        let error = "error: no SMs can be reserved: GREEN_CTX_RESERVE=many is not a number of SMs";
        assert!(answer.err.starts_with(error), "{}", answer.err);
        assert_eq!((answer.status, answer.out.as_str()), (2, ""));
    }
}

#[test]
fn auto_falls_back_without_a_driver_and_says_so_first_and_last() {
    if driver_is_here("auto_falls_back_without_a_driver_and_says_so_first_and_last") {
        return;
    }
    let note = "note: no NVIDIA driver found; using the simulated h200, CUDA 13.0\n";
    for command in [
        &["info"][..],
        &["split", "--counts", "8"],
        &["verify", "--counts", "8"],
        &["tune", "--job", "gemm", "--job", "copy", "--budget", "1"],
    ] {
        let answer = run(command);
        assert_eq!((answer.status, answer.err.as_str()), (0, note));
        assert!(answer.out.starts_with("driver  simulated h200, CUDA 13.0\n"), "{}", answer.out);
        let last = "simulated: no NVIDIA driver was found, and no GPU was used";
        assert_eq!(answer.out.lines().last(), Some(last), "{}", answer.out);
        let answer = run(&[command, &["--json", "--driver", "auto"]].concat());
        assert_eq!((answer.status, answer.err.as_str()), (0, note));
        assert_eq!(answer.json()["driver"]["kind"], "simulated");
        let csv = run(&[command, &["--csv"]].concat()).err;
        assert!(csv.starts_with(note) && !csv.contains(SIMULATED), "{csv}");
    }
}

#[test]
fn a_reserve_of_another_driver_is_not_ignored_in_silence() {
    let split = |driver: &str, amount: &str| {
        let mut command = crate::command(&["--driver", driver, "split", "--counts", "8"]);
        let output = command.env("GREEN_CTX_RESERVE", amount).output();
        crate::Run::of(output.expect("the command starts")).err
    };
    let note =
        "note: GREEN_CTX_RESERVE holds only for the installed driver, so nothing is reserved\n";
    assert_eq!(split("sim", "32"), note);
    assert!(split("cuda:/nowhere.so", "32").starts_with(note));
    assert_eq!(split("sim", ""), "");
}

#[cfg(target_os = "linux")]
mod broken {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::*;
    use crate::{Run, command};

    /// A library with the driver's entry point. The variable `FAKE` selects a fault.
    const FAKE: &str = r#"
        use std::ffi::{CStr, c_char, c_int, c_void};

        fn is(fault: &str) -> bool {
            std::env::var("FAKE").is_ok_and(|value| value == fault)
        }
        extern "C" fn version(number: &mut c_int) -> c_int {
            *number = if is("old") { 12030 } else { 13000 };
            0
        }
        extern "C" fn init(_: u32) -> c_int {
            if is("init") { 999 } else if is("no GPU") { 100 } else { 0 }
        }
        extern "C" fn count(number: &mut c_int) -> c_int {
            *number = 0;
            0
        }
        extern "C" fn other() -> c_int {
            999
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn cuGetProcAddress_v2(
            name: *const c_char, address: &mut *const c_void, _: c_int, _: u64, _: *mut c_int,
        ) -> c_int {
            *address = match unsafe { CStr::from_ptr(name) }.to_bytes() {
                b"cuDriverGetVersion" => version as *const c_void,
                _ if is("bare") => std::ptr::null(),
                b"cuInit" => init as *const c_void,
                b"cuDeviceGetCount" => count as *const c_void,
                _ => other as *const c_void,
            };
            0
        }
    "#;

    /// Compiles a library.
    fn library(folder: &Folder, source: &str) -> Vec<u8> {
        let (code, library) = (folder.file("source.rs"), folder.file("library.so"));
        fs::write(&code, source).expect("the source is written");
        let compiler = option_env!("RUSTC").unwrap_or("rustc");
        let options = ["--edition=2024", "--crate-type=cdylib", "-Cdebuginfo=0", "-o"];
        let done = Command::new(compiler).args(options).args([&library, &code]).output();
        let done = done.expect("the compiler starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        fs::read(library).expect("the library")
    }

    /// Returns the path of a driver library in a new folder.
    fn place(folder: &Folder, name: &str) -> PathBuf {
        let inner = folder.0.join(name);
        fs::create_dir(&inner).expect("a folder for the library");
        inner.join("libcuda.so.1")
    }

    /// Runs all commands with this driver library before any other on the search path, and expects its reason.
    #[track_caller]
    fn is_refused(library: &Path, fault: &str, reason: &str) {
        let folder = library.parent().expect("a folder");
        let run = |arguments: &[&str]| {
            let mut command = command(arguments);
            command.env("LD_LIBRARY_PATH", folder).env("FAKE", fault);
            Run::of(command.output().expect("the command starts"))
        };
        for command in [
            &["info"][..],
            &["split", "--counts", "8"],
            &["verify", "--counts", "8"],
            &["tune", "--job", "gemm", "--job", "copy", "--budget", "1"],
        ] {
            let answer = run(command);
            assert_eq!((answer.status, answer.out.as_str()), (3, ""), "{}", answer.err);
            for part in [CURE, reason] {
                assert!(answer.err.contains(part), "{part:?} is not in: {}", answer.err);
            }
            let answer = run(&[command, &["--json"]].concat());
            assert_eq!((answer.status, answer.err.as_str()), (3, ""), "{}", answer.out);
            let message = answer.json()["error"]["message"].to_string();
            for part in [CURE, reason] {
                assert!(message.contains(part), "{part:?} is not in: {message}");
            }
        }
    }

    #[test]
    fn auto_refuses_a_library_that_does_not_load() {
        let folder = Folder::new("unloadable");
        let fake = library(&folder, FAKE);
        let patched = |from: &[u8], to: &[u8]| {
            let mut bytes = fake.clone();
            let found = |bytes: &[u8]| bytes.windows(from.len()).position(|part| part == from);
            assert!(found(&bytes).is_some());
            while let Some(at) = found(&bytes) {
                bytes[at..at + to.len()].copy_from_slice(to);
            }
            bytes
        };
        let mut foreign = fake.clone();
        // The machine in the header of an ELF file, set to one that does not exist.
        foreign[18..20].copy_from_slice(&[0xfe, 0xfe]);
        for (name, bytes, reason) in [
            ("corrupt", fake[..200].to_vec(), "/corrupt/libcuda.so.1: cannot read file data"),
            ("empty", Vec::new(), "/empty/libcuda.so.1: file too short"),
            (
                "truncated",
                fake[..8192].to_vec(),
                "/truncated/libcuda.so.1 is truncated: it has 8192",
            ),
            ("text", vec![b'x'; 4096], "/text/libcuda.so.1: invalid ELF header"),
            ("architecture", foreign, "/architecture/libcuda.so.1 exists but cannot be loaded"),
            (
                "dependency",
                patched(b"libc.so.6", b"libx.so.6"),
                "libcuda.so.1 exists but cannot be loaded",
            ),
        ] {
            let library = place(&folder, name);
            fs::write(&library, bytes).expect("the library is written");
            is_refused(&library, "", reason);
        }
        is_refused(&folder.0.join("dependency/libcuda.so.1"), "", "libx.so.6: cannot open");
        let directory = place(&folder, "directory");
        fs::create_dir(&directory).expect("a directory");
        is_refused(&directory, "", "/directory/libcuda.so.1: cannot read file data");
        // An uninstalled driver may leave such a link behind.
        let link = place(&folder, "link");
        std::os::unix::fs::symlink("/nowhere/libcuda.so.580", &link).expect("a link");
        is_refused(&link, "", "/link/libcuda.so.1 exists but cannot be loaded");
    }

    #[test]
    fn auto_refuses_a_library_that_is_not_a_driver() {
        let folder = Folder::new("not-a-driver");
        let library = library(&folder, "");
        let path = place(&folder, "other");
        fs::write(&path, library).expect("the library is written");
        is_refused(&path, "", "does not export cuGetProcAddress_v2: it is not a CUDA driver");
    }

    #[test]
    fn auto_refuses_a_driver_that_does_not_work() {
        let folder = Folder::new("not-working");
        let fake = library(&folder, FAKE);
        let path = place(&folder, "fake");
        fs::write(&path, fake).expect("the library is written");
        is_refused(&path, "old", "supports CUDA 12.3, green contexts need 12.4");
        is_refused(&path, "bare", "has no cu");
        is_refused(&path, "init", "cuInit failed: CUDA_ERROR_UNKNOWN");
        is_refused(&path, "no GPU", "cuInit failed: CUDA_ERROR_NO_DEVICE");
        is_refused(&path, "no devices", "the driver has none");
    }
}
