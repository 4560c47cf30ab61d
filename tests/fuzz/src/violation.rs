//! Broken promises.

use std::fmt;

/// What is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Work of two partitions is never on one SM at the same time, and what waits is in order.
    Exclusive,
    /// No partition runs on another's floor.
    Floor,
    /// A partition has the share that was asked for, and runs nowhere else.
    Share,
    /// What the ledger calls free is what nobody holds.
    Ledger,
    /// A refusal changes nothing, and has a reason.
    Refusal,
    /// When everything is dropped, nothing is left, and no clean-up has failed.
    Left,
    /// What is alive while all is idle is bounded by the objects that there are.
    Growth,
    /// What a call reports is so.
    #[default]
    Answer,
    /// The same calls give the same answers.
    Same,
    /// A call returns.
    Hang,
    /// The library or the fuzzer panicked.
    Panic,
}

/// A broken promise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub rule: Rule,
    /// What was seen.
    pub seen: String,
}

impl Violation {
    /// A broken promise, and what was seen of it.
    #[must_use]
    pub fn new(rule: Rule, seen: String) -> Violation {
        Violation { rule, seen }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.seen)
    }
}
