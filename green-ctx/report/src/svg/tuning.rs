//! The chart of a tuning search. It shows one job's rate or latency against the other jobs' rates, for each arm.

use green_ctx_tune::{ArmKind, ArmReport, Goal, Outcome};

use super::plot::{self, Axes, Axis, LEFT, LINE};
use super::{GREEN, INK, MARGIN, RED, SOFT, WIDTH, curve, page};
use crate::canvas::{Canvas, Colour, Escaped, Number, shortened};

const MOST_NOTES: usize = 8;
const PLOT_HEIGHT: f64 = 350.0;

/// Draws a chart of a tuning search with a point for each arm. The chart shows one job's rate or latency against the
/// other jobs' rates.
///
/// The same outcome always gives the same SVG text. The text has no external references. In a browser, hovering over
/// a point shows the arm's shares and figures.
///
/// # Examples
///
/// ```
/// use green_ctx_tune::{self as tune, Goal, Model, ModelJob, UnitSizes, Profile, Request};
///
/// let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
/// let mut model = Model::new(pieces, vec![ModelJob::default(); 2], 1);
/// let (jobs, request) = ([Profile::new("a"), Profile::new("b")], Request::new(Goal::throughput()));
/// let outcome = tune::with(&mut model, &jobs, pieces, &request, &mut |_| true)?;
/// let picture = green_ctx_report::tuning_svg(&outcome);
/// assert!(picture.starts_with("<svg "));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn tuning_svg(outcome: &Outcome) -> String {
    let names: Vec<String> = outcome.jobs.iter().map(|job| shortened(&job.name, 16)).collect();
    let title = format!("{}: {}", names.join(" + "), outcome.goal);
    let mut body = Canvas::default();
    page::title(&mut body, 16.5, &shortened(&title, 96));
    let alone =
        outcome.jobs.iter().map(|job| format!("{} {:.0}", shortened(&job.name, 16), job.rate));
    let alone = format!("Iterations per second alone: {}", alone.collect::<Vec<_>>().join(", "));
    body.text(MARGIN, 66.0, &format!(r#"font-size="13" fill="{SOFT}""#), &shortened(&alone, LINE));
    let top = verdict(&mut body, outcome) + 24.0;
    let axes = axes(outcome, top);
    axes.draw(&mut body);
    let drawn = points(&mut body, outcome, &axes);
    let y = top + PLOT_HEIGHT + 62.0;
    body.text(MARGIN, y, &page::heading(), "Each job alone, on fewer SMs");
    let y = curve::speeds(&mut body, &outcome.curves(), y + 20.0);
    let bottom = notes(&mut body, outcome, drawn, y + 28.0);
    page::page(&title, "", bottom, body)
}

/// Draws the verdict, and returns the position below it.
fn verdict(canvas: &mut Canvas, outcome: &Outcome) -> f64 {
    let verdict = &outcome.verdict;
    let colour = match verdict.kind {
        _ if !verdict.meets => RED.to_owned(),
        kind => colour(kind),
    };
    plot::sentence(canvas, &colour, &verdict.sentence)
}

/// Returns an arm's coordinates. The first is a job's latency, or the first job's rate in percent of its rate alone.
/// The second is the sum of the other jobs' rates, each in percent of that job's rate alone. The latency is the 99th
/// percentile, or the median if there are too few iterations for that percentile.
fn coordinates(outcome: &Outcome, arm: &ArmReport) -> Option<(f64, f64)> {
    let percent = |name: &str| {
        let job = outcome.jobs.iter().find(|job| job.name == name)?;
        Some(100.0 * arm.rates.get(name)? / job.rate)
    };
    let of_goal = outcome.goal.percentile().map(|(job, _)| job);
    let first = of_goal.or(outcome.jobs.first().map(|job| job.name.as_str()))?;
    let others = outcome.jobs.iter().filter(|job| job.name != first);
    let y = others.map(|job| percent(&job.name)).sum::<Option<f64>>()?;
    let x = match of_goal {
        Some(job) => arm.latency_us.get(job).map(|latency| latency.p99.unwrap_or(latency.p50))?,
        None => percent(first)?,
    };
    let is_drawn = |value: f64| value.is_finite() && (0.0..1e12).contains(&value);
    (is_drawn(x) && is_drawn(y)).then_some((x, y))
}

/// Returns the axes of the chart.
fn axes(outcome: &Outcome, top: f64) -> Axes {
    let points: Vec<_> = outcome.arms.iter().filter_map(|arm| coordinates(outcome, arm)).collect();
    let first = outcome.goal.percentile().map(|(job, _)| job.to_owned());
    let is_latency = first.is_some();
    let first = first.or(outcome.jobs.first().map(|job| job.name.clone())).unwrap_or_default();
    let others = outcome.jobs.iter().map(|job| &job.name).filter(|name| **name != first);
    let others: Vec<String> = others.map(|name| shortened(name, 16)).collect();
    let first = shortened(&first, 16);
    let x = match is_latency {
        true => format!("p99 of {first}, µs"),
        false => format!("rate of {first}, % of its rate alone"),
    };
    let bound = match &outcome.goal {
        Goal::Keep { bound_us, .. } => [Some(*bound_us), None],
        Goal::Least { keep, .. } => [None, Some(100.0 * keep)],
        _ => [None, None],
    };
    Axes {
        x: Axis::around(points.iter().map(|(x, _)| *x)),
        y: Axis::around(points.iter().map(|(_, y)| *y)),
        captions: [x, format!("rate of {}, % of the rate alone", others.join(" + "))],
        bound,
        top,
        height: PLOT_HEIGHT,
    }
}

/// Draws a point for each arm that has both coordinates. Marks the recommended arm and the arm that it was compared
/// with. Returns the number of points.
fn points(canvas: &mut Canvas, outcome: &Outcome, axes: &Axes) -> usize {
    let verdict = &outcome.verdict;
    let chosen = Some(verdict.arm);
    let other = if chosen == verdict.rival { verdict.candidate } else { verdict.rival };
    let mut arms: Vec<(usize, &ArmReport, (f64, f64))> = outcome
        .arms
        .iter()
        .enumerate()
        .filter_map(|(place, arm)| Some((place, arm, coordinates(outcome, arm)?)))
        .collect();
    // The marked arms are drawn last, so that no other point covers them.
    arms.sort_by_key(|(place, ..)| [chosen, other].contains(&Some(*place)));
    for (place, arm, point) in &arms {
        let (x, y) = axes.at(*point);
        let (colour, pale) = (colour(arm.kind), if arm.meets() { 1.0 } else { 0.35 });
        let job = outcome.goal.percentile().and_then(|(job, _)| arm.latency_us.get(job));
        let is_median = job.is_some_and(|latency| latency.p99.is_none());
        let fill = if is_median { "#ffffff" } else { &colour };
        let text = outcome.describe(arm);
        let figures =
            format!("{text}; {:.0}, {:.0}; {} measurement blocks", point.0, point.1, arm.blocks);
        canvas.put(format_args!(
            r#"<circle class="arm" cx="{}" cy="{}" r="4" fill="{fill}" stroke="{colour}" opacity="{pale}"><title>{}</title></circle>"#,
            Number(x),
            Number(y),
            Escaped(&figures),
        ));
        let class = match *place {
            place if chosen == Some(place) => "chosen",
            place if other == Some(place) => "rival",
            _ => continue,
        };
        canvas.put(format_args!(
            r#"<circle class="{class}" cx="{}" cy="{}" r="8" fill="none" stroke="{INK}" stroke-width="1.6"/>"#,
            Number(x),
            Number(y),
        ));
        // The label goes to the side with more room.
        let (x, anchor) = if x < WIDTH / 2.0 { (x + 13.0, "start") } else { (x - 13.0, "end") };
        let y = if class == "chosen" { y - 6.0 } else { y + 14.0 };
        let label = format!(
            r#"class="label {class}" font-size="11.5" text-anchor="{anchor}" fill="{INK}""#
        );
        canvas.text(
            x,
            y.clamp(axes.top + 10.0, axes.top + PLOT_HEIGHT - 4.0),
            &label,
            &shortened(&text, 60),
        );
    }
    if arms.is_empty() {
        canvas.text(LEFT + 20.0, axes.top + 30.0, "", "no arm has figures to show");
    }
    let mut x = LEFT;
    for kind in ArmKind::ALL {
        canvas.put(format_args!(
            r#"<circle cx="{}" cy="{}" r="4" fill="{}"/>"#,
            Number(x),
            Number(axes.top - 10.0),
            colour(kind),
        ));
        canvas.text(
            x + 8.0,
            axes.top - 6.0,
            &format!(r#"font-size="11" fill="{INK}""#),
            kind.as_str(),
        );
        x += 100.0;
    }
    if outcome.goal.percentile().is_some() {
        let text = "hollow: p50, because p99 needs more iterations; pale: misses the bound";
        canvas.text(x, axes.top - 6.0, &format!(r#"font-size="11" fill="{SOFT}""#), text);
    }
    arms.len()
}

fn colour(kind: ArmKind) -> String {
    match kind {
        ArmKind::Sequential => SOFT.to_owned(),
        ArmKind::Streams => Colour::of(0).to_string(),
        ArmKind::Priority => Colour::of(5).to_string(),
        _ => GREEN.to_owned(),
    }
}

/// Writes the information that is not in the chart, and returns the position below it.
fn notes(canvas: &mut Canvas, outcome: &Outcome, drawn: usize, top: f64) -> f64 {
    let skipped = outcome.arms.iter().filter(|arm| arm.skipped.is_some()).count();
    let mut lines = vec![format!(
        "{drawn} arms drawn, {skipped} skipped; tuning took {:.1} s",
        outcome.seconds
    )];
    if !outcome.complete {
        lines.push("Interrupted: this is the best result so far.".to_owned());
    }
    lines.extend(outcome.notes.iter().take(MOST_NOTES).cloned());
    plot::notes(canvas, &lines, top)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use green_ctx_tune::{self as tune, Arrival, Model, ModelJob, Profile, Request, UnitSizes};
    use roxmltree::Document;

    use super::*;

    fn tuned(names: &[&str], goal: &str) -> Outcome {
        let job = |blocks, block_us, memory_us| {
            let mut job = ModelJob::default();
            (job.blocks, job.block_us, job.memory_us) = (blocks, block_us, memory_us);
            job.arrival = Arrival::closed(1);
            job
        };
        let mut jobs = vec![job(132, 20.0, 90.0), job(1056, 60.0, 40.0), job(66, 80.0, 10.0)];
        jobs[1].least_sms = 24;
        jobs.truncate(names.len());
        let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
        let profiles: Vec<Profile> = names.iter().map(|name| Profile::new(*name)).collect();
        let request = Request::new(goal.parse().expect(goal)).budget(Duration::from_secs(6));
        let mut model = Model::new(pieces, jobs, 7);
        tune::with(&mut model, &profiles, pieces, &request, &mut |_| true).expect("an outcome")
    }

    /// Draws the outcome, and checks that all elements are inside the page.
    fn drawn(outcome: &Outcome) -> String {
        let picture = tuning_svg(outcome);
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        let document = Document::parse(&picture).expect("well-formed");
        let number = |node: roxmltree::Node<'_, '_>, name| {
            node.attribute(name).and_then(|text| text.parse::<f64>().ok())
        };
        let root = document.root_element();
        for (ends, size) in [(["x", "cx"], "width"), (["y", "cy"], "height")] {
            let most = number(root, size).expect("a size");
            for node in document.descendants() {
                for value in ends.iter().filter_map(|name| number(node, name)) {
                    assert!((0.0..=most).contains(&value), "{node:?}");
                }
            }
        }
        picture
    }

    #[test]
    fn every_arm_with_figures_has_a_point_and_two_are_marked() {
        let keep = ["keep:decode:p99:140us", "least:decode:p99:keep:prefill:0.6"];
        for goal in ["throughput", "makespan"].into_iter().chain(keep) {
            let outcome = tuned(&["decode", "prefill"], goal);
            let picture = drawn(&outcome);
            let points = outcome.arms.iter().filter(|arm| coordinates(&outcome, arm).is_some());
            let count = |class| picture.matches(&format!(r#"class="{class}""#)).count();
            let counts = ["arm", "chosen", "rival"].map(count);
            assert_eq!(counts, [points.count(), 1, 1], "{goal}");
            assert!(picture.contains(&Escaped(goal).to_string()) && picture.contains(" skipped"));
        }
        drawn(&tuned(&["decode", "prefill", "embed"], "throughput"));
    }

    #[test]
    fn anything_gives_a_picture() {
        let mut outcome = tuned(&["<b>&\"", &"long ".repeat(50)], "throughput");
        outcome.complete = false;
        outcome.notes = vec!["a note".to_owned(); 20];
        assert!(drawn(&outcome).contains("Interrupted"));
        for value in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300] {
            let mut odd = outcome.clone();
            let rates = odd.arms.iter_mut().flat_map(|arm| arm.rates.values_mut());
            rates.for_each(|rate| *rate = value);
            drawn(&odd);
        }
        outcome.arms.clear();
        assert!(drawn(&outcome).contains("no arm has figures to show"));
        outcome.jobs.clear();
        drawn(&outcome);
    }
}
