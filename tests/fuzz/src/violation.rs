//! Violations of the promise.

use std::fmt;

/// The rules that are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Work of two partitions never runs on one SM at the same time, and work that must wait is ordered.
    Exclusive,
    /// No partition runs on another's floor.
    Floor,
    /// A partition has the share that was requested, and runs nowhere else.
    Share,
    /// The ledger reports as free exactly the SMs that no object holds.
    Ledger,
    /// A refusal changes nothing, and has a valid reason.
    Refusal,
    /// After all drops no object is left, and no clean-up has failed.
    Left,
    /// On an idle device the number of driver objects is bounded by the number of objects in use.
    Growth,
    /// The result of a call is correct.
    #[default]
    Answer,
    /// The same calls give the same results.
    Same,
    /// Every call returns.
    Hang,
    /// Neither the library nor the fuzzer panics.
    Panic,
}

/// A violation of the promise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violation {
    /// The rule that was broken.
    pub rule: Rule,
    /// A description of the observation.
    pub seen: String,
}

impl Violation {
    /// Creates a violation from a rule and an observation.
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
