//! Fewer operations that break the same promise.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::run::{Failure, Plan, run};

/// How long shrinking may take.
const AT_MOST: Duration = Duration::from_secs(60);

/// Takes operations out of a failing plan for as long as it breaks the same rule, and
/// returns what is left with its failure and program.
#[must_use]
pub fn shrink(mut plan: Plan, failure: Failure, progress: &AtomicU64) -> (Plan, Failure) {
    let end = Instant::now() + AT_MOST;
    let rule = failure.violation.rule;
    plan.operations.truncate(failure.operations.max(1));
    let mut size = plan.operations.len().div_ceil(2);
    while size > 0 && Instant::now() < end {
        let mut at = 0;
        let mut removed = false;
        while at < plan.operations.len() && Instant::now() < end {
            let mut fewer = plan.clone();
            let to = (at + size).min(fewer.operations.len());
            fewer.operations.drain(at..to);
            match run(&fewer, false, progress) {
                Err(failure) if failure.violation.rule == rule => {
                    fewer.operations.truncate(failure.operations.max(1));
                    plan = fewer;
                    removed = true;
                }
                _ => at = to,
            }
        }
        size = match (size, removed) {
            (1, true) => 1,
            (1, false) => 0,
            (size, _) => size.div_ceil(2),
        };
    }
    let written = run(&plan, true, progress).err().map_or(failure, |failure| *failure);
    (plan, written)
}
