//! Holds another program and its children to an amount of SMs, from their start.
//!
//! glibc's loader asks a library in `LD_AUDIT` which file to open (`front/audit.rs`), and gets the library in front of
//! the driver for each name and path of the driver. Compared with `LD_LIBRARY_PATH` and `LD_PRELOAD`, this also covers
//! absolute paths, `RPATH` and programs that set the variable, and loads no driver into programs that do not use one.
//!
//! Both libraries are files in the file system. A memory file would be closed when the program starts another one, and
//! its number could belong to something else in a child.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::Amount;
use crate::linux::files;

/// The library that the loader asks, and the bytes before the path of the library in front in it.
static AUDIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/audit.so"));
const MARK: &[u8] = b"green-ctx front:";

/// The beginning of the real driver's path, as only the library in front spells it.
const SPELLED: &str = "/../..";
const LOADER: &str = "LD_AUDIT";
/// The beginning of the audit library's file name.
const NAME: &str = "green-ctx-audit-";

/// The environment variable that tells a program about its limit, such as `--sms 32` or `--reserve 25%`.
pub const VARIABLE: &str = "GREEN_CTX_RUN";

/// The reason why a program cannot be held to an amount.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another user could change the files in this folder.
    #[error("{} {why}; remove it, or set XDG_CACHE_HOME to a folder of your own", path.display())]
    Unsafe {
        /// The folder.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// The driver was loaded, but its file was not found.
    #[error("the file of the driver {} was not found", .0.display())]
    NotFound(PathBuf),
    /// No folder for the files can be written.
    #[error("no folder for the library in front of the driver can be used: {0}")]
    Folders(String),
    /// The loader cannot be given this path.
    #[error(
        "the path {} is too long, has a character with a meaning for the loader, or is that of another library in \
         front of the driver", .0.display()
    )]
    Path(PathBuf),
    /// A folder cannot be written. The next one is tried.
    #[error("{}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A limit for programs that are yet to start.
#[derive(Debug)]
pub struct Limit {
    /// The environment variables that a program needs.
    pub variables: [(&'static str, OsString); 2],
    /// The library in front of the driver that the program gets.
    pub front: PathBuf,
}

/// Returns the limit under which this process runs, such as `--sms 32`.
#[must_use]
pub fn outer() -> Option<String> {
    let is_limited = env::var_os(LOADER).is_some_and(|audits| !own(&audits).is_empty());
    let text = || env::var(VARIABLE).unwrap_or_else(|_| "with an unknown amount".to_owned());
    is_limited.then(text)
}

/// Makes a limit for programs, and writes the files for it. `driver` is the driver's path or name, and `text` the value of
/// [`VARIABLE`].
///
/// # Errors
///
/// [`Error`].
pub fn limit(driver: &Path, amount: Amount, text: &str) -> Result<Limit, Error> {
    let found = green_ctx_sys::find(driver).and_then(|path| std::path::absolute(path).ok());
    let driver = found.ok_or_else(|| Error::NotFound(driver.to_owned()))?;
    let mut real = OsString::from(SPELLED);
    real.push(&driver);
    let [(_, front), _] = files(Path::new(&real), amount).map_err(|_| Error::Path(driver))?;
    let (front, audit) = place(&front)?;
    // The limit of an outer command is replaced. The caller has seen to it that this one is not larger.
    let others = env::var_os(LOADER).unwrap_or_default();
    let own = own(&others);
    let others = others.as_bytes().split(|byte| *byte == b':');
    let others = others.filter(|path| !path.is_empty() && !own.contains(path));
    let audits: Vec<&[u8]> = [audit.as_os_str().as_bytes()].into_iter().chain(others).collect();
    let audits = OsStr::from_bytes(&audits.join(&b':')).to_owned();
    Ok(Limit { variables: [(LOADER, audits), (VARIABLE, text.into())], front })
}

/// Returns the paths in `LD_AUDIT` that this module has put there.
fn own(audits: &OsStr) -> Vec<&[u8]> {
    let is_own = |path: &&[u8]| {
        let name = Path::new(OsStr::from_bytes(path)).file_name().unwrap_or_default();
        name.as_bytes().starts_with(NAME.as_bytes())
    };
    audits.as_bytes().split(|byte| *byte == b':').filter(is_own).collect()
}

/// Returns whether the loader gives this process a library in front that makes a reserve. If it gives one that holds the
/// process to an amount, a reserve is made within this amount, and needs a second library.
pub(crate) fn is_reserved() -> bool {
    outer().is_some_and(|limit| limit.starts_with("--reserve"))
}

/// Returns whether the loader ignores `LD_AUDIT` for a program, because it runs with the rights of another user.
#[must_use]
pub fn is_privileged(program: &OsStr) -> bool {
    // Without the variable, the C library searches these folders.
    let folders = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let searched = env::split_paths(&folders).map(|folder| folder.join(program));
    let found = match program.as_bytes().contains(&b'/') {
        true => fs::metadata(program).ok().map(|file| (PathBuf::from(program), file)),
        false => searched
            .filter_map(|path| fs::metadata(&path).ok().map(|file| (path, file)))
            .find(|(_, file)| file.is_file() && file.mode() & 0o111 != 0),
    };
    // SAFETY: the function has no requirement.
    let group = unsafe { libc::getegid() };
    found.is_some_and(|(path, file)| {
        let (by_user, by_group) = (file.mode() & 0o4000 != 0, file.mode() & 0o2000 != 0);
        let other = by_user && file.uid() != user() || by_group && file.gid() != group;
        other || user() != 0 && has_capabilities(&path)
    })
}

/// Returns whether a file gives its process capabilities.
fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let (path, name) = (path.as_ptr(), c"security.capability".as_ptr());
    // SAFETY: both texts end with a NUL, and no bytes are written for a length of 0.
    unsafe { libc::getxattr(path, name, std::ptr::null_mut(), 0) > 0 }
}

/// Puts this process, which is about to become a program, into a session and a group of its own, without a terminal.
/// It ends when its parent does.
///
/// # Errors
///
/// The system's error.
pub fn set_apart() -> io::Result<()> {
    // SAFETY: the function has no requirement.
    if unsafe { libc::setsid() } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the arguments are those of this option.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends all processes of a group.
pub fn end(group: u32) {
    if let Ok(group) = libc::pid_t::try_from(group) {
        // SAFETY: the function has no requirement. The group may have ended already.
        unsafe { libc::killpg(group, libc::SIGKILL) };
    }
}

fn user() -> u32 {
    // SAFETY: the function has no requirement.
    unsafe { libc::geteuid() }
}

/// Writes the files to the user's cache, or to a folder for temporary files if there is no cache that can be written.
/// Returns the paths of the library in front and of the audit library.
fn place(front: &[u8]) -> Result<(PathBuf, PathBuf), Error> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let temporary = format!("green-ctx-{}", user());
    let mut folders: Vec<PathBuf> = cache.iter().map(|path| path.join("green-ctx")).collect();
    let count = folders.len();
    folders.extend([env::temp_dir(), "/dev/shm".into()].map(|path| path.join(&temporary)));
    place_in(&folders, count, front)
}

/// Writes the files to the first folder that can be written. The first `own` folders are the user's own: if others can
/// change such a folder, that is an error, and not a reason to take the next one.
fn place_in(folders: &[PathBuf], own: usize, front: &[u8]) -> Result<(PathBuf, PathBuf), Error> {
    let mut reasons = Vec::new();
    for (number, folder) in folders.iter().enumerate() {
        let unwritten = |source| Error::Folder { path: folder.clone(), source };
        let written =
            safe(folder).map_err(unwritten).and_then(|is_safe| is_safe).and_then(|folder| {
                let front = file(&folder, "green-ctx-front-", front)?;
                let audit = file(&folder, NAME, &audit_of(&front)?)?;
                Ok((front, audit))
            });
        match written {
            Ok(paths) => return Ok(paths),
            Err(error @ Error::Unsafe { .. }) if number >= own => reasons.push(error.to_string()),
            Err(error @ Error::Folder { .. }) => reasons.push(error.to_string()),
            Err(error) => return Err(error),
        }
    }
    Err(Error::Folders(reasons.join("; ")))
}

/// Makes a folder, unless it exists, and returns its path without links. It must belong to the user, and no other user
/// may be able to replace a file in it, the folder itself, or a folder above it.
fn safe(folder: &Path) -> io::Result<Result<PathBuf, Error>> {
    DirBuilder::new().mode(0o700).recursive(true).create(folder.parent().unwrap_or(folder))?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let wrong = |path: &Path, why| Ok(Err(Error::Unsafe { path: path.to_owned(), why }));
    let found = folder.symlink_metadata()?;
    if !found.is_dir() || found.uid() != user() {
        return wrong(folder, "is not a folder of yours");
    }
    if found.mode() & 0o022 != 0 {
        return wrong(folder, "can be written by other users");
    }
    let folder = folder.canonicalize()?;
    for above in folder.ancestors().skip(1) {
        let found = above.metadata()?;
        if found.uid() != 0 && found.uid() != user() {
            return wrong(above, "belongs to another user");
        }
        // In a sticky folder, only the owner of a file can replace it.
        let (by_others, sticky) = (found.mode() & 0o022 != 0, found.mode() & 0o1000 != 0);
        if by_others && !sticky {
            return wrong(above, "can be written by other users");
        }
    }
    Ok(Ok(folder))
}

/// Returns the path of a file with this content, whose name depends on the content. A file that differs, or that other
/// users can write, is replaced; programs that have opened it keep the old one.
fn file(folder: &Path, kind: &str, content: &[u8]) -> Result<PathBuf, Error> {
    let mut hash = DefaultHasher::new();
    content.hash(&mut hash);
    let path = folder.join(format!("{kind}{:016x}.so", hash.finish()));
    // `LD_AUDIT` is split at colons, and the loader replaces words after a dollar sign.
    if path.as_os_str().as_bytes().iter().any(|byte| b":$".contains(byte)) {
        return Err(Error::Path(path));
    }
    let is_intact = path
        .symlink_metadata()
        .is_ok_and(|found| found.is_file() && found.uid() == user() && found.mode() & 0o022 == 0);
    if is_intact && fs::read(&path).is_ok_and(|found| found == content) {
        return Ok(path);
    }
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
    let new = folder.join(format!("{kind}{}-{now}", std::process::id()));
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let written = opened.and_then(|mut to| to.write_all(content));
    written.and_then(|()| fs::rename(&new, &path)).map_err(|source| {
        let _ = fs::remove_file(&new);
        Error::Folder { path: folder.to_owned(), source }
    })?;
    Ok(path)
}

/// Returns the audit library for a library in front.
fn audit_of(front: &Path) -> Result<Vec<u8>, Error> {
    let text = front.as_os_str().as_bytes();
    let mut audit = AUDIT.to_vec();
    let place = env!("GREEN_CTX_RESERVE_PLACE").parse().unwrap_or(0);
    let begin = audit.windows(MARK.len()).position(|window| window == MARK);
    let begin = begin.map_or(audit.len(), |mark| mark + MARK.len());
    let to = audit.get_mut(begin..begin + text.len()).filter(|_| text.len() < place);
    let to = to.ok_or_else(|| Error::Path(front.to_owned()))?;
    to.copy_from_slice(text);
    Ok(audit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(test: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("green-ctx-{test}-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path).expect("a folder for the test");
        path
    }

    #[test]
    fn without_any_folder_the_reasons_are_named() {
        // No folder can be made in /proc.
        let folders = ["/proc/cache", "/proc/temporary"].map(PathBuf::from);
        let error = place_in(&folders, 1, b"front").expect_err("there is no folder").to_string();
        assert!(
            error.contains("/proc/cache: ") && error.contains("; /proc/temporary: "),
            "{error}"
        );
    }

    #[test]
    fn paths_that_the_loader_would_split_or_expand_are_refused() {
        let folder = folder("paths");
        for name in ["a:b", "a$LIB"] {
            let error = place_in(&[folder.join(name)], 1, b"front").expect_err(name);
            assert!(matches!(error, Error::Path(_)), "{error}");
        }
        let long = vec!["long-name-of-a-folder-".repeat(10); 5].join("/");
        let error = place_in(&[folder.join(long)], 1, b"front").expect_err("it is too long");
        assert!(matches!(error, Error::Path(_)), "{error}");
        let (front, audit) = place_in(&[folder.join("good")], 1, b"front").expect("it is good");
        assert_eq!(fs::read(&front).expect("it is there"), b"front");
        let audit = fs::read(audit).expect("it is there");
        let path = [front.as_os_str().as_bytes(), b"\0"].concat();
        assert!(audit.windows(path.len()).any(|window| window == path));
        fs::remove_dir_all(folder).expect("it can be removed");
    }

    #[test]
    fn audit_libraries_of_others_are_not_own() {
        let own = |text: &str| own(OsStr::new(text)).len();
        assert_eq!([own(""), own("/a/other.so"), own("/green-ctx-audit-1.so/b.so")], [0; 3]);
        assert_eq!(own("/a/green-ctx-audit-1.so::/b/c.so:/d/green-ctx-audit-2.so"), 2);
    }
}
