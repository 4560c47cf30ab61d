//! How a job scales with its SMs, as text, CSV and JSON.

use std::fmt::Write;

use green_ctx::driver::DriverInfo;
use green_ctx_tune::{Curve, CurvePoint};
use serde::Serialize;
use serde_json::{Value, json};

use crate::objects::{DeviceObject, DriverObject};
use crate::table::{Align, table};

/// The JSON that `green-ctx curve` prints: the driver, the device, the curve and what it says.
#[derive(Serialize)]
pub struct CurveObject {
    driver: DriverObject,
    device: DeviceObject,
    #[serde(flatten)]
    curve: Value,
}

impl CurveObject {
    /// Creates the JSON object for a curve.
    #[must_use]
    pub fn of(driver: DriverInfo, device: DeviceObject, curve: &Curve) -> CurveObject {
        let point = |point: &CurvePoint| {
            json!({
                "sms": point.sms, "median_us": point.median_us(), "spread": point.spread(),
                "speed": curve.speed(point), "doubled": curve.doubled(point),
                "blocks_us": point.blocks_us, "skipped": point.skipped,
            })
        };
        let points: Vec<Value> = curve.points.iter().map(point).collect();
        let curve = json!({
            "job": curve.job, "points": points, "host_us": curve.host_us, "shape": curve.shape(),
            "within": { "5%": curve.within(0.05), "10%": curve.within(0.1) },
            "sentence": curve.to_string(), "seconds": curve.seconds, "complete": curve.complete,
        });
        CurveObject { driver: driver.into(), device, curve }
    }
}

/// Formats a curve as a table with one row per number of SMs.
#[must_use]
pub fn curve_table(curve: &Curve) -> String {
    let columns = [
        ("SMs", Align::Right),
        ("us", Align::Right),
        ("spread", Align::Right),
        ("speed", Align::Right),
        ("of half", Align::Right),
        ("", Align::Left),
    ];
    let percent =
        |part: Option<f64>| part.map_or("-".to_owned(), |it| format!("{:.0} %", 100.0 * it));
    let row = |point: &CurvePoint| {
        [
            point.sms.to_string(),
            point.median_us().map_or("-".to_owned(), |time| format!("{time:.1}")),
            percent(point.spread()),
            percent(curve.speed(point)),
            curve.doubled(point).map_or("-".to_owned(), |factor| format!("{factor:.2} x")),
            point.skipped.as_ref().map_or_else(String::new, |why| format!("does not run: {why}")),
        ]
    };
    let rows: Vec<_> = curve.points.iter().map(row).collect();
    table(columns, &rows)
}

/// Formats a curve as CSV: the number of SMs, the median time in µs, the spread, and the speed as a fraction of the
/// full speed. A value that was not measured is empty.
#[must_use]
pub fn curve_csv(curve: &Curve) -> String {
    let mut text = String::from("sms,median_us,spread,speed\n");
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
    for point in &curve.points {
        let values = [point.median_us(), point.spread(), curve.speed(point)].map(number);
        let _ = writeln!(text, "{},{}", point.sms, values.join(","));
    }
    text
}
