//! The parts of every picture: a white background, a title, and a verdict with a coloured dot.

use super::{INK, MARGIN, WIDTH};
use crate::canvas::{Canvas, Escaped};

/// Returns the attributes of a panel's heading.
pub(super) fn heading() -> String {
    format!(r#"font-size="13" font-weight="bold" fill="{INK}""#)
}

/// Returns the complete picture: everything drawn down to `bottom`, on a white background.
pub(super) fn page(title: &str, definitions: &str, bottom: f64, body: Canvas) -> String {
    body.into_page((WIDTH, bottom + 16.0), title, definitions)
}

/// Draws the title with font size `size`.
pub(super) fn title(canvas: &mut Canvas, size: f64, text: &str) {
    let bold = format!(r#"font-size="{size}" font-weight="bold" fill="{INK}""#);
    canvas.text(MARGIN, 44.0, &bold, text);
}

/// The position of the verdict's text: the left edge and the first baseline.
pub(super) const VERDICT: (f64, f64) = (MARGIN + 17.0, 90.0);

/// Draws the verdict: a dot, the first words in bold, and the rest of the line.
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
