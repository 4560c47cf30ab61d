//! Single blocks on a simulated device: tasks and arrivals that cannot be, and jobs that fail or are reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use green_ctx_tune::{
    self as tune, Arm, Arrival, Block, Goal, Job, Measure, Model, ModelJob, Part, Pieces, Refusal,
    Request, Runner, Sample, Task,
};

use crate::{Tested, job, kernel, launch, nothing_is_left, simulated};

const BLOCK: Block = Block {
    lead_in: Duration::ZERO,
    duration: Duration::from_millis(5),
    iterations: 2,
    rounds: false,
    first: 0,
    start: Duration::ZERO,
    saturated: None,
};

/// Arrivals that no text and no call makes, but a program or a file can.
fn impossible() -> [(Arrival, &'static str); 6] {
    [
        (Arrival::closed(0), "a depth of 0 submits nothing"),
        (Arrival::rate(f64::INFINITY), "inf iterations a second"),
        (Arrival::poisson(-1.0, 7), "-1 iterations a second"),
        (Arrival::Trace { seconds: Vec::new() }, "the trace is empty"),
        (Arrival::Trace { seconds: vec![0.5, 0.25] }, "not in order"),
        (
            Arrival::Trace { seconds: (0..2000).map(|step| f64::from(step) * 1e-9).collect() },
            "iterations a second",
        ),
    ]
}

#[test]
fn a_runner_refuses_arrivals_that_cannot_be() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    for (arrival, words) in impossible() {
        let mut jobs = [job(&device, "a")?, job(&device, "b")?.arrival(arrival.clone())];
        let error = Runner::new(&device, &mut jobs).expect_err(words).to_string();
        assert!(error.starts_with("b: ") && error.contains(words), "{error}");
        let request = Request::new(Goal::throughput());
        let error = tune::run(&device, &mut jobs, &request, &mut |_| true).expect_err(words);
        let error = error.to_string();
        assert!(error.starts_with("b: ") && error.contains(words), "{error}");
    }
    nothing_is_left(&sim, &device)
}

#[test]
fn a_model_refuses_arrivals_that_cannot_be() {
    for (arrival, words) in impossible() {
        let mut job = ModelJob::default();
        job.arrival = arrival;
        let mut model = Model::new(Pieces::of(&[8; 16]), vec![ModelJob::default(), job], 7);
        let refused = model.run(&Task::Alone { job: 1, sms: None }, &BLOCK);
        assert!(matches!(&refused, Err(Refusal::Skip(reason)) if reason.contains(words)));
        let refused = model.run(&Task::Together(Arm::streams(2, 128)), &BLOCK);
        assert!(matches!(&refused, Err(Refusal::Skip(reason)) if reason.contains(words)));
        assert!(model.run(&Task::Alone { job: 0, sms: None }, &BLOCK).is_ok());
    }
}

#[test]
fn a_job_that_arrives_too_often_has_bounded_latencies() -> Tested {
    let (_, device) = simulated("h200@13.0")?;
    let block = Block { duration: Duration::from_millis(100), ..BLOCK };
    let slow = kernel(&device)?;
    let slow = Job::new("b", move |stream| {
        std::thread::sleep(Duration::from_millis(1));
        launch(&slow, stream)
    });
    let mut jobs = [job(&device, "a")?, slow.arrival(Arrival::rate(1e6))];
    let mut runner = Runner::new(&device, &mut jobs)?;
    let sample = runner.run(&Task::Alone { job: 1, sms: None }, &block).map_err(refused)?;
    let latencies = &sample.jobs[0].latencies_us;
    assert!((1000..=40_000).contains(&latencies.len()), "{}", latencies.len());
    // They are of the whole block: the last ones have waited for no time, the first ones for all of it.
    let longest = latencies.iter().copied().fold(0.0, f64::max);
    let shortest = latencies.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(longest > 90e3 && shortest < 5e3, "{shortest} to {longest}");
    let mut often = ModelJob::default();
    often.arrival = Arrival::rate(1e6);
    let mut model = Model::new(Pieces::of(&[8; 16]), vec![often], 7);
    let sample = model.run(&Task::Alone { job: 0, sms: None }, &block).map_err(refused)?;
    assert!(sample.jobs[0].latencies_us.len() <= 40_000);
    Ok(())
}

fn refused<E: std::fmt::Debug>(refusal: Refusal<E>) -> String {
    format!("{refusal:?}")
}

/// Tasks for two jobs that cannot be, and words of the reason.
fn wrong_tasks() -> Vec<(Task, &'static str)> {
    let part = |floor, ceiling| Part { floor, ceiling };
    vec![
        (Task::Alone { job: 2, sms: None }, "there is no job 2 among 2"),
        (Task::Alone { job: usize::MAX, sms: Some(16) }, "there is no job"),
        (Task::Alone { job: 0, sms: Some(0) }, "0 SMs"),
        (Task::Together(Arm::streams(3, 132)), "the arm is of 3 jobs, and there are 2"),
        (Task::Together(Arm::sequential(1, 132)), "the arm is of 1 jobs"),
        (Task::Together(Arm::partition(Vec::new())), "the arm is of 0 jobs"),
        (Task::Together(Arm::partition(vec![part(32, 16), part(16, 32)])), "a floor of 32"),
        (Task::Together(Arm::partition(vec![part(0, 0), part(16, 32)])), "0 SMs"),
        (Task::Together(Arm::streams(2, 132).with_priorities(vec![0])), "2 parts and 1 priorities"),
    ]
}

fn refuses<E: std::fmt::Debug>(
    mut run: impl FnMut(&Task) -> Result<Sample, Refusal<E>>,
    task: &Task,
    words: &str,
) {
    match run(task) {
        Err(Refusal::Skip(reason)) => assert!(reason.contains(words), "{reason}"),
        other => panic!("{task:?}: {other:?}"),
    }
}

#[test]
fn tasks_that_cannot_be_are_skipped() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    {
        let mut jobs = [job(&device, "a")?, job(&device, "b")?];
        let mut runner = Runner::new(&device, &mut jobs)?;
        let mut model = Model::new(runner.pieces().clone(), vec![ModelJob::default(); 2], 7);
        for (task, words) in wrong_tasks() {
            refuses(|task| runner.run(task, &BLOCK), &task, words);
            refuses(|task| model.run(task, &BLOCK), &task, words);
        }
        // Counts that are no whole units, and more than there are.
        let half = Task::Together(Arm::ceilings([5, 127], 132));
        assert!(matches!(runner.run(&half, &BLOCK), Err(Refusal::Skip(_))));
        let many = Task::Together(Arm::ceilings([1320, 1320], 132));
        let _ = runner.run(&many, &BLOCK).map_err(refused);
        // It goes on afterwards, whichever job is first.
        let block = Block { first: usize::MAX, ..BLOCK };
        let task = Task::Together(Arm::ceilings([32, 100], 132));
        assert_eq!(runner.run(&task, &block).map_err(refused)?.jobs.len(), 2);
    }
    nothing_is_left(&sim, &device)
}

#[test]
fn jobs_are_reset_before_they_first_run() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    let (resets, early) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let reset_job = |name| {
        let (kernel, resets, early) = (kernel(&device)?, Arc::clone(&resets), Arc::clone(&early));
        let counted = Arc::clone(&resets);
        let job = Job::new(name, move |stream| {
            if resets.load(Ordering::Relaxed) == 0 {
                early.fetch_add(1, Ordering::Relaxed);
            }
            launch(&kernel, stream)
        });
        Ok::<_, green_ctx::Error>(job.before_block(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }))
    };
    let request = Request::new(Goal::throughput()).budget(Duration::from_millis(500));
    let mut jobs = [reset_job("a")?, reset_job("b")?];
    // A request that cannot be met is refused before any job is run or reset.
    let wrong = request.clone().floor("c", 8);
    tune::run(&device, &mut jobs, &wrong, &mut |_| true).expect_err("there is no c");
    assert_eq!((resets.load(Ordering::Relaxed), early.load(Ordering::Relaxed)), (0, 0));
    tune::run(&device, &mut jobs, &request, &mut |_| true)?;
    assert!(resets.load(Ordering::Relaxed) > 2);
    assert_eq!(early.load(Ordering::Relaxed), 0);
    // One that cannot be reset is named.
    let fails = job(&device, "c")?.before_block(|_| Err("its weights are gone".into()));
    let mut jobs = [job(&device, "a")?, fails];
    let error = tune::run(&device, &mut jobs, &request, &mut |_| true).expect_err("no weights");
    assert_eq!(error.to_string(), "c does not run: its weights are gone");
    drop(jobs);
    nothing_is_left(&sim, &device)
}

#[test]
fn a_job_that_fails_in_a_block_ends_the_others() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    {
        let (left, tired) = (AtomicUsize::new(3), kernel(&device)?);
        let tired = Job::new("tired", move |stream| {
            if left.fetch_sub(1, Ordering::Relaxed) == 0 {
                return Err("it has had enough".into());
            }
            launch(&tired, stream)
        });
        let mut jobs = [tired, job(&device, "b")?.arrival(Arrival::rate(1.0))];
        let mut runner = Runner::new(&device, &mut jobs)?;
        let (task, began) = (Task::Together(Arm::streams(2, 132)), Instant::now());
        let failed = runner.run(&task, &Block { duration: Duration::from_secs(60), ..BLOCK });
        let words = "tired: it has had enough";
        assert!(matches!(&failed, Err(Refusal::Skip(reason)) if reason == words), "{failed:?}");
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }
    nothing_is_left(&sim, &device)
}
