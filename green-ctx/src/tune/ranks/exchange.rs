//! Messages between ranks, in rounds: each rank posts one message a round and reads those of all.

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::measure::{Counts, Sample, Task};
use super::super::outcome::Outcome;
use super::super::request::RequestError;
use super::super::runner::chain;
use super::error::Ended;
use super::{RankStore, RanksError, StoreError};

/// What a rank posts in a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// What it is to tune.
    Asked(Vec<(String, String)>),
    /// A text of the program's.
    Text(String),
    /// What readers should know of its jobs.
    Notes(Vec<String>),
    /// It waits for a message of rank 0's.
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
    /// A rank has failed, this one or another. It is the last message.
    Failed { rank: usize, reason: String, is_request: bool },
    /// A block does not end there. It is the last message.
    Stuck,
}

/// This rank's side of the exchange. A message's key is the number of its round and that of its rank.
pub(super) struct Exchange<S> {
    store: S,
    rank: usize,
    ranks: usize,
    patience: Duration,
    /// The round in which this rank posts next.
    round: u64,
    /// Whether it has posted its last message.
    has_failed: bool,
    /// Why it has given up to wait for its device.
    given_up: Option<RanksError>,
}

/// Waiting for others is interrupted so often, to see who has failed meanwhile.
const SLICE: Duration = Duration::from_millis(250);
/// This is left of the timeout when a rank gives up, for what follows: to abort what runs, and to post why.
const MARGIN: Duration = Duration::from_secs(10);
/// A rank that has given up waits so long for a message of each other rank: the one without is the reason.
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

    /// Posts a message, and returns those of all ranks in this round. Where this fails, the other ranks fail too.
    pub(super) fn exchange(&mut self, message: Message) -> Result<Vec<Message>, RanksError> {
        let messages = self.gather(message);
        if let Err(error) = &messages {
            self.fail_with(error);
        }
        messages
    }

    fn gather(&mut self, message: Message) -> Result<Vec<Message>, RanksError> {
        let (round, began) = (self.round, Instant::now());
        self.post(&message)?;
        let mut posted: Vec<Option<Message>> = (0..self.ranks).map(|_| None).collect();
        posted[self.rank] = Some(message);
        loop {
            let missing: Vec<usize> =
                (0..self.ranks).filter(|rank| posted[*rank].is_none()).collect();
            if missing.is_empty() {
                break;
            }
            let left = self.patience.saturating_sub(began.elapsed());
            for (rank, message) in self.read(round, &missing, left.min(SLICE))? {
                match failure(rank, message) {
                    Ok(message) => posted[rank] = Some(message),
                    Err(error) => return Err(error),
                }
            }
            if began.elapsed() >= self.patience && posted.iter().any(Option::is_none) {
                let silent = missing.into_iter().filter(|rank| posted[*rank].is_none()).collect();
                return Err(RanksError::Silent { ranks: silent, waited: began.elapsed() });
            }
        }
        // A rank that posts in this round has read the last one.
        if let Some(last) = round.checked_sub(1) {
            let key = key(last, self.rank);
            self.store.delete(&key).map_err(RanksError::Store)?;
        }
        Ok(posted.into_iter().flatten().collect())
    }

    fn post(&mut self, message: &Message) -> Result<(), RanksError> {
        let text =
            serde_json::to_string(message).map_err(|error| RanksError::Store(error.into()))?;
        let key = key(self.round, self.rank);
        self.round += 1;
        self.store.set(&key, &text).map_err(RanksError::Store)
    }

    /// What some ranks have posted in a round.
    fn read(
        &mut self,
        round: u64,
        ranks: &[usize],
        wait: Duration,
    ) -> Result<Vec<(usize, Message)>, RanksError> {
        let keys: Vec<String> = ranks.iter().map(|rank| key(round, *rank)).collect();
        let texts = self.store.get(&keys, wait).map_err(RanksError::Store)?;
        let mut read = Vec::new();
        for (rank, text) in ranks.iter().zip(texts) {
            if let Some(text) = text {
                let message = serde_json::from_str(&text).map_err(|_| self.astray(*rank))?;
                read.push((*rank, message));
            }
        }
        Ok(read)
    }

    fn others(&self) -> Vec<usize> {
        (0..self.ranks).filter(|rank| *rank != self.rank).collect()
    }

    /// The error for a message at the wrong moment, or for a text that is none. The other ranks fail too.
    pub(super) fn astray(&mut self, rank: usize) -> RanksError {
        let reason =
            "it does not take the same steps as this rank, or has another version".to_owned();
        let error = RanksError::Rank { rank, reason, is_request: false };
        self.fail_with(&error);
        error
    }

    /// Posts that this rank has failed.
    pub(super) fn fail(&mut self, reason: &str, is_request: bool) {
        let (rank, reason) = (self.rank, reason.to_owned());
        self.post_last(&Message::Failed { rank, reason, is_request });
    }

    /// Posts the last message. Where that fails, the other ranks find out by themselves.
    fn post_last(&mut self, message: &Message) {
        if !self.has_failed {
            self.has_failed = true;
            let _ = self.post(message);
        }
    }

    /// The same with an error. Another rank's failure is posted too, since that rank may have posted it in a round
    /// that others have not reached.
    pub(super) fn fail_with(&mut self, error: &RanksError) {
        match error {
            RanksError::Differs { .. } => {}
            RanksError::Rank { rank, reason, is_request } => {
                let (rank, reason, is_request) = (*rank, reason.clone(), *is_request);
                self.post_last(&Message::Failed { rank, reason, is_request });
            }
            // The other ranks name this one, and need its reason alone.
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
        match self.read(self.round, &self.others(), Duration::ZERO) {
            Err(error) => failed = Some(error),
            Ok(messages) => {
                for (rank, message) in messages {
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

    /// Posts that a block does not end here, and finds out which ranks post nothing at all.
    fn stuck(&mut self, waited: Duration) -> RanksError {
        let round = self.round;
        self.post_last(&Message::Stuck);
        RanksError::Stuck { waited, silent: self.silent(round) }
    }

    /// Posts that nothing can run here any more, and finds out which ranks do not answer: that may be the reason,
    /// since a rank that ends takes its device's memory with it.
    pub(super) fn failed(&mut self, cause: StoreError) -> RanksError {
        let round = self.round;
        self.fail(&chain(&*cause), false);
        RanksError::Failed { silent: self.silent(round), cause }
    }

    /// The ranks that post nothing in a round.
    fn silent(&mut self, round: u64) -> Vec<usize> {
        let others = self.others();
        let read = self.read(round, &others, NAMING).unwrap_or_default();
        let is_silent = |rank: &usize| read.iter().all(|(other, _)| other != rank);
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

/// A message, or the error of one that says that its rank has failed.
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
