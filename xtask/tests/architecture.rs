//! What ARCHITECTURE.md names is there.

use std::path::{Path, PathBuf};

/// The folders that paths in the text start from, beside the one that its row of the code map names.
const BASES: [&str; 9] = [
    "",
    "green-ctx",
    "green-ctx/src",
    "green-ctx/src/ledger",
    "green-ctx/src/handle",
    "green-ctx/src/work",
    "green-ctx/src/divide",
    "green-ctx-torch/src",
    "green-ctx-torch/python/green_ctx_torch",
];

/// The sections with a table of modules, and their folders.
const TABLES: [(&str, &str); 6] = [
    ("### Room `handle`", "green-ctx/src/handle"),
    ("### Room `work`", "green-ctx/src/work"),
    ("### Room `divide`", "green-ctx/src/divide"),
    ("### Room `graph`", "green-ctx/src/graph"),
    ("### Room `observe`", "green-ctx/src/observe"),
    ("### Files of `green-ctx/src/ledger`", "green-ctx/src/ledger"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn lines() -> Vec<(usize, String)> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there");
    text.lines().enumerate().map(|(index, line)| (index + 1, line.to_owned())).collect()
}

/// The texts between backticks.
fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn is_path(text: &str) -> bool {
    let ends = [".rs", ".py", ".toml", ".md", "/"];
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    text.chars().all(is_word) && (text.contains('/') || ends.iter().any(|end| text.ends_with(end)))
}

/// Whether there is a file, a folder or a module of this path.
fn is_there(folder: &Path, path: &str) -> bool {
    let path = folder.join(path);
    path.exists() || (path.extension().is_none() && path.with_extension("rs").exists())
}

#[test]
fn its_paths_exist() {
    let (mut known, mut missing) = (0, Vec::new());
    for (number, line) in lines() {
        let row = line.strip_prefix("| ").and_then(|row| row.split_once(" | "));
        let rows = row.into_iter().flat_map(|(first, _)| code(first)).filter(|text| is_path(text));
        let bases: Vec<&str> = BASES.into_iter().chain(rows).collect();
        for path in code(&line).filter(|text| is_path(text)) {
            known += 1;
            if !bases.iter().any(|base| is_there(&root().join(base), path)) {
                missing.push(format!("line {number}: {path}"));
            }
        }
    }
    assert!(known > 60, "{known} paths");
    assert_eq!(missing, [""; 0]);
}

#[test]
fn its_modules_exist() {
    let (mut folder, mut known, mut missing) = (None, 0, Vec::new());
    for (number, line) in lines() {
        if line.starts_with('#') {
            let table = TABLES.iter().find(|(heading, _)| line.starts_with(heading));
            folder = table.map(|(_, folder)| root().join(folder));
        }
        let Some(folder) = folder.as_deref().filter(|_| line.starts_with("| `")) else { continue };
        let first: Vec<&str> = line.split(" | ").take(1).flat_map(code).collect();
        for module in code(&line) {
            known += 1;
            let within = |parent: &&str| is_there(&folder.join(parent), module);
            let is_first = first.contains(&module);
            if !is_there(folder, module) && (is_first || !first.iter().any(within)) {
                missing.push(format!("line {number}: {module}"));
            }
        }
    }
    assert!(known > 90, "{known} modules");
    assert_eq!(missing, [""; 0]);
}
