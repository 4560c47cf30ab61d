//! Draws a report: distributions on logarithmic axes, one panel for each topic.
//!
//! The same report always gives the same SVG, which refers to nothing outside itself. It includes a white
//! background, so that it can be read on dark pages too.

mod panel;

use green_ctx_report::canvas::{Canvas, shortened};

use self::panel::Row;
use crate::arms::{Arm, MODES, SHARES_MODES};
use crate::report::Report;

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 28.0;
/// The colours of text, of secondary text, and of warnings.
const INK: &str = "#1a1a1a";
const SOFT: &str = "#5f6368";
const RED: &str = "#c00000";

/// Draws all panels for which the report has samples.
pub(crate) fn render(report: &Report) -> String {
    let mut body = Canvas::default();
    let mut y = head(&mut body, report);
    for (title, rows) in panels(report) {
        if !rows.is_empty() {
            y = panel::draw(&mut body, y + 30.0, title, &rows);
        }
    }
    y = key(&mut body, y + 34.0);

    body.into_page((WIDTH, y + 16.0), TITLE, "")
}

const TITLE: &str = "What partitions cost and what they buy";

/// Draws the title and the machine, and returns the lower edge.
fn head(canvas: &mut Canvas, report: &Report) -> f64 {
    let bold = format!(r#"font-size="21" font-weight="bold" fill="{INK}""#);
    canvas.text(MARGIN, 44.0, &bold, TITLE);
    let soft = format!(r#"font-size="13" fill="{SOFT}""#);
    canvas.text(MARGIN, 66.0, &soft, &shortened(&report.machine(), 140));
    if !report.machine.simulated {
        return 70.0;
    }
    let red = format!(r#"class="simulated" font-size="13" font-weight="bold" fill="{RED}""#);
    canvas.text(MARGIN, 88.0, &red, "On a simulated driver: the times say nothing about a GPU.");
    92.0
}

/// Returns the panels with their rows.
fn panels(report: &Report) -> Vec<(&'static str, Vec<Row<'_>>)> {
    vec![
        ("A small kernel, from launch to completion, next to a saturating load", latency(report)),
        (
            "A job with 32 SMs or more: behind a wall, with shares, and on plain streams",
            shares(report),
        ),
        ("Switching plans, and creating, reusing and dropping partitions", costs(report)),
        ("Graphs moved to another partition, by number of kernel nodes", graphs(report)),
        (
            "A graph with a cuBLAS product: on all SMs, moved to 32, and captured there",
            moved(report),
        ),
    ]
}

/// Rows of the small kernel's times, with a colour per mode and the load's loss.
fn latency(report: &Report) -> Vec<Row<'_>> {
    let Some(arm) = report.arm(Arm::Latency.name()) else { return Vec::new() };
    arm.samples
        .iter()
        .map(|sample| {
            let mode = MODES.iter().position(|mode| sample.name.ends_with(mode)).unwrap_or(0);
            let lost = report.figure(&arm.name, &format!("{}, load lost", sample.name));
            // Adding zero turns a rounded -0 into 0.
            let note = lost.map(|lost| format!("load loses {:.0} %", lost.round() + 0.0));
            Row { sample, colour: mode, note }
        })
        .collect()
}

/// Rows of the jobs' times, next to a load and alone, with a colour per mode and the rate that the load keeps.
fn shares(report: &Report) -> Vec<Row<'_>> {
    let Some(arm) = report.arm(Arm::Shares.name()) else { return Vec::new() };
    let row = |sample: &'_ _| -> Option<(usize, Option<String>)> {
        let sample: &crate::report::Sample = sample;
        let mode = sample.name.split_once(": ")?.1;
        let colour = SHARES_MODES.iter().position(|known| *known == mode)?;
        let kept = report.figure(&arm.name, &format!("{}, load kept", sample.name));
        let speed = report.figure(&arm.name, &format!("{}, speed to plain", sample.name));
        let note = kept.map(|kept| format!("load keeps {kept:.0} %"));
        Some((colour, note.or(speed.map(|speed| format!("{speed:.2} × plain")))))
    };
    // Samples without pause are left to the table.
    let rows = arm.samples.iter().filter(|sample| !sample.name.contains("without pause"));
    let rows = rows.filter_map(|sample| {
        let (colour, note) = row(sample)?;
        Some(Row { sample, colour, note })
    });
    rows.collect()
}

fn costs(report: &Report) -> Vec<Row<'_>> {
    let row = |colour| move |sample| Row { sample, colour, note: None };
    let samples = |arm: Arm| report.arm(arm.name()).map_or([].as_slice(), |arm| &arm.samples);
    let switch = samples(Arm::Switch).iter().map(row(3));
    switch.chain(samples(Arm::Contexts).iter().map(row(4))).collect()
}

/// Rows of graph times, with a colour per number of nodes.
fn graphs(report: &Report) -> Vec<Row<'_>> {
    let Some(arm) = report.arm(Arm::Graphs.name()) else { return Vec::new() };
    let nodes = |name: &'_ str| name.split(' ').next().map(str::to_owned);
    let mut colour = 0;
    let mut former = None;
    arm.samples
        .iter()
        .map(|sample| {
            let nodes = nodes(&sample.name);
            colour += usize::from(former.is_some() && former != nodes);
            former = nodes;
            Row { sample, colour, note: None }
        })
        .collect()
}

fn moved(report: &Report) -> Vec<Row<'_>> {
    let Some(arm) = report.arm(Arm::Moved.name()) else { return Vec::new() };
    let has_product = report.figure(&arm.name, "products in the graph") == Some(1.0);
    let rows = arm.samples.iter().map(|sample| Row { sample, colour: 2, note: None });
    if has_product { rows.collect() } else { Vec::new() }
}

/// Explains the marks, and returns the lower edge.
fn key(canvas: &mut Canvas, y: f64) -> f64 {
    let soft = format!(r#"class="key" font-size="11" fill="{SOFT}""#);
    let text = "Dot and first number: median. Bar: median to p99. Line: minimum to maximum. \
        Axes are logarithmic.";
    canvas.text(MARGIN, y, &soft, text);
    y
}
