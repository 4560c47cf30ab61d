//! Locates libclang, which bindgen loads at run time.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

/// Makes sure that bindgen finds a libclang, by setting `LIBCLANG_PATH` if necessary.
pub(crate) fn locate() -> Result<(), Failure> {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return Ok(());
    }
    let folder = python_package().or_else(installed).ok_or_else(|| {
        Failure::new(
            "no libclang was found: run `python3 -m pip install libclang`, install your \
             distribution's libclang-dev, or set LIBCLANG_PATH to the folder of libclang.so"
                .to_owned(),
        )
    })?;
    // SAFETY: xtask has not started other threads yet, so none can read the environment at the same time.
    unsafe { std::env::set_var("LIBCLANG_PATH", folder) };
    Ok(())
}

/// Returns the folder of libclang in Python's `libclang` package.
fn python_package() -> Option<PathBuf> {
    let script = "import clang, os; print(os.path.join(os.path.dirname(clang.__file__), 'native'))";
    let output = Command::new("python3").args(["-c", script]).output().ok()?;
    let folder = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    holds_libclang(&folder).then_some(folder)
}

/// Returns the folder of libclang where distributions put it, the newest version first.
fn installed() -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir("/usr/lib")
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("llvm-"))
        })
        .map(|path| path.join("lib"))
        .collect();
    folders.sort();
    folders.reverse();
    folders.push("/usr/lib64".into());
    folders.push("/usr/lib/x86_64-linux-gnu".into());
    folders.push("/usr/lib/aarch64-linux-gnu".into());
    folders.into_iter().find(|folder| holds_libclang(folder))
}

fn holds_libclang(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // bindgen needs the C interface; libclang-cpp has another one.
            name.starts_with("libclang.so") || name.starts_with("libclang-1")
        })
    })
}

/// Returns folders with the compiler's own headers (`stddef.h`), which Python's libclang lacks.
pub(crate) fn builtin_includes() -> Vec<PathBuf> {
    ["cc", "gcc", "clang"]
        .iter()
        .filter_map(|compiler| {
            let output = Command::new(compiler).arg("-print-file-name=include").output().ok()?;
            let folder = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
            folder.join("stddef.h").is_file().then_some(folder)
        })
        .take(1)
        .collect()
}
