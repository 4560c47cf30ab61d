//! Ranks that tune on simulated devices of their own, with a job that waits for the other rank's.

mod common;
#[path = "common/jobs.rs"]
mod jobs;

use std::collections::HashMap;
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{Outcome as Tested, simulated};
use green_ctx::sim_0_1::Sim;
use green_ctx::tune::{
    Goal, Job, JobError, Outcome, RankStore, Ranks, RanksError, Request, StoreError,
};
use green_ctx::{Device, Stream};
use jobs::{job, kernel, launch};

/// What two ranks have in common: texts, and how many collectives each has begun.
#[derive(Default)]
struct Common {
    texts: Mutex<HashMap<String, String>>,
    changed: Condvar,
    begun: [AtomicUsize; 2],
    aborted: [AtomicBool; 2],
}

/// One rank's part of it.
#[derive(Clone)]
struct Rank {
    common: Arc<Common>,
    number: usize,
}

impl RankStore for Rank {
    fn set(&mut self, key: &str, text: &str) -> Result<(), StoreError> {
        let mut texts = self.common.texts.lock().map_err(|error| error.to_string())?;
        texts.insert(key.to_owned(), text.to_owned());
        self.common.changed.notify_all();
        Ok(())
    }

    fn get(&mut self, keys: &[String], wait: Duration) -> Result<Vec<Option<String>>, StoreError> {
        let texts = self.common.texts.lock().map_err(|error| error.to_string())?;
        let lacks =
            |texts: &mut HashMap<String, String>| keys.iter().any(|key| !texts.contains_key(key));
        let waited = self.common.changed.wait_timeout_while(texts, wait, lacks);
        let (texts, _) = waited.map_err(|error| error.to_string())?;
        Ok(keys.iter().map(|key| texts.get(key).cloned()).collect())
    }

    fn delete(&mut self, key: &str) -> Result<(), StoreError> {
        self.common.texts.lock().map_err(|error| error.to_string())?.remove(key);
        Ok(())
    }

    fn abort(&mut self) {
        self.common.aborted[self.number].store(true, Ordering::Release);
    }
}

impl Rank {
    /// Begins a collective, which ends when the other rank has begun as many, or on an abort.
    fn reduce(&self, stream: &Stream) -> Result<(), JobError> {
        let rank = self.clone();
        Ok(stream.launch_host(move || {
            let Common { begun, aborted, .. } = &*rank.common;
            let number = begun[rank.number].fetch_add(1, Ordering::AcqRel) + 1;
            while begun[1 - rank.number].load(Ordering::Acquire) < number
                && !aborted[rank.number].load(Ordering::Acquire)
            {
                thread::sleep(Duration::from_micros(20));
            }
        })?)
    }
}

/// A job that is a collective and a kernel. What happens in its n-th iteration, `wrong` does.
fn reduction(
    device: &Device,
    rank: &Rank,
    wrong: impl Fn(usize) -> Result<(), JobError> + Send + 'static,
) -> green_ctx::Result<Job> {
    let (kernel, rank, count) = (kernel(device)?, rank.clone(), AtomicUsize::new(0));
    Ok(Job::new("reduce", move |stream| {
        wrong(count.fetch_add(1, Ordering::Relaxed))?;
        rank.reduce(stream)?;
        launch(&kernel, stream)
    }))
}

fn nothing_is_left(sim: &Sim, device: &Device) -> Tested {
    assert_eq!(device.resources().sm()?.free(), 132);
    device.release_idle();
    let live = sim.live();
    assert_eq!((live.streams, live.green_contexts, live.events), (0, 0, 0));
    Ok(())
}

type Found = Result<Outcome, RanksError>;

/// Tunes on two ranks, and returns what each found, and how many collectives each began. The first rank's thread
/// may panic.
fn tune(
    timeout: Duration,
    request: &Request,
    wrong: impl Fn(usize, usize) -> Result<(), JobError> + Clone + Send + Sync + 'static,
) -> (Vec<Option<Found>>, Arc<Common>) {
    let common = Arc::new(Common::default());
    let run = |number: usize| -> Result<Found, Box<dyn std::error::Error>> {
        let (sim, device) = simulated("h200@13.0")?;
        let rank = Rank { common: Arc::clone(&common), number };
        let found = {
            let wrong = wrong.clone();
            let reduction = reduction(&device, &rank, move |count| wrong(number, count))?;
            let mut jobs = [reduction, job(&device, "product")?];
            let mut ranks = Ranks::new(rank, number, 2, timeout);
            ranks.run(&device, &mut jobs, request, &mut |_| true, &mut Ok)
        };
        nothing_is_left(&sim, &device)?;
        Ok(found)
    };
    let found = thread::scope(|scope| {
        let ranks = [0, 1]
            .map(|number| scope.spawn(move || run(number).map_err(|error| error.to_string())));
        ranks.map(|rank| rank.join().ok().map(|found| found.expect("the device works")))
    });
    (found.into(), common)
}

fn short(goal: Goal) -> Request {
    Request::new(goal).budget(Duration::from_millis(600))
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn collectives_never_wait_for_ever() -> Tested {
    for goal in [Goal::throughput(), Goal::Makespan] {
        let began = Instant::now();
        let (found, common) = tune(LONG, &short(goal), |_, _| Ok(()));
        let outcomes: Vec<Outcome> = found
            .into_iter()
            .flatten()
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        let [first, second] = &outcomes[..] else { panic!("two ranks") };
        assert_eq!(first, second);
        assert!(first.complete && first.arms.iter().any(|arm| arm.samples > 0));
        assert!(first.machine.is_some());
        // Each rank says the same of it.
        let notes = first.notes.iter().filter(|note| note.contains("reduce cannot be captured"));
        assert_eq!(notes.count(), 1, "{:?}", first.notes);
        let begun = |rank: usize| common.begun[rank].load(Ordering::Relaxed);
        assert!(begun(0) == begun(1) && begun(0) > 20, "{} and {}", begun(0), begun(1));
        assert!(common.aborted.iter().all(|aborted| !aborted.load(Ordering::Relaxed)));
        assert!(began.elapsed() < LONG / 4, "{:?}", began.elapsed());
    }
    Ok(())
}

fn texts(found: Vec<Option<Found>>) -> Vec<String> {
    let error = |found: Found| {
        let error = found.expect_err("a rank has failed");
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", source.unwrap_or_default())
    };
    found.into_iter().map(|found| found.map_or_else(|| "ended".to_owned(), error)).collect()
}

#[test]
fn a_job_that_fails_on_one_rank_ends_both_soon() {
    for after in [0, 1, 3, 100] {
        let began = Instant::now();
        let (found, _) = tune(LONG, &short(Goal::throughput()), move |rank, count| {
            if rank == 1 && count >= after { Err("no weights are loaded".into()) } else { Ok(()) }
        });
        let texts = texts(found);
        assert!(texts.iter().all(|text| text.contains("no weights are loaded")), "{texts:?}");
        assert!(texts[0].contains("rank 1"), "{texts:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}

#[test]
fn a_rank_that_ends_is_found_out_before_the_timeout_is_over() {
    let timeout = Duration::from_secs(2);
    for after in [1, 200] {
        let began = Instant::now();
        let (found, common) = tune(timeout, &short(Goal::throughput()), move |rank, count| {
            if rank == 1 && count == after {
                panic::resume_unwind(Box::new("the process ends"));
            }
            Ok(())
        });
        let texts = texts(found);
        assert_eq!(texts[1], "ended");
        assert!(texts[0].contains("rank 1 has not answered"), "{texts:?}");
        // The margin of so short a timeout does not suffice for looking who else has given up, and for an abort.
        assert!(began.elapsed() < 4 * timeout, "{:?}", began.elapsed());
        assert!(common.aborted[0].load(Ordering::Relaxed));
    }
}
