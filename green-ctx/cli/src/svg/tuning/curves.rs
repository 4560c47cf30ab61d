//! Each job alone: its rate by the number of its SMs.

use super::super::canvas::{Canvas, Colour, Escaped, Number, shortened};
use super::super::{INK, SOFT};
use super::axis::{Area, Axis, Chart, can_be_drawn};
use super::subject::Subject;
use super::words;

/// Draws a line for each job, and what the lines mean.
pub(super) fn draw(canvas: &mut Canvas, subject: &Subject<'_>, area: Area) {
    let outcome = subject.outcome;
    let curves: Vec<Vec<(f64, f64, String)>> = outcome
        .jobs
        .iter()
        .map(|job| {
            let percent = job.solo.iter().map(|(sms, rate)| (*sms, *rate, 100.0 * rate / job.rate));
            percent
                .filter(|(_, _, percent)| can_be_drawn(*percent))
                .map(|(sms, rate, percent)| {
                    let tooltip = format!(
                        "{} alone on {}: {} a second, {} % of its rate in a plain stream",
                        job.name,
                        words::sms(sms),
                        words::figure(rate),
                        words::figure(percent)
                    );
                    (f64::from(sms), percent, tooltip)
                })
                .collect()
        })
        .collect();
    let all = f64::from(outcome.pieces.sms.max(1));
    let points = || curves.iter().flatten();
    let chart = Chart {
        area,
        x: Axis::from_zero(points().map(|(sms, ..)| *sms), all),
        y: Axis::from_zero(points().map(|(_, percent, _)| 1.03 * percent), 103.0),
    };
    chart.draw(canvas, "SMs", "rate, % of that in a plain stream");
    canvas.put(format_args!(
        r##"<path class="proportional" d="M{} {}L{} {}" stroke="#a8a8a8"/>"##,
        Number(chart.x(0.0)),
        Number(chart.y(0.0)),
        Number(chart.x(all)),
        Number(chart.y(100.0)),
    ));
    if points().next().is_none() {
        chart.say(canvas, "no job was measured alone");
    }
    for (job, curve) in curves.iter().enumerate() {
        line(canvas, &chart, job, curve);
    }
    key(canvas, subject, area);
}

fn line(canvas: &mut Canvas, chart: &Chart, job: usize, curve: &[(f64, f64, String)]) {
    let colour = Colour::of(job);
    canvas.group(format_args!(r#"class="curve" fill="{colour}""#));
    let corners: Vec<String> = curve
        .iter()
        .map(|(sms, percent, _)| format!("{} {}", Number(chart.x(*sms)), Number(chart.y(*percent))))
        .collect();
    if corners.len() > 1 {
        canvas.put(format_args!(
            r#"<path d="M{}" fill="none" stroke="{colour}" stroke-width="1.6"/>"#,
            corners.join("L"),
        ));
    }
    for (sms, percent, tooltip) in curve {
        canvas.put(format_args!(
            r#"<circle cx="{}" cy="{}" r="3.2"><title>{}</title></circle>"#,
            Number(chart.x(*sms)),
            Number(chart.y(*percent)),
            Escaped(tooltip),
        ));
    }
    canvas.close();
}

fn key(canvas: &mut Canvas, subject: &Subject<'_>, area: Area) {
    let jobs = &subject.outcome.jobs;
    let of_jobs = jobs.iter().enumerate().map(|(job, report)| {
        let name = shortened(&report.name, 18);
        let text = if report.solo.is_empty() { format!("{name} (not measured)") } else { name };
        (Colour::of(job).to_string(), text, INK)
    });
    let entries = of_jobs.chain([("#a8a8a8".to_owned(), "in proportion to SMs".to_owned(), SOFT)]);
    let mut x = area.left;
    let mut y = area.bottom + 54.0;
    canvas.group(format_args!(r#"class="legend" font-size="11.5""#));
    for (colour, text, ink) in entries {
        let width = 32.0 + 6.6 * text.chars().count() as f64;
        if x > area.left && x + width > area.right {
            (x, y) = (area.left, y + 18.0);
        }
        canvas.put(format_args!(
            r#"<path d="M{} {}h16" stroke="{colour}" stroke-width="2"/>"#,
            Number(x),
            Number(y - 4.0),
        ));
        canvas.text(x + 21.0, y, &format!(r#"fill="{ink}""#), &text);
        x += width;
    }
    canvas.close();
}
