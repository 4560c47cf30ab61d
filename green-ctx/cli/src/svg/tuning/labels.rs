//! Labels of points, placed where they cover little else.

use super::super::INK;
use super::super::canvas::{Canvas, Escaped, Number};
use super::axis::Area;

/// What is in a chart already, and where labels may be.
pub(super) struct Labels {
    within: Area,
    taken: Vec<Area>,
    /// The labels so far.
    written: Vec<Area>,
}

const SIZE: f64 = 11.5;
const HEIGHT: f64 = 16.0;
/// The width of a character, as a part of its height. A little more than most fonts need.
const ASPECT: f64 = 0.58;
/// From this distance a line leads from the point to its label.
const NEAR: f64 = 20.0;

impl Labels {
    pub(super) fn new(within: Area) -> Labels {
        Labels { within, taken: Vec::new(), written: Vec::new() }
    }

    /// Keeps labels off an area.
    pub(super) fn avoid(&mut self, area: Area) {
        self.taken.push(area);
    }

    /// Writes a label near a point.
    pub(super) fn write(
        &mut self,
        canvas: &mut Canvas,
        point: (f64, f64),
        class: &str,
        text: &str,
    ) {
        let width = text.chars().count() as f64 * SIZE * ASPECT + 8.0;
        let mut best: Option<(f64, f64, Area)> = None;
        for distance in [13.0, 24.0, 38.0, 54.0, 72.0, 92.0, 116.0] {
            for area in around(point, distance, width) {
                let area = moved_into(area, self.within);
                let covered: f64 = self.taken.iter().map(|other| overlap(area, *other)).sum();
                // A line that crosses another label is worse than any distance.
                let crossed = self.written.iter().filter(|label| crosses(point, area, **label));
                let cost = covered + 2.0 * distance + 500.0 * crossed.count() as f64;
                if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                    best = Some((cost, distance, area));
                }
            }
        }
        let Some((_, distance, area)) = best else { return };
        if distance > NEAR {
            let (x, y) = nearest(point, area);
            canvas.put(format_args!(
                r#"<path d="M{} {}L{} {}" stroke="{INK}" stroke-width="0.8"/>"#,
                Number(point.0),
                Number(point.1),
                Number(x),
                Number(y),
            ));
        }
        canvas.put(format_args!(
            r##"<rect x="{}" y="{}" width="{}" height="{HEIGHT}" rx="3" fill="#ffffff" fill-opacity="0.88"/>"##,
            Number(area.left),
            Number(area.top),
            Number(area.right - area.left),
        ));
        canvas.put(format_args!(
            r#"<text class="label {class}" x="{}" y="{}" font-size="{SIZE}" text-anchor="middle" fill="{INK}"{}>{}</text>"#,
            Number((area.left + area.right) / 2.0),
            Number(area.top + 11.8),
            if class == "chosen" { r#" font-weight="bold""# } else { "" },
            Escaped(text),
        ));
        self.taken.push(area);
        self.written.push(area);
    }
}

/// Where the line from a point to a label ends.
fn nearest(point: (f64, f64), label: Area) -> (f64, f64) {
    (point.0.clamp(label.left, label.right), point.1.clamp(label.top, label.bottom))
}

/// Whether the line from a point to its label crosses another label.
fn crosses(point: (f64, f64), label: Area, other: Area) -> bool {
    let end = nearest(point, label);
    (0..=10).map(|tenths| f64::from(tenths) / 10.0).any(|along| {
        let x = point.0 + along * (end.0 - point.0);
        let y = point.1 + along * (end.1 - point.1);
        x > other.left && x < other.right && y > other.top && y < other.bottom
    })
}

/// The areas at a distance to all sides of a point, those beside it first.
fn around((x, y): (f64, f64), distance: f64, width: f64) -> [Area; 8] {
    let area = |left: f64, middle: f64| Area {
        left,
        top: middle - HEIGHT / 2.0,
        right: left + width,
        bottom: middle + HEIGHT / 2.0,
    };
    let (right, left, centre) = (x + distance, x - distance - width, x - width / 2.0);
    let (above, below) = (y - distance - 6.0, y + distance + 6.0);
    [
        area(right, y),
        area(left, y),
        area(centre, above),
        area(centre, below),
        area(right, above),
        area(left, above),
        area(right, below),
        area(left, below),
    ]
}

fn moved_into(area: Area, within: Area) -> Area {
    let right = (within.right - area.right).min(0.0) + (within.left - area.left).max(0.0);
    let down = (within.bottom - area.bottom).min(0.0) + (within.top - area.top).max(0.0);
    Area {
        left: area.left + right,
        top: area.top + down,
        right: area.right + right,
        bottom: area.bottom + down,
    }
}

fn overlap(first: Area, second: Area) -> f64 {
    let width = first.right.min(second.right) - first.left.max(second.left);
    let height = first.bottom.min(second.bottom) - first.top.max(second.top);
    width.max(0.0) * height.max(0.0)
}
