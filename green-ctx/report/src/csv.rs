//! A list of a JSON object as comma-separated values.

use std::collections::HashMap;

use indexmap::{IndexMap, IndexSet};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Formats the list `list` of the JSON that a command prints as comma-separated values, with a row for each element and
/// a column for each field. The numbers of a list within an element are separated by spaces; an object within it is
/// JSON.
#[must_use]
pub fn to_csv(answer: &impl Serialize, list: &str) -> String {
    let text = crate::to_json(answer);
    let lists: HashMap<String, &RawValue> = serde_json::from_str(&text).unwrap_or_default();
    // A value of serde_json has its fields in alphabetical order, and the text in a better one.
    let rows: Vec<IndexMap<String, Value>> =
        lists.get(list).and_then(|rows| serde_json::from_str(rows.get()).ok()).unwrap_or_default();
    let columns: IndexSet<&str> =
        rows.iter().flat_map(|row| row.keys().map(String::as_str)).collect();
    let mut text = columns.iter().copied().collect::<Vec<_>>().join(",");
    text.push('\n');
    for row in &rows {
        let cells = columns.iter().map(|name| row.get(*name).map_or_else(String::new, cell));
        text.push_str(&cells.collect::<Vec<_>>().join(","));
        text.push('\n');
    }
    text
}

fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(|item| item.is_number() || item.is_string()) => {
            items.iter().map(cell).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    };
    // RFC 4180.
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::to_csv;

    #[test]
    fn rows_may_differ_and_text_is_quoted() {
        let text = r#"{"other": 1, "rows": [{"name": "a,\"b\"", "ids": [1, 2], "share": null},
                       {"name": "c", "more": {"x": [1]}}]}"#;
        let answer = RawValue::from_string(text.to_owned()).expect("it is JSON");
        let expected = "name,ids,share,more\n\"a,\"\"b\"\"\",1 2,,\nc,,,\"{\"\"x\"\":[1]}\"\n";
        assert_eq!(to_csv(&answer, "rows"), expected);
        assert_eq!(to_csv(&answer, "none"), "\n");
    }
}
