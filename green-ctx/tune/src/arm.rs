//! Arms: the ways to run several jobs on one device.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use green_ctx::Share;
use green_ctx::resource::UnitSizes;

use crate::request::RequestError;

/// The kind of an arm. An arm is one way to run several jobs on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ArmKind {
    /// All jobs run in one stream, one after the other.
    Sequential,
    /// Each job runs in its own stream, and all streams have the same priority.
    Streams,
    /// Each job runs in its own stream, and the streams have different priorities.
    Priority,
    /// Each job runs in its own partition. Partitions may share SMs.
    Partition,
}

impl ArmKind {
    /// All kinds.
    pub const ALL: [ArmKind; 4] =
        [ArmKind::Sequential, ArmKind::Streams, ArmKind::Priority, ArmKind::Partition];

    /// Returns the name of the kind in files and on the command line, such as `sequential`.
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
            RequestError::wrong(format!("{text:?} is not a kind of arm; the kinds are {}", known()))
        })
    }
}

/// The floor and the ceiling of one job, in SMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// The number of SMs that no other job may use.
    pub floor: u32,
    /// The maximum number of SMs that the job may use.
    pub ceiling: u32,
}

/// One way to run several jobs on one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arm {
    kind: ArmKind,
    /// The floor and ceiling of each job. In an arm without partitions, every job has the floor 0 and may use all SMs.
    parts: Vec<Part>,
    /// The priority of each job's stream. As in CUDA, a lower number is a higher priority.
    priorities: Vec<i32>,
}

impl Arm {
    fn whole(kind: ArmKind, priorities: Vec<i32>, sms: u32) -> Arm {
        let parts = vec![Part { floor: 0, ceiling: sms }; priorities.len()];
        Arm { kind, parts, priorities }
    }

    /// Returns the arm with all jobs in one stream.
    #[must_use]
    pub fn sequential(jobs: usize, sms: u32) -> Arm {
        Arm::whole(ArmKind::Sequential, vec![0; jobs], sms)
    }

    /// Returns the arm with one plain stream per job.
    #[must_use]
    pub fn streams(jobs: usize, sms: u32) -> Arm {
        Arm::whole(ArmKind::Streams, vec![0; jobs], sms)
    }

    /// Returns the arm with one stream per job and these stream priorities.
    #[must_use]
    pub fn priority(priorities: Vec<i32>, sms: u32) -> Arm {
        Arm::whole(ArmKind::Priority, priorities, sms)
    }

    /// Returns the arm with one partition per job and these floors and ceilings.
    #[must_use]
    pub fn partition(parts: Vec<Part>) -> Arm {
        let priorities = vec![0; parts.len()];
        Arm { kind: ArmKind::Partition, parts, priorities }
    }

    /// Returns the arm with one partition for each of two jobs and these ceilings. The floor of each job is the number
    /// of SMs that the other job cannot use.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_tune::Arm;
    ///
    /// let arm = Arm::ceilings([132, 100], 132);
    /// assert_eq!(arm.share(0, 132).to_string(), "32..");
    /// assert_eq!(arm.share(1, 132).to_string(), "..=100");
    /// assert_eq!(arm.describe(&["decode", "prefill"], 132), "decode 32.., prefill ..=100");
    /// ```
    #[must_use]
    pub fn ceilings([a, b]: [u32; 2], sms: u32) -> Arm {
        let part = |own: u32, other: u32| {
            let ceiling = own.min(sms);
            Part { floor: sms.saturating_sub(other).min(ceiling), ceiling }
        };
        Arm::partition(vec![part(a, b), part(b, a)])
    }

    /// Returns a copy of the arm with these stream priorities.
    #[must_use]
    pub fn with_priorities(&self, priorities: Vec<i32>) -> Arm {
        Arm { priorities, ..self.clone() }
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ArmKind {
        self.kind
    }

    /// Returns the floor and ceiling of each job.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the priority of each job's stream.
    #[must_use]
    pub fn priorities(&self) -> &[i32] {
        &self.priorities
    }

    /// Returns the share of a job, on a device with `sms` SMs. If the job has neither a floor nor a ceiling, its share
    /// is `..`.
    ///
    /// # Panics
    ///
    /// Panics if there is no job at this index.
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

    /// Describes the arm in words. `names` contains the names of the jobs in order. Jobs without a name are left out.
    #[must_use]
    pub fn describe(&self, names: &[&str], sms: u32) -> String {
        let share = |job: usize| self.share(job, sms).to_string();
        let jobs = names.iter().zip(&self.priorities).enumerate();
        let jobs: Vec<_> = jobs.map(|(job, (name, level))| (*name, share(job), *level)).collect();
        describe(self.kind, &jobs)
    }

    /// Returns whether at least half of the SMs belong to no floor.
    pub(crate) fn shares_many(&self, sms: u32) -> bool {
        let floors: u32 = self.parts.iter().map(|part| part.floor).sum();
        2 * floors <= sms
    }

    pub(crate) fn has_priorities(&self) -> bool {
        self.priorities.windows(2).any(|pair| pair[0] != pair[1])
    }
}

/// Describes how jobs run on the device. Each job is given by its name, share and priority.
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

/// Returns the possible ceilings of a job in ascending order, in steps of at least `step` SMs. The last ceiling is the
/// number of all SMs.
///
/// The first job gets the odd units, and then regular units. The other jobs get regular units. So two jobs can divide the
/// device without a remainder.
///
/// # Examples
///
/// ```
/// use green_ctx_tune::{UnitSizes, ceilings};
///
/// // An H200: 15 units of 8 SMs, and one of 12.
/// let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
/// assert_eq!(ceilings(pieces, 0, 16)[..3], [20, 36, 52]);
/// assert_eq!(ceilings(pieces, 1, 16)[..3], [16, 32, 48]);
/// ```
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
        // Some SMs belong to neither job.
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
