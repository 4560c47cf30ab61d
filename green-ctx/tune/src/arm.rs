//! Arms: ways to run several jobs on one device.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use green_ctx::Share;
use green_ctx::resource::UnitSizes;

use crate::request::RequestError;

/// How several jobs run on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ArmKind {
    /// One after the other: all jobs in one stream.
    Sequential,
    /// A stream each, all alike.
    Streams,
    /// A stream each, of different priorities.
    Priority,
    /// A partition each, of different SMs or of some that they share.
    Partition,
}

impl ArmKind {
    /// Every kind.
    pub const ALL: [ArmKind; 4] =
        [ArmKind::Sequential, ArmKind::Streams, ArmKind::Priority, ArmKind::Partition];

    /// The name in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ArmKind::Sequential => "sequential",
            ArmKind::Streams => "streams",
            ArmKind::Priority => "priority",
            ArmKind::Partition => "partition",
        }
    }
}

impl FromStr for ArmKind {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<ArmKind, RequestError> {
        let known = || ArmKind::ALL.map(ArmKind::as_str).join(", ");
        let found = ArmKind::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| {
            RequestError::wrong(format!("{text:?} is no kind of arm; the kinds are {}", known()))
        })
    }
}

/// What one job has of the SMs: a floor that is its own, and a ceiling. Both in SMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// SMs that no other job uses.
    pub floor: u32,
    /// The most SMs that it uses.
    pub ceiling: u32,
}

/// One way to run several jobs on one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arm {
    kind: ArmKind,
    /// What each job has of the SMs; all of them, unless it is a partition.
    parts: Vec<Part>,
    /// The priority of each job's stream: lower numbers run first.
    priorities: Vec<i32>,
}

impl Arm {
    fn whole(kind: ArmKind, priorities: Vec<i32>, sms: u32) -> Arm {
        let parts = vec![Part { floor: 0, ceiling: sms }; priorities.len()];
        Arm { kind, parts, priorities }
    }

    /// All jobs in one stream.
    #[must_use]
    pub fn sequential(jobs: usize, sms: u32) -> Arm {
        Arm::whole(ArmKind::Sequential, vec![0; jobs], sms)
    }

    /// A stream each.
    #[must_use]
    pub fn streams(jobs: usize, sms: u32) -> Arm {
        Arm::whole(ArmKind::Streams, vec![0; jobs], sms)
    }

    /// A stream each, of these priorities.
    #[must_use]
    pub fn priority(priorities: Vec<i32>, sms: u32) -> Arm {
        Arm::whole(ArmKind::Priority, priorities, sms)
    }

    /// A partition each.
    #[must_use]
    pub fn partition(parts: Vec<Part>) -> Arm {
        let priorities = vec![0; parts.len()];
        Arm { kind: ArmKind::Partition, parts, priorities }
    }

    /// Partitions of two jobs that may use at most so many SMs: what the other cannot use is each one's
    /// floor.
    #[must_use]
    pub fn ceilings([a, b]: [u32; 2], sms: u32) -> Arm {
        let part = |own: u32, other: u32| {
            let ceiling = own.min(sms);
            Part { floor: sms.saturating_sub(other).min(ceiling), ceiling }
        };
        Arm::partition(vec![part(a, b), part(b, a)])
    }

    /// The same with streams of these priorities.
    #[must_use]
    pub fn with_priorities(&self, priorities: Vec<i32>) -> Arm {
        Arm { priorities, ..self.clone() }
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ArmKind {
        self.kind
    }

    /// What each job has of the SMs.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The priority of each job's stream.
    #[must_use]
    pub fn priorities(&self) -> &[i32] {
        &self.priorities
    }

    /// The share of a job, on so many SMs: `..` for all of them without a promise.
    ///
    /// # Panics
    ///
    /// Where there is no such job.
    #[must_use]
    pub fn share(&self, job: usize, sms: u32) -> Share {
        let Part { floor, ceiling } = self.parts[job];
        match (floor, ceiling) {
            (floor, ceiling) if floor == ceiling => Share::from(floor),
            (0, ceiling) if ceiling >= sms => Share::from(..),
            (floor, ceiling) if ceiling >= sms => Share::from(floor..),
            (0, ceiling) => Share::from(..=ceiling),
            (floor, ceiling) => Share::from(floor..=ceiling),
        }
    }

    /// As a person says it of jobs with these names.
    ///
    /// # Panics
    ///
    /// Where there are fewer names than jobs.
    #[must_use]
    pub fn describe(&self, names: &[&str], sms: u32) -> String {
        let share = |job: usize| self.share(job, sms).to_string();
        let jobs = names.iter().zip(&self.priorities).enumerate();
        let jobs: Vec<_> = jobs.map(|(job, (name, level))| (*name, share(job), *level)).collect();
        describe(self.kind, &jobs)
    }

    /// Whether at least half of the SMs are in no job's floor.
    pub(crate) fn shares_many(&self, sms: u32) -> bool {
        let floors: u32 = self.parts.iter().map(|part| part.floor).sum();
        2 * floors <= sms
    }

    pub(crate) fn has_priorities(&self) -> bool {
        self.priorities.windows(2).any(|pair| pair[0] != pair[1])
    }
}

/// How jobs, each with its name, share and priority, have the device.
pub(crate) fn describe(kind: ArmKind, jobs: &[(&str, String, i32)]) -> String {
    let how = match kind {
        ArmKind::Sequential => "one after the other".to_owned(),
        ArmKind::Streams => "plain streams".to_owned(),
        ArmKind::Priority => "priorities".to_owned(),
        ArmKind::Partition => {
            let parts: Vec<_> =
                jobs.iter().map(|(job, share, _)| format!("{job} {share}")).collect();
            parts.join(", ")
        }
    };
    let lowest = jobs.iter().map(|(.., level)| *level).max();
    let mut first: Vec<_> = jobs.iter().filter(|(.., level)| Some(*level) < lowest).collect();
    first.sort_by_key(|(.., level)| *level);
    let first: Vec<&str> = first.into_iter().map(|(job, ..)| *job).collect();
    if first.is_empty() { how } else { format!("{how}, {} first", first.join(", then ")) }
}

/// The ceilings that a job may have at steps of at least `step` SMs, the least first and all SMs last.
///
/// The first job's units are the odd ones and then those from the front, the others' come from the back: so
/// each ceiling is one set of units, and two jobs divide the device without a rest.
#[must_use]
pub fn ceilings(sizes: UnitSizes, job: usize, step: u32) -> Vec<u32> {
    let regular = sizes.sms.saturating_sub(sizes.odd);
    let step = sizes.round_up(step.max(1), false);
    let counts =
        (1..).map(|steps| steps * step).take_while(|count| *count <= regular && *count < sizes.sms);
    let mut ceilings: BTreeSet<u32> = match job {
        0 => counts.map(|count| sizes.sms - count).collect(),
        _ => counts.collect(),
    };
    ceilings.insert(sizes.sms);
    ceilings.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> UnitSizes {
        UnitSizes::of(&[[8; 15].as_slice(), &[12]].concat())
    }

    #[test]
    fn two_ceilings_say_everything() {
        let shares = |ceilings| {
            let arm = Arm::ceilings(ceilings, 132);
            [arm.share(0, 132).to_string(), arm.share(1, 132).to_string()]
        };
        assert_eq!(shares([132, 132]), ["..", ".."]);
        assert_eq!(shares([32, 100]), ["32", "100"]);
        assert_eq!(shares([132, 100]), ["32..", "..=100"]);
        assert_eq!(shares([116, 100]), ["32..=116", "16..=100"]);
        // Some SMs are nobody's.
        assert_eq!(shares([16, 24]), ["16", "24"]);
    }

    #[test]
    fn ceilings_meet_without_a_rest() {
        let pieces = h200();
        assert_eq!((pieces.sms, pieces.unit, pieces.odd), (132, 8, 12));
        let (front, back) = (ceilings(pieces, 0, 16), ceilings(pieces, 1, 16));
        assert_eq!(front, [20, 36, 52, 68, 84, 100, 116, 132]);
        assert_eq!(back, [16, 32, 48, 64, 80, 96, 112, 132]);
        assert_eq!((ceilings(pieces, 0, 8)[0], ceilings(pieces, 1, 8)[14]), (12, 120));
        let even = UnitSizes::of(&[8; 14]);
        assert_eq!(ceilings(even, 0, 16), [16, 32, 48, 64, 80, 96, 112]);
        assert_eq!(ceilings(even, 1, 16), [16, 32, 48, 64, 80, 96, 112]);
        assert_eq!(ceilings(UnitSizes::of(&[2]), 0, 8), [2]);
    }

    #[test]
    fn arms_are_described_as_people_say_it() {
        let names = ["a", "b", "c"];
        assert_eq!(Arm::streams(3, 132).describe(&names, 132), "plain streams");
        let order = Arm::priority(vec![-1, 0, -2], 132);
        assert_eq!(order.describe(&names, 132), "priorities, c, then a first");
        let arm = Arm::ceilings([132, 100], 132).with_priorities(vec![-1, 0]);
        assert_eq!(arm.describe(&names[..2], 132), "a 32.., b ..=100, a first");
    }
}
