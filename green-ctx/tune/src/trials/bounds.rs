//! Bounds, and the noise about them.

use super::*;

/// A measure whose percentiles are what a function says of each arm, with a scatter from block to block.
struct Latencies {
    us: fn(&Arm) -> f64,
    /// What an iteration of the other job takes.
    other_us: fn(&Arm) -> f64,
    scatter: f64,
    rng: Rng,
    now: Duration,
}

impl Measure for Latencies {
    type Error = Infallible;

    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<Infallible>> {
        self.now += block.lead_in + block.duration;
        let mut job = |us: f64| {
            let us = us * (1.0 + self.scatter * (self.rng.f64() - 0.5));
            let latencies_us = vec![us; (block.duration.as_secs_f64() * 1e6 / us) as usize + 1];
            JobSample { rate: 1e6 / us, latencies_us, host_us: 1.0 }
        };
        let jobs = match task {
            Task::Alone { .. } => vec![job(50.0)],
            Task::Together(arm) => vec![job((self.us)(arm)), job((self.other_us)(arm))],
        };
        Ok(Sample { jobs, rounds_us: Vec::new() })
    }

    fn now(&self) -> Duration {
        self.now
    }
}

impl Latencies {
    fn tuned(mut self, request: &Request) -> Outcome {
        let jobs = ["a", "b"].map(Profile::new);
        with(&mut self, &jobs, &H200, request, &mut |_| true).expect("it runs")
    }
}

fn verdict(us: fn(&Arm) -> f64, scatter: f64, goal: Goal, seed: u64) -> Verdict {
    let (other_us, rng): (fn(&Arm) -> f64, _) = (|_| 100.0, Rng::with_seed(seed));
    let latencies = Latencies { us, other_us, scatter, rng, now: Duration::ZERO };
    latencies.tuned(&Request::new(goal)).verdict
}

#[test]
fn the_rival_is_one_that_is_sure_to_meet_the_bound() {
    // Streams do most of the other job, and nobody knows whether they meet the bound.
    let us: fn(&Arm) -> f64 = |arm| match arm.kind() {
        ArmKind::Partition => 400.0,
        ArmKind::Streams => 498.0,
        ArmKind::Sequential => 300.0,
        ArmKind::Priority => 600.0,
    };
    let other_us: fn(&Arm) -> f64 = |arm| if arm.kind() == ArmKind::Streams { 90.0 } else { 100.0 };
    let (rng, now) = (Rng::with_seed(1), Duration::ZERO);
    let goal = Goal::keep("a", 0.5, 500.0);
    let outcome = Latencies { us, other_us, scatter: 0.02, rng, now }.tuned(&Request::new(goal));
    let rival = outcome.verdict.rival.expect("one ran");
    assert_eq!(outcome.arms[rival].kind, ArmKind::Sequential, "{:?}", outcome.verdict);
    assert!(!outcome.verdict.sentence.contains("Nothing without"), "{:?}", outcome.verdict);
}

#[test]
fn the_budget_that_a_note_names_is_enough_for_an_interval() {
    let us: fn(&Arm) -> f64 = |arm| if arm.kind() == ArmKind::Partition { 300.0 } else { 400.0 };
    let other_us: fn(&Arm) -> f64 = |_| 100.0;
    let tuned = |seconds: f64| {
        let (rng, now) = (Rng::with_seed(1), Duration::ZERO);
        let request = Request::new(Goal::keep("a", 0.99, 500.0));
        let request = request.budget(Duration::from_secs_f64(seconds));
        Latencies { us, other_us, scatter: 0.02, rng, now }.tuned(&request)
    };
    let short = tuned(0.7);
    assert_eq!(short.verdict.interval, None);
    // A final without any iteration says nothing of how many would do.
    assert!(!short.notes.iter().any(|note| note.contains("had 0")), "{:?}", short.notes);
    let budget = |note: &String| {
        let rest = note.strip_prefix("the final was too short for an interval; a budget of ")?;
        rest.strip_suffix(" s would do")?.parse().ok()
    };
    let named: f64 = short.notes.iter().find_map(budget).expect("a budget");
    let long = tuned(named);
    assert!(long.verdict.interval.is_some(), "{named} s: {:?}", long.verdict);
}

#[test]
fn a_bound_within_the_noise_is_not_met() {
    // Every arm lies on the bound, and the scatter decides on which side.
    let met = (0..20).filter(|seed| {
        let verdict = verdict(|_| 500.0, 0.02, Goal::keep("a", 0.5, 500.0), *seed);
        assert!(verdict.sentence.starts_with("Nothing meets the bound of 500 µs"), "{verdict:?}");
        verdict.meets
    });
    assert_eq!(met.count(), 0);
    // Further from it they meet it all, and there is no reason to partition.
    let verdict = verdict(|_| 480.0, 0.02, Goal::keep("a", 0.5, 500.0), 1);
    assert!(verdict.meets && verdict.sentence.starts_with("Don't partition; use "), "{verdict:?}");
}

#[test]
fn an_arm_that_misses_the_bound_is_no_rival() {
    let us: fn(&Arm) -> f64 = |arm| if arm.kind() == ArmKind::Partition { 480.0 } else { 506.0 };
    let Verdict { kind, meets, sentence, .. } = verdict(us, 0.002, Goal::keep("a", 0.99, 500.0), 1);
    assert_eq!((kind, meets), (ArmKind::Partition, true));
    assert!(sentence.contains("with p99 of a at 480 µs (95 %:"), "{sentence}");
    assert!(sentence.contains("Nothing without partitions meets"), "{sentence}");
}

#[test]
fn too_few_iterations_say_nothing_about_a_percentile() {
    let verdict = verdict(|_| 40_000.0, 0.02, Goal::keep("a", 0.99, 50_000.0), 1);
    assert!(!verdict.meets && verdict.kind != ArmKind::Partition, "{verdict:?}");
    assert!(verdict.sentence.starts_with("Too few iterations to know"), "{}", verdict.sentence);
}

#[test]
fn the_gain_of_a_percentile_is_that_of_all_iterations() {
    let us: fn(&Arm) -> f64 = |arm| if arm.kind() == ArmKind::Partition { 1000.0 } else { 1250.0 };
    let verdict = verdict(us, 0.01, Goal::least("a", 0.99, "b", 0.4), 1);
    assert!(verdict.gain.is_some_and(|gain| (gain - 0.25).abs() < 0.02), "{verdict:?}");
}

#[test]
fn a_bound_is_kept_or_the_verdict_says_what_can_be() {
    let jobs = short_beside_long();
    let keep = |bound| Request::new(Goal::keep("a", 0.99, bound));
    let outcome = tune(1, &jobs, &keep(300.0)).expect("it runs");
    assert!(outcome.verdict.meets, "{}", outcome.verdict.sentence);
    assert_eq!(outcome.verdict.kind, ArmKind::Partition);
    let arms = every_arm();
    let (chosen, goal) = (choice(&outcome, &arms), Goal::keep("a", 0.99, 300.0));
    assert!(worth(&jobs, &goal, &chosen).meets());
    let regret = regret(&jobs, &goal, &chosen, &arms);
    assert!(regret < 0.1, "{regret}: {}", outcome.verdict.sentence);
    // Nobody can be faster than alone, which takes 50 µs.
    let Verdict { meets, sentence, .. } = tune(1, &jobs, &keep(20.0)).expect("it runs").verdict;
    assert!(!meets && sentence.contains("p99 of a at") && sentence.contains("20 µs"), "{sentence}");
    let least = Request::new(Goal::least("a", 0.9, "b", 0.5));
    let outcome = tune(1, &jobs, &least).expect("it runs");
    assert!(outcome.verdict.meets, "{}", outcome.verdict.sentence);
}
