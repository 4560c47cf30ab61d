//! What every picture has: a white ground, a title, and a verdict with a dot of its colour.

use super::{INK, MARGIN, WIDTH};
use crate::canvas::{Canvas, Escaped};

/// The attributes of a panel's heading.
pub(super) fn heading() -> String {
    format!(r#"font-size="13" font-weight="bold" fill="{INK}""#)
}

/// The whole picture: what was drawn down to `bottom`, on a white ground.
pub(super) fn page(title: &str, definitions: &str, bottom: f64, body: Canvas) -> String {
    body.into_page((WIDTH, bottom + 16.0), title, definitions)
}

/// Writes the title, in smaller letters where `size` says so.
pub(super) fn title(canvas: &mut Canvas, size: f64, text: &str) {
    let bold = format!(r#"font-size="{size}" font-weight="bold" fill="{INK}""#);
    canvas.text(MARGIN, 44.0, &bold, text);
}

/// Where the verdict's text begins, and the baseline of its first line.
pub(super) const VERDICT: (f64, f64) = (MARGIN + 17.0, 90.0);

/// Writes the verdict: a dot, its first words in bold, and the rest of the line.
pub(super) fn verdict(canvas: &mut Canvas, colour: &str, first: &str, rest: &str) {
    let (x, y) = VERDICT;
    canvas.put(format_args!(
        r#"<circle cx="{}" cy="{}" r="5" fill="{colour}"/>"#,
        MARGIN + 5.0,
        y - 4.5
    ));
    canvas.put(format_args!(
        r#"<text x="{x}" y="{y}" font-size="13" fill="{INK}"><tspan class="verdict" font-weight="bold" fill="{colour}">{}</tspan> {}</text>"#,
        Escaped(first),
        Escaped(rest),
    ));
}
