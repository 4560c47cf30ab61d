//! The figures of the manual's page "When does it pay?": tables between marks, in text that people write.

use std::collections::BTreeMap;

use green_ctx::tune::{ArmKind, Goal};

use super::file::{Finalist, MixFile};
use super::judge::{Judged, allowed, gain};
use super::limits::{Row, of_gpus, rows};
use super::stats::median;
use super::tables::{interval, machines, mix};
use crate::setup::Result;
use crate::table::table;

/// Before a section, with its name, and after it.
const BEGIN: &str = "<!-- figures: ";
const NAMED: &str = " -->";
const END: &str = "<!-- end of figures -->";
/// A section for which there are no files.
const NOTHING: &str = "Not measured yet.\n";

/// A page with its sections as the files have them. Sections that are there already are replaced.
pub(super) fn fill(page: &str, files: &[MixFile]) -> Result<String> {
    let files = of_gpus(files);
    let (mut out, mut sections) = (String::new(), 0);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        out += line;
        out.push('\n');
        let Some(name) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(NAMED)) else {
            continue;
        };
        out += &format!("\n{}\n{END}\n", section(name, &files)?);
        if !lines.any(|line| line == END) {
            return Err(format!("the section {name:?} of the page has no {END:?}").into());
        }
        sections += 1;
    }
    if sections == 0 {
        return Err(format!("the page has no section, such as {BEGIN}throughput{NAMED}").into());
    }
    Ok(out)
}

fn section(name: &str, files: &[&MixFile]) -> Result<String> {
    let is_kept = |row: &Row<'_>| {
        let is_pair = row.file.jobs.len() == 2;
        match (name, &row.combination.goal) {
            ("throughput", Goal::Throughput { .. }) | ("makespan", Goal::Makespan) => is_pair,
            ("keep", Goal::Keep { .. }) | ("least", Goal::Least { .. }) => is_pair,
            ("three", _) => row.file.jobs.len() == 3,
            _ => false,
        }
    };
    let text = match name {
        "machine" => {
            machines(files.iter().copied()).iter().map(|one| format!("{one}.\n")).collect()
        }
        "jobs" => jobs(files),
        "throughput" | "makespan" | "keep" | "least" | "three" => {
            combinations(rows(files).into_iter().filter(is_kept).collect())
        }
        _ => return Err(format!("a page has no section {name:?}").into()),
    };
    Ok(if text.is_empty() { NOTHING.to_owned() } else { text })
}

/// What an iteration of each job takes alone.
fn jobs(files: &[&MixFile]) -> String {
    let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for job in files.iter().flat_map(|file| &file.jobs) {
        times.entry(&job.spec).or_default().push(1e6 / job.rate);
    }
    let mut found = vec![["job", "an iteration alone"].map(str::to_owned)];
    found.extend(
        times
            .iter()
            .map(|(spec, times)| [format!("`{spec}`"), median(times).map_or(String::new(), time)]),
    );
    if found.len() > 1 { table(&found) } else { String::new() }
}

/// A row for each combination that was compared, the greatest gain first.
fn combinations(rows: Vec<Row<'_>>) -> String {
    let mut shown: Vec<Shown<'_>> = rows.into_iter().filter_map(Shown::of).collect();
    shown.sort_by(|one, other| other.order().total_cmp(&one.order()));
    let head = ["jobs", "without partitions", "the tuner's choice", "gain"];
    let mut found = vec![head.map(str::to_owned)];
    found.extend(shown.iter().map(Shown::cells));
    if found.len() > 1 { table(&found) } else { String::new() }
}

/// A combination with the arms that a row is about.
struct Shown<'f> {
    row: Row<'f>,
    judged: Judged,
    chosen: &'f Finalist,
    plain: &'f Finalist,
    /// The best partition.
    partition: &'f Finalist,
}

impl<'f> Shown<'f> {
    fn of(row: Row<'f>) -> Option<Shown<'f>> {
        let (judged, finalists) = (row.judged?, &row.combination.finalists);
        let chosen = &finalists[judged.chosen];
        let plain = finalists.iter().find(|finalist| finalist.unpartitioned)?;
        let is_partition = |one: &&Finalist| one.arm.kind == ArmKind::Partition;
        let better = |one: &'f Finalist, other: &'f Finalist| {
            if other.value().is_better_than(one.value()) { other } else { one }
        };
        let partition = if is_partition(&chosen) {
            chosen
        } else {
            finalists.iter().filter(is_partition).reduce(better)?
        };
        Some(Shown { row, judged, chosen, plain, partition })
    }

    fn has_partition(&self) -> bool {
        self.chosen.arm.kind == ArmKind::Partition
    }

    /// What partitions bring: by which rows are ordered.
    fn order(&self) -> f64 {
        match gain(self.partition, self.plain) {
            _ if !self.has_partition() && !allowed(self.partition).meets() => f64::NEG_INFINITY,
            Some(gain) => gain.middle,
            // Only partitions meet the bound.
            None => f64::INFINITY,
        }
    }

    fn cells(&self) -> [String; 4] {
        let gain = match (self.has_partition(), self.judged.gain) {
            (true, _) if !allowed(self.chosen).meets() => "the bound is missed".to_owned(),
            (true, Some(gain)) => interval(gain),
            (true, None) => "only partitions meet the bound".to_owned(),
            (false, _) if !allowed(self.partition).meets() => {
                "none, partitions miss the bound".to_owned()
            }
            (false, _) => gain(self.partition, self.plain).map_or("none".to_owned(), |gain| {
                format!("none, the best partition {}", interval(gain))
            }),
        };
        [self.jobs(), self.arm(self.plain), self.arm(self.chosen), gain]
    }

    fn jobs(&self) -> String {
        match &self.row.combination.goal {
            Goal::Keep { job, bound_us, .. } => {
                format!("{}, p99 of {job} at most {}", mix(self.row.file), time(*bound_us))
            }
            Goal::Least { job, other, keep, .. } => {
                format!("{}, p99 of {job} while {other} keeps {keep}", mix(self.row.file))
            }
            Goal::Makespan if self.row.file.jobs.len() == 3 => {
                format!("{}, an iteration of each", mix(self.row.file))
            }
            _ => mix(self.row.file),
        }
    }

    /// An arm with what the goal makes of it.
    fn arm(&self, finalist: &Finalist) -> String {
        let (file, score) = (self.row.file, finalist.value.score);
        let figure = match &self.row.combination.goal {
            _ if !allowed(finalist).meets() => {
                format!("misses the bound by {:.0} %", 100.0 * finalist.value.miss)
            }
            Goal::Throughput { .. } => format!("{score:.2} ({})", parts(file, finalist)),
            Goal::Keep { .. } => format!("{score:.2}"),
            // The score is the inverse of a time in seconds.
            _ => time(1e6 / score),
        };
        format!("{}: {figure}", file.describe(&finalist.arm))
    }
}

/// Each job's rate as a part of that alone.
fn parts(file: &MixFile, finalist: &Finalist) -> String {
    let part = |(place, job): (usize, &super::file::JobRecord)| {
        let rates = finalist.blocks.iter().filter_map(|block| block.rates.get(place).copied());
        let rate = median(&rates.collect::<Vec<f64>>()).unwrap_or(0.0);
        format!("{:.2}", rate / job.rate)
    };
    file.jobs.iter().enumerate().map(part).collect::<Vec<_>>().join(" + ")
}

/// A time in microseconds, as people read it.
fn time(us: f64) -> String {
    if us < 1000.0 { format!("{us:.0} µs") } else { format!("{:.2} ms", us / 1000.0) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file::read_all;
    use super::*;

    /// Two mixes of two jobs: one that partitions help, one that they do not.
    const FILES: &str = include_str!("page/files.json");

    fn files() -> Vec<MixFile> {
        serde_json::from_str(FILES).expect("files")
    }

    fn filled(names: &[&str], files: &[MixFile]) -> String {
        let sections =
            names.iter().map(|name| format!("{BEGIN}{name}{NAMED}\nold\n{END}\nafter\n"));
        let page = format!("before\n{}", sections.collect::<String>());
        fill(&page, files).expect("a page")
    }

    #[test]
    fn the_page_of_the_manual_has_the_figures_of_the_data() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = root.join("docs/oracle");
        let entries = std::fs::read_dir(&folder)
            .expect("a folder")
            .map(|entry| entry.expect("a file").path());
        let paths: Vec<_> =
            entries.filter(|path| path.extension().is_some_and(|it| it == "json")).collect();
        let files = if paths.is_empty() { Vec::new() } else { read_all(&[folder]).expect("files") };
        let page =
            std::fs::read_to_string(root.join("green-ctx/guide/when_it_pays.md")).expect("a page");
        let is_filled = fill(&page, &files).expect("sections") == page;
        assert!(
            is_filled,
            "fill it: oracle-report docs/oracle --page green-ctx/guide/when_it_pays.md"
        );
    }

    #[test]
    fn sections_are_replaced_and_the_rest_is_kept() {
        let page = filled(&["machine", "throughput"], &files());
        assert!(
            page.starts_with(
                "before\n<!-- figures: machine -->\n\nNVIDIA H200, 132 SMs, driver 580"
            )
        );
        assert!(
            page.ends_with("|\n\n<!-- end of figures -->\nafter\n") && !page.contains("old"),
            "{page}"
        );
        assert_eq!(fill(&page, &files()).expect("a page"), page);
        let empty = fill(&page, &[]).expect("a page");
        assert_eq!(empty.matches(NOTHING).count(), 2);
        assert!(filled(&["three"], &files()).contains(NOTHING));
    }

    #[test]
    fn the_greatest_gain_comes_first() {
        let page = filled(&["throughput"], &files());
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
        assert_eq!(rows.len(), 3, "{page}");
        let cells =
            |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let gains = [
            "copy256 + product4096",
            "plain streams: 1.00 (0.20 + 0.80)",
            "copy256 32.., product4096 ..=100: 1.20 (0.60 + 0.60)",
            "20.0 % (20.0 to 20.0)",
        ];
        assert_eq!(cells(rows[1])[1..5], gains);
        let loses = [
            "product4096 + sigmoid",
            "one after the other: 1.00 (0.50 + 0.50)",
            "one after the other: 1.00 (0.50 + 0.50)",
            "none, the best partition -10.0 % (-10.0 to -10.0)",
        ];
        assert_eq!(cells(rows[2])[1..5], loses);
    }

    #[test]
    fn bounds_are_part_of_the_row() {
        let mut files = files();
        let copy = |job: &str| job.to_owned();
        for file in &mut files {
            let job = file.jobs[0].name.clone();
            file.combinations[0].goal = Goal::keep(job, 0.99, 1500.0);
            for finalist in &mut file.combinations[0].finalists {
                finalist.value.miss =
                    if finalist.arm.kind == ArmKind::Partition { 0.0 } else { 0.5 };
            }
        }
        let page = filled(&["keep"], &files);
        assert!(page.contains("copy256 + product4096, p99 of copy256 at most 1.50 ms"), "{page}");
        assert!(page.contains("plain streams: misses the bound by 50 %"), "{page}");
        assert!(page.contains("only partitions meet the bound"), "{page}");
        let least = Goal::least(copy("copy256"), 0.99, copy("product4096"), 0.8);
        files[0].combinations[0].goal = least;
        let page = filled(&["least"], &files[..1]);
        assert!(page.contains("p99 of copy256 while product4096 keeps 0.8"), "{page}");
    }

    #[test]
    fn pages_with_other_sections_are_refused() {
        let fails = |page: &str| fill(page, &[]).expect_err(page).to_string();
        assert!(fails("text").contains("no section"));
        assert!(fails("<!-- figures: most -->\n<!-- end of figures -->").contains("\"most\""));
        assert!(fails("<!-- figures: three -->\ntext").contains("end of figures"));
    }
}
