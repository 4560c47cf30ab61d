//! `cargo xtask site`: builds the documentation site in target/site, and checks its links.

mod links;
mod page;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clients::succeed;
use crate::metadata::Metadata;
use crate::{Failure, workspace_root};

/// The settings, which list the pages, the style, and the pages that are in no other folder.
const FOLDER: &str = "xtask/site";

/// The virtual environment with the generator.
const ENVIRONMENT: &str = "target/site-venv";

/// The generator's folder, with a copy of the settings and a folder of pages.
const SOURCE: &str = "target/site-source";

/// The site, and rustdoc's pages in it.
const SITE: &str = "target/site";
const RUSTDOC: &str = "api/rust";

/// The pages, and where rustdoc's are.
struct Site {
    /// The pages' titles, by path in the repository.
    titles: BTreeMap<String, String>,
    /// The folder that `cargo doc` writes to.
    rustdoc: PathBuf,
}

/// Builds the site and prints its path. Fails if a link has no target.
pub(crate) fn run() -> Result<(), Failure> {
    let root = workspace_root();
    let (source, built) = (root.join(SOURCE), root.join(SITE));
    for folder in [&source, &built].into_iter().filter(|folder| folder.exists()) {
        fs::remove_dir_all(folder).map_err(|error| Failure::io("emptying", folder, error))?;
    }
    for file in files(&root.join(FOLDER))? {
        let folder = match file.extension().and_then(OsStr::to_str) {
            Some("toml") => source.clone(),
            Some("md" | "css") => source.join("pages"),
            _ => continue,
        };
        copy(&file, &folder.join(file.file_name().unwrap_or_default()))?;
    }

    let metadata = Metadata::read()?;
    let settings: toml::Table =
        read(&source.join("zensical.toml"))?.parse().map_err(Failure::from_display)?;
    let mut titles = BTreeMap::new();
    collect_titles(&settings["project"]["nav"], &mut titles);
    let site = Site { titles, rustdoc: metadata.target_directory.join("doc") };
    write(&source.join("pages/rust.md"), site.crates(&metadata))?;
    site.write_pages(&root, &source.join("pages"))?;

    generate(&root)?;
    fs::rename(source.join("site"), &built)
        .map_err(|error| Failure::io("moving to", &built, error))?;
    if site.rustdoc.exists() {
        for file in files(&site.rustdoc)? {
            let inside = file.strip_prefix(&site.rustdoc).unwrap_or(&file);
            copy(&file, &built.join(RUSTDOC).join(inside))?;
        }
    } else {
        println!(
            "without rustdoc's pages: `cargo doc --workspace --all-features --no-deps` writes them"
        );
    }
    let count = links::check(&built)?;
    println!("{}: {count} links have targets", built.join("index.html").display());
    Ok(())
}

/// Collects the pages' titles from the navigation.
fn collect_titles(navigation: &toml::Value, titles: &mut BTreeMap<String, String>) {
    let entries = navigation.as_array().into_iter().flatten();
    for (title, entry) in entries.filter_map(toml::Value::as_table).flatten() {
        match entry.as_str() {
            Some(path) => drop(titles.insert(path.to_owned(), title.clone())),
            None => collect_titles(entry, titles),
        }
    }
}

/// Installs the generator, and runs it.
fn generate(root: &Path) -> Result<(), Failure> {
    let python = root.join(ENVIRONMENT).join("bin/python");
    if !python.exists() {
        let mut create = Command::new("python3");
        succeed(create.args(["-m", "venv", ENVIRONMENT]).current_dir(root))?;
    }
    let requirements = format!("{FOLDER}/requirements.txt");
    let settings = format!("{SOURCE}/zensical.toml");
    let install = [
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "-r",
        &requirements,
    ];
    let build = ["zensical", "build", "--strict", "--config-file", &settings];
    for module in [&install[..], &build[..]] {
        succeed(Command::new(&python).arg("-m").args(module).current_dir(root))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::io("reading", path, error))
}

/// Writes a file, and creates its folder.
fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<(), Failure> {
    fs::create_dir_all(path.parent().unwrap_or(path))
        .and_then(|()| fs::write(path, contents))
        .map_err(|error| Failure::io("writing", path, error))
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    write(to, fs::read(from).map_err(|error| Failure::io("reading", from, error))?)
}

/// Returns the files in a folder and in the folders below it.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let listing = |error| Failure::io("listing", folder, error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(listing)? {
        let path = entry.map_err(listing)?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    Ok(found)
}
