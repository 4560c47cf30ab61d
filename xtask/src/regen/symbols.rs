//! `symbols.toml`, the list of symbols that green-ctx-sys binds.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::Failure;

/// The content of the list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Symbols {
    /// Functions without which loading the driver fails.
    pub(crate) required: Vec<String>,
    /// Patterns of types that no signature mentions.
    pub(crate) types: Vec<String>,
    /// Patterns of macro constants.
    pub(crate) constants: Vec<String>,
    /// Every function with the version of its signature.
    pub(crate) functions: BTreeMap<String, u32>,
}

impl Symbols {
    pub(crate) fn read(path: &Path) -> Result<Symbols, Failure> {
        let text =
            std::fs::read_to_string(path).map_err(|error| Failure::io("reading", path, error))?;
        let symbols: Symbols = toml::from_str(&text)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        for name in &symbols.required {
            if !symbols.functions.contains_key(name) {
                return Err(Failure::new(format!("required function {name} is not listed")));
            }
        }
        Ok(symbols)
    }

    /// Returns the name of the typedef with a function's signature.
    pub(crate) fn pointer_type(name: &str, version: u32) -> String {
        format!("PFN_{name}_v{version}")
    }
}
