//! Fewer operations that break the same promise.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::run::{Failure, Plan, run};
use crate::violation::Rule;

/// How long shrinking may take.
const AT_MOST: Duration = Duration::from_secs(30);
/// Up to how many operations pairs of them are tried.
const PAIRS: usize = 80;

/// Takes operations out of a failing plan for as long as it breaks the same rule, and makes the
/// numbers of those that stay small. Returns what is left with its failure and program.
#[must_use]
pub fn shrink(mut plan: Plan, failure: Failure, progress: &AtomicU64) -> (Plan, Failure) {
    plan.operations.truncate(failure.operations.max(1));
    let mut shrinking =
        Shrinking { plan, rule: failure.violation.rule, end: Instant::now() + AT_MOST, progress };
    loop {
        let before = shrinking.plan.operations.len();
        shrinking.remove();
        shrinking.simplify();
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

    /// Takes another plan over if it breaks the rule too.
    fn take(&mut self, mut other: Plan) -> bool {
        match run(&other, false, self.progress) {
            Err(failure) if failure.violation.rule == self.rule => {
                other.operations.truncate(failure.operations.max(1));
                self.plan = other;
                true
            }
            _ => false,
        }
    }

    /// Removes pieces, from large ones down to single operations.
    fn remove(&mut self) {
        let mut size = self.plan.operations.len().div_ceil(2);
        while size > 0 && !self.is_late() {
            let (mut at, mut removed) = (0, false);
            while at < self.plan.operations.len() && !self.is_late() {
                let mut fewer = self.plan.clone();
                let to = (at + size).min(fewer.operations.len());
                fewer.operations.drain(at..to);
                if self.take(fewer) { removed = true } else { at = to }
            }
            size = match (size, removed) {
                (1, true) => 1,
                (1, false) => 0,
                (size, _) => size.div_ceil(2),
            };
        }
    }

    /// Makes numbers small, so that operations name the first of what there is and others, which
    /// only shift it, can go.
    fn simplify(&mut self) {
        for at in 0..self.plan.operations.len() {
            for which in 0..4 {
                for small in 0..4 {
                    let number = self.plan.operations.get(at).map(|op| op.numbers[which]);
                    if number.is_none_or(|number| number <= small) || self.is_late() {
                        break;
                    }
                    let mut other = self.plan.clone();
                    other.operations[at].numbers[which] = small;
                    if self.take(other) {
                        break;
                    }
                }
            }
        }
    }

    /// Removes two operations at once: what is made and dropped, among others.
    fn remove_pairs(&mut self) {
        let mut first = 0;
        while first < self.plan.operations.len().min(PAIRS) {
            let mut second = first + 1;
            let mut removed = false;
            while second < self.plan.operations.len().min(PAIRS) && !self.is_late() {
                let mut fewer = self.plan.clone();
                fewer.operations.remove(second);
                fewer.operations.remove(first);
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
