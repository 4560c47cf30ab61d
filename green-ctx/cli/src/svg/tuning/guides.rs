//! The line of the goal's bound, behind the points.

use green_ctx::tune::Goal;

use super::super::RED;
use super::super::canvas::{Canvas, Number};
use super::axis::{Area, Chart, can_be_drawn};
use super::labels::Labels;
use super::subject::Subject;
use super::words;

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
