//! Tests that the latencies of jobs that arrive at given times agree with queueing theory and do not depend on the
//! budget.

use super::*;
use crate::search::filling_time;
use crate::stats::{mean, quantile};

/// Returns a job whose iterations take 200 µs on any number of SMs, and a job that fills the device.
fn queue(arrival: Arrival, exponential: bool) -> Vec<ModelJob> {
    let fixed =
        ModelJob { blocks: 8, block_us: 200.0, exponential, arrival, ..ModelJob::default() };
    vec![fixed, ModelJob { blocks: 1320, block_us: 100.0, ..ModelJob::default() }]
}

fn keep(bound_us: f64, budget: f64) -> Request {
    Request::new(Goal::keep("a", 0.99, bound_us)).budget(Duration::from_secs_f64(budget))
}

#[test]
fn latencies_are_those_of_theory() {
    // The 99th percentile for a fixed service time, by Crommelin's formula, in units of the service time.
    let loads = [(0.5, 4.336), (0.8, 11.356), (0.9, 22.896)];
    for (exponential, (load, fixed)) in
        [false, true].into_iter().flat_map(|kind| loads.map(|load| (kind, load)))
    {
        let jobs = queue(Arrival::poisson(5000.0 * load, 7), exponential);
        let mut model = model(1, &jobs, &Goal::default()).with_jitter(0.0);
        let lead_in = filling_time(&jobs[0].arrival, 5000.0).expect("it keeps up");
        let duration = Duration::from_millis(200).max(lead_in);
        // Ten minutes of measurement blocks like those of a final comparison.
        let mut latencies = Vec::new();
        while model.now() < Duration::from_secs(600) {
            let start = model.now();
            let block = Block { lead_in, duration, start, iterations: 2, ..Block::default() };
            let sample = model.run(&Task::Alone { job: 0, sms: Some(16) }, &block);
            latencies.extend(sample.expect("it runs").jobs.remove(0).latencies_us);
        }
        // In units of the service time.
        let wait = load / (1.0 - load) * if exponential { 1.0 } else { 0.5 };
        let is_near = |measured: f64, theory: f64| (measured / (200.0 * theory) - 1.0).abs() < 0.1;
        let mean = mean(latencies.iter().copied()).expect("some");
        assert!(is_near(mean - 200.0, wait), "{load} {exponential}: {mean}, {wait}");
        let p99 = if exponential { 100_f64.ln() / (1.0 - load) } else { fixed };
        let tail = quantile(&latencies, 0.99).expect("some");
        assert!(is_near(tail, p99), "{load} {exponential}: {tail}, {p99}");
    }
}

#[test]
fn what_cannot_keep_up_is_refused_with_every_budget() {
    for budget in [10.0, 60.0, 600.0] {
        for rate in [Arrival::rate(5400.0), Arrival::poisson(5400.0, 7)] {
            let error = tune(1, &queue(rate, false), &keep(2000.0, budget)).expect_err("too fast");
            // The job can do about 5000 per second.
            let words = ["49", "50"].map(|start| format!("5400/s requested, {start}"));
            let error = error.to_string();
            assert!(error.starts_with("a cannot keep up: "), "{error}");
            assert!(words.iter().any(|words| error.contains(words)), "{error}");
        }
    }
}

#[test]
fn a_queue_has_one_answer_with_every_budget() {
    let random = |load: f64| Arrival::poisson(5000.0 * load, 7);
    // Near its capacity a queue takes long to fill.
    let near = Arrival::rate(5000.0 * 0.94);
    for (arrival, meets) in [(random(0.5), true), (random(0.85), false), (near, true)] {
        let answers = [10.0, 60.0, 600.0].map(|budget| {
            let outcome = tune(1, &queue(arrival.clone(), false), &keep(2000.0, budget));
            let outcome = outcome.expect("it keeps up");
            let has_note = outcome.notes.iter().any(|note| note.contains("of its capacity with"));
            assert_eq!(has_note, arrival.hz() > Some(4000.0));
            (outcome.verdict.meets, outcome.verdict.sentence)
        });
        assert!(answers.iter().all(|(met, _)| *met == meets), "{arrival}: {answers:#?}");
    }
}

#[test]
fn a_short_budget_is_enough_near_the_capacity() {
    let jobs = queue(Arrival::rate(5000.0 * 0.94), false);
    let met = |seed: &u64| tune(*seed, &jobs, &keep(2000.0, 10.0)).expect("a result").verdict.meets;
    assert!((0..16).filter(met).count() >= 15);
}

#[test]
fn the_interval_of_a_latency_does_not_depend_on_the_bound() {
    // With a capacity that is 1.35 % lower, the load is 95.3 % and a latency in a queue is 27 % longer.
    let jobs = queue(Arrival::rate(5000.0 * 0.94), false);
    for bound_us in [2000.0, 20_000.0] {
        let sentence = tune(1, &jobs, &keep(bound_us, 60.0)).expect("it keeps up").verdict.sentence;
        let (_, rest) = sentence.split_once("p99 of a at ").expect("a latency");
        let numbers = rest.split(|c: char| !c.is_ascii_digit());
        let numbers: Vec<f64> = numbers.filter_map(|number| number.parse().ok()).collect();
        let [p99, _, low, high, ..] = numbers[..] else { panic!("{sentence}") };
        assert!((1.2..1.45).contains(&(high / p99)), "{sentence}");
        assert!((0.75..0.88).contains(&(low / p99)), "{sentence}");
    }
}

#[test]
fn what_is_clear_needs_few_iterations() {
    let met = |jobs: &[ModelJob], bound_us: f64| {
        let verdict = tune(1, jobs, &keep(bound_us, 19.5)).expect("it keeps up").verdict;
        assert!(verdict.sentence.contains("µs (95 %: "), "{}", verdict.sentence);
        verdict.meets
    };
    // The 99th percentile is about 2.8 ms.
    let jobs = queue(Arrival::poisson(5000.0 * 0.85, 7), false);
    assert_eq!([200_000.0, 400.0].map(|bound_us| met(&jobs, bound_us)), [true, false]);
    // The queue of another job, which takes long to fill, says nothing about this one.
    let mut jobs = queue(Arrival::poisson(2500.0, 7), false);
    jobs[1] = ModelJob { blocks: 8, block_us: 10_000.0, ..ModelJob::default() };
    jobs[1].arrival = Arrival::rate(90.0);
    assert!(met(&jobs, 2000.0));
}

#[test]
fn an_arm_that_certainly_meets_the_bound_is_better_than_one_that_may() {
    let jobs = queue(Arrival::poisson(2500.0, 7), false);
    let run = |model: &mut Model, task: &Task, block: &Block| {
        let mut sample = model.run(task, block)?;
        if matches!(task, Task::Together(arm) if arm.kind() == ArmKind::Streams) {
            // More for the other job, but a queue close to its capacity.
            sample.jobs[1].rate *= 2.0;
            sample.jobs[0].latencies_us.iter_mut().for_each(|us| *us = 1500.0);
            sample.jobs[0].rate = if block.saturated == Some(0) { 2660.0 } else { 2500.0 };
        }
        Ok(sample)
    };
    let request = keep(10_000.0, 19.5).leave_out(ArmKind::Partition);
    let verdict = changed(&jobs, &request, run).expect("it keeps up").verdict;
    assert!(verdict.meets && verdict.kind != ArmKind::Streams, "{}", verdict.sentence);
}

#[test]
fn bounds_near_the_percentile_of_a_queue_are_not_met() {
    // The 99th percentiles in service times. Near the capacity, the budget has too few independent iterations.
    for (load, p99, most) in [(0.8, 11.356, 2), (0.94, 37.8, 0)] {
        let met = |part: f64| {
            let others = ArmKind::ALL.into_iter().filter(|kind| *kind != ArmKind::Partition);
            let request = others.fold(keep(part * p99 * 200.0, 19.5), Request::leave_out);
            let meets = |seed: &u64| {
                let jobs = queue(Arrival::poisson(5000.0 * load, *seed), false);
                tune(*seed, &jobs, &request).expect("it keeps up").verdict.meets
            };
            (0..20).filter(meets).count()
        };
        let (below, above) = (met(0.95), met(1.8));
        assert!(below <= most && (above > 15) == (most > 0), "{load}: {below}, {above} of 20");
    }
}

#[test]
fn an_arm_that_a_job_cannot_keep_up_in_is_not_chosen() {
    // Alone it needs half of the device. In a plain stream next to the other job it gets less.
    let mut jobs = short_beside_long();
    jobs[0] = ModelJob { blocks: 132, block_us: 100.0, ..ModelJob::default() };
    jobs[0].arrival = Arrival::rate(4000.0);
    let outcome = tune(1, &jobs, &keep(50_000.0, 18.0)).expect("it keeps up alone");
    let overloaded = outcome.arms.iter().filter(|arm| arm.capacity.get("a") <= Some(&4000.0));
    assert!(overloaded.clone().count() > 0);
    assert!(overloaded.clone().all(|arm| arm.excess > 0.0 && arm.skipped.is_none()));
    let chosen = &outcome.arms[outcome.verdict.arm];
    assert!(outcome.verdict.meets && chosen.capacity["a"] > 4000.0, "{}", outcome.verdict.sentence);
}

#[test]
fn a_burst_in_a_trace_is_not_overlooked() {
    // In 20 s, 1000 arrivals per second, and 1500 within 10 ms.
    let regular = (0..20_000).map(|index| f64::from(index) / 1e3);
    let mut seconds: Vec<f64> =
        regular.chain((0..1500).map(|index| 7.0 + f64::from(index) / 150e3)).collect();
    seconds.sort_by(f64::total_cmp);
    let met = |seconds: &[f64]| {
        let jobs = queue(Arrival::Trace { seconds: seconds.to_vec() }, false);
        let meets = |seed: &u64| {
            tune(*seed, &jobs, &keep(1000.0, 19.5)).expect("it keeps up").verdict.meets
        };
        (0..4).filter(meets).count()
    };
    // A second of it has no burst, and the budget is enough to play it twice.
    assert_eq!((met(&seconds), met(&seconds[..1000])), (0, 4));
}

#[test]
fn no_goal_is_met_by_a_queue_that_grows() {
    let mut jobs = short_beside_long();
    jobs[0] = ModelJob { blocks: 132, block_us: 100.0, ..ModelJob::default() };
    jobs[0].arrival = Arrival::rate(9000.0);
    jobs[1] = ModelJob { blocks: 1320, block_us: 100.0, ..ModelJob::default() };
    let goals = ["least:a:p99:keep:b:0.05", "keep:a:p99:900000000us"];
    for goal in goals.map(|goal| goal.parse().expect("a goal")) {
        let outcome = tune(1, &jobs, &Request::new(goal)).expect("it keeps up alone");
        let best = &outcome.arms[outcome.verdict.arm];
        assert!(!outcome.verdict.meets || best.capacity["a"] > 9000.0, "{:?}", outcome.verdict);
    }
}

#[test]
fn capacities_close_to_the_arrivals_are_measured_in_long_blocks() {
    // Short blocks can be 6 % too fast. The latencies are those of a job that keeps up.
    let jobs = queue(Arrival::poisson(4600.0, 7), false);
    for budget in [3.0, 5.0, 7.0, 19.5, 60.0] {
        let mut long_blocks = 0;
        let run = |model: &mut Model, task: &Task, block: &Block| {
            let mut sample = model.run(task, block)?;
            if matches!(task, Task::Together(_)) && block.saturated == Some(0) {
                let is_long = block.duration >= Duration::from_millis(250) && block.as_applied;
                long_blocks += usize::from(is_long);
                sample.jobs[0].rate = if is_long { 4500.0 } else { 1.06 * 4500.0 };
            }
            Ok(sample)
        };
        let outcome = changed(&jobs, &keep(900_000.0, budget), run).expect("it keeps up alone");
        assert!(!outcome.verdict.meets, "{:?}", outcome.verdict);
        let confirmed = outcome.arms.iter().filter(|arm| arm.capacity["a"] <= 4500.0).count();
        assert_eq!(confirmed, long_blocks);
        let has_note = outcome.notes.iter().any(|note| note.contains("would be enough"));
        assert!(confirmed > 0 || has_note, "{budget}: {:?}", outcome.notes);
    }
}

#[test]
fn an_arm_in_which_a_job_keeps_up_is_closer_to_the_bound() {
    let mut jobs = short_beside_long();
    jobs[0] = ModelJob { blocks: 132, block_us: 100.0, ..ModelJob::default() };
    jobs[0].arrival = Arrival::poisson(3000.0, 7);
    jobs[1] = ModelJob { blocks: 1320, block_us: 150.0, ..ModelJob::default() };
    let verdict = tune(1, &jobs, &keep(100.0, 19.5)).expect("it keeps up alone").verdict;
    assert!(!verdict.sentence.contains("cannot keep up"), "{}", verdict.sentence);
}

#[test]
fn every_job_that_cannot_keep_up_is_noted() {
    let mut jobs = vec![ModelJob { blocks: 132, block_us: 100.0, ..ModelJob::default() }; 2];
    jobs.iter_mut().for_each(|job| job.arrival = Arrival::rate(8000.0));
    let outcome = tune(1, &jobs, &Request::new(Goal::default())).expect("they keep up alone");
    let notes = outcome.notes.iter().filter(|note| note.contains("of its capacity with"));
    assert_eq!(notes.count(), 2, "{:?}", outcome.notes);
}

#[test]
fn capacities_far_below_the_arrivals_are_not_measured_again() {
    let jobs = queue(Arrival::rate(2000.0), false);
    let mut long_blocks = 0;
    let run = |model: &mut Model, task: &Task, block: &Block| {
        let mut sample = model.run(task, block)?;
        let is_partition = matches!(task, Task::Together(arm) if arm.kind() == ArmKind::Partition);
        if is_partition && block.saturated == Some(0) {
            long_blocks += usize::from(block.as_applied);
            sample.jobs[0].rate = 1000.0;
        }
        Ok(sample)
    };
    changed(&jobs, &keep(2000.0, 19.5), run).expect("it keeps up alone");
    assert_eq!(long_blocks, 0);
}
