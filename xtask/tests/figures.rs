//! Measured numbers on pages, compared with the data files that they come from: `docs/figures.toml` lists them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Figures {
    figure: Vec<Figure>,
}

#[derive(Debug, Deserialize)]
struct Figure {
    page: String,
    /// Occurs once on the page. Its last number is compared.
    text: String,
    file: String,
    path: String,
    /// The number is the value times this.
    #[serde(default = "one")]
    scale: f64,
    /// The path of a value to divide by.
    over: Option<String>,
}

fn one() -> f64 {
    1.0
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).expect(path)
}

/// Returns the value at a path of keys, which may themselves contain slashes. In an array, a segment is an element's
/// name or its index.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    if path.is_empty() {
        return Some(value);
    }
    let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
    ends.filter_map(|end| {
        let (key, rest) = (&path[..end], path[end..].trim_start_matches('/'));
        let next = match value {
            Value::Array(all) => all
                .iter()
                .find(|element| element["name"] == key)
                .or_else(|| all.get(key.parse::<usize>().ok()?))?,
            _ => value.get(key)?,
        };
        at(next, rest)
    })
    .next()
}

/// Returns the last number in a text and how many decimals it has. Digits that follow a letter, as in `p99`, are part of
/// a word.
fn last_number(text: &str) -> Option<(f64, usize)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ',');
    let words = text.split(|c| !is_part(c)).filter(|word| !word.is_empty());
    let mut numbers = words.filter_map(|word| {
        let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit()).replace(',', "");
        let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let number: f64 = digits.parse().ok()?;
        let at = word.as_ptr() as usize - text.as_ptr() as usize;
        let sign = if text[..at].ends_with(['-', '−']) { -1.0 } else { 1.0 };
        Some((sign * number, decimals))
    });
    numbers.next_back()
}

/// Returns how often a text occurs where no number continues it, before or after.
fn occurrences(page: &str, text: &str) -> usize {
    let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let is_whole = |at: usize| {
        let (before, after) = (page[..at].chars().next_back(), &page[at + text.len()..]);
        let rest = after.strip_prefix(['.', ',']).unwrap_or(after);
        let cut_before = text.starts_with(|c: char| c.is_ascii_digit())
            && before.is_some_and(|c| c.is_ascii_digit() || c == '.');
        let cut_after =
            text.ends_with(|c: char| c.is_ascii_digit()) && is_digit(rest.chars().next());
        !cut_before && !cut_after
    };
    page.match_indices(text).filter(|(at, _)| is_whole(*at)).count()
}

#[test]
fn numbers_on_pages_are_those_of_their_files() {
    let figures: Figures = toml::from_str(&read("docs/figures.toml")).expect("figures");
    assert!(figures.figure.len() > 200);
    let mut files: HashMap<&str, Value> = HashMap::new();
    let mut wrong = Vec::new();
    for figure in &figures.figure {
        let file = files
            .entry(&figure.file)
            .or_insert_with(|| serde_json::from_str(&read(&figure.file)).expect("JSON"));
        let found = |path: &str| at(file, path).and_then(Value::as_f64);
        let value = || {
            let value = found(&figure.path)? * figure.scale;
            figure.over.as_deref().map_or(Some(1.0), found).map(|over| value / over)
        };
        let page = read(&figure.page);
        let shown = last_number(&figure.text);
        let holds = match (shown, value()) {
            (Some((number, decimals)), Some(value)) => {
                let half = 0.5 * 0.1_f64.powi(decimals as i32);
                (value - number).abs() <= half * (1.0 + 1e-6)
            }
            _ => false,
        };
        if !holds || occurrences(&page, &figure.text) != 1 {
            wrong.push(format!("{figure:?}: {shown:?}, {:?}", value()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn numbers_and_paths_are_found() {
    assert_eq!(last_number("p99 of 19.3 µs"), Some((19.3, 1)));
    assert_eq!(last_number("10,000 times"), Some((10_000.0, 0)));
    assert_eq!(last_number("loses −1.3 %."), Some((-1.3, 1)));
    assert_eq!(last_number("p99"), None);
    let page = "120 ns, 20 ns and 1.229 of 1.22.";
    assert_eq!((occurrences(page, "20 ns"), occurrences(page, "1.22")), (1, 1));
    assert_eq!((occurrences(page, "29 of"), occurrences(page, "1.2")), (0, 0));
    let value: Value = serde_json::json!({ "a/b": [{ "name": "c", "d": 2.0 }] });
    assert_eq!(at(&value, "a/b/c/d").and_then(Value::as_f64), Some(2.0));
    assert_eq!(at(&value, "a/b/0/d").and_then(Value::as_f64), Some(2.0));
    assert!(at(&value, "a/b/x").is_none());
}
