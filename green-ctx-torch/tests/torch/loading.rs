//! Finding libtorch in this process and in a folder.
#![allow(unsafe_code, reason = "loads libraries, and sets PyTorch's streams")]

use std::cell::Cell;
use std::error::Error;
use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, mem, ptr};

use green_ctx::StreamOptions;
use green_ctx_torch::{Torch, TorchError, raw_stream, scope};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL};

use crate::common::{Machine, Outcome};

/// The variables with the library that a copy of this program loads, and the flags.
const CHILD: &str = "GREEN_CTX_TORCH_TEST_LIBRARY";
const FLAGS: &str = "GREEN_CTX_TORCH_TEST_FLAGS";

/// A folder for one test, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Folder, Box<dyn Error>> {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }

    /// Compiles a library into the folder.
    fn library(&self, name: &str, source: &Path) -> Outcome {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .args(["--edition", "2024", "--crate-type", "cdylib", "--cap-lints", "allow"])
            .arg(format!("-Clink-arg=-Wl,-soname,{name}"))
            .arg("-o")
            .arg(self.0.join(name))
            .arg(source)
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        Ok(())
    }

    fn file(&self, name: &str, text: &str) -> Result<PathBuf, Box<dyn Error>> {
        let path = self.0.join(name);
        fs::write(&path, text)?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the source of a libtorch that has every function.
fn fake() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch/fake.rs")
}

/// The source of an older libtorch.
const OLD: &str = r#"
    #[unsafe(no_mangle)]
    unsafe extern "C" fn aoti_torch_get_current_cuda_stream(_: i32, stream: *mut usize) -> i32 {
        unsafe { stream.write(0x1234) };
        0
    }
"#;

#[test]
fn in_a_folder() -> Outcome {
    let folder = Folder::new("in_a_folder")?;
    folder.library("libtorch_cuda.so", &fake())?;
    let parent = folder.0.parent().ok_or("a folder in another")?;
    let named = parent.join("in_a_folder-libtorch");
    let _removed_too = Folder(named.clone());
    fs::create_dir_all(&named)?;
    fs::rename(&folder.0, named.join("lib"))?;
    // First the folder of the library itself, then the one that contains `lib`.
    for folder in [&named.join("lib"), &named] {
        // SAFETY: the folder contains a substitute for libtorch.
        let torch = unsafe { Torch::load_from(folder) }?;
        let pooled = torch.stream_from_pool(0, true)?;
        // SAFETY: this libtorch accepts any handle.
        unsafe { torch.set_current_stream(pooled, 1) }?;
        assert_eq!((torch.current_stream(0)?, torch.current_stream(1)?), (ptr::null_mut(), pooled));
        // SAFETY: null is the default stream.
        unsafe { torch.set_current_stream(ptr::null_mut(), 1) }?;
    }
    Ok(())
}

#[test]
fn a_folder_without_it() -> Outcome {
    let folder = Folder::new("without")?;
    // SAFETY: the folder never contains a library that can be opened.
    let load = || unsafe { Torch::load_from(&folder.0) };
    let found = load();
    let Err(TorchError::NotFound { folder: named }) = found else { panic!("{found:?}") };
    assert_eq!(named, folder.0);
    // A build for the CPU has this library.
    let cpu = folder.file("libtorch_cpu.so", "")?;
    assert!(matches!(load(), Err(TorchError::CpuBuild)));
    fs::remove_file(cpu)?;
    let broken = folder.file("libtorch_cuda.so", "no library")?;
    let found = load();
    let Err(TorchError::NotALibrary { path, .. }) = found else { panic!("{found:?}") };
    assert_eq!(path, broken);
    Ok(())
}

#[test]
fn an_older_one() -> Outcome {
    let folder = Folder::new("older")?;
    folder.library("libtorch_cuda.so", &folder.file("old.rs", OLD)?)?;
    // SAFETY: the folder contains a substitute for libtorch.
    let torch = unsafe { Torch::load_from(&folder.0) }?;
    assert_eq!(torch.current_stream(0)?.addr(), 0x1234);
    let machine = Machine::new()?;
    let stream = machine.stream(0)?;
    // SAFETY: the function is missing, so nothing is called.
    let set = unsafe { torch.set_current_stream(ptr::null_mut(), 0) };
    for (result, lacking) in [
        (set, "torch_set_current_cuda_stream"),
        (torch.stream_from_pool(0, false).map(drop), "torch_get_cuda_stream_from_pool"),
        (torch.guard(&stream).map(drop), "aoti_torch_delete_cuda_stream_guard"),
    ] {
        let Err(error) = result else { panic!("{lacking} is not there") };
        let text = error.to_string();
        assert!(text.contains(lacking) && text.contains("2.10 or newer"), "{text}");
    }
    // Entering fails after it has recorded an event, and changes nothing.
    let raw = machine.primary.create_stream(StreamOptions::default())?;
    let older = stand_in(raw_stream(&raw));
    assert!(matches!(scope::enter(&older, &stream), Err(TorchError::TooOld { needs: "2.10", .. })));
    assert_eq!((machine.current(), scope::depth()), (ptr::null_mut(), 0));
    Ok(())
}

thread_local! {
    static STAND_IN: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
}

/// Returns an older libtorch, in this program, whose current stream is `stream`.
fn stand_in(stream: *mut c_void) -> Torch {
    unsafe extern "C" fn current(_device: i32, stream: *mut *mut c_void) -> i32 {
        // SAFETY: the caller passes a pointer to a live handle.
        unsafe { stream.write(STAND_IN.get()) };
        0
    }
    STAND_IN.set(stream);
    let find = |name: &CStr| match name.to_bytes() {
        b"aoti_torch_get_current_cuda_stream" => current as *mut c_void,
        _ => ptr::null_mut(),
    };
    // SAFETY: the function behaves like libtorch's, and is part of this program.
    unsafe { Torch::from_lookup(find) }
}

/// A copy of this program loads a library, as Python does, and looks for libtorch.
#[test]
fn in_a_process() -> Outcome {
    let folder = Folder::new("in_a_process")?;
    folder.library("libtorch_cuda.so", &fake())?;
    let none = folder.file("none.rs", "")?;
    folder.library("libtorch_cpu.so", &none)?;
    folder.library("libprogram.so", &fake())?;
    for (library, flags, found) in [
        ("", RTLD_LOCAL, "NotLoaded"),
        ("libtorch_cpu.so", RTLD_LOCAL, "CpuBuild"),
        ("libtorch_cuda.so", RTLD_LOCAL, "found"),
        // As if linked into the program: found only if it is loaded globally.
        ("libprogram.so", RTLD_LOCAL, "NotLoaded"),
        ("libprogram.so", RTLD_GLOBAL, "found"),
    ] {
        let path = if library.is_empty() { PathBuf::new() } else { folder.0.join(library) };
        let output = Command::new(env::current_exe()?)
            .args(["--exact", "loading::child", "--nocapture"])
            .env(CHILD, &path)
            .env(FLAGS, flags.to_string())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{library}: {text}");
        assert!(text.contains(&format!("answer: {found}.")), "{library}: {text}");
    }
    Ok(())
}

/// The work of the copy. Does nothing in a normal run of the tests.
#[test]
fn child() -> Outcome {
    let (Some(path), Some(flags)) = (env::var_os(CHILD), env::var(FLAGS).ok()) else {
        return Ok(());
    };
    if !path.is_empty() {
        // SAFETY: a test in the parent process compiled the library, and the library has no initialisers.
        mem::forget(unsafe { Library::open(Some(path), RTLD_LAZY | flags.parse::<i32>()?) }?);
    }
    let answer = match Torch::find() {
        Ok(torch) => {
            assert_eq!(torch.current_stream(0)?, ptr::null_mut());
            assert_eq!(Torch::find()?, torch);
            "found"
        }
        Err(TorchError::NotLoaded) => "NotLoaded",
        Err(TorchError::CpuBuild) => "CpuBuild",
        Err(error) => return Err(error.into()),
    };
    println!("answer: {answer}.");
    Ok(())
}
