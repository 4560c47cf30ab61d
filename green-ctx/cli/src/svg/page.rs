//! What every picture has: a white ground, a title, and a verdict with a dot of its colour.

use super::canvas::{Canvas, Escaped, Number};
use super::{INK, MARGIN, WIDTH};

/// The attributes of a panel's heading.
pub(super) fn heading() -> String {
    format!(r#"font-size="13" font-weight="bold" fill="{INK}""#)
}

/// The whole picture: what was drawn down to `bottom`, on a white ground.
pub(super) fn page(title: &str, definitions: &str, bottom: f64, body: Canvas) -> String {
    let mut page = Canvas::default();
    let (width, height, title) = (Number(WIDTH), Number((bottom + 16.0).ceil()), Escaped(title));
    page.put(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="'Helvetica Neue', Arial, sans-serif" role="img">"#
    ));
    page.put(format_args!("<title>{title}</title>"));
    page.put(format_args!("<defs>{definitions}</defs>"));
    page.put(format_args!(r##"<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>"##));
    let mut picture = page.into_string();
    picture.push_str(&body.into_string());
    picture.push_str("</svg>\n");
    picture
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
