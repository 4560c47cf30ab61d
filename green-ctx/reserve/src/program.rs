//! Holds another program and its children to an amount of SMs, from their start.
//!
//! glibc's loader asks a library in `LD_AUDIT` which file to open (`front/audit.rs`), and gets the library in front of
//! the driver for each name and path of the driver. Compared with `LD_LIBRARY_PATH` and `LD_PRELOAD`, this also covers
//! absolute paths, `RPATH` and programs that set the variable, and loads no driver into programs that do not use one.
//!
//! Both libraries are files in the file system. A memory file would be closed when the program starts another one, and
//! its number could belong to something else in a child.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, getxattr, statvfs};
use rustix::process::{getegid, geteuid};
use tempfile::NamedTempFile;

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
    /// No folder can be used for the files: neither the user's cache nor this one, for temporary files.
    #[error("{} cannot be used; set XDG_CACHE_HOME or TMPDIR to a folder that can", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The loader cannot be given this path.
    #[error(
        "the path {} is too long, has a character with a meaning for the loader, or is that of another library in \
         front of the driver", .0.display()
    )]
    Path(PathBuf),
    /// A file or a folder cannot be read or written.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A limit for programs that are yet to start.
#[derive(Debug)]
pub struct Limit {
    /// The environment variables that a program needs.
    pub variables: [(&'static str, OsString); 2],
    /// The library in front of the driver that the program gets.
    pub front: PathBuf,
    /// Whether a program that gives up root's rights keeps the limit.
    pub for_all: bool,
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
    let real = behind(driver)?;
    let [(_, front), _] = files(&real, amount)
        .map_err(|_| Error::Path(green_ctx_sys::find(driver).unwrap_or(real)))?;
    let ((front, audit), for_all) = place(&front)?;
    // The limit of an outer command is replaced. The caller has seen to it that this one is not larger.
    let others = env::var_os(LOADER).unwrap_or_default();
    let own = own(&others);
    let others = others.as_bytes().split(|byte| *byte == b':');
    let others = others.filter(|path| !path.is_empty() && !own.contains(path));
    let audits: Vec<&[u8]> = [audit.as_os_str().as_bytes()].into_iter().chain(others).collect();
    let audits = OsStr::from_bytes(&audits.join(&b':')).to_owned();
    Ok(Limit { variables: [(LOADER, audits), (VARIABLE, text.into())], front, for_all })
}

/// Returns a path of the driver for which the loader gives the driver itself, and no library in front of it.
///
/// # Errors
///
/// [`Error::NotFound`] if there is no such file.
pub fn behind(driver: &Path) -> Result<PathBuf, Error> {
    let found = green_ctx_sys::find(driver).and_then(|path| std::path::absolute(path).ok());
    let driver = found.ok_or_else(|| Error::NotFound(driver.to_owned()))?;
    let mut real = OsString::from(SPELLED);
    real.push(&driver);
    Ok(real.into())
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
    found.is_some_and(|(path, file)| {
        let (by_user, by_group) = (file.mode() & 0o4000 != 0, file.mode() & 0o2000 != 0);
        let other = by_user && file.uid() != user() || by_group && file.gid() != getegid().as_raw();
        // The attribute has some 20 bytes.
        let mut bytes = [0; 64];
        other || user() != 0 && getxattr(&path, "security.capability", &mut bytes).is_ok()
    })
}

fn user() -> u32 {
    geteuid().as_raw()
}

/// Writes the files to the user's cache, or to a folder for temporary files if there is no cache that can be used.
/// Returns the paths of the library in front and of the audit library, and whether every user who needs them can read them.
fn place(front: &[u8]) -> Result<((PathBuf, PathBuf), bool), Error> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let cache = cache.map(|cache| cache.join("green-ctx"));
    // What root starts may run as another user later, and then needs to read the files.
    let for_all = user() == 0;
    if let Some(cache) = &cache {
        match written(cache, front, for_all) {
            Err(Error::System(_)) => {}
            // If others can change the user's own folder, the user must know, so no other folder is tried.
            done => return done.map(|files| (files, true)),
        }
    }
    let path = env::temp_dir().join(format!("green-ctx-{}", user()));
    let error = match written(&path, front, for_all) {
        Err(error) => error,
        Ok(files) => return Ok((files, true)),
    };
    match (cache.filter(|_| for_all).map(|cache| written(&cache, front, false)), error) {
        (Some(Ok(files)), _) => Ok((files, false)),
        (_, Error::System(source)) => Err(Error::Folder { path, source }),
        (_, other) => Err(other),
    }
}

/// Writes the files to a folder, which others must be able to search if the files are `for_all`.
fn written(folder: &Path, front: &[u8], for_all: bool) -> Result<(PathBuf, PathBuf), Error> {
    let folder = safe(folder, for_all)?;
    let front = file(&folder, "green-ctx-front-", front)?;
    let audit = file(&folder, NAME, &audit_of(&front)?)?;
    Ok((front, audit))
}

/// Makes a folder, unless it exists, and returns its path without links. It must belong to the user, and no other user
/// may be able to replace a file in it, the folder itself, or a folder above it.
fn safe(folder: &Path, for_all: bool) -> Result<PathBuf, Error> {
    let mode = if for_all { 0o755 } else { 0o700 };
    DirBuilder::new().mode(mode).recursive(true).create(folder.parent().unwrap_or(folder))?;
    match DirBuilder::new().mode(mode).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    let wrong = |path: &Path, why| Error::Unsafe { path: path.to_owned(), why };
    let own = |path: &Path| {
        let found = path.symlink_metadata()?;
        if !found.is_dir() || found.uid() != user() {
            return Err(wrong(path, "is not a folder of yours"));
        }
        if found.mode() & 0o022 != 0 {
            return Err(wrong(path, "can be written by other users"));
        }
        Ok::<_, Error>(found.mode())
    };
    own(folder)?;
    let folder = folder.canonicalize()?;
    if statvfs(&folder).map_err(io::Error::from)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::other("libraries there cannot be loaded (noexec)").into());
    }
    let mut is_open = true;
    for above in folder.ancestors().skip(1) {
        let found = above.metadata()?;
        if found.uid() != 0 && found.uid() != user() {
            return Err(wrong(above, "belongs to another user"));
        }
        // In a sticky folder, only the owner of a file can replace it.
        let (by_others, sticky) = (found.mode() & 0o022 != 0, found.mode() & 0o1000 != 0);
        if by_others && !sticky {
            return Err(wrong(above, "can be written by other users"));
        }
        is_open &= found.mode() & 0o001 != 0;
    }
    // Once more, since only now can no other user replace it.
    let mode = own(&folder)?;
    if for_all && !is_open {
        return Err(io::Error::other(
            "other users cannot search it, and root's program may become one",
        )
        .into());
    }
    if for_all && mode & 0o055 != 0o055 {
        fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
    }
    Ok(folder)
}

/// Returns the path of a file with this content, whose name depends on the content. A file with other content or other
/// rights is replaced; programs that have opened it keep the old one.
fn file(folder: &Path, kind: &str, content: &[u8]) -> Result<PathBuf, Error> {
    let mut hash = DefaultHasher::new();
    content.hash(&mut hash);
    let path = folder.join(format!("{kind}{:016x}.so", hash.finish()));
    // `LD_AUDIT` is split at colons, and the loader replaces words after a dollar sign.
    if path.as_os_str().as_bytes().iter().any(|byte| b":$".contains(byte)) {
        return Err(Error::Path(path));
    }
    let mode = if user() == 0 { 0o644 } else { 0o600 };
    let is_intact = path.symlink_metadata().is_ok_and(|found| {
        found.is_file() && found.uid() == user() && found.mode() & 0o777 == mode
    });
    if is_intact && fs::read(&path).is_ok_and(|found| found == content) {
        return Ok(path);
    }
    let mut new = NamedTempFile::new_in(folder)?;
    new.write_all(content)?;
    new.as_file().set_permissions(Permissions::from_mode(mode))?;
    new.persist(&path).map_err(io::Error::from)?;
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
    fn paths_that_the_loader_would_split_or_expand_are_refused() {
        let folder = folder("paths");
        for name in ["a:b", "a$LIB"] {
            let error = written(&folder.join(name), b"front", false).expect_err(name);
            assert!(matches!(error, Error::Path(_)), "{error}");
        }
        let long = vec!["long-name-of-a-folder-".repeat(10); 5].join("/");
        let error = written(&folder.join(long), b"front", false).expect_err("it is too long");
        assert!(matches!(error, Error::Path(_)), "{error}");
        let (front, audit) = written(&folder.join("good"), b"front", false).expect("it is good");
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
