//! The picture of a report: the map of SMs over the timeline of blocks.
//!
//! The same report gives the same text, with no reference to anything outside of it. The white
//! ground is part of the picture, so that it reads on dark pages too.

mod canvas;
mod map;
mod timeline;

use std::collections::{BTreeMap, BTreeSet};

use green_ctx::verify::Report;

use self::canvas::{Canvas, Escaped, Number, shortened};

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 28.0;
/// The colours of writing, of second thoughts, of a failed verification, of a passed one, and of
/// SMs where nothing ran.
const INK: &str = "#1a1a1a";
const SOFT: &str = "#5f6368";
const RED: &str = "#c00000";
const GREEN: &str = "#00664b";
const UNUSED: &str = "#e3e3e3";

/// Draws the SM map over the timeline.
pub(crate) fn render(report: &Report) -> String {
    let owners = map::owners(report);
    let mut body = Canvas::default();
    let heading = format!(r#"font-size="13" font-weight="bold" fill="{INK}""#);

    let y = head(&mut body, report, &owners);
    body.text(MARGIN, y + 26.0, &heading, "Where: one cell an SM, with the SM's id");
    let y = map::draw(&mut body, report, &owners, y + 38.0);
    body.text(
        MARGIN,
        y + 28.0,
        &heading,
        "When: one row an SM, one bar a block of the probe kernel",
    );
    let y = timeline::draw(&mut body, report, &owners, y + 38.0);

    let mut page = Canvas::default();
    let (width, height, title) = (Number(WIDTH), Number((y + 16.0).ceil()), title(report));
    let title = Escaped(&title);
    page.put(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="'Helvetica Neue', Arial, sans-serif" role="img">"#
    ));
    page.put(format_args!("<title>{title}</title>"));
    page.put(format_args!("{HATCHING}"));
    page.put(format_args!(r##"<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>"##));
    let mut picture = page.into_string();
    picture.push_str(&body.into_string());
    picture.push_str("</svg>\n");
    picture
}

/// Fills the cells of SMs that more than one partition ran on.
const HATCHING: &str = r##"<defs><pattern id="shared" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="7" height="7" fill="#ffd9d9"/><rect width="3" height="7" fill="#e00000"/></pattern></defs>"##;

/// Writes title, origin and verdict, and returns where they end.
fn head(canvas: &mut Canvas, report: &Report, owners: &BTreeMap<u32, BTreeSet<usize>>) -> f64 {
    let bold = format!(r#"font-size="21" font-weight="bold" fill="{INK}""#);
    canvas.text(MARGIN, 44.0, &bold, &shortened(&title(report), 72));
    let soft = format!(r#"font-size="13" fill="{SOFT}""#);
    canvas.text(MARGIN, 66.0, &soft, &origin(report));

    let (verdict, colour) = if report.ok() { ("Verified", GREEN) } else { ("NOT verified", RED) };
    canvas.put(format_args!(r#"<circle cx="{}" cy="85.5" r="5" fill="{colour}"/>"#, MARGIN + 5.0));
    canvas.put(format_args!(
        r#"<text x="{}" y="90" font-size="13" fill="{INK}"><tspan class="verdict" font-weight="bold" fill="{colour}">{verdict}:</tspan> {}</text>"#,
        MARGIN + 17.0,
        Escaped(&reasons(report, owners)),
    ));
    94.0
}

fn title(report: &Report) -> String {
    let count = report.partitions.len();
    let partitions = if count == 1 { "partition" } else { "partitions" };
    format!("{count} {partitions} of {} on {} SMs", report.device_name, report.sm_count)
}

fn origin(report: &Report) -> String {
    let Report { driver, ordinal, compute_capability, .. } = report;
    format!("{driver}; device {ordinal}, compute capability {compute_capability}")
}

/// What the verdict stands on.
fn reasons(report: &Report, owners: &BTreeMap<u32, BTreeSet<usize>>) -> String {
    let shared = owners.values().filter(|partitions| partitions.len() > 1).count();
    let short: Vec<&str> = report
        .partitions
        .iter()
        .filter(|partition| !partition.complete())
        .map(|partition| partition.name.as_str())
        .collect();
    let mut reasons = Vec::new();
    match shared {
        0 if report.ok() => {
            reasons.push(
                "each partition ran on its own SMs, on all of them and only there".to_owned(),
            );
        }
        0 => {}
        1 => reasons.push("1 SM ran blocks of more than one partition".to_owned()),
        shared => reasons.push(format!("{shared} SMs ran blocks of more than one partition")),
    }
    match short.as_slice() {
        [] => {}
        [one] => {
            reasons.push(format!("{} did not run on as many SMs as given", shortened(one, 20)))
        }
        more => {
            reasons.push(format!("{} partitions did not run on as many SMs as given", more.len()))
        }
    }
    if report.partitions.len() > 1 {
        let overlapped = if report.concurrent() { "all" } else { "not all" };
        reasons.push(format!("{overlapped} ran at the same time"));
    }
    reasons.join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A report of partitions with these names and SMs, each with four blocks, two at a time.
    fn report(partitions: &[(&str, Vec<u32>)]) -> Report {
        let blocks = |sm: u32, late: u64| {
            (0..4u64).map(move |number| {
                let start_ns = 1_000_000 + late + u64::from(sm) * 90 + number / 2 * 4_001_000;
                json!({ "sm": sm, "start_ns": start_ns, "end_ns": start_ns + 4_000_000 })
            })
        };
        let partition = |((name, sms), late): (&(&str, Vec<u32>), u64)| {
            json!({
                "name": name,
                "requested": Some(sms.len()).filter(|_| *name != "remainder"),
                "sm_count": sms.len(),
                "blocks": sms.iter().flat_map(|sm| blocks(*sm, late * 20_000)).collect::<Vec<_>>(),
            })
        };
        let report = json!({
            "driver": { "version": "13.0", "profile": "h200" },
            "ordinal": 0,
            "device_name": "NVIDIA H200",
            "sm_count": 132,
            "compute_capability": "9.0",
            "partitions": partitions.iter().zip(0..).map(partition).collect::<Vec<_>>(),
        });
        serde_json::from_value(report).expect("a report")
    }

    fn count(picture: &str, needle: &str) -> usize {
        picture.matches(needle).count()
    }

    #[test]
    fn every_sm_has_a_cell_and_every_block_a_bar() {
        let report = report(&[("p0", (0..16).collect()), ("remainder", (16..132).collect())]);
        let picture = render(&report);
        let document = roxmltree::Document::parse(&picture).expect("well-formed");
        let cells = document.descendants().filter(|node| node.attribute("class") == Some("sm "));
        assert_eq!(cells.count(), 132);
        let blocks: usize = document
            .descendants()
            .filter(|node| node.attribute("class") == Some("blocks"))
            .map(|group| group.children().filter(|node| node.has_tag_name("rect")).count())
            .sum();
        assert_eq!(blocks, 132 * 4);
        assert!(picture.contains("2 partitions of NVIDIA H200 on 132 SMs"));
        assert!(picture.contains("simulated h200, CUDA 13.0"));
        assert!(picture.contains(">Verified:<"));
        assert!(picture.len() < 200_000, "{} bytes", picture.len());
        assert_eq!(picture, render(&report));
    }

    #[test]
    fn a_shared_sm_is_hatched_and_the_verdict_says_so() {
        let picture = render(&report(&[("p0", (0..16).collect()), ("p1", (14..32).collect())]));
        assert_eq!(count(&picture, r#"class="sm shared""#), 2);
        assert_eq!(count(&picture, r#"class="sm unused""#), 100);
        assert_eq!(count(&picture, r#"<rect class="shared""#), 4);
        assert!(picture.contains(">NOT verified:<"));
        assert!(picture.contains("2 SMs ran blocks of more than one partition"));
        assert!(picture.contains("SM 14: p0, p1"));
    }

    #[test]
    fn a_partition_that_missed_sms_is_named() {
        let mut report = report(&[("p0", (0..16).collect()), ("p1", (16..32).collect())]);
        report.partitions[1].blocks.retain(|block| block.sm != 20);
        let picture = render(&report);
        assert!(picture.contains("p1 did not run on as many SMs as given"));
        assert!(picture.contains(r##"fill="#c00000" font-weight="bold">15</text>"##));
    }

    #[test]
    fn names_are_escaped_and_cut() {
        let mut report =
            report(&[("<b>&", (0..8).collect()), ("a rather long name of it", vec![9])]);
        report.device_name = "\"<GPU>\" & sons".to_owned();
        report.driver.profile = None;
        let picture = render(&report);
        let document = roxmltree::Document::parse(&picture).expect("well-formed");
        let title = document.root_element().first_element_child().and_then(|title| title.text());
        assert_eq!(title, Some("2 partitions of \"<GPU>\" & sons on 132 SMs"));
        assert!(picture.contains(">&lt;b&gt;&amp;</text>"));
        assert!(picture.contains(">a rather lon…</text>"));
        assert!(picture.contains("CUDA 13.0, driver of the machine"));
    }

    #[test]
    fn a_report_of_nothing_is_a_picture_too() {
        for partitions in [vec![], vec![("p0", vec![])]] {
            let picture = render(&report(&partitions));
            roxmltree::Document::parse(&picture).expect("well-formed");
            assert!(!picture.contains("NaN") && !picture.contains("inf"));
        }
    }

    #[test]
    fn an_sm_beyond_the_devices_count_has_a_cell_too() {
        let picture = render(&report(&[("p0", vec![0, 400])]));
        assert_eq!(count(&picture, r#"<g class="sm"#), 1 + 132 + 1);
    }
}
