//! The commands on the pages, run on a simulated driver.

use std::path::Path;

use crate::run;

/// Returns the arguments of each command on a page: after the name of the program, up to two spaces, a backtick or the
/// end of the line. A code span may be broken over two lines.
fn commands(page: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(path).expect(page);
    let mut found: Vec<Vec<String>> = Vec::new();
    for start in ["`green-ctx ", "\ngreen-ctx ", "cargo run -p green-ctx-cli -- "] {
        for rest in text.split(start).skip(1) {
            let end = if start.starts_with('`') { rest.find('`') } else { rest.find('\n') };
            let line = &rest[..end.unwrap_or(rest.len())];
            let line = line.split("  ").next().unwrap_or(line);
            // Not the line of a manifest.
            if !line.starts_with('=') {
                found.push(line.split_whitespace().map(str::to_owned).collect());
            }
        }
    }
    found
}

#[test]
fn commands_on_pages_run() {
    let folder = std::env::temp_dir().join(format!("green-ctx-pages-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut count = 0;
    for page in ["README.md", "docs/requirements.md", "green-ctx/cli/README.md"] {
        for mut arguments in commands(page) {
            // It runs another program, on a driver library.
            if arguments.iter().any(|argument| argument == "--") {
                continue;
            }
            for argument in &mut arguments {
                if argument.ends_with(".svg") {
                    *argument = folder.join(&*argument).display().to_string();
                }
            }
            let mut all = vec!["--driver", "sim"];
            all.extend(arguments.iter().map(String::as_str));
            let answer = run(&all);
            assert_eq!(answer.status, 0, "{page}: {arguments:?}\n{}", answer.err);
            count += 1;
        }
    }
    assert!(count >= 8, "{count}");
    std::fs::remove_dir_all(folder).expect("it can be removed");
}

#[test]
fn pages_list_all_subcommands() {
    let help = run(&["--help"]).out;
    let list = help.split_once("Commands:\n").expect("a list").1;
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"verify") && names.contains(&"help"), "{names:?}");
    for page in ["green-ctx/cli/README.md", "CHANGELOG.md"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
        let text = std::fs::read_to_string(path).expect(page);
        for name in names.iter().filter(|name| **name != "help") {
            let is_listed =
                text.contains(&format!("`{name}`")) || text.contains(&format!("green-ctx {name} "));
            assert!(is_listed, "{name} is not in {page}");
        }
    }
}
