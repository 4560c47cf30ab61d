//! Which modules import which. Some may take part in no circle: what they do can be read, tested and
//! changed without what is built on them.
//!
//! An import is a path that begins with `crate` or `super`, or in a `use` with a child module, and
//! leads to the file of the innermost module that it names. Imports of unit tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The modules that take part in no circle, with their files.
const WITHOUT_CIRCLES: [&str; 4] = ["plan", "error", "ledger", "resource"];

/// The source of each module, by its path: `resource::sm`; of the crate itself the empty one.
type Sources = BTreeMap<String, String>;

/// The modules that each one imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn read(folder: &Path, module: &str, sources: &mut Sources) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let inner = match (module, name) {
            ("", "lib") => String::new(),
            ("", name) => name.to_owned(),
            (module, name) => format!("{module}::{name}"),
        };
        if path.is_dir() {
            read(&path, &inner, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.insert(inner, fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// The source without comments and unit tests.
fn code(source: &str) -> String {
    let tests = ["\n#[cfg(test)]\nmod ", "\n#[cfg(all(test"];
    let end = tests.iter().filter_map(|start| source.find(start)).min().unwrap_or(source.len());
    let lines = source[..end].lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Cuts source into names, `::`, and single other characters.
fn tokens(code: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            c if is_name(c) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        let (token, left) = rest.split_at(length);
        tokens.push(token);
        rest = left.trim_start();
    }
    tokens
}

/// The paths that a tree of paths stands for, as `{b, c::{d, e}}` after `a::` does. Returns how many
/// tokens it has.
fn expand<'a>(tokens: &[&'a str], before: &[&'a str], paths: &mut Vec<Vec<&'a str>>) -> usize {
    let is_name = |token: &str| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let mut path = before.to_vec();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if *token == "{" {
            at += 1;
            while tokens.get(at).is_some_and(|token| *token != "}") {
                at += expand(&tokens[at..], &path, paths).max(1);
            }
            return at + 1;
        }
        if !is_name(token) {
            break;
        }
        path.push(token);
        at += 1;
        if tokens.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    paths.push(path);
    at
}

/// The paths of a module's source that may lead to other modules, from the crate on.
fn paths(module: &str, source: &str) -> Vec<Vec<String>> {
    let code = code(source);
    let tokens = tokens(&code);
    let mut own: Vec<&str> = module.split("::").filter(|name| !name.is_empty()).collect();
    // How many braces are open, and where the modules that are written in the file began.
    let (mut depth, mut inline) = (0, Vec::new());
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let begins = at == 0 || tokens[at - 1] != "::";
        let mut relative = Vec::new();
        at += match tokens[at..] {
            ["crate" | "super" | "self", "::", ..] if begins => {
                expand(&tokens[at..], &[], &mut relative)
            }
            ["use", ..] => 1 + expand(&tokens[at + 1..], &[], &mut relative),
            ["mod", name, "{", ..] => {
                inline.push(depth);
                own.push(name);
                2
            }
            ["{", ..] => {
                depth += 1;
                1
            }
            ["}", ..] => {
                depth -= 1;
                if inline.last() == Some(&depth) {
                    inline.pop();
                    own.pop();
                }
                1
            }
            _ => 1,
        };
        for path in relative {
            let mut from = own.clone();
            for name in path {
                match name {
                    "crate" => from.clear(),
                    "super" => drop(from.pop()),
                    "self" => {}
                    name => from.push(name),
                }
            }
            found.push(from.into_iter().map(str::to_owned).collect());
        }
    }
    found
}

fn imports(sources: &Sources) -> Imports {
    let innermost = |path: &[String]| {
        let longest = (0..=path.len()).rev().map(|names| path[..names].join("::"));
        longest.into_iter().find(|module| sources.contains_key(module))
    };
    let of = |(module, source): (&String, &String)| {
        let leads = paths(module, source).into_iter().filter_map(|path| innermost(&path));
        (module.clone(), leads.filter(|other| other != module).collect())
    };
    sources.iter().map(of).collect()
}

/// A way from a module back to itself, if there is one: the shortest.
fn circle(imports: &Imports, start: &str) -> Option<Vec<String>> {
    let mut ways = vec![vec![start.to_owned()]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for next in imports.get(way.last()?).into_iter().flatten() {
                let further = way.iter().chain([next]).cloned().collect();
                if next == start {
                    return Some(further);
                }
                if seen.insert(next.clone()) {
                    longer.push(further);
                }
            }
        }
        ways = longer;
    }
    None
}

/// The circles of certain modules and of what is in them.
fn circles(imports: &Imports, modules: &[&str]) -> Vec<Vec<String>> {
    let is_one = |module: &&String| {
        modules.iter().any(|one| module.split("::").next().is_some_and(|first| first == *one))
    };
    imports.keys().filter(is_one).filter_map(|module| circle(imports, module)).collect()
}

#[test]
fn some_modules_take_part_in_no_circle() -> std::io::Result<()> {
    let mut sources = Sources::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut sources)?;
    let imports = imports(&sources);
    for module in WITHOUT_CIRCLES {
        assert!(imports.contains_key(module), "there is no module {module}");
    }
    let found = circles(&imports, &WITHOUT_CIRCLES);
    let shown: Vec<String> = found.iter().map(|circle| circle.join(" -> ")).collect();
    assert!(shown.is_empty(), "these modules import themselves:\n{}", shown.join("\n"));
    Ok(())
}

/// The ledger imports nothing of the crate but itself.
#[test]
fn the_ledger_stands_alone() -> std::io::Result<()> {
    let mut sources = Sources::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut sources)?;
    for (module, others) in imports(&sources) {
        if module.split("::").next() == Some("ledger") {
            let outside = others.iter().find(|other| !other.starts_with("ledger"));
            assert_eq!(outside, None, "{module} imports it");
        }
    }
    Ok(())
}

/// Imports of every form are found, and circles of any length.
#[test]
fn circles_are_found() {
    let of = |files: &[(&str, &str)]| {
        let sources =
            files.iter().map(|(module, source)| ((*module).to_owned(), (*source).to_owned()));
        let found = circles(&imports(&sources.collect()), &["a"]);
        found.iter().map(|circle| circle.join(" -> ")).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(
        of(&[("a", "use crate::b::B;"), ("b", "use std::fmt;"), ("c", "use crate::a;")]),
        none
    );
    assert_eq!(
        of(&[("a", "use crate::b::B;"), ("b", "fn f(_: &crate::a::A) {}")]),
        ["a -> b -> a"]
    );
    let nested = "use {crate::{c, b::{self, B}}, std::fmt};";
    assert_eq!(of(&[("a", nested), ("b", "use super::a::A;")]), ["a -> b -> a"]);
    // Between a module and its child, where the parent hands the child's names on.
    let parent = "mod x;\npub use x::X;";
    assert_eq!(of(&[("a", parent), ("a::x", "use crate::b;"), ("b", "")]), none);
    assert_eq!(
        of(&[("a", parent), ("a::x", "use super::A;")]),
        ["a -> a::x -> a", "a::x -> a -> a::x"]
    );
    assert_eq!(of(&[("a", "mod x;"), ("a::x", "use super::A;")]), none);
    // Whoever imports a name that a parent hands on depends on all that it hands on.
    let files = [("a", parent), ("a::x", "use crate::b::B;"), ("b", "use crate::a::Y;")];
    assert_eq!(of(&files).len(), 2);
    // A path to the innermost module does not go through its parent.
    let files = [("a", parent), ("a::x", ""), ("a::y", ""), ("b", "use crate::a::y::Y;")];
    assert_eq!(of(&files), none);
    // The parent of a module that is written in a file is that file's.
    let inline = "mod threads {\n    use super::B;\n}\nuse super::a::A;";
    assert_eq!(of(&[("", "pub use a::A;"), ("a", "use crate::b::B;"), ("b", &inline[..32])]), none);
    assert_eq!(of(&[("", ""), ("a", "use crate::b::B;"), ("b", inline)]), ["a -> b -> a"]);
    // Neither comments nor unit tests import.
    let tested = "// crate::a\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n";
    assert_eq!(of(&[("a", "use crate::b::B;"), ("b", tested)]), none);
}
