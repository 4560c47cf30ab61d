//! The arms that a search may try.

use std::collections::HashSet;

use green_ctx::resource::UnitSizes;

use crate::arm::{Arm, ArmKind, Part, ceilings};

/// The arms that a search may try.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(crate) pieces: UnitSizes,
    pub(crate) jobs: usize,
    /// The step between partition sizes, in SMs. A partition that contains odd units need not be a multiple of the
    /// step.
    pub(crate) step: u32,
    /// The minimum floor of each job, in SMs: whole units, or 0.
    pub(crate) floors: Vec<u32>,
    pub(crate) left_out: Vec<ArmKind>,
}

impl Space {
    pub(crate) fn allows(&self, kind: ArmKind) -> bool {
        !self.left_out.contains(&kind)
    }

    /// Returns whether an arm gives every job its minimum floor.
    pub(crate) fn holds_floors(&self, arm: &Arm) -> bool {
        let has = |(part, least): (&Part, &u32)| part.floor >= *least;
        match arm.kind() {
            ArmKind::Partition => arm.parts().iter().zip(&self.floors).all(has),
            _ => self.floors.iter().all(|least| *least == 0),
        }
    }

    /// Returns the arms without partitions.
    pub(crate) fn unpartitioned(&self) -> Vec<Arm> {
        let sms = self.pieces.sms;
        let mut arms = Vec::new();
        if self.allows(ArmKind::Sequential) {
            arms.push(Arm::sequential(self.jobs, sms));
        }
        if self.allows(ArmKind::Streams) {
            arms.push(Arm::streams(self.jobs, sms));
        }
        if self.allows(ArmKind::Priority) {
            arms.extend(orders(self.jobs).into_iter().map(|order| Arm::priority(order, sms)));
        }
        arms
    }

    /// Returns a few arms whose partition sizes differ widely.
    pub(crate) fn initial(&self) -> Vec<Arm> {
        if !self.allows(ArmKind::Partition) {
            return Vec::new();
        }
        let arms = if self.jobs == 2 { self.initial_pairs() } else { self.initial_parts() };
        self.allowed(arms)
    }

    /// Returns the arms whose partition sizes differ from those of `arm` by about `step` SMs.
    pub(crate) fn neighbours(&self, arm: &Arm, step: u32) -> Vec<Arm> {
        let priorities = arm.priorities();
        if !self.allows(ArmKind::Partition) {
            return Vec::new();
        }
        let arms =
            if self.jobs == 2 { self.near_pairs(arm, step) } else { self.near_parts(arm, step) };
        let arms = arms.into_iter().map(|near| near.with_priorities(priorities.to_vec()));
        self.allowed(arms.collect())
    }

    /// Returns one arm per job. Each arm has the partitions of `arm`, and gives one job a higher priority than the
    /// others.
    pub(crate) fn with_priorities(&self, arm: &Arm) -> Vec<Arm> {
        if !self.allows(ArmKind::Priority) {
            return Vec::new();
        }
        let first = |job: usize| (0..self.jobs).map(|other| -i32::from(other == job)).collect();
        (0..self.jobs).map(|job| arm.with_priorities(first(job))).collect()
    }

    /// Returns the arms from which the search chooses by predicting their values.
    pub(crate) fn coarse(&self) -> Vec<Arm> {
        match self.jobs {
            2 => self.every_pair(),
            3 => self.grid(&[0, 1, 2, 3, 4, 6, 8]),
            _ => self.grid(&[0, 2, 4, 8]),
        }
    }

    fn every_pair(&self) -> Vec<Arm> {
        let [a, b] = self.ladders();
        let pairs = a.iter().flat_map(|a| b.iter().map(move |b| [*a, *b]));
        self.allowed(pairs.map(|pair| Arm::ceilings(pair, self.pieces.sms)).collect())
    }

    /// Returns every arm whose floors and ceilings are all among these eighths of the SMs.
    fn grid(&self, eighths: &[u32]) -> Vec<Arm> {
        if !self.allows(ArmKind::Partition) {
            return Vec::new();
        }
        let count = |eighths: u32| match eighths {
            0 => 0,
            8 => self.pieces.sms,
            eighths => self.whole(self.pieces.sms * eighths / 8),
        };
        let parts: Vec<Part> = eighths
            .iter()
            .flat_map(|floor| eighths.iter().map(move |ceiling| [*floor, *ceiling]))
            .filter(|[floor, ceiling]| floor <= ceiling && *ceiling > 0)
            .map(|[floor, ceiling]| Part { floor: count(floor), ceiling: count(ceiling) })
            .collect();
        let mut divisions: Vec<Vec<Part>> = vec![Vec::new()];
        for _ in 0..self.jobs {
            let longer = |division: &Vec<Part>| {
                let floors: u32 = division.iter().map(|part| part.floor).sum();
                let fitting =
                    parts.iter().filter(move |part| floors + part.floor <= self.pieces.sms);
                let division = division.clone();
                fitting
                    .map(move |part| [division.as_slice(), &[*part]].concat())
                    .collect::<Vec<_>>()
            };
            divisions = divisions.iter().flat_map(longer).collect();
        }
        let is_tidy = |arm: &Arm, parts: &[Part]| arm.parts() == parts;
        let arms = divisions
            .into_iter()
            .filter_map(|parts| self.tidy(parts.clone()).filter(|arm| is_tidy(arm, &parts)));
        self.allowed(arms.collect())
    }

    /// Removes duplicates and arms that may not be tried. Also removes arms with partitions in which every job may use
    /// all SMs, because such arms are the same as plain streams.
    fn allowed(&self, mut arms: Vec<Arm>) -> Vec<Arm> {
        let mut seen = HashSet::new();
        arms.retain(|arm| {
            let divides = arm.parts().iter().any(|part| part.ceiling < self.pieces.sms);
            divides && self.allows(arm.kind()) && self.holds_floors(arm) && seen.insert(arm.clone())
        });
        arms
    }

    fn ladders(&self) -> [Vec<u32>; 2] {
        [0, 1].map(|job| ceilings(self.pieces, job, self.step))
    }

    fn initial_pairs(&self) -> Vec<Arm> {
        let sms = self.pieces.sms;
        let [a, b] = self.ladders();
        let some = |ladder: &[u32]| -> Vec<u32> {
            let last = ladder.len() - 1;
            let mut counts: Vec<u32> =
                (0..=4).map(|quarter| ladder[(last * quarter + 2) / 4]).collect();
            counts.dedup();
            counts
        };
        let (some_a, some_b) = (some(&a), some(&b));
        let pairs = some_a.iter().flat_map(|a| some_b.iter().map(move |b| [*a, *b]));
        // Divisions that leave many SMs idle are not worth trying first.
        let mut arms: Vec<Arm> = pairs
            .filter(|[a, b]| a + b >= sms - sms / 8)
            .map(|pair| Arm::ceilings(pair, sms))
            .collect();
        // Jobs that may use nearly everything: combined with a priority, a slightly lower ceiling has a large effect.
        let cap = |ladder: &[u32]| {
            let below = ladder.iter().rev().find(|count| **count <= sms - sms / 8);
            below.copied().unwrap_or(sms)
        };
        let (cap_a, cap_b) = (cap(&a), cap(&b));
        let capped = [[cap_a, sms], [sms, cap_b], [cap_a, cap_b]];
        arms.extend(capped.map(|pair| Arm::ceilings(pair, sms)));
        // Divisions in which one job has its minimum floor or, without one, little.
        let least = |job: usize, some: &[u32]| match self.floors[job] {
            0 => some[0],
            floor => floor,
        };
        let must = [least(0, &some_a), least(1, &some_b)];
        arms.push(Arm::ceilings([sms - must[1].min(sms), must[1]], sms));
        arms.push(Arm::ceilings([must[0], sms - must[0].min(sms)], sms));
        arms.retain(|arm| arm.parts().iter().all(|part| part.ceiling > 0));
        arms
    }

    fn near_pairs(&self, arm: &Arm, step: u32) -> Vec<Arm> {
        let ladders = self.ladders();
        let steps = (step / self.step.max(self.pieces.unit)).max(1) as isize;
        let place = |job: usize| {
            let ceiling = arm.parts()[job].ceiling;
            ladders[job].partition_point(|count| *count < ceiling) as isize
        };
        let at = |job: usize, place: isize| -> Option<u32> {
            ladders[job].get(usize::try_from(place).ok()?).copied()
        };
        let moves = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1)];
        let near = moves.iter().filter_map(|(a, b)| {
            let ceilings = [at(0, place(0) + a * steps)?, at(1, place(1) + b * steps)?];
            Some(Arm::ceilings(ceilings, self.pieces.sms))
        });
        near.collect()
    }

    fn initial_parts(&self) -> Vec<Arm> {
        let (sms, jobs) = (self.pieces.sms, self.jobs as u32);
        let even = |floor: u32, ceiling: u32| vec![Part { floor, ceiling }; self.jobs];
        let all = |job: usize| -> Vec<Vec<Part>> {
            let with = |own: Part, others: Part| {
                (0..self.jobs).map(|other| if other == job { own } else { others }).collect()
            };
            let part = |floor, ceiling| Part { floor, ceiling };
            let (half, quarter) = (self.whole(sms / 2), self.whole(sms / 4));
            vec![
                with(part(half, half), part(0, sms - half)),
                with(part(quarter, quarter), part(0, sms - quarter)),
                with(part(quarter, sms), part(0, sms - quarter)),
                // A job that would take more than it is worth is held back.
                with(part(0, self.whole(sms / 8)), part(0, sms)),
                with(part(0, quarter), part(0, sms)),
                with(part(0, half), part(0, sms)),
                with(part(half, half), {
                    let each = self.whole((sms - half) / (jobs - 1));
                    part(each, each)
                }),
            ]
        };
        let each = self.whole(sms / jobs);
        let mut parts =
            vec![even(0, sms), even(each, each), even(self.whole(sms / (2 * jobs)), sms)];
        parts.extend((0..self.jobs).flat_map(all));
        // The minimum floors, with and without shared SMs.
        let least =
            |floor: &u32| Part { floor: *floor, ceiling: if *floor > 0 { *floor } else { sms } };
        let least: Vec<Part> = self.floors.iter().map(least).collect();
        parts.push(least.iter().map(|part| Part { ceiling: sms, ..*part }).collect());
        parts.push(least);
        parts.into_iter().filter_map(|parts| self.tidy(parts)).collect()
    }

    fn near_parts(&self, arm: &Arm, step: u32) -> Vec<Arm> {
        let step = self.whole(step.max(self.step).max(self.pieces.unit));
        let mut near = Vec::new();
        let mut add = |change: &dyn Fn(&mut Vec<Part>)| {
            let mut parts = arm.parts().to_vec();
            change(&mut parts);
            near.extend(self.tidy(parts));
        };
        for job in 0..self.jobs {
            add(&|parts| parts[job].ceiling += step);
            add(&|parts| parts[job].ceiling = parts[job].ceiling.saturating_sub(step));
            add(&|parts| parts[job].floor += step);
            add(&|parts| parts[job].floor = parts[job].floor.saturating_sub(step));
            add(&|parts| {
                parts[job].floor += step;
                parts[job].ceiling += step;
            });
            for other in (0..self.jobs).filter(|other| *other != job) {
                add(&|parts| {
                    parts[job].floor += step;
                    parts[job].ceiling += step;
                    parts[other].floor = parts[other].floor.saturating_sub(step);
                    parts[other].ceiling = parts[other].ceiling.saturating_sub(step);
                });
            }
        }
        near
    }

    /// Lowers ceilings so that no job can use SMs of another job's floor. Returns `None` if the floors do not fit or a
    /// job is left without SMs.
    fn tidy(&self, mut parts: Vec<Part>) -> Option<Arm> {
        let sms = self.pieces.sms;
        for part in &mut parts {
            part.ceiling = part.ceiling.min(sms);
            part.floor = part.floor.min(part.ceiling);
        }
        let floors: u32 = parts.iter().map(|part| part.floor).sum();
        if floors > sms {
            return None;
        }
        for (job, part) in parts.iter_mut().enumerate() {
            let most = part.ceiling.min(sms - (floors - part.floor));
            // A minimum floor may have the odd unit, whichever job it belongs to.
            part.ceiling = self.pieces.round_down(most, job == 0).max(part.floor);
        }
        let holds = |part: &Part| part.ceiling > 0 && part.floor <= part.ceiling;
        parts.iter().all(holds).then(|| Arm::partition(parts))
    }

    /// Rounds a number of SMs down to whole units, but returns at least the SMs of one unit.
    fn whole(&self, sms: u32) -> u32 {
        self.pieces.round_down(sms, false).max(self.pieces.unit.max(1))
    }
}

/// Returns every order of the jobs' priorities. As in CUDA, a lower number is a higher priority.
fn orders(jobs: usize) -> Vec<Vec<i32>> {
    let mut orders: Vec<Vec<i32>> = vec![Vec::new()];
    for level in 0..jobs {
        let insert = |order: &Vec<i32>| -> Vec<Vec<i32>> {
            (0..=order.len())
                .map(|place| {
                    let mut longer = order.clone();
                    longer.insert(place, -(level as i32));
                    longer
                })
                .collect()
        };
        orders = orders.iter().flat_map(insert).collect();
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(jobs: usize, floors: Vec<u32>) -> Space {
        let pieces = UnitSizes::of(&[[8; 15].as_slice(), &[12]].concat());
        Space { pieces, jobs, step: 8, floors, left_out: Vec::new() }
    }

    #[test]
    fn each_order_of_priorities_is_there_once() {
        assert_eq!(orders(2), [[-1, 0], [0, -1]]);
        let three: HashSet<Vec<i32>> = orders(3).into_iter().collect();
        assert_eq!((three.len(), orders(3).len()), (6, 6));
    }

    #[test]
    fn parts_fit_together() {
        for jobs in 2..=4 {
            let space = space(jobs, vec![0; jobs]);
            let mut arms = space.initial();
            for step in [64, 32, 16, 8, 8, 8] {
                let some = arms.iter().take(20);
                arms = some.flat_map(|arm| space.neighbours(arm, step)).collect();
                assert!(!arms.is_empty());
                for arm in &arms {
                    let floors: u32 = arm.parts().iter().map(|part| part.floor).sum();
                    assert!(floors <= 132, "{arm:?}");
                    for part in arm.parts() {
                        assert!(part.floor <= part.ceiling && part.ceiling > 0, "{arm:?}");
                        assert!(part.ceiling + floors - part.floor <= 132, "{arm:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_division_comes_twice_or_gives_everybody_everything() {
        for (jobs, coarse) in [(2, 255), (3, 4006)] {
            let space = space(jobs, vec![0; jobs]);
            let all = [space.initial(), space.coarse()];
            for arms in &all {
                let mut seen = HashSet::new();
                for arm in arms {
                    assert!(seen.insert(arm), "{arm:?}");
                    assert!(arm.parts().iter().any(|part| part.ceiling < 132), "{arm:?}");
                }
            }
            assert_eq!(all[1].len(), coarse, "{jobs} jobs");
        }
    }
}
