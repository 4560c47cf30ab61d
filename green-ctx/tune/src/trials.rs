//! The tuner on made-up jobs, whose best arm is known.

use std::convert::Infallible;
use std::time::Duration;

use fastrand::Rng;

use crate::score::{Average, Scorer, Value};
use crate::space::Space;
use crate::stats::median;
use crate::*;

mod bounds;
mod queues;

const H200: Pieces = Pieces { sms: 132, unit: 8, odd: 12 };
const NAMES: [&str; 3] = ["a", "b", "c"];

/// A job of some kind: bound by arithmetic or by memory, of few large blocks or many small ones.
fn made_up(rng: &mut Rng) -> ModelJob {
    let block_us = [2.0, 5.0, 20.0, 60.0, 150.0][rng.usize(..5)];
    let waves = 0.3 + 6.0 * rng.f64();
    let compute = waves * block_us;
    let memory = if rng.bool() { 0.5 + rng.f64() } else { 0.2 * rng.f64() };
    ModelJob {
        blocks: (132.0 * waves) as u32 + 1,
        block_us,
        memory_us: compute * memory,
        weight: f64::sqrt(block_us),
        ..ModelJob::default()
    }
}

fn jobs(seed: u64, count: usize) -> Vec<ModelJob> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(|_| made_up(&mut rng)).collect()
}

/// The jobs with the arrivals that they have under a goal.
fn model(seed: u64, jobs: &[ModelJob], goal: &Goal) -> Model {
    let named = |(job, profile): (&ModelJob, &Profile)| {
        let arrival = profile.arrival_for(goal);
        ModelJob { arrival, ..job.clone() }
    };
    Model::new(H200, jobs.iter().zip(&profiles(jobs)).map(named).collect(), seed)
}

/// Those that arrive by the clock say so, the others leave it to the tuner.
fn profiles(jobs: &[ModelJob]) -> Vec<Profile> {
    let profile = |(name, job): (&&str, &ModelJob)| match job.arrival.hz() {
        Some(_) => Profile::new(*name).arrival(job.arrival.clone()),
        None => Profile::new(*name),
    };
    NAMES.iter().zip(jobs).map(profile).collect()
}

fn on(
    model: &mut Model,
    jobs: &[ModelJob],
    request: &Request,
) -> Result<Outcome, TuneError<Infallible>> {
    with(model, &profiles(jobs), &H200, request, &mut |_| true)
}

fn tune(seed: u64, jobs: &[ModelJob], request: &Request) -> Result<Outcome, TuneError<Infallible>> {
    on(&mut model(seed, jobs, request.goal()), jobs, request)
}

/// What an arm is worth: over many starts, where they differ.
fn worth(jobs: &[ModelJob], goal: &Goal, arm: &Arm) -> Value {
    let model = model(1, jobs, goal);
    let count = jobs.len();
    let alone = (0..count).map(|job| 1e6 / model.time_alone(job, H200.sms)).collect();
    let scorer = Scorer::of(goal, &NAMES[..count], alone);
    let starts = if arm.kind() == ArmKind::Partition { 1 } else { 201 };
    let mut still = model.with_jitter(0.0);
    let block = Block { iterations: 2, rounds: scorer.wants_rounds(), ..Block::default() };
    let mut run = || still.run(&Task::Together(arm.clone()), &block).expect("it runs");
    let samples: Vec<Sample> = (0..starts).map(|_| run()).collect();
    scorer.value(&samples.iter().collect::<Vec<_>>(), Average::Mean).expect("there are blocks")
}

/// Every pair of ceilings, each with every order, and the arms without partitions.
fn every_arm() -> Vec<Arm> {
    let (floors, left_out) = (vec![0, 0], Vec::new());
    let space = Space { pieces: H200, jobs: 2, step: 8, floors, left_out };
    let ordered =
        |arm: Arm| [arm.with_priorities(vec![-1, 0]), arm.with_priorities(vec![0, -1]), arm];
    let partitions = space.coarse().into_iter().flat_map(ordered);
    space.unpartitioned().into_iter().chain(partitions).collect()
}

/// An arm of an outcome.
fn arm(outcome: &Outcome, place: Option<usize>) -> Arm {
    let report = &outcome.arms[place.expect("one ran")];
    let names = || NAMES.iter().take(outcome.jobs.len());
    let priorities = names().map(|name| report.priority[*name]).collect();
    match report.kind {
        ArmKind::Sequential => Arm::sequential(outcome.jobs.len(), 132),
        ArmKind::Partition => {
            let part = |name: &&str| {
                let share: green_ctx::Share = report.shares[*name].parse().expect("a share");
                let (floor, ceiling) = (share.floor(), share.ceiling());
                Part { floor: floor.unwrap_or(0), ceiling: ceiling.unwrap_or(132) }
            };
            Arm::partition(names().map(part).collect()).with_priorities(priorities)
        }
        ArmKind::Streams => Arm::streams(outcome.jobs.len(), 132),
        ArmKind::Priority => Arm::priority(priorities, 132),
    }
}

/// The arm that an outcome chose, which is one of these.
fn choice(outcome: &Outcome, arms: &[Arm]) -> Arm {
    let chosen = arm(outcome, outcome.verdict.arm);
    assert!(arms.contains(&chosen), "{:?}", outcome.verdict);
    chosen
}

/// How much worse than the best the choice is.
fn regret(jobs: &[ModelJob], goal: &Goal, chosen: &Arm, arms: &[Arm]) -> f64 {
    let meeting = arms.iter().map(|arm| worth(jobs, goal, arm)).filter(|value| value.meets());
    let best = meeting.map(|value| value.score).fold(0.0, f64::max);
    1.0 - worth(jobs, goal, chosen).score / best
}

#[test]
fn of_a_hundred_pairs_the_choice_is_close_to_the_best_and_the_claim_holds() {
    let (mut regrets, mut against, mut claims, mut held) = (Vec::new(), Vec::new(), 0, 0);
    let arms = every_arm();
    let is_plain = |arm: &&Arm| arm.kind() != ArmKind::Partition;
    let plain: Vec<Arm> = arms.iter().filter(is_plain).cloned().collect();
    for seed in 0..100 {
        let jobs = jobs(seed, 2);
        let goal = if seed % 4 == 3 { Goal::Makespan } else { Goal::throughput() };
        let outcome = tune(seed, &jobs, &Request::new(goal.clone())).expect("it runs");
        assert!(outcome.seconds <= 19.0, "{}", outcome.seconds);
        let chosen = choice(&outcome, &arms);
        regrets.push(regret(&jobs, &goal, &chosen, &arms));
        against.push(regret(&jobs, &goal, &chosen, &plain));
        let Some([low, high]) = outcome.verdict.interval else { continue };
        let candidate = arm(&outcome, outcome.verdict.candidate);
        let best = plain.iter().map(|arm| worth(&jobs, &goal, arm).score).fold(0.0, f64::max);
        let gain = worth(&jobs, &goal, &candidate).score / best - 1.0;
        (claims, held) = (claims + 1, held + u32::from(low <= gain && gain <= high));
    }
    regrets.sort_by(f64::total_cmp);
    assert!(median(&regrets) < Some(0.01), "{regrets:?}");
    assert!(regrets[90] < 0.06, "{regrets:?}");
    // Never much worse than without partitions.
    assert!(against.iter().all(|against| *against < 0.03), "{against:?}");
    assert!(claims > 90 && 10 * held >= 9 * claims, "{held} of {claims} intervals hold");
}

#[test]
fn goals_with_a_bound_are_met_and_close_to_the_best() {
    let mut regrets = Vec::new();
    let arms = every_arm();
    for seed in 0..40 {
        let jobs = jobs(2000 + seed, 2);
        let model = model(seed, &jobs, &Goal::default());
        let (job, other) = ((seed % 2) as usize, 1 - (seed % 2) as usize);
        // Bounds that some arms meet and others do not.
        let times: Vec<Vec<f64>> = arms.iter().map(|arm| model.times(arm)).collect();
        let least = |job: usize| times.iter().map(|times| times[job]).fold(f64::INFINITY, f64::min);
        let goal = |slack: f64| match seed % 4 {
            0 | 1 => Goal::keep(NAMES[job], 0.99, 1.5 * least(job) * (1.0 + slack)),
            _ => {
                let most = model.time_alone(other, 132) / least(other);
                Goal::least(NAMES[job], 0.99, NAMES[other], 0.7 * most.min(1.0) * (1.0 - slack))
            }
        };
        // The choice must meet the bound, and is compared with the best of those that are sure to meet it: that takes a
        // distance for noise, for the tail of the latencies and for what processes differ by.
        let [strict, asked, loose] = [0.0, 0.1, 0.11].map(goal);
        let outcome = tune(seed, &jobs, &Request::new(asked)).expect("it runs");
        let chosen = choice(&outcome, &arms);
        let met = worth(&jobs, &loose, &chosen).meets();
        regrets.push(if met { regret(&jobs, &strict, &chosen, &arms) } else { 1.0 });
    }
    regrets.sort_by(f64::total_cmp);
    assert!(median(&regrets) < Some(0.02), "{regrets:?}");
    // Two miss the bound by more than the slack: arms without partitions have slow starts that a final may not see.
    assert!(regrets[36] < 0.12 && regrets[37] < 0.25, "{regrets:?}");
}

#[test]
fn three_jobs_are_close_to_the_best_of_a_coarse_grid() {
    let goal = Goal::throughput();
    let space = Space { pieces: H200, jobs: 3, step: 8, floors: vec![0; 3], left_out: Vec::new() };
    let grid = space.coarse();
    let mut regrets = Vec::new();
    for seed in 0..24 {
        let jobs = jobs(1000 + seed, 3);
        let outcome = tune(seed, &jobs, &Request::new(goal.clone())).expect("it runs");
        let best = grid.iter().map(|arm| worth(&jobs, &goal, arm).score).fold(0.0, f64::max);
        let chosen = arm(&outcome, outcome.verdict.arm);
        regrets.push(1.0 - worth(&jobs, &goal, &chosen).score / best);
    }
    assert!(median(&regrets) < Some(0.02), "{regrets:?}");
    assert!(regrets.iter().filter(|regret| **regret >= 0.05).count() <= 1, "{regrets:?}");
}

/// Two jobs that each fill the device for so long that who has what makes no difference.
fn alike() -> Vec<ModelJob> {
    vec![ModelJob { blocks: 132 * 40, block_us: 10.0, ..ModelJob::default() }; 2]
}

/// A job of short iterations beside one that takes the whole device.
fn short_beside_long() -> Vec<ModelJob> {
    let short = ModelJob { blocks: 64, block_us: 50.0, ..ModelJob::default() };
    let long = ModelJob { blocks: 1320, block_us: 150.0, weight: 20.0, ..ModelJob::default() };
    vec![short, long]
}

#[test]
fn it_says_not_to_partition_where_that_gains_nothing() {
    let jobs = alike();
    let mut partitions = 0;
    for seed in 0..20 {
        let outcome = tune(seed, &jobs, &Request::default()).expect("it runs");
        let Verdict { kind, gain, sentence, shares, .. } = outcome.verdict;
        if kind == ArmKind::Partition {
            partitions += 1;
            continue;
        }
        assert!(sentence.starts_with("Don't partition"), "{sentence}");
        assert!(gain.is_some_and(|gain| gain.abs() < 0.02) && shares["a"] == "..", "{sentence}");
    }
    // An interval of 95 % is wrong now and then.
    assert!(partitions <= 2, "{partitions} of 20");
}

#[test]
fn what_scatters_more_gives_the_same_choice_or_one_as_good() {
    let jobs = jobs(2, 2);
    let goal = Goal::throughput();
    let arms = every_arm();
    let regrets = (0..20).map(|seed| {
        let mut model = model(seed, &jobs, &goal).with_jitter(0.03);
        let outcome = on(&mut model, &jobs, &Request::default()).expect("it runs");
        regret(&jobs, &goal, &choice(&outcome, &arms), &arms)
    });
    let mut regrets: Vec<f64> = regrets.collect();
    regrets.sort_by(f64::total_cmp);
    assert!(regrets[18] < 0.03, "{regrets:?}");
}

#[test]
fn arms_that_cannot_run_are_skipped_and_named() {
    let mut jobs = short_beside_long();
    jobs[0].least_sms = 40;
    let outcome = tune(1, &jobs, &Request::default()).expect("it runs");
    let skipped: Vec<&ArmReport> =
        outcome.arms.iter().filter(|arm| arm.skipped.is_some()).collect();
    assert!(!skipped.is_empty());
    for arm in skipped {
        assert_eq!((arm.blocks, arm.score), (0, None));
        assert!(arm.skipped.as_ref().is_some_and(|reason| reason.contains("needs 40 SMs")));
    }
    assert!(outcome.notes.iter().any(|note| note.contains("a does not run on")));
    // Where it cannot run at all there is nothing to tune.
    jobs[0].least_sms = 200;
    let error = tune(1, &jobs, &Request::default()).expect_err("it cannot run");
    assert!(error.to_string().starts_with("a does not run: it needs 200 SMs"), "{error}");
}

#[test]
fn limits_hold() {
    let jobs = short_beside_long();
    let floors = Request::default().floor("b", 64).step(16).leave_out(ArmKind::Priority);
    let outcome = tune(1, &jobs, &floors).expect("it runs");
    assert_eq!(outcome.verdict.kind, ArmKind::Partition);
    let floor = outcome.verdict.shares["b"].parse::<green_ctx::Share>().expect("a share").floor();
    assert!(floor >= Some(64), "{floor:?}");
    for arm in &outcome.arms {
        assert!(arm.kind != ArmKind::Priority && arm.priority.values().all(|level| *level == 0));
        let share = arm.shares["b"].parse::<green_ctx::Share>().expect("a share");
        assert!(
            share.ceiling().is_none_or(|ceiling| ceiling % 16 == 0 || ceiling == 132),
            "{share}"
        );
    }
    let alone = [ArmKind::Sequential, ArmKind::Streams, ArmKind::Priority];
    let only = alone.into_iter().fold(Request::default(), Request::leave_out);
    let outcome = tune(1, &jobs, &only).expect("it runs");
    assert!(outcome.arms.iter().all(|arm| arm.kind == ArmKind::Partition));
    assert_eq!(outcome.verdict.gain, None);
}

#[test]
fn wrong_requests_are_refused() {
    let jobs = short_beside_long();
    let fails = |request: Request, words: &str| {
        let error = tune(1, &jobs, &request).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    };
    fails(Request::default().budget(Duration::ZERO), "a budget of 0.00 s is too small");
    fails(Request::default().budget(Duration::from_millis(20)), "or more");
    fails(Request::new(Goal::keep("z", 0.9, 1.0)), "the goal names z; the jobs are a, b");
    fails(Request::default().floor("z", 8), "a floor names z");
    fails(Request::default().floor("a", 100).floor("b", 40), "140 SMs together, of 132");
    fails(ArmKind::ALL.into_iter().fold(Request::default(), Request::leave_out), "every kind");
    fails(Request::default().floor("a", 8).leave_out(ArmKind::Partition), "floors need partitions");
    let wrong = Pieces { sms: 4, unit: 8, odd: 12 };
    let error = Request::default().check(&profiles(&jobs), &wrong).expect_err("no pieces");
    assert!(error.to_string().contains("whole units"), "{error}");
    let one = tune(1, &jobs[..1], &Request::default());
    assert!(one.expect_err("one job").to_string().contains("two to four jobs"));
    let deep = [Profile::new("a").arrival(Arrival::closed(4)), Profile::new("b")];
    let request = Request::new(Goal::keep("a", 0.99, 300.0));
    let error = request.check(&deep, &H200).expect_err("a depth of 4");
    assert!(error.to_string().contains("use closed:1 or a rate"), "{error}");
}

/// A model that counts its blocks.
struct Counting<'a> {
    model: Model,
    blocks: &'a mut usize,
}

impl Measure for Counting<'_> {
    type Error = Infallible;

    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<Infallible>> {
        *self.blocks += 1;
        self.model.run(task, block)
    }

    fn now(&self) -> Duration {
        self.model.now()
    }
}

#[test]
fn an_interrupted_search_has_the_best_so_far() {
    let jobs = short_beside_long();
    let interrupted = |after: usize| {
        let (mut asked, mut blocks) = (0, 0);
        let mut go_on = |progress: &Progress<'_>| {
            assert!((0.0..=1.0).contains(&progress.spent) && !progress.step.is_empty());
            assert_eq!(progress.blocks, asked, "asked before each block");
            asked += 1;
            asked < after
        };
        let mut counting =
            Counting { model: model(1, &jobs, &Goal::default()), blocks: &mut blocks };
        let outcome = with(&mut counting, &profiles(&jobs), &H200, &Request::default(), &mut go_on);
        // Nothing runs, and nobody is asked, once it is to end.
        assert_eq!((asked, blocks), (after, after - 1));
        outcome
    };
    let outcome = interrupted(120).expect("something is known");
    assert!(!outcome.complete && outcome.arms.len() > 3);
    assert!(outcome.seconds < 5.0);
    assert!(matches!(interrupted(1), Err(TuneError::Request(RequestError::Interrupted))));
}

#[test]
fn a_device_that_slows_down_is_reported() {
    let jobs = short_beside_long();
    let mut slowing = model(1, &jobs, &Goal::default()).with_drift(60.0);
    let outcome = on(&mut slowing, &jobs, &Request::default()).expect("it runs");
    assert!(outcome.drift > 0.05, "{}", outcome.drift);
    assert!(outcome.notes.iter().any(|note| note.contains("drifted by")), "{:?}", outcome.notes);
    let outcome = tune(1, &jobs, &Request::default()).expect("it runs");
    assert!(!outcome.notes.iter().any(|note| note.contains("drifted by")), "{:?}", outcome.notes);
}

#[test]
fn what_the_host_binds_and_too_few_samples_are_reported() {
    let mut jobs = short_beside_long();
    jobs[0].host_us = 80.0;
    let outcome = tune(1, &jobs, &Request::default()).expect("it runs");
    let bound =
        |outcome: &Outcome| outcome.jobs.iter().map(|job| job.host_bound).collect::<Vec<_>>();
    assert_eq!(bound(&outcome), [true, false]);
    jobs[0].arrival = Arrival::poisson(2000.0, 7);
    let outcome = tune(1, &jobs, &Request::default()).expect("it runs");
    assert_eq!(bound(&outcome), [true, false]);
    jobs[0].host_us = 5.0;
    let outcome = tune(1, &jobs, &Request::default()).expect("it runs");
    assert_eq!(bound(&outcome), [false, false]);
    // Where the final has too few iterations for the percentile, a note names the budget.
    jobs[0] = ModelJob { blocks: 1000, block_us: 500.0, ..ModelJob::default() };
    let request = Request::new(Goal::keep("a", 0.999, 50_000.0));
    let outcome = tune(1, &jobs, &request).expect("it runs");
    let note =
        outcome.notes.iter().find(|note| note.contains("the percentile needs 5000 iterations"));
    assert!(note.is_some_and(|note| note.contains("a budget of")), "{:?}", outcome.notes);
}

/// A model of which some arms stop running after a while.
struct Failing {
    model: Model,
    fails: fn(&Arm) -> bool,
    after: Duration,
}

impl Measure for Failing {
    type Error = Infallible;

    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<Infallible>> {
        match task {
            Task::Together(arm) if self.now() > self.after && (self.fails)(arm) => {
                Err(Refusal::Skip("its queue has run out".to_owned()))
            }
            task => self.model.run(task, block),
        }
    }

    fn now(&self) -> Duration {
        self.model.now()
    }
}

#[test]
fn an_arm_that_fails_late_is_neither_chosen_nor_compared_with() {
    let jobs = short_beside_long();
    let is_plain = |arm: &Arm| arm.kind() != ArmKind::Partition;
    for (fails, kinds) in [
        (is_plain as fn(&Arm) -> bool, &[ArmKind::Partition][..]),
        (|arm: &Arm| arm.kind() == ArmKind::Partition, &ArmKind::ALL[..3]),
        (|_: &Arm| true, &ArmKind::ALL[..]),
    ] {
        let (model, after) = (model(1, &jobs, &Goal::default()), Duration::from_millis(14_000));
        let mut failing = Failing { model, fails, after };
        let request = Request::default();
        let outcome = with(&mut failing, &profiles(&jobs), &H200, &request, &mut |_| true);
        let outcome = outcome.expect("it ends");
        let Verdict { arm, rival, kind, gain, .. } = &outcome.verdict;
        let ran = |arm: &Option<usize>| arm.is_none_or(|arm| outcome.arms[arm].skipped.is_none());
        assert!(ran(arm) && ran(rival), "{:?}", outcome.verdict);
        assert!(gain.is_none(), "{:?}", outcome.verdict);
        assert!(arm.is_none() || kinds.contains(kind), "{:?}", outcome.verdict);
    }
}

#[test]
fn numbers_that_are_too_great_are_refused_or_bounded() {
    let jobs = short_beside_long();
    let outcome = tune(1, &jobs, &Request::default().step(u32::MAX));
    assert!(outcome.expect("all SMs are a step").arms.iter().any(|arm| arm.blocks > 0));
    let floors = Request::default().floor("a", 1 << 31).floor("b", 1 << 31);
    let error = tune(1, &jobs, &floors).expect_err("too many");
    assert!(error.to_string().contains("4294967296 SMs together"), "{error}");
}

#[test]
fn floors_of_three_jobs_that_just_fit_are_found() {
    let jobs = jobs(7, 3);
    let request = Request::default().floor("a", 50).floor("b", 50).floor("c", 10);
    let outcome = tune(1, &jobs, &request).expect("it runs");
    assert_eq!(outcome.verdict.kind, ArmKind::Partition, "{}", outcome.verdict.sentence);
    let floor =
        |name| outcome.verdict.shares[name].parse::<green_ctx::Share>().expect("it").floor();
    assert!(floor("a") >= Some(50) && floor("b") >= Some(50) && floor("c") >= Some(10));
}

#[test]
fn what_arrives_too_rarely_needs_a_greater_budget() {
    let mut jobs = short_beside_long();
    for arrival in [Arrival::rate(2.0), Arrival::trace([30.0]).expect("a trace")] {
        jobs[0].arrival = arrival.clone();
        let error = tune(1, &jobs, &Request::default()).expect_err("too rare");
        assert!(matches!(error, TuneError::Request(RequestError::Budget { .. })), "{error}");
    }
    jobs[0].arrival = Arrival::rate(20.0);
    let outcome = tune(1, &jobs, &Request::default()).expect("it runs");
    assert!(outcome.seconds < 19.5 && outcome.verdict.arm.is_some(), "{}", outcome.seconds);
}

#[test]
fn figures_that_are_no_numbers_are_not_taken() {
    struct Wrong(Model);
    impl Measure for Wrong {
        type Error = Infallible;
        fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<Infallible>> {
            let mut sample = self.0.run(task, block)?;
            match task {
                Task::Together(arm) if arm.kind() == ArmKind::Priority => sample.jobs.clear(),
                Task::Together(arm) if arm.kind() == ArmKind::Partition => {
                    sample.jobs[0].rate = f64::NAN;
                }
                _ => {}
            }
            Ok(sample)
        }
        fn now(&self) -> Duration {
            self.0.now()
        }
    }
    let jobs = short_beside_long();
    let mut wrong = Wrong(model(1, &jobs, &Goal::default()));
    let outcome = with(&mut wrong, &profiles(&jobs), &H200, &Request::default(), &mut |_| true);
    let outcome = outcome.expect("it runs");
    let measured = outcome.arms.iter().filter(|arm| arm.skipped.is_none());
    assert!(measured.clone().count() > 0);
    for arm in measured {
        assert!(matches!(arm.kind, ArmKind::Sequential | ArmKind::Streams), "{:?}", arm.kind);
    }
}

#[test]
fn a_job_that_does_nothing_in_a_block_is_named() {
    let mut jobs = short_beside_long();
    // All of it arrives within a fifth of a second, and then nothing for long.
    let moments: Vec<f64> = (0..500).map(|moment| 5.0 + f64::from(moment) * 0.0004).collect();
    jobs[0].arrival = Arrival::trace(moments).expect("a trace");
    for goal in [Goal::throughput(), Goal::keep("a", 0.99, 1000.0)] {
        match tune(1, &jobs, &Request::new(goal)) {
            Err(error) => assert!(error.to_string().contains("did nothing in"), "{error}"),
            Ok(outcome) => {
                let text = serde_json::to_string(&outcome).expect("it can be written");
                let read: Outcome = serde_json::from_str(&text).expect("and read");
                assert_eq!(read, outcome);
            }
        }
    }
}

#[test]
fn a_budget_that_an_error_names_is_enough() {
    let slow = ModelJob { blocks: 132, block_us: 2e6, ..ModelJob::default() };
    let jobs = vec![slow; 2];
    let of = |budget: Duration| tune(1, &jobs, &Request::default().budget(budget));
    let error = of(Duration::from_secs(10)).expect_err("it takes longer");
    let TuneError::Request(RequestError::Budget { needs, .. }) = error else { panic!("{error}") };
    let outcome = of(needs.mul_f64(1.05)).expect("it is enough");
    let partitions = outcome.arms.iter().filter(|arm| arm.kind == ArmKind::Partition);
    let (count, most) = (partitions.count(), 1.1 * needs.as_secs_f64());
    assert!(count > 3 && outcome.seconds < most, "{count} in {} s of {most} s", outcome.seconds);
}
