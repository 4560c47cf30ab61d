//! The arms as points: what each brings to one job and to the others.

use green_ctx::tune::{ArmKind, Goal};

use super::super::canvas::{Canvas, Escaped, Number, shortened};
use super::super::{INK, RED, SOFT};
use super::axis::{Area, Axis, Chart, can_be_drawn};
use super::labels::Labels;
use super::subject::{Measured, Subject, colour, kind_name};
use super::words;

/// What stands on the axes.
enum Axes {
    /// A job's latency against the rates of others.
    Latency { job: usize, others: Vec<usize>, is_tail: bool },
    /// The first job's rate against the second's.
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
    match &axes {
        Axes::Rates => sums(canvas, subject, &chart),
        Axes::Latency { .. } => bounds(canvas, subject, &chart),
    }
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
        labels.avoid(at, 6.0);
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
        labels.write(canvas, at, class, &shortened(&text, 56));
    }
    key(canvas, subject, &points, area);
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
                Axes::Rates => (*arm.percent.first()?, *arm.percent.get(1)?, false),
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
            Axes::Rates => (rates(&[0]), rates(&[1])),
            Axes::Latency { job, others, is_tail } => {
                let percentile = if *is_tail { "p99" } else { "p50" };
                (format!("{percentile} of {}, µs", name(*job)), rates(others))
            }
        }
    }
}

/// Draws lines of equal sums of both rates, as the goal weighs them.
fn sums(canvas: &mut Canvas, subject: &Subject<'_>, chart: &Chart) {
    let (a, b) = (subject.weight(0), subject.weight(1));
    let Chart { x, y, area } = chart;
    let usable = |weight: f64| weight.is_finite() && weight > 0.0 && weight < 1e6;
    if !usable(a) || !usable(b) {
        return;
    }
    let (least, most) = (a * x.low + b * y.low, a * x.high + b * y.high);
    let step = super::super::ticks::tick_step(most - least, 6.0);
    let first = (least / step).ceil();
    canvas.group(format_args!(
        r##"class="sums" font-size="10" fill="{SOFT}" stroke="none" text-anchor="end""##
    ));
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
            r##"<path d="M{} {}L{} {}" stroke="#b9c4cc" stroke-dasharray="1 3"/>"##,
            Number(start.0),
            Number(start.1),
            Number(end.0),
            Number(end.1),
        ));
        let text = format!("Σ {} %", words::figure(sum));
        if end.0 - area.left > 60.0 && area.bottom - end.1 < area.bottom - area.top - 14.0 {
            canvas.text(end.0 - 4.0, end.1 - 4.0, "", &text);
        }
    }
    canvas.close();
}

/// Draws the goal's bound.
fn bounds(canvas: &mut Canvas, subject: &Subject<'_>, chart: &Chart) {
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
        Goal::Keep { percentile, bound_us, .. } => {
            let name = words::percentile_name(*percentile);
            let bound = format!("{name} ≤ {}", words::microseconds(*bound_us));
            // Above the chart, where no point is.
            if *bound_us > chart.x.high || !bound_us.is_finite() {
                text(canvas, right, top - 6.0, "end", &format!("{bound} →"));
            } else if *bound_us < chart.x.low {
                text(canvas, left, top - 6.0, "start", &format!("← {bound}"));
            } else {
                let x = chart.x(*bound_us);
                path(canvas, (x, top), (x, bottom));
                text(canvas, x.clamp(left + 50.0, right - 50.0), top - 6.0, "middle", &bound);
            }
        }
        Goal::Least { keep, .. } if can_be_drawn(*keep) => {
            let y = chart.y(100.0 * keep);
            path(canvas, (left, y), (right, y));
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
    let paint = paint(report.kind, point.is_median, subject.misses(point.arm));
    canvas.put(format_args!(
        r#"<path class="arm" d="{}" {paint}><title>{}</title></path>"#,
        shape(report.kind, at),
        Escaped(&tooltip),
    ));
}

fn paint(kind: ArmKind, is_median: bool, misses: bool) -> String {
    let colour = colour(kind);
    let fill = if is_median { "#ffffff" } else { &colour };
    let pale = if misses { r#" opacity="0.4""# } else { "" };
    format!(r#"fill="{fill}" stroke="{colour}" stroke-width="1.4"{pale}"#)
}

/// The outline of a kind's mark.
fn shape(kind: ArmKind, (x, y): (f64, f64)) -> String {
    let corners = |corners: &[(f64, f64)]| {
        let corners: Vec<String> = corners
            .iter()
            .map(|(right, down)| format!("{} {}", Number(x + right), Number(y + down)))
            .collect();
        format!("M{}Z", corners.join("L"))
    };
    match kind {
        ArmKind::Sequential => corners(&[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)]),
        ArmKind::Streams => corners(&[(0.0, -5.0), (5.0, 4.0), (-5.0, 4.0)]),
        ArmKind::Priority => corners(&[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)]),
        _ => {
            format!("M{} {}a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0 -8.4 0Z", Number(x - 4.2), Number(y))
        }
    }
}

/// Writes what the marks mean, for those that there are.
fn key(canvas: &mut Canvas, subject: &Subject<'_>, points: &[Point<'_>], area: Area) {
    let mut x = area.left;
    let mut y = area.bottom + 54.0;
    canvas.group(format_args!(r#"class="legend" font-size="11.5" fill="{INK}""#));
    let mut entry = |kind, is_median, misses, text: &str| {
        let width = 24.0 + 6.3 * text.chars().count() as f64;
        if x + width > area.right {
            (x, y) = (area.left, y + 18.0);
        }
        let paint = paint(kind, is_median, misses);
        let shape = shape(kind, (x + 6.0, y - 4.0));
        canvas.put(format_args!(r#"<path d="{shape}" {paint}/>"#));
        canvas.text(x + 16.0, y, "", text);
        x += width;
    };
    for kind in ArmKind::ALL.into_iter().rev() {
        if points.iter().any(|point| point.arm.report.kind == kind) {
            entry(kind, false, false, kind_name(kind));
        }
    }
    if points.iter().any(|point| point.is_median) {
        entry(ArmKind::Partition, true, false, "hollow: p50, too few iterations for p99");
    }
    if points.iter().any(|point| subject.misses(point.arm)) {
        entry(ArmKind::Partition, false, true, "pale: does not meet the bound");
    }
    canvas.close();
}
