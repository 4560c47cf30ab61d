//! The check of the links: their files and anchors must exist. It does not follow links to other sites.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{RUSTDOC, files, read};
use crate::Failure;

/// Checks the links of all pages except rustdoc's, and returns their number.
pub(super) fn check(site: &Path) -> Result<usize, Failure> {
    let mut targets: HashMap<PathBuf, Option<HashSet<String>>> = HashMap::new();
    let (mut count, mut broken) = (0, BTreeSet::new());
    let rustdoc = site.join(RUSTDOC);
    for page in files(site)?.iter().filter(|file| !file.starts_with(&rustdoc)) {
        if page.extension().is_none_or(|kind| kind != "html") {
            continue;
        }
        let html = read(page)?;
        for link in values(&html, " href=\"").chain(values(&html, " src=\"")) {
            if ["https:", "http:", "mailto:", "data:"].iter().any(|kind| link.starts_with(kind)) {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let mut file = match path.strip_prefix('/') {
                Some(path) => site.join(path),
                None if path.is_empty() => page.clone(),
                None => page.with_file_name(path),
            };
            if file.is_dir() {
                file.push("index.html");
            }
            let ids = targets.entry(file).or_insert_with_key(|file| anchors(file));
            count += 1;
            if !ids.as_ref().is_some_and(|ids| anchor.is_empty() || ids.contains(anchor)) {
                broken.insert(format!(
                    "{}: {link}",
                    page.strip_prefix(site).unwrap_or(page).display()
                ));
            }
        }
    }
    match broken.is_empty() {
        true => Ok(count),
        false => {
            let list: Vec<String> = broken.into_iter().collect();
            Err(Failure::new(format!("links without a target:\n{}", list.join("\n"))))
        }
    }
}

/// Returns the anchors of a file, or `None` if it does not exist. rustdoc redirects from an item's module to its page.
fn anchors(file: &Path) -> Option<HashSet<String>> {
    let html = fs::read(file).ok()?;
    let html = String::from_utf8_lossy(&html);
    match values(&html, " content=\"0;URL=").next() {
        Some(place) => anchors(&file.with_file_name(place)),
        None => Some(values(&html, " id=\"").map(str::to_owned).collect()),
    }
}

/// Returns the values of an attribute, which is given with the text around its name.
fn values<'a>(html: &'a str, attribute: &'a str) -> impl Iterator<Item = &'a str> {
    html.split(attribute).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0))
}
