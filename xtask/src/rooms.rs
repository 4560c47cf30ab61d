//! `cargo xtask check-rooms`: checks which files of a crate import which. A room is a top-level module of a
//! crate. No file may import from a later room, and there may be no cycle of more than two files.
//!
//! A path is followed through re-exports to the file that defines the item. A re-export itself does not count
//! as an import, since the file does not depend on an item that it only passes on. Test code is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::{Failure, workspace_root};

/// A crate whose imports are checked.
struct Checked {
    folder: &'static str,
    /// The rooms in order. Each imports only from those before it.
    rooms: &'static [&'static str],
    /// Files whose imports are not counted.
    exceptions: &'static [&'static str],
}

const CRATES: [Checked; 3] = [
    Checked {
        folder: "green-ctx/src",
        rooms: &["ledger", "handle", "work", "divide", "graph", "observe"],
        exceptions: &[],
    },
    Checked { folder: "green-ctx-torch/python/src", rooms: &[], exceptions: &[] },
    Checked {
        folder: "green-ctx/sim/src",
        rooms: &[],
        exceptions: &[
            // The tables of all kinds of objects in a process.
            "state",
            // Owns the state, and looks up the functions that work on it.
            "entry/driver",
            // An enum with a variant for each kind of node.
            "graph/node",
            // The list of the parts that can be simulated.
            "part/profile",
            // Detects the format of an image.
            "image",
        ],
    },
];

/// A module, by its path in the crate; empty for `lib.rs`.
type Module = Vec<String>;

/// The imports of one file.
#[derive(Default)]
struct Source {
    /// The items of `use` declarations: the name in this file, the path, and whether it is re-exported.
    uses: Vec<(String, Vec<String>, bool)>,
    /// The paths in the code.
    paths: BTreeSet<Vec<String>>,
}

/// The files of a crate.
struct Crate {
    files: BTreeMap<Module, Source>,
}

impl Crate {
    fn read(folder: &Path) -> Result<Crate, Failure> {
        let mut files = BTreeMap::new();
        let mut folders = vec![(folder.to_owned(), Module::new())];
        while let Some((folder, module)) = folders.pop() {
            let entries = fs::read_dir(&folder);
            let entries = entries.map_err(|error| Failure::io("reading", &folder, error))?;
            for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
                let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
                let mut inner = module.clone();
                if name != "lib" || !module.is_empty() {
                    inner.push(name.to_owned());
                }
                if path.is_dir() {
                    folders.push((path, inner));
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path);
                    let text = text.map_err(|error| Failure::io("reading", &path, error))?;
                    let file = syn::parse_file(&text).map_err(Failure::from_display)?;
                    let mut source = Source::default();
                    source.visit_file(&file);
                    files.insert(inner, source);
                }
            }
        }
        Ok(Crate { files })
    }

    /// Resolves a path, seen from a module, to the module that defines the item.
    fn resolve(&self, from: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Module::new(),
            "self" => from.clone(),
            "super" => {
                let mut at = from.clone();
                at.pop();
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
                at
            }
            _ => {
                rest = path;
                from.clone()
            }
        };
        while let Some((name, after)) = rest.split_first() {
            let inner = [at.as_slice(), std::slice::from_ref(name)].concat();
            if self.files.contains_key(&inner) {
                (at, rest) = (inner, after);
                continue;
            }
            // The module imports or re-exports the name.
            let uses = &self.files.get(&at)?.uses;
            let found = uses.iter().find(|(known, path, _)| known == name && path.len() > 1);
            if let Some((_, path, _)) = found.filter(|_| depth > 0) {
                let path = [path.as_slice(), after].concat();
                return self.resolve(&at, &path, depth - 1);
            }
            let is_own = !matches!(first.as_str(), "crate" | "self" | "super") && at == *from;
            return (!is_own).then_some(at);
        }
        Some(at)
    }

    /// Returns the files that each file imports.
    fn imports(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let of = |(module, source): (&Module, &Source)| -> BTreeSet<Module> {
            let names: BTreeSet<&String> =
                source.paths.iter().filter_map(|path| path.first()).collect();
            let uses =
                source.uses.iter().filter(|(name, _, passed)| !passed || names.contains(name));
            // A single name comes from a `use`, from this file, or from a variable.
            let in_code = source.paths.iter().filter(|path| path.len() > 1);
            let paths = uses.map(|(_, path, _)| path).chain(in_code);
            let found = paths.filter_map(|path| self.resolve(module, path, 8));
            found.filter(|target| target != module && !target.is_empty()).collect()
        };
        self.files.iter().map(|(module, source)| (module, of((module, source)))).collect()
    }
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &[],
        };
        let is_test = |attribute: &Attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Ident>().is_ok_and(|name| name == "test")
        };
        if !attributes.iter().any(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let passed = !matches!(item.vis, Visibility::Inherited);
        leaves(&item.tree, &mut Vec::new(), &mut |name, path| {
            self.uses.push((name, path, passed));
        });
    }

    fn visit_visibility(&mut self, _visibility: &'ast Visibility) {
        // A visibility such as `pub(in path)` is not an import.
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.insert(path.segments.iter().map(|part| part.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

/// Calls `leaf` with every name that a `use` tree brings into scope, and its path.
fn leaves(tree: &UseTree, above: &mut Vec<String>, leaf: &mut impl FnMut(String, Vec<String>)) {
    let mut found = |name: String, last: String| {
        let path = match last.as_str() {
            "self" => above.clone(),
            _ => [above.as_slice(), &[last]].concat(),
        };
        let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name };
        leaf(name, path);
    };
    match tree {
        UseTree::Path(path) => {
            above.push(path.ident.to_string());
            leaves(&path.tree, above, leaf);
            above.pop();
        }
        UseTree::Name(name) => found(name.ident.to_string(), name.ident.to_string()),
        UseTree::Rename(rename) => found(rename.rename.to_string(), rename.ident.to_string()),
        UseTree::Glob(_) => found("*".to_owned(), "self".to_owned()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, above, leaf)),
    }
}

/// Returns the groups of files that import each other, directly or through others.
fn circles<'a>(imports: &BTreeMap<&'a Module, BTreeSet<Module>>) -> Vec<Vec<&'a Module>> {
    let reached = |from: &'a Module| -> BTreeSet<&'a Module> {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            for (target, _) in imports.iter().filter(|(target, _)| imports[at].contains(**target)) {
                if seen.insert(*target) {
                    next.push(*target);
                }
            }
        }
        seen
    };
    let all: BTreeMap<&Module, BTreeSet<&Module>> =
        imports.keys().map(|at| (*at, reached(at))).collect();
    let mut circles: Vec<Vec<&Module>> = Vec::new();
    for at in imports.keys().filter(|at| all[**at].contains(**at)) {
        if !circles.iter().any(|circle| circle.contains(at)) {
            circles
                .push(all[at].iter().copied().filter(|other| all[*other].contains(at)).collect());
        }
    }
    circles
}

pub(crate) fn run() -> Result<(), Failure> {
    let mut all = Vec::new();
    for Checked { folder, rooms, exceptions } in &CRATES {
        let read = Crate::read(&workspace_root().join(folder))?;
        let wrong = wrong(&read, rooms, exceptions);
        all.extend(wrong.into_iter().map(|wrong| format!("{folder}: {wrong}")));
    }
    if !all.is_empty() {
        return Err(Failure::new(all.join("\n")));
    }
    let exceptions: usize = CRATES.iter().map(|known| known.exceptions.len()).sum();
    let crates = CRATES.len();
    println!(
        "{crates} crates: no import from a later room, no cycle of more than two files, {exceptions} exceptions"
    );
    Ok(())
}

/// Returns the violations in a crate's imports.
fn wrong(read: &Crate, rooms: &[&str], exceptions: &[&str]) -> Vec<String> {
    let mut imports = read.imports();
    let room =
        |module: &Module| rooms.iter().position(|room| module.first().is_some_and(|it| it == room));
    let mut wrong = Vec::new();
    for exception in exceptions {
        match imports.iter_mut().find(|(module, _)| module.join("/") == **exception) {
            Some((_, targets)) => targets.clear(),
            None => wrong.push(format!("the exception {exception} does not exist")),
        }
    }
    for (module, targets) in imports.iter().filter(|(module, _)| !module.is_empty()) {
        for target in targets.iter().filter(|target| room(target) > room(module)) {
            wrong.push(format!("{} imports {}", module.join("/"), target.join("/")));
        }
    }
    for circle in circles(&imports).iter().filter(|circle| circle.len() > 2) {
        let names: Vec<String> = circle.iter().map(|module| module.join("/")).collect();
        wrong.push(format!("a cycle of {} files: {}", names.len(), names.join(", ")));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a crate from these files.
    fn made_up(files: &[(&str, &str)]) -> Crate {
        let mut made = Crate { files: BTreeMap::new() };
        for (path, text) in files {
            let mut source = Source::default();
            source.visit_file(&syn::parse_file(text).expect("valid Rust"));
            let module = path.split('/').filter(|part| *part != "lib").map(str::to_owned);
            made.files.insert(module.collect(), source);
        }
        made
    }

    #[test]
    fn the_crates_keep_to_their_rooms() {
        run().expect("no violations");
    }

    #[test]
    fn imports_that_run_up_are_found_through_re_exports() {
        let lib = ("lib", "mod low; mod high; pub use high::plan::Plan;");
        let plan = ("high/plan", "pub struct Plan;");
        let of = |low| {
            wrong(
                &made_up(&[lib, ("low", low), ("high", "pub mod plan;"), plan]),
                &["low", "high"],
                &[],
            )
        };
        let up = ["low imports high/plan"];
        for low in [
            "use crate::Plan;",
            "use crate::high::plan;",
            "fn f() { crate::high::plan::Plan; }",
            "impl super::Plan {}",
            "use crate::{high::plan::Plan as Other};",
        ] {
            assert_eq!(of(low), up, "{low}");
        }
        for low in [
            "use other::Plan;",
            "#[cfg(test)] mod tests { use crate::Plan; }",
            "fn f(plan: u8) { plan; }",
        ] {
            assert_eq!(of(low), [""; 0], "{low}");
        }
    }

    #[test]
    fn circles_of_more_than_two_files_are_found() {
        let files = |last| {
            [
                ("lib", ""),
                ("a", "use crate::b::B;"),
                ("b", "use super::c; pub struct B;"),
                ("c", last),
            ]
        };
        let circle = ["a cycle of 3 files: a, b, c"];
        assert_eq!(wrong(&made_up(&files("use crate::a;")), &[], &[]), circle);
        assert_eq!(wrong(&made_up(&files("use crate::b::B;")), &[], &[]), [""; 0]);
        assert_eq!(wrong(&made_up(&files("use crate::a;")), &[], &["c"]), [""; 0]);
        assert_eq!(wrong(&made_up(&files("")), &[], &["d"]), ["the exception d does not exist"]);
        // A re-export alone is not an import.
        assert_eq!(wrong(&made_up(&files("pub use crate::a;")), &[], &[]), [""; 0]);
    }
}
