//! Which units fill a share up to its ceiling. Pure arithmetic: no driver, no locks.

use std::cmp::Reverse;

/// Picks units above a floor, of those that may be shared: as many SMs as the budget allows; of such
/// choices the one that shares the fewest SMs with others, then the one with the fewest odd units, then
/// the units of a context that there is, then the first ones. Without a budget it is all of them.
///
/// `load` says how many share each unit, `None` where none may. `existing` are the units of contexts,
/// those of the floor included.
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
    // Each odd unit is used or not; devices have at most one so far, and of many the first few do.
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
    use super::fill;

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
        // With a floor of its own, which is part of the context.
        let above = fill(&H200, 8, &load, Some(16), &[0], [&[0, 6, 7][..]].into_iter());
        assert_eq!(above, [6, 7]);
    }
}
