//! Cargo's metadata of the workspace's packages and their dependencies.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;

use serde::Deserialize;
use serde_json::Value;

use crate::{Failure, cargo};

#[derive(Deserialize)]
pub(crate) struct Metadata {
    /// All packages in Cargo.lock, including the workspace's.
    pub(crate) packages: Vec<Package>,
    pub(crate) target_directory: PathBuf,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
pub(crate) struct Package {
    id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) description: Option<String>,
    pub(crate) documentation: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) repository: Option<String>,
    pub(crate) readme: Option<PathBuf>,
    pub(crate) rust_version: Option<String>,
    pub(crate) keywords: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    pub(crate) targets: Vec<Target>,
    pub(crate) metadata: Value,
    pub(crate) manifest_path: PathBuf,
    /// The registries that the package may be published to; `None` for all.
    publish: Option<Vec<String>>,
}

/// A library, program, test, benchmark or example.
#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: PathBuf,
    /// Whether `cargo test` runs its tests.
    pub(crate) test: bool,
}

impl Metadata {
    pub(crate) fn read() -> Result<Metadata, Failure> {
        let output = cargo()
            .args(["metadata", "--format-version=1", "--all-features", "--locked"])
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| Failure::new(format!("cargo could not be run: {error}")))?;
        serde_json::from_slice(&output.stdout)
            .map_err(|error| Failure::new(format!("cargo metadata failed: {error}")))
    }

    /// Returns the workspace's packages.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }
}

impl Package {
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }
}
