//! The race check, which finds accesses to the same memory that nothing orders.
//!
//! For each byte of an allocation, the history holds the last operations that wrote the byte and the
//! operations that have read it since. Neighbouring bytes with the same operations form one piece. A new
//! access must come after the writes in the history. If the new access is a write, it must also come after
//! the reads. The vector clock of the new access shows whether this is the case; the same clocks also
//! determine whether one launch happens before another. If the new access is not ordered after an old
//! access, both operations are reported.
//!
//! After the check, a write replaces the operations that come before it in the history, and a read replaces
//! the reads that come before it. An access that comes after the new operation also comes after the
//! replaced operations. Each byte therefore has at most one write and one read per stream.
//!
//! A wait of one thread counts for all threads of the program. Threads synchronise in ways that the driver
//! does not see, and a false alarm is worse than a missed race.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::clock::{Moment, Tick, VectorClock};
use crate::state::State;
use crate::turn::Turn;

/// The maximum number of pairs kept until [`Sim::clear_races`](crate::Sim::clear_races).
const KEPT: usize = 1024;
/// The maximum number of pieces per allocation. If an allocation exceeds this number, its history is
/// dropped. The limit bounds the memory use of the check; at worst a race is missed.
const PIECES: usize = 1 << 16;

/// The kind of operation that accessed memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accessor {
    /// The closure of a registered kernel, which accesses memory through [`KernelCall`](crate::KernelCall).
    Kernel {
        /// The kernel's name.
        name: Arc<str>,
        /// The ids of the SMs on which the kernel's blocks ran, in ascending order.
        sms: Arc<[u32]>,
    },
    /// A copy in any direction.
    Copy,
    /// A memset.
    Fill,
    /// A stream-ordered allocation. Only work after the allocation may use the memory.
    Allocation,
    /// A free. Only work before the free may use the memory.
    Free,
}

impl fmt::Display for Accessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Accessor::Kernel { name, sms } => write!(f, "kernel `{name}` on {} SMs", sms.len()),
            Accessor::Copy => f.write_str("a copy"),
            Accessor::Fill => f.write_str("a memset"),
            Accessor::Allocation => f.write_str("an allocation"),
            Accessor::Free => f.write_str("a free"),
        }
    }
}

/// An operation that accessed memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// The kind of operation.
    pub what: Accessor,
    /// Whether the operation wrote to the memory. Allocations and frees count as writes.
    pub write: bool,
    /// The id of the operation's stream, as `cuStreamGetId` returns it; `None` if the host accessed the
    /// memory.
    pub stream: Option<u64>,
    /// The id of the operation's context, as `cuCtxGetId` returns it.
    pub context: u64,
    /// The start, in virtual nanoseconds.
    pub start_ns: u64,
    /// The end, in virtual nanoseconds.
    pub end_ns: u64,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Access { what, stream, context, .. } = self;
        match stream {
            Some(stream) => write!(f, "{what} in stream {stream} of context {context}"),
            None => write!(f, "{what} by the host in context {context}"),
        }
    }
}

/// Two operations that access the same memory without an order between the two operations. At least one of
/// the two operations writes. [`Sim::races`](crate::Sim::races) returns these pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Race {
    /// The operation submitted first.
    pub first: Access,
    /// The operation submitted second.
    pub second: Access,
    /// The index of the device that the memory belongs to.
    pub device: usize,
    /// The lowest address that both operations access.
    pub address: u64,
    /// The number of bytes from `address` to the highest address that both operations access.
    pub bytes: u64,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Race { first, second, device, address, bytes } = self;
        let verb = |access: &Access| match access {
            Access { what: Accessor::Allocation, .. } => "provides",
            Access { what: Accessor::Free, .. } => "releases",
            Access { write: true, .. } => "writes",
            _ => "reads",
        };
        write!(
            f,
            "{bytes} bytes at {address:#x} on device {device}: {first} {} them, then {second} {} them; \
             no stream order, event or wait of the host orders the two",
            verb(first),
            verb(second)
        )
    }
}

/// An operation with its place in the order of operations.
pub(crate) struct Operation {
    what: Accessor,
    stream: Option<u64>,
    context: u64,
    start_ns: u64,
    end_ns: u64,
    /// The tick identifies the operation. The clock contains the operations that had certainly ended when
    /// this operation began.
    tick: Tick,
    clock: VectorClock,
}

impl Operation {
    /// Returns whether this operation certainly ended before `later` began.
    fn before(&self, later: &Operation) -> bool {
        self.known_to(&later.clock)
    }

    fn known_to(&self, clock: &VectorClock) -> bool {
        clock.knows(&self.tick)
    }

    fn access(&self, write: bool) -> Access {
        Access {
            what: self.what.clone(),
            write,
            stream: self.stream,
            context: self.context,
            start_ns: self.start_ns,
            end_ns: self.end_ns,
        }
    }
}

/// The operations that last accessed some bytes.
#[derive(Clone, Default)]
struct Touched {
    writes: Vec<Arc<Operation>>,
    reads: Vec<Arc<Operation>>,
}

impl Touched {
    fn is_same(&self, other: &Touched) -> bool {
        let same = |a: &[Arc<Operation>], b: &[Arc<Operation>]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        same(&self.writes, &other.writes) && same(&self.reads, &other.reads)
    }
}

struct Piece {
    end: u64,
    touched: Touched,
}

/// The last operations on each part of an allocation, by address.
#[derive(Default)]
pub(crate) struct History(BTreeMap<u64, Piece>);

impl History {
    /// Splits the piece that contains this address, so that a piece begins there.
    fn cut(&mut self, at: u64) {
        let Some((_, piece)) = self.0.range_mut(..at).next_back() else { return };
        if piece.end > at {
            let rest = Piece { end: piece.end, touched: piece.touched.clone() };
            piece.end = at;
            self.0.insert(at, rest);
        }
    }

    /// Passes each piece within a range to `see`. Bytes that were never accessed before form pieces too.
    fn pieces(&mut self, range: Range<u64>, mut see: impl FnMut(Range<u64>, &mut Touched)) {
        self.cut(range.start);
        self.cut(range.end);
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (&start, piece) in self.0.range_mut(range.clone()) {
            gaps.push(at..start);
            see(start..piece.end, &mut piece.touched);
            at = piece.end;
        }
        gaps.push(at..range.end);
        for gap in gaps.into_iter().filter(|gap| !gap.is_empty()) {
            let mut touched = Touched::default();
            see(gap.clone(), &mut touched);
            self.0.insert(gap.start, Piece { end: gap.end, touched });
        }
        self.merge(range);
    }

    /// Merges neighbouring pieces with the same operations.
    fn merge(&mut self, range: Range<u64>) {
        let before = self.0.range(..range.start).next_back();
        let from = before.map_or(range.start, |(&start, _)| start);
        let starts: Vec<u64> = self.0.range(from..=range.end).map(|(&start, _)| start).collect();
        let mut last = from;
        for start in starts.into_iter().filter(|&start| start > from) {
            let (Some(left), Some(right)) = (self.0.get(&last), self.0.get(&start)) else { break };
            if left.end == start && left.touched.is_same(&right.touched) {
                let end = right.end;
                self.0.remove(&start);
                if let Some(left) = self.0.get_mut(&last) {
                    left.end = end;
                }
            } else {
                last = start;
            }
        }
        if self.0.len() > PIECES {
            self.0.clear();
        }
    }
}

/// The races found so far.
#[derive(Default)]
pub(crate) struct Races {
    /// The operations that any thread of the program has waited for.
    waited: VectorClock,
    found: Vec<Found>,
}

struct Found {
    first: Arc<Operation>,
    second: Arc<Operation>,
    race: Race,
}

impl Races {
    /// Records that a thread of the program knows that these operations have ended.
    pub(crate) fn host_waited(&mut self, clock: &VectorClock) {
        self.waited.join(clock);
    }

    pub(crate) fn list(&self) -> Vec<Race> {
        self.found.iter().map(|found| found.race.clone()).collect()
    }

    pub(crate) fn clear(&mut self) {
        self.found.clear();
    }

    /// Returns whether `old` and `new` are ordered; the access of `old` was recorded first. A wait of one
    /// thread counts for all threads, because all threads share one time and the simulator does not see how
    /// they synchronise. The accesses of a kernel are recorded only when the kernel's closure returns, so
    /// `old` may also be the later operation.
    fn ordered(&self, old: &Operation, new: &Operation) -> bool {
        // The host must wait for accesses before it frees memory, but an allocation is not an access
        // (header, `cuMemFree`).
        let untouched = old.what == Accessor::Allocation && new.stream.is_none();
        untouched || old.before(new) || old.known_to(&self.waited) || new.before(old)
    }

    fn note(
        &mut self,
        (first, first_writes): (&Arc<Operation>, bool),
        (second, second_writes): (&Arc<Operation>, bool),
        device: usize,
        range: &Range<u64>,
    ) {
        let same = |found: &&mut Found| {
            Arc::ptr_eq(&found.first, first) && Arc::ptr_eq(&found.second, second)
        };
        if let Some(Found { race, .. }) = self.found.iter_mut().rev().find(same) {
            let end = (race.address + race.bytes).max(range.end);
            race.address = race.address.min(range.start);
            race.bytes = end - race.address;
            race.first.write |= first_writes;
            race.second.write |= second_writes;
        } else if self.found.len() < KEPT {
            let race = Race {
                first: first.access(first_writes),
                second: second.access(second_writes),
                device,
                address: range.start,
                bytes: range.end - range.start,
            };
            let (first, second) = (Arc::clone(first), Arc::clone(second));
            self.found.push(Found { first, second, race });
        }
    }
}

/// Sorts the ranges and merges those that touch or overlap.
pub(crate) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let meet = next.start <= last.end;
        if meet {
            last.end = last.end.max(next.end);
        }
        meet
    });
    ranges
}

impl State {
    /// Creates the operation of a turn in the stream with this id, for [`State::touch`].
    pub(crate) fn operation(
        &self,
        turn: &Turn,
        stream: u64,
        what: Accessor,
        end_ns: u64,
    ) -> Arc<Operation> {
        let Moment { time, clock } = &turn.start;
        Arc::new(Operation {
            what,
            stream: Some(stream),
            context: self.contexts[&turn.context].id,
            start_ns: *time,
            end_ns,
            tick: turn.tick.clone(),
            clock: clock.clone(),
        })
    }

    /// Records that an operation reads or writes memory, and reports races with earlier operations.
    pub(crate) fn touch(&mut self, new: &Arc<Operation>, range: Range<u64>, write: bool) {
        if range.is_empty() {
            return;
        }
        let State { memory, races, .. } = self;
        let Some((&base, allocation)) = memory.range_mut(..=range.start).next_back() else {
            return;
        };
        if range.start - base >= allocation.len() as u64 {
            return;
        }
        let device = allocation.device;
        allocation.history.pieces(range, |range, touched| {
            let earlier = touched.writes.iter().map(|old| (old, true));
            let reads = touched.reads.iter().map(|old| (old, false)).filter(|_| write);
            for (old, wrote) in earlier.chain(reads) {
                if !Arc::ptr_eq(old, new) && !races.ordered(old, new) {
                    races.note((old, wrote), (new, write), device, &range);
                }
            }
            let stays = |old: &Arc<Operation>| {
                !Arc::ptr_eq(old, new) && !old.before(new) && !old.known_to(&races.waited)
            };
            touched.reads.retain(stays);
            if write {
                touched.writes.retain(stays);
                touched.writes.push(Arc::clone(new));
            } else {
                touched.reads.push(Arc::clone(new));
            }
        });
    }

    /// Records that the host frees memory. The host must have waited for all operations that access it.
    pub(crate) fn touch_by_host(&mut self, context: usize, range: Range<u64>) {
        let operation = Operation {
            what: Accessor::Free,
            stream: None,
            context: self.contexts[&context].id,
            start_ns: self.now,
            end_ns: self.now,
            // No clock knows this tick, because no operation waits for the host's own actions.
            tick: Tick::default().advance(),
            clock: self.thread().clock.clone(),
        };
        self.touch(&Arc::new(operation), range, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(stream: u64) -> Arc<Operation> {
        let (tick, mut clock) = (Tick::default().advance(), VectorClock::default());
        clock.note(&tick);
        Arc::new(Operation {
            what: Accessor::Fill,
            stream: Some(stream),
            context: 1,
            start_ns: 0,
            end_ns: 0,
            tick,
            clock,
        })
    }

    fn write(history: &mut History, range: Range<u64>, operation: &Arc<Operation>) {
        history.pieces(range, |_, touched| touched.writes = vec![Arc::clone(operation)]);
    }

    fn pieces(history: &History) -> Vec<(u64, u64, u64)> {
        let stream = |piece: &Piece| piece.touched.writes[0].stream.unwrap_or(0);
        history.0.iter().map(|(&start, piece)| (start, piece.end, stream(piece))).collect()
    }

    #[test]
    fn pieces_are_cut_and_made_one_again() {
        let [a, b] = [1, 2].map(operation);
        let mut history = History::default();
        write(&mut history, 10..20, &a);
        write(&mut history, 30..40, &a);
        assert_eq!(pieces(&history), [(10, 20, 1), (30, 40, 1)]);
        write(&mut history, 15..35, &b);
        assert_eq!(pieces(&history), [(10, 15, 1), (15, 35, 2), (35, 40, 1)]);
        write(&mut history, 12..13, &b);
        write(&mut history, 14..15, &b);
        assert_eq!(pieces(&history)[2..], [(13, 14, 1), (14, 35, 2), (35, 40, 1)]);
        write(&mut history, 0..50, &a);
        assert_eq!(pieces(&history), [(0, 50, 1)]);
    }

    #[test]
    fn an_allocation_in_too_many_pieces_is_forgotten() {
        let (a, mut history) = (operation(1), History::default());
        for piece in 0..=PIECES as u64 {
            write(&mut history, 2 * piece..2 * piece + 1, &a);
            assert!(history.0.len() <= PIECES);
        }
        assert!(history.0.is_empty());
    }

    #[test]
    fn ranges_that_meet_are_one() {
        let ranges = vec![5..6, 1..3, 3..4, 8..12, 9..10, 1..2];
        assert_eq!(joined(ranges), [1..4, 5..6, 8..12]);
    }
}
