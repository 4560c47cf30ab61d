//! The contents of packages, and that they build from their archives.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::clients::succeed;
use crate::metadata::Package;
use crate::{Failure, cargo, workspace_root};

/// The maximum size of a package, in bytes: no package needs records or test data.
const LIMIT: u64 = 1536 << 10;

/// The licences. In a package's folder they are links to the root's files, and cargo packs their contents.
const LICENCES: &[&str] = &["LICENSE-MIT", "LICENSE-APACHE"];

/// Packs and builds the packages as publishing does, and checks the packed files.
pub(super) fn check(published: &[&Package], target: &Path) -> Result<(), Failure> {
    let alias = Alias::new(target)?;
    let mut command = cargo();
    // Quiet, since cargo warns about each test that a package leaves out. Uncommitted changes are included.
    command.args(["publish", "--dry-run", "--workspace", "--locked", "--allow-dirty", "--quiet"]);
    command.arg("--target-dir").arg(&alias.0);
    succeed(&mut command)?;
    for package in published {
        let folder = target.join(format!("package/{}-{}", package.name, package.version));
        for licence in LICENCES {
            if read(&folder.join(licence))? != read(&workspace_root().join(licence))? {
                let name = &package.name;
                return Err(Failure::new(format!(
                    "{name}: {licence} differs from the one in the root"
                )));
            }
        }
        let size = size(&folder)?;
        println!("{:>6.0} KiB  {}", size as f64 / 1024.0, package.name);
        if size > LIMIT {
            let name = &package.name;
            return Err(Failure::new(format!("{name} has {size} bytes, the limit is {LIMIT}")));
        }
    }
    Ok(())
}

/// A link to the target folder under a name that no run had before.
///
/// Cargo unpacks the packages of a dry run in its home, in a folder named after the target folder's path. It
/// reuses what an earlier run with the same path unpacked there, however old it is.
struct Alias(PathBuf);

impl Alias {
    fn new(target: &Path) -> Result<Self, Failure> {
        let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let path = target.join(format!("packed-{time}"));
        symlink(".", &path).map_err(|error| Failure::io("creating", &path, error))?;
        Ok(Self(path))
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        // If this fails, only a link within the target folder is left.
        let _ = fs::remove_file(&self.0);
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::io("reading", path, error))
}

/// Returns the total size of a folder's files in bytes.
fn size(folder: &Path) -> Result<u64, Failure> {
    let list = |error| Failure::io("listing", folder, error);
    let mut bytes = 0;
    for entry in fs::read_dir(folder).map_err(list)? {
        let entry = entry.map_err(list)?;
        let about = entry.metadata().map_err(list)?;
        bytes += if about.is_dir() { size(&entry.path())? } else { about.len() };
    }
    Ok(bytes)
}
