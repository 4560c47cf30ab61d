//! One block on all ranks.

use std::error::Error as StdError;
use std::time::Duration;

use super::super::measure::{Block, Counts, Measure, MeasureCounts, Peers, Refusal, Sample, Task};
use super::super::stats::median;
use super::counts::Rates;
use super::exchange::{Exchange, Message};
use super::{RankStore, RanksError};

/// How rank 0 measures: it orders what all ranks run, and gets the slowest one's figures.
pub(super) struct Leader<'a, S, M> {
    pub(super) exchange: &'a mut Exchange<S>,
    pub(super) measure: &'a mut M,
    pub(super) rates: Rates,
}

impl<S, M> Measure for Leader<'_, S, M>
where
    S: RankStore,
    M: MeasureCounts,
    M::Error: StdError + Send + Sync + 'static,
{
    type Error = RanksError;

    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<RanksError>> {
        let counts = self.rates.counts(task, block);
        let order = Message::Order(task.clone(), counts.clone());
        let messages = self.exchange.exchange(order).map_err(Refusal::Stop)?;
        let others = messages.iter().enumerate().skip(1);
        for (rank, message) in others {
            if !matches!(message, Message::Awaits) {
                return Err(Refusal::Stop(self.exchange.astray(rank)));
            }
        }
        let sample = self.exchange.block(self.measure, task, &counts)?;
        self.rates.learn(task, &sample);
        Ok(sample)
    }

    fn now(&self) -> Duration {
        self.measure.now()
    }
}

/// The points of a block at which the ranks agree.
const AGREEMENTS: usize = 2;

/// The other ranks, as whoever runs a block on this one sees them.
pub(super) struct Watched<'a, S> {
    exchange: &'a mut Exchange<S>,
    agreements: usize,
    /// Why the ranks do not run it.
    refusal: Option<Refusal<RanksError>>,
}

impl<'a, S> Watched<'a, S> {
    pub(super) fn of(exchange: &'a mut Exchange<S>) -> Watched<'a, S> {
        Watched { exchange, agreements: 0, refusal: None }
    }
}

impl<S: RankStore> Peers for Watched<'_, S> {
    fn agree(&mut self) -> bool {
        self.agreements += 1;
        self.refusal = self.exchange.agree(Message::Ready).err();
        self.refusal.is_none()
    }

    fn give_up(&mut self, elapsed: Duration) -> Option<String> {
        self.exchange.gives_up(elapsed)
    }

    fn abort(&mut self) {
        self.exchange.abort();
    }
}

impl<S: RankStore> Exchange<S> {
    /// Posts whether this rank is ready. An error where one is not.
    fn agree(&mut self, message: Message) -> Result<(), Refusal<RanksError>> {
        let messages = self.exchange(message).map_err(Refusal::Stop)?;
        let mut skips = Vec::new();
        for (rank, message) in messages.into_iter().enumerate() {
            match message {
                Message::Ready => {}
                Message::Skip(reason) => skips.push((rank, reason)),
                _ => return Err(Refusal::Stop(self.astray(rank))),
            }
        }
        let Some((rank, reason)) = skips.first() else { return Ok(()) };
        let is_everywhere =
            skips.len() == self.ranks() && skips.iter().all(|(_, other)| other == reason);
        Err(Refusal::Skip(match is_everywhere {
            true => reason.clone(),
            false => format!("rank {rank}: {reason}"),
        }))
    }

    /// Runs a block as all ranks do, and returns the figures of the slowest.
    pub(super) fn block<M>(
        &mut self,
        measure: &mut M,
        task: &Task,
        counts: &Counts,
    ) -> Result<Sample, Refusal<RanksError>>
    where
        M: MeasureCounts,
        M::Error: StdError + Send + Sync + 'static,
    {
        let mut peers = Watched::of(self);
        let ran = measure.run_counts(task, counts, &mut peers);
        // A measure that does not ask has run the block all the same.
        while ran.is_ok() && peers.agreements < AGREEMENTS && peers.agree() {}
        let (agreements, refusal) = (peers.agreements, peers.refusal);
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        if let Some(error) = self.given_up() {
            return Err(Refusal::Stop(error));
        }
        match ran {
            Ok(sample) => {
                let messages = self.exchange(Message::Sample(sample)).map_err(Refusal::Stop)?;
                self.slowest(messages, counts).map_err(Refusal::Stop)
            }
            Err(Refusal::Skip(reason)) if agreements < AGREEMENTS => {
                Err(match self.agree(Message::Skip(reason.clone())) {
                    Ok(()) => Refusal::Skip(reason),
                    Err(refusal) => refusal,
                })
            }
            // It may have submitted less than the others, which wait for it.
            Err(Refusal::Skip(reason)) => {
                self.fail(&reason, false);
                Err(Refusal::Stop(RanksError::failed(reason.into())))
            }
            Err(Refusal::Stop(error)) => Err(Refusal::Stop(self.failed(Box::new(error)))),
        }
    }

    /// Of each job the figures of the rank on which it was slowest, and the rounds of the rank with the slowest.
    fn slowest(&mut self, messages: Vec<Message>, counts: &Counts) -> Result<Sample, RanksError> {
        let mut slowest: Option<Sample> = None;
        for (rank, message) in messages.into_iter().enumerate() {
            let sample = match message {
                Message::Sample(sample) if sample.is_sound(counts.iterations.len()) => sample,
                _ => return Err(self.astray(rank)),
            };
            let Some(slowest) = &mut slowest else {
                slowest = Some(sample);
                continue;
            };
            if median(&sample.rounds_us) > median(&slowest.rounds_us) {
                slowest.rounds_us = sample.rounds_us;
            }
            for (slowest, job) in slowest.jobs.iter_mut().zip(sample.jobs) {
                if job.rate < slowest.rate {
                    *slowest = job;
                }
            }
        }
        Ok(slowest.unwrap_or_default())
    }
}
