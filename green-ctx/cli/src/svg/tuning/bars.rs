//! The best arms of three or four jobs: a bar each, with a part for each job.

use super::super::canvas::{Canvas, Colour, Escaped, Number, shortened};
use super::super::{INK, SOFT};
use super::axis::{Area, Axis, Chart, can_be_drawn};
use super::subject::Subject;
use super::words;

/// The most bars.
pub(super) const MOST: usize = 12;
const BAR: f64 = 9.0;

/// Draws the bars, and returns how many arms have figures to show.
pub(super) fn draw(canvas: &mut Canvas, subject: &Subject<'_>, area: Area) -> usize {
    let bars = bars(subject);
    let sum = |(_, parts): &(usize, Vec<f64>)| parts.iter().sum::<f64>();
    let chart = Chart {
        area,
        x: Axis::from_zero(bars.iter().map(sum), 100.0 / 1.06),
        y: Axis::from_zero(std::iter::empty(), 1.0),
    };
    let weighted = if subject.is_weighted() { "weighted, " } else { "" };
    ground(canvas, &chart);
    chart.draw_x(
        canvas,
        &format!("rates of all jobs, % of each one's rate alone, {weighted}summed"),
    );
    if bars.is_empty() {
        chart.say(canvas, "no arm has figures to show");
    }
    let pitch = (area.bottom - area.top) / MOST as f64;
    for (row, (place, parts)) in best(subject, &bars).into_iter().enumerate() {
        let y = area.top + row as f64 * pitch;
        bar(canvas, subject, &chart, (*place, parts), y);
    }
    bars.len()
}

/// The arms with each job's part in percent, as far as all of them can be drawn.
fn bars(subject: &Subject<'_>) -> Vec<(usize, Vec<f64>)> {
    let parts = subject.arms.iter().map(|arm| {
        let parts = arm.percent.iter().enumerate();
        parts.map(|(job, percent)| (percent * subject.weight(job)).max(0.0)).collect::<Vec<f64>>()
    });
    // NaN became 0, as of a job without a rate.
    parts.enumerate().filter(|(_, parts)| parts.iter().all(|part| can_be_drawn(*part))).collect()
}

/// The best ones by the goal's score, with the chosen one and its rival among them.
fn best<'b>(subject: &Subject<'_>, bars: &'b [(usize, Vec<f64>)]) -> Vec<&'b (usize, Vec<f64>)> {
    let score = |place: usize| {
        let score = subject.arms[place].report.score.filter(|score| score.is_finite());
        score.unwrap_or(f64::NEG_INFINITY)
    };
    let is_marked = |place| [subject.chosen, subject.rival].contains(&Some(place));
    let by_score =
        |a: &&(usize, Vec<f64>), b: &&(usize, Vec<f64>)| score(b.0).total_cmp(&score(a.0));
    let mut sorted: Vec<_> = bars.iter().collect();
    sorted.sort_by(|a, b| is_marked(b.0).cmp(&is_marked(a.0)).then(by_score(a, b)));
    sorted.truncate(MOST);
    sorted.sort_by(by_score);
    sorted
}

fn bar(
    canvas: &mut Canvas,
    subject: &Subject<'_>,
    chart: &Chart,
    (place, parts): (usize, &[f64]),
    y: f64,
) {
    let (report, jobs) = (subject.arms[place].report, &subject.outcome.jobs);
    let (class, weight) = match place {
        place if subject.chosen == Some(place) => ("bar chosen", "bold"),
        place if subject.rival == Some(place) => ("bar rival", "normal"),
        _ => ("bar", "normal"),
    };
    canvas.group(format_args!(r#"class="{class}""#));
    canvas.put(format_args!("<title>{}</title>", Escaped(&words::tooltip(report, jobs))));
    let attributes = format!(r#"font-size="10.5" font-weight="{weight}" fill="{INK}""#);
    canvas.text(
        chart.area.left + 4.0,
        y + 12.0,
        &attributes,
        &shortened(&words::describe(report, jobs), 70),
    );
    let total: f64 = parts.iter().sum();
    let right = format!(r#"{attributes} text-anchor="end""#);
    canvas.text(chart.area.right - 4.0, y + 12.0, &right, &format!("{} %", words::figure(total)));
    let mut from = 0.0;
    for (job, part) in parts.iter().enumerate() {
        let (left, right) = (chart.x(from), chart.x(from + part));
        from += part;
        canvas.put(format_args!(
            r#"<rect x="{}" y="{}" width="{}" height="{BAR}" fill="{}"/>"#,
            Number(left),
            Number(y + 16.0),
            Number(right - left),
            Colour::of(job),
        ));
    }
    let edge = match class {
        "bar chosen" => 1.8,
        "bar rival" => 0.9,
        _ => 0.0,
    };
    if edge > 0.0 {
        canvas.put(format_args!(
            r#"<rect x="{}" y="{}" width="{}" height="{BAR}" fill="none" stroke="{INK}" stroke-width="{edge}"/>"#,
            Number(chart.area.left),
            Number(y + 16.0),
            Number(chart.x(total) - chart.area.left),
        ));
    }
    canvas.close();
}

fn ground(canvas: &mut Canvas, chart: &Chart) {
    let Area { left, top, right, bottom } = chart.area;
    canvas.put(format_args!(
        r##"<rect x="{}" y="{}" width="{}" height="{}" fill="#f7f7f7"/>"##,
        Number(left),
        Number(top),
        Number(right - left),
        Number(bottom - top),
    ));
    let attributes = format!(r#"class="legend" font-size="11.5" fill="{SOFT}""#);
    let text =
        "bold: the chosen arm; thin outline: the one it is compared with; colours: jobs, as alone";
    canvas.text(left, bottom + 54.0, &attributes, text);
}
