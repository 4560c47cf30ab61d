//! Lines behind the points: the goal's bound, and equal sums of rates.

use green_ctx::tune::Goal;

use super::super::canvas::{Canvas, Number};
use super::super::ticks::tick_step;
use super::super::{RED, SOFT};
use super::axis::{Area, Chart, can_be_drawn};
use super::labels::Labels;
use super::subject::Subject;
use super::words;

/// Draws lines of equal sums of both rates, as the goal weighs them.
pub(super) fn sums(canvas: &mut Canvas, subject: &Subject<'_>, chart: &Chart) {
    let (a, b) = (subject.weight(0), subject.weight(1));
    let Chart { x, y, area } = chart;
    let usable = |weight: f64| weight.is_finite() && weight > 0.0 && weight < 1e6;
    if !usable(a) || !usable(b) {
        return;
    }
    let (least, most) = (a * x.low + b * y.low, a * x.high + b * y.high);
    let step = tick_step(most - least, 10.0);
    let first = (least / step).ceil();
    canvas.group(format_args!(r#"class="sums" font-size="10" fill="{SOFT}""#));
    let mut free_from = area.left + 30.0;
    for number in 0..12 {
        let sum = (first + f64::from(number)) * step;
        if sum >= most {
            break;
        }
        let x_of = |y: f64| (sum - b * y) / a;
        let y_of = |x: f64| (sum - a * x) / b;
        // From the left or upper edge to the right or lower one.
        let start = (x.low.max(x_of(y.high)), y.high.min(y_of(x.low)));
        let end = (x.high.min(x_of(y.low)), y.low.max(y_of(x.high)));
        let (start, end) = ((chart.x(start.0), chart.y(start.1)), (chart.x(end.0), chart.y(end.1)));
        canvas.put(format_args!(
            r##"<path d="M{} {}L{} {}" stroke="#9fb0bb" stroke-dasharray="1.5 3"/>"##,
            Number(start.0),
            Number(start.1),
            Number(end.0),
            Number(end.1),
        ));
        let text = format!("sum {} %", words::figure(sum));
        let is_on_top = start.1 <= area.top + 0.5;
        if is_on_top && start.0 > free_from && start.0 < area.right - 30.0 {
            canvas.text(start.0, area.top - 6.0, r#"text-anchor="middle""#, &text);
            free_from = start.0 + 60.0;
        } else if !is_on_top && start.1 > area.top + 20.0 && start.1 < area.bottom - 20.0 {
            canvas.text(area.left + 4.0, start.1 - 3.0, "", &text);
        }
    }
    canvas.close();
}

/// Draws the goal's bound.
pub(super) fn bounds(
    canvas: &mut Canvas,
    subject: &Subject<'_>,
    chart: &Chart,
    labels: &mut Labels,
) {
    let Area { left, top, right, bottom } = chart.area;
    let path = |canvas: &mut Canvas, from: (f64, f64), to: (f64, f64)| {
        canvas.put(format_args!(
            r#"<path class="bound" d="M{} {}L{} {}" stroke="{RED}" stroke-width="1.3" stroke-dasharray="6 4"/>"#,
            Number(from.0),
            Number(from.1),
            Number(to.0),
            Number(to.1),
        ));
    };
    let text = |canvas: &mut Canvas, x: f64, y: f64, anchor: &str, text: &str| {
        let attributes = format!(r#"font-size="11" text-anchor="{anchor}" fill="{RED}""#);
        canvas.text(x, y, &attributes, text);
    };
    match &subject.outcome.goal {
        Goal::Keep { bound_us, .. } => {
            let name = subject.outcome.goal.percentile_name().unwrap_or_default();
            let bound = format!("{name} ≤ {}", words::microseconds(*bound_us));
            // Above the chart, where no point is.
            if *bound_us > chart.x.high || !bound_us.is_finite() {
                text(canvas, right, top - 6.0, "end", &format!("{bound} →"));
            } else if *bound_us < chart.x.low {
                text(canvas, left, top - 6.0, "start", &format!("← {bound}"));
            } else {
                let x = chart.x(*bound_us);
                path(canvas, (x, top), (x, bottom));
                labels.avoid(Area { left: x - 1.0, top, right: x + 1.0, bottom });
                text(canvas, x.clamp(left + 50.0, right - 50.0), top - 6.0, "middle", &bound);
            }
        }
        Goal::Least { keep, .. } if can_be_drawn(*keep) => {
            let y = chart.y(100.0 * keep);
            path(canvas, (left, y), (right, y));
            labels.avoid(Area { left, top: y - 1.0, right, bottom: y + 1.0 });
            text(
                canvas,
                right - 4.0,
                y + 13.0,
                "end",
                &format!("≥ {} %", words::figure(100.0 * keep)),
            );
        }
        _ => {}
    }
}
