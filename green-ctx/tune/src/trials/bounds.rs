//! Tests of goals with a bound, for measurements that are noisy near the bound.

use super::*;

/// Returns the outcome of tuning two jobs. For each kind of arm, `us` returns the times of the jobs' iterations in µs.
/// A job with an infinite time makes no progress. `scatter` is the noise between measurement blocks.
fn tuned(us: fn(ArmKind) -> [f64; 2], scatter: f64, request: &Request, seed: u64) -> Outcome {
    let (jobs, mut rng) = (vec![ModelJob::default(); 2], Rng::with_seed(seed));
    changed(&jobs, request, |model, task, block| {
        model.run(task, block)?;
        let job = |us: f64| {
            if us.is_infinite() {
                return JobSample::default();
            }
            let us = us * (1.0 + scatter * (rng.f64() - 0.5));
            let latencies_us = vec![us; (block.duration.as_secs_f64() * 1e6 / us) as usize + 1];
            JobSample { rate: 1e6 / us, latencies_us, host_us: 1.0 }
        };
        let jobs = match task {
            Task::Alone { .. } => [50.0].map(job).to_vec(),
            Task::Together(arm) => us(arm.kind()).map(job).to_vec(),
        };
        Ok(Sample { jobs, rounds_us: Vec::new() })
    })
    .expect("it runs")
}

fn verdict(us: fn(ArmKind) -> [f64; 2], scatter: f64, goal: Goal) -> Verdict {
    tuned(us, scatter, &Request::new(goal), 1).verdict
}

#[test]
fn the_rival_is_one_that_is_sure_to_meet_the_bound() {
    // Streams and priorities give the other job higher rates, but it is not certain that they meet the bound.
    let us = |kind| match kind {
        ArmKind::Partition => [400.0, 100.0],
        ArmKind::Streams => [498.0, 90.0],
        ArmKind::Sequential => [300.0, 100.0],
        ArmKind::Priority => [498.0, 91.0],
    };
    let outcome = tuned(us, 0.02, &Request::new(Goal::keep("a", 0.5, 500.0)), 1);
    let rival = outcome.verdict.rival.expect("one ran");
    assert_eq!(outcome.arms[rival].kind, ArmKind::Sequential, "{:?}", outcome.verdict);
    let Outcome { verdict: Verdict { sentence, .. }, notes, arms, .. } = outcome;
    assert!(!sentence.contains("Without partitions, the bound"), "{sentence}");
    // The sentence and a note say which arms were not compared, and the arms say why.
    let words = "The best partitions that certainly meet the bound (";
    assert!(sentence.contains(words), "{sentence}");
    let left_out = |note: &String| {
        note.contains(", the score was higher than with one after the other, and the final")
            && note.ends_with("so this arm was left out; a larger budget may decide it")
    };
    assert!(notes.iter().any(left_out), "{notes:?}");
    assert_eq!(arms[rival].certain, Some(true));
    let seeming = |arm: &ArmReport| arm.meets() && arm.certain == Some(false);
    assert!(arms.iter().any(|arm| arm.kind != ArmKind::Sequential && seeming(arm)), "{arms:?}");
    assert!(arms.iter().any(|arm| arm.stage != Stage::Final && arm.certain.is_none()));
}

#[test]
fn partitions_that_only_seem_to_meet_the_bound_do_not_hide_others() {
    // Only partitions with many SMs for the first job still meet the bound in long blocks.
    let jobs = vec![ModelJob::default(); 2];
    let request = Request::new(Goal::keep("a", 0.5, 500.0)).budget(Duration::from_secs(60));
    let outcome = changed(&jobs, &request, |model, task, block| {
        model.run(task, block)?;
        let us = match task {
            Task::Alone { .. } => vec![50.0],
            Task::Together(arm) if arm.kind() == ArmKind::Partition => {
                let sms = arm.parts()[0].ceiling;
                let is_slow = block.as_applied && sms < 100;
                vec![if is_slow { 600.0 } else { 400.0 }, 100.0 + f64::from(sms)]
            }
            Task::Together(_) => vec![600.0, 100.0],
        };
        let job = |us: f64| {
            let latencies_us = vec![us; (block.duration.as_secs_f64() * 1e6 / us) as usize + 1];
            JobSample { rate: 1e6 / us, latencies_us, host_us: 1.0 }
        };
        Ok(Sample { jobs: us.into_iter().map(job).collect(), rounds_us: Vec::new() })
    });
    let verdict = outcome.expect("it runs").verdict;
    assert!(verdict.meets && verdict.kind == ArmKind::Partition, "{verdict:?}");
}

#[test]
fn the_budget_that_a_note_names_is_enough_for_an_interval() {
    let us = |kind| [if kind == ArmKind::Partition { 300.0 } else { 400.0 }, 100.0];
    let tuned = |seconds: f64| {
        let request = Request::new(Goal::keep("a", 0.99, 500.0));
        tuned(us, 0.02, &request.budget(Duration::from_secs_f64(seconds)), 1)
    };
    let short = tuned(0.7);
    assert_eq!(short.verdict.interval, None);
    // A final comparison without iterations cannot show how many are enough.
    assert!(!short.notes.iter().any(|note| note.contains("had 0")), "{:?}", short.notes);
    let budget = |note: &String| {
        let (_, rest) = note.split_once("too short for an interval; a budget of about ")?;
        rest.strip_suffix(" s would be enough")?.parse().ok()
    };
    let named: f64 = short.notes.iter().find_map(budget).expect("a budget");
    let long = tuned(named);
    assert!(long.verdict.interval.is_some(), "{named} s: {:?}", long.verdict);
}

#[test]
fn an_arm_in_which_the_other_job_makes_no_progress_is_not_recommended() {
    let starved = |kind| [400.0, if kind == ArmKind::Partition { 100.0 } else { f64::INFINITY }];
    let request = Request::new(Goal::keep("a", 0.5, 500.0));
    let Outcome { verdict, notes, .. } = tuned(starved, 0.0, &request, 1);
    assert!(verdict.meets && verdict.kind == ArmKind::Partition, "{verdict:?}");
    assert!(verdict.sentence.contains("few iterations or none"), "{}", verdict.sentence);
    assert_eq!(notes, [""; 0]);
    // The other way round, and if the other job makes no progress in any arm.
    let starved = |kind| [400.0, if kind == ArmKind::Partition { f64::INFINITY } else { 100.0 }];
    let sentence = self::verdict(starved, 0.0, Goal::keep("a", 0.5, 500.0)).sentence;
    assert!(sentence.starts_with("Don't partition;"), "{sentence}");
    let goal = Goal::keep("a", 0.5, 500.0);
    let sentence = self::verdict(|_| [400.0, f64::INFINITY], 0.0, goal).sentence;
    assert!(sentence.starts_with("Don't partition;"), "{sentence}");
    assert!(sentence.contains(" and with "), "{sentence}");
    // The floor rules out arms without partitions.
    let verdict = tuned(starved, 0.0, &request.floor("a", 8), 1).verdict;
    assert!(!verdict.sentence.contains("too short"), "{verdict:?}");
}

#[test]
fn a_bound_within_the_noise_is_not_met() {
    for seed in 0..20 {
        // The true value of every arm is exactly the bound, so noise decides.
        let request = Request::new(Goal::keep("a", 0.5, 500.0));
        let verdict = tuned(|_| [500.0, 100.0], 0.02, &request, seed).verdict;
        assert!(verdict.sentence.starts_with("Nothing meets the bound of 500 µs"), "{verdict:?}");
        assert!(!verdict.meets, "{verdict:?}");
    }
    // All arms clearly meet the bound, so there is no reason to partition.
    let verdict = verdict(|_| [480.0, 100.0], 0.02, Goal::keep("a", 0.5, 500.0));
    assert!(verdict.meets && verdict.sentence.starts_with("Don't partition; use "), "{verdict:?}");
}

#[test]
fn an_arm_that_misses_the_bound_is_no_rival() {
    let us = |kind| [if kind == ArmKind::Partition { 480.0 } else { 506.0 }, 100.0];
    let Verdict { kind, meets, sentence, .. } = verdict(us, 0.002, Goal::keep("a", 0.99, 500.0));
    assert_eq!((kind, meets), (ArmKind::Partition, true));
    assert!(sentence.contains("with p99 of a at 480 µs (95 %:"), "{sentence}");
    assert!(sentence.contains("Without partitions, the bound is not met"), "{sentence}");
}

#[test]
fn too_few_iterations_say_nothing_about_a_percentile() {
    let request = Request::new(Goal::keep("a", 0.99, 50_000.0));
    let Outcome { verdict, notes, .. } = tuned(|_| [40_000.0, 100.0], 0.02, &request, 1);
    assert!(!verdict.meets && verdict.kind != ArmKind::Partition, "{verdict:?}");
    assert!(verdict.sentence.starts_with("Too few iterations to know"), "{}", verdict.sentence);
    let names = |note: &String| note.contains("needs 500 iterations") && note.contains("a budget");
    assert!(notes.iter().any(names), "{notes:?}");
    // Without partitions, a larger budget runs the same arms for longer.
    let request = request.leave_out(ArmKind::Partition).budget(Duration::from_secs(20));
    let notes = tuned(|_| [40_000.0, 100.0], 0.02, &request, 1).notes;
    let note = notes.into_iter().find(|note| names(note)).expect("a note");
    let numbers = note.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
    let [needed, found, budget] = numbers.collect::<Vec<f64>>()[..] else { panic!("{note}") };
    assert!((budget - 20.0 * needed / found).abs() <= 0.5, "{note}");
}

#[test]
fn the_gain_of_a_percentile_is_that_of_all_iterations() {
    let us = |kind| [if kind == ArmKind::Partition { 1000.0 } else { 1250.0 }, 100.0];
    let verdict = verdict(us, 0.01, Goal::least("a", 0.99, "b", 0.4));
    assert!(verdict.gain.is_some_and(|gain| (gain - 0.25).abs() < 0.02), "{verdict:?}");
    assert!(verdict.meets, "{verdict:?}");
}

#[test]
fn the_interval_of_a_rate_does_not_depend_on_the_bound() {
    let us = |kind| if kind == ArmKind::Partition { [100.0, 60.0] } else { [400.0, 55.0] };
    for keep in [0.05, 0.7] {
        let goal = Goal::least("a", 0.5, "b", keep);
        let sentence = verdict(us, 0.0, goal).sentence;
        // 50 of 60 µs, with the difference between processes.
        assert!(sentence.contains("b at 83 % of its rate alone (95 %: 82 to 85)"), "{sentence}");
    }
}

#[test]
fn a_large_gain_is_known_when_its_ratio_is() {
    let us = |kind| if kind == ArmKind::Partition { [40.0, 40.0] } else { [100.0, 100.0] };
    let outcome = tuned(us, 0.0, &Request::new(Goal::default()), 1);
    assert!(outcome.verdict.gain > Some(1.4), "{:?}", outcome.verdict);
    assert_eq!(outcome.notes, [""; 0]);
}
