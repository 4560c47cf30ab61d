//! The lower half of the picture: the time at which each block ran.

use std::collections::BTreeMap;

use green_ctx::verify::Block;
use green_ctx::verify::Report;

use super::ticks::{decimals, tick_step};
use super::usage::Usage;
use super::{INK, MARGIN, RED, SOFT, WIDTH};
use crate::canvas::{Canvas, Colour, Number, shortened};

/// The left edge of the bars. The partitions' names are to the left of the bars.
const LEFT: f64 = MARGIN + 92.0;
const RIGHT: f64 = WIDTH - MARGIN - 6.0;
/// The preferred total height of all rows. This height applies unless a row would become too tall
/// or too thin.
const HEIGHT: f64 = 460.0;
/// The maximum total height of all rows. If the rows do not fit, they become thinner, down to less
/// than a pixel.
const MOST_HEIGHT: f64 = 1200.0;
/// The maximum height of a row.
const MOST_ROW: f64 = 16.0;
/// The gap between two rows. Row heights are whole pixels, so thin bars look sharp.
const ROW_GAP: f64 = 1.0;
const BAND_GAP: f64 = 4.0;
/// The minimum total height of a partition's rows. Rows of this height leave space for the
/// partition's name.
const LEAST_BAND: f64 = 9.0;

/// The rows of one partition.
struct Band<'a> {
    name: &'a str,
    rows: Vec<Row>,
    top: f64,
    lane_height: f64,
    row_height: f64,
}

/// The blocks of one SM, each with the number of its lane. Blocks that ran at the same time are in
/// different lanes.
struct Row {
    sm: u32,
    blocks: Vec<(usize, Block)>,
}

/// Draws the timeline, and returns the position below it.
pub(super) fn draw(
    canvas: &mut Canvas,
    report: &Report,
    usages: &BTreeMap<u32, Usage>,
    top: f64,
) -> f64 {
    let rows: Vec<Vec<Row>> =
        report.partitions.iter().map(|partition| rows(&partition.blocks)).collect();
    let lanes = rows.iter().flatten().flat_map(|row| &row.blocks).map(|(lane, _)| lane + 1).max();
    let lanes = lanes.unwrap_or(1) as f64;
    let top = top.round();
    let bands = bands(report, rows, lanes, top);
    let bottom = bands.last().map_or(top, |band| band.bottom() + BAND_GAP);

    let blocks = || report.partitions.iter().flat_map(|partition| &partition.blocks);
    let start = blocks().map(|block| block.start_ns).min().unwrap_or(0);
    let end = blocks().map(|block| block.end_ns).max().unwrap_or(0);
    let scale = Scale { start, span: end.saturating_sub(start).max(1) };

    axis(canvas, &scale, top, bottom);
    let trespasses = |index: usize, sm: u32| {
        usages.get(&sm).is_some_and(|usage| usage.trespassers.contains(&index))
    };
    for (index, band) in bands.iter().enumerate() {
        label(canvas, band);
        canvas.group(format_args!(r#"class="blocks" fill="{}""#, Colour::of(index)));
        // Violations are drawn last, so that thin neighbouring rows do not cover them.
        let mut rows: Vec<(usize, &Row)> = band.rows.iter().enumerate().collect();
        rows.sort_by_key(|(_, row)| trespasses(index, row.sm));
        for (number, row) in rows {
            let y = band.top + number as f64 * band.row_height;
            let is_violation = trespasses(index, row.sm);
            if is_violation {
                canvas.group(format_args!(r#"class="violation" fill="{RED}""#));
                canvas.put(format_args!(
                    r#"<rect x="{LEFT}" y="{}" width="{}" height="{}" fill-opacity="0.25"/>"#,
                    Number(y),
                    Number(RIGHT - LEFT),
                    Number(band.row_height),
                ));
            }
            // A bar thinner than a pixel would look paler than the partition's colour.
            let height = band.lane_height.max(1.0);
            for (lane, block) in &row.blocks {
                bar(canvas, &scale, block, y + *lane as f64 * band.lane_height, height);
            }
            if is_violation {
                canvas.close();
            }
        }
        canvas.close();
    }
    let caption = "ms since the first block started";
    let attributes = format!(r#"font-size="11" text-anchor="end" fill="{SOFT}""#);
    canvas.text(RIGHT, bottom + 32.0, &attributes, caption);
    bottom + 36.0
}

impl Band<'_> {
    fn bottom(&self) -> f64 {
        self.top + self.rows.len().max(1) as f64 * self.row_height
    }
}

/// Groups blocks by SM, and assigns a lane to each block.
fn rows(blocks: &[Block]) -> Vec<Row> {
    let mut by_sm: BTreeMap<u32, Vec<Block>> = BTreeMap::new();
    for block in blocks {
        by_sm.entry(block.sm).or_default().push(*block);
    }
    by_sm
        .into_iter()
        .map(|(sm, mut blocks)| {
            blocks.sort_by_key(|block| (block.start_ns, block.end_ns));
            // The time at which each lane becomes free.
            let mut lanes: Vec<u64> = Vec::new();
            let blocks = blocks
                .into_iter()
                .map(|block| {
                    let free = lanes.iter().position(|end| *end <= block.start_ns);
                    let lane = free.unwrap_or(lanes.len());
                    match lanes.get_mut(lane) {
                        Some(end) => *end = block.end_ns,
                        None => lanes.push(block.end_ns),
                    }
                    (lane, block)
                })
                .collect();
            Row { sm, blocks }
        })
        .collect()
}

/// Stacks the rows of all partitions vertically.
fn bands(report: &Report, rows: Vec<Vec<Row>>, lanes: f64, top: f64) -> Vec<Band<'_>> {
    let count: usize = rows.iter().map(|rows| rows.len().max(1)).sum();
    let usual = (HEIGHT / count.max(1) as f64).min(MOST_ROW);
    let thin = MOST_HEIGHT / count.max(1) as f64;
    let is_thin = thin < lanes + ROW_GAP;
    let mut next = top + BAND_GAP;
    let partitions = report.partitions.iter().zip(rows);
    partitions
        .map(|(partition, rows)| {
            let least = (LEAST_BAND / rows.len().max(1) as f64 - ROW_GAP) / lanes;
            let lane_height = match is_thin {
                true => thin / lanes,
                false => ((usual - ROW_GAP) / lanes).floor().max(least.ceil()).max(1.0),
            };
            let row_height = lanes * lane_height + if is_thin { 0.0 } else { ROW_GAP };
            let band = Band { name: &partition.name, rows, top: next, lane_height, row_height };
            next = band.bottom() + BAND_GAP;
            band
        })
        .collect()
}

/// The scale from device time to pixels.
struct Scale {
    start: u64,
    span: u64,
}

impl Scale {
    fn x(&self, ns: u64) -> f64 {
        self.at(ns.saturating_sub(self.start) as f64)
    }

    fn at(&self, ns: f64) -> f64 {
        LEFT + ns / self.span as f64 * (RIGHT - LEFT)
    }
}

fn bar(canvas: &mut Canvas, scale: &Scale, block: &Block, y: f64, height: f64) {
    let (from, to) = (scale.x(block.start_ns), scale.x(block.end_ns));
    // A gap of one pixel keeps consecutive blocks distinguishable.
    let width = (to - from - 1.0).max(0.5);
    canvas.put(format_args!(
        r#"<rect x="{}" y="{}" width="{}" height="{}"/>"#,
        Number(from),
        Number(y),
        Number(width),
        Number(height),
    ));
}

fn label(canvas: &mut Canvas, band: &Band<'_>) {
    let height = band.bottom() - band.top;
    let size = if height < 13.0 { 9.0 } else { 11.5 };
    let middle = band.top + height / 2.0 + size * 0.36;
    let attributes = format!(r#"font-size="{size}" text-anchor="end" fill="{INK}""#);
    canvas.text(LEFT - 9.0, middle, &attributes, &shortened(band.name, 13));
}

/// Draws the frame, a line at each tick, and the times below the frame.
fn axis(canvas: &mut Canvas, scale: &Scale, top: f64, bottom: f64) {
    canvas.put(format_args!(
        r##"<rect x="{LEFT}" y="{}" width="{}" height="{}" fill="#f7f7f7"/>"##,
        Number(top),
        Number(RIGHT - LEFT),
        Number(bottom - top),
    ));
    let step = tick_step(scale.span as f64 / 1e6, 10.0);
    let decimals = decimals(step);
    canvas
        .group(format_args!(r#"class="axis" font-size="10.5" text-anchor="middle" fill="{SOFT}""#));
    let ticks = (scale.span as f64 / 1e6 / step + 1e-9) as usize;
    for tick in 0..=ticks {
        let ms = tick as f64 * step;
        let x = scale.at(ms * 1e6);
        canvas.put(format_args!(
            r##"<path d="M{x} {}V{}" stroke="#d0d0d0"/>"##,
            Number(top),
            Number(bottom + 4.0),
            x = Number(x),
        ));
        canvas.text(x, bottom + 16.0, "", &format!("{ms:.decimals$}"));
    }
    canvas.close();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn block(sm: u32, start_ns: u64, end_ns: u64) -> Block {
        let block = json!({ "sm": sm, "start_ns": start_ns, "end_ns": end_ns });
        serde_json::from_value(block).expect("a block")
    }

    #[test]
    fn blocks_that_overlap_are_in_different_lanes() {
        let rows = rows(&[block(3, 10, 20), block(3, 0, 10), block(3, 5, 15), block(1, 0, 10)]);
        let lanes: Vec<(u32, Vec<(usize, u64)>)> = rows
            .iter()
            .map(|row| {
                (row.sm, row.blocks.iter().map(|(lane, block)| (*lane, block.start_ns)).collect())
            })
            .collect();
        assert_eq!(lanes, [(1, vec![(0, 0)]), (3, vec![(0, 0), (1, 5), (0, 10)])]);
    }
}
