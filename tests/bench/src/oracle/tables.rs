//! What a person reads of the files: a row for each combination, and whether the limits hold.

use std::collections::BTreeSet;

use super::file::{Finalist, MixFile};
use super::judge::WIDEST;
use super::limits::{self, EACH, LOSS, Limit, Row, rows};
use super::stats::Interval;
use super::steady::Steadiness;
use crate::machine::Machine;
use crate::table;

/// The columns of the table of combinations.
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

/// The columns of the table of repeated searches.
const SEARCHES: [&str; 7] =
    ["mix", "goal", "searches", "different choices", "the usual one", "chose it", "or as good"];

/// All tables: of the combinations, of repeated searches and of the limits.
pub(super) fn render(files: &[MixFile], limits: &[Limit]) -> String {
    let mut out: String = machines(files.iter()).iter().map(|one| format!("{one}.\n")).collect();
    let mut table = vec![HEAD.map(str::to_owned)];
    table.extend(rows(&files.iter().collect::<Vec<_>>()).iter().map(cells));
    out += &format!("\n{}\n", table::table(&table));
    let repeated = limits::repeated(files);
    if !repeated.is_empty() {
        let mut table = vec![SEARCHES.map(str::to_owned)];
        table.extend(repeated.iter().map(|(file, combination, found)| {
            let Steadiness { searches, different, usual, same, close } = found;
            let goal = combination.goal.to_string();
            let [searches, different, same, close] =
                [searches, different, same, close].map(ToString::to_string);
            [mix(file), goal, searches, different, file.describe(usual), same, close]
        }));
        out += &format!("{}\n", table::table(&table));
    }
    let mut checks = vec![["limit", "measured", ""].map(str::to_owned)];
    for limit in limits {
        let holds = if limit.holds() { "holds" } else { "DOES NOT HOLD" };
        checks.push([limit.what.clone(), limit.measured.clone(), holds.to_owned()]);
    }
    out + &table::table(&checks)
}

/// On what the files were measured, each machine and commit once.
pub(super) fn machines<'f>(files: impl Iterator<Item = &'f MixFile>) -> Vec<String> {
    files.map(machine).collect::<BTreeSet<_>>().into_iter().collect()
}

fn machine(file: &MixFile) -> String {
    let Machine { device, sm_count, cuda, commit, date, driver, simulated, .. } = &file.machine;
    let driver = match driver {
        _ if *simulated => "a model of co-running jobs, no GPU".to_owned(),
        Some(driver) => format!("driver {driver} (CUDA {cuda})"),
        None => format!("CUDA {cuda}"),
    };
    let program = file.program.iter().map(|program| format!(", {program}"));
    let program: String = program.collect();
    format!("{device}, {sm_count} SMs, {driver}{program}, {date}, commit {commit}")
}

/// The jobs of a file, as a person reads them.
pub(super) fn mix(file: &MixFile) -> String {
    file.names().join(" + ")
}

fn cells(Row { file, combination, judged }: &Row<'_>) -> [String; 9] {
    let mix = mix(file);
    let goal = combination.goal.to_string();
    let Some(judged) = judged else {
        let error = combination.error.as_deref().unwrap_or("no comparison");
        let mut cells = [const { String::new() }; 9];
        (cells[0], cells[1], cells[8]) = (mix, goal, error.to_owned());
        return cells;
    };
    let finalists = &combination.finalists;
    let oracle = finalists.iter().find(|finalist| finalist.rank == Some(1));
    let describe = |finalist: &Finalist| file.describe(&finalist.arm);
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
pub(super) fn interval(Interval { low, middle, high }: Interval) -> String {
    // Adding zero makes a rounded -0 a plain one.
    let percent = |share: f64| (1000.0 * share).round() / 10.0 + 0.0;
    format!("{:.1} % ({:.1} to {:.1})", percent(middle), percent(low), percent(high))
}
