//! Goals, arms and figures in words.

use green_ctx::tune::{ArmKind, ArmReport, Goal, JobReport, Outcome};

use super::super::canvas::shortened;

/// What the picture is of: the jobs, the goal and the device.
pub(super) fn title(outcome: &Outcome, most_of_a_name: usize) -> String {
    let name = |name: &str| shortened(name, most_of_a_name);
    let names: Vec<String> = outcome.jobs.iter().map(|job| name(&job.name)).collect();
    let jobs = match names.as_slice() {
        [] => "no jobs".to_owned(),
        [one] => one.clone(),
        [first, others @ ..] => format!("{first} beside {}", listed(others)),
    };
    let percentile = outcome.goal.percentile_name().unwrap_or_default();
    let goal = match &outcome.goal {
        Goal::Makespan => "the least time for one iteration of each".to_owned(),
        Goal::Keep { job, bound_us, .. } => {
            format!("keep {}'s {} at most {}", name(job), percentile, microseconds(*bound_us))
        }
        Goal::Least { job, other, keep, .. } => format!(
            "the least {} of {} while {} keeps {} %",
            percentile,
            name(job),
            name(other),
            figure(100.0 * keep)
        ),
        Goal::Throughput { weights } if !weights.is_empty() => {
            let weight =
                |(job, weight): &(String, f64)| format!("{} ×{}", name(job), figure(*weight));
            let weights: Vec<String> = weights.iter().map(weight).collect();
            format!("the most throughput ({})", listed(&weights))
        }
        _ => "the most throughput".to_owned(),
    };
    format!("{jobs}: {goal} on {}", sms(outcome.pieces.sms))
}

/// How jobs have the device under an arm, as a person says it.
pub(super) fn describe(arm: &ArmReport, jobs: &[JobReport]) -> String {
    let first = || {
        let mut order: Vec<(i32, &str)> = jobs
            .iter()
            .filter_map(|job| Some((*arm.priority.get(&job.name)?, job.name.as_str())))
            .collect();
        let lowest = order.iter().map(|(priority, _)| *priority).max().unwrap_or(0);
        order.retain(|(priority, _)| *priority < lowest);
        order.sort_by_key(|(priority, _)| *priority);
        let names: Vec<String> = order.into_iter().map(|(_, name)| shortened(name, 12)).collect();
        (!names.is_empty()).then(|| format!(", {} first", names.join(", then ")))
    };
    let how = match arm.kind {
        ArmKind::Sequential => "one after the other".to_owned(),
        ArmKind::Streams => "plain streams".to_owned(),
        ArmKind::Priority => "priorities".to_owned(),
        _ => {
            let share = |job: &JobReport| {
                let share = arm.shares.get(&job.name)?;
                Some(format!("{} {}", shortened(&job.name, 12), shortened(share, 12)))
            };
            jobs.iter().filter_map(share).collect::<Vec<_>>().join(", ")
        }
    };
    how + &first().unwrap_or_default()
}

/// Everything that is known of an arm.
pub(super) fn tooltip(arm: &ArmReport, jobs: &[JobReport]) -> String {
    let mut parts = vec![format!("{}: {}", arm.kind, describe(arm, jobs))];
    for job in jobs {
        let mut figures = Vec::new();
        if let Some(priority) = arm.priority.get(&job.name) {
            figures.push(format!("priority {priority}"));
        }
        if let Some(rate) = arm.rates.get(&job.name) {
            let percent = 100.0 * rate / job.rate;
            figures.push(format!("{} a second, {} % of alone", figure(*rate), figure(percent)));
        }
        if let Some(latency) = arm.latency_us.get(&job.name) {
            figures.push(format!("p50 {}", microseconds(latency.p50)));
            figures.extend(latency.p99.map(|p99| format!("p99 {}", microseconds(p99))));
        }
        parts.push(format!("{} {}", job.name, figures.join(", ")));
    }
    parts.extend(arm.score.map(|score| format!("score {}", figure(score))));
    parts.push(format!("{} {}", arm.samples, if arm.samples == 1 { "block" } else { "blocks" }));
    parts.join("; ")
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn listed(texts: &[String]) -> String {
    match texts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

pub(super) fn microseconds(time: f64) -> String {
    format!("{} µs", figure(time))
}

pub(super) fn sms(count: u32) -> String {
    format!("{count} {}", if count == 1 { "SM" } else { "SMs" })
}

/// A number to three digits or, of large ones, all before the point.
pub(super) fn figure(number: f64) -> String {
    match number.abs() {
        size if !size.is_finite() => "?".to_owned(),
        size if size >= 1e9 => format!("{number:.2e}"),
        size if size >= 99.95 || size == 0.0 => format!("{number:.0}"),
        size if size >= 9.995 => format!("{}", (number * 10.0).round() / 10.0),
        size if size >= 0.01 => format!("{}", (number * 100.0).round() / 100.0),
        _ => format!("{number:.2e}"),
    }
}

/// A text in lines of at most so many characters. The last line that there may be ends in an ellipsis
/// where it does not hold the rest.
pub(super) fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    // A number stays with its unit.
    let text = text.replace(" %", "\u{a0}%").replace(" µs", "\u{a0}µs");
    let mut lines: Vec<String> = Vec::new();
    for word in text.split([' ', '\n', '\t']).filter(|word| !word.is_empty()) {
        let fits = |line: &String| line.chars().count() + 1 + word.chars().count() <= width;
        let is_last = lines.len() >= most;
        match lines.last_mut() {
            Some(line) if is_last || fits(line) => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| shortened(line, width)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let figures =
            [0.0, 0.123456, 1.0, 12.34, 499.6, 12345.6, 1e12, 0.0001, f64::NAN].map(figure);
        assert_eq!(figures, ["0", "0.12", "1", "12.3", "500", "12346", "1.00e12", "1.00e-4", "?"]);
    }

    #[test]
    fn text_is_wrapped_between_words() {
        assert_eq!(wrapped("one two three four", 8, 3), ["one two", "three", "four"]);
        assert_eq!(wrapped("one two three four", 8, 2), ["one two", "three f…"]);
        assert_eq!(wrapped("gains +3.6 % or", 11, 2), ["gains", "+3.6\u{a0}% or"]);
        assert_eq!(wrapped("incomprehensibly long", 8, 2), ["incompr…", "long"]);
        assert!(wrapped("", 8, 2).is_empty());
    }
}
