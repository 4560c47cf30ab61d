//! Tables, and lists of SMs as text.

use std::collections::BTreeSet;

/// The alignment of a column.
#[derive(Clone, Copy)]
pub(crate) enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// Formats rows under a heading. Each column is as wide as its widest cell.
pub(crate) fn table<const N: usize>(columns: [(&str, Align); N], rows: &[[String; N]]) -> String {
    let heading = columns.map(|(title, _)| title.to_owned());
    let lines = || std::iter::once(&heading).chain(rows);
    let width = |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines() {
        let cells = line.iter().zip(columns).zip(widths).map(|((cell, (_, align)), width)| {
            // `format!` panics at widths above 65,535, and a cell may contain a name from the user.
            let space = " ".repeat(width - cell.chars().count());
            match align {
                Align::Left => format!("{cell}{space}"),
                Align::Right => format!("{space}{cell}"),
            }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Formats ids, with consecutive ids as ranges: `0-3,16,18-19`.
pub(crate) fn ranges(ids: &BTreeSet<u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &id in ids {
        match runs.last_mut() {
            Some((_, last)) if id - *last == 1 => *last = id,
            _ => runs.push((id, id)),
        }
    }
    let text = |&(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Formats ids for a sentence: `SM 7`, `SMs 0-3,16`.
pub(crate) fn sms(ids: &BTreeSet<u32>) -> String {
    format!("{} {}", if ids.len() == 1 { "SM" } else { "SMs" }, ranges(ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_ids_are_drawn_together() {
        let text = |ids: &[u32]| ranges(&ids.iter().copied().collect());
        assert_eq!(text(&[]), "");
        assert_eq!(text(&[7]), "7");
        assert_eq!(text(&[0, 1, 16, 17, 32, 33]), "0-1,16-17,32-33");
        assert_eq!(text(&[3, 0, 2, 1, 5, 131]), "0-3,5,131");
        assert_eq!(text(&[u32::MAX - 1, u32::MAX]), "4294967294-4294967295");
        assert_eq!([sms(&[7].into()), sms(&[7, 8].into())], ["SM 7", "SMs 7-8"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["p0".to_owned(), "8".to_owned()], ["remainder".to_owned(), "124".to_owned()]];
        let text = table([("group", Align::Left), ("SMs", Align::Right)], &rows);
        assert_eq!(text, "group      SMs\np0           8\nremainder  124\n");
        // More than the widths that `format!` can pad to.
        let long = "x".repeat(1 << 16);
        let text = table([("group", Align::Left)], &[[long.clone()]]);
        assert_eq!(text, format!("group\n{long}\n"));
    }
}
