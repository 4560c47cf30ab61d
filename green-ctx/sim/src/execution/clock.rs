//! Time and the order of operations.
//!
//! Time is virtual unless a program asks for a clock that runs (module `real`): nothing reads the host's
//! clock, so that every run of a single-threaded program gives the same times.

pub(crate) mod real;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

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

/// Whose operations one number counts: those of a stream, or of a branch of graphs in a stream. The operations of
/// an actor follow each other.
///
/// An actor that has ended is *buried* in another one, such as that of its context: one more number of the other
/// stands for all its operations. So clocks need no entries for actors that are gone.
#[derive(Clone)]
pub(crate) struct Actor(Arc<Inner>);

struct Inner {
    id: u64,
    grave: OnceLock<Grave>,
}

/// Where an actor is buried.
struct Grave {
    /// The last operation of the actor.
    last: u64,
    /// What stands for all its operations.
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

/// The name of one operation: its actor and its number there. The default is an operation that no clock knows.
///
/// One operation comes before another exactly if the clock with which the other began
/// [knows](VectorClock::knows) its tick and both are not the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tick {
    pub(crate) actor: Actor,
    pub(crate) number: u64,
}

impl Tick {
    /// Makes this the name of the next operation.
    pub(crate) fn advance(&mut self) -> Tick {
        self.number += 1;
        self.clone()
    }
}

/// The actors that were buried in one actor: its tick counts them.
#[derive(Debug, Default)]
pub(crate) struct Graveyard(Tick);

impl Graveyard {
    /// Buries an actor after its last operation. From then on this clock, which knows the operation, stands for
    /// it. If the clock does not know the operation, nothing is done.
    pub(crate) fn bury(&mut self, last: &Tick, clock: &mut VectorClock) {
        if last.number > 0 && clock.knows(last) {
            let tick = self.0.advance();
            clock.note(&tick);
            let grave = Grave { last: last.number, tick };
            // An actor that is buried already stays where it is.
            let _first = last.actor.0.grave.set(grave);
            clock.fold();
        }
    }

    /// What stands for all actors that were buried here.
    pub(crate) fn last(&self) -> &Tick {
        &self.0
    }
}

/// What an operation knows to be finished: for each actor, the number of its last operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VectorClock(Vec<(Actor, u64)>);

impl VectorClock {
    fn find(&self, actor: &Actor) -> Result<usize, usize> {
        self.0.binary_search_by_key(&actor.0.id, |(actor, _)| actor.0.id)
    }

    /// The last operation of `actor` that the clock has an entry for.
    fn get(&self, actor: &Actor) -> u64 {
        self.find(actor).map_or(0, |index| self.0[index].1)
    }

    /// Whether this operation is known to be finished, or is the one whose clock this is.
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

    /// Notes an operation, and with it those of the same actor before it.
    pub(crate) fn note(&mut self, tick: &Tick) {
        match self.find(&tick.actor) {
            Ok(index) => self.0[index].1 = self.0[index].1.max(tick.number),
            Err(index) => self.0.insert(index, (tick.actor.clone(), tick.number)),
        }
    }

    /// Takes over everything that `other` knows.
    pub(crate) fn join(&mut self, other: &VectorClock) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
        } else if !self.raise(other) {
            self.merge(other);
        }
        self.fold();
    }

    /// Raises the entries that `other` has too. Returns false if `other` has further ones. Most often it has none:
    /// both are in the order of their actors, so that one pass finds each at its place.
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

    /// Joins a clock that knows actors which this one does not.
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

    /// Leaves out buried actors for which another entry stands, or can stand from now on: an actor of which
    /// everything is known makes one more of those that were buried in their order.
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

    /// How many actors it has entries for.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.len()
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
        // With nothing new, with something new at either end, and with nothing in common.
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

    /// A clock that knows some of the actors that end one after the other, all but the last two, or all.
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
        // One that comes to know them one by one.
        let mut slow = VectorClock::default();
        for actor in 0..actors.len() {
            slow.join(&clock(&actors, &[(actor, 2)]));
            assert_eq!(slow.len(), 1);
        }
        assert!(slow.knows(&tick(39, 2)));
    }

    /// A graveyard that ends is buried in another one.
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
