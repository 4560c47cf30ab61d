//! Finds the file that the system's loader opens: to distinguish a library that does not exist from a library that does
//! not load, and to find a truncated library before the loader maps it.

#[cfg(not(windows))]
use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A file that is shorter than its segments.
pub(crate) struct Truncated {
    pub(crate) path: PathBuf,
    pub(crate) found: u64,
    pub(crate) needs: u64,
}

/// Returns the file that the system's loader opens for a library, without opening it as a library. If `library` has no
/// separator, the loader's folders are searched for this name.
#[must_use]
pub fn find(library: &Path) -> Option<PathBuf> {
    candidates(library).into_iter().find(|path| lengths(path).is_ok())
}

/// Returns the file that the loader would map, if that file is truncated. The loader does not compare the segments with
/// the file's length, and the first access to a missing page ends the process with SIGBUS.
///
/// If this function cannot read the header of a 64-bit ELF file, the loader cannot map the file, and passes over it or
/// returns an error.
pub(crate) fn truncated(path: &Path) -> Option<Truncated> {
    candidates(path)
        .into_iter()
        .find_map(|path| {
            let (found, needs) = lengths(&path).ok()?;
            Some(Truncated { path, found, needs })
        })
        .filter(|file| file.found < file.needs)
}

/// Returns the length of a 64-bit ELF file, and the length that its loadable segments need. The offsets are those of
/// `Elf64_Ehdr` and `Elf64_Phdr` in `elf.h`.
fn lengths(path: &Path) -> io::Result<(u64, u64)> {
    const PROGRAM_HEADER: usize = 56;
    const PT_LOAD: u64 = 1;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let mut file = File::open(path)?;
    let mut header = [0; 64];
    file.read_exact(&mut header)?;
    if !header.starts_with(b"\x7fELF\x02") {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut table = vec![0; number(&header[56..58]) as usize * PROGRAM_HEADER];
    file.seek(SeekFrom::Start(number(&header[32..40])))?;
    file.read_exact(&mut table)?;
    let segments = table.chunks_exact(PROGRAM_HEADER);
    let loaded = segments.filter(|segment| number(&segment[..4]) == PT_LOAD);
    let ends =
        loaded.map(|segment| number(&segment[8..16]).saturating_add(number(&segment[32..40])));
    Ok((file.metadata()?.len(), ends.max().unwrap_or(0)))
}

/// Returns the file that the loader tried to open, or `None` if there is no such file.
///
/// `error` is the error of the system's loader. The error names a file only in its text, and that file may be a
/// dependency of the library. If this function does not recognise the text, the library counts as existing.
pub(crate) fn existing(path: &Path, error: &libloading::Error) -> Option<PathBuf> {
    // The loader skips files for other machines and dangling links, and then reports that it found nothing.
    let found = candidates(path).into_iter().find(|file| exists(file));
    found.or_else(|| (is_bare(path) && !is_absence(path, &root(error))).then(|| path.to_owned()))
}

/// Returns the files that the loader may open, in the order in which it tries them.
fn candidates(path: &Path) -> Vec<PathBuf> {
    match is_bare(path) {
        true => folders().into_iter().map(|folder| folder.join(path)).collect(),
        false => vec![path.to_owned()],
    }
}

/// Returns whether the path is a name without a folder, which the loader searches for in its folders.
fn is_bare(path: &Path) -> bool {
    path.parent() == Some(Path::new(""))
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
