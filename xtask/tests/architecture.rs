//! ARCHITECTURE.md must be short, and may only name files that exist.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders that paths in the text are relative to.
const BASES: [&str; 12] = [
    "",
    "green-ctx/src",
    "green-ctx/src/ledger",
    "green-ctx/src/handle",
    "green-ctx/src/work",
    "green-ctx/src/divide",
    "green-ctx/src/graph",
    "green-ctx/src/observe",
    "green-ctx/report/src",
    "green-ctx/tune/src",
    "green-ctx/sim/src",
    "green-ctx-torch",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md exists")
}

/// Returns the paths between backticks.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_path = move |text: &&str| {
        let ends = [".rs", ".py", ".toml", ".md", "/"];
        text.chars().all(is_word)
            && (text.contains('/') || ends.iter().any(|end| text.ends_with(end)))
    };
    text.split('`').skip(1).step_by(2).filter(is_path)
}

#[test]
fn its_paths_exist() {
    let page = page();
    let lines: Vec<&str> = page.lines().filter(|line| !line.starts_with("```")).collect();
    let known: Vec<&str> = lines.iter().flat_map(|line| paths(line)).collect();
    let exists = |path: &str| BASES.iter().any(|base| root().join(base).join(path).exists());
    let missing: Vec<&&str> = known.iter().filter(|path| !exists(path)).collect();
    assert!(known.len() > 90, "{} paths", known.len());
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn it_is_short() {
    let words = page().split_whitespace().count();
    assert!(words <= 1600, "{words} words, of at most 1600: shorten what the page says elsewhere");
}

#[test]
fn the_ways_that_it_follows_are_short() {
    let page = page();
    let section = page.split("\n## ").find(|section| section.starts_with("One request, followed"));
    let (partition, retarget) = section
        .and_then(|section| section.split_once("`graph.retarget(context)`"))
        .expect("both ways");
    for (way, limit) in [(partition, 14), (retarget, 6)] {
        let mut files: Vec<&str> = paths(way).filter(|path| path.ends_with(".rs")).collect();
        files.sort_unstable();
        files.dedup();
        assert!((1..=limit).contains(&files.len()), "{} files: {files:?}", files.len());
        for file in files {
            let text = fs::read_to_string(root().join("green-ctx/src").join(file)).expect(file);
            assert!(text.lines().count() <= 600, "{file} is too long");
        }
    }
}
