//! The upper half of the picture: which partition ran on which SM, and the legend.

use std::collections::{BTreeMap, BTreeSet};

use green_ctx::verify::{PartitionReport, Report};

use super::canvas::{Canvas, Colour, Escaped, Number, shortened};
use super::{INK, MARGIN, RED, SOFT, UNUSED, WIDTH};

/// The part of the width that the cells take.
const MAP_WIDTH: f64 = 544.0;
const CELL_HEIGHT: f64 = 26.0;
const GAP: f64 = 2.0;
const LEGEND_LEFT: f64 = MARGIN + MAP_WIDTH + 28.0;
/// With more partitions the legend has several columns.
const ROOMY: usize = 10;

/// Who ran on each SM: the partitions' indices. SMs of the device where nothing ran are there too.
pub(super) fn owners(report: &Report) -> BTreeMap<u32, BTreeSet<usize>> {
    let mut owners: BTreeMap<u32, BTreeSet<usize>> =
        (0..report.sm_count).map(|sm| (sm, BTreeSet::new())).collect();
    for (index, partition) in report.partitions.iter().enumerate() {
        for block in &partition.blocks {
            owners.entry(block.sm).or_default().insert(index);
        }
    }
    owners
}

/// Draws the map and the legend beside it, and returns where they end.
pub(super) fn draw(
    canvas: &mut Canvas,
    report: &Report,
    owners: &BTreeMap<u32, BTreeSet<usize>>,
    top: f64,
) -> f64 {
    let cells = cells(canvas, report, owners, top);
    let legend = if report.partitions.len() <= ROOMY {
        roomy_legend(canvas, &report.partitions, top)
    } else {
        dense_legend(canvas, &report.partitions, top)
    };
    cells.max(special_cells(canvas, owners, legend))
}

fn cells(
    canvas: &mut Canvas,
    report: &Report,
    owners: &BTreeMap<u32, BTreeSet<usize>>,
    top: f64,
) -> f64 {
    // Sixteen is how the SM ids of a Hopper GPU run across its clusters of processors: a unit of
    // eight shows as four pairs above each other.
    let columns = if owners.len() <= 160 { 16 } else { 24 };
    let pitch = MAP_WIDTH / columns as f64;
    let size = if columns == 16 { 9.5 } else { 8.0 };
    canvas.group(format_args!(r#"class="sm-map" font-size="{size}" text-anchor="middle""#));
    for (index, (sm, partitions)) in owners.iter().enumerate() {
        let x = MARGIN + (index % columns) as f64 * pitch;
        let y = top + (index / columns) as f64 * (CELL_HEIGHT + GAP);
        let partition = |index: &usize| report.partitions[*index].name.as_str();
        let who: Vec<&str> = partitions.iter().map(partition).collect();
        let (class, fill, ink) = match partitions.first() {
            None => ("unused", UNUSED.to_owned(), SOFT),
            Some(_) if partitions.len() > 1 => ("shared", "url(#shared)".to_owned(), INK),
            Some(only) => ("", Colour::of(*only).to_string(), Colour::of(*only).ink()),
        };
        let who = if who.is_empty() { "nothing ran here".to_owned() } else { who.join(", ") };
        canvas.put(format_args!(
            r#"<g class="sm {class}"><title>SM {sm}: {who}</title><rect x="{x}" y="{y}" width="{width}" height="{CELL_HEIGHT}" rx="3" fill="{fill}"{edge}/><text x="{middle}" y="{base}" fill="{ink}"{halo}>{sm}</text></g>"#,
            who = Escaped(&who),
            x = Number(x),
            y = Number(y),
            width = Number(pitch - GAP),
            middle = Number(x + (pitch - GAP) / 2.0),
            base = Number(y + CELL_HEIGHT / 2.0 + 3.5),
            edge = if class == "shared" { SHARED_EDGE } else { "" },
            halo = if class == "shared" { HALO } else { "" },
        ));
    }
    canvas.close();
    top + owners.len().div_ceil(columns) as f64 * (CELL_HEIGHT + GAP)
}

const SHARED_EDGE: &str = r##" stroke="#c00000" stroke-width="1.5""##;
/// Keeps a number readable on hatching.
const HALO: &str =
    r##" font-weight="bold" stroke="#ffffff" stroke-width="3" paint-order="stroke""##;

/// One line a partition, under headings.
fn roomy_legend(canvas: &mut Canvas, partitions: &[PartitionReport], top: f64) -> f64 {
    let right = WIDTH - MARGIN;
    let columns = [right - 132.0, right - 66.0, right];
    canvas.group(format_args!(r#"class="legend" font-size="12" fill="{INK}""#));
    canvas.group(format_args!(r#"fill="{SOFT}" font-size="11""#));
    canvas.text(LEGEND_LEFT, top + 9.0, "", "partition");
    for (x, heading) in columns.into_iter().zip(["requested", "given", "observed"]) {
        canvas.text(x, top + 9.0, r#"text-anchor="end""#, heading);
    }
    canvas.close();
    let mut y = top + 18.0;
    for (index, partition) in partitions.iter().enumerate() {
        swatch(canvas, LEGEND_LEFT, y, 14.0, &Colour::of(index).to_string(), "");
        let name = shortened(&partition.name, 19);
        canvas.text(LEGEND_LEFT + 21.0, y + 11.5, "", &name);
        let counts = [requested(partition), partition.sm_count.to_string(), observed(partition)];
        for (column, (x, count)) in columns.into_iter().zip(counts).enumerate() {
            let short = column == 2 && !partition.complete();
            let attributes = if short {
                r##"text-anchor="end" fill="#c00000" font-weight="bold""##
            } else {
                r#"text-anchor="end""#
            };
            canvas.text(x, y + 11.5, attributes, &count);
        }
        y += 21.0;
    }
    canvas.close();
    y
}

/// Several small columns, for many partitions.
fn dense_legend(canvas: &mut Canvas, partitions: &[PartitionReport], top: f64) -> f64 {
    const COLUMNS: usize = 3;
    const PITCH: f64 = 13.5;
    let rows = partitions.len().div_ceil(COLUMNS);
    let width = (WIDTH - MARGIN - LEGEND_LEFT) / COLUMNS as f64;
    canvas.group(format_args!(r#"class="legend" font-size="9.5" fill="{INK}""#));
    let heading = "partition: requested → given, observed";
    canvas.text(LEGEND_LEFT, top + 9.0, &format!(r#"font-size="11" fill="{SOFT}""#), heading);
    let first = top + 18.0;
    for (index, partition) in partitions.iter().enumerate() {
        let x = LEGEND_LEFT + (index / rows) as f64 * width;
        let y = first + (index % rows) as f64 * PITCH;
        swatch(canvas, x, y, 10.0, &Colour::of(index).to_string(), "");
        let name = shortened(&partition.name, 6);
        let (requested, given) = (requested(partition), partition.sm_count);
        let line = format!("{name}: {requested} → {given}, {}", observed(partition));
        let attributes =
            if partition.complete() { "" } else { r##"fill="#c00000" font-weight="bold""## };
        canvas.text(x + 14.0, y + 8.5, attributes, &line);
    }
    let mut end = first + rows as f64 * PITCH;
    if partitions.len() > Colour::COUNT {
        let note = format!("colours repeat after {} partitions", Colour::COUNT);
        canvas.text(LEGEND_LEFT, end + 11.0, &format!(r#"fill="{SOFT}""#), &note);
        end += 16.0;
    }
    canvas.close();
    end
}

/// What cells mean that have no partition's colour, where there are any.
fn special_cells(canvas: &mut Canvas, owners: &BTreeMap<u32, BTreeSet<usize>>, top: f64) -> f64 {
    let shared = owners.values().filter(|partitions| partitions.len() > 1).count();
    let unused = owners.values().filter(|partitions| partitions.is_empty()).count();
    let mut y = top + 6.0;
    canvas.group(format_args!(r#"class="legend" font-size="12" fill="{INK}""#));
    if shared > 0 {
        swatch(canvas, LEGEND_LEFT, y, 14.0, "url(#shared)", SHARED_EDGE);
        let text = format!("in more than one partition: {shared}");
        let attributes = format!(r#"fill="{RED}" font-weight="bold""#);
        canvas.text(LEGEND_LEFT + 21.0, y + 11.5, &attributes, &text);
        y += 21.0;
    }
    if unused > 0 {
        swatch(canvas, LEGEND_LEFT, y, 14.0, UNUSED, "");
        canvas.text(LEGEND_LEFT + 21.0, y + 11.5, "", &format!("nothing ran there: {unused}"));
        y += 21.0;
    }
    canvas.close();
    if shared + unused > 0 { y } else { top }
}

fn swatch(canvas: &mut Canvas, x: f64, y: f64, size: f64, fill: &str, edge: &str) {
    canvas.put(format_args!(
        r#"<rect x="{}" y="{}" width="{size}" height="{size}" rx="2.5" fill="{fill}"{edge}/>"#,
        Number(x),
        Number(y)
    ));
}

fn requested(partition: &PartitionReport) -> String {
    partition.share.map_or_else(|| "no share".to_owned(), |share| share.to_string())
}

fn observed(partition: &PartitionReport) -> String {
    partition.observed_sms().len().to_string()
}
