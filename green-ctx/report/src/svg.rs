//! The picture of a report: the SM map above the timeline of blocks. In the map, floors are solid and shared SMs are
//! hatched. The module `tuning` draws the result of a tuning search in the same style.
//!
//! The same report always gives the same SVG text. The text has no external references. The white background is part
//! of the picture, so the picture is readable on dark pages.

mod curve;
mod hatching;
mod legend;
mod map;
mod page;
mod plot;
mod ticks;
mod timeline;
mod tuning;
mod usage;

use std::collections::BTreeMap;

use green_ctx::verify::Report;

pub use self::curve::curve_svg;
use self::hatching::Hatching;
pub use self::tuning::tuning_svg;
use self::usage::{Kind, Usage};
use crate::canvas::{Canvas, shortened};
use crate::findings;

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 28.0;
/// The colours of text, secondary text, failed verifications, passed verifications, and SMs that no partition may
/// use.
const INK: &str = "#1a1a1a";
const SOFT: &str = "#5f6368";
const RED: &str = "#c00000";
const GREEN: &str = "#00664b";
const UNUSED: &str = "#e3e3e3";

/// The content of a picture.
struct Subject<'a> {
    report: &'a Report,
    /// The partitions that may use each SM, and the partitions that used it.
    usages: BTreeMap<u32, Usage>,
    hatching: Hatching,
}

/// Draws the SM map of a report above the timeline of its blocks. The picture shows which SMs each partition may use,
/// and on which SMs and when it ran.
///
/// The same report always gives the same SVG text. The text has no external references.
#[must_use]
pub fn verification_svg(report: &Report) -> String {
    let usages = usage::usages(report);
    let hatching = Hatching::of(&usages);
    let subject = Subject { report, usages, hatching };
    let mut body = Canvas::default();
    let heading = page::heading();

    let y = head(&mut body, &subject);
    body.text(MARGIN, y + 26.0, &heading, "Where: one cell per SM, labelled with its id");
    let y = map::draw(&mut body, &subject, y + 38.0);
    body.text(
        MARGIN,
        y + 28.0,
        &heading,
        "When: one row per SM, one bar per block of the probe kernel",
    );
    let y = timeline::draw(&mut body, report, &subject.usages, y + 38.0);

    page::page(&title(report), &subject.hatching.definitions(), y, body)
}

/// Draws the title, the origin and the verdict, and returns the position below them.
fn head(canvas: &mut Canvas, subject: &Subject<'_>) -> f64 {
    let report = subject.report;
    page::title(canvas, 21.0, &shortened(&title(report), 72));
    let soft = format!(r#"font-size="13" fill="{SOFT}""#);
    canvas.text(MARGIN, 66.0, &soft, &origin(report));

    let (verdict, colour) = if report.ok() { ("Verified:", GREEN) } else { ("NOT verified:", RED) };
    page::verdict(canvas, colour, verdict, &reasons(subject));
    94.0
}

fn title(report: &Report) -> String {
    let count = report.partitions.len() - usize::from(report.rest().is_some());
    let partitions = if count == 1 { "partition" } else { "partitions" };
    format!("{count} {partitions} of {} on {} SMs", report.device_name, report.sm_count)
}

fn origin(report: &Report) -> String {
    let Report { driver, ordinal, compute_capability, .. } = report;
    format!("{driver}; device {ordinal}, compute capability {compute_capability}")
}

/// Returns the reasons for the verdict.
fn reasons(Subject { report, usages, .. }: &Subject<'_>) -> String {
    let violated = usages.values().filter(|usage| usage.kind() == Kind::Violated).count();
    let broken: Vec<usize> =
        (0..report.partitions.len()).filter(|index| !report.kept(*index)).collect();
    let mut reasons = Vec::new();
    match violated {
        0 => {}
        1 => reasons.push("1 SM was used in violation of the shares".to_owned()),
        violated => reasons.push(format!("{violated} SMs were used in violation of the shares")),
    }
    match broken.as_slice() {
        [] => reasons.push(findings::kept(report).to_owned()),
        // The map shows which partition violated which share.
        _ if violated > 0 => {}
        [one] => {
            let name = shortened(&report.partitions[*one].name, 20);
            reasons.extend(
                findings::faults(report, *one)
                    .first()
                    .map(|fault| shortened(&format!("{name} {fault}"), 90)),
            );
        }
        more => reasons.push(format!("{} partitions did not get all of their shares", more.len())),
    }
    if report.partitions.len() > 1 {
        let overlapped = if report.concurrent() { "all" } else { "not all" };
        reasons.push(format!("{overlapped} ran at the same time"));
    }
    reasons.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::tests::{Part, decode_and_prefill, report};

    /// Returns a report of partitions with exclusive SMs.
    fn exclusive(partitions: &[(&'static str, Vec<u32>)]) -> Report {
        let parts = partitions.iter().map(|(name, sms)| Part::exclusive(name, sms.clone()));
        report(&parts.collect::<Vec<_>>())
    }

    fn count(picture: &str, needle: &str) -> usize {
        picture.matches(needle).count()
    }

    #[test]
    fn every_sm_has_a_cell_and_every_block_a_bar() {
        let report = exclusive(&[("p0", (0..16).collect()), ("remainder", (16..132).collect())]);
        let picture = verification_svg(&report);
        let document = roxmltree::Document::parse(&picture).expect("well-formed");
        let cells =
            document.descendants().filter(|node| node.attribute("class") == Some("sm floor"));
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
        assert_eq!(picture, verification_svg(&report));
    }

    #[test]
    fn sms_of_two_floors_are_a_violation_and_the_verdict_says_so() {
        let picture =
            verification_svg(&exclusive(&[("p0", (0..16).collect()), ("p1", (14..32).collect())]));
        assert_eq!(count(&picture, r#"class="sm violation""#), 2);
        assert_eq!(count(&picture, r#"class="sm unused""#), 100);
        assert_eq!(count(&picture, r#"<g class="violation""#), 4);
        assert!(picture.contains(">NOT verified:<"));
        assert!(picture.contains("2 SMs were used in violation of the shares"));
        assert!(picture.contains("used in violation of the shares: 2 SMs"));
        assert!(picture.contains("SM 14: floor of p0, p1; blocks of p0, p1 ran here"));
    }

    #[test]
    fn shared_sms_are_hatched_and_no_violation() {
        let picture = verification_svg(&report(&decode_and_prefill()));
        roxmltree::Document::parse(&picture).expect("well-formed");
        assert_eq!(count(&picture, r#"class="sm floor""#), 32);
        assert_eq!(count(&picture, r#"class="sm shared""#), 100);
        assert_eq!(count(&picture, r#"<pattern id="shared"#), 1);
        // Every picture defines this pattern once. It is not used here.
        assert_eq!(count(&picture, "violation"), 1);
        assert!(picture.contains("SM 0: floor of decode; blocks of decode ran here"));
        assert!(
            picture
                .contains("SM 40: shared by decode, prefill; blocks of decode, prefill ran here")
        );
        assert!(picture.contains(">shared by decode and prefill: 100 SMs<"));
        assert!(picture.contains(">solid: a floor, for one partition only<"));
        assert!(picture.contains(">..=100</text>"));
        assert!(picture.contains(">Verified:<") && picture.contains("had it to itself"));
    }

    #[test]
    fn a_block_on_a_floor_or_outside_of_a_ceiling_is_marked_in_its_own_row() {
        let [decode, mut prefill] = decode_and_prefill();
        prefill.ran.push(31);
        let picture = verification_svg(&report(&[decode, prefill]));
        assert_eq!(count(&picture, r#"class="sm violation""#), 1);
        assert_eq!(count(&picture, r#"<g class="violation""#), 1);
        assert!(picture.contains(
            "SM 31: floor of decode; blocks of decode, prefill ran here, those of prefill in violation"
        ));
    }

    #[test]
    fn each_set_that_shares_has_a_pattern_and_a_line() {
        let picture = verification_svg(&report(&[
            Part::sharing("p0", "..=64", vec![], (0..64).collect()),
            Part::sharing("p1", "..=64", vec![], (56..120).collect()),
            Part::sharing("p2", "..=76", vec![], (56..132).collect()),
        ]));
        assert_eq!(count(&picture, r#"<pattern id="shared"#), 2);
        assert_eq!(count(&picture, r#"<pattern id="pool"#), 2);
        assert!(picture.contains(">shared by p0, p1 and p2: 8 SMs<"));
        assert!(picture.contains(">shared by p1 and p2: 56 SMs<"));
        assert!(picture.contains(">for one partition only, above its floor: 68 SMs<"));
        assert!(
            picture.contains("SM 5: only p0 may use it, above its floor; blocks of p0 ran here")
        );
    }

    #[test]
    fn many_partitions_that_share_are_drawn_small() {
        let names: Vec<String> = (0..30).map(|number| format!("partition-{number}")).collect();
        let part = |name| Part::sharing(name, "..", vec![], (0..132).collect());
        let parts: Vec<_> = names.iter().map(|name| part(name)).collect();
        let picture = verification_svg(&report(&parts));
        let document = roxmltree::Document::parse(&picture).expect("well-formed");
        assert!(picture.contains(">parti…: .. → 0 to 132, 132</text>"));
        assert!(picture.contains(">shared by 30 partitions: 132 SMs<"));
        assert!(picture.contains("colours repeat after 21 partitions"));
        // A picture with this number of rows must still be readable.
        let height = document.root_element().attribute("height").and_then(|text| text.parse().ok());
        assert!(height.is_some_and(|height: f64| height < 2400.0), "{height:?}");
    }

    #[test]
    fn a_partition_that_missed_sms_is_named() {
        let mut report = exclusive(&[("p0", (0..16).collect()), ("p1", (16..32).collect())]);
        report.partitions[1].blocks.retain(|block| block.sm != 20);
        let picture = verification_svg(&report);
        assert!(picture.contains("p1 did not run on SM 20 of its floor"));
        assert!(picture.contains(r##"fill="#c00000" font-weight="bold">15</text>"##));
        assert_eq!(count(&picture, r#"class="sm missed""#), 1);
        assert!(picture.contains("SM 20: floor of p1; nothing ran here"));
    }

    #[test]
    fn names_are_escaped_and_cut() {
        let mut report =
            exclusive(&[("<b>&", (0..8).collect()), ("a rather long name of it", vec![9])]);
        report.device_name = "\"<GPU>\" & sons".to_owned();
        report.driver.profile = None;
        let picture = verification_svg(&report);
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
            let picture = verification_svg(&exclusive(&partitions));
            roxmltree::Document::parse(&picture).expect("well-formed");
            assert!(!picture.contains("NaN") && !picture.contains("inf"));
        }
    }

    #[test]
    fn an_sm_beyond_the_devices_count_has_a_cell_too() {
        let picture = verification_svg(&exclusive(&[("p0", vec![0, 400])]));
        assert_eq!(count(&picture, r#"<g class="sm"#), 1 + 132 + 1);
    }
}
