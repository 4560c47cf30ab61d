//! Which free units make up a count. Pure arithmetic: no driver, no locks.

/// Picks free units whose SMs add up to at least `wanted`.
///
/// Exactly `wanted` comes first, then units of the regular `size` alone, rounded up as the driver
/// itself would; an odd unit, such as the 12 SMs that are left over on an H200, is used where it
/// makes the count exact or where nothing else is left, since it is worse for clusters. Of equal
/// choices the units first in order win.
///
/// Returns the units' indices, in order, or `None` when what is free does not suffice.
pub(crate) fn choose(counts: &[u32], size: u32, free: &[bool], wanted: u32) -> Option<Vec<usize>> {
    let is_free = |index: &usize| free[*index];
    let regular = || (0..counts.len()).filter(is_free).filter(|index| counts[*index] == size);
    let available = u32::try_from(regular().count()).unwrap_or(u32::MAX);
    let odd: Vec<usize> = (0..counts.len())
        .filter(is_free)
        .filter(|index| counts[*index] != size)
        .take(MOST_ODD)
        .collect();

    let mut best: Option<Candidate> = None;
    for subset in 0..1u32 << odd.len() {
        let sum: u32 = members(&odd, subset).map(|index| counts[index]).sum();
        let regulars = wanted.saturating_sub(sum).div_ceil(size);
        if regulars > available {
            continue;
        }
        let total = sum + regulars * size;
        let candidate = Candidate {
            inexact: total != wanted,
            odd: subset.count_ones(),
            total,
            subset,
            regulars,
        };
        if best.as_ref().is_none_or(|best| candidate < *best) {
            best = Some(candidate);
        }
    }
    let best = best?;
    let mut chosen: Vec<usize> =
        regular().take(best.regulars as usize).chain(members(&odd, best.subset)).collect();
    if best.subset != 0 {
        chosen.sort_unstable();
    }
    Some(chosen)
}

/// Devices have at most one odd unit so far; with more, the first few are enough.
const MOST_ODD: usize = 6;

/// A way to make up the count; the least is the best.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    inexact: bool,
    odd: u32,
    total: u32,
    subset: u32,
    regulars: u32,
}

fn members(odd: &[usize], subset: u32) -> impl Iterator<Item = usize> + '_ {
    odd.iter().enumerate().filter(move |(bit, _)| subset & 1 << bit != 0).map(|(_, index)| *index)
}

#[cfg(test)]
mod tests {
    use super::choose;

    /// An H200 in coarse units.
    fn h200() -> Vec<u32> {
        let mut counts = vec![8; 15];
        counts.push(12);
        counts
    }

    /// Chooses, and marks what was chosen as taken.
    fn take(counts: &[u32], size: u32, free: &mut [bool], wanted: u32) -> Option<Vec<usize>> {
        let chosen = choose(counts, size, free, wanted)?;
        chosen.iter().for_each(|index| free[*index] = false);
        Some(chosen)
    }

    /// The counts given for requests, one after the other on one device.
    fn given(counts: &[u32], size: u32, requests: &[u32]) -> Vec<Option<u32>> {
        let mut free = vec![true; counts.len()];
        requests
            .iter()
            .map(|wanted| {
                let units = take(counts, size, &mut free, *wanted)?;
                Some(units.iter().map(|unit| counts[*unit]).sum())
            })
            .collect()
    }

    #[test]
    fn multiples_of_the_unit_are_exact_and_come_in_order() {
        let mut free = vec![true; 16];
        assert_eq!(take(&h200(), 8, &mut free, 16), Some(vec![0, 1]));
        assert_eq!(take(&h200(), 8, &mut free, 24), Some(vec![2, 3, 4]));
        assert!(free[5..].iter().all(|free| *free));
    }

    #[test]
    fn the_odd_unit_makes_counts_exact() {
        assert_eq!(given(&h200(), 8, &[8, 24, 100]), [Some(8), Some(24), Some(100)]);
        assert_eq!(given(&h200(), 8, &[12]), [Some(12)]);
        assert_eq!(given(&h200(), 8, &[132]), [Some(132)]);
        assert_eq!(given(&h200(), 8, &[133]), [None]);
        // There is one odd unit: the second request of its kind is rounded.
        assert_eq!(given(&h200(), 8, &[20, 20]), [Some(20), Some(24)]);
    }

    #[test]
    fn other_counts_round_up_as_the_driver_does() {
        assert_eq!(given(&h200(), 8, &[1, 9, 17]), [Some(8), Some(16), Some(24)]);
        assert_eq!(given(&h200(), 8, &[120]), [Some(120)]);
        // Above 15 regular units the odd one helps out.
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
}
