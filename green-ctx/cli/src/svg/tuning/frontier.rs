//! The arms as points: what each brings to one job and to the others.

use green_ctx::tune::Goal;

use super::super::INK;
use super::super::canvas::{Canvas, Escaped, Number, shortened};
use super::axis::{Area, Axis, Chart, can_be_drawn};
use super::labels::Labels;
use super::marks::{Key, paint, shape};
use super::subject::{Measured, Subject};
use super::{guides, words};

/// The quantities on the axes.
enum Axes {
    /// A job's latency against the rates of others.
    Latency { job: usize, others: Vec<usize>, is_tail: bool },
    /// The first job's rate against the rates of the others.
    Rates,
}

/// An arm with its coordinates.
struct Point<'a> {
    arm: &'a Measured<'a>,
    place: usize,
    x: f64,
    y: f64,
    /// Whether it has the median in place of the 99th percentile.
    is_median: bool,
}

/// Draws the points, and returns how many there are.
pub(super) fn draw(canvas: &mut Canvas, subject: &Subject<'_>, area: Area) -> usize {
    let axes = Axes::of(subject);
    let points = axes.points(subject);
    let chart = axes.chart(subject, &points, area);
    let (x_caption, y_caption) = axes.captions(subject);
    chart.draw(canvas, &shortened(&x_caption, 80), &shortened(&y_caption, 60));
    let mut labels = Labels::new(area);
    guides::bounds(canvas, subject, &chart, &mut labels);
    if points.is_empty() {
        chart.say(canvas, "no arm has figures to show");
    }
    edge(canvas, &chart, &points, matches!(axes, Axes::Rates));
    // The best last, so that no other covers them.
    let is_marked = |place| (subject.chosen == Some(place), subject.rival == Some(place));
    let score = |point: &Point<'_>| point.arm.report.score.unwrap_or(f64::NEG_INFINITY);
    let mut in_order: Vec<&Point<'_>> = points.iter().collect();
    in_order.sort_by(|a, b| {
        let marks = is_marked(a.place).cmp(&is_marked(b.place));
        marks.then(score(a).total_cmp(&score(b)))
    });
    canvas.group(format_args!(r#"class="arms""#));
    for point in in_order {
        let at = (chart.x(point.x), chart.y(point.y));
        labels.avoid(Area::around(at, 6.0));
        mark(canvas, subject, point, at);
    }
    canvas.close();
    for (place, class, radius, stroke) in
        [(subject.chosen, "chosen", 9.5, 2.2), (subject.rival, "rival", 8.5, 1.1)]
    {
        let Some(point) = points.iter().find(|point| Some(point.place) == place) else { continue };
        let at = (chart.x(point.x), chart.y(point.y));
        canvas.put(format_args!(
            r#"<circle class="{class}" cx="{}" cy="{}" r="{radius}" fill="none" stroke="{INK}" stroke-width="{stroke}"/>"#,
            Number(at.0),
            Number(at.1),
        ));
        let text = words::describe(point.arm.report, &subject.outcome.jobs);
        labels.write(canvas, at, class, &shortened(&text, 66));
    }
    let key = Key {
        kinds: points.iter().map(|point| point.arm.report.kind).collect(),
        has_medians: points.iter().any(|point| point.is_median),
        has_misses: points.iter().any(|point| !point.arm.report.meets()),
    };
    key.draw(canvas, area);
    points.len()
}

impl Axes {
    fn of(subject: &Subject<'_>) -> Axes {
        let outcome = subject.outcome;
        let Some((name, percentile)) = outcome.goal.percentile() else { return Axes::Rates };
        let job = subject.job(name).unwrap_or(0);
        let others = match &outcome.goal {
            // The goal looks at no further job.
            Goal::Least { other, .. } => subject.job(other).into_iter().collect(),
            _ => (0..outcome.jobs.len()).filter(|other| *other != job).collect(),
        };
        let mut latencies = subject.arms.iter().filter_map(|arm| arm.report.latency_us.get(name));
        let is_tail = percentile > 0.75 && latencies.any(|latency| latency.p99.is_some());
        Axes::Latency { job, others, is_tail }
    }

    /// The arms of which both figures are known.
    fn points<'a>(&self, subject: &'a Subject<'_>) -> Vec<Point<'a>> {
        let point = |(place, arm): (usize, &'a Measured<'a>)| {
            let (x, y, is_median) = match self {
                Axes::Rates => {
                    let (first, others) = arm.percent.split_first()?;
                    (*first, others.iter().sum(), false)
                }
                Axes::Latency { job, others, is_tail } => {
                    let name = &subject.outcome.jobs.get(*job)?.name;
                    let latency = arm.report.latency_us.get(name)?;
                    let tail = latency.p99.filter(|_| *is_tail);
                    let sum = others.iter().map(|other| arm.percent[*other]).sum();
                    (tail.unwrap_or(latency.p50), sum, *is_tail && tail.is_none())
                }
            };
            let is_drawn = can_be_drawn(x) && can_be_drawn(y);
            is_drawn.then_some(Point { arm, place, x, y, is_median })
        };
        subject.arms.iter().enumerate().filter_map(point).collect()
    }

    fn chart(&self, subject: &Subject<'_>, points: &[Point<'_>], area: Area) -> Chart {
        let xs = points.iter().map(|point| point.x);
        let ys = points.iter().map(|point| point.y);
        let (x, y) = match (self, &subject.outcome.goal) {
            (Axes::Rates, _) => (Axis::around(xs), Axis::around(ys)),
            (Axes::Latency { .. }, Goal::Keep { bound_us, .. }) => {
                // A bound far from all points would press them together.
                let axis = Axis::of_times(xs.clone());
                let is_near = *bound_us > axis.low / 4.0 && *bound_us < 4.0 * axis.high;
                let bound = (is_near || points.is_empty()).then_some(*bound_us);
                (Axis::of_times(xs.chain(bound)), Axis::around(ys))
            }
            (Axes::Latency { .. }, Goal::Least { keep, .. }) => {
                (Axis::of_times(xs), Axis::around(ys.chain([100.0 * keep])))
            }
            (Axes::Latency { .. }, _) => (Axis::of_times(xs), Axis::around(ys)),
        };
        Chart { area, x, y }
    }

    fn captions(&self, subject: &Subject<'_>) -> (String, String) {
        let name = |job: usize| {
            let job = subject.outcome.jobs.get(job);
            job.map_or_else(String::new, |job| shortened(&job.name, 16))
        };
        let rates = |jobs: &[usize]| {
            let names: Vec<String> = jobs.iter().map(|job| name(*job)).collect();
            match jobs {
                [_] => format!("rate of {}, % of its rate alone", names[0]),
                _ => format!("rates of {}, % of alone, summed", words::listed(&names)),
            }
        };
        match self {
            Axes::Rates => (rates(&[0]), rates(&Vec::from_iter(1..subject.outcome.jobs.len()))),
            Axes::Latency { job, others, is_tail } => {
                let percentile = if *is_tail { "p99" } else { "p50" };
                (format!("{percentile} of {}, µs", name(*job)), rates(others))
            }
        }
    }
}

/// Joins the points that no other surpasses in both figures.
fn edge(canvas: &mut Canvas, chart: &Chart, points: &[Point<'_>], more_is_better: bool) {
    // Medians say too little of a tail to be compared with it.
    let mut sorted: Vec<(f64, f64)> =
        points.iter().filter(|point| !point.is_median).map(|point| (point.x, point.y)).collect();
    let sign = if more_is_better { -1.0 } else { 1.0 };
    sorted.sort_by(|a, b| (sign * a.0).total_cmp(&(sign * b.0)).then(b.1.total_cmp(&a.1)));
    let mut best = f64::NEG_INFINITY;
    let line: Vec<String> = sorted
        .into_iter()
        .filter(|(_, y)| {
            let is_new = *y > best;
            best = best.max(*y);
            is_new
        })
        .map(|(x, y)| format!("{} {}", Number(chart.x(x)), Number(chart.y(y))))
        .collect();
    if line.len() > 1 {
        canvas.put(format_args!(
            r##"<path class="edge" d="M{}" fill="none" stroke="#8a8a8a" stroke-width="1.2"/>"##,
            line.join("L"),
        ));
    }
}

fn mark(canvas: &mut Canvas, subject: &Subject<'_>, point: &Point<'_>, at: (f64, f64)) {
    let report = point.arm.report;
    let tooltip = words::tooltip(report, &subject.outcome.jobs);
    let paint = paint(report.kind, point.is_median, !point.arm.report.meets());
    canvas.put(format_args!(
        r#"<path class="arm" d="{}" {paint}><title>{}</title></path>"#,
        shape(report.kind, at),
        Escaped(&tooltip),
    ));
}
