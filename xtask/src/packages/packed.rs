//! What a package holds, and that it builds out of its archive.

use std::fs;
use std::path::Path;

use crate::clients::succeed;
use crate::metadata::Package;
use crate::{Failure, cargo, workspace_root};

/// The most that a package may hold, in bytes: none has a use for records and test data.
const LIMIT: u64 = 1536 << 10;

/// The licences. Those in a package's folder are links to the root's, which cargo packs as files.
const LICENCES: &[&str] = &["LICENSE-MIT", "LICENSE-APACHE"];

/// Packs and builds the packages as publishing does, and looks at what was packed.
pub(super) fn check(published: &[&Package], target: &Path) -> Result<(), Failure> {
    let mut command = cargo();
    // Quiet, since each test that a package leaves out is a warning. Uncommitted changes are checked too.
    command.args(["publish", "--dry-run", "--workspace", "--locked", "--allow-dirty", "--quiet"]);
    succeed(&mut command)?;
    for package in published {
        let folder = target.join(format!("package/{}-{}", package.name, package.version));
        for licence in LICENCES {
            if read(&folder.join(licence))? != read(&workspace_root().join(licence))? {
                let name = &package.name;
                return Err(Failure::new(format!("{name}: {licence} is not the root's")));
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

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::io("reading", path, error))
}

/// The bytes of a folder's files.
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
