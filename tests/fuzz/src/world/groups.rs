//! Operations on groups of SMs.

use std::sync::Arc;

use green_ctx::{SmGroup, Split, SplitRequest, Version};

use super::objects::GroupEntry;
use super::{Done, MOST, World};
use crate::account::Held;
use crate::violation::{Rule, Violation};

/// The first driver that makes a context of several pieces.
const COMPOSITION: Version = Version::new(12, 5);
/// The first driver with structured splits.
const STRUCTURED: Version = Version::new(13, 1);

/// How a request is written in a program.
pub(super) fn written(counts: &[u32], rest: bool, end: &str) -> String {
    let rest = if rest { ".rest(\"rest\")" } else { "" };
    format!("SplitRequest::from({counts:?}){rest}{end}")
}

impl World {
    /// Whether a context can be made of several pieces.
    pub(super) fn composes(&self) -> bool {
        self.version >= COMPOSITION
    }

    /// The counts of a request, of so many SMs, and whether it takes the rest.
    pub(super) fn counts(&self, n: u32, available: u32) -> (Vec<u32>, bool) {
        let (unit, units) = (self.unit, available / self.unit);
        if !self.composes() {
            return (vec![16; 1 + n as usize % 2], false);
        }
        let mut left = units.max(1);
        let mut counts = Vec::new();
        for shift in 0..1 + n % 3 {
            if left == 0 {
                break;
            }
            // Few sizes, so that contexts are used again.
            let wanted = [1, 2, 2, 4, left.div_ceil(2)][(n >> (4 + 4 * shift)) as usize % 5];
            let wanted = wanted.min(left);
            counts.push(wanted * unit);
            left -= wanted;
        }
        (counts, n >> 20 & 3 == 0)
    }

    pub(super) fn request(&self, counts: &[u32], rest: bool) -> SplitRequest {
        let request = SplitRequest::from(counts.to_vec()).granularity(self.granularity);
        if rest { request.rest("rest") } else { request }
    }

    /// The end of a request as written in a program.
    pub(super) fn granularity(&self) -> String {
        format!(".granularity(Granularity::{:?})", self.granularity)
    }

    pub(super) fn split(&mut self, n: [u32; 4]) -> Done {
        if self.groups.len() >= MOST || (self.alone && self.free() < self.unit) {
            return Done::Skipped;
        }
        let (counts, rest) = self.counts(n[0], self.free());
        let request = self.request(&counts, rest);
        let end = self.granularity();
        match self.sms.split(request) {
            Ok(split) => {
                self.took(split, false, false, |of| {
                    format!(
                        "{of} = device.resources().sm()?.split({})?",
                        written(&counts, rest, &end)
                    )
                });
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        }
    }

    /// Takes all SMs that are free as one group, and returns its name.
    pub(super) fn take_rest(&mut self) -> Option<u32> {
        let request = SplitRequest::new().rest("rest").granularity(self.granularity);
        let split = self.sms.split(request).ok()?;
        let end = self.granularity();
        self.took(split, false, false, |of| {
            let request = format!("SplitRequest::new().rest(\"rest\"){end}");
            format!("{of} = device.resources().sm()?.split({request})?")
        });
        self.groups.last().map(|entry| entry.name)
    }

    /// Keeps the groups of a split of the device.
    fn took(
        &mut self,
        split: Split,
        overlapping: bool,
        structured: bool,
        line: impl FnOnce(&str) -> String,
    ) {
        let groups: Vec<SmGroup> = split.groups.into_iter().chain(split.remainder).collect();
        let held: Vec<_> = groups
            .iter()
            .map(|group| Held::take(&self.held, if overlapping { 0 } else { group.sm_count() }))
            .collect();
        self.keep(groups, held, overlapping, structured, None, line);
    }

    fn keep(
        &mut self,
        groups: Vec<SmGroup>,
        held: Vec<Arc<Held>>,
        overlapping: bool,
        structured: bool,
        set: Option<u32>,
        line: impl FnOnce(&str) -> String,
    ) {
        let mut names = Vec::new();
        for (group, held) in groups.into_iter().zip(held) {
            let name = self.name();
            names.push(format!("group{name}"));
            self.groups.push(GroupEntry { name, group, held, overlapping, structured, set });
        }
        self.say(|| format!("{}; // its groups", line(&format!("let [{}]", names.join(", ")))));
    }

    pub(super) fn split_nested(&mut self, n: [u32; 4]) -> Done {
        let wide =
            |entry: &&GroupEntry| !entry.structured && entry.group.sm_count() >= 2 * self.unit;
        let wide: Vec<u32> = self.groups.iter().filter(wide).map(|entry| entry.name).collect();
        let Some(at) = self.pick(n[0], &wide).filter(|_| self.composes()) else {
            return Done::Skipped;
        };
        let Some(entry) = self.take_group(wide[at]) else { return Done::Skipped };
        let (counts, rest) = self.counts(n[1], entry.group.sm_count());
        let request = self.request(&counts, rest);
        let GroupEntry { name, group, held, overlapping, structured, set } = entry;
        match group.split(request) {
            Ok(split) => {
                let groups: Vec<_> = split.groups.into_iter().chain(split.remainder).collect();
                let parts = groups.iter().map(|group| held.part(group.sm_count())).collect();
                drop(held);
                let end = self.granularity();
                self.keep(groups, parts, overlapping, false, set, |of| {
                    format!("{of} = group{name}.split({})?", written(&counts, rest, &end))
                });
                Done::Ok
            }
            Err(error) => {
                let done = Done::refused(&error);
                let group = error.group;
                self.groups.push(GroupEntry { name, group, held, overlapping, structured, set });
                done
            }
        }
    }

    /// Takes a group out of the list.
    pub(super) fn take_group(&mut self, name: u32) -> Option<GroupEntry> {
        let at = self.groups.iter().position(|entry| entry.name == name)?;
        Some(self.groups.remove(at))
    }

    pub(super) fn split_structured(&mut self, n: [u32; 4]) -> Done {
        let free = self.free() == self.total && self.alone;
        if self.version < STRUCTURED || !free || self.groups.len() >= MOST || n[3].is_multiple_of(2)
        {
            return Done::Skipped;
        }
        let count = 16 * (1 + n[0] % 3);
        let request = SplitRequest::from([count, 32]).rest("rest").coscheduled(2);
        match self.sms.split(request) {
            Ok(split) => {
                self.took(split, false, true, |of| {
                    let end = ".coscheduled(2)";
                    let request = written(&[count, 32], true, end);
                    format!("{of} = device.resources().sm()?.split({request})?")
                });
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        }
    }

    pub(super) fn split_nested_structured(&mut self, n: [u32; 4]) -> Done {
        if self.version < STRUCTURED || self.groups.len() >= MOST {
            return Done::Skipped;
        }
        let Some(at) = self.pick(n[0], &self.groups) else { return Done::Skipped };
        if self.groups[at].group.sm_count() < 8 {
            return Done::Skipped;
        }
        let GroupEntry { name, group, held, overlapping, structured, set } = self.groups.remove(at);
        let count = (group.sm_count() / 2).max(4) / 4 * 4;
        let request = SplitRequest::from([count]).rest("rest").coscheduled(2);
        match group.split(request) {
            Ok(split) => {
                let groups: Vec<_> = split.groups.into_iter().chain(split.remainder).collect();
                let parts = groups.iter().map(|_| Held::within(&held)).collect();
                drop(held);
                self.keep(groups, parts, overlapping, true, set, |of| {
                    let end = ".coscheduled(2)";
                    format!("{of} = group{name}.split({})?", written(&[count], true, end))
                });
                Done::Ok
            }
            Err(error) => {
                let done = Done::refused(&error);
                let group = error.group;
                self.groups.push(GroupEntry { name, group, held, overlapping, structured, set });
                done
            }
        }
    }

    pub(super) fn split_overlapping(&mut self, n: [u32; 4]) -> Done {
        if self.groups.len() >= MOST {
            return Done::Skipped;
        }
        let (counts, _) = self.counts(n[0], self.total);
        let request = self.request(&counts, false).overlapping(true);
        let end = format!("{}.overlapping(true)", self.granularity());
        match self.sms.split(request) {
            Ok(split) => {
                self.took(split, true, false, |of| {
                    let request = written(&counts, false, &end);
                    format!("{of} = device.resources().sm()?.split({request})?")
                });
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        }
    }

    /// Asks for more than there is, twice: the answers are the same, and nothing changes.
    pub(super) fn split_refused(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let counts = vec![self.total / 2 + 1 + n[0] % 8; 2];
        let ask = || self.sms.split(self.request(&counts, false));
        let before = self.sms.free();
        let (first, second) = match (ask(), ask()) {
            (Err(first), Err(second)) => (first.to_string(), second.to_string()),
            _ => {
                return Err(Violation::new(
                    Rule::Answer,
                    format!("groups of {counts:?} SMs were taken out of {}", self.total),
                ));
            }
        };
        if !self.alone {
            return Ok(Done::Ok);
        }
        // With faults, the second try may have recorded what the first could not.
        if first != second && !self.faults && !self.disturbed {
            return Err(Violation::new(
                Rule::Same,
                format!("one request was refused for two reasons: {first}; {second}"),
            ));
        }
        // SMs whose last work could not be recorded come free when a split has tried again.
        let may_grow = self.faults || self.disturbed;
        let free = self.sms.free();
        if free != before && !(may_grow && free > before) {
            return Err(Violation::new(
                Rule::Refusal,
                format!("a refused split changed what is free from {before} to {free} SMs"),
            ));
        }
        Ok(Done::Ok)
    }

    pub(super) fn drop_group(&mut self, n: [u32; 4]) -> Done {
        let Some(at) = self.pick(n[0], &self.groups) else { return Done::Skipped };
        let GroupEntry { name, group, held, .. } = self.groups.remove(at);
        self.say(|| format!("drop(group{name});"));
        drop(group);
        drop(held);
        Done::Ok
    }
}
