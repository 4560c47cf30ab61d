//! The legend next to the map.

use std::collections::BTreeSet;

use green_ctx::verify::{PartitionReport, Report};

use super::hatching::{Hatching, VIOLATION};
use super::map::{MAP_WIDTH, MISSED_EDGE, VIOLATION_EDGE};
use super::usage::{Kind, Usage};
use super::{INK, MARGIN, RED, SOFT, Subject, UNUSED, WIDTH};
use crate::canvas::{Canvas, Colour, Number, shortened};

const LEFT: f64 = MARGIN + MAP_WIDTH + 28.0;
const RIGHT: f64 = WIDTH - MARGIN;
/// The maximum number of partitions for which the legend has one line per partition.
const ROOMY: usize = 10;
/// The maximum number of sets that the legend lists separately. Each set consists of partitions
/// that share SMs.
const MOST_SETS: usize = 6;
const PITCH: f64 = 21.0;

/// Draws the partitions and the meaning of the cells, and returns the position below them.
pub(super) fn draw(canvas: &mut Canvas, subject: &Subject<'_>, top: f64) -> f64 {
    let report = subject.report;
    let end = if report.partitions.len() <= ROOMY {
        roomy(canvas, report, top)
    } else {
        dense(canvas, report, top)
    };
    key(canvas, subject, end)
}

/// Draws one line per partition, under headings.
fn roomy(canvas: &mut Canvas, report: &Report, top: f64) -> f64 {
    let columns = [RIGHT - 162.0, RIGHT - 118.0, RIGHT - 62.0, RIGHT];
    canvas.group(format_args!(r#"class="legend" font-size="12" fill="{INK}""#));
    canvas.group(format_args!(r#"fill="{SOFT}" font-size="11""#));
    canvas.text(LEFT, top + 9.0, "", "partition");
    for (x, heading) in columns.into_iter().zip(["share", "floor", "ceiling", "observed"]) {
        canvas.text(x, top + 9.0, r#"text-anchor="end""#, heading);
    }
    canvas.close();
    let mut y = top + 18.0;
    for (index, partition) in report.partitions.iter().enumerate() {
        swatch(canvas, y, &Colour::of(index).to_string(), "");
        canvas.text(LEFT + 21.0, y + 11.5, "", &shortened(&partition.name, 14));
        let cells = [
            share(partition),
            partition.floor.to_string(),
            partition.sm_count.to_string(),
            partition.observed_sms().len().to_string(),
        ];
        for (column, (x, cell)) in columns.into_iter().zip(cells).enumerate() {
            let is_wrong = column == 3 && !report.kept(index);
            let attributes = if is_wrong {
                r##"text-anchor="end" fill="#c00000" font-weight="bold""##
            } else {
                r#"text-anchor="end""#
            };
            canvas.text(x, y + 11.5, attributes, &cell);
        }
        y += PITCH;
    }
    canvas.close();
    y
}

/// Draws several narrow columns, for many partitions.
fn dense(canvas: &mut Canvas, report: &Report, top: f64) -> f64 {
    const PITCH: f64 = 13.5;
    let partitions = &report.partitions;
    let is_exclusive = partitions.iter().all(|partition| partition.floor == partition.sm_count);
    let (columns, heading) = match is_exclusive {
        true => (3, "partition: share → given, observed"),
        false => (2, "partition: share → floor to ceiling, observed"),
    };
    let rows = partitions.len().div_ceil(columns);
    let width = (RIGHT - LEFT) / columns as f64;
    canvas.group(format_args!(r#"class="legend" font-size="9.5" fill="{INK}""#));
    canvas.text(LEFT, top + 9.0, &format!(r#"font-size="11" fill="{SOFT}""#), heading);
    let first = top + 18.0;
    for (index, partition) in partitions.iter().enumerate() {
        let x = LEFT + (index / rows) as f64 * width;
        let y = first + (index % rows) as f64 * PITCH;
        square(canvas, (x, y), 10.0, &Colour::of(index).to_string(), "");
        let PartitionReport { name, floor, sm_count, .. } = partition;
        let given = match is_exclusive {
            true => sm_count.to_string(),
            false => format!("{floor} to {sm_count}"),
        };
        let (name, observed) = (shortened(name, 6), partition.observed_sms().len());
        let line = format!("{name}: {} → {given}, {observed}", share(partition));
        let attributes =
            if report.kept(index) { "" } else { r##"fill="#c00000" font-weight="bold""## };
        canvas.text(x + 14.0, y + 8.5, attributes, &line);
    }
    let mut end = first + rows as f64 * PITCH;
    if partitions.len() > Colour::COUNT {
        let note = format!("colours repeat after {} partitions", Colour::COUNT);
        canvas.text(LEFT, end + 11.0, &format!(r#"fill="{SOFT}""#), &note);
        end += 16.0;
    }
    canvas.close();
    end
}

/// Draws the meaning of the cells. If every cell is a floor on which its partition ran, nothing is
/// drawn.
fn key(canvas: &mut Canvas, subject: &Subject<'_>, top: f64) -> f64 {
    let Subject { report, usages, hatching } = subject;
    let kinds: Vec<Kind> = usages.values().map(Usage::kind).collect();
    let count = |wanted: fn(&Kind) -> bool| kinds.iter().filter(|kind| wanted(kind)).count();
    let missed = count(|kind| matches!(kind, Kind::Missed(_)));
    let violated = count(|kind| *kind == Kind::Violated);
    let unused = count(|kind| *kind == Kind::Unused);
    let floor = kinds.iter().find_map(|kind| match kind {
        Kind::Floor(owner) => Some(*owner),
        _ => None,
    });

    let mut y = top + 8.0;
    canvas.group(format_args!(r#"class="legend key" font-size="12" fill="{INK}""#));
    let mut line = |fill: &str, edge: &str, attributes: &str, text: &str| {
        swatch(canvas, y, fill, edge);
        canvas.text(LEFT + 21.0, y + 11.5, attributes, &shortened(text, 50));
        y += PITCH;
    };
    if kinds.iter().all(|kind| matches!(kind, Kind::Floor(_))) {
        canvas.close();
        return top;
    }
    if let Some(owner) = floor {
        let text = "solid: a floor, for one partition only";
        line(&Colour::of(owner).to_string(), "", "", text);
    }
    match hatching.sets() {
        [] => {}
        sets if sets.len() <= MOST_SETS => {
            for (users, count) in sets {
                let text = format!("shared by {}: {}", names(report, users), sms(*count));
                line(&hatching.shared(users), "", "", &text);
            }
        }
        sets @ [(users, _), ..] => {
            let count = sets.iter().map(|(_, count)| count).sum();
            let text = format!("shared by the partitions of its colours: {}", sms(count));
            line(&hatching.shared(users), "", "", &text);
        }
    }
    let mut pools = hatching.pools().iter();
    match (pools.next(), hatching.pools().len()) {
        (None, _) => {}
        (Some((user, count)), 1) => {
            let name = names(report, &[*user].into());
            let text = format!("for {name} only, above its floor: {}", sms(*count));
            line(&Hatching::pool(*user), "", "", &text);
        }
        (Some((user, _)), _) => {
            let count = hatching.pools().values().sum();
            let text = format!("for one partition only, above its floor: {}", sms(count));
            line(&Hatching::pool(*user), "", "", &text);
        }
    }
    let alarm = format!(r#"fill="{RED}" font-weight="bold""#);
    if violated > 0 {
        let text = format!("used in violation of the shares: {}", sms(violated));
        line(VIOLATION, VIOLATION_EDGE, &alarm, &text);
    }
    if missed > 0 {
        let text = format!("floor not used by its partition: {}", sms(missed));
        line("#ffffff", MISSED_EDGE, &alarm, &text);
    }
    if unused > 0 {
        line(UNUSED, "", "", &format!("in no partition: {}", sms(unused)));
    }
    canvas.close();
    y
}

/// Formats partition names: `decode and prefill`, `p0, p1 and p2`, or `20 partitions`.
fn names(report: &Report, partitions: &BTreeSet<usize>) -> String {
    let names: Vec<String> =
        partitions.iter().map(|index| shortened(&report.partitions[*index].name, 12)).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] if names.len() <= 3 => format!("{} and {last}", first.join(", ")),
        _ => format!("{} partitions", names.len()),
    }
}

fn sms(count: usize) -> String {
    format!("{count} {}", if count == 1 { "SM" } else { "SMs" })
}

fn swatch(canvas: &mut Canvas, y: f64, fill: &str, edge: &str) {
    square(canvas, (LEFT, y), 14.0, fill, edge);
}

fn square(canvas: &mut Canvas, (x, y): (f64, f64), size: f64, fill: &str, edge: &str) {
    canvas.put(format_args!(
        r#"<rect x="{}" y="{}" width="{size}" height="{size}" rx="2.5" fill="{fill}"{edge}/>"#,
        Number(x),
        Number(y)
    ));
}

fn share(partition: &PartitionReport) -> String {
    partition.share.map_or_else(|| "none".to_owned(), |share| share.to_string())
}
