//! The parts of a chart: axes with round ticks, and text above and below it.

use super::ticks::{decimals, tick_step};
use super::{INK, MARGIN, RED, SOFT, WIDTH, page};
use crate::canvas::{Canvas, Number, shortened};

/// The number of characters per line that fit across the page.
pub(super) const LINE: usize = 124;
const LINE_HEIGHT: f64 = 18.0;
pub(super) const LEFT: f64 = MARGIN + 56.0;
pub(super) const RIGHT: f64 = WIDTH - MARGIN - 6.0;

/// The range of values of an axis.
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Axis {
    /// Returns a range with some room around the values.
    pub(super) fn around(values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = values
            .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        if !low.is_finite() {
            return Axis { low: 0.0, high: 100.0 };
        }
        let room = (0.06 * (high - low)).max(0.02 * high).max(1e-3);
        Axis { low: (low - room).max(0.0), high: high + room }
    }

    /// Returns the position of a value along the axis, from 0 to 1.
    fn along(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Returns round values within the range, and their labels.
    fn ticks(&self) -> Vec<(f64, String)> {
        let step = tick_step(self.high - self.low, 8.0);
        let first = (self.low / step - 1e-9).ceil();
        let values = (0..16).map(|tick| (first + f64::from(tick)) * step);
        let inside = values.take_while(|value| *value <= self.high);
        inside.map(|value| (value, format!("{value:.*}", decimals(step)))).collect()
    }
}

/// The axes of a chart, and the chart's position on the page.
pub(super) struct Axes {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) captions: [String; 2],
    /// A value of each axis that is marked with a red line.
    pub(super) bound: [Option<f64>; 2],
    pub(super) top: f64,
    pub(super) height: f64,
}

impl Axes {
    /// Returns the position of a point on the page.
    pub(super) fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let right = LEFT + self.x.along(x) * (RIGHT - LEFT);
        (right, self.top + self.height * (1.0 - self.y.along(y)))
    }

    /// Draws the background, both axes, and the bound if it is in range.
    pub(super) fn draw(&self, canvas: &mut Canvas) {
        let (top, bottom) = (self.top, self.top + self.height);
        let (width, middle) = (Number(RIGHT - LEFT), Number(top + self.height / 2.0));
        canvas.put(format_args!(
            r##"<rect x="{}" y="{}" width="{width}" height="{}" fill="#f7f7f7"/>"##,
            Number(LEFT),
            Number(top),
            self.height,
        ));
        let (grid, red) = (r##"stroke="#dddddd""##, &format!(r#"stroke="{RED}""#));
        let small = |anchor| format!(r#"font-size="10.5" text-anchor="{anchor}" fill="{SOFT}""#);
        for (value, text) in self.x.ticks() {
            let (x, _) = self.at((value, 0.0));
            line(canvas, "axis", (x, top), (x, bottom + 4.0), grid);
            canvas.text(x, bottom + 16.0, &small("middle"), &text);
        }
        for (value, text) in self.y.ticks() {
            let (_, y) = self.at((0.0, value));
            line(canvas, "axis", (LEFT - 4.0, y), (RIGHT, y), grid);
            canvas.text(LEFT - 8.0, y + 3.7, &small("end"), &text);
        }
        let caption = format!(r#"font-size="11.5" text-anchor="middle" fill="{INK}""#);
        canvas.text((LEFT + RIGHT) / 2.0, bottom + 34.0, &caption, &self.captions[0]);
        let x = Number(LEFT - 42.0);
        let turned = format!(r#"{caption} transform="rotate(-90 {x} {middle})""#);
        canvas.text(LEFT - 42.0, top + self.height / 2.0, &turned, &self.captions[1]);
        let [x, y] = self.bound;
        if let Some(x) = x.filter(|x| (self.x.low..self.x.high).contains(x)) {
            let (x, _) = self.at((x, 0.0));
            line(canvas, "bound", (x, top), (x, bottom), red);
        }
        if let Some(y) = y.filter(|y| (self.y.low..self.y.high).contains(y)) {
            let (_, y) = self.at((0.0, y));
            line(canvas, "bound", (LEFT, y), (RIGHT, y), red);
        }
    }
}

/// Draws a line between two positions on the page.
pub(super) fn line(
    canvas: &mut Canvas,
    class: &str,
    from: (f64, f64),
    to: (f64, f64),
    style: &str,
) {
    let [x, y, to_x, to_y] = [from.0, from.1, to.0, to.1].map(Number);
    canvas.put(format_args!(r#"<path class="{class}" d="M{x} {y}L{to_x} {to_y}" {style}/>"#));
}

/// Draws a sentence as the verdict, and returns the position below it.
pub(super) fn sentence(canvas: &mut Canvas, colour: &str, text: &str) -> f64 {
    let lines = wrapped(text, LINE, 4);
    let first = lines.first().map_or("", String::as_str);
    let (head, rest) = match first.find(": ").or(first.find("; ")) {
        Some(end) if end < 30 => first.split_at(end + 1),
        _ => ("", first),
    };
    page::verdict(canvas, colour, head, rest.trim_start());
    let (x, mut y) = page::VERDICT;
    for line in lines.iter().skip(1) {
        y += LINE_HEIGHT;
        canvas.text(x, y, &format!(r#"font-size="13" fill="{INK}""#), line);
    }
    y
}

/// Writes lines of text below a chart, and returns the position below them.
pub(super) fn notes(canvas: &mut Canvas, lines: &[String], top: f64) -> f64 {
    let mut y = top;
    let soft = format!(r#"font-size="12" fill="{SOFT}""#);
    for text in lines.iter().flat_map(|line| wrapped(line, LINE + 8, 2)) {
        canvas.text(MARGIN, y, &soft, &text);
        y += LINE_HEIGHT;
    }
    y - LINE_HEIGHT + 4.0
}

/// Wraps text to `width` characters per line and at most `most` lines. If the text does not fit, the last line ends
/// in an ellipsis.
fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let fits = |line: &String| line.chars().count() + 1 + word.chars().count() <= width;
        let is_last = lines.len() >= most;
        match lines.last_mut() {
            Some(line) if is_last || fits(line) => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| shortened(line, width)).collect()
}
