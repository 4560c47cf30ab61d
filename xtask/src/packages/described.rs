//! The descriptions of packages: manifest and README.

use std::path::Path;

use crate::Failure;
use crate::metadata::Package;

/// Fails if a manifest lacks a field, or if a README has a link that is broken once published.
pub(super) fn check(published: &[&Package]) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    for package in published {
        for field in lacking(package) {
            wrong.push(format!("{}: Cargo.toml has no {field}", package.name));
        }
        let Some(folder) = package.manifest_path.parent() else { continue };
        if package.readme.as_deref() != Some(Path::new("README.md")) {
            wrong.push(format!("{}: the package does not have its own README.md", package.name));
            continue;
        }
        let path = folder.join("README.md");
        let text =
            std::fs::read_to_string(&path).map_err(|error| Failure::io("reading", &path, error))?;
        for link in relative_links(&text) {
            wrong.push(format!("{}: README.md has the relative link {link}", package.name));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::new(wrong.join("\n"))) }
}

/// Returns the required fields that a manifest lacks.
fn lacking(package: &Package) -> impl Iterator<Item = &'static str> {
    let all_features = &package.metadata["docs"]["rs"]["all-features"];
    [
        ("description", package.description.is_some()),
        ("documentation", package.documentation.is_some()),
        ("license", package.license.is_some()),
        ("repository", package.repository.is_some()),
        ("rust-version", package.rust_version.is_some()),
        ("keywords", !package.keywords.is_empty()),
        ("categories", !package.categories.is_empty()),
        ("all-features for docs.rs", all_features.as_bool() == Some(true)),
    ]
    .into_iter()
    .filter_map(|(field, is_there)| (!is_there).then_some(field))
}

/// Returns the targets of a text's links that are not web addresses. A package's page does not have the files
/// next to its README.
fn relative_links(text: &str) -> impl Iterator<Item = &str> {
    let inline = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let named = text.lines().filter_map(|line| {
        let (_, target) = line.strip_prefix('[')?.split_once("]: ")?;
        Some(target)
    });
    inline.chain(named).filter(|target| !target.starts_with("https://"))
}

#[cfg(test)]
mod tests {
    use super::relative_links;

    #[test]
    fn relative_links_are_found() {
        let text =
            "[a](https://docs.rs/a), [b](../b.md#c), ![d](d.svg)\n[e]: e.md\n[f]: https://f\n";
        assert_eq!(relative_links(text).collect::<Vec<_>>(), ["../b.md#c", "d.svg", "e.md"]);
    }
}
