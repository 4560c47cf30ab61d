//! How ranks give each other texts, in rounds that all of them take part in.

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::measure::{Counts, Sample, Task};
use super::super::outcome::Outcome;
use super::super::request::RequestError;
use super::super::runner::chain;
use super::error::Ended;
use super::{RankStore, RanksError, StoreError};

/// What a rank says in a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// What it is asked for.
    Asked(Vec<(String, String)>),
    /// A text of the program's.
    Text(String),
    /// What readers should know of its jobs.
    Notes(Vec<String>),
    /// It waits for what rank 0 says.
    Awaits,
    /// What rank 0 has found in a file, or why nothing.
    Found(Box<Result<Outcome, String>>),
    /// A block that all ranks are to run.
    Order(Task, Counts),
    /// It is ready for the block.
    Ready,
    /// It cannot run the block.
    Skip(String),
    /// What the block gave.
    Sample(Sample),
    /// The search is over.
    Outcome(Box<Outcome>),
    /// It has the outcome.
    Done,
    /// The search is over without an outcome.
    Ended(Ended),
    /// A rank has failed, this one or another that it has heard of. It says no more.
    Failed { rank: usize, reason: String, is_request: bool },
    /// A block does not end there, and it says no more.
    Stuck,
}

/// The ranks' texts, one a rank and round. Its key is the number of the round and the rank's.
pub(super) struct Exchange<S> {
    store: S,
    rank: usize,
    ranks: usize,
    patience: Duration,
    /// The round in which this rank speaks next.
    round: u64,
    /// Whether it has said that it failed.
    has_failed: bool,
    /// Why it has given up to wait for its device.
    given_up: Option<RanksError>,
}

/// Waiting for others is interrupted so often, to see who has failed meanwhile.
const SLICE: Duration = Duration::from_millis(250);
/// This is left of the timeout when a rank gives up, for what follows: aborting what runs and saying so.
const MARGIN: Duration = Duration::from_secs(10);
/// Whoever has given up looks for so long who else says something: who does not is the reason.
const NAMING: Duration = Duration::from_secs(1);
/// What has been aborted ends within this time.
const ABORTED: Duration = Duration::from_secs(4);

impl<S: RankStore> Exchange<S> {
    pub(super) fn new(store: S, rank: usize, ranks: usize, timeout: Duration) -> Exchange<S> {
        let patience = timeout - (timeout / 4).min(MARGIN);
        Exchange { store, rank, ranks, patience, round: 0, has_failed: false, given_up: None }
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Says something to all ranks, and returns what each says in this round. Where this fails, the others hear
    /// of it.
    pub(super) fn exchange(&mut self, message: Message) -> Result<Vec<Message>, RanksError> {
        let said = self.gather(message);
        if let Err(error) = &said {
            self.fail_with(error);
        }
        said
    }

    fn gather(&mut self, message: Message) -> Result<Vec<Message>, RanksError> {
        let (round, began) = (self.round, Instant::now());
        self.say(&message)?;
        let mut said: Vec<Option<Message>> = (0..self.ranks).map(|_| None).collect();
        said[self.rank] = Some(message);
        loop {
            let missing: Vec<usize> =
                (0..self.ranks).filter(|rank| said[*rank].is_none()).collect();
            if missing.is_empty() {
                break;
            }
            let left = self.patience.saturating_sub(began.elapsed());
            for (rank, message) in self.heard(round, &missing, left.min(SLICE))? {
                match failure(rank, message) {
                    Ok(message) => said[rank] = Some(message),
                    Err(error) => return Err(error),
                }
            }
            if began.elapsed() >= self.patience && said.iter().any(Option::is_none) {
                let silent = missing.into_iter().filter(|rank| said[*rank].is_none()).collect();
                return Err(RanksError::Silent { ranks: silent, waited: began.elapsed() });
            }
        }
        // Who speaks in this round has heard the last one.
        if let Some(last) = round.checked_sub(1) {
            let key = key(last, self.rank);
            self.store.delete(&key).map_err(RanksError::Store)?;
        }
        Ok(said.into_iter().flatten().collect())
    }

    fn say(&mut self, message: &Message) -> Result<(), RanksError> {
        let text =
            serde_json::to_string(message).map_err(|error| RanksError::Store(error.into()))?;
        let key = key(self.round, self.rank);
        self.round += 1;
        self.store.set(&key, &text).map_err(RanksError::Store)
    }

    /// What some ranks have said in a round.
    fn heard(
        &mut self,
        round: u64,
        ranks: &[usize],
        wait: Duration,
    ) -> Result<Vec<(usize, Message)>, RanksError> {
        let keys: Vec<String> = ranks.iter().map(|rank| key(round, *rank)).collect();
        let texts = self.store.get(&keys, wait).map_err(RanksError::Store)?;
        let mut heard = Vec::new();
        for (rank, text) in ranks.iter().zip(texts) {
            if let Some(text) = text {
                let message = serde_json::from_str(&text).map_err(|_| self.astray(*rank))?;
                heard.push((*rank, message));
            }
        }
        Ok(heard)
    }

    fn others(&self) -> Vec<usize> {
        (0..self.ranks).filter(|rank| *rank != self.rank).collect()
    }

    /// The error for what a rank says at the wrong moment, or what is no message. The others hear of it.
    pub(super) fn astray(&mut self, rank: usize) -> RanksError {
        let reason =
            "it does not take the same steps as this rank, or has another version".to_owned();
        let error = RanksError::Rank { rank, reason, is_request: false };
        self.fail_with(&error);
        error
    }

    /// Says that this rank has failed.
    pub(super) fn fail(&mut self, reason: &str, is_request: bool) {
        let (rank, reason) = (self.rank, reason.to_owned());
        self.say_last(&Message::Failed { rank, reason, is_request });
    }

    /// Says something and then no more. What cannot be said, the others find out by themselves.
    fn say_last(&mut self, message: &Message) {
        if !self.has_failed {
            self.has_failed = true;
            let _ = self.say(message);
        }
    }

    /// The same with an error. Of another rank's failure the others hear too, since that rank may have said it in
    /// a round that they are not in.
    pub(super) fn fail_with(&mut self, error: &RanksError) {
        match error {
            RanksError::Differs { .. } => {}
            RanksError::Rank { rank, reason, is_request } => {
                let (rank, reason, is_request) = (*rank, reason.clone(), *is_request);
                self.say_last(&Message::Failed { rank, reason, is_request });
            }
            // What this rank says of it, the others know.
            RanksError::Store(cause) | RanksError::Failed { cause, .. } => {
                self.fail(&chain(&**cause), false);
            }
            error => {
                let is_job = matches!(error, RanksError::Request(RequestError::Job { .. }));
                let is_request = matches!(error, RanksError::Request(_)) && !is_job;
                self.fail(&chain(error), is_request);
            }
        }
    }

    /// Why to wait no longer for what began so long ago: another rank has failed, or it takes too long.
    pub(super) fn gives_up(&mut self, elapsed: Duration) -> Option<String> {
        let (mut failed, mut is_stuck) = (None, elapsed >= self.patience);
        match self.heard(self.round, &self.others(), Duration::ZERO) {
            Err(error) => failed = Some(error),
            Ok(heard) => {
                for (rank, message) in heard {
                    // It waits for the same as this rank, and is not the reason.
                    is_stuck |= matches!(message, Message::Stuck);
                    failed = failed.or(failure(rank, message).err());
                }
            }
        }
        let error = match failed {
            _ if is_stuck => self.stuck(elapsed),
            failed => failed?,
        };
        let reason = error.to_string();
        self.fail_with(&error);
        self.given_up = Some(error);
        Some(reason)
    }

    /// Says that a block does not end, and finds out who does not say so too, or anything else.
    fn stuck(&mut self, waited: Duration) -> RanksError {
        let round = self.round;
        self.say_last(&Message::Stuck);
        RanksError::Stuck { waited, silent: self.silent(round) }
    }

    /// Says that nothing can run here any more, and finds out who does not answer: that may be the reason, since a
    /// rank that ends takes its device's memory with it.
    pub(super) fn failed(&mut self, cause: StoreError) -> RanksError {
        let round = self.round;
        self.fail(&chain(&*cause), false);
        RanksError::Failed { silent: self.silent(round), cause }
    }

    /// The ranks that say nothing in a round.
    fn silent(&mut self, round: u64) -> Vec<usize> {
        let others = self.others();
        let heard = self.heard(round, &others, NAMING).unwrap_or_default();
        let is_silent = |rank: &usize| heard.iter().all(|(heard, _)| heard != rank);
        others.into_iter().filter(is_silent).collect()
    }

    /// Why this rank has given up to wait for its device.
    pub(super) fn given_up(&mut self) -> Option<RanksError> {
        self.given_up.take()
    }

    pub(super) fn abort(&mut self) {
        self.store.abort();
    }

    pub(super) fn wait(
        &mut self,
        is_done: &mut dyn FnMut() -> Result<bool, StoreError>,
    ) -> Result<(), RanksError> {
        let (began, mut asked, mut aborted) = (Instant::now(), Instant::now(), None);
        loop {
            let done = is_done().map_err(|error| {
                let error = self.given_up().unwrap_or_else(|| RanksError::failed(error));
                self.fail_with(&error);
                error
            })?;
            let is_over = aborted.is_some_and(|since: Instant| since.elapsed() >= ABORTED);
            if let Some(error) = self.given_up.take_if(|_| done || is_over) {
                return Err(error);
            }
            if done {
                return Ok(());
            }
            if aborted.is_none() && asked.elapsed() >= SLICE {
                asked = Instant::now();
                if self.gives_up(began.elapsed()).is_some() {
                    self.abort();
                    aborted = Some(Instant::now());
                }
            }
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// What a rank says, or the error that it has failed.
fn failure(rank: usize, message: Message) -> Result<Message, RanksError> {
    Err(match message {
        Message::Failed { rank, reason, is_request } => {
            RanksError::Rank { rank, reason, is_request }
        }
        Message::Stuck => {
            let reason = "a block did not end".to_owned();
            RanksError::Rank { rank, reason, is_request: false }
        }
        message => return Ok(message),
    })
}

fn key(round: u64, rank: usize) -> String {
    format!("{round}/{rank}")
}
