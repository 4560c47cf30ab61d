//! The picture of a search: what each arm brings to one job and to the others.

mod axis;
mod frontier;
mod guides;
mod labels;
mod marks;
mod subject;
#[cfg(test)]
mod tests;
mod words;

use green_ctx::tune::{ArmKind, JobReport, Outcome};

use self::axis::Area;
use self::subject::Subject;
use super::canvas::{Canvas, Colour, shortened};
use super::{GREEN, INK, MARGIN, RED, SOFT, WIDTH, page};

/// Characters of a line of text that fit across the page.
const LINE: usize = 124;
const LINE_HEIGHT: f64 = 18.0;
const MOST_NOTES: usize = 8;
const PLOT_HEIGHT: f64 = 350.0;

/// Draws the arms.
pub(crate) fn render_tuning(outcome: &Outcome) -> String {
    let subject = Subject::of(outcome);
    let mut body = Canvas::default();
    let y = head(&mut body, outcome);
    let (left, top, right) = (MARGIN + 56.0, y + 28.0, WIDTH - MARGIN - 6.0);
    let area = Area { left, top, right, bottom: top + PLOT_HEIGHT };
    let drawn = frontier::draw(&mut body, &subject, area);
    let y = foot(&mut body, &subject, drawn, area.bottom + 112.0);
    page::page(&words::title(outcome, usize::MAX), "", y, body)
}

/// Writes title, jobs and verdict, and returns where they end.
fn head(canvas: &mut Canvas, outcome: &Outcome) -> f64 {
    let title = words::title(outcome, 14);
    // Goals with two jobs in them are long.
    let size = match title.chars().count() {
        0..=72 => 21.0,
        73..=92 => 16.5,
        _ => 14.0,
    };
    page::title(canvas, size, &shortened(&title, 108));
    let soft = format!(r#"font-size="13" fill="{SOFT}""#);
    let jobs: Vec<String> = outcome.jobs.iter().map(alone).collect();
    let jobs = format!("Iterations a second alone: {}", jobs.join(", "));
    canvas.text(MARGIN, 66.0, &soft, &shortened(&jobs, LINE));

    let verdict = &outcome.verdict;
    let colour = match verdict.kind {
        _ if !verdict.meets => RED.to_owned(),
        ArmKind::Partition => GREEN.to_owned(),
        _ => Colour::of(0).to_string(),
    };
    let lines = words::wrapped(&verdict.sentence, LINE, 3);
    let line = lines.first().map_or("", String::as_str);
    let (first, rest) = match line.find([':', ';']) {
        Some(end) if end < 30 => line.split_at(end + 1),
        _ => ("", line),
    };
    page::verdict(canvas, &colour, first, rest.trim_start());
    let (x, mut y) = page::VERDICT;
    for line in lines.iter().skip(1) {
        y += LINE_HEIGHT;
        canvas.text(x, y, &format!(r#"font-size="13" fill="{INK}""#), line);
    }
    y + 4.0
}

/// A job's arrivals and its rate.
fn alone(job: &JobReport) -> String {
    let (name, arrival) = (shortened(&job.name, 16), shortened(&job.arrival.to_string(), 24));
    format!("{name} {} ({arrival})", words::figure(job.rate))
}

/// Writes what the chart does not show, and returns where that ends.
fn foot(canvas: &mut Canvas, subject: &Subject<'_>, drawn: usize, top: f64) -> f64 {
    let outcome = subject.outcome;
    let mut lines = Vec::new();
    if !outcome.complete {
        lines.push((RED, "Interrupted: this is the best so far.".to_owned()));
    }
    lines.push((INK, counts(subject, drawn)));
    for note in outcome.notes.iter().take(MOST_NOTES) {
        lines.push((INK, note.clone()));
    }
    match outcome.notes.len().saturating_sub(MOST_NOTES) {
        0 => {}
        1 => lines.push((SOFT, "1 more note".to_owned())),
        more => lines.push((SOFT, format!("{more} more notes"))),
    }
    let mut y = top;
    canvas.group(format_args!(r#"class="notes" font-size="12""#));
    for (colour, text) in &lines {
        for line in words::wrapped(text, LINE + 8, 2) {
            canvas.text(MARGIN, y, &format!(r#"fill="{colour}""#), &line);
            y += LINE_HEIGHT;
        }
    }
    canvas.close();
    y - LINE_HEIGHT + 4.0
}

/// How many arms there are, how many of them were skipped and why, and how long that took.
fn counts(subject: &Subject<'_>, drawn: usize) -> String {
    let (outcome, measured) = (subject.outcome, subject.arms.len());
    let arms = |count: usize| format!("{count} {}", if count == 1 { "arm" } else { "arms" });
    let seconds = words::figure(outcome.seconds);
    let mut text = format!("{} measured in {seconds} s", arms(measured));
    if drawn < measured {
        text += &format!(", {} of them without figures to show", measured - drawn);
    }
    let skipped = outcome.arms.len() - measured;
    if skipped > 0 {
        let reason = outcome.arms.iter().find_map(|arm| arm.skipped.as_deref());
        let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
        text += &format!("; {} skipped{reason}", arms(skipped));
    }
    text
}
