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
    for (load, meets) in [(0.5, true), (0.85, false)] {
        let answers = [10.0, 60.0, 600.0].map(|budget| {
            let jobs = queue(Arrival::poisson(5000.0 * load, 7), false);
            let outcome = tune(1, &jobs, &keep(2000.0, budget)).expect("it keeps up");
            assert_eq!(outcome.notes.iter().any(|note| note.contains("above 80 %")), load > 0.8);
            (outcome.verdict.meets, outcome.verdict.sentence)
        });
        assert!(answers.iter().all(|(met, _)| *met == meets), "{load}: {answers:#?}");
    }
}

#[test]
fn a_short_budget_is_enough_near_the_capacity() {
    // Only partitions, as for a job that keeps up in no other arm. Near its capacity a queue takes long to fill.
    let jobs = queue(Arrival::rate(5000.0 * 0.94), false);
    let others = ArmKind::ALL.into_iter().filter(|kind| *kind != ArmKind::Partition);
    for budget in [10.0, 60.0, 600.0] {
        let request = others.clone().fold(keep(2000.0, budget), Request::leave_out);
        let verdict = tune(1, &jobs, &request).expect("it keeps up").verdict;
        assert!(verdict.meets, "{budget} s: {verdict:?}");
    }
}

#[test]
fn a_bound_just_below_the_percentile_of_a_queue_is_not_met() {
    // The 99th percentile at this load is 37.8 service times, by twenty minutes of the model's time.
    let others = ArmKind::ALL.into_iter().filter(|kind| *kind != ArmKind::Partition);
    let meets = |seed: &u64| {
        let jobs = queue(Arrival::poisson(5000.0 * 0.94, *seed), false);
        let request = others.clone().fold(keep(0.95 * 37.8 * 200.0, 60.0), Request::leave_out);
        tune(*seed, &jobs, &request).expect("it keeps up").verdict.meets
    };
    // Without the term for queues, ten of forty.
    assert!((0..40).filter(meets).count() <= 3);
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
    let chosen = &outcome.arms[outcome.verdict.arm.expect("one runs")];
    assert!(outcome.verdict.meets && chosen.capacity["a"] > 4000.0, "{}", outcome.verdict.sentence);
}
