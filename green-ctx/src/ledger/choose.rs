//! The arithmetic of choosing units: free units for all floors of a request together, and shared units up to
//! a ceiling. This module uses no driver and no locks.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::share::Share;
use super::units::UnitSet;

/// The units that make up one count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// The odd units (those that do not have the regular size), in ascending order.
    pub(super) odd: Vec<usize>,
    /// The number of regular units.
    pub(super) regulars: usize,
}

/// Picks free units for several shares together, each with at least the SMs of its floor. Returns `None` if
/// the free units do not suffice for the shares in any order.
///
/// If only regular units are used, counts are rounded up in the same way as by the driver. An odd unit, such
/// as the unit of 12 SMs on an H200, suits clusters less well. Odd units are used in the way that meets the
/// most counts exactly. If several ways are equally exact, the way with the fewest odd units wins, and then
/// the way with the fewest SMs. If ways are still equal, the smallest counts get the odd units, and among
/// equal counts the last count gets one.
pub(super) fn choose(
    counts: &[u32],
    size: u32,
    free: &UnitSet,
    wanted: &[Share],
) -> Option<Vec<Parts>> {
    let (mut available, mut odd) = (0, SmallVec::<[usize; 4]>::new());
    for unit in free.iter() {
        match counts[unit] == size {
            true => available += 1,
            false => odd.push(unit),
        }
    }
    odd.truncate(most_odd(wanted.len()));
    let rank = wanted.iter().enumerate().filter_map(|(group, share)| {
        let (least, most) = share.wanted();
        (least > 0).then_some(Rank { least, most, share: *share, group: Reverse(group) })
    });
    let mut rank: SmallVec<[Rank; 4]> = rank.collect();
    rank.sort_unstable();
    let ways = Ways { odd: &odd, rank: &rank };

    // Returns the weight of a way, or `None` if there are not enough regular units or a ceiling is exceeded.
    let weigh = |way: usize| {
        let (mut inexact, mut total, mut needed) = (0_usize, 0, 0);
        for (place, &Rank { least, most, .. }) in ways.rank.iter().enumerate() {
            let sum: u32 = ways.of(way, place).map(|unit| counts[unit]).sum();
            let regulars = least.saturating_sub(sum).div_ceil(size);
            needed += regulars as usize;
            if needed > available {
                return None;
            }
            let given = sum + regulars * size;
            if given > most {
                return None;
            }
            total += given;
            inexact += usize::from(given != least);
        }
        Some((inexact, ways.used(way), total))
    };
    // If regular units alone meet every count exactly, no other way is better.
    let best = match weigh(0) {
        Some((0, ..)) => 0,
        _ => (0..ways.count()).filter_map(|way| Some((weigh(way)?, way))).min()?.1,
    };

    let mut parts = vec![Parts { odd: Vec::new(), regulars: 0 }; wanted.len()];
    for (place, &Rank { least, group: Reverse(group), .. }) in ways.rank.iter().enumerate() {
        let odd: Vec<usize> = ways.of(best, place).collect();
        let sum: u32 = odd.iter().map(|unit| counts[*unit]).sum();
        let regulars = least.saturating_sub(sum).div_ceil(size) as usize;
        parts[group] = Parts { odd, regulars };
    }
    Some(parts)
}

/// A counted floor. Floors are ordered by size. Among floors of equal size, the last one in the request comes
/// first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    least: u32,
    most: u32,
    share: Share,
    group: Reverse<usize>,
}

/// Returns the number of odd units to consider. All devices so far have had at most one odd unit. If a device
/// had many odd units and a request had many counts, the first few odd units would be enough.
fn most_odd(counts: usize) -> usize {
    const WAYS: usize = 1 << 12;
    (1..=6).take_while(|odd| (counts + 1).pow(*odd) <= WAYS).count()
}

/// All ways of giving each odd unit to one count or to none.
///
/// Each way has a number. With `n` counts, each digit of that number in base `n + 1` selects the count that
/// gets one of the odd units.
struct Ways<'a> {
    odd: &'a [usize],
    rank: &'a [Rank],
}

impl Ways<'_> {
    fn count(&self) -> usize {
        (self.rank.len() + 1).pow(self.odd.len() as u32)
    }

    /// Returns the odd units with their digits: 0 if the unit is not used, otherwise the place of its count plus 1.
    /// Way 0, which uses no odd unit, is the most frequent one and has no digits.
    fn digits(&self, mut way: usize) -> impl Iterator<Item = (usize, usize)> {
        let base = self.rank.len() + 1;
        let odd = if way == 0 { &[] } else { self.odd };
        odd.iter().map(move |unit| {
            let digit = way % base;
            way /= base;
            (*unit, digit)
        })
    }

    /// Returns the odd units that the count at `place` gets.
    fn of(&self, way: usize, place: usize) -> impl Iterator<Item = usize> {
        self.digits(way).filter(move |(_, digit)| *digit == place + 1).map(|(unit, _)| unit)
    }

    fn used(&self, way: usize) -> usize {
        self.digits(way).filter(|(_, digit)| *digit > 0).count()
    }
}

/// Picks units above a floor from the units that may be shared, up to a total of `budget` SMs. Without a
/// budget, picks all units that may be shared.
///
/// The choice has as many SMs as possible. Among choices with equally many SMs, the preferred choice shares
/// the fewest SMs with other partitions. Further preferences, in this order, are the fewest odd units, the
/// units of an existing context, and the first units.
///
/// `load` is the number of partitions that share each unit, or `None` for a unit that cannot be shared.
/// `existing` yields the units of existing contexts, including the units of their floors.
pub(super) fn fill<'a>(
    counts: &[u32],
    size: u32,
    load: &[Option<u32>],
    budget: Option<u32>,
    floor: &[usize],
    existing: impl Iterator<Item = &'a [usize]>,
) -> Vec<usize> {
    let shared = |unit: &usize| load[*unit].is_some();
    let Some(budget) = budget else {
        return (0..counts.len()).filter(shared).collect();
    };
    let by_load = |is_regular: bool| {
        let of_kind = move |unit: &usize| (counts[*unit] == size) == is_regular;
        let mut units: Vec<usize> = (0..counts.len()).filter(shared).filter(of_kind).collect();
        units.sort_by_key(|unit| (load[*unit], *unit));
        units
    };
    let weigh = |units: &[usize]| {
        let sms: u32 = units.iter().map(|unit| counts[*unit]).sum();
        let sharing: u64 = units
            .iter()
            .map(|unit| u64::from(load[*unit].unwrap_or(0)) * u64::from(counts[*unit]))
            .sum();
        let odd = units.iter().filter(|unit| counts[**unit] != size).count();
        (Reverse(sms), sharing, odd)
    };
    let (regular, odd) = (by_load(true), by_load(false));
    // Each odd unit is used or not. Devices have had at most one so far; the first six are enough.
    let ways = (0..1_u32 << odd.len().min(6)).filter_map(|way| {
        let used = odd.iter().enumerate().filter(|(bit, _)| way >> bit & 1 == 1);
        let mut units: Vec<usize> = used.map(|(_, unit)| *unit).collect();
        let left = budget.checked_sub(units.iter().map(|unit| counts[*unit]).sum())?;
        units.extend(regular.iter().take((left / size) as usize));
        Some((weigh(&units), units))
    });
    let Some((best, mut units)) = ways.min_by_key(|(weight, _)| *weight) else {
        return Vec::new();
    };
    let fits = |existing: &[usize]| {
        let above: Vec<usize> =
            existing.iter().copied().filter(|unit| !floor.contains(unit)).collect();
        let fits = existing.len() == above.len() + floor.len()
            && above.iter().all(shared)
            && weigh(&above) == best;
        fits.then_some(above)
    };
    let mut existing = existing.filter_map(fits);
    if let Some(existing) = existing.next() {
        return existing;
    }
    units.sort_unstable();
    units
}

#[cfg(test)]
mod tests {
    use super::{Parts, Share, UnitSet, fill};

    fn choose(counts: &[u32], size: u32, free: &UnitSet, wanted: &[u32]) -> Option<Vec<Parts>> {
        let wanted: Vec<_> = wanted.iter().copied().map(Share::from).collect();
        super::choose(counts, size, free, &wanted)
    }

    /// The coarse units of an H200.
    fn h200() -> Vec<u32> {
        let mut counts = vec![8; 15];
        counts.push(12);
        counts
    }

    /// Returns the SMs that counts get if they are requested together.
    fn together(counts: &[u32], size: u32, wanted: &[u32]) -> Option<Vec<u32>> {
        let parts = choose(counts, size, &UnitSet::all(counts.len()), wanted)?;
        let given = parts.iter().map(|parts| {
            parts.odd.iter().map(|unit| counts[*unit]).sum::<u32>() + parts.regulars as u32 * size
        });
        Some(given.collect())
    }

    /// Returns the SMs that counts get if they are requested one after the other on one device.
    fn given(counts: &[u32], size: u32, requests: &[u32]) -> Vec<Option<u32>> {
        let mut free = UnitSet::all(counts.len());
        requests
            .iter()
            .map(|wanted| {
                let mut parts = choose(counts, size, &free, &[*wanted])?.remove(0);
                let regular = free.iter().filter(|unit| counts[*unit] == size);
                parts.odd.extend(regular.take(parts.regulars));
                free.take_out(&parts.odd);
                Some(parts.odd.iter().map(|unit| counts[*unit]).sum())
            })
            .collect()
    }

    #[test]
    fn counts_fit_in_whatever_order_they_come() {
        let h200 = h200();
        // One after the other, 115 takes all 15 regular units and leaves too little for 13.
        assert_eq!(given(&h200, 8, &[115, 13]), [Some(120), None]);
        assert_eq!(together(&h200, 8, &[115, 13]), Some(vec![116, 16]));
        assert_eq!(together(&h200, 8, &[13, 115]), Some(vec![16, 116]));
        // The odd unit makes 20 exact, whether it comes first or last.
        assert_eq!(together(&h200, 8, &[20, 20, 17]), Some(vec![24, 20, 24]));
        assert_eq!(together(&h200, 8, &[17, 8, 20]), Some(vec![24, 8, 20]));
        assert_eq!(together(&h200, 8, &[60, 60, 12]), None);
    }

    #[test]
    fn the_odd_unit_makes_counts_exact() {
        assert_eq!(given(&h200(), 8, &[8, 24, 100]), [Some(8), Some(24), Some(100)]);
        assert_eq!(given(&h200(), 8, &[12]), [Some(12)]);
        assert_eq!(given(&h200(), 8, &[132]), [Some(132)]);
        assert_eq!(given(&h200(), 8, &[133, u32::MAX]), [None, None]);
        // There is only one odd unit, so the second request of 20 is rounded.
        assert_eq!(given(&h200(), 8, &[20, 20]), [Some(20), Some(24)]);
    }

    #[test]
    fn other_counts_round_up_as_the_driver_does() {
        assert_eq!(given(&h200(), 8, &[1, 9, 17]), [Some(8), Some(16), Some(24)]);
        assert_eq!(given(&h200(), 8, &[120]), [Some(120)]);
        // Beyond 15 regular units, the odd unit is needed.
        assert_eq!(given(&h200(), 8, &[121]), [Some(124)]);
        assert_eq!(given(&h200(), 8, &[125]), [Some(132)]);
    }

    #[test]
    fn the_odd_unit_is_the_last_resort() {
        let mut requests = vec![8; 17];
        let mut expected = vec![Some(8); 15];
        expected.extend([Some(12), None]);
        assert_eq!(given(&h200(), 8, &requests), expected);
        requests.truncate(15);
        requests.push(13);
        expected.truncate(15);
        expected.push(None);
        assert_eq!(given(&h200(), 8, &requests), expected);
    }

    #[test]
    fn fine_units_give_every_even_count() {
        let counts = vec![2; 66];
        assert_eq!(given(&counts, 2, &[6, 7, 118]), [Some(6), Some(8), Some(118)]);
        assert_eq!(given(&counts, 2, &[132, 2]), [Some(132), None]);
    }

    #[test]
    fn several_odd_units_are_combined() {
        assert_eq!(given(&[4, 4, 6, 10], 4, &[16, 8]), [Some(16), Some(8)]);
        assert_eq!(given(&[4, 6, 6], 4, &[16, 1]), [Some(16), None]);
    }

    #[test]
    fn rounding_stops_at_the_most() {
        let within = |least: u32, most| {
            let wanted = [Share::from(least..=most)];
            let parts = super::choose(&h200(), 8, &UnitSet::all(16), &wanted)?.remove(0);
            Some((parts.odd, parts.regulars))
        };
        assert_eq!(within(17, 24), Some((vec![], 3)));
        assert_eq!(within(17, 20), Some((vec![15], 1)));
        assert_eq!(within(17, 18), None);
        assert_eq!(within(0, 0), Some((vec![], 0)));
    }

    /// Tries every way of giving each unit to a count or to none.
    fn by_trying(counts: &[u32], wanted: &[u32]) -> Option<usize> {
        let base = wanted.len() + 1;
        let inexact = |way: usize| {
            let mut given = vec![0; wanted.len()];
            for (unit, count) in counts.iter().enumerate() {
                let digit = way / base.pow(unit as u32) % base;
                if digit > 0 {
                    given[digit - 1] += count;
                }
            }
            let pairs = || given.iter().zip(wanted);
            pairs()
                .all(|(given, wanted)| given >= wanted)
                .then(|| pairs().filter(|(given, wanted)| given != wanted).count())
        };
        (0..base.pow(counts.len() as u32)).filter_map(inexact).min()
    }

    #[test]
    fn nothing_else_fits_more_or_is_more_exact() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..3000 {
            let size = *rng.choice(&[2, 4, 8]).expect("there are some");
            let mut counts = vec![size; rng.usize(1..=5)];
            counts.extend((0..rng.usize(0..=2)).map(|_| rng.u32(1..=12)));
            let wanted: Vec<u32> = (0..rng.usize(1..=3)).map(|_| rng.u32(1..=24)).collect();
            let given = together(&counts, size, &wanted);
            let inexact = given.map(|given| {
                assert!(given.iter().zip(&wanted).all(|(given, wanted)| given >= wanted));
                given.iter().zip(&wanted).filter(|(given, wanted)| given != wanted).count()
            });
            assert_eq!(inexact, by_trying(&counts, &wanted), "{wanted:?} of {counts:?}");
        }
    }

    const H200: [u32; 16] = [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 12];

    fn filled(load: &[Option<u32>], budget: Option<u32>, existing: &[&[usize]]) -> Vec<usize> {
        fill(&H200, 8, load, budget, &[], existing.iter().copied())
    }

    #[test]
    fn ceilings_are_rounded_down() {
        let all = [Some(0); 16];
        let sms = |units: Vec<usize>| units.iter().map(|unit| H200[*unit]).sum::<u32>();
        for (budget, given) in
            [(7, 0), (8, 8), (11, 8), (12, 12), (100, 100), (131, 124), (999, 132)]
        {
            assert_eq!(sms(filled(&all, Some(budget), &[])), given, "{budget}");
        }
        assert_eq!(sms(filled(&all, None, &[])), 132);
    }

    #[test]
    fn the_least_is_shared() {
        let mut load = [Some(0); 16];
        assert_eq!(filled(&load, Some(64), &[]), [0, 1, 2, 3, 4, 5, 6, 7]);
        load[..8].fill(Some(1));
        assert_eq!(filled(&load, Some(64), &[]), [0, 8, 9, 10, 11, 12, 13, 14]);
        (load[0], load[1]) = (None, Some(2));
        assert_eq!(filled(&load, Some(72), &[]), [2, 3, 8, 9, 10, 11, 12, 13, 14]);
    }

    #[test]
    fn a_context_that_there_is_decides_between_equals() {
        let mut load = [Some(0); 16];
        assert_eq!(filled(&load, Some(16), &[&[3], &[4, 5]]), [4, 5]);
        load[4] = Some(1);
        assert_eq!(filled(&load, Some(16), &[&[3], &[4, 5]]), [0, 1]);
        // The partition's floor is part of the existing context.
        let above = fill(&H200, 8, &load, Some(16), &[0], [&[0, 6, 7][..]].into_iter());
        assert_eq!(above, [6, 7]);
    }
}
