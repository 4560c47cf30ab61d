//! Ranks that fail, end or lie, and stores that are lost.

use super::*;

/// A model that does something wrong in its 30th block, on rank 1, or waits for the others on other ranks where
/// they do.
struct Failing {
    model: Model,
    wrong: Option<Wrong>,
    blocks: usize,
    aborted: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the device has failed")]
struct Lost;

impl Measure for Failing {
    type Error = Lost;

    fn run(&mut self, _: &Task, _: &Block) -> Result<Sample, Refusal<Lost>> {
        panic!("ranks run counts")
    }

    fn now(&self) -> Duration {
        self.model.now()
    }
}

impl MeasureCounts for Failing {
    fn run_counts(
        &mut self,
        task: &Task,
        counts: &Counts,
        peers: &mut dyn Peers,
    ) -> Result<Sample, Refusal<Lost>> {
        self.blocks += 1;
        if self.blocks < 30 {
            return self.model.run_counts(task, counts, peers).map_err(never);
        }
        let agree = |peers: &mut dyn Peers, times: usize| (0..times).all(|_| peers.agree());
        match self.wrong {
            Some(Wrong::Skips(after)) if agree(peers, after) => {
                Err(Refusal::Skip("no memory".to_owned()))
            }
            Some(Wrong::Stops(after)) if agree(peers, after) => Err(Refusal::Stop(Lost)),
            Some(Wrong::Dies(after)) if agree(peers, after) => panic::resume_unwind(Box::new(())),
            Some(Wrong::Hangs | Wrong::Crashes) if agree(peers, 2) => {
                panic::resume_unwind(Box::new(()))
            }
            Some(Wrong::Forgets) => {
                let mut sample = self.model.run_counts(task, counts, peers).map_err(never)?;
                sample.jobs.pop();
                Ok(sample)
            }
            // Its collectives wait for the others'.
            None if agree(peers, 2) => {
                let began = Instant::now();
                while peers.give_up(began.elapsed()).is_none() {
                    thread::sleep(Duration::from_millis(10));
                }
                peers.abort();
                self.aborted = true;
                Err(Refusal::Stop(Lost))
            }
            _ => Err(Refusal::Skip("the others do not run it".to_owned())),
        }
    }
}

fn never(refusal: Refusal<Infallible>) -> Refusal<Lost> {
    match refusal {
        Refusal::Skip(reason) => Refusal::Skip(reason),
        Refusal::Stop(never) => match never {},
    }
}

fn failing(ranks: &mut Ranks<Texts>, wrong: Wrong) -> Found {
    let wrong = match (ranks.rank(), wrong) {
        (1, Wrong::Crashes) => Some(Wrong::Dies(2)),
        (_, Wrong::Crashes) => Some(Wrong::Stops(2)),
        (1, wrong) => Some(wrong),
        _ => None,
    };
    let mut failing = Failing { model: model(ranks.rank()), wrong, blocks: 0, aborted: false };
    let found = ranks.with(&mut failing, &profiles(), &H200, &Request::default(), &mut |_| true);
    assert_eq!(failing.blocks, 30);
    found
}

#[test]
fn a_rank_that_fails_ends_all() {
    for (wrong, own, others) in [
        (Wrong::Stops(0), "the device has failed", "the device has failed"),
        (Wrong::Stops(1), "the device has failed", "the device has failed"),
        (Wrong::Stops(2), "the device has failed", "the device has failed"),
        // What it has submitted until then the others wait for.
        (Wrong::Skips(2), "no memory", "no memory"),
    ] {
        let began = Instant::now();
        let errors = errors(all(3, |ranks| failing(ranks, wrong)));
        assert!(began.elapsed() < Duration::from_secs(5), "{wrong:?} {:?}", began.elapsed());
        assert!(errors[1].ends_with(own), "{errors:?}");
        for error in [&errors[0], &errors[2]] {
            assert!(error.starts_with("rank 1 failed: ") && error.ends_with(others), "{errors:?}");
        }
    }
}

#[test]
fn a_rank_that_forgets_a_job_is_named() {
    let short = |ranks: &mut Ranks<Texts>| {
        let jobs = if ranks.rank() == 1 { vec![jobs().remove(0)] } else { jobs() };
        tune(ranks, &mut Model::new(H200, jobs, 1), &Request::default())
    };
    // It says that it has two, and has one.
    let errors = errors(all(2, short));
    assert!(errors[0].contains("rank 1: there is no job 1 among 1"), "{errors:?}");
    assert_eq!(errors[0], errors[1]);
    let (found, _) = in_threads(2, LONG, |ranks| {
        let wrong = Some(Wrong::Forgets);
        let mut failing = Failing { model: model(0), wrong, blocks: 0, aborted: false };
        if ranks.rank() == 0 {
            return tune(ranks, &mut model(0), &Request::default());
        }
        ranks.with(&mut failing, &profiles(), &H200, &Request::default(), &mut |_| true)
    });
    for found in found.into_iter().flatten() {
        let error = found.expect_err("a sample of one job").to_string();
        assert!(error.starts_with("rank 1 failed: it does not take the same steps"), "{error}");
    }
}

#[test]
fn a_rank_that_ends_is_named_before_the_timeout_is_over() {
    let timeout = Duration::from_secs(2);
    for wrong in [Wrong::Dies(0), Wrong::Dies(1), Wrong::Hangs, Wrong::Crashes] {
        let began = Instant::now();
        let (found, _) = in_threads(3, timeout, |ranks| failing(ranks, wrong));
        // The last of them looks for another second who else has given up.
        assert!(began.elapsed() < timeout + Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(found[1].is_none(), "it has ended");
        for found in found.into_iter().flatten() {
            let error = found.expect_err("a rank has ended").to_string();
            assert!(error.contains("rank 1 has not answered"), "{wrong:?} {error}");
        }
    }
}

#[test]
fn what_is_no_message_is_an_error() {
    let found = all(2, |ranks| {
        if ranks.rank() == 1 {
            ranks.exchange.exchange(Message::Awaits)?;
        }
        tune(ranks, &mut model(0), &Request::default())
    });
    let errors = errors(found);
    assert!(
        errors.iter().all(|error| error.contains("does not take the same steps")),
        "{errors:?}"
    );
    let texts = Texts::default();
    for text in ["", "{}", "[1, 2]", "\"unknown\""] {
        let mut texts = texts.clone();
        texts.0.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
        texts.set("0/1", text).expect("it is stored");
        let error = Ranks::new(texts, 0, 2, LONG).share("a").expect_err(text).to_string();
        assert!(error.starts_with("rank 1 failed: it does not take the same steps"), "{error}");
    }
}

/// A store that cannot be reached from the 20th call on.
struct Lossy(Texts, usize);

impl Lossy {
    fn count(&mut self) -> Result<(), StoreError> {
        self.1 += 1;
        if self.1 > 20 { Err("the connection is lost".into()) } else { Ok(()) }
    }
}

impl RankStore for Lossy {
    fn set(&mut self, key: &str, text: &str) -> Result<(), StoreError> {
        self.count().and_then(|()| self.0.set(key, text))
    }

    fn get(&mut self, keys: &[String], wait: Duration) -> Result<Vec<Option<String>>, StoreError> {
        self.count().and_then(|()| self.0.get(keys, wait))
    }

    fn delete(&mut self, key: &str) -> Result<(), StoreError> {
        self.count().and_then(|()| self.0.delete(key))
    }
}

#[test]
fn a_store_that_is_lost_is_an_error() {
    let texts = Texts::default();
    let run = |rank| {
        let store = Lossy(texts.clone(), 0);
        let mut ranks = Ranks::new(store, rank, 2, Duration::from_secs(2));
        let request = Request::default();
        ranks.with(&mut model(rank), &profiles(), &H200, &request, &mut |_| true)
    };
    let found = thread::scope(|scope| {
        [0, 1].map(|rank| scope.spawn(move || run(rank))).map(|rank| rank.join().expect("no panic"))
    });
    let texts = found.map(|found| chain(&found.expect_err("it is lost")));
    let lost = |error: &String| error.ends_with("may have ended: the connection is lost");
    assert!(texts.iter().any(lost), "{texts:?}");
}
