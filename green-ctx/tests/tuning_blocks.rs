//! Single blocks on a simulated device: tasks and arrivals that cannot be, and blocks that end by counts.

mod common;
#[path = "common/jobs.rs"]
mod jobs;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Outcome as Tested, simulated};
use green_ctx::graph::CaptureMode;
use green_ctx::sim_0_1::Sim;
use green_ctx::sys_0_1::{CUlaunchAttributeID, CUlaunchAttributeValue};
use green_ctx::tune::{
    self, Arm, Arrival, Block, Counts, Goal, Job, Measure, MeasureCounts, Model, ModelJob, Part,
    Peers, Pieces, Refusal, Request, Runner, Sample, Task,
};
use green_ctx::{Device, LaunchConfig, StreamOptions};
use jobs::{job, kernel, launch};

/// Whether all SMs are free, and no stream and no event is left.
fn nothing_is_left(sim: &Sim, device: &Device) -> Tested {
    assert_eq!(device.resources().sm()?.free(), 132);
    device.release_idle();
    let live = sim.live();
    assert_eq!((live.streams, live.green_contexts, live.events), (0, 0, 0));
    Ok(())
}

const BLOCK: Block = Block {
    duration: Duration::from_millis(5),
    iterations: 2,
    rounds: false,
    first: 0,
    start: Duration::ZERO,
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
    let text = |task: &str| serde_json::from_str(task).expect("a task");
    vec![
        (Task::Alone { job: 2, sms: None }, "there is no job 2 among 2"),
        (Task::Alone { job: usize::MAX, sms: Some(16) }, "there is no job"),
        (Task::Alone { job: 0, sms: Some(0) }, "0 SMs"),
        (Task::Together(Arm::streams(3, 132)), "the arm is of 3 jobs, and there are 2"),
        (Task::Together(Arm::sequential(1, 132)), "the arm is of 1 jobs"),
        (Task::Together(Arm::partition(Vec::new())), "the arm is of 0 jobs"),
        (Task::Together(Arm::partition(vec![part(32, 16), part(16, 32)])), "a floor of 32"),
        (Task::Together(Arm::partition(vec![part(0, 0), part(16, 32)])), "0 SMs"),
        (
            text(
                r#"{"together": {"kind": "priority", "parts": [{"floor": 0, "ceiling": 132},
                    {"floor": 0, "ceiling": 132}], "priorities": [0]}}"#,
            ),
            "2 parts and 1 priorities",
        ),
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

/// Other processes that agree so many times, and wait for so long.
struct Others {
    agree: usize,
    patience: Duration,
    asked: usize,
    aborts: Arc<AtomicUsize>,
    /// What an abort ends.
    held: Arc<AtomicBool>,
}

impl Others {
    fn new(agree: usize) -> Others {
        let (patience, asked) = (Duration::from_secs(60), 0);
        Others { agree, patience, asked, aborts: Arc::default(), held: Arc::default() }
    }

    fn patient_for(mut self, patience: Duration) -> Others {
        self.patience = patience;
        self
    }
}

impl Peers for Others {
    fn agree(&mut self) -> bool {
        self.asked += 1;
        self.asked <= self.agree
    }

    fn give_up(&mut self, elapsed: Duration) -> Option<String> {
        (elapsed > self.patience).then(|| "the others are gone".to_owned())
    }

    fn abort(&mut self) {
        self.aborts.fetch_add(1, Ordering::Relaxed);
        self.held.store(false, Ordering::Release);
    }
}

fn counts(iterations: &[u64]) -> Counts {
    Counts { iterations: iterations.to_vec(), rounds: false, first: 1, start: Duration::ZERO }
}

/// A job that counts how often it is submitted, and how often it is reset.
fn counted(
    device: &Device,
    name: &str,
) -> green_ctx::Result<(Job, Arc<AtomicUsize>, Arc<AtomicUsize>)> {
    let kernel = kernel(device)?;
    let (submitted, resets) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, reset) = (Arc::clone(&submitted), Arc::clone(&resets));
    let job = Job::new(name, move |stream| {
        count.fetch_add(1, Ordering::Relaxed);
        launch(&kernel, stream)
    });
    let job = job.before_block(move |_| {
        reset.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    Ok((job, submitted, resets))
}

fn count(counter: &AtomicUsize) -> usize {
    counter.swap(0, Ordering::Relaxed)
}

#[test]
fn counts_are_exact() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    {
        let (a, submitted_a, _) = counted(&device, "a")?;
        let (b, submitted_b, _) = counted(&device, "b")?;
        let (c, submitted_c, _) = counted(&device, "c")?;
        let mut jobs = [a, b.arrival(Arrival::closed(3)), c.arrival(Arrival::poisson(20_000.0, 1))];
        let mut runner = Runner::new(&device, &mut jobs)?;
        let arms =
            [Arm::streams(3, 132), Arm::sequential(3, 132), Arm::priority(vec![0, -1, -2], 132)];
        for arm in arms {
            let task = Task::Together(arm);
            for wanted in [[1, 1, 1], [7, 200, 20], [300, 2, 1], [0, 5, 0], [0, 0, 0]] {
                let mut peers = Others::new(2);
                let sample = runner.run_counts(&task, &counts(&wanted), &mut peers);
                let sample = sample.map_err(refused)?;
                let found = [&submitted_a, &submitted_b, &submitted_c].map(|of| count(of) as u64);
                assert_eq!((found, peers.asked), (wanted, 2), "{task:?}");
                for (sample, wanted) in sample.jobs.iter().zip(wanted) {
                    assert_eq!(sample.rate > 0.0, wanted > 0, "{task:?} {wanted}");
                    assert!(sample.rate.is_finite() && sample.latencies_us.len() as u64 <= wanted);
                }
            }
            let rounds =
                Counts { iterations: vec![9; 3], rounds: true, first: 2, start: Duration::ZERO };
            let sample = runner.run_counts(&task, &rounds, &mut Others::new(2)).map_err(refused)?;
            assert_eq!(sample.rounds_us.len(), 9);
            assert_eq!([&submitted_a, &submitted_b, &submitted_c].map(|of| count(of)), [9; 3]);
        }
        for (sms, job) in [(None, 0), (Some(16), 1), (Some(132), 2)] {
            let task = Task::Alone { job, sms };
            let sample = runner.run_counts(&task, &counts(&[30]), &mut Others::new(2));
            assert!(sample.map_err(refused)?.jobs[0].rate > 0.0);
            let found = [&submitted_a, &submitted_b, &submitted_c].map(|of| count(of));
            assert_eq!((found[job], found.iter().sum::<usize>()), (30, 30));
        }
    }
    nothing_is_left(&sim, &device)
}

#[test]
fn what_runs_beside_less_does_not_count() -> Tested {
    let (_, device) = simulated("h200@13.0")?;
    let pause = |name: &str, milliseconds| {
        let kernel = kernel(&device)?;
        Ok::<_, green_ctx::Error>(Job::new(name, move |stream| {
            thread::sleep(Duration::from_millis(milliseconds));
            launch(&kernel, stream)
        }))
    };
    let mut jobs = [pause("a", 1)?, pause("b", 4)?];
    let mut runner = Runner::new(&device, &mut jobs)?;
    let task = Task::Together(Arm::streams(2, 132));
    let sample =
        runner.run_counts(&task, &counts(&[20, 30]), &mut Others::new(2)).map_err(refused)?;
    // While the first one ran for 20 ms, the other had some 5 iterations of its 30.
    assert_eq!(sample.jobs[0].latencies_us.len(), 20);
    assert!((1..20).contains(&sample.jobs[1].latencies_us.len()), "{sample:?}");
    assert!((10.0..250.1).contains(&sample.jobs[1].rate), "{sample:?}");
    Ok(())
}

#[test]
fn nothing_is_submitted_where_the_others_do_not_agree() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    {
        let (a, submitted, resets) = counted(&device, "a")?;
        let mut jobs = [a, job(&device, "b")?];
        let mut runner = Runner::new(&device, &mut jobs)?;
        let task = Task::Together(Arm::ceilings([36, 96], 132));
        for (agree, before) in [(0, 0), (1, 1), (2, 1)] {
            let mut peers = Others::new(agree);
            let sample = runner.run_counts(&task, &counts(&[4, 4]), &mut peers);
            assert_eq!(sample.is_ok(), agree == 2);
            assert_eq!(
                (count(&resets), count(&submitted)),
                (before, if agree == 2 { 4 } else { 0 })
            );
        }
        // Who cannot run it never says that it is ready.
        for (task, counts) in [
            (Task::Together(Arm::ceilings([5, 127], 132)), counts(&[1, 1])),
            (task, counts(&[1])),
            (Task::Alone { job: 0, sms: None }, counts(&[1, 1])),
        ] {
            let mut peers = Others::new(2);
            let refused = runner.run_counts(&task, &counts, &mut peers);
            assert!(matches!(refused, Err(Refusal::Skip(_))) && peers.asked == 0);
        }
    }
    nothing_is_left(&sim, &device)
}

/// A job whose iterations wait until a flag is false, like a collective for the other ranks.
fn held(device: &Device, name: &str, flag: &Arc<AtomicBool>) -> green_ctx::Result<Job> {
    let (kernel, flag) = (kernel(device)?, Arc::clone(flag));
    Ok(Job::new(name, move |stream| {
        let flag = Arc::clone(&flag);
        stream.launch_host(move || {
            while flag.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
        })?;
        launch(&kernel, stream)
    }))
}

fn stops(result: Result<Sample, Refusal<green_ctx::Error>>) -> String {
    match result {
        Err(Refusal::Stop(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_that_waits_for_others_is_given_up_and_aborted() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    let pair = [Task::Together(Arm::ceilings([36, 96], 132)), Task::Together(Arm::streams(2, 132))];
    for (task, rounds) in pair.iter().flat_map(|task| [(task, false), (task, true)]) {
        let flag = Arc::new(AtomicBool::new(true));
        let mut jobs = [held(&device, "reduce", &flag)?, job(&device, "product")?];
        let mut runner = Runner::new(&device, &mut jobs)?;
        let mut peers = Others::new(2).patient_for(Duration::from_millis(200));
        peers.held = flag;
        let began = Instant::now();
        let counts = Counts { rounds, ..counts(&[3, 3]) };
        assert_eq!(stops(runner.run_counts(task, &counts, &mut peers)), "the others are gone");
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        assert_eq!(peers.aborts.load(Ordering::Relaxed), 1);
        // What was aborted has ended, and the next block runs.
        let sample = runner.run_counts(task, &counts, &mut Others::new(2)).map_err(refused)?;
        assert_eq!(sample.jobs.len(), 2);
    }
    nothing_is_left(&sim, &device)
}

#[test]
fn a_job_that_fails_in_a_block_ends_the_others_without_an_abort() -> Tested {
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
        let (task, mut peers) = (Task::Together(Arm::streams(2, 132)), Others::new(2));
        let failed = runner.run_counts(&task, &counts(&[10, 10]), &mut peers);
        let words = "tired: it has had enough";
        assert!(matches!(&failed, Err(Refusal::Skip(reason)) if reason == words), "{failed:?}");
        assert_eq!(peers.aborts.load(Ordering::Relaxed), 0);
    }
    nothing_is_left(&sim, &device)
}

#[test]
fn what_even_an_abort_does_not_end_is_left_behind() -> Tested {
    let (_, device) = simulated("h200@13.0")?;
    // More blocks that wait for each other than there is room for: a node of a graph that is launched never runs.
    let (kernel, stream) =
        (kernel(&device)?, device.primary_context()?.create_stream(StreamOptions::default())?);
    // SAFETY: the kernel takes no parameters.
    let submit = || unsafe { stream.launch(&kernel, LaunchConfig::new(265, 1024), ()) };
    let graph = stream.capture(CaptureMode::Relaxed, submit)?;
    let (api, mut node, mut count) = (device.driver().api(), ptr::null_mut(), 1);
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    value.cooperative = 1;
    // SAFETY: the graph is alive, and there is room for its one node.
    let found = unsafe { api.cuGraphGetNodes()?(graph.as_raw(), &raw mut node, &raw mut count) };
    let set = api.cuGraphKernelNodeSetAttribute()?;
    let cooperative = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    // SAFETY: the node is a kernel's and alive, and the value is of this attribute.
    let set = unsafe { set(node, cooperative, &raw const value) };
    assert_eq!([found.0, set.0], [0, 0]);
    let endless = graph.instantiate()?;
    // SAFETY: the kernel uses nothing, and the closure keeps the graph.
    let endless = Job::new("endless", move |stream| Ok(unsafe { stream.launch_graph(&endless) }?));
    let kept = Arc::new(());
    let mut jobs = [endless.keep(Arc::clone(&kept)), job(&device, "b")?];
    let mut peers = Others::new(2).patient_for(Duration::from_millis(200));
    let began = Instant::now();
    let task = Task::Together(Arm::ceilings([36, 96], 132));
    let mut runner = Runner::new(&device, &mut jobs)?;
    let stopped = stops(runner.run_counts(&task, &counts(&[2, 2]), &mut peers));
    assert!(stopped.starts_with("the others are gone, and its kernels still run"), "{stopped}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let again = runner.run_counts(&task, &counts(&[2, 2]), &mut Others::new(2));
    assert!(matches!(again, Err(Refusal::Skip(reason)) if reason.contains("still run")));
    drop(runner);
    drop(jobs);
    // What the kernels may use lives on.
    assert_eq!(Arc::strong_count(&kept), 2);
    assert!(device.resources().sm()?.free() < 132);
    Ok(())
}
