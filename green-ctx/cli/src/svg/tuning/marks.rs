//! Marks of the kinds of arms, and what they mean.

use std::collections::BTreeSet;

use green_ctx::tune::ArmKind;

use super::super::canvas::{Canvas, Colour, Number};
use super::super::{GREEN, INK, SOFT};
use super::axis::Area;

/// What there is to explain.
pub(super) struct Key {
    pub(super) kinds: BTreeSet<ArmKind>,
    /// Whether some arms have the median in place of the 99th percentile.
    pub(super) has_medians: bool,
    /// Whether some arms do not meet the goal's bound.
    pub(super) has_misses: bool,
}

impl Key {
    /// Writes what the marks mean, under the chart.
    pub(super) fn draw(&self, canvas: &mut Canvas, area: Area) {
        let mut x = area.left;
        let mut y = area.bottom + 54.0;
        canvas.group(format_args!(r#"class="legend" font-size="11.5" fill="{INK}""#));
        let mut entry = |kind, is_median, misses, text: &str| {
            let width = 24.0 + 6.3 * text.chars().count() as f64;
            if x + width > area.right {
                (x, y) = (area.left, y + 18.0);
            }
            let paint = paint(kind, is_median, misses);
            let shape = shape(kind, (x + 6.0, y - 4.0));
            canvas.put(format_args!(r#"<path d="{shape}" {paint}/>"#));
            canvas.text(x + 16.0, y, "", text);
            x += width;
        };
        for kind in self.kinds.iter().rev() {
            entry(*kind, false, false, name(*kind));
        }
        if self.has_medians {
            entry(ArmKind::Partition, true, false, "hollow: p50, too few iterations for p99");
        }
        if self.has_misses {
            entry(ArmKind::Partition, false, true, "pale: does not meet the bound");
        }
        canvas.close();
    }
}

/// How a kind's mark is filled and outlined.
pub(super) fn paint(kind: ArmKind, is_median: bool, misses: bool) -> String {
    let colour = colour(kind);
    let fill = if is_median { "#ffffff" } else { &colour };
    let pale = if misses { r#" opacity="0.4""# } else { "" };
    format!(r#"fill="{fill}" stroke="{colour}" stroke-width="1.4"{pale}"#)
}

/// The outline of a kind's mark.
pub(super) fn shape(kind: ArmKind, (x, y): (f64, f64)) -> String {
    let corners = |corners: &[(f64, f64)]| {
        let corners: Vec<String> = corners
            .iter()
            .map(|(right, down)| format!("{} {}", Number(x + right), Number(y + down)))
            .collect();
        format!("M{}Z", corners.join("L"))
    };
    match kind {
        ArmKind::Sequential => corners(&[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)]),
        ArmKind::Streams => corners(&[(0.0, -5.0), (5.0, 4.0), (-5.0, 4.0)]),
        ArmKind::Priority => corners(&[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)]),
        _ => {
            format!("M{} {}a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0 -8.4 0Z", Number(x - 4.2), Number(y))
        }
    }
}

/// The colour of a kind of arm. None is one of the first jobs'.
fn colour(kind: ArmKind) -> String {
    match kind {
        ArmKind::Sequential => SOFT.to_owned(),
        ArmKind::Streams => Colour::of(4).to_string(),
        ArmKind::Priority => Colour::of(5).to_string(),
        _ => GREEN.to_owned(),
    }
}

/// What a kind of arm is called beside its mark.
fn name(kind: ArmKind) -> &'static str {
    match kind {
        ArmKind::Sequential => "one after the other",
        ArmKind::Streams => "plain streams",
        ArmKind::Priority => "priorities",
        _ => "partitions",
    }
}
