//! Distinguishes a library that does not exist from a library that does not load.

#[cfg(not(windows))]
use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Returns the file that the loader tried to open, or `None` if there is no such file.
///
/// `error` is the error of the system's loader. The error names a file only in its text, and that file may be a
/// dependency of the library. If this function does not recognise the text, the library counts as existing.
pub(crate) fn existing(path: &Path, error: &libloading::Error) -> Option<PathBuf> {
    if path.parent() != Some(Path::new("")) {
        return exists(path).then(|| path.to_owned());
    }
    // The loader skips files for other machines and dangling links, and then reports that it found nothing.
    let found = folders().into_iter().map(|folder| folder.join(path)).find(|file| exists(file));
    found.or_else(|| (!is_absence(path, &root(error))).then(|| path.to_owned()))
}

/// Returns whether the path exists. A dangling link counts as existing.
fn exists(path: &Path) -> bool {
    match path.symlink_metadata() {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    }
}

/// Returns the message of the system's loader, without the message of libloading.
fn root(error: &libloading::Error) -> String {
    let mut root: &dyn Error = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}

/// Returns whether the loader reports that it found no library of this name.
///
/// A message of glibc begins with the bare name if glibc found no file, and with the file's path or a dependency's
/// name otherwise. A message of musl has words before the name. Both libraries may translate the words after the
/// name.
#[cfg(not(windows))]
fn is_absence(name: &Path, message: &str) -> bool {
    let name = format!("{}: ", name.display());
    message.starts_with(&name) || message.contains(&format!(" {name}"))
}

/// Returns whether the loader reports a missing file. Windows reports a missing library and a missing dependency with
/// the same code, so `existing` searches the folders first.
#[cfg(windows)]
fn is_absence(_: &Path, message: &str) -> bool {
    // ERROR_MOD_NOT_FOUND
    message.ends_with("(os error 126)")
}

/// Returns the folders in which the loader searches for a bare name.
#[cfg(not(windows))]
fn folders() -> Vec<PathBuf> {
    let usual = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"].map(PathBuf::from);
    // The cache is the loader's list of the libraries in all configured folders. Its paths end with a NUL.
    let cache = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
    let cached = cache.split(|byte| *byte == 0).filter(|text| text.starts_with(b"/"));
    let cached = cached.filter_map(|path| Path::new(std::str::from_utf8(path).ok()?).parent());
    let cached: BTreeSet<&Path> = cached.collect();
    let cached = cached.into_iter().map(Path::to_owned);
    listed("LD_LIBRARY_PATH").chain(cached).chain(usual).collect()
}

/// Returns the folders in which the loader searches for a bare name.
#[cfg(windows)]
fn folders() -> Vec<PathBuf> {
    let system = std::env::var_os("SystemRoot").map(|root| PathBuf::from(root).join("System32"));
    let program = std::env::current_exe().ok().and_then(|file| Some(file.parent()?.to_owned()));
    listed("PATH").chain(system).chain(program).collect()
}

/// Returns the folders in an environment variable.
fn listed(variable: impl AsRef<OsStr>) -> impl Iterator<Item = PathBuf> {
    let value = std::env::var_os(variable).unwrap_or_default();
    std::env::split_paths(&value).collect::<Vec<_>>().into_iter()
}
