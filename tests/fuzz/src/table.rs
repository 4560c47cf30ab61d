//! Counts of operations, tried and succeeded, per kind.

use std::collections::BTreeMap;
use std::fmt;

use crate::operation::Kind;
use crate::world::Done;

/// The counts of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    tried: u64,
    succeeded: u64,
    skipped: u64,
}

/// The counts of all kinds.
#[derive(Clone, Debug, Default)]
pub struct Table {
    counts: BTreeMap<Kind, Count>,
}

/// The minimum success rate, in percent.
const LEAST: f64 = 5.0;

impl Table {
    /// Counts one operation.
    pub fn count(&mut self, kind: Kind, done: &Done) {
        let count = self.counts.entry(kind).or_default();
        match done {
            Done::Ok => {
                count.tried += 1;
                count.succeeded += 1;
            }
            Done::Refused(_) => count.tried += 1,
            Done::Skipped => count.skipped += 1,
        }
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Table) {
        for (kind, more) in &other.counts {
            let count = self.counts.entry(*kind).or_default();
            count.tried += more.tried;
            count.succeeded += more.succeeded;
            count.skipped += more.skipped;
        }
    }

    /// Returns the number of operations that were tried.
    #[must_use]
    pub fn tried(&self) -> u64 {
        self.counts.values().map(|count| count.tried).sum()
    }

    /// Returns the kinds that hardly ever succeed. Kinds with too few tries are left out.
    #[must_use]
    pub fn failing(&self) -> Vec<Kind> {
        let failing = |count: &Count| count.tried >= 200 && percent(count) < LEAST;
        self.counts.iter().filter(|(_, count)| failing(count)).map(|(kind, _)| *kind).collect()
    }
}

fn percent(count: &Count) -> f64 {
    if count.tried == 0 { 0.0 } else { count.succeeded as f64 * 100.0 / count.tried as f64 }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = ["operation", "tried", "succeeded", "%", "nothing to do"];
        let [kind, tried, succeeded, share, skipped] = columns;
        writeln!(f, "{kind:<24}{tried:>12}{succeeded:>12}{share:>8}{skipped:>16}")?;
        for (kind, count) in &self.counts {
            let Count { tried, succeeded, skipped } = count;
            let share = percent(count);
            writeln!(f, "{kind:<24}{tried:>12}{succeeded:>12}{share:>8.1}{skipped:>16}")?;
        }
        Ok(())
    }
}
