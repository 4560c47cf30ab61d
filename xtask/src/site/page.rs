//! The pages: the repository's Markdown, which rustdoc and GitHub show too, converted for the generator.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use regex::{Captures, Regex};

use super::{RUSTDOC, Site, copy, read, write};
use crate::metadata::Metadata;
use crate::{Failure, workspace_root};

/// The page that ends with a program, and the program. rustdoc takes them from guide.rs.
const PROGRAM_PAGE: &str = "green-ctx/guide/first_program.md";
const PROGRAM: &str = "green-ctx/examples/00-everything.rs";

/// A link: its text, which may have brackets, and its destination.
const LINK: &str = r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)";

/// A line that gives a link its destination.
const DEFINITION: &str = r"(?m)^(\[.+\]): (\S+)$";

impl Site {
    /// Writes all pages of the repository, and the files that they link to.
    pub(super) fn write_pages(&self, root: &Path, folder: &Path) -> Result<(), Failure> {
        let link = Regex::new(LINK).map_err(Failure::from_display)?;
        let definition = Regex::new(DEFINITION).map_err(Failure::from_display)?;
        let mut linked = BTreeSet::new();
        for (page, title) in self.titles.iter().filter(|(page, _)| !folder.join(page).exists()) {
            let mut source = read(&root.join(page))?;
            if page == PROGRAM_PAGE {
                let _ = write!(source, "\n```rust\n{}```\n", read(&root.join(PROGRAM))?);
            }
            let mut text = convert(&source, title, page.contains("/guide/"));
            for found in definition.captures_iter(&source) {
                let inline = format!("{}({})", &found[1], &found[2]);
                text = text.replace(&found[0], "").replace(&found[1], &inline);
            }
            let items = self.items(page);
            let text = link.replace_all(&text, |link: &Captures<'_>| {
                match self.destination(page, &link[2], &items, &mut linked) {
                    Some(destination) => format!("[{}]({destination})", &link[1]),
                    None => link[1].to_owned(),
                }
            });
            write(&folder.join(page), text.as_bytes())?;
        }
        for file in &linked {
            match language(file) {
                Some(language) => {
                    let text = read(&root.join(file))?;
                    let page = format!("# {file}\n\n````{language}\n{text}````\n");
                    let hidden = "---\nsearch:\n  exclude: true\n---\n\n";
                    write(&folder.join(format!("{file}.md")), hidden.to_owned() + &page)?;
                }
                None => copy(&root.join(file), &folder.join(file))?,
            }
        }
        Ok(())
    }

    /// Returns the page that lists the crates.
    pub(super) fn crates(&self, metadata: &Metadata) -> String {
        let mut page = "# Rust API\n\n| crate | contents |\n|---|---|\n".to_owned();
        for package in metadata.members().filter(|package| package.is_published()) {
            let name = package.name.replace('-', "_");
            let contents = package.description.as_deref().unwrap_or_default();
            let _ = match self.library(&name) {
                Some(start) => writeln!(page, "| [`{name}`]({start}) | {contents} |"),
                None => writeln!(page, "| `{name}` | {contents} |"),
            };
        }
        page
    }

    /// Returns the destination of a link on the site, or `None` if the site does not have its target. Adds the target
    /// to `linked` if it is a file.
    fn destination(
        &self,
        page: &str,
        link: &str,
        items: &[(String, String)],
        linked: &mut BTreeSet<String>,
    ) -> Option<String> {
        let to_root = "../".repeat(page.matches('/').count());
        let (path, anchor) = link.split_at(link.find('#').unwrap_or(link.len()));
        if let Some(rest) = path.strip_prefix("https://docs.rs/green-ctx") {
            let name = format!("green_ctx{}", rest.replace('-', "_"));
            return Some(to_root + &self.library(&name)?);
        }
        if path.is_empty() || path.contains("://") {
            return Some(link.to_owned());
        }
        if let Some((_, item)) = path.split_once("::") {
            if let Some(guide) = item.strip_prefix("guide::") {
                return Some(format!("{to_root}green-ctx/guide/{guide}.md{anchor}"));
            }
            // An item that is exported twice has the path of its page, which can be another one.
            let ends = [item, item.rsplit("::").next()?].map(|end| format!("::{end}"));
            let mut found =
                ends.iter().filter_map(|end| items.iter().find(|(path, _)| path.ends_with(end)));
            let (_, place) = found.next()?;
            return Some(if place.contains("://") { place.clone() } else { to_root + place });
        }

        let file = resolve(page, path);
        let target = workspace_root().join(&file);
        if target.is_dir() {
            let readme = self.titles.contains_key(&format!("{file}/README.md"));
            return readme.then(|| format!("{path}/README.md{anchor}"));
        }
        if self.titles.contains_key(&file) || !target.exists() {
            // The check of the links finds those that do not exist.
            return Some(link.to_owned());
        }
        let suffix = if language(&file).is_some() { ".md" } else { "" };
        linked.insert(file);
        Some(format!("{path}{suffix}{anchor}"))
    }

    /// Returns the start page of a crate's documentation.
    fn library(&self, name: &str) -> Option<String> {
        let page = format!("{name}/index.html");
        self.rustdoc.join(&page).exists().then(|| format!("{RUSTDOC}/{page}"))
    }

    /// Returns the items that a page of the manual links to, with their places: rustdoc's version of the page has
    /// links that begin with `<a href="../struct.Share.html" title="struct green_ctx::Share">`.
    fn items(&self, page: &str) -> Vec<(String, String)> {
        let (package, name) = page.split_once("/guide/").unwrap_or_default();
        let manual = format!("{}/guide", package.replace(['-', '/'], "_"));
        let pages = [format!("{manual}/{}", name.trim_end_matches(".md")), manual]
            .map(|folder| format!("{folder}/index.html"));
        let Some((page, html)) =
            pages.iter().find_map(|page| Some((page, read(&self.rustdoc.join(page)).ok()?)))
        else {
            return Vec::new();
        };
        let links = html.split("<a href=\"").filter_map(|link| {
            let (place, title) = link.split_once("\" title=\"")?;
            let place = match place.contains("://") {
                true => place.to_owned(),
                false => format!("{RUSTDOC}/{}", resolve(page, place)),
            };
            Some((title.split_once('"')?.0.to_owned(), place))
        });
        links.collect()
    }
}

/// Returns the language of a program or text, or `None` for data and pictures.
fn language(file: &str) -> Option<&str> {
    match Path::new(file).extension().map(|extension| extension.to_str()) {
        Some(language @ Some("rs" | "sh" | "py" | "toml")) => language,
        None => Some("text"),
        Some(_) => None,
    }
}

/// Converts a page's lines. In the manual, blocks of code are Rust, and the title is not in the page.
fn convert(source: &str, title: &str, is_manual: bool) -> String {
    let mut page = String::new();
    // rustdoc, too, shows the headings of a page one level below its title.
    let has_title = source.starts_with("# ");
    if !has_title {
        let _ = writeln!(page, "# {title}\n");
    }
    // The indentation of the block of code, and whether it is Rust.
    let mut block: Option<(usize, bool)> = None;
    for line in source.lines() {
        let mut text = line.trim_start();
        let indent = line.len() - text.len();
        // The generator expects four spaces for each level of a list; the pages have two or three.
        let start = block.map_or(indent, |(start, _)| start);
        let margin = start / 2 * 4 + indent.saturating_sub(start);
        let (mut before, mut after) = ("", "");
        if let Some(language) = text.strip_prefix("```") {
            if block.take().is_some() {
                // An item of a list that follows is one only after an empty line.
                after = "\n";
            } else {
                let is_rust = language.starts_with("rust") || (is_manual && language.is_empty());
                block = Some((indent, is_rust));
                text = if is_rust { "```rust" } else { text };
            }
        } else if block.is_some_and(|(_, is_rust)| is_rust) {
            if text == "#" || text.starts_with("# ") {
                continue;
            }
        } else if block.is_none() && text.starts_with('#') && !has_title {
            before = "#";
        }
        let _ = writeln!(page, "{:margin$}{before}{text}{after}", "");
    }
    page
}

/// Returns the path in the repository that a page's relative link names.
fn resolve(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "" | "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::{convert, resolve};

    #[test]
    fn a_page_of_the_manual_hides_what_rustdoc_hides() {
        let page = "A sentence.\n# Heading\n- item\n  ```\n  # hidden();\n  if shown {\n      #[cfg(test)]\n  ```\n- item\n";
        let shown = "# Title\n\nA sentence.\n## Heading\n- item\n    ```rust\n    if shown {\n        #[cfg(test)]\n    ```\n\n- item\n";
        assert_eq!(convert(page, "Title", true), shown);
        let commands = "# Title\n```\n# a comment\n```\n";
        assert_eq!(convert(commands, "unused", false), format!("{commands}\n"));
    }

    #[test]
    fn links_are_relative_to_the_page() {
        assert_eq!(resolve("docs/a/README.md", "../../green-ctx/b.md"), "green-ctx/b.md");
    }
}
