//! The table of all combinations, and whether the tuner is as good as it must be.

use std::collections::BTreeSet;

use super::file::{Combination, MixFile};
use super::judge::{Judged, SLACK, WIDEST, judge};
use super::stats::{Interval, median};
use crate::machine::Machine;
use crate::table;

/// The median of all regrets, at most.
const MEDIAN: f64 = 0.03;
/// No interval of a regret lies wholly above this.
const EACH: f64 = 0.06;
/// No interval of a gain lies wholly below this.
const LOSS: f64 = -0.01;

/// The columns of the table.
const HEAD: [&str; 9] = [
    "mix",
    "goal",
    "tuner's choice",
    "verdict",
    "oracle's best",
    "best of all",
    "regret",
    "against no partitions",
    "",
];

/// Something that must hold.
pub(super) struct Limit {
    what: String,
    measured: String,
    holds: bool,
}

impl Limit {
    pub(super) fn holds(&self) -> bool {
        self.holds
    }
}

/// A mix with a goal, judged.
struct Row<'f> {
    file: &'f MixFile,
    combination: &'f Combination,
    judged: Option<Judged>,
}

fn rows(files: &[MixFile]) -> Vec<Row<'_>> {
    let rows = files.iter().flat_map(|file| {
        file.combinations.iter().map(move |combination| {
            let judged = judge(&combination.finalists);
            Row { file, combination, judged }
        })
    });
    rows.collect()
}

/// The limits, for so many combinations or more.
pub(super) fn limits(files: &[MixFile], combinations: usize) -> Vec<Limit> {
    let rows = rows(files);
    let judged: Vec<&Judged> = rows.iter().filter_map(|row| row.judged.as_ref()).collect();
    // A mix that was measured twice, or on two grids, is one.
    let distinct: BTreeSet<_> = rows
        .iter()
        .filter(|row| row.judged.is_some())
        .map(|Row { file, combination, .. }| {
            let job = combination.goal.percentile().map(|(job, _)| job);
            (&file.mix, &combination.template, job)
        })
        .collect();
    let none = |what: String, broken: usize| Limit {
        what,
        measured: if broken == 0 { "none".to_owned() } else { broken.to_string() },
        holds: broken == 0,
    };
    let count = |breaks: &dyn Fn(&Judged) -> bool| judged.iter().filter(|one| breaks(one)).count();
    let regrets: Vec<f64> = judged.iter().map(|judged| judged.regret.middle).collect();
    let middle = median(&regrets);
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    vec![
        Limit {
            what: format!("combinations of a pair and a goal: at least {combinations}"),
            measured: distinct.len().to_string(),
            holds: distinct.len() >= combinations,
        },
        none("combinations without a comparison".to_owned(), rows.len() - judged.len()),
        Limit {
            what: format!("median regret: at most {}", percent(MEDIAN)),
            measured: middle.map_or("not measured".to_owned(), |it| format!("{:.1} %", 100.0 * it)),
            holds: middle.is_some_and(|middle| middle <= MEDIAN),
        },
        none(
            format!("regrets whose interval is wider than ±{}", percent(WIDEST)),
            count(&|judged| judged.half_width() > WIDEST),
        ),
        none(
            format!("regrets whose interval is wholly above {}", percent(EACH)),
            count(&|judged| judged.regret.low > EACH),
        ),
        none(
            format!(
                "choices whose interval is wholly more than {} below the best without partitions",
                percent(-LOSS)
            ),
            count(&|judged| judged.gain.is_some_and(|gain| gain.high < LOSS)),
        ),
        none(
            format!("choices that miss by more than {} a bound that another meets", percent(SLACK)),
            count(&|judged| judged.missed.is_some()),
        ),
    ]
}

/// The table of combinations, and that of limits.
pub(super) fn render(files: &[MixFile], limits: &[Limit]) -> String {
    let mut out = String::new();
    let mut machines: Vec<String> = files.iter().map(machine).collect();
    machines.sort();
    machines.dedup();
    for machine in machines {
        out += &format!("{machine}.\n");
    }
    let mut table = vec![HEAD.map(str::to_owned)];
    table.extend(rows(files).iter().map(cells));
    let mut checks = vec![["limit", "measured", ""].map(str::to_owned)];
    for Limit { what, measured, holds } in limits {
        let holds = if *holds { "holds" } else { "DOES NOT HOLD" };
        checks.push([what.clone(), measured.clone(), holds.to_owned()]);
    }
    out += &format!("\n{}\n{}", table::table(&table), table::table(&checks));
    out
}

fn machine(file: &MixFile) -> String {
    let Machine { device, sm_count, cuda, commit, date, driver, simulated, .. } = &file.machine;
    let driver = match driver {
        _ if *simulated => "a model of co-running jobs, no GPU".to_owned(),
        Some(driver) => format!("driver {driver} (CUDA {cuda})"),
        None => format!("CUDA {cuda}"),
    };
    format!("{device}, {sm_count} SMs, {driver}, {date}, commit {commit}")
}

fn cells(Row { file, combination, judged }: &Row<'_>) -> [String; 9] {
    let mix = file.names().join(" + ");
    let goal = combination.goal.to_string();
    let Some(judged) = judged else {
        let error = combination.error.as_deref().unwrap_or("no comparison");
        let mut cells = [const { String::new() }; 9];
        (cells[0], cells[1], cells[8]) = (mix, goal, error.to_owned());
        return cells;
    };
    let finalists = &combination.finalists;
    let oracle = finalists.iter().find(|finalist| finalist.rank == Some(1));
    let describe = |finalist: &super::file::Finalist| file.describe(&finalist.arm);
    let best = match judged.best {
        best if best == judged.chosen => "the choice".to_owned(),
        best => match finalists[best].rank {
            Some(rank) => format!("oracle's {rank}"),
            None => describe(&finalists[best]),
        },
    };
    let note = match judged.missed {
        Some(miss) => format!("misses the bound by {:.0} %", 100.0 * miss),
        None if judged.regret.low > EACH => "regret".to_owned(),
        None if judged.gain.is_some_and(|gain| gain.high < LOSS) => "worse than none".to_owned(),
        None if judged.half_width() > WIDEST => "uncertain".to_owned(),
        None => String::new(),
    };
    [
        mix,
        goal,
        describe(&finalists[judged.chosen]),
        finalists[judged.chosen].arm.kind.to_string(),
        oracle.map_or_else(String::new, describe),
        best,
        interval(judged.regret),
        judged.gain.map_or("misses the bound".to_owned(), interval),
        note,
    ]
}

/// A number with its interval, in percent.
fn interval(Interval { low, middle, high }: Interval) -> String {
    // Adding zero makes a rounded -0 a plain one.
    let percent = |share: f64| (1000.0 * share).round() / 10.0 + 0.0;
    format!("{:.1} % ({:.1} to {:.1})", percent(middle), percent(low), percent(high))
}
