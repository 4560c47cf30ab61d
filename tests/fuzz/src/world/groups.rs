//! Operations on groups of SMs.

use std::fmt;
use std::sync::Arc;

use green_ctx::{
    Error, Result, Share, SplitRequest, Version,
    resource::{Amount, DryRun, Percent, ShareKind, SmGroup, Split},
};

use super::objects::GroupEntry;
use super::{Done, MOST, World};
use crate::account::{Held, Lease, Partition};
use crate::violation::{Rule, Violation};

/// The first driver that creates a context from several resources.
const COMPOSITION: Version = Version::new(12, 5);
/// The first driver with structured splits.
const STRUCTURED: Version = Version::new(13, 1);

/// The shares that an operation requests.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) shares: Vec<Share>,
    pub(super) rest: bool,
}

impl Asked {
    pub(super) fn counts(counts: &[u32]) -> Asked {
        Asked { shares: counts.iter().copied().map(Share::from).collect(), rest: false }
    }

    /// Returns the request as program text.
    pub(super) fn written(&self, end: &str) -> String {
        let shares: Vec<String> =
            self.shares.iter().map(|share| format!("\"{share}\".parse::<Share>()?")).collect();
        let rest = if self.rest { ".rest(\"rest\")" } else { "" };
        format!("SplitRequest::from([{}]){rest}{end}", shares.join(", "))
    }
}

/// Checks that a group got what its share requests of `total` SMs, in units of at most `unit` SMs.
fn check_share(
    share: Share,
    (floor, sm_count): (u32, u32),
    (total, unit): (u32, u32),
) -> Result<(), Violation> {
    // Percentages are rounded to units, and to at least one.
    let percent = |percent: u32| (percent * total / 100).saturating_add(unit);
    let sms = |amount: Amount| match amount {
        Amount::Sms(sms) => sms,
        Amount::Percent(of) => percent(of),
    };
    let (most_floor, most) = match share.kind() {
        ShareKind::Percent(of) => (percent(of), percent(of)),
        ShareKind::Between { floor: Amount::Percent(of), ceiling } => {
            (percent(of), ceiling.map_or(total, |ceiling| sms(ceiling).max(floor)))
        }
        ShareKind::Between { ceiling: Some(ceiling), .. } => (total, sms(ceiling)),
        _ => (total, total),
    };
    let too_little = share.floor().map_or(floor == 0, |least| floor < least);
    if too_little || floor > most_floor || sm_count > most || sm_count < floor {
        let seen = format!(
            "{share} was requested, but the floor is {floor} and the ceiling {sm_count} SMs"
        );
        return Err(Violation::new(Rule::Share, seen));
    }
    Ok(())
}

impl World {
    /// Returns whether a context can be created from several resources.
    pub(super) fn composes(&self) -> bool {
        self.version >= COMPOSITION
    }

    /// Returns shares of `in_all` SMs; at most `for_floors` of them can be floors.
    pub(super) fn asked(&self, n: u32, for_floors: u32, in_all: u32) -> Asked {
        let unit = self.unit;
        if !self.composes() {
            // Usually groups of one size, which these drivers can create.
            let uneven = [[67, 11, 36], [8, 4, 8], [48, 6, 24], [107, 107, 107]];
            return match n >> 2 & 7 {
                0 => Asked::counts(&uneven[n as usize % 4]),
                1 => Asked { shares: vec![Share::percent(25); 1 + n as usize % 2], rest: false },
                _ => Asked::counts(&vec![16; 1 + n as usize % 2]),
            };
        }
        let (mut left, all) = (for_floors / unit, (in_all / unit).max(1));
        let mut shares = Vec::new();
        for shift in 0..1 + n % 3 {
            let bits = n >> (4 + 5 * shift);
            // Few sizes, so that contexts are reused.
            let wanted = [1, 2, 2, 4, left.div_ceil(2)][bits as usize % 5].min(left);
            let ceiling = [2, 4, all / 2, all][bits as usize % 4].clamp(1, all).max(wanted) * unit;
            shares.push(match bits >> 2 & 7 {
                // Some ceilings between units.
                5 => Share::from(wanted * unit..=ceiling + bits % 3),
                6 => Share::from(wanted * unit..),
                7 if bits & 1 == 0 => Share::from(..=ceiling),
                7 => Share::from(..=Percent((100 * ceiling / in_all.max(1)).clamp(1, 100))),
                4 if wanted > 0 => {
                    let percent = Percent((100 * wanted * unit / in_all.max(1)).max(1));
                    if bits & 1 == 0 { Share::from(percent) } else { Share::from(percent..) }
                }
                _ if wanted == 0 => Share::from(..=ceiling),
                _ => Share::from(wanted * unit),
            });
            left -=
                if shares.last().and_then(|share| share.floor()) == Some(0) { 0 } else { wanted };
        }
        let unbounded = |share: &Share| share.is_unbounded();
        let rest = n >> 20 & 3 == 0 && !shares.iter().any(unbounded);
        Asked { shares, rest }
    }

    pub(super) fn request(&self, asked: &Asked) -> SplitRequest {
        let request = SplitRequest::from(&asked.shares).granularity(self.granularity);
        if asked.rest { request.rest("rest") } else { request }
    }

    /// Returns the end of a request as program text.
    pub(super) fn granularity(&self) -> String {
        format!(".granularity(Granularity::{:?})", self.granularity)
    }

    pub(super) fn split(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if self.groups.len() >= MOST || (self.alone && self.free() < self.unit) {
            return Ok(Done::Skipped);
        }
        let asked = self.asked(n[0], self.free(), self.total);
        self.split_device(&asked, World::request, false, &self.granularity())
    }

    /// Takes groups of these counts.
    pub(super) fn split_plainly(&mut self, counts: &[u32]) -> Result<Done, Violation> {
        if self.groups.len() >= MOST {
            return Ok(Done::Skipped);
        }
        self.split_device(&Asked::counts(counts), World::request, false, &self.granularity())
    }

    /// Takes groups from the device, and checks them.
    fn split_device(
        &mut self,
        asked: &Asked,
        request: fn(&World, &Asked) -> SplitRequest,
        structured: bool,
        end: &str,
    ) -> Result<Done, Violation> {
        // Without other threads, faults or quarantine, a dry run and the split see the same state.
        let is_quiet = self.alone && !self.faults && !self.disturbed;
        let dry = is_quiet.then(|| self.sms.dry_run(request(self, asked)));
        let split = match self.sms.split(request(self, asked)) {
            Ok(split) => split,
            Err(error) => {
                if let Some(dry) = dry {
                    self.check_what_fits(asked, request, &error, dry)?;
                }
                return Ok(Done::refused(&error));
            }
        };
        if let Some(dry) = dry {
            self.check_dry_run(&split, dry)?;
        }
        for (share, group) in asked.shares.iter().zip(&split.groups) {
            if group.floor() > 0 || !share.is_exclusive() {
                check_share(
                    *share,
                    (group.floor(), group.sm_count()),
                    (self.total, self.unit.max(self.units.largest())),
                )?;
            }
        }
        self.took(split, structured, |of| {
            format!("{of} = device.resources().sm()?.split({})?", asked.written(end))
        });
        Ok(Done::Ok)
    }

    /// Checks that the split gave and left what the dry run reported.
    fn check_dry_run(&self, split: &Split, dry: Result<DryRun>) -> Result<(), Violation> {
        let wrong = |what: String| Err(Violation::new(Rule::Answer, what));
        let dry = match dry {
            Ok(dry) => dry,
            Err(error) => {
                return wrong(format!("a dry run refused a request that was then split: {error}"));
            }
        };
        let given = |group: &SmGroup| (group.floor(), group.sm_count());
        let given: Vec<_> = split.groups.iter().map(given).collect();
        let foretold: Vec<_> =
            dry.groups.iter().map(|group| (group.floor, group.sm_count)).collect();
        if given != foretold {
            return wrong(format!("a dry run gave {foretold:?}, the split {given:?}"));
        }
        let free = self.sms.free_sm_count();
        if dry.free_for_floors != free {
            let left = dry.free_for_floors;
            return wrong(format!("a dry run left {left} SMs for floors, the split {free}"));
        }
        Ok(())
    }

    /// Checks that the dry run was refused with the same error, and that the suggested request fits.
    fn check_what_fits(
        &self,
        asked: &Asked,
        request: fn(&World, &Asked) -> SplitRequest,
        error: &Error,
        dry: Result<DryRun>,
    ) -> Result<(), Violation> {
        let wrong = |what: String| Err(Violation::new(Rule::Refusal, what));
        match dry {
            Err(same) if same.to_string() == error.to_string() => {}
            Err(other) => {
                return wrong(format!(
                    "a dry run and the split were refused differently: {other}; {error}"
                ));
            }
            Ok(dry) => {
                return wrong(format!(
                    "a dry run gave {dry:?}, but the split was refused: {error}"
                ));
            }
        }
        let Error::NotEnoughSms(shortage) = error else { return Ok(()) };
        let ask = |shares: &[Share]| {
            self.sms.dry_run(request(self, &Asked { shares: shares.to_vec(), rest: asked.rest }))
        };
        let (fit, nearest) = (shortage.fit, &shortage.nearest);
        if !nearest.is_empty() && ask(nearest).is_err() {
            return wrong(format!("the suggested request does not fit: {error}"));
        }
        if fit > 0 && ask(&shortage.requested[..fit]).is_err() {
            return wrong(format!("the first {fit} do not fit: {error}"));
        }
        if fit < shortage.requested.len() && ask(&shortage.requested[..=fit]).is_ok() {
            return wrong(format!("more than the first {fit} fit: {error}"));
        }
        Ok(())
    }

    /// Takes all free SMs as one group, and returns its name.
    pub(super) fn take_rest(&mut self) -> Option<u32> {
        let request = SplitRequest::new().rest("rest").granularity(self.granularity);
        let split = self.sms.split(request).ok()?;
        let end = self.granularity();
        self.took(split, false, |of| {
            let request = format!("SplitRequest::new().rest(\"rest\"){end}");
            format!("{of} = device.resources().sm()?.split({request})?")
        });
        self.groups.last().map(|entry| entry.name)
    }

    /// Records the groups of a split of the device.
    fn took(&mut self, split: Split, structured: bool, line: impl FnOnce(&str) -> String) {
        let groups: Vec<SmGroup> = split.groups.into_iter().chain(split.remainder).collect();
        let share = |group| self.units.share(group, structured);
        let held: Vec<_> =
            groups.iter().map(|group| Held::take(&self.held, share(group))).collect();
        self.enter(groups, held, structured, None, line);
    }

    /// Records the group of a context that was closed.
    pub(super) fn closed(
        &mut self,
        partition: Arc<Partition>,
        group: SmGroup,
        close: impl fmt::Display,
    ) {
        let Some(&Lease { ref held, structured, set, .. }) = partition.lease() else { return };
        let (name, held) = (self.name(), Arc::clone(held));
        drop(partition);
        self.say(|| format!("let group{name} = {close};"));
        self.groups.push(GroupEntry { name, group, held, structured, set });
    }

    fn enter(
        &mut self,
        groups: Vec<SmGroup>,
        held: Vec<Arc<Held>>,
        structured: bool,
        set: Option<u32>,
        line: impl FnOnce(&str) -> String,
    ) {
        let mut names = Vec::new();
        for (group, held) in groups.into_iter().zip(held) {
            let name = self.name();
            names.push(format!("group{name}"));
            self.groups.push(GroupEntry { name, group, held, structured, set });
        }
        self.say(|| format!("{}; // its groups", line(&format!("let [{}]", names.join(", ")))));
    }

    pub(super) fn split_nested(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let wide =
            |entry: &&GroupEntry| !entry.structured && entry.group.sm_count() >= 2 * self.unit;
        let wide: Vec<u32> = self.groups.iter().filter(wide).map(|entry| entry.name).collect();
        let Some(at) = self.pick(n[0], &wide).filter(|_| self.composes()) else {
            return Ok(Done::Skipped);
        };
        let Some(entry) = self.take_group(wide[at]) else { return Ok(Done::Skipped) };
        let asked = self.asked(n[1], entry.group.floor(), entry.group.sm_count());
        let request = self.request(&asked);
        let GroupEntry { name, group, held, structured, set } = entry;
        let of = group.sm_count();
        match group.split(request) {
            Ok(split) => {
                let groups: Vec<_> = split.groups.into_iter().chain(split.remainder).collect();
                for (share, group) in asked.shares.iter().zip(&groups) {
                    check_share(
                        *share,
                        (group.floor(), group.sm_count()),
                        (of, self.unit.max(self.units.largest())),
                    )?;
                }
                // A split into shares holds the parent until its last child is dropped; another split consumes
                // the parent immediately.
                let is_level = asked.shares.iter().any(|share| !share.is_exclusive());
                let part = |group: &SmGroup| match is_level {
                    true => Held::within(&held),
                    false => held.part(self.units.share(group, false)),
                };
                let parts = groups.iter().map(part).collect();
                drop(held);
                let end = self.granularity();
                self.enter(groups, parts, false, set, |of| {
                    format!("{of} = group{name}.split({})?", asked.written(&end))
                });
                Ok(Done::Ok)
            }
            Err(error) => {
                let done = Done::refused(&error);
                let group = error.given;
                self.groups.push(GroupEntry { name, group, held, structured, set });
                Ok(done)
            }
        }
    }

    /// Removes a group from the list.
    pub(super) fn take_group(&mut self, name: u32) -> Option<GroupEntry> {
        let at = self.groups.iter().position(|entry| entry.name == name)?;
        Some(self.groups.remove(at))
    }

    pub(super) fn split_structured(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let free = self.free() == self.total && self.alone;
        if self.version < STRUCTURED || !free || self.groups.len() >= MOST || n[3].is_multiple_of(2)
        {
            return Ok(Done::Skipped);
        }
        let asked = Asked { rest: true, ..Asked::counts(&[16 * (1 + n[0] % 3), 32]) };
        let request = |_: &World, asked: &Asked| {
            SplitRequest::from(&asked.shares).rest("rest").coscheduled(2)
        };
        self.split_device(&asked, request, true, ".coscheduled(2)")
    }

    pub(super) fn split_nested_structured(&mut self, n: [u32; 4]) -> Done {
        if self.version < STRUCTURED || self.groups.len() >= MOST {
            return Done::Skipped;
        }
        let Some(at) = self.pick(n[0], &self.groups) else { return Done::Skipped };
        if self.groups[at].group.sm_count() < 8 {
            return Done::Skipped;
        }
        let GroupEntry { name, group, held, structured, set } = self.groups.remove(at);
        let count = (group.sm_count() / 2).max(4) / 4 * 4;
        let request = SplitRequest::from([count]).rest("rest").coscheduled(2);
        match group.split(request) {
            Ok(split) => {
                let groups: Vec<_> = split.groups.into_iter().chain(split.remainder).collect();
                let parts = groups.iter().map(|_| Held::within(&held)).collect();
                drop(held);
                let asked = Asked { rest: true, ..Asked::counts(&[count]) };
                self.enter(groups, parts, true, set, |of| {
                    let request = asked.written(".coscheduled(2)");
                    format!("{of} = group{name}.split({request})?")
                });
                Done::Ok
            }
            Err(error) => {
                let done = Done::refused(&error);
                let group = error.given;
                self.groups.push(GroupEntry { name, group, held, structured, set });
                done
            }
        }
    }

    pub(super) fn split_overlapping(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if self.groups.len() >= MOST || !self.composes() {
            return Ok(Done::Skipped);
        }
        let counts = [1, 2, 4].map(|units| units * self.unit);
        let asked = Asked::counts(&counts[..1 + n[0] as usize % 3]);
        let request = |world: &World, asked: &Asked| world.request(asked).overlapping(true);
        let end = format!("{}.overlapping(true)", self.granularity());
        self.split_device(&asked, request, false, &end)
    }

    /// Requests more SMs than exist, twice. The errors must be the same, and nothing may change.
    pub(super) fn split_refused(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let counts = vec![self.total / 2 + 1 + n[0] % 8; 2];
        let asked = Asked::counts(&counts);
        let ask = || self.sms.split(self.request(&asked));
        let before = self.sms.free_sm_count();
        let (first, second) = match (ask(), ask()) {
            (Err(first), Err(second)) => (first.to_string(), second.to_string()),
            _ => {
                return Err(Violation::new(
                    Rule::Answer,
                    format!("groups of {counts:?} SMs were taken from {}", self.total),
                ));
            }
        };
        if !self.alone {
            return Ok(Done::Ok);
        }
        // With faults, the second attempt may record work that the first could not.
        if first != second && !self.faults && !self.disturbed {
            return Err(Violation::new(
                Rule::Same,
                format!("one request was refused with two errors: {first}; {second}"),
            ));
        }
        // Quarantined SMs become free when a split retries their record.
        let may_grow = self.faults || self.disturbed;
        let free = self.sms.free_sm_count();
        if free != before && !(may_grow && free > before) {
            return Err(Violation::new(
                Rule::Refusal,
                format!("a refused split changed the free SMs from {before} to {free}"),
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
