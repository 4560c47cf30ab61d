//! Tunes in several processes at once, the ranks of a group, whose jobs wait for each other.

mod block;
mod counts;
mod error;
mod exchange;
#[cfg(test)]
mod tests;

use std::error::Error as StdError;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::device::Device;
use crate::error::Error;

use self::block::{Leader, Watched};
use self::counts::Rates;
use self::error::Ended;
pub use self::error::RanksError;
use self::exchange::{Exchange, Message};
use super::arm::Pieces;
use super::arrival::Arrival;
use super::job::Job;
use super::measure::{Measure, MeasureCounts, Refusal};
use super::outcome::Outcome;
use super::request::{Profile, Request, RequestError, TuneError, with};
use super::runner::Runner;
use super::search::Progress;

/// A key-value store that every rank of a group reaches, such as that of `torch.distributed`. Its keys are for
/// one search alone: an implementation puts a prefix before them.
pub trait RankStore {
    /// Stores a text.
    ///
    /// # Errors
    ///
    /// Why the store cannot be reached.
    fn set(&mut self, key: &str, text: &str) -> Result<(), StoreError>;

    /// Waits until all of these keys have texts, at most so long, and returns the texts that there are.
    ///
    /// # Errors
    ///
    /// Why the store cannot be reached.
    fn get(&mut self, keys: &[String], wait: Duration) -> Result<Vec<Option<String>>, StoreError>;

    /// Removes a text.
    ///
    /// # Errors
    ///
    /// Why the store cannot be reached.
    fn delete(&mut self, key: &str) -> Result<(), StoreError>;

    /// Ends collectives that run on this rank's device and wait for another rank, as [`Peers::abort`].
    ///
    /// [`Peers::abort`]: super::Peers::abort
    fn abort(&mut self) {}
}

/// Why a store cannot be reached.
pub type StoreError = Box<dyn StdError + Send + Sync>;

/// One of several processes that tune together. Each has a device and jobs of its own; the jobs of all ranks are
/// the same ones, and wait for each other in collectives.
///
/// Rank 0 searches. It orders which arm runs and how many iterations of each job, so that no rank submits one more
/// than another. Before anything is submitted, every rank confirms that it can run the arm: one that cannot run on
/// one rank is skipped on all. Of each block the slowest rank's figures count. All ranks end with the same
/// outcome.
///
/// After a failure on one rank every rank returns an error that names that rank, before the timeout is over.
///
/// # Example
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex};
/// use std::thread;
/// use std::time::{Duration, Instant};
/// use green_ctx::tune::{Model, ModelJob, Pieces, Profile, RankStore, Ranks, Request, StoreError};
///
/// #[derive(Clone, Default)]
/// struct Shared(Arc<Mutex<HashMap<String, String>>>);
///
/// impl RankStore for Shared {
///     fn set(&mut self, key: &str, text: &str) -> Result<(), StoreError> {
///         self.0.lock().unwrap().insert(key.to_owned(), text.to_owned());
///         Ok(())
///     }
///     fn get(&mut self, keys: &[String], wait: Duration) -> Result<Vec<Option<String>>, StoreError> {
///         let began = Instant::now();
///         loop {
///             let texts = self.0.lock().unwrap();
///             let found: Vec<_> = keys.iter().map(|key| texts.get(key).cloned()).collect();
///             if found.iter().all(Option::is_some) || began.elapsed() > wait {
///                 return Ok(found);
///             }
///             drop(texts);
///             thread::sleep(Duration::from_micros(50));
///         }
///     }
///     fn delete(&mut self, key: &str) -> Result<(), StoreError> {
///         self.0.lock().unwrap().remove(key);
///         Ok(())
///     }
/// }
///
/// // Two ranks, here in threads, with two jobs each.
/// let (store, pieces) = (Shared::default(), Pieces::of(&[8; 16]));
/// let tune = |rank: usize| {
///     let mut model = Model::new(pieces.clone(), vec![ModelJob::default(); 2], rank as u64);
///     let jobs = [Profile::new("reduce"), Profile::new("product")];
///     let mut ranks = Ranks::new(store.clone(), rank, 2, Duration::from_secs(60));
///     ranks.with(&mut model, &jobs, &pieces, &Request::default(), &mut |_| true)
/// };
/// let outcomes = thread::scope(|scope| {
///     [0, 1].map(|rank| scope.spawn(move || tune(rank))).map(|rank| rank.join().unwrap())
/// });
/// let [first, second] = outcomes;
/// assert_eq!(first?, second?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Ranks<S> {
    exchange: Exchange<S>,
}

impl<S: RankStore> Ranks<S> {
    /// One of `ranks` ranks, which are numbered from 0. This rank waits for others until shortly before the timeout
    /// is over, so that every rank has returned its error by then.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    pub fn new(store: S, rank: usize, ranks: usize, timeout: Duration) -> Ranks<S> {
        assert!(rank < ranks, "there is no rank {rank} among {ranks}");
        Ranks { exchange: Exchange::new(store, rank, ranks, timeout) }
    }

    /// This rank's number.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.exchange.rank()
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.exchange.ranks()
    }

    /// Gives a text to all ranks, and returns the texts of all in the order of the ranks. All ranks must call it at
    /// the same point.
    ///
    /// # Errors
    ///
    /// [`RanksError`].
    pub fn share(&mut self, text: &str) -> Result<Vec<String>, RanksError> {
        let messages = self.exchange.exchange(Message::Text(text.to_owned()))?;
        messages
            .into_iter()
            .enumerate()
            .map(|(rank, message)| match message {
                Message::Text(text) => Ok(text),
                _ => Err(self.exchange.astray(rank)),
            })
            .collect()
    }

    /// Compares what the ranks are to tune: descriptions and their values, such as `("the goal", "throughput")`.
    /// All ranks must call it at the same point.
    ///
    /// # Errors
    ///
    /// [`RanksError::Differs`] on every rank, with the first difference to rank 0, and other [`RanksError`]s.
    pub fn compare(&mut self, asked: &[(String, String)]) -> Result<(), RanksError> {
        let messages = self.exchange.exchange(Message::Asked(asked.to_vec()))?;
        let mut lists = Vec::with_capacity(messages.len());
        for (rank, message) in messages.into_iter().enumerate() {
            match message {
                Message::Asked(list) => lists.push(list),
                _ => return Err(self.exchange.astray(rank)),
            }
        }
        let difference = lists.iter().enumerate().skip(1).find_map(|(rank, list)| {
            let mut pairs = lists[0].iter().zip(list);
            let found = pairs.find(|(first, other)| first != other);
            Some(match found {
                Some(((what, first), (other, value))) if what == other => {
                    format!("{what} is {first} on rank 0 and {value} on rank {rank}")
                }
                Some(((first, _), (other, _))) => {
                    format!("{first} is given on rank 0, and {other} on rank {rank}")
                }
                None if list.len() == lists[0].len() => return None,
                None => format!("rank {rank} is asked for more or less than rank 0"),
            })
        });
        difference.map_or(Ok(()), |reason| Err(RanksError::Differs { reason }))
    }

    /// Has rank 0 look for an outcome, in a file say, and gives what it finds to all ranks: an outcome, or why there
    /// is none. `find` is called on rank 0 alone. All ranks must call it at the same point.
    ///
    /// # Errors
    ///
    /// [`RanksError`].
    pub fn ask_first(
        &mut self,
        find: impl FnOnce() -> Result<Outcome, String>,
    ) -> Result<Result<Outcome, String>, RanksError> {
        let message = match self.rank() {
            0 => Message::Found(Box::new(find())),
            _ => Message::Awaits,
        };
        match self.exchange.exchange(message)?.swap_remove(0) {
            Message::Found(found) => Ok(*found),
            _ => Err(self.exchange.astray(0)),
        }
    }

    /// Reports to the other ranks that this one has failed, without waiting for them: each returns an error where it
    /// next waits. Only the first failure is reported. `is_request` says that the request was wrong.
    pub fn fail(&mut self, reason: &str, is_request: bool) {
        self.exchange.fail(reason, is_request);
    }

    /// Waits until something is done that may wait for other ranks, such as a collective, and gives up where
    /// another rank has failed or the timeout is nearly over: then what runs is aborted ([`RankStore::abort`]).
    ///
    /// # Errors
    ///
    /// [`RanksError`], and what `is_done` fails with as [`RanksError::Failed`].
    pub fn wait(
        &mut self,
        is_done: &mut dyn FnMut() -> Result<bool, StoreError>,
    ) -> Result<(), RanksError> {
        self.exchange.wait(is_done)
    }

    /// Tunes jobs that something runs and measures on each rank, on devices of these pieces, as
    /// [`with`](super::with) does in one process. All ranks must call it with the same jobs and request.
    /// `go_on` is called on rank 0 alone.
    ///
    /// # Errors
    ///
    /// [`RanksError`], on every rank.
    pub fn with<M>(
        &mut self,
        measure: &mut M,
        jobs: &[Profile],
        pieces: &Pieces,
        request: &Request,
        go_on: &mut dyn FnMut(&Progress<'_>) -> bool,
    ) -> Result<Outcome, RanksError>
    where
        M: MeasureCounts,
        M::Error: StdError + Send + Sync + 'static,
    {
        self.search(measure, jobs, pieces, request, go_on, &mut Ok)
    }

    /// Tunes jobs on the free SMs of each rank's device, as [`run`](super::run) does in one process. All ranks must
    /// call it with the same jobs and request, and each device must have as many free SMs. `go_on` is called on
    /// rank 0 alone, and `complete` with rank 0's outcome, which goes to all ranks as it returns it; its error
    /// ends the search on every rank.
    ///
    /// # Errors
    ///
    /// [`RanksError`], on every rank.
    pub fn run(
        &mut self,
        device: &Device,
        jobs: &mut [Job],
        request: &Request,
        go_on: &mut dyn FnMut(&Progress<'_>) -> bool,
        complete: &mut dyn FnMut(Outcome) -> Result<Outcome, StoreError>,
    ) -> Result<Outcome, RanksError> {
        let begun = self.begin(device, jobs, request);
        let (mut runner, notes) = begun.map_err(|error| self.own(error))?;
        let notes = self.notes(notes)?;
        let (profiles, pieces) = (runner.profiles(), runner.pieces().clone());
        let mut finish = |mut outcome: Outcome| {
            outcome.notes.extend(notes.iter().cloned());
            outcome.ran_on(device)?;
            complete(outcome)
        };
        self.search(&mut runner, &profiles, &pieces, request, go_on, &mut finish)
    }

    /// Calls `lead` on rank 0 with a measure whose blocks run on all ranks, and runs those blocks on the others
    /// until it returns: for a program that chooses itself what is measured. All ranks must call it with the
    /// same jobs. Returns what `lead` returns, and `None` on the other ranks.
    ///
    /// # Errors
    ///
    /// [`RanksError`], on every rank.
    pub fn lead<M, T>(
        &mut self,
        measure: &mut M,
        jobs: &[Profile],
        pieces: &Pieces,
        lead: impl FnOnce(&mut dyn Measure<Error = RanksError>) -> T,
    ) -> Result<Option<T>, RanksError>
    where
        M: MeasureCounts,
        M::Error: StdError + Send + Sync + 'static,
    {
        if self.rank() > 0 {
            return match self.obey(measure)? {
                None => Ok(None),
                Some(_) => Err(self.exchange.astray(0)),
            };
        }
        let rates = Rates::of(jobs, pieces.sms);
        let led = lead(&mut Leader { exchange: &mut self.exchange, measure, rates });
        self.exchange.exchange(Message::Done)?;
        Ok(Some(led))
    }

    fn begin<'j>(
        &mut self,
        device: &Device,
        jobs: &'j mut [Job],
        request: &Request,
    ) -> Result<(Runner<'j>, Vec<String>), TuneError<Error>> {
        let mut runner = Runner::unchecked(device, jobs).map_err(TuneError::Failed)?;
        request.check(&runner.profiles(), runner.pieces())?;
        let notes = runner.try_out(Some(&mut Watched::of(&mut self.exchange)))?;
        Ok((runner, notes))
    }

    /// This rank's own error, which is reported to the others.
    fn own(&mut self, error: TuneError<Error>) -> RanksError {
        // The reason may be another rank, which this one waited for.
        if let Some(error) = self.exchange.given_up() {
            return error;
        }
        let error = match error {
            TuneError::Request(error) => RanksError::Request(error),
            TuneError::Failed(error) => RanksError::failed(error.into()),
        };
        self.exchange.fail_with(&error);
        error
    }

    /// What readers should know of the jobs of all ranks.
    fn notes(&mut self, notes: Vec<String>) -> Result<Vec<String>, RanksError> {
        let messages = self.exchange.exchange(Message::Notes(notes))?;
        let mut all: Vec<String> = Vec::new();
        for (rank, message) in messages.into_iter().enumerate() {
            let Message::Notes(notes) = message else { return Err(self.exchange.astray(rank)) };
            let new: Vec<String> = notes.into_iter().filter(|note| !all.contains(note)).collect();
            all.extend(new);
        }
        Ok(all)
    }

    fn search<M>(
        &mut self,
        measure: &mut M,
        jobs: &[Profile],
        pieces: &Pieces,
        request: &Request,
        go_on: &mut dyn FnMut(&Progress<'_>) -> bool,
        finish: &mut dyn FnMut(Outcome) -> Result<Outcome, StoreError>,
    ) -> Result<Outcome, RanksError>
    where
        M: MeasureCounts,
        M::Error: StdError + Send + Sync + 'static,
    {
        let asked = asked(jobs, pieces, request).map_err(|error| {
            let error = RanksError::Request(error);
            self.exchange.fail_with(&error);
            error
        })?;
        self.compare(&asked)?;
        if self.rank() > 0 {
            return self.obey(measure)?.ok_or_else(|| self.exchange.astray(0));
        }
        let rates = Rates::of(jobs, pieces.sms);
        let mut leader = Leader { exchange: &mut self.exchange, measure, rates };
        let outcome = match with(&mut leader, jobs, pieces, request, go_on) {
            Ok(outcome) => outcome,
            Err(TuneError::Failed(error)) => return Err(error),
            Err(TuneError::Request(error)) => {
                let ended = Message::Ended(Ended::from(&error));
                self.exchange.exchange(ended)?;
                return Err(error.into());
            }
        };
        let outcome = finish(outcome).map_err(|error| {
            let error = RanksError::failed(error);
            self.exchange.fail_with(&error);
            error
        })?;
        self.exchange.exchange(Message::Outcome(Box::new(outcome.clone())))?;
        // It is with all ranks before one goes on.
        self.exchange.exchange(Message::Done)?;
        Ok(outcome)
    }

    /// Runs what rank 0 orders until that is done. Returns the outcome of a search.
    fn obey<M>(&mut self, measure: &mut M) -> Result<Option<Outcome>, RanksError>
    where
        M: MeasureCounts,
        M::Error: StdError + Send + Sync + 'static,
    {
        loop {
            match self.exchange.exchange(Message::Awaits)?.swap_remove(0) {
                Message::Order(task, counts) => {
                    match self.exchange.block(measure, &task, &counts) {
                        Ok(_) | Err(Refusal::Skip(_)) => {}
                        Err(Refusal::Stop(error)) => return Err(error),
                    }
                }
                Message::Outcome(outcome) => {
                    self.exchange.exchange(Message::Done)?;
                    return Ok(Some(*outcome));
                }
                Message::Done => return Ok(None),
                Message::Ended(ended) => return Err(RequestError::from(ended).into()),
                _ => return Err(self.exchange.astray(0)),
            }
        }
    }
}

/// What a search is for, as ranks compare it with [`Ranks::compare`]: descriptions and their values.
///
/// # Errors
///
/// [`RequestError::Wrong`].
pub fn asked(
    jobs: &[Profile],
    pieces: &Pieces,
    request: &Request,
) -> Result<Vec<(String, String)>, RequestError> {
    let question = request.question(jobs, pieces)?;
    let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    let mut asked = vec![("the list of jobs".to_owned(), names.join(", "))];
    for job in jobs {
        asked.push((format!("the key of {}", job.name), format!("{:?}", job.key)));
        asked.push((format!("the arrival of {}", job.name), arrival(&job.arrival)));
    }
    let mut push = |what: &str, value: String| asked.push((what.to_owned(), value));
    push("the goal", question.goal.to_string());
    push("the goal in detail", format!("{:?}", question.goal));
    push("the step", question.limits.step.to_string());
    push("the list of floors", format!("{:?}", question.limits.floors));
    push("the list of kinds that are left out", format!("{:?}", question.limits.left_out));
    push("the budget", format!("{:?}", question.budget));
    let Pieces { sms, unit, odd } = pieces;
    push("what is divided", format!("{sms} SMs in units of {unit}, of which {odd} are over"));
    Ok(asked)
}

/// An arrival as text, which differs where the moments of a trace do.
fn arrival(arrival: &Arrival) -> String {
    let Arrival::Trace { seconds } = arrival else { return arrival.to_string() };
    let mut hasher = DefaultHasher::new();
    seconds.iter().for_each(|moment| moment.to_bits().hash(&mut hasher));
    format!("{arrival} (number {:016x})", hasher.finish())
}

impl<S> fmt::Debug for Ranks<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranks").finish_non_exhaustive()
    }
}
