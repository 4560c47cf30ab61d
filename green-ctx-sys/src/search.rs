//! Finds the file that the system's loader opens: to distinguish a library that does not exist from a library that does
//! not load, and to find a truncated library before the loader maps it.

use std::error::Error;
#[cfg(not(windows))]
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
#[cfg(not(windows))]
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The number that `elf.h` gives to this program's machine, if this module knows it.
const MACHINE: Option<u64> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else {
    None
};

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
/// If a file has no header of a 64-bit ELF file for this machine, the loader cannot map the file, and passes over it or
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

/// Returns the length of a 64-bit ELF file for this machine, and the length that its loadable segments need. The
/// offsets are those of `Elf64_Ehdr` and `Elf64_Phdr` in `elf.h`.
fn lengths(path: &Path) -> io::Result<(u64, u64)> {
    const PROGRAM_HEADER: usize = 56;
    const PT_LOAD: u64 = 1;
    let mut file = File::open(path)?;
    let mut header = [0; 64];
    file.read_exact(&mut header)?;
    let foreign = MACHINE.is_some_and(|machine| machine != number(&header[18..20]));
    if !header.starts_with(b"\x7fELF\x02") || foreign {
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

/// Returns a number whose lowest byte comes first.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
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
        true => searched(path),
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

/// Returns the files that the loader may open for a bare name, in the order in which it tries them.
#[cfg(not(windows))]
fn searched(name: &Path) -> Vec<PathBuf> {
    // The loader reads the variable when the program starts. This file has it as it was then, unless the program has
    // overwritten it, as programs do that change their title.
    let initial = std::fs::read("/proc/self/environ").unwrap_or_default();
    let mut initial = initial.split(|byte| *byte == 0);
    let initial = initial.find_map(|entry| entry.strip_prefix(b"LD_LIBRARY_PATH="));
    let variable = initial.map(|value| OsStr::from_bytes(value).to_owned());
    let variable = variable.or_else(|| std::env::var_os("LD_LIBRARY_PATH")).unwrap_or_default();
    let cache = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
    files(name, &variable, &cache)
}

/// Returns the files for a bare name in the folders of `LD_LIBRARY_PATH`, in glibc's cache and in the usual folders.
#[cfg(not(windows))]
fn files(name: &Path, variable: &OsStr, cache: &[u8]) -> Vec<PathBuf> {
    let listed = variable.as_bytes().split(|byte| b":;".contains(byte));
    // An empty element means the current folder, but an empty variable adds no folder.
    let listed = listed.filter(|_| !variable.is_empty());
    let listed = listed.map(|folder| if folder.is_empty() { b"." } else { folder });
    let listed = listed.map(|folder| Path::new(OsStr::from_bytes(folder)).join(name));
    // Debian's loader has a folder for each machine, and finds libraries there that are not in the cache.
    let machine = format!("{}-linux-gnu", std::env::consts::ARCH);
    let debian = ["/lib", "/usr/lib"].map(|folder| Path::new(folder).join(&machine).join(name));
    let usual = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];
    let usual = usual.map(|folder| Path::new(folder).join(name));
    listed.chain(cached(name, cache)).chain(debian).chain(usual).collect()
}

/// Returns the files that the loader may take from glibc's cache for a bare name, in the cache's order. The offsets are
/// those of `cache_file_new` and `file_entry_new` in glibc's `dl-cache.h`. Entries that point out of the cache are
/// skipped.
#[cfg(not(windows))]
fn cached(name: &Path, cache: &[u8]) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    // A cache in an older format may come first.
    let Some(start) = cache.windows(MAGIC.len()).position(|bytes| bytes == MAGIC) else {
        return Vec::new();
    };
    let cache = &cache[start..];
    let text = |offset: &[u8]| {
        let text = CStr::from_bytes_until_nul(cache.get(number(offset) as usize..)?).ok()?;
        Some(OsStr::from_bytes(text.to_bytes()))
    };
    let count = cache.get(20..24).map_or(0, number) as usize;
    let entries = cache.get(HEADER..).unwrap_or_default().chunks_exact(ENTRY).take(count);
    let named = entries.filter(|entry| text(&entry[4..8]) == Some(name.as_os_str()));
    let paths = named.filter_map(|entry| Some((&entry[..4], &entry[16..], text(&entry[8..12])?)));
    let mut paths: Vec<_> = paths.collect();
    // The loader tries only the first entry for its machine, even if that file is missing. The flags identify the
    // machine, and the last eight bytes name the processor's features that the file needs.
    paths.dedup_by_key(|(flags, features, _)| (*flags, *features));
    paths.into_iter().map(|(.., path)| PathBuf::from(path)).collect()
}

/// Returns the files that the loader may open for a bare name, in the order in which it tries them.
#[cfg(windows)]
fn searched(name: &Path) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = std::env::var_os("SystemRoot").map(|root| PathBuf::from(root).join("System32"));
    let program = std::env::current_exe().ok().and_then(|file| Some(file.parent()?.to_owned()));
    let folders = std::env::split_paths(&path).chain(system).chain(program);
    folders.map(|folder| folder.join(name)).collect()
}

#[cfg(all(test, not(windows)))]
mod tests {
    use super::*;

    const NAME: &str = "libcuda.so.1";

    /// Makes a cache whose entries have these names and paths.
    fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let number = |offset: usize| (offset as u32).to_le_bytes();
        let mut cache = b"glibc-ld.so.cache1.1".to_vec();
        cache.extend(number(entries.len()));
        cache.resize(48, 0);
        let mut strings = Vec::new();
        for (name, path) in entries {
            let key = 48 + 24 * entries.len() + strings.len();
            strings.extend(format!("{name}\0{path}\0").into_bytes());
            cache.extend(number(0x303));
            cache.extend(number(key));
            cache.extend(number(key + name.len() + 1));
            cache.extend([0; 12]);
        }
        cache.extend(strings);
        cache
    }

    /// Returns the files for `NAME` before those in the usual folders.
    fn before_usual(variable: &str, cache: &[u8]) -> Vec<PathBuf> {
        let files = files(NAME.as_ref(), variable.as_ref(), cache);
        let usual = ["/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"];
        let usual = |file: &PathBuf| usual.iter().any(|folder| file.starts_with(folder));
        files.into_iter().take_while(|file| !usual(file)).collect()
    }

    /// Writes the header of an ELF file without segments to a file in the folder for temporary files.
    fn library(name: &str, machine: u64) -> PathBuf {
        let mut header = [0; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[18..20].copy_from_slice(&machine.to_le_bytes()[..2]);
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::write(&path, header).expect("it can be written");
        path
    }

    #[test]
    fn the_first_entry_for_a_machine_counts() {
        let mut cache = cache(&[(NAME, "/z/libcuda.so.1"), (NAME, "/a/libcuda.so.1")]);
        assert_eq!(before_usual("", &cache), [PathBuf::from("/z/libcuda.so.1")]);
        // The second entry is for another machine.
        cache[73] = 0;
        let expected = ["/z/libcuda.so.1", "/a/libcuda.so.1"].map(PathBuf::from);
        assert_eq!(before_usual("", &cache), expected);
    }

    #[test]
    fn a_folder_of_another_library_is_not_searched() {
        let others = [("libcuda.so", "/a/libcuda.so"), ("libz.so.1", "/b/libz.so.1")];
        let cache = cache(&[others[0], others[1], (NAME, "/c/libcuda.so.1")]);
        assert_eq!(before_usual("", &cache), [PathBuf::from("/c/libcuda.so.1")]);
    }

    #[test]
    fn an_older_format_may_come_first() {
        let mut both = b"ld.so-1.7.0\0".to_vec();
        both.extend(1_u32.to_le_bytes());
        both.extend([0; 12]);
        both.resize(32, 0);
        both.extend(cache(&[(NAME, "/z/libcuda.so.1"), (NAME, "/a/libcuda.so.1")]));
        assert_eq!(before_usual("", &both), [PathBuf::from("/z/libcuda.so.1")]);
    }

    #[test]
    fn a_damaged_cache_has_fewer_entries() {
        let (first, second) = ("/z/libcuda.so.1", "/a/libcuda.so.1");
        let whole = cache(&[(NAME, first), (NAME, second)]);
        for length in 0..whole.len() {
            let found = before_usual("", &whole[..length]);
            let expected = [PathBuf::from(first)];
            assert!(found.is_empty() || found == expected, "{length} bytes: {found:?}");
        }
        // The key or the path of the first entry is outside of the cache.
        for offset in [52, 56] {
            let mut damaged = whole.clone();
            damaged[offset..offset + 4].fill(0xff);
            assert_eq!(before_usual("", &damaged), [PathBuf::from(second)]);
        }
        let mut damaged = whole;
        damaged[20..24].fill(0xff);
        assert_eq!(before_usual("", &damaged), [PathBuf::from(first)]);
    }

    #[test]
    fn a_file_for_another_machine_is_passed_over() {
        let Some(machine) = MACHINE else { return };
        let (foreign, own) = (library("foreign", 62 + 183 - machine), library("own", machine));
        let paths = [&foreign, &own].map(|path| path.to_str().expect("a path in UTF-8"));
        let mut cache = cache(&paths.map(|path| (NAME, path)));
        // The second entry is for another machine than the first.
        cache[73] = 0;
        let files = before_usual("", &cache);
        let found = files.iter().find(|path| lengths(path).is_ok());
        let alone = [find(&foreign), find(&own)];
        std::fs::remove_file(&foreign).expect("it can be removed");
        std::fs::remove_file(&own).expect("it can be removed");
        assert_eq!(found, Some(&own));
        assert_eq!(alone, [None, Some(own)]);
    }

    #[test]
    fn the_variable_comes_first() {
        let cache = cache(&[(NAME, "/z/libcuda.so.1")]);
        let expected = ["/b/libcuda.so.1", "./libcuda.so.1", "/a/libcuda.so.1", "/z/libcuda.so.1"];
        assert_eq!(before_usual("/b::/a", &cache), expected.map(PathBuf::from));
        assert_eq!(before_usual("/b;;/a", &cache), expected.map(PathBuf::from));
        assert_eq!(before_usual("", &cache), [PathBuf::from("/z/libcuda.so.1")]);
    }

    #[test]
    fn debians_folders_are_searched_without_a_cache() {
        let first = files(NAME.as_ref(), "".as_ref(), &[]).into_iter().next();
        let expected = format!("/lib/{}-linux-gnu/{NAME}", std::env::consts::ARCH);
        assert_eq!(first, Some(expected.into()));
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn the_loader_opens_the_file() {
        let name = "libm.so.6";
        // SAFETY: the C library's initialisers have no requirements.
        let _library = unsafe { libloading::Library::new(name) }.expect("a library of glibc");
        let found = find(name.as_ref()).and_then(|path| path.canonicalize().ok());
        let found = found.expect("the file of a library that loads");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the files in memory");
        assert!(maps.contains(found.to_str().expect("a path in UTF-8")), "{found:?}:\n{maps}");
    }
}
