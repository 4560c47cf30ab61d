//! Whether the tuner is as good as it must be.

use std::collections::BTreeSet;

use super::file::{Combination, MixFile};
use super::judge::{Judged, SLACK, WIDEST, judge};
use super::stats::median;
use super::steady::{CLOSE, Steadiness, steadiness};

/// The median of the regrets of two jobs, at most.
const MEDIAN: f64 = 0.03;
/// No interval of a regret of two jobs lies wholly above this.
pub(super) const EACH: f64 = 0.06;
/// No regret of three jobs is above this.
const THREE: f64 = 0.05;
/// No interval of a gain lies wholly below this.
pub(super) const LOSS: f64 = -0.01;
/// How long a search takes at most, in seconds: where iterations take no longer than
/// 1 ms, and so at least so many a second are done alone.
const LONGEST_S: f64 = 10.0;
const SHORT_HZ: f64 = 1000.0;
/// How many searches show how alike choices are.
const SEARCHES: usize = 20;

/// Something that must hold.
pub(super) struct Limit {
    pub(super) what: String,
    pub(super) measured: String,
    holds: bool,
}

impl Limit {
    pub(super) fn holds(&self) -> bool {
        self.holds
    }
}

/// How much there must be.
pub(super) struct Wanted {
    /// Combinations of two jobs and a goal.
    pub(super) combinations: usize,
    /// Combinations of three jobs and a goal.
    pub(super) triples: usize,
    /// Mixes for which the tuner searched again and again.
    pub(super) repeated: usize,
}

/// A mix with a goal, judged.
pub(super) struct Row<'f> {
    pub(super) file: &'f MixFile,
    pub(super) combination: &'f Combination,
    pub(super) judged: Option<Judged>,
}

impl Row<'_> {
    fn jobs(&self) -> usize {
        self.file.jobs.len()
    }
}

/// The files of GPUs or, where there is none, all. What a model says is no figure beside a GPU's.
pub(super) fn of_gpus(files: &[MixFile]) -> Vec<&MixFile> {
    let has_gpu = files.iter().any(|file| !file.machine.simulated);
    files.iter().filter(|file| !(has_gpu && file.machine.simulated)).collect()
}

pub(super) fn rows<'f>(files: &[&'f MixFile]) -> Vec<Row<'f>> {
    let rows = files.iter().flat_map(|file| {
        file.combinations.iter().map(|combination| {
            let judged = judge(&combination.finalists);
            Row { file, combination, judged }
        })
    });
    rows.collect()
}

/// The combinations in which the tuner searched several times, of GPUs and of models.
pub(super) fn repeated(files: &[MixFile]) -> Vec<(&MixFile, &Combination, Steadiness<'_>)> {
    let combinations = files
        .iter()
        .flat_map(|file| file.combinations.iter().map(move |combination| (file, combination)));
    let found = combinations.filter(|(_, combination)| !combination.repeats.is_empty());
    found.filter_map(|(file, one)| Some((file, one, steadiness(one)?))).collect()
}

/// The limits.
pub(super) fn limits(files: &[MixFile], wanted: &Wanted) -> Vec<Limit> {
    let measured = of_gpus(files);
    let rows = rows(&measured);
    let mut limits = regrets(&rows, wanted);
    limits.push(longest(&measured));
    limits.extend(alike(files, wanted));
    limits
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn none(what: String, broken: usize) -> Limit {
    let measured = if broken == 0 { "none".to_owned() } else { broken.to_string() };
    Limit { what, measured, holds: broken == 0 }
}

fn at_least(what: &str, wanted: usize, found: usize) -> Limit {
    let what = format!("{what}: at least {wanted}");
    Limit { what, measured: found.to_string(), holds: found >= wanted }
}

fn regrets(rows: &[Row<'_>], wanted: &Wanted) -> Vec<Limit> {
    // A mix that was measured twice, or on two grids, is one.
    let distinct = |jobs: usize| {
        let compared = rows.iter().filter(|row| row.judged.is_some() && row.jobs() == jobs);
        let keys = compared.map(|Row { file, combination, .. }| {
            let job = combination.goal.percentile().map(|(job, _)| job);
            (&file.mix, &combination.template, job)
        });
        keys.collect::<BTreeSet<_>>().len()
    };
    let judged = |jobs: &[usize]| -> Vec<Judged> {
        rows.iter().filter(|row| jobs.contains(&row.jobs())).filter_map(|row| row.judged).collect()
    };
    let count = |jobs: &[usize], breaks: &dyn Fn(&Judged) -> bool| {
        judged(jobs).iter().filter(|one| breaks(one)).count()
    };
    let (two, three, all) = (&[2][..], &[3][..], &[2, 3][..]);
    let middles: Vec<f64> = judged(two).iter().map(|judged| judged.regret.middle).collect();
    let middle = median(&middles);
    vec![
        at_least("combinations of a pair and a goal", wanted.combinations, distinct(2)),
        at_least("combinations of three jobs and a goal", wanted.triples, distinct(3)),
        none("combinations without a comparison".to_owned(), rows.len() - judged(all).len()),
        Limit {
            what: format!("median regret of pairs: at most {}", percent(MEDIAN)),
            measured: middle.map_or("not measured".to_owned(), |it| format!("{:.1} %", 100.0 * it)),
            holds: middle.is_some_and(|middle| middle <= MEDIAN),
        },
        none(
            format!("regrets whose interval is wider than ±{}", percent(WIDEST)),
            count(all, &|judged| judged.half_width() > WIDEST),
        ),
        none(
            format!("regrets of pairs whose interval is wholly above {}", percent(EACH)),
            count(two, &|judged| judged.regret.low > EACH),
        ),
        none(
            format!("regrets of three jobs above {}", percent(THREE)),
            count(three, &|judged| judged.regret.middle > THREE),
        ),
        none(
            format!(
                "choices whose interval is wholly more than {} below the best without partitions",
                percent(-LOSS)
            ),
            count(all, &|judged| judged.gain.is_some_and(|gain| gain.high < LOSS)),
        ),
        none(
            format!("choices that miss by more than {} a bound that another meets", percent(SLACK)),
            count(all, &|judged| judged.missed.is_some()),
        ),
    ]
}

/// The longest search for two jobs of short iterations.
fn longest(files: &[&MixFile]) -> Limit {
    let is_short =
        |file: &&&MixFile| file.jobs.len() == 2 && file.jobs.iter().all(|job| job.rate >= SHORT_HZ);
    let combinations = files.iter().filter(is_short).flat_map(|file| &file.combinations);
    let searches = combinations.flat_map(Combination::searches);
    let longest = searches.map(|search| search.seconds).reduce(f64::max);
    Limit {
        what: format!(
            "longest search for a pair with iterations up to 1 ms: at most {LONGEST_S} s"
        ),
        measured: longest.map_or("not measured".to_owned(), |it| format!("{it:.2} s")),
        holds: longest.is_some_and(|longest| longest <= LONGEST_S),
    }
}

fn alike(files: &[MixFile], wanted: &Wanted) -> [Limit; 2] {
    let mut repeated = repeated(files);
    repeated.retain(|(_, _, found)| found.searches >= SEARCHES);
    let mixes: BTreeSet<&str> = repeated.iter().map(|(file, ..)| file.mix.as_str()).collect();
    let broken = repeated.iter().filter(|(_, _, found)| !found.holds()).count();
    [
        at_least(
            &format!("mixes for which the tuner searched {SEARCHES} times"),
            wanted.repeated,
            mixes.len(),
        ),
        none(
            format!(
                "of these, fewer than 19 of 20 choices that are the same or within {}",
                percent(CLOSE)
            ),
            broken,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use green_ctx::tune::Arm;

    use super::super::file::{ArmShape, TunerRecord};
    use super::*;

    const NOTHING: Wanted = Wanted { combinations: 0, triples: 0, repeated: 0 };

    /// Two mixes of two jobs, and what is expected of their choices.
    fn files() -> Vec<MixFile> {
        serde_json::from_str(include_str!("page/files.json")).expect("files")
    }

    /// What was measured for the limit with these words, and whether it holds.
    fn limit(files: &[MixFile], words: &str) -> (String, bool) {
        let limits = limits(files, &NOTHING);
        let limit = limits.into_iter().find(|limit| limit.what.contains(words)).expect(words);
        (limit.measured, limit.holds)
    }

    fn search(seconds: f64) -> TunerRecord {
        TunerRecord {
            arm: ArmShape::of(&Arm::streams(2, 132)),
            sentence: String::new(),
            seconds,
            gain: None,
            meets: true,
            arms: 80,
        }
    }

    #[test]
    fn three_jobs_have_a_limit_of_their_own() {
        let mut files = files();
        let third = files[0].jobs[0].clone();
        files[0].jobs.push(third);
        // What was not chosen is better by 5.5 %, surely.
        let best = &mut files[0].combinations[0].finalists[1];
        best.rank = Some(2);
        let worth = super::super::file::Worth { miss: 0.0, score: 1.0 / 0.945 };
        (best.value, best.worths) = (worth, vec![worth; 3]);
        assert_eq!(limit(&files, "regrets of three jobs"), ("1".to_owned(), false));
        assert_eq!(limit(&files, "wholly above 6 %"), ("none".to_owned(), true));
        assert_eq!(limit(&files, "median regret of pairs"), ("0.0 %".to_owned(), true));
        files[0].jobs.pop();
        assert_eq!(limit(&files, "regrets of three jobs"), ("none".to_owned(), true));
        assert_eq!(limit(&files, "median regret of pairs"), ("2.8 %".to_owned(), true));
    }

    #[test]
    fn the_longest_search_of_short_jobs_counts() {
        let words = "longest search";
        let mut files = files();
        assert_eq!(limit(&files, words), ("not measured".to_owned(), false));
        files[0].combinations[0].tuner = Some(search(9.9));
        assert_eq!(limit(&files, words), ("9.90 s".to_owned(), true));
        files[0].combinations[0].repeats = vec![search(10.1), search(9.8)];
        assert_eq!(limit(&files, words), ("10.10 s".to_owned(), false));
        // An iteration of more than 1 ms.
        files[0].jobs[1].rate = 999.0;
        assert_eq!(limit(&files, words), ("not measured".to_owned(), false));
    }

    #[test]
    fn a_model_stands_in_for_repeated_searches_alone() {
        let mut files = files();
        files[0].machine.simulated = true;
        files[0].combinations[0].tuner = Some(search(10.0));
        files[0].combinations[0].repeats = vec![search(10.0); SEARCHES - 1];
        files[0].combinations[0].finalists[0].arm = search(10.0).arm;
        let combinations = "combinations of a pair";
        assert_eq!(limit(&files, combinations).0, "1");
        assert_eq!(limit(&files, "the tuner searched 20 times").0, "1");
        assert_eq!(limit(&files, "longest search").0, "not measured");
        // Without a GPU's files those of the model are all that there is.
        assert_eq!(limit(&files[..1], combinations).0, "1");
        assert_eq!(limit(&files[..1], "longest search").0, "10.00 s");
    }
}
