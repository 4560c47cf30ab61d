//! The upper half of the picture: the partitions that may use each SM, and the partitions that used it.

use std::collections::BTreeSet;

use green_ctx::verify::Report;

use super::hatching::{Hatching, VIOLATION};
use super::legend;
use super::usage::{Kind, Usage};
use super::{INK, MARGIN, SOFT, Subject, UNUSED};
use crate::canvas::{Canvas, Colour, Escaped, Number};

/// The width of the map; the legend takes the rest of the page.
pub(super) const MAP_WIDTH: f64 = 544.0;
const CELL_HEIGHT: f64 = 26.0;
const GAP: f64 = 2.0;

/// Draws the map and the legend next to it, and returns the position below them.
pub(super) fn draw(canvas: &mut Canvas, subject: &Subject<'_>, top: f64) -> f64 {
    cells(canvas, subject, top).max(legend::draw(canvas, subject, top))
}

/// The appearance of a cell.
struct Look {
    class: &'static str,
    fill: String,
    edge: &'static str,
    ink: &'static str,
    /// True if the SM's number needs a white plate to be readable on hatching.
    is_hatched: bool,
}

impl Look {
    fn of(usage: &Usage, hatching: &Hatching) -> Look {
        let plain =
            |class, fill: String, ink| Look { class, fill, edge: "", ink, is_hatched: false };
        match usage.kind() {
            Kind::Floor(owner) => {
                let colour = Colour::of(owner);
                plain("floor", colour.to_string(), colour.ink())
            }
            Kind::Unused => plain("unused", UNUSED.to_owned(), SOFT),
            Kind::Missed(owner) => {
                let fill = Colour::of(owner).tint().to_string();
                Look { edge: MISSED_EDGE, ..plain("missed", fill, INK) }
            }
            Kind::Pool(user) => {
                Look { is_hatched: true, ..plain("pool", Hatching::pool(user), INK) }
            }
            Kind::Shared => {
                Look { is_hatched: true, ..plain("shared", hatching.shared(&usage.users), INK) }
            }
            Kind::Violated => Look {
                edge: VIOLATION_EDGE,
                is_hatched: true,
                ..plain("violation", VIOLATION.to_owned(), INK)
            },
        }
    }
}

fn cells(canvas: &mut Canvas, subject: &Subject<'_>, top: f64) -> f64 {
    let Subject { report, usages, hatching } = subject;
    // The SM ids of a Hopper GPU run across its GPCs in rows of 16, so a unit of eight SMs appears as four pairs below
    // each other.
    let columns = if usages.len() <= 160 { 16 } else { 24 };
    let pitch = MAP_WIDTH / columns as f64;
    let size = if columns == 16 { 9.5 } else { 8.0 };
    canvas.group(format_args!(r#"class="sm-map" font-size="{size}" text-anchor="middle""#));
    for (index, (sm, usage)) in usages.iter().enumerate() {
        let x = MARGIN + (index % columns) as f64 * pitch;
        let y = top + (index / columns) as f64 * (CELL_HEIGHT + GAP);
        let Look { class, fill, edge, ink, is_hatched } = Look::of(usage, hatching);
        let middle = x + (pitch - GAP) / 2.0;
        let plate = if is_hatched { plate(middle, y, *sm, size) } else { String::new() };
        canvas.put(format_args!(
            r#"<g class="sm {class}"><title>SM {sm}: {tooltip}</title><rect x="{x}" y="{y}" width="{width}" height="{CELL_HEIGHT}" rx="3" fill="{fill}"{edge}/>{plate}<text x="{middle}" y="{base}" fill="{ink}">{sm}</text></g>"#,
            tooltip = Escaped(&tooltip(report, usage)),
            x = Number(x),
            y = Number(y),
            width = Number(pitch - GAP),
            middle = Number(middle),
            base = Number(y + CELL_HEIGHT / 2.0 + 3.5),
        ));
    }
    canvas.close();
    top + usages.len().div_ceil(columns) as f64 * (CELL_HEIGHT + GAP)
}

/// Describes an SM: the owner of its floor, the partitions that may use it, and those that ran on it.
fn tooltip(report: &Report, usage: &Usage) -> String {
    let names = |partitions: &BTreeSet<usize>| {
        let names = partitions.iter().map(|index| report.partitions[*index].name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let Usage { owners, users, ran, trespassers } = usage;
    let who = match (owners.is_empty(), users.len()) {
        (false, _) => format!("floor of {}", names(owners)),
        (true, 0) => "in no partition".to_owned(),
        (true, 1) => format!("only {} may use it, above its floor", names(users)),
        (true, _) => format!("shared by {}", names(users)),
    };
    let ran = match ran.is_empty() {
        true => "nothing ran here".to_owned(),
        false => format!("blocks of {} ran here", names(ran)),
    };
    match trespassers.is_empty() {
        true => format!("{who}; {ran}"),
        false => {
            format!("{who}; {ran}, those of {} in violation of the shares", names(trespassers))
        }
    }
}

pub(super) const VIOLATION_EDGE: &str = r##" stroke="#c00000" stroke-width="1.5""##;
pub(super) const MISSED_EDGE: &str =
    r##" stroke="#c00000" stroke-width="1.5" stroke-dasharray="3 2""##;

/// Returns a white plate behind the number of a cell, as wide as its digits.
fn plate(middle: f64, y: f64, sm: u32, size: f64) -> String {
    let width = size * 0.62 * sm.to_string().len() as f64 + 4.0;
    format!(
        r##"<rect x="{}" y="{}" width="{}" height="12" rx="2" fill="#ffffff"/>"##,
        Number(middle - width / 2.0),
        Number(y + (CELL_HEIGHT - 12.0) / 2.0),
        Number(width),
    )
}
