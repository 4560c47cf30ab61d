//! Time and the order of operations.
//!
//! Time is virtual unless a program asks for a clock that runs (module `real`): nothing reads the host's
//! clock, so that every run of a single-threaded program gives the same times.

pub(crate) mod real;

/// What makes time pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// Calls and waits alone. A program that sleeps finds the time that it left.
    #[default]
    Virtual,
    /// The host's clock, too: work ends, functions of the program run and streams become ready while the
    /// program makes no call. A wait still returns at once, and sets the clock forward to the end of what
    /// is waited for.
    Real,
}

/// How long things take on every part, in nanoseconds; the round figures of a recorded H200. What a
/// device's memory takes is in [`Profile::transfer`](crate::Profile::transfer).
pub(crate) mod cost {
    /// Any call that does not say otherwise.
    pub(crate) const CALL: u64 = 100;
    /// Submitting a launch.
    pub(crate) const LAUNCH: u64 = 2_500;
    /// From the submission of work to its start.
    pub(crate) const LATENCY: u64 = 2_000;
    /// A kernel that says nothing about its duration.
    pub(crate) const KERNEL: u64 = 2_000;
    /// Creating a green context.
    pub(crate) const GREEN_CREATE: u64 = 800_000;
    /// Bringing up a primary context.
    pub(crate) const PRIMARY_CREATE: u64 = 86_000_000;
    /// The first poll of unfinished work: more than a call, so that polling loops end soon.
    pub(crate) const POLL: u64 = 1_000;
    /// A poll takes at most this many times as long as the first one: 4 ms.
    pub(crate) const LONGEST_POLL: u64 = 1 << 12;
    /// The fixed part of a copy or a memset.
    pub(crate) const COPY: u64 = 1_000;
    /// Copied between host and device in a microsecond, in bytes, whatever the number of SMs.
    pub(crate) const LINK_BYTES: u64 = 50_000;
}

/// How long polling takes: twice as long each time that the same unfinished work is polled and nothing was
/// submitted since. So a program that sleeps between polls, as one that waits with a bound does, finds work done
/// about when a device would have done it.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    /// When the work ends that was polled last.
    end: u64,
    /// What the next poll of it takes, in first polls.
    factor: u64,
}

impl Polling {
    /// What a poll of work takes that ends at this time.
    pub(crate) fn cost(&mut self, end: u64) -> u64 {
        let again = self.end == end && self.factor > 0;
        let factor = if again { self.factor } else { 1 };
        *self = Polling { end, factor: (2 * factor).min(cost::LONGEST_POLL) };
        factor * cost::POLL
    }

    /// Notes that work was submitted.
    pub(crate) fn interrupt(&mut self) {
        self.factor = 0;
    }
}

/// The name of one operation: whose it is, a stream's or that of a branch of graphs in a stream, and
/// its number there.
///
/// One operation comes before another exactly if the clock with which the other began
/// [knows](VectorClock::knows) its tick and both are not the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tick {
    pub(crate) actor: u32,
    pub(crate) number: u64,
}

/// What an operation knows to be finished: for each actor, the number of its last operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VectorClock(Vec<(u32, u64)>);

impl VectorClock {
    /// The last operation of `actor` that is known.
    pub(crate) fn get(&self, actor: u32) -> u64 {
        let found = self.0.binary_search_by_key(&actor, |&(actor, _)| actor);
        found.map_or(0, |index| self.0[index].1)
    }

    /// Notes that `actor` has come to `tick`.
    fn set(&mut self, actor: u32, tick: u64) {
        match self.0.binary_search_by_key(&actor, |&(actor, _)| actor) {
            Ok(index) => self.0[index].1 = self.0[index].1.max(tick),
            Err(index) => self.0.insert(index, (actor, tick)),
        }
    }

    /// Whether this operation is known to be finished, or is the one whose clock this is.
    pub(crate) fn knows(&self, tick: Tick) -> bool {
        self.get(tick.actor) >= tick.number
    }

    /// Notes an operation, and with it those of the same actor before it.
    pub(crate) fn note(&mut self, tick: Tick) {
        self.set(tick.actor, tick.number);
    }

    /// Takes over everything that `other` knows.
    pub(crate) fn join(&mut self, other: &VectorClock) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        // Most often everything is known already but for a few ticks. Both are in the order of
        // their actors, so that one pass finds each at its place.
        let mut place = 0;
        for &(actor, tick) in &other.0 {
            while self.0.get(place).is_some_and(|&(own, _)| own < actor) {
                place += 1;
            }
            match self.0.get_mut(place) {
                Some((own, known)) if *own == actor => *known = tick.max(*known),
                _ => return self.merge(other),
            }
        }
    }

    /// Joins a clock that knows actors which this one does not.
    fn merge(&mut self, other: &VectorClock) {
        let own = std::mem::take(&mut self.0);
        self.0.reserve(own.len().max(other.0.len()));
        let (mut own, mut others) =
            (own.into_iter().peekable(), other.0.iter().copied().peekable());
        while let (Some(&(a, known)), Some(&(b, tick))) = (own.peek(), others.peek()) {
            self.0.push(match a.cmp(&b) {
                std::cmp::Ordering::Less => (a, known),
                std::cmp::Ordering::Greater => (b, tick),
                std::cmp::Ordering::Equal => (a, known.max(tick)),
            });
            if a <= b {
                own.next();
            }
            if b <= a {
                others.next();
            }
        }
        self.0.extend(own.chain(others));
    }
}

/// A point that work can wait for: when it is reached, and what is finished then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) time: u64,
    pub(crate) clock: VectorClock,
}

impl Moment {
    /// Makes this the moment at which both have been reached.
    pub(crate) fn join(&mut self, other: &Moment) {
        self.time = self.time.max(other.time);
        self.clock.join(&other.clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_of_the_same_work_take_ever_longer() {
        let mut polling = Polling::default();
        assert_eq!([0; 4].map(|_| polling.cost(70)), [1, 2, 4, 8].map(|n| n * cost::POLL));
        assert_eq!([80, 80, 70].map(|end| polling.cost(end)), [1, 2, 1].map(|n| n * cost::POLL));
        polling.interrupt();
        assert_eq!(polling.cost(70), cost::POLL);
        let longest = (0..60).map(|_| polling.cost(70)).max();
        assert_eq!(longest, Some(cost::LONGEST_POLL * cost::POLL));
    }

    #[test]
    fn joining_keeps_the_later_tick_of_each_actor() {
        let mut a = VectorClock::default();
        a.set(3, 5);
        a.set(1, 9);
        let mut b = VectorClock::default();
        b.set(3, 7);
        b.set(2, 1);
        b.set(1, 4);
        a.join(&b);
        assert_eq!([1, 2, 3, 4].map(|actor| a.get(actor)), [9, 1, 7, 0]);
        a.set(1, 2);
        assert_eq!(a.get(1), 9);
        // With nothing new, with something new at either end, and with nothing in common.
        for (others, expected) in [
            (vec![(1, 10), (3, 6)], [0, 10, 1, 7, 0]),
            (vec![(0, 4), (3, 9), (4, 2)], [4, 9, 1, 9, 2]),
            (vec![(0, 1), (4, 1)], [1, 9, 1, 7, 1]),
            (vec![], [0, 9, 1, 7, 0]),
        ] {
            let mut joined = a.clone();
            joined.join(&VectorClock(others));
            assert_eq!([0, 1, 2, 3, 4].map(|actor| joined.get(actor)), expected);
            assert!(joined.0.is_sorted_by_key(|(actor, _)| *actor));
        }
    }
}
