//! One panel: a row for each sample, on a logarithmic axis.

use green_ctx_report::canvas::{Canvas, Colour, Number, shortened};

use super::{INK, MARGIN, SOFT, WIDTH};
use crate::report::Sample;

/// The ends of the axis; the names stand to its left.
const LEFT: f64 = MARGIN + 236.0;
const RIGHT: f64 = WIDTH - MARGIN - 252.0;
/// The positions of the median and p99 columns, and the right edge of the notes.
const MEDIANS: f64 = RIGHT + 14.0;
const P99S: f64 = RIGHT + 74.0;
const NOTES: f64 = WIDTH - MARGIN;
const ROW: f64 = 22.0;

/// The row of one sample.
pub(super) struct Row<'a> {
    pub(super) sample: &'a Sample,
    /// The index of the colour in the palette.
    pub(super) colour: usize,
    /// The text to the right of the numbers.
    pub(super) note: Option<String>,
}

/// An axis in decades of nanoseconds.
struct Axis {
    first: i32,
    last: i32,
}

impl Axis {
    /// Returns the decades that hold all values.
    fn of(rows: &[Row<'_>]) -> Axis {
        let values = rows.iter().flat_map(|row| [row.sample.min, row.sample.max]);
        let logs = values.filter(|value| *value > 0.0).map(f64::log10);
        let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| {
            (low.min(log), high.max(log))
        });
        if low > high {
            return Axis { first: 0, last: 1 };
        }
        // The casts are exact: the numbers are small and rounded.
        let (first, last) = (low.floor() as i32, high.ceil() as i32);
        Axis { first, last: last.max(first + 1) }
    }

    /// Returns the position of a value. Zero, which has no logarithm, is at the left end.
    fn x(&self, value: f64) -> f64 {
        let log = value.max(f64::MIN_POSITIVE).log10();
        let share = (log - f64::from(self.first)) / f64::from(self.last - self.first);
        LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }
}

/// Draws a panel, and returns its lower edge.
pub(super) fn draw(canvas: &mut Canvas, top: f64, title: &str, rows: &[Row<'_>]) -> f64 {
    let heading = format!(r#"font-size="13" font-weight="bold" fill="{INK}""#);
    canvas.text(MARGIN, top, &heading, title);
    let axis = Axis::of(rows);
    let (top, bottom) = (top + 14.0, top + 14.0 + rows.len() as f64 * ROW);
    canvas.group(format_args!(r#"class="panel""#));
    grid(canvas, &axis, top, bottom);
    for (index, row) in rows.iter().enumerate() {
        self::row(canvas, &axis, top + (index as f64 + 0.5) * ROW, row);
    }
    canvas.close();
    bottom + 16.0
}

/// Draws a line and a label for each decade.
fn grid(canvas: &mut Canvas, axis: &Axis, top: f64, bottom: f64) {
    let attributes = format!(r#"font-size="11" text-anchor="middle" fill="{SOFT}""#);
    for decade in axis.first..=axis.last {
        let value = 10f64.powi(decade);
        let x = axis.x(value);
        let (at, top, end) = (Number(x), Number(top), Number(bottom));
        canvas.put(format_args!(
            r##"<line x1="{at}" y1="{top}" x2="{at}" y2="{end}" stroke="#d5d5d5" stroke-width="1"/>"##
        ));
        canvas.text(x, bottom + 14.0, &attributes, &round(value));
    }
}

/// Formats a power of ten nanoseconds.
fn round(value: f64) -> String {
    let (value, unit) = match value {
        value if value < 1e3 => (value, "ns"),
        value if value < 1e6 => (value / 1e3, "µs"),
        value if value < 1e9 => (value / 1e6, "ms"),
        value => (value / 1e9, "s"),
    };
    format!("{} {unit}", Number(value))
}

fn row(canvas: &mut Canvas, axis: &Axis, y: f64, row: &Row<'_>) {
    let Row { sample, colour, note } = row;
    let colour = Colour::of(*colour);
    let name = format!(r#"font-size="12" text-anchor="end" fill="{INK}""#);
    canvas.text(LEFT - 12.0, y + 4.0, &name, &shortened(&sample.name, 42));

    let [min, p50, p99, max] = [sample.min, sample.p50, sample.p99, sample.max].map(|v| axis.x(v));
    let middle = Number(y);
    canvas.put(format_args!(
        r#"<line class="range" x1="{}" y1="{middle}" x2="{}" y2="{middle}" stroke="{colour}" stroke-width="1.5"/>"#,
        Number(min),
        Number(max),
    ));
    canvas.put(format_args!(
        r#"<rect class="bar" x="{}" y="{}" width="{}" height="9" rx="2" fill="{colour}" fill-opacity="0.55"/>"#,
        Number(p50),
        Number(y - 4.5),
        Number(p99 - p50),
    ));
    canvas.put(format_args!(
        r#"<circle class="median" cx="{}" cy="{middle}" r="4.5" fill="{colour}"/>"#,
        Number(p50),
    ));

    let [p50, p99] = [sample.p50, sample.p99].map(|value| sample.unit.show(value).to_string());
    let numbers = format!(r#"font-size="11" fill="{INK}""#);
    canvas.text(MEDIANS, y + 4.0, &numbers, &p50);
    canvas.text(P99S, y + 4.0, &numbers, &format!("p99 {p99}"));
    if let Some(note) = note {
        let soft = format!(r#"font-size="11" text-anchor="end" fill="{SOFT}""#);
        canvas.text(NOTES, y + 4.0, &soft, note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::sample;
    use crate::report::Unit;

    #[test]
    fn an_axis_holds_all_values() {
        let samples =
            [vec![12.0, 80.0], vec![3000.0]].map(|values| sample("", Unit::Nanoseconds, values));
        let rows: Vec<Row<'_>> =
            samples.iter().map(|sample| Row { sample, colour: 0, note: None }).collect();
        let axis = Axis::of(&rows);
        assert_eq!((axis.first, axis.last), (1, 4));
        assert_eq!((axis.x(10.0), axis.x(10_000.0)), (LEFT, RIGHT));
        assert!((axis.x(1000.0) - axis.x(100.0) - (RIGHT - LEFT) / 3.0).abs() < 1e-9);
    }

    #[test]
    fn zero_and_nothing_have_an_axis_too() {
        let sample = sample("", Unit::Nanoseconds, vec![0.0]);
        let axis = Axis::of(&[Row { sample: &sample, colour: 0, note: None }]);
        assert_eq!(axis.x(0.0), LEFT);
        assert_eq!(Axis::of(&[]).last, 1);
    }
}
