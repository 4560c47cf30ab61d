//! Ranks in threads, with models for devices.

use std::collections::HashMap;
use std::convert::Infallible;
use std::panic;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::super::arm::{Arm, ArmKind};
use super::super::goal::Goal;
use super::super::measure::{Block, Counts, Measure, Peers, Sample, Task};
use super::super::model::{Model, ModelJob};
use super::super::outcome::ArmReport;
use super::super::runner::chain;
use super::*;

mod failures;

const H200: Pieces = Pieces { sms: 132, unit: 8, odd: 12 };

/// The texts of all ranks, with a count of those that were ever there.
#[derive(Clone, Default)]
struct Texts(Arc<(Mutex<HashMap<String, String>>, Condvar)>);

impl RankStore for Texts {
    fn set(&mut self, key: &str, text: &str) -> Result<(), StoreError> {
        let (texts, changed) = &*self.0;
        let mut texts = texts.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(texts.insert(key.to_owned(), text.to_owned()).is_none(), "{key} is said twice");
        changed.notify_all();
        Ok(())
    }

    fn get(&mut self, keys: &[String], wait: Duration) -> Result<Vec<Option<String>>, StoreError> {
        let (texts, changed) = &*self.0;
        let texts = texts.lock().unwrap_or_else(PoisonError::into_inner);
        let lacks =
            |texts: &mut HashMap<String, String>| keys.iter().any(|key| !texts.contains_key(key));
        let (texts, _) =
            changed.wait_timeout_while(texts, wait, lacks).unwrap_or_else(PoisonError::into_inner);
        Ok(keys.iter().map(|key| texts.get(key).cloned()).collect())
    }

    fn delete(&mut self, key: &str) -> Result<(), StoreError> {
        let mut texts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(texts.remove(key).is_some(), "{key} is not there");
        Ok(())
    }
}

const LONG: Duration = Duration::from_secs(60);

type Found = Result<Outcome, RanksError>;

/// Runs ranks in threads. What a rank panics with is no result.
fn in_threads(
    count: usize,
    timeout: Duration,
    rank: impl Fn(&mut Ranks<Texts>) -> Found + Sync,
) -> (Vec<Option<Found>>, Texts) {
    let texts = Texts::default();
    let run = |number| rank(&mut Ranks::new(texts.clone(), number, count, timeout));
    let found = thread::scope(|scope| {
        let ranks: Vec<_> = (0..count).map(|number| scope.spawn(move || run(number))).collect();
        ranks.into_iter().map(|rank| rank.join().ok()).collect()
    });
    (found, texts)
}

/// The same where no rank panics.
fn all(count: usize, rank: impl Fn(&mut Ranks<Texts>) -> Found + Sync) -> Vec<Found> {
    let began = Instant::now();
    let (found, texts) = in_threads(count, LONG, rank);
    // Nobody waits for who has failed, and few texts stay: the last ones, and why it failed.
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    let left = texts.0.0.lock().unwrap_or_else(PoisonError::into_inner).len();
    assert!(left <= 3 * count, "{left} texts are left");
    found.into_iter().map(|found| found.expect("no rank panics")).collect()
}

fn profiles() -> [Profile; 2] {
    [Profile::new("reduce"), Profile::new("product")]
}

/// A job of short iterations beside one that takes the whole device.
fn jobs() -> Vec<ModelJob> {
    let short = ModelJob { blocks: 64, block_us: 50.0, ..ModelJob::default() };
    let long = ModelJob { blocks: 1320, block_us: 150.0, weight: 20.0, ..ModelJob::default() };
    vec![short, long]
}

fn model(rank: usize) -> Model {
    Model::new(H200, jobs(), rank as u64)
}

fn tune(ranks: &mut Ranks<Texts>, measure: &mut Model, request: &Request) -> Found {
    ranks.with(measure, &profiles(), &H200, request, &mut |_| true)
}

/// What all ranks found, which is the same.
fn agreed(found: Vec<Found>) -> Outcome {
    let mut outcomes = found.into_iter().map(|found| found.expect("an outcome"));
    let first = outcomes.next().expect("a rank");
    assert!(outcomes.all(|outcome| outcome == first));
    first
}

fn errors(found: Vec<Found>) -> Vec<String> {
    found.into_iter().map(|found| chain(&found.expect_err("it fails"))).collect()
}

#[test]
fn a_program_may_lead_the_ranks_itself() {
    let texts = Texts::default();
    let run = |number: usize| {
        let mut ranks = Ranks::new(texts.clone(), number, 2, LONG);
        ranks.lead(&mut model(number), &profiles(), &H200, |measure| {
            let duration = Duration::from_millis(5);
            let block =
                Block { duration, iterations: 2, rounds: false, first: 0, start: Duration::ZERO };
            let task = Task::Together(Arm::ceilings([36, 96], H200.sms));
            [(); 3].map(|()| measure.run(&task, &block).ok().map(|sample| sample.jobs.len()))
        })
    };
    let run = &run;
    let found = thread::scope(|scope| {
        [0, 1].map(|number| scope.spawn(move || run(number))).map(|rank| rank.join().expect("it"))
    });
    let [first, second] = found.map(|found| found.expect("the ranks agree"));
    assert_eq!((first, second), (Some([Some(2); 3]), None));
}

#[test]
fn all_ranks_have_the_same_outcome() {
    for (count, goal) in [(1, Goal::throughput()), (2, Goal::throughput()), (3, Goal::Makespan)] {
        let request = Request::new(goal);
        let outcome = agreed(all(count, |ranks| tune(ranks, &mut model(ranks.rank()), &request)));
        assert!(outcome.complete && outcome.arms.len() > 10, "{count} ranks");
        assert!(outcome.seconds < 11.0, "{}", outcome.seconds);
        let blocks: usize = outcome.arms.iter().map(|arm| arm.samples).sum();
        assert!(blocks > 50, "{blocks} blocks of {count} ranks");
    }
}

#[test]
fn the_choice_is_that_of_one_process() {
    let request = Request::new(Goal::keep("reduce", 0.99, 300.0));
    let outcome = agreed(all(2, |ranks| tune(ranks, &mut model(ranks.rank()), &request)));
    assert!(outcome.verdict.meets, "{}", outcome.verdict.sentence);
    assert_eq!(outcome.verdict.kind, ArmKind::Partition);
}

#[test]
fn the_slowest_rank_counts() {
    let request = Request::default();
    let found = all(3, |ranks| {
        let mut jobs = jobs();
        if ranks.rank() == 2 {
            jobs[1].block_us *= 2.0;
        }
        tune(ranks, &mut Model::new(H200, jobs, 1).with_jitter(0.0), &request)
    });
    let outcome = agreed(found);
    let model = Model::new(H200, jobs(), 1);
    let alone = [0, 1].map(|job| 1e6 / model.time_alone(job, 132));
    let ratio = |job: usize| outcome.jobs[job].rate / alone[job];
    assert!((ratio(0) - 1.0).abs() < 0.01 && (ratio(1) - 0.5).abs() < 0.01);
}

#[test]
fn what_one_rank_cannot_run_all_skip() {
    let skipped = |unable: fn(usize) -> bool| {
        let found = all(2, |ranks| {
            let mut jobs = jobs();
            if unable(ranks.rank()) {
                jobs[0].least_sms = 40;
            }
            tune(ranks, &mut Model::new(H200, jobs, 1), &Request::default())
        });
        let outcome = agreed(found);
        let skipped = |arm: &ArmReport| arm.skipped.clone();
        outcome.arms.iter().filter_map(skipped).collect::<Vec<_>>()
    };
    let one = skipped(|rank| rank == 1);
    assert!(!one.is_empty());
    assert!(one.iter().all(|reason| reason.starts_with("rank 1: it needs 40 SMs")), "{one:?}");
    let both = skipped(|_| true);
    assert!(!both.is_empty());
    assert!(both.iter().all(|reason| reason.starts_with("it needs 40 SMs")), "{both:?}");
}

#[test]
fn ranks_that_are_asked_for_different_things_all_say_so() {
    let trace = |last: f64| Arrival::trace([0.001, last]).expect("a trace");
    type Change = fn(&mut [Profile], &mut Request, &mut Pieces);
    let changes: [(Change, &str); 10] = [
        (|jobs, _, _| jobs[1].name = "p".into(), "the list of jobs is reduce, product on rank 0"),
        (|jobs, _, _| jobs.swap(0, 1), "and product, reduce on rank 2"),
        (|jobs, _, _| jobs[0].key = "v2".into(), "the key of reduce is \"\" on rank 0 and \"v2\""),
        (
            |jobs, _, _| jobs[0].arrival = Arrival::rate(100.0),
            "the arrival of reduce is closed:1 on rank 0 and rate:100 on rank 2",
        ),
        (
            |_, request, _| *request = Request::new(Goal::Makespan),
            "the goal is throughput on rank 0",
        ),
        (
            |_, request, _| {
                let weights = vec![("reduce".to_owned(), 2.0)];
                *request = Request::new(Goal::Throughput { weights });
            },
            "the goal in detail is",
        ),
        (|_, request, _| *request = request.clone().step(16), "the step is 1 on rank 0 and 16"),
        (|_, request, _| *request = request.clone().floor("reduce", 16), "the list of floors"),
        (|_, request, _| *request = request.clone().budget(LONG), "the budget is 10s on rank 0"),
        (|_, _, pieces| pieces.sms -= 8, "132 SMs in units of 8"),
    ];
    let differ = |change: &(dyn Fn(&mut [Profile], &mut Request, &mut Pieces) + Sync),
                  words: &str| {
        let found = all(3, |ranks| {
            let (mut jobs, mut request, mut pieces) = (profiles(), Request::default(), H200);
            if ranks.rank() == 2 {
                change(&mut jobs, &mut request, &mut pieces);
            }
            let found =
                ranks.with(&mut model(0), &jobs, &pieces, &request, &mut |_| panic!("it searches"));
            assert!(matches!(found, Err(RanksError::Differs { .. })), "{found:?}");
            found
        });
        let errors = errors(found);
        assert!(
            errors.iter().all(|error| error.contains(words) && *error == errors[0]),
            "{errors:?}"
        );
    };
    for (change, words) in changes {
        differ(&change, words);
    }
    // Other moments of as many.
    let traces = all(2, |ranks| {
        let mut jobs = profiles();
        jobs[0].arrival = trace(if ranks.rank() == 0 { 0.002 } else { 0.003 });
        ranks.with(&mut model(0), &jobs, &H200, &Request::default(), &mut |_| true)
    });
    assert!(errors(traces)[1].contains("the arrival of reduce is a trace of 2 moments (number"));
}

#[test]
fn a_request_that_cannot_be_is_an_error_everywhere() {
    let wrong = Request::default().floor("nobody", 8);
    let found = all(2, |ranks| {
        let request = if ranks.rank() == 1 { &wrong } else { &Request::default() };
        tune(ranks, &mut model(0), request)
    });
    assert!(matches!(&found[0], Err(RanksError::Rank { rank: 1, is_request: true, .. })));
    let texts = errors(found);
    assert!(texts[0].starts_with("rank 1 failed: a floor names nobody"), "{texts:?}");
    assert!(texts[1].starts_with("a floor names nobody"), "{texts:?}");
    // What rank 0 finds out in its search.
    let short = Request::default().budget(Duration::from_millis(20));
    let found = all(2, |ranks| tune(ranks, &mut model(0), &short));
    assert!(found.iter().all(|found| matches!(found, Err(RanksError::Request(_)))));
    assert!(errors_are_alike(errors(found), "a budget of 0.0 s is too small"));
    let found = all(2, |ranks| {
        let mut jobs = jobs();
        if ranks.rank() == 1 {
            jobs[0].least_sms = 200;
        }
        tune(ranks, &mut Model::new(H200, jobs, 1), &Request::default())
    });
    assert!(errors_are_alike(errors(found), "reduce does not run: rank 1: it needs 200 SMs"));
}

fn errors_are_alike(errors: Vec<String>, words: &str) -> bool {
    errors.iter().all(|error| *error == errors[0] && error.contains(words))
}

#[test]
fn a_search_that_rank_0_ends_has_the_best_so_far_everywhere() {
    let after = |blocks: usize| {
        all(3, |ranks| {
            let is_first = ranks.rank() == 0;
            let mut go_on = |now: &Progress<'_>| {
                assert!(is_first, "only rank 0 is asked");
                now.blocks < blocks
            };
            ranks.with(
                &mut model(ranks.rank()),
                &profiles(),
                &H200,
                &Request::default(),
                &mut go_on,
            )
        })
    };
    let outcome = agreed(after(60));
    assert!(!outcome.complete && outcome.arms.len() > 3);
    let found = after(0);
    let interrupted = RequestError::Interrupted;
    assert!(
        found
            .iter()
            .all(|found| matches!(found, Err(RanksError::Request(error)) if *error == interrupted))
    );
}

#[test]
fn what_rank_0_does_with_the_outcome_is_part_of_it() {
    let search = |finish: fn(Outcome) -> Result<Outcome, StoreError>| {
        all(2, |ranks| {
            let (request, mut model) = (Request::default(), model(0));
            ranks.search(&mut model, &profiles(), &H200, &request, &mut |_| true, &mut { finish })
        })
    };
    let noted = agreed(search(|mut outcome| {
        outcome.notes.push("seen".to_owned());
        Ok(outcome)
    }));
    assert_eq!(noted.notes.last().map(String::as_str), Some("seen"));
    let errors = errors(search(|_| Err("Ctrl-C".into())));
    assert_eq!(errors[0], "the jobs cannot run any more: Ctrl-C");
    assert_eq!(errors[1], "rank 0 failed: Ctrl-C");
}

/// What one rank does wrong in a block.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    /// It cannot run the block, and says so when it has agreed so often.
    Skips(usize),
    /// Nothing can run there any more.
    Stops(usize),
    /// The process ends.
    Dies(usize),
    /// It submits less, so that the others wait for it.
    Hangs,
    /// The process ends, and the others' devices fail.
    Crashes,
    /// It forgets a job.
    Forgets,
}

#[test]
fn texts_are_shared_and_waits_end() {
    let found = thread::scope(|scope| {
        let texts = Texts::default();
        let ranks = [0, 1, 2].map(|rank| {
            let texts = texts.clone();
            scope.spawn(move || {
                let mut ranks = Ranks::new(texts, rank, 3, LONG);
                let shared = ranks.share(&format!("from {rank}")).expect("all are there");
                let mut left = 3;
                let mut counts_down = || {
                    left -= 1;
                    Ok(left == 0)
                };
                ranks.wait(&mut counts_down).expect("it is soon done");
                let waited = if rank == 1 {
                    ranks.fail("it has had enough", false);
                    ranks.fail("only once", false);
                    None
                } else {
                    // A collective that waits for rank 1 until it is aborted.
                    Some(ranks.wait(&mut || Ok(false)).expect_err("rank 1 has failed").to_string())
                };
                (shared, waited)
            })
        });
        ranks.map(|rank| rank.join().expect("no panic"))
    });
    for (rank, (shared, waited)) in found.into_iter().enumerate() {
        assert_eq!(shared, ["from 0", "from 1", "from 2"]);
        let failed = "rank 1 failed: it has had enough".to_owned();
        assert_eq!(waited, (rank != 1).then_some(failed));
    }
}

#[test]
fn what_rank_0_finds_all_have() {
    let outcome =
        tune(&mut Ranks::new(Texts::default(), 0, 1, LONG), &mut model(0), &Request::default());
    let outcome = outcome.expect("one rank tunes alone");
    for wanted in [Ok(outcome.clone()), Err("there is no file".to_owned())] {
        let found = all(3, |ranks| {
            let is_first = ranks.rank() == 0;
            let found = ranks.ask_first(|| {
                assert!(is_first);
                wanted.clone()
            })?;
            assert_eq!(found, wanted);
            Ok(outcome.clone())
        });
        assert_eq!(agreed(found), outcome);
    }
}

#[test]
fn arms_run_as_often_on_each_rank() {
    // What each rank runs, and how often.
    let runs = Mutex::new(vec![Vec::new(); 2]);
    struct Noting<'a>(Model, &'a Mutex<Vec<Vec<(Task, Counts)>>>, usize);
    impl Measure for Noting<'_> {
        type Error = Infallible;
        fn run(&mut self, _: &Task, _: &Block) -> Result<Sample, Refusal<Infallible>> {
            panic!("ranks run counts")
        }
        fn now(&self) -> Duration {
            self.0.now()
        }
    }
    impl MeasureCounts for Noting<'_> {
        fn run_counts(
            &mut self,
            task: &Task,
            counts: &Counts,
            peers: &mut dyn Peers,
        ) -> Result<Sample, Refusal<Infallible>> {
            let sample = self.0.run_counts(task, counts, peers)?;
            let mut runs = self.1.lock().unwrap_or_else(PoisonError::into_inner);
            runs[self.2].push((task.clone(), counts.clone()));
            Ok(sample)
        }
    }
    agreed(all(2, |ranks| {
        let rank = ranks.rank();
        let mut noting = Noting(model(rank), &runs, rank);
        ranks.with(&mut noting, &profiles(), &H200, &Request::default(), &mut |_| true)
    }));
    let runs = runs.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(runs[0] == runs[1] && runs[0].len() > 50);
    // Few iterations of what is not known yet, and then as many as the block is long.
    let (first, counts) = &runs[0][0];
    assert_eq!(*first, Task::Alone { job: 0, sms: None });
    assert!(counts.iterations.len() == 1 && counts.iterations[0] <= 2, "{counts:?}");
    let streams = Task::Together(Arm::streams(2, 132));
    let together: Vec<&Counts> =
        runs[0].iter().filter(|(task, _)| *task == streams).map(|(_, counts)| counts).collect();
    assert!(together.iter().all(|counts| counts.iterations.iter().all(|count| *count >= 2)));
    assert!(together[0].iterations[0] > 100, "{:?}", together[0]);
}
