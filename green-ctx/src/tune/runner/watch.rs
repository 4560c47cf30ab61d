//! Waiting for the device: without an end, or while other processes are asked whether to go on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use std::{hint, panic};

use crate::error::Result;
use crate::event::Event;
use crate::stream::Stream;

use super::super::measure::Peers;
use super::block::Cause;

/// How often the peers are asked.
const PERIOD: Duration = Duration::from_millis(100);
/// What still runs when a block is given up may end by itself for so long. Then it is aborted.
const GRACE: Duration = Duration::from_secs(1);
/// What was aborted must end within this time.
const ABORTED: Duration = Duration::from_secs(4);

/// Between two questions to the device a thread spins so often, which takes less than a microsecond.
const SPINS: u32 = 16;

/// How the threads of a block wait for the device.
#[derive(Clone, Copy)]
pub(super) struct Patience<'a>(Option<&'a AtomicBool>);

impl<'a> Patience<'a> {
    /// For work that ends whatever other processes do.
    pub(super) const ENDLESS: Patience<'static> = Patience(None);

    /// Until the flag is set.
    pub(super) fn until(given_up: &'a AtomicBool) -> Patience<'a> {
        Patience(Some(given_up))
    }

    pub(super) fn event(self, event: &Event) -> Result<(), Cause> {
        match self.0 {
            None => Ok(event.synchronize()?),
            Some(_) => self.poll(|| event.is_complete()),
        }
    }

    pub(super) fn stream(self, stream: &Stream) -> Result<(), Cause> {
        match self.0 {
            None => Ok(stream.synchronize()?),
            Some(_) => self.poll(|| stream.is_idle()),
        }
    }

    fn poll(self, is_done: impl Fn() -> Result<bool>) -> Result<(), Cause> {
        while !is_done()? {
            if self.is_over() {
                return Err(Cause::GivenUp);
            }
            // A question takes the context's lock, which threads need that submit meanwhile.
            (0..SPINS).for_each(|_| hint::spin_loop());
        }
        Ok(())
    }

    /// Whether the block is given up.
    pub(super) fn is_over(self) -> bool {
        self.0.is_some_and(|given_up| given_up.load(Ordering::Acquire))
    }

    /// Ends the waits of all threads, where they can be ended.
    pub(super) fn give_up(self) {
        if let Some(given_up) = self.0 {
            given_up.store(true, Ordering::Release);
        }
    }
}

/// What the thread that has started a block does while others run it.
pub(super) struct Watch<'p, 'a> {
    peers: Option<&'p mut dyn Peers>,
    patience: Patience<'a>,
    /// When the part of the block began that runs now.
    began: Instant,
    asked: Instant,
    /// Since when it is given up.
    over: Option<Instant>,
    aborted: Option<Instant>,
    reason: Option<String>,
}

impl<'p, 'a> Watch<'p, 'a> {
    pub(super) fn of(peers: Option<&'p mut dyn Peers>, given_up: &'a AtomicBool) -> Watch<'p, 'a> {
        let patience = match peers {
            Some(_) => Patience::until(given_up),
            None => Patience::ENDLESS,
        };
        let now = Instant::now();
        Watch { peers, patience, began: now, asked: now, over: None, aborted: None, reason: None }
    }

    pub(super) fn patience(&self) -> Patience<'a> {
        self.patience
    }

    /// Why the block was given up, where the peers said so.
    pub(super) fn reason(&mut self) -> Option<String> {
        self.reason.take()
    }

    /// Whether the peers are as far as this process.
    pub(super) fn agrees(&mut self) -> bool {
        self.peers.as_mut().is_none_or(|peers| peers.agree())
    }

    /// Runs functions, each on a thread of its own, and returns when all of them have. One that nobody has to
    /// watch runs on this thread.
    pub(super) fn run<T: Send>(&mut self, mut calls: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
        if self.peers.is_none()
            && calls.len() == 1
            && let Some(call) = calls.pop()
        {
            return vec![call()];
        }
        let (watcher, ended, count) = (thread::current(), AtomicUsize::new(0), calls.len());
        self.began = Instant::now();
        self.asked = self.began;
        thread::scope(|scope| {
            let (watcher, ended) = (&watcher, &ended);
            let started = calls.into_iter().map(|call| {
                scope.spawn(move || {
                    let _ends = Ends { watcher, ended };
                    call()
                })
            });
            let threads: Vec<_> = started.collect();
            while self.peers.is_some() && ended.load(Ordering::Acquire) < count {
                thread::park_timeout(PERIOD);
                self.look();
            }
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|value| value.unwrap_or_else(|cause| panic::resume_unwind(cause))).collect()
        })
    }

    /// The same with one function.
    pub(super) fn run_one<T: Send>(&mut self, call: impl FnOnce() -> T + Send) -> T {
        match self.run(vec![call]).pop() {
            Some(value) => value,
            None => unreachable!("one call has one value"),
        }
    }

    /// Asks the peers from time to time, and aborts what does not end when the block is given up.
    fn look(&mut self) {
        let Some(peers) = &mut self.peers else { return };
        if self.over.is_none() && self.asked.elapsed() >= PERIOD && !self.patience.is_over() {
            self.asked = Instant::now();
            if let Some(reason) = peers.give_up(self.began.elapsed()) {
                self.reason = Some(reason);
                self.patience.give_up();
            }
        }
        if self.patience.is_over() {
            let over = *self.over.get_or_insert_with(Instant::now);
            if self.aborted.is_none() && over.elapsed() >= GRACE {
                self.aborted = Some(Instant::now());
                peers.abort();
            }
        }
    }

    /// Waits until streams are idle, and aborts what does not end once the block is given up. Returns whether they
    /// are idle, or the first error.
    pub(super) fn settle(&mut self, streams: &[Stream]) -> Result<bool> {
        if self.peers.is_none() {
            let ends: Vec<Result<()>> = streams.iter().map(Stream::synchronize).collect();
            return ends.into_iter().collect::<Result<()>>().map(|()| true);
        }
        let mut error = None;
        for stream in streams {
            loop {
                match stream.is_idle() {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(failed) => {
                        error.get_or_insert(failed);
                        break;
                    }
                }
                self.look();
                if self.aborted.is_some_and(|aborted| aborted.elapsed() >= ABORTED) {
                    return Ok(false);
                }
                thread::sleep(Duration::from_micros(100));
            }
        }
        error.map_or(Ok(true), Err)
    }
}

/// Waits until streams are idle while a panic of a job unwinds: where nobody can be asked, only for a while.
pub(super) fn wait_in_panic(streams: &[Stream], is_watched: bool) {
    let began = Instant::now();
    for stream in streams {
        // An error comes again from whatever is done next.
        if !is_watched {
            let _ = stream.synchronize();
        }
        while is_watched && matches!(stream.is_idle(), Ok(false)) && began.elapsed() < ABORTED {
            thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Counts a thread that ends, also by a panic.
struct Ends<'a> {
    watcher: &'a Thread,
    ended: &'a AtomicUsize,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
        self.watcher.unpark();
    }
}
