//! Reduces a failing list of operations.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::run::{Failure, Plan, run};
use crate::violation::Rule;

/// The maximum time of shrinking.
const AT_MOST: Duration = Duration::from_secs(30);
/// The number of operations up to which pairs are tried.
const PAIRS: usize = 80;

/// Removes operations from a failing plan as long as it breaks the same rule. The remaining operations keep
/// their operands. Returns the reduced plan with its failure and program.
#[must_use]
pub fn shrink(mut plan: Plan, failure: Failure, progress: &AtomicU64) -> (Plan, Failure) {
    plan.operations.truncate(failure.operations.max(1));
    if let Err(written) = run(&plan, true, progress) {
        plan.pins = written.chosen;
    }
    if plan.pins.len() != plan.operations.len() {
        // The failure does not repeat.
        return (plan, failure);
    }
    let mut shrinking =
        Shrinking { plan, rule: failure.violation.rule, end: Instant::now() + AT_MOST, progress };
    loop {
        let before = shrinking.plan.operations.len();
        shrinking.remove();
        shrinking.remove_pairs();
        if shrinking.plan.operations.len() == before || shrinking.is_late() {
            break;
        }
    }
    let plan = shrinking.plan;
    let written = run(&plan, true, progress).err().map_or(failure, |failure| *failure);
    (plan, written)
}

struct Shrinking<'a> {
    plan: Plan,
    rule: Rule,
    end: Instant,
    progress: &'a AtomicU64,
}

impl Shrinking<'_> {
    fn is_late(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Replaces the plan if `other` breaks the same rule.
    fn take(&mut self, mut other: Plan) -> bool {
        match run(&other, false, self.progress) {
            Err(failure) if failure.violation.rule == self.rule => {
                other.operations.truncate(failure.operations.max(1));
                other.pins.truncate(failure.operations.max(1));
                self.plan = other;
                true
            }
            _ => false,
        }
    }

    /// Removes ranges of operations, from large ranges down to single operations.
    fn remove(&mut self) {
        let mut size = self.plan.operations.len().div_ceil(2);
        while size > 0 && !self.is_late() {
            let (mut at, mut removed) = (0, false);
            while at < self.plan.operations.len() && !self.is_late() {
                let mut fewer = self.plan.clone();
                let to = (at + size).min(fewer.operations.len());
                fewer.operations.drain(at..to);
                fewer.pins.drain(at..to);
                if self.take(fewer) { removed = true } else { at = to }
            }
            size = match (size, removed) {
                (1, true) => 1,
                (1, false) => 0,
                (size, _) => size.div_ceil(2),
            };
        }
    }

    /// Removes two operations at a time, such as a creation and its drop.
    fn remove_pairs(&mut self) {
        let mut first = 0;
        while first < self.plan.operations.len().min(PAIRS) {
            let mut second = first + 1;
            let mut removed = false;
            while second < self.plan.operations.len().min(PAIRS) && !self.is_late() {
                let mut fewer = self.plan.clone();
                for at in [second, first] {
                    fewer.operations.remove(at);
                    fewer.pins.remove(at);
                }
                if self.take(fewer) {
                    removed = true;
                    break;
                }
                second += 1;
            }
            first += usize::from(!removed);
        }
    }
}
