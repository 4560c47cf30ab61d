//! `cargo xtask check-packages`: checks that the packages can be published, and build for their users.

mod builds;
mod dependencies;
mod described;
mod packed;

use crate::Failure;
use crate::metadata::{Metadata, Package};

/// Checks every published package, first what needs no build. Prints what was not checked.
pub(crate) fn run() -> Result<(), Failure> {
    dependencies::find_tool()?;
    let metadata = Metadata::read()?;
    let published: Vec<&Package> =
        metadata.members().filter(|package| package.is_published()).collect();

    let mut left_out = Vec::new();
    described::check(&published)?;
    left_out.extend(dependencies::check(&metadata)?);
    packed::check(&published, &metadata.target_directory)?;
    builds::each_feature(&published)?;
    left_out.extend(builds::oldest_rust(&published)?);

    println!("{} packages can be published", published.len());
    for what in left_out {
        println!("not checked: {what}");
    }
    Ok(())
}
