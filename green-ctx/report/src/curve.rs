//! How a job scales with its SMs, as text and JSON.

use std::fmt::Write;

use green_ctx_tune::{Curve, CurveMetric, CurvePoint, CurveShape};
use serde::Serialize;
use serde_json::{Value, json};

use crate::objects::{DeviceObject, DriverObject};
use crate::table::{Align, table};
use crate::tuning::Machine;

/// The JSON that `green-ctx curve` prints: the driver, the device and the curve.
#[derive(Serialize)]
pub struct CurveObject<'a> {
    driver: Option<DriverObject>,
    device: Option<DeviceObject>,
    job: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metric: Option<&'a CurveMetric>,
    points: Vec<PointObject<'a>>,
    shape: CurveShape,
    sentence: &'a str,
    host_us: Option<f64>,
    notes: &'a [String],
    complete: bool,
    within: Value,
}

#[derive(Serialize)]
struct PointObject<'a> {
    #[serde(flatten)]
    point: &'a CurvePoint,
    /// The median in the unit of the quantity, if this is not the time of an iteration. It is null if the job did not
    /// run.
    #[serde(skip_serializing_if = "Option::is_none")]
    median: Option<Option<f64>>,
}

impl CurveObject<'_> {
    /// Creates the JSON object for a curve.
    #[must_use]
    pub fn of((driver, device): Machine, curve: &Curve) -> CurveObject<'_> {
        let metric = curve.metric.as_ref();
        let points = curve.points.iter().map(|point| {
            let median = metric.map(|metric| point.median_us.map(|us| metric.value(us)));
            PointObject { point, median }
        });
        CurveObject {
            driver: driver.map(DriverObject::from),
            device,
            job: &curve.job,
            metric,
            points: points.collect(),
            shape: curve.shape,
            sentence: &curve.sentence,
            host_us: curve.host_us,
            notes: &curve.notes,
            complete: curve.complete,
            within: json!({ "5%": curve.within(0.05), "10%": curve.within(0.1) }),
        }
    }
}

/// Formats a curve as text: its sentence, a table with one row per number of SMs, and remarks.
#[must_use]
pub fn curve_text(curve: &Curve) -> String {
    let unit = curve.metric.as_ref().map_or("us", |metric| metric.unit.as_str());
    let columns = [
        ("SMs", Align::Right),
        (unit, Align::Right),
        ("spread", Align::Right),
        ("speed", Align::Right),
        ("doubling", Align::Right),
    ];
    let percent =
        |part: Option<f64>| part.map_or("-".to_owned(), |it| format!("{:.0} %", 100.0 * it));
    let row = |point: &CurvePoint| {
        [
            point.sms.to_string(),
            point.median_us.map_or("-".to_owned(), |time| figure(curve, time)),
            percent(point.spread),
            percent(point.speed),
            point.doubling.map_or("-".to_owned(), |factor| format!("{factor:.2} x")),
        ]
    };
    let rows: Vec<_> = curve.points.iter().map(row).collect();
    let mut text = format!("{}\n\n{}", curve.sentence, table(columns, &rows));
    if let Some(host_us) = curve.host_us {
        let _ = writeln!(text, "\nThe host submits an iteration in {host_us:.1} us.");
    }
    for remark in remarks(curve) {
        let _ = writeln!(text, "{remark}");
    }
    text
}

/// Returns the measured value for a point's time.
pub(crate) fn figure(curve: &Curve, time_us: f64) -> String {
    let Some(metric) = &curve.metric else { return format!("{time_us:.1}") };
    let value = metric.value(time_us);
    // Four digits.
    let digits = [1000.0, 100.0, 10.0].iter().filter(|power| value < **power).count();
    format!("{value:.digits$}")
}

/// Returns remarks for the reader of the table or the picture: where and why the job does not run, the notes, and
/// whether the measurement was interrupted.
pub(crate) fn remarks(curve: &Curve) -> Vec<String> {
    let skipped = |point: &CurvePoint| {
        let words = match point.blocks_us.len() {
            0 => "does not run".to_owned(),
            1 => "failed after the first block".to_owned(),
            blocks => format!("failed after {blocks} blocks"),
        };
        point.skipped.as_ref().map(|why| format!("{} SMs: it {words}: {why}", point.sms))
    };
    let mut remarks: Vec<String> = curve.points.iter().filter_map(skipped).collect();
    remarks.extend(curve.notes.iter().map(|note| format!("Note: {note}.")));
    if !curve.complete {
        remarks.push("The measurement was interrupted: these are the blocks so far.".to_owned());
    }
    remarks
}

/// Formats a curve in two lines: its sentence, and the speeds of at most eight points.
pub(crate) fn curve_lines(curve: &Curve) -> String {
    let steps = curve.points.len().div_ceil(8).max(1);
    let speed = |point: &CurvePoint| Some(format!("{}: {:.0} %", point.sms, 100.0 * point.speed?));
    let mut speeds: Vec<_> = curve.points.iter().rev().step_by(steps).filter_map(speed).collect();
    speeds.reverse();
    format!("  {}\n    {}\n", curve.sentence, speeds.join("   "))
}
