//! The number of error types that users of green-ctx and green-ctx-tune see.

use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item, Type, Visibility};

/// The limit. A type beyond it should probably be `Refused` or a variant.
const MOST: usize = 12;

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|path| path.extension().is_some_and(|it| it == "rs"));
    files.chain(folders.iter().flat_map(|folder| rust_files(folder))).collect()
}

fn derives(attributes: &[Attribute], what: &str) -> bool {
    let text = |attribute: &Attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("derive") => list.tokens.to_string(),
        _ => String::new(),
    };
    attributes.iter().any(|attribute| text(attribute).split([' ', ',']).any(|name| name == what))
}

/// Returns the name of a public error type.
fn error_of(item: &Item) -> Option<String> {
    match item {
        Item::Enum(item) if derives(&item.attrs, "Error") => {
            assert!(!derives(&item.attrs, "Debug"), "{} prints its fields", item.ident);
            matches!(item.vis, Visibility::Public(_)).then(|| item.ident.to_string())
        }
        Item::Struct(item) if derives(&item.attrs, "Error") => {
            assert!(!derives(&item.attrs, "Debug"), "{} prints its fields", item.ident);
            matches!(item.vis, Visibility::Public(_)).then(|| item.ident.to_string())
        }
        Item::Impl(item) => {
            let (of, _) = item.trait_.as_ref()?;
            let Type::Path(path) = &*item.self_ty else { return None };
            let is_error = of.segments.last().is_some_and(|name| name.ident == "Error");
            path.path.segments.last().filter(|_| is_error).map(|name| name.ident.to_string())
        }
        _ => None,
    }
}

#[test]
fn there_are_few_error_types() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = ["green-ctx/src", "green-ctx/tune/src"].map(|folder| root.join(folder));
    let mut found = Vec::new();
    for file in folders.iter().flat_map(|folder| rust_files(folder)) {
        let text = fs::read_to_string(&file).expect("text");
        found.extend(syn::parse_file(&text).expect("Rust").items.iter().filter_map(error_of));
    }
    found.sort();
    assert!(
        found.contains(&"Refused".to_owned()) && found.contains(&"PlanError".to_owned()),
        "{found:?}"
    );
    assert!(found.len() <= MOST, "{} of {MOST}: {found:?}", found.len());
    println!("{found:?}");
}
