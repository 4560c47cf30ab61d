//! What must hold after every call, in thousands of random sequences of calls.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastrand::Rng;

use super::account::Ledger;
use super::assign::{Chosen, Origin};
use super::cut::{Cut, Granularity, Placement, UnitCounts};
use super::recycle::Idle;
use super::refusal::Refusal;
use super::request::SplitRequest;

thread_local! {
    /// Whether a call of the ledger runs, as under its lock.
    static LOCKED: Cell<bool> = const { Cell::new(false) };
}

/// What stands for a fence, and for a context. Its end may run foreign code.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Token(u32);

impl Drop for Token {
    fn drop(&mut self) {
        assert!(!LOCKED.get() || std::thread::panicking(), "it ended under the ledger's lock");
    }
}

type Fence = Arc<Token>;

struct Group {
    name: Arc<str>,
    placement: Placement,
    fences: Vec<Fence>,
}

/// A ledger, and what it must say.
struct World {
    rng: Rng,
    ledger: Ledger<Fence, Token>,
    cuts: Vec<(Cut, UnitCounts)>,
    /// The cut that is in use, or was last.
    cut: usize,
    /// Whether any group was taken yet.
    is_cut: bool,
    groups: Vec<Group>,
    quarantined: Vec<Group>,
    /// What the next owner of each unit waits for.
    pending: BTreeMap<usize, BTreeSet<Fence>>,
    tokens: u32,
    /// Everything that the ledger answered.
    answers: Vec<String>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let size = *rng.choice(&[2, 4, 8]).expect("there are some");
        let mut counts = vec![size; rng.usize(1..=16)];
        counts.extend((0..rng.usize(0..=2)).map(|_| rng.u32(1..=12)));
        let total: u32 = counts.iter().sum();
        let fine = vec![1; total as usize];
        let cuts = [(Granularity::Coarse, counts, size), (Granularity::Fine, fine, 1)];
        let cuts = cuts
            .map(|(cut, counts, size)| (Cut::smallest(cut), UnitCounts::new(counts.into(), size)));
        World {
            rng,
            ledger: Ledger::default(),
            cuts: cuts.into(),
            cut: 0,
            is_cut: false,
            groups: Vec::new(),
            quarantined: Vec::new(),
            pending: BTreeMap::new(),
            tokens: 0,
            answers: Vec::new(),
        }
    }

    /// Calls the ledger as under its lock. What it returns ends afterwards.
    fn call<R>(&mut self, call: impl FnOnce(&mut Ledger<Fence, Token>) -> R) -> R {
        LOCKED.set(true);
        let result = call(&mut self.ledger);
        LOCKED.set(false);
        result
    }

    fn token(&mut self) -> Token {
        self.tokens += 1;
        Token(self.tokens)
    }

    fn request(&mut self, most: u32) -> SplitRequest {
        let mut request = SplitRequest::new();
        for index in 0..self.rng.usize(0..=4) {
            let count = Some(self.rng.u32(1..=most + 2)).filter(|_| self.rng.u32(..8) > 0);
            request = request.group(format!("p{index}"), count);
        }
        if self.rng.u32(..4) == 0 { request.rest("rest") } else { request }
    }

    fn total(&self) -> u32 {
        self.cuts[0].1.total()
    }

    fn split(&mut self) {
        let which = if self.rng.u32(..6) == 0 { 1 - self.cut } else { self.cut };
        let (cut, units) = self.cuts[which].clone();
        let most = self.rng.u32(1..=self.total());
        let request = self.request(most).overlapping(self.rng.u32(..10) == 0);
        let chosen = self.call(|ledger| ledger.choose(&units, &cut, &request));
        self.answers.push(format!("{chosen:?}"));
        let again = self.call(|ledger| ledger.choose(&units, &cut, &request));
        assert_eq!(chosen, again, "the same call has another answer");
        let Ok(chosen) = chosen else {
            let nobody_has_any = self.groups.is_empty() && self.quarantined.is_empty();
            return self.check_refusal(which, &request, chosen, nobody_has_any);
        };
        check_choice(&units, &request, &chosen);
        if request.overlapping {
            return chosen.iter().for_each(|group| self.leave(which, &group.placement));
        }
        if chosen.is_empty() {
            return;
        }
        if self.groups.is_empty() && self.quarantined.is_empty() && which != self.cut {
            // Of units of another cut nobody knows where they are.
            let all: BTreeSet<Fence> = self.pending.values().flatten().cloned().collect();
            let count = units.counts().len();
            self.pending = (0..count).map(|unit| (unit, all.clone())).collect();
            self.cut = which;
        }
        self.is_cut = true;
        for group in chosen {
            let taken = self.call(|ledger| ledger.take(&units, &group));
            let mut expected = BTreeSet::new();
            for unit in &group.placement.members {
                expected.extend(self.pending.remove(unit).unwrap_or_default());
            }
            let fences: BTreeSet<Fence> = taken.fences.iter().cloned().collect();
            assert_eq!(fences.len(), taken.fences.len(), "a fence came twice");
            assert_eq!(fences, expected, "the next owner waits for other work");
            let Chosen { name, placement, .. } = group;
            self.groups.push(Group { name, placement, fences: taken.fences });
        }
    }

    fn check_refusal(
        &mut self,
        which: usize,
        request: &SplitRequest,
        refused: Result<Vec<Chosen>, Refusal>,
        nobody_has_any: bool,
    ) {
        let (cut, units) = self.cuts[which].clone();
        match refused {
            Err(Refusal::CutInUse { .. }) => {
                assert!(which != self.cut && !nobody_has_any && !request.overlapping);
            }
            Err(Refusal::NotEnoughSms(shortage)) => {
                let held: u32 = shortage.holders.iter().map(|holder| holder.sm_count).sum();
                let total = shortage.free + held + shortage.quarantined;
                assert_eq!(total, self.total(), "SMs were lost: {shortage}");
                assert!(shortage.fit < request.groups.len());
                if !shortage.nearest.is_empty() {
                    assert_eq!(shortage.nearest.len(), request.groups.len());
                    let nearest =
                        SplitRequest::from(&shortage.nearest).overlapping(request.overlapping);
                    let fits = self.call(|ledger| ledger.choose(&units, &cut, &nearest));
                    assert!(fits.is_ok(), "{nearest:?} was said to fit");
                }
            }
            other => panic!("{other:?}"),
        }
    }

    /// A group, taken out of the list.
    fn pick(&mut self) -> Option<Group> {
        if self.groups.is_empty() {
            return None;
        }
        let index = self.rng.usize(..self.groups.len());
        Some(self.groups.swap_remove(index))
    }

    /// What the work of a group leaves.
    fn fences_of(&mut self, group: &Group) -> Vec<Fence> {
        let kept = self.rng.usize(..=group.fences.len());
        let mut fences = group.fences[..kept].to_vec();
        for _ in 0..self.rng.u32(..3) {
            fences.push(Arc::new(self.token()));
        }
        fences
    }

    fn free(&mut self, group: &Group, fences: &[Fence]) {
        for unit in &group.placement.members {
            self.pending.entry(*unit).or_default().extend(fences.iter().cloned());
        }
    }

    /// A group that held nothing leaves work on units, whoever has them.
    fn leave(&mut self, which: usize, placement: &Placement) {
        let fences = [Arc::new(self.token()), Arc::new(self.token())];
        self.call(|ledger| ledger.leave_fences(placement, &fences));
        let all = 0..self.cuts[self.cut].1.counts().len();
        let is_known = self.is_cut && which == self.cut;
        let units = all.filter(|unit| !is_known || placement.members.contains(unit));
        for unit in units {
            self.pending.entry(unit).or_default().extend(fences.iter().cloned());
        }
    }

    fn give_back(&mut self) {
        let Some(group) = self.pick() else { return };
        let fences = self.fences_of(&group);
        let names = self.call(|ledger| ledger.give_back(&group.placement.members, &fences));
        assert!(names.only().is_some_and(|name| Arc::ptr_eq(name, &group.name)));
        self.free(&group, &fences);
    }

    fn quarantine(&mut self) {
        let Some(group) = self.pick() else { return };
        let names = self.call(|ledger| ledger.quarantine(&group.placement.members));
        assert!(names.only().is_some_and(|name| Arc::ptr_eq(name, &group.name)));
        self.quarantined.push(group);
    }

    fn end_quarantine(&mut self) {
        let Some(group) = self.quarantined.pop() else { return };
        let fences = self.fences_of(&group);
        self.call(|ledger| ledger.end_quarantine(&group.placement.members, &fences));
        self.free(&group, &fences);
    }

    /// Divides a group, and gives back what is left of it.
    fn divide(&mut self) {
        let Some(mut group) = self.pick() else { return };
        let units = self.cuts[self.cut].1.clone();
        let size = group.placement.members.len();
        let most = self.rng.u32(1..=24);
        let request = self.request(most);
        let apart: Vec<usize> = group.placement.members[..self.rng.usize(..=size) / 4].to_vec();
        let chosen = self.call(|ledger| {
            ledger.choose_within(&units, &group.placement, &group.name, &request, &[], &apart)
        });
        self.answers.push(format!("{chosen:?}"));
        let Ok(chosen) = chosen else { return self.groups.push(group) };
        check_choice(&units, &request, &chosen);
        for child in chosen {
            let members = &child.placement.members;
            assert!(members.iter().all(|unit| group.placement.members.contains(unit)));
            assert!(members.iter().all(|unit| !apart.contains(unit)));
            let names = self.call(|ledger| ledger.rename(&child));
            group.placement.members.retain(|unit| !members.contains(unit));
            let ended = group.placement.members.is_empty();
            assert_eq!(names.only(), Some(&group.name).filter(|_| ended));
            let Chosen { name, placement, .. } = child;
            self.groups.push(Group { name, placement, fences: group.fences.clone() });
        }
        if group.placement.members.is_empty() {
            return;
        }
        self.groups.push(group);
    }

    /// Some work ends.
    fn settle(&mut self) {
        let mut done = self.call(|ledger| ledger.fences());
        self.rng.shuffle(&mut done);
        done.truncate(self.rng.usize(..=done.len()));
        let taken = self.call(|ledger| ledger.take_fences(&done));
        assert_eq!(taken.len(), done.len(), "each fence is kept once");
        self.pending.values_mut().for_each(|fences| fences.retain(|fence| !done.contains(fence)));
    }

    fn recycle(&mut self) {
        let Some(group) = self.pick() else { return };
        let placement = group.placement.clone();
        let counts = self.cuts[self.cut].1.counts();
        let sm_count = placement.members.iter().map(|unit| counts[*unit]).sum();
        let limit = self.rng.usize(..4);
        if self.rng.bool() {
            let raw = self.token();
            let idle = Idle { placement, workqueue: None, sm_count, raw };
            drop(self.call(|ledger| ledger.recycler.put(idle)));
        } else {
            let found = self.call(|ledger| ledger.recycler.take(&placement, None));
            assert!(found.is_none_or(|idle| idle.placement == group.placement));
        }
        if self.rng.u32(..8) == 0 {
            drop(self.call(|ledger| ledger.recycler.set_limit(limit)));
            assert!(self.ledger.recycler.counts().idle <= limit);
        }
        self.groups.push(group);
    }

    /// The account is the model's.
    fn check(&self) {
        let counts = self.cuts[self.cut].1.counts();
        let sum = |groups: &[Group]| {
            let members = groups.iter().flat_map(|group| &group.placement.members);
            members.map(|unit| counts[*unit]).sum::<u32>()
        };
        let mut members: Vec<usize> = self
            .groups
            .iter()
            .chain(&self.quarantined)
            .flat_map(|group| group.placement.members.iter().copied())
            .collect();
        members.sort_unstable();
        assert!(members.windows(2).all(|pair| pair[0] < pair[1]), "a unit has two owners");
        let (held, quarantined) = (sum(&self.groups), sum(&self.quarantined));
        match self.ledger.sm_counts() {
            None => assert_eq!(held + quarantined, 0),
            Some(sms) => {
                assert_eq!((sms.held, sms.quarantined), (held, quarantined));
                assert_eq!(sms.free + sms.held + sms.quarantined, self.total());
            }
        }
        let pending: BTreeSet<Fence> = self.pending.values().flatten().cloned().collect();
        let kept = self.ledger.fences();
        assert_eq!(kept.len(), pending.len(), "a fence is kept twice, or for nobody");
        assert_eq!(kept.into_iter().collect::<BTreeSet<_>>(), pending);
    }

    fn run(mut self, steps: usize) -> Vec<String> {
        for _ in 0..steps {
            match self.rng.u32(..12) {
                0..=3 => self.split(),
                4..=5 => self.give_back(),
                6 => self.quarantine(),
                7 => self.end_quarantine(),
                8 => self.divide(),
                9 => self.settle(),
                10 => self.recycle(),
                _ => (0..3).for_each(|_| self.give_back()),
            }
            self.check();
        }
        self.answers
    }
}

/// Groups of a request are disjoint, and none is smaller than asked.
fn check_choice(units: &UnitCounts, request: &SplitRequest, chosen: &[Chosen]) {
    let mut taken = BTreeSet::new();
    for group in chosen {
        assert!(!group.placement.members.is_empty());
        assert!(group.placement.members.is_sorted());
        assert!(group.placement.members.iter().all(|unit| taken.insert(*unit)), "groups overlap");
        let counts = group.placement.members.iter().map(|unit| units.counts()[*unit]);
        assert_eq!(counts.sum::<u32>(), group.sm_count);
        if let Origin::Requested(Some(wanted)) = group.origin {
            assert!(group.sm_count >= wanted, "{group:?}");
        }
    }
    let requested = chosen.iter().filter(|group| group.origin != Origin::Remainder);
    assert_eq!(requested.count(), request.groups.len());
}

#[test]
fn every_sequence_keeps_the_account() {
    for seed in 0..2500 {
        let answers = World::new(seed).run(30);
        // The same calls give the same answers.
        if seed % 8 == 0 {
            assert_eq!(World::new(seed).run(30), answers, "seed {seed}");
        }
    }
}
