//! The figures as Markdown, with aligned columns for readers of the plain text.

use crate::check::{self, Goal};
use crate::report::{ArmReport, Report, Sample};

/// Renders a whole report.
pub(crate) fn render(report: &Report) -> String {
    let mut out = format!("{}.\n\n", report.machine());
    if report.machine.simulated {
        out += "On a simulated driver: the times say nothing about a GPU.\n\n";
    } else if report.quick {
        out += "A quick run, with too few samples to judge.\n\n";
    } else {
        out += &goals(&check::goals(report));
        out.push('\n');
    }
    let timer = timings(std::slice::from_ref(&report.timer));
    out += &format!(
        "The clock itself, included in every time that was measured call by call:\n\n{timer}\n"
    );
    for arm in &report.arms {
        out += &arm_table(arm);
    }
    out += &format!("The whole run took {:.0} s.\n", report.seconds);
    out
}

/// Renders the goals with their figures.
pub(crate) fn goals(goals: &[Goal]) -> String {
    let mut rows = vec![["goal", "limit", "measured", ""].map(str::to_owned)];
    for goal in goals {
        let holds = if goal.holds() { "holds" } else { "DOES NOT HOLD" };
        rows.push([goal.what.clone(), goal.limit(), goal.measured(), holds.to_owned()]);
    }
    table(&rows)
}

fn arm_table(arm: &ArmReport) -> String {
    let mut out = format!("### {}\n\n{}\n\n", arm.name, arm.about);
    if let Some(error) = &arm.error {
        return out + &format!("Failed: {error}\n\n");
    }
    if !arm.samples.is_empty() {
        out += &timings(&arm.samples);
        out.push('\n');
    }
    if !arm.figures.is_empty() {
        let mut rows = vec![["figure", ""].map(str::to_owned)];
        for figure in &arm.figures {
            rows.push([figure.name.clone(), figure.unit.show(figure.value).to_string()]);
        }
        out += &table(&rows);
        out.push('\n');
    }
    out
}

fn timings(samples: &[Sample]) -> String {
    let mut rows = vec![["", "p50", "p90", "p99", "max", "min", "samples"].map(str::to_owned)];
    for sample in samples {
        let Sample { name, unit, count, min, p50, p90, p99, max } = sample;
        let [p50, p90, p99, max, min] =
            [p50, p90, p99, max, min].map(|value| unit.show(*value).to_string());
        rows.push([name.clone(), p50, p90, p99, max, min, count.to_string()]);
    }
    table(&rows)
}

/// Renders a table whose first row is the header.
pub(crate) fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let mut widths = [3; COLUMNS];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(widths) {
            out += &format!("| {cell:<width$} ");
        }
        out += "|\n";
        if index == 0 {
            for width in widths {
                out += &format!("|{}", "-".repeat(width + 2));
            }
            out += "|\n";
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["", "p50"], ["größe", "1 µs"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "|       | p50  |\n|-------|------|\n| größe | 1 µs |\n");
    }
}
