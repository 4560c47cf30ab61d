//! The chart of a curve: a job's speed on fewer SMs.

use green_ctx_tune::{Curve, CurvePoint, CurveShape};

use super::plot::{self, Axes, Axis, LEFT, RIGHT};
use super::{GREEN, MARGIN, RED, SOFT, page};
use crate::canvas::{Canvas, Colour, Escaped, Number, shortened};

const HEIGHT: f64 = 300.0;

/// Draws a curve: the job's speed on each number of SMs, in percent of its speed on the whole device. The bars show the
/// fastest and the slowest block, the dashed line the speed of a job that scales perfectly. A vertical line marks the
/// smallest number of SMs from which on the job is within 10 % of its full speed.
///
/// The same curve always gives the same SVG text. The text has no external references. In a browser, hovering over a
/// point shows its figures.
#[must_use]
pub fn curve_svg(curve: &Curve) -> String {
    let mut body = Canvas::default();
    let title = format!("{}: how many SMs does it need?", shortened(&curve.job, 60));
    page::title(&mut body, 16.5, &title);
    if let Some(machine) = &curve.machine {
        let version = machine.driver_version.as_deref().unwrap_or("simulated");
        let text = format!("{}, driver {version}", machine.device);
        body.text(MARGIN, 66.0, &format!(r#"font-size="13" fill="{SOFT}""#), &text);
    }
    let colour = if knee(curve).is_some() { GREEN } else { RED };
    let y = plot::sentence(&mut body, colour, &curve.sentence);
    let y = speeds(&mut body, std::slice::from_ref(curve), y + 20.0);
    let bottom = plot::notes(&mut body, &crate::curve::remarks(curve), y + 28.0);
    page::page(&title, "", bottom, body)
}

/// Draws the speeds of jobs over the numbers of SMs, and returns the position below the chart. The knee of a single
/// curve is marked.
pub(super) fn speeds(canvas: &mut Canvas, curves: &[Curve], top: f64) -> f64 {
    let sms = curves.iter().filter_map(|curve| Some(f64::from(curve.points.last()?.sms)));
    let sms = sms.fold(1.0, f64::max);
    let highest = curves.iter().flat_map(|curve| places(curve).map(|(.., [_, high])| high));
    let axes = Axes {
        x: Axis { low: 0.0, high: 1.03 * sms },
        // A wild point ends at the frame, so that it does not flatten the others.
        y: Axis { low: 0.0, high: highest.fold(108.0, f64::max).min(160.0) },
        captions: ["SMs".to_owned(), "speed, % of the full speed".to_owned()],
        bound: [None; 2],
        top,
        height: HEIGHT,
    };
    axes.draw(canvas);
    let path = |canvas: &mut Canvas, class, from, to, style: &str| {
        plot::line(canvas, class, axes.at(from), axes.at(to), style);
    };
    let dashed = |colour: &str| format!(r#"stroke="{colour}" stroke-dasharray="4 4""#);
    path(canvas, "perfect", (0.0, 0.0), (sms, 100.0), &dashed("#9aa0a6"));
    if let ([_], Some(knee)) = (curves, curves.first().and_then(knee)) {
        path(canvas, "knee", (knee, 0.0), (knee, axes.y.high), &dashed(RED));
        let (x, _) = axes.at((knee, 0.0));
        let (x, anchor) =
            if x < (LEFT + RIGHT) / 2.0 { (x + 6.0, "start") } else { (x - 6.0, "end") };
        let style = format!(r#"font-size="11.5" text-anchor="{anchor}" fill="{RED}""#);
        let words = format!("within 10 % on {knee} of {sms} SMs");
        canvas.text(x, top + HEIGHT - 10.0, &style, &words);
    }
    for (index, curve) in curves.iter().enumerate() {
        let colour = Colour::of(index);
        let mut last = None;
        for (point, at, [low, high]) in places(curve) {
            if let Some(last) = last.replace(at) {
                path(
                    canvas,
                    "speed",
                    last,
                    at,
                    &format!(r#"stroke="{colour}" stroke-width="1.6""#),
                );
            }
            path(canvas, "spread", (at.0, low), (at.0, high), &format!(r#"stroke="{colour}""#));
            let (x, y) = axes.at(at);
            let value = crate::curve::figure(curve, point.median_us.unwrap_or_default());
            let unit = curve.metric.as_ref().map_or("us", |metric| metric.unit.as_str());
            let figures =
                format!("{}: {} SMs, {value} {unit}, {:.1} %", curve.job, point.sms, at.1);
            canvas.put(format_args!(
                r#"<circle class="point" cx="{}" cy="{}" r="4" fill="{colour}"><title>{}</title></circle>"#,
                Number(x),
                Number(y),
                Escaped(&figures),
            ));
        }
        let style = format!(r#"font-size="11.5" font-weight="bold" fill="{colour}""#);
        let y = top + 18.0 + 15.0 * index as f64;
        canvas.text(LEFT + 10.0, y, &style, &shortened(&curve.job, 40));
    }
    top + HEIGHT + 34.0
}

/// Returns the smallest number of SMs within 10 % of the full speed, unless the job's need is not known.
fn knee(curve: &Curve) -> Option<f64> {
    let known = !matches!(curve.shape, CurveShape::Hidden | CurveShape::Unknown);
    curve.within(0.1).filter(|_| known).map(f64::from)
}

/// Returns the points with figures: each point's coordinates, and the speeds of its slowest and fastest block.
fn places(curve: &Curve) -> impl Iterator<Item = (&CurvePoint, (f64, f64), [f64; 2])> {
    let full = curve.points.last().and_then(|whole| whole.median_us);
    curve.points.iter().filter_map(move |point| {
        let speed = |time: f64| Some(100.0 * full? / time).filter(|it| *it > 0.0 && it.is_finite());
        let blocks = point.blocks_us.iter().filter_map(|time| speed(*time));
        let ends = blocks.fold([f64::INFINITY, 0.0], |[low, high], it| [it.min(low), it.max(high)]);
        Some((point, (f64::from(point.sms), speed(point.median_us?)?), ends))
    })
}

#[cfg(test)]
mod tests {
    use green_ctx_tune::{CurveRequest, Model, ModelJob, UnitSizes, curve_with};
    use roxmltree::Document;

    use super::*;

    fn job(blocks: u32, block_us: f64) -> ModelJob {
        let mut job = ModelJob::default();
        (job.blocks, job.block_us) = (blocks, block_us);
        job
    }

    fn drawn(job: ModelJob, jitter: f64) -> (Curve, String) {
        let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
        let mut model = Model::new(pieces, vec![job], 1).with_jitter(jitter);
        let request = CurveRequest::default();
        let mut curve =
            curve_with(&mut model, "<b>", pieces, &request, &mut |_| true).expect("it runs");
        curve.notes.push("a remark".to_owned());
        let picture = curve_svg(&curve);
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        Document::parse(&picture).expect("well-formed");
        (curve, picture)
    }

    #[test]
    fn the_knee_is_marked() {
        let saturating = job(48, 500.0);
        let (_, picture) = drawn(saturating, 0.01);
        assert!(picture.contains("within 10 % on 48 of 132 SMs"), "{picture}");
        assert_eq!(picture.matches(r#"class="knee""#).count(), 1);
        assert_eq!(picture.matches(r#"class="point""#).count(), 8);
        let mut flat = job(8, 10.0);
        flat.host_us = 50.0;
        assert!(drawn(flat, 0.01).1.contains("within 10 % on 8 of 132 SMs"));
        let scaling = job(10_000, 10.0);
        assert!(drawn(scaling, 0.01).1.contains("within 10 % on 132 of 132 SMs"));
    }

    #[test]
    fn what_hides_or_lacks_figures_is_drawn_too() {
        let (_, picture) = drawn(job(40, 20_000.0), 0.3);
        assert!(picture.contains("hides its need") && !picture.contains(r#"class="knee""#));
        let mut failing = ModelJob::default();
        failing.least_sms = 24;
        let (mut curve, picture) = drawn(failing, 0.01);
        assert_eq!(picture.matches(r#"class="point""#).count(), 6);
        assert!(picture.contains("8 SMs: it does not run") && picture.contains("a remark"));
        for value in [f64::NAN, 0.0, -1.0, f64::INFINITY, 1e300] {
            (curve.points[4].blocks_us, curve.points[4].median_us) = (vec![value], Some(value));
            let picture = curve_svg(&curve);
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
        curve.points.clear();
        assert!(curve_svg(&curve).contains("scales"));
    }
}
