//! The throughput of each pair over the two ceilings, with the tuner's choice and the oracle's best.

use std::collections::BTreeMap;

use green_ctx::tune::ArmKind;

use super::canvas::{Canvas, Escaped, Number, shortened};
use super::{INK, MARGIN, RED, SOFT, WIDTH};
use crate::oracle::{ArmRecord, Combination, MixFile, judge};

/// Two panels a row, each with room for the first job's ceilings on its left.
const PANEL: f64 = (WIDTH - 3.0 * MARGIN) / 2.0;
const LEFT: f64 = 44.0;
const SIDE: f64 = PANEL - LEFT;
/// What stands above a panel's map and below it.
const ABOVE: f64 = 58.0;
const BELOW: f64 = 76.0;
/// A cell that is smaller has no number.
const LEGIBLE: f64 = 26.0;
const TITLE: &str = "Every arm of each pair, and what the tuner chose";

/// The pieces of a map: scores by the ceilings of the first and of the second job.
struct Map<'f> {
    file: &'f MixFile,
    scores: BTreeMap<[u32; 2], f64>,
    ceilings: [Vec<u32>; 2],
    /// The best score of an arm without partitions.
    plain: Option<f64>,
}

/// Draws all pairs: mixes of two jobs.
pub(crate) fn render(files: &[MixFile]) -> String {
    let pairs = files.iter().filter(|file| file.jobs.len() == 2);
    let maps: Vec<Map<'_>> = pairs.map(Map::of).collect();
    let mut body = Canvas::default();
    let bold = format!(r#"font-size="21" font-weight="bold" fill="{INK}""#);
    body.text(MARGIN, 44.0, &bold, TITLE);
    let soft = format!(r#"font-size="13" fill="{SOFT}""#);
    let about = "Colour and number: rates as parts of those alone, summed, with the best order of \
        priorities. Axes: ceilings in SMs.";
    body.text(MARGIN, 66.0, &soft, about);
    let simulated = files.iter().any(|file| file.machine.simulated);
    if simulated {
        let red = format!(r#"class="simulated" font-size="13" font-weight="bold" fill="{RED}""#);
        body.text(MARGIN, 86.0, &red, "In a model of co-running jobs: the figures are no GPU's.");
    }
    let top = if simulated { 96.0 } else { 76.0 };
    let row = ABOVE + SIDE + BELOW;
    for (place, map) in maps.iter().enumerate() {
        let left = MARGIN + (place % 2) as f64 * (PANEL + MARGIN);
        map.draw(&mut body, left, top + (place / 2) as f64 * row);
    }
    let height = top + maps.len().div_ceil(2) as f64 * row + 8.0;

    body.into_page((WIDTH, height), TITLE, "")
}

impl Map<'_> {
    fn of(file: &MixFile) -> Map<'_> {
        let mut scores: BTreeMap<[u32; 2], f64> = BTreeMap::new();
        let mut plain: Option<f64> = None;
        for record in &file.arms {
            let Some(score) = throughput(file, record) else { continue };
            match (record.arm.kind, &record.arm.parts[..]) {
                (ArmKind::Partition, [[_, a], [_, b]]) => {
                    let best = scores.entry([*a, *b]).or_insert(score);
                    *best = best.max(score);
                }
                (ArmKind::Partition, _) => {}
                _ => plain = Some(plain.map_or(score, |best| best.max(score))),
            }
        }
        let ceilings = [0, 1].map(|job| {
            let mut ceilings: Vec<u32> = scores.keys().map(|pair| pair[job]).collect();
            ceilings.sort_unstable();
            ceilings.dedup();
            ceilings
        });
        Map { file, scores, ceilings, plain }
    }

    fn draw(&self, canvas: &mut Canvas, left: f64, top: f64) {
        let names = self.file.names();
        let heading = format!(r#"font-size="13" font-weight="bold" fill="{INK}""#);
        canvas.text(left, top + 30.0, &heading, &shortened(&names.join(" + "), 52));
        let soft = format!(r#"font-size="11" fill="{SOFT}""#);
        let plain = self.plain.map_or("none ran".to_owned(), |score| format!("{score:.2}"));
        let text = format!("↑ {}, → {}; best without partitions {plain}", names[0], names[1]);
        canvas.text(left, top + 48.0, &soft, &shortened(&text, 72));
        let (x, y) = (left + LEFT, top + ABOVE);
        canvas.group(format_args!(r#"class="landscape""#));
        self.cells(canvas, x, y);
        self.axes(canvas, x, y);
        self.marks(canvas, x, y);
        canvas.close();
    }

    /// The width and the height of a cell.
    fn cell(&self) -> [f64; 2] {
        [1, 0].map(|job| SIDE / self.ceilings[job].len().max(1) as f64)
    }

    fn cells(&self, canvas: &mut Canvas, x: f64, y: f64) {
        let scores = || self.scores.values().copied();
        let (low, high) =
            (scores().fold(f64::INFINITY, f64::min), scores().fold(f64::NEG_INFINITY, f64::max));
        let names = self.file.names();
        let [width, height] = self.cell();
        for ([a, b], score) in &self.scores {
            let Some([dx, dy]) = self.place([*a, *b]) else { continue };
            let share = if high > low { (score - low) / (high - low) } else { 0.5 };
            let (fill, ink) = shade(share);
            let (cx, cy) = (x + dx, y + dy);
            canvas.put(format_args!(
                r#"<rect class="cell" x="{}" y="{}" width="{}" height="{}" fill="{fill}"><title>{}</title></rect>"#,
                Number(cx - width / 2.0),
                Number(cy - height / 2.0),
                Number(width),
                Number(height),
                Escaped(&format!("{} ..={a}, {} ..={b}: {score:.3}", names[0], names[1])),
            ));
            if width >= LEGIBLE {
                let text = format!(r#"font-size="10" text-anchor="middle" fill="{ink}""#);
                canvas.text(cx, cy + 3.5, &text, &format!("{score:.2}"));
            }
        }
    }

    fn axes(&self, canvas: &mut Canvas, x: f64, y: f64) {
        let soft = |anchor| format!(r#"font-size="10" text-anchor="{anchor}" fill="{SOFT}""#);
        let ([own, other], [width, height]) = (&self.ceilings, self.cell());
        for (place, sms) in own.iter().enumerate() {
            let row = y + SIDE - (place as f64 + 0.5) * height;
            canvas.text(x - 6.0, row + 3.5, &soft("end"), &sms.to_string());
        }
        for (place, sms) in other.iter().enumerate() {
            let column = x + (place as f64 + 0.5) * width;
            canvas.text(column, y + SIDE + 13.0, &soft("middle"), &sms.to_string());
        }
    }

    /// The tuner's choice and the oracle's best for the throughput, and each in a line below.
    fn marks(&self, canvas: &mut Canvas, x: f64, y: f64) {
        let is_wanted = |combination: &&Combination| combination.template == "throughput";
        let Some(combination) = self.file.combinations.iter().find(is_wanted) else { return };
        let best = combination.finalists.iter().find(|finalist| finalist.rank == Some(1));
        let chosen = combination.finalists.iter().find(|finalist| finalist.chosen);
        let regret = judge(&combination.finalists).map_or_else(String::new, |judged| {
            format!(", regret {:.1} %", 100.0 * judged.regret.middle)
        });
        let marks = [
            (best, "oracle", Form::Square, "oracle's best", String::new()),
            (chosen, "choice", Form::Circle, "tuner's choice", regret),
        ];
        for (row, (finalist, class, form, what, note)) in marks.into_iter().enumerate() {
            let Some(finalist) = finalist else { continue };
            let parts = (finalist.arm.kind == ArmKind::Partition).then_some(&finalist.arm.parts);
            let ceilings = parts.and_then(|parts| Some([parts.first()?[1], parts.get(1)?[1]]));
            if let Some([dx, dy]) = ceilings.and_then(|ceilings| self.place(ceilings)) {
                // Around the number; the circle inside of the square, where they meet.
                let [width, height] = self.cell();
                let inset = if class == "oracle" { 6.0 } else { 14.0 };
                mark(canvas, class, form, [x + dx, y + dy], (width.min(height) - inset).max(8.0));
            }
            let line = y + SIDE + 34.0 + row as f64 * 17.0;
            mark(canvas, "key", form, [x - LEFT + 7.0, line - 4.0], 11.0);
            let text = format!("{what}: {}{note}", self.file.describe(&finalist.arm));
            let ink = format!(r#"font-size="11" fill="{INK}""#);
            canvas.text(x - LEFT + 20.0, line, &ink, &shortened(&text, 70));
        }
    }

    /// Where two ceilings lie from the map's upper left corner; between two steps of the grid, between their
    /// cells.
    fn place(&self, [own, other]: [u32; 2]) -> Option<[f64; 2]> {
        let [width, height] = self.cell();
        let (row, column) =
            (position(&self.ceilings[0], own)?, position(&self.ceilings[1], other)?);
        Some([(column + 0.5) * width, SIDE - (row + 0.5) * height])
    }
}

/// The place of a count among steps; between two of them, a part of the way. `None` without steps.
fn position(steps: &[u32], count: u32) -> Option<f64> {
    let last = steps.len().checked_sub(1)?;
    let above = steps.partition_point(|step| *step < count);
    if above == 0 || above > last {
        return Some(above.min(last) as f64);
    }
    let (low, high) = (steps[above - 1], steps[above]);
    Some((above - 1) as f64 + f64::from(count - low) / f64::from(high - low))
}

/// The jobs' rates as parts of those alone, summed; medians of an arm's blocks.
fn throughput(file: &MixFile, record: &ArmRecord) -> Option<f64> {
    let mut sums: Vec<f64> = record
        .blocks
        .iter()
        .map(|block| block.rates.iter().zip(&file.jobs).map(|(rate, job)| rate / job.rate).sum())
        .collect();
    sums.sort_by(f64::total_cmp);
    let upper = sums.get(sums.len() / 2)?;
    let lower = sums.get(sums.len().checked_sub(1)? / 2)?;
    Some((upper + lower) / 2.0)
}

/// From a pale to a dark blue, and what can be read on it.
fn shade(share: f64) -> (String, &'static str) {
    let mix = |pale: f64, dark: f64| (pale + (dark - pale) * share).round() as u8;
    let (red, green, blue) = (mix(238.0, 8.0), mix(244.0, 64.0), mix(251.0, 129.0));
    let ink = if share > 0.5 { "#ffffff" } else { INK };
    (format!("#{red:02x}{green:02x}{blue:02x}"), ink)
}

/// A mark of a side or diameter, with a white edge, which is seen on every shade.
fn mark(canvas: &mut Canvas, class: &str, form: Form, [x, y]: [f64; 2], size: f64) {
    let half = size / 2.0;
    canvas.group(format_args!(r#"class="{class}" fill="none""#));
    for (colour, width) in [("#ffffff", 5.0), (form.colour(), 2.5)] {
        let line = format!(r#"stroke="{colour}" stroke-width="{width}""#);
        match form {
            Form::Square => canvas.put(format_args!(
                r#"<rect x="{}" y="{}" width="{2}" height="{2}" {line}/>"#,
                Number(x - half),
                Number(y - half),
                Number(size),
            )),
            Form::Circle => canvas.put(format_args!(
                r#"<circle cx="{}" cy="{}" r="{}" {line}/>"#,
                Number(x),
                Number(y),
                Number(half),
            )),
        }
    }
    canvas.close();
}

/// The two marks.
#[derive(Clone, Copy)]
enum Form {
    /// The oracle's best.
    Square,
    /// The tuner's choice.
    Circle,
}

impl Form {
    const fn colour(self) -> &'static str {
        match self {
            Form::Square => "#009e73",
            Form::Circle => "#d55e00",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_between_two_steps_lie_between_their_cells() {
        let steps = [20, 36, 52, 132];
        let place = |count| position(&steps, count);
        assert_eq!([20, 36, 132].map(place), [Some(0.0), Some(1.0), Some(3.0)]);
        assert_eq!([28, 12, 140].map(place), [Some(0.5), Some(0.0), Some(3.0)]);
        assert_eq!(position(&[], 8), None);
    }

    #[test]
    fn shades_go_from_pale_to_dark() {
        assert_eq!(shade(0.0), ("#eef4fb".to_owned(), INK));
        assert_eq!(shade(1.0), ("#084081".to_owned(), "#ffffff"));
    }
}
