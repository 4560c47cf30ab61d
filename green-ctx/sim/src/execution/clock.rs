//! Time and the order of operations.
//!
//! Time is virtual unless [`Clock::Real`] is set (module `real`). With virtual time, nothing reads the
//! host's clock, so a single-threaded program gets the same times in every run.

pub(crate) mod real;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The source of time.
///
/// [`Builder::clock`](crate::Builder::clock) sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// Only calls and waits advance time. A program that sleeps finds that no time has passed.
    #[default]
    Virtual,
    /// The host's clock advances time as well. Work ends, host functions run and streams become ready while
    /// the program makes no call. A wait still returns immediately and moves time to the end of the awaited
    /// work.
    Real,
}

/// Durations in nanoseconds. The values are round numbers for an H200, and apply to every device. The
/// memory rates of each device are in [`Profile::transfer`](crate::Profile::transfer).
pub(crate) mod cost {
    /// The cost of every call. Some calls have an additional cost.
    pub(crate) const CALL: u64 = 100;
    /// The additional cost of submitting a launch.
    pub(crate) const LAUNCH: u64 = 2_500;
    /// The time from the submission of work to its start.
    pub(crate) const LATENCY: u64 = 2_000;
    /// The duration of each block of a kernel that does not set a duration.
    pub(crate) const KERNEL: u64 = 2_000;
    /// The cost of creating a green context.
    pub(crate) const GREEN_CREATE: u64 = 800_000;
    /// The cost of activating a primary context.
    pub(crate) const PRIMARY_CREATE: u64 = 86_000_000;
    /// The cost of the first poll of unfinished work. A poll costs more than an ordinary call, so that
    /// polling loops end soon.
    pub(crate) const POLL: u64 = 1_000;
    /// The maximum cost of a poll, as a multiple of `POLL` (4096 × 1 µs, about 4 ms).
    pub(crate) const LONGEST_POLL: u64 = 1 << 12;
    /// The fixed part of the duration of a copy or memset.
    pub(crate) const COPY: u64 = 1_000;
    /// The rate of copies between host and device, in bytes per microsecond, on any number of SMs.
    pub(crate) const LINK_BYTES: u64 = 50_000;
}

/// The cost of polling. The cost doubles each time a program polls the same unfinished work and has
/// submitted nothing in between. A program that sleeps between polls, such as one that waits with a
/// timeout, thus finds the work done at about the same point as on a device.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    /// The end time of the work that was polled last.
    end: u64,
    /// The cost of the next poll of that work, as a multiple of `cost::POLL`.
    factor: u64,
}

impl Polling {
    /// Returns the cost of a poll of work that ends at `end`.
    pub(crate) fn cost(&mut self, end: u64) -> u64 {
        let again = self.end == end && self.factor > 0;
        let factor = if again { self.factor } else { 1 };
        *self = Polling { end, factor: (2 * factor).min(cost::LONGEST_POLL) };
        factor * cost::POLL
    }

    /// Records that work was submitted.
    pub(crate) fn interrupt(&mut self) {
        self.factor = 0;
    }
}

/// A sequence of operations that are numbered by one counter: the operations of a stream, or of one branch
/// of the graphs in a stream. The operations of an actor run one after the other.
///
/// When an actor ends, it is *buried* in another actor, such as the actor of its context. The other actor
/// then counts one more operation, which represents all operations of the buried actor. Clocks thus need no
/// entries for ended actors.
#[derive(Clone)]
pub(crate) struct Actor(Arc<Inner>);

struct Inner {
    id: u64,
    grave: OnceLock<Grave>,
}

/// The burial of an actor.
struct Grave {
    /// The number of the actor's last operation.
    last: u64,
    /// The operation that represents all of the actor's operations.
    tick: Tick,
}

impl Actor {
    pub(crate) fn new() -> Actor {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Actor(Arc::new(Inner { id: NEXT.fetch_add(1, Ordering::Relaxed), grave: OnceLock::new() }))
    }
}

impl Default for Actor {
    fn default() -> Actor {
        Actor::new()
    }
}

impl PartialEq for Actor {
    fn eq(&self, other: &Actor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Actor {}

impl fmt::Debug for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.id.fmt(f)
    }
}

/// The identity of one operation: its actor, and its number among the operations of that actor. The default
/// is a new actor with the number 0, before the first operation of that actor.
///
/// Operation A precedes operation B if and only if A and B differ and the clock at the start of B
/// [knows](VectorClock::knows) the tick of A.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tick {
    pub(crate) actor: Actor,
    pub(crate) number: u64,
}

impl Tick {
    /// Advances to the next operation and returns its identity.
    pub(crate) fn advance(&mut self) -> Tick {
        self.number += 1;
        self.clone()
    }
}

/// The actors that are buried in one actor. The tick of that one actor counts the burials.
#[derive(Debug, Default)]
pub(crate) struct Graveyard(Tick);

impl Graveyard {
    /// Buries the actor of `last`, its last operation, if `clock` knows that operation. From then on, the
    /// burial represents the actor in `clock`. If `clock` does not know the operation, nothing happens.
    pub(crate) fn bury(&mut self, last: &Tick, clock: &mut VectorClock) {
        if last.number > 0 && clock.knows(last) {
            let tick = self.0.advance();
            clock.note(&tick);
            let grave = Grave { last: last.number, tick };
            // An actor that was already buried stays where it is.
            let _first = last.actor.0.grave.set(grave);
            clock.fold();
        }
    }

    /// Returns the operation that represents all actors buried here.
    pub(crate) fn last(&self) -> &Tick {
        &self.0
    }
}

/// The operations that are known to be finished: for each actor, the number of the last such operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VectorClock(Vec<(Actor, u64)>);

impl VectorClock {
    fn find(&self, actor: &Actor) -> Result<usize, usize> {
        self.0.binary_search_by_key(&actor.0.id, |(actor, _)| actor.0.id)
    }

    /// Returns the last known operation of `actor`; 0 if the clock has no entry for it.
    fn get(&self, actor: &Actor) -> u64 {
        self.find(actor).map_or(0, |index| self.0[index].1)
    }

    /// Returns whether the operation is known to be finished. The clock of an operation also knows the
    /// operation itself.
    pub(crate) fn knows(&self, tick: &Tick) -> bool {
        let mut tick = tick;
        loop {
            if self.get(&tick.actor) >= tick.number {
                return true;
            }
            let Some(grave) = tick.actor.0.grave.get() else { return false };
            tick = &grave.tick;
        }
    }

    /// Adds an operation and all earlier operations of the same actor.
    pub(crate) fn note(&mut self, tick: &Tick) {
        match self.find(&tick.actor) {
            Ok(index) => self.0[index].1 = self.0[index].1.max(tick.number),
            Err(index) => self.0.insert(index, (tick.actor.clone(), tick.number)),
        }
    }

    /// Adds all operations that `other` knows.
    pub(crate) fn join(&mut self, other: &VectorClock) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
        } else if !self.raise(other) {
            self.merge(other);
        }
        self.fold();
    }

    /// Raises the entries of this clock to the values in `other` where those are higher. Returns `false` if
    /// `other` has an entry for an actor that this clock lacks, which is rare. Both clocks are sorted by
    /// actor, so one pass is enough.
    fn raise(&mut self, other: &VectorClock) -> bool {
        let mut place = 0;
        for (actor, tick) in &other.0 {
            while self.0.get(place).is_some_and(|(own, _)| own.0.id < actor.0.id) {
                place += 1;
            }
            match self.0.get_mut(place) {
                Some((own, known)) if own == actor => *known = (*tick).max(*known),
                _ => return false,
            }
        }
        true
    }

    /// Joins a clock that may have entries for actors that this clock lacks.
    fn merge(&mut self, other: &VectorClock) {
        let own = std::mem::take(&mut self.0);
        self.0.reserve(own.len().max(other.0.len()));
        let (mut own, mut others) =
            (own.into_iter().peekable(), other.0.iter().cloned().peekable());
        while let (Some((a, known)), Some((b, tick))) = (own.peek(), others.peek()) {
            let order = a.0.id.cmp(&b.0.id);
            let last = *known.max(tick);
            let next = if order.is_le() { own.next() } else { others.next() };
            if order.is_eq() {
                others.next();
                self.0.extend(next.map(|(actor, _)| (actor, last)));
            } else {
                self.0.extend(next);
            }
        }
        self.0.extend(own.chain(others));
    }

    /// Removes the entry of a buried actor A if the entry of the actor B in which A is buried covers the
    /// burial. If this clock knows all operations of A, and the burial of A is the next operation of B, the
    /// entry of B first advances by one and thus covers the burial.
    fn fold(&mut self) {
        loop {
            let folded = self.0.iter().enumerate().find_map(|(index, (actor, known))| {
                let Grave { last, tick } = actor.0.grave.get()?;
                let others = self.get(&tick.actor);
                let next = others + 1 == tick.number && known >= last;
                (others >= tick.number || next).then_some((index, tick))
            });
            let Some((index, tick)) = folded else { return };
            let tick = tick.clone();
            self.0.remove(index);
            self.note(&tick);
        }
    }

    /// Returns the number of entries.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.len()
    }
}

/// A point in time that work can wait for, with the operations that are finished at that time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) time: u64,
    pub(crate) clock: VectorClock,
}

impl Moment {
    /// Moves this moment to the point at which both moments have been reached.
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

    fn clock(actors: &[Actor], known: &[(usize, u64)]) -> VectorClock {
        let mut clock = VectorClock::default();
        for &(actor, number) in known {
            clock.note(&Tick { actor: actors[actor].clone(), number });
        }
        clock
    }

    #[test]
    fn joining_keeps_the_later_tick_of_each_actor() {
        let actors = [(); 5].map(|()| Actor::new());
        let numbers = |clock: &VectorClock| actors.each_ref().map(|actor| clock.get(actor));
        let mut a = clock(&actors, &[(3, 5), (1, 9)]);
        a.join(&clock(&actors, &[(3, 7), (2, 1), (1, 4)]));
        assert_eq!(numbers(&a), [0, 9, 1, 7, 0]);
        a.join(&clock(&actors, &[(1, 2)]));
        assert_eq!(numbers(&a), [0, 9, 1, 7, 0]);
        // Clocks with nothing new, with something new at either end, and with nothing in common.
        for (others, expected) in [
            (vec![(1, 10), (3, 6)], [0, 10, 1, 7, 0]),
            (vec![(0, 4), (3, 9), (4, 2)], [4, 9, 1, 9, 2]),
            (vec![(0, 1), (4, 1)], [1, 9, 1, 7, 1]),
            (vec![], [0, 9, 1, 7, 0]),
        ] {
            let mut joined = a.clone();
            joined.join(&clock(&actors, &others));
            assert_eq!(numbers(&joined), expected);
            assert!(joined.0.is_sorted_by_key(|(actor, _)| actor.0.id));
        }
    }

    /// Buries a sequence of actors and checks three clocks: one that knows some of the actors, one that
    /// knows all but the last two, and one that knows all actors.
    #[test]
    fn a_clock_knows_of_buried_actors_what_it_knew_before() {
        let actors: Vec<Actor> = (0..40).map(|_| Actor::new()).collect();
        let tick = |actor: usize, number| Tick { actor: actors[actor].clone(), number };
        let (mut yard, mut all) = (Graveyard::default(), VectorClock::default());
        let mut some = clock(&actors, &[(3, 2), (4, 1), (11, 2)]);
        let mut prefix = VectorClock::default();
        for actor in 0..actors.len() {
            all.note(&tick(actor, 2));
            yard.bury(&tick(actor, 2), &mut all);
            assert_eq!(all.len(), 1);
            if actor + 3 == actors.len() {
                prefix = all.clone();
            }
        }
        some.join(&clock(&actors, &[(7, 1)]));
        for actor in 0..actors.len() {
            let known =
                |clock: &VectorClock| [1, 2].map(|number| clock.knows(&tick(actor, number)));
            assert_eq!(known(&all), [true; 2]);
            assert_eq!(known(&prefix), [actor < 38; 2]);
            let expected = match actor {
                3 | 11 => [true; 2],
                4 | 7 => [true, false],
                _ => [false; 2],
            };
            assert_eq!(known(&some), expected, "{actor}");
        }
        some.join(&prefix);
        assert_eq!(some.len(), 1);
        // A clock that learns of the actors one by one.
        let mut slow = VectorClock::default();
        for actor in 0..actors.len() {
            slow.join(&clock(&actors, &[(actor, 2)]));
            assert_eq!(slow.len(), 1);
        }
        assert!(slow.knows(&tick(39, 2)));
    }

    /// Buries an actor in which another actor is already buried.
    #[test]
    fn graveyards_are_buried_too() {
        let [a, b] = [(); 2].map(|()| Tick { actor: Actor::new(), number: 3 });
        let [mut inner, mut outer] = [(); 2].map(|()| Graveyard::default());
        let mut clock = VectorClock::default();
        clock.note(&a);
        inner.bury(&a, &mut clock);
        assert!(!clock.knows(&b));
        outer.bury(&b, &mut clock);
        assert!(!clock.knows(&b), "it was not known");
        let before = clock.clone();
        clock.note(&b);
        inner.bury(&b, &mut clock);
        outer.bury(&inner.last().clone(), &mut clock);
        assert_eq!(clock.len(), 1);
        assert!(clock.knows(&a) && clock.knows(&b));
        assert!(before.knows(&a) && !before.knows(&b));
    }
}
