//! Percentages of SMs, turned into counts.
//!
//! All percentages of one request are rounded together: each comes to the nearest count that whole units make, and
//! together to no more than there is. So percentages that add up to at most 100 fit into SMs that are all free, as long
//! as there is a unit for each of them.

use super::share::{Amount, Share, ShareKind};
use super::units::UnitSizes;

/// A floor that is a percentage.
struct Floor {
    /// Its place among the shares.
    place: usize,
    /// Its SMs before rounding, in hundredths.
    ideal: u64,
    /// The most SMs that it may come to.
    most: u32,
}

/// How percentages are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounding {
    /// The units of the SMs that are divided.
    pub(crate) sizes: UnitSizes,
    /// Whether equal percentages come to equal counts, each rounded down.
    pub(crate) is_equal: bool,
}

impl From<UnitSizes> for Rounding {
    fn from(sizes: UnitSizes) -> Rounding {
        Rounding { sizes, is_equal: false }
    }
}

/// The same shares with counts in place of percentages.
pub(super) fn resolve(shares: &[Share], rounding: Rounding) -> Vec<Share> {
    let sizes = match rounding {
        Rounding { sizes, is_equal: false } => sizes,
        Rounding { sizes, is_equal: true } => UnitSizes { odd: 0, ..sizes },
    };
    let floors: Vec<Floor> = shares
        .iter()
        .enumerate()
        .filter_map(|(place, share)| {
            let (percent, most) = match share.kind() {
                ShareKind::Percent(percent) => (percent, u32::MAX),
                ShareKind::Between { floor: Amount::Percent(percent), ceiling } => {
                    let most = match ceiling {
                        Some(Amount::Sms(most)) => most,
                        // Of the same SMs: rounded up to the floor.
                        Some(Amount::Percent(_)) | None => u32::MAX,
                    };
                    (percent, most)
                }
                _ => return None,
            };
            Some(Floor { place, ideal: u64::from(percent) * u64::from(sizes.sms), most })
        })
        .collect();
    let counted = shares.iter().map(|share| sizes.round_up(share.floor().unwrap_or(0), false));
    let counted = counted.fold(0, u32::saturating_add);
    let counts = apportion(&floors, Rounding { sizes, ..rounding }, counted);
    let mut resolved = shares.to_vec();
    for (floor, count) in floors.iter().zip(counts) {
        resolved[floor.place] = resolved[floor.place].with_floor(count);
    }
    resolved.into_iter().map(|share| with_ceiling(share, sizes)).collect()
}

/// The counts of floors, beside floors of this many SMs that are counts. The choice with the smallest errors is taken;
/// of equal ones that without the odd unit.
fn apportion(floors: &[Floor], rounding: Rounding, counted: u32) -> Vec<u32> {
    let sizes = rounding.sizes;
    let all = sizes.sms.saturating_sub(sizes.odd) / sizes.unit.max(1);
    let beside = all.saturating_sub(counted / sizes.unit.max(1));
    let nearest = |left: u32| {
        let odd = (0..floors.len()).filter(|_| sizes.odd > 0).map(Some);
        let ways = std::iter::once(None).chain(odd).filter_map(|odd| {
            let counts = with_odd(floors, rounding, (all, left), odd)?;
            let error = |(floor, count): (&Floor, &u32)| floor.ideal.abs_diff(hundredths(*count));
            Some((floors.iter().zip(&counts).map(error).sum::<u64>(), counts))
        });
        ways.min_by_key(|(error, _)| *error).map(|(_, counts)| counts)
    };
    // If they do not fit beside the counts, or there is no unit for each, the refusal says what would fit.
    let alone = || nearest(all).unwrap_or_else(|| vec![sizes.unit; floors.len()]);
    nearest(beside).unwrap_or_else(alone)
}

/// The counts if one floor has the odd unit, or none has. There are `all` regular units, and `left` of them for these
/// floors.
fn with_odd(
    floors: &[Floor],
    Rounding { sizes, is_equal }: Rounding,
    (all, left): (u32, u32),
    odd: Option<usize>,
) -> Option<Vec<u32>> {
    let unit = hundredths(sizes.unit.max(1));
    let beside = |place: usize| if odd == Some(place) { sizes.odd } else { 0 };
    let ideal = |place: usize| floors[place].ideal.saturating_sub(hundredths(beside(place)));
    let least = |place: usize| u32::from(odd != Some(place));
    let whole = |place: usize| u32::try_from(ideal(place) / unit).unwrap_or(u32::MAX);
    let mut units: Vec<u32> =
        (0..floors.len()).map(|place| whole(place).max(least(place))).collect();
    // Small percentages that came to a whole unit leave less for the largest ones.
    while units.iter().sum::<u32>() > all {
        let larger = (0..floors.len()).filter(|place| units[*place] > least(*place));
        let largest = larger.max_by_key(|place| units[*place])?;
        units[largest] -= 1;
    }
    if units.iter().sum::<u32>() > left {
        return None;
    }
    let sms = |place: usize, units: u32| beside(place) + units * sizes.unit;
    let over = |place: usize| ideal(place) % unit;
    let mut nearer: Vec<usize> =
        (0..floors.len()).filter(|place| !is_equal && 2 * over(*place) >= unit).collect();
    nearer.sort_by_key(|place| std::cmp::Reverse(over(*place)));
    for place in nearer {
        let is_there = units.iter().sum::<u32>() < left;
        if is_there
            && units[place] == whole(place)
            && sms(place, units[place] + 1) <= floors[place].most
        {
            units[place] += 1;
        }
    }
    Some(units.into_iter().enumerate().map(|(place, units)| sms(place, units)).collect())
}

/// A share with a count for a ceiling that is a percentage: rounded down, but at least a unit and the floor.
fn with_ceiling(share: Share, sizes: UnitSizes) -> Share {
    let ShareKind::Between { floor, ceiling: Some(Amount::Percent(percent)) } = share.kind() else {
        return share;
    };
    let most = u64::from(percent) * u64::from(sizes.sms) / 100;
    let most = sizes.round_down(u32::try_from(most).unwrap_or(u32::MAX), true);
    let most = most.max(sizes.unit).max(share.floor().unwrap_or(0));
    Share::from(ShareKind::Between { floor, ceiling: Some(Amount::Sms(most)) })
}

fn hundredths(sms: u32) -> u64 {
    u64::from(sms) * 100
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What percentages come to on a device with these units.
    fn counts(percents: &[u32], units: &[u32]) -> Vec<u32> {
        let shares: Vec<Share> = percents.iter().map(|percent| Share::percent(*percent)).collect();
        let resolved = resolve(&shares, UnitSizes::of(units).into());
        resolved.into_iter().map(|share| share.floor().expect("a count")).collect()
    }

    fn h200() -> Vec<u32> {
        [[8; 15].as_slice(), &[12]].concat()
    }

    #[test]
    fn percentages_are_rounded_together() {
        assert_eq!(counts(&[25; 4], &h200()), [36, 32, 32, 32]);
        assert_eq!(counts(&[33; 3], &h200()), [44, 40, 40]);
        assert_eq!(counts(&[25, 75], &h200()), [32, 100]);
        assert_eq!(counts(&[1, 99], &h200()), [8, 124]);
        assert_eq!(counts(&[100], &h200()), [132]);
        assert_eq!(counts(&[25; 4], &[2; 66]), [34, 34, 32, 32]);
        assert_eq!(counts(&[33; 3], &[[8; 18].as_slice(), &[4]].concat()), [48; 3]);
        // A unit each, and what is left of the rest.
        assert_eq!(counts(&[1, 1, 1, 1, 1, 95], &[8; 8])[5], 24);
    }

    #[test]
    fn counts_do_not_make_percentages_smaller() {
        let given = |texts: &[&str]| {
            let share = |text: &&str| text.parse::<Share>().expect("a share");
            let shares: Vec<Share> = texts.iter().map(share).collect();
            let resolved = resolve(&shares, UnitSizes::of(&h200()).into());
            resolved.into_iter().map(|share| share.floor().expect("a count")).collect::<Vec<_>>()
        };
        assert_eq!(given(&["13", "90%"]), [13, 116]);
        assert_eq!(given(&["16", "50%", "25%"]), [16, 64, 32]);
        assert_eq!(given(&["100", "25%"]), [100, 28]);
        // More than there is, so that it is refused.
        assert_eq!(given(&["100", "30%"]), [100, 40]);
        assert_eq!(given(&["4294967295", "4294967295..", "25%"])[2], 32);
    }

    #[test]
    fn whatever_adds_up_fits() {
        let mut random = fastrand::Rng::with_seed(45);
        let devices =
            [h200(), vec![2; 66], [[8; 18].as_slice(), &[4]].concat(), vec![4; 27], vec![2; 10]];
        for _ in 0..20_000 {
            let units = random.choice(&devices).expect("there are some");
            let (mut left, mut percents) = (100, Vec::new());
            while left > 0 && percents.len() < units.len() && random.u32(..8) > 0 {
                percents.push(random.u32(1..=left));
                left -= percents[percents.len() - 1];
            }
            let sizes = UnitSizes::of(units);
            let given = counts(&percents, units);
            assert!(given.iter().sum::<u32>() <= sizes.sms, "{percents:?} {given:?}");
            let odd = given.iter().filter(|count| !count.is_multiple_of(sizes.unit)).count();
            assert!(odd <= usize::from(sizes.odd > 0), "{percents:?} {given:?}");
            for (percent, count) in percents.iter().zip(&given) {
                assert!(*count > 0 && sizes.exactly(*count).is_some(), "{percents:?} {given:?}");
                let most = hundredths(*count).saturating_sub(hundredths(sizes.unit));
                assert!(u64::from(percent * sizes.sms) >= most, "{percents:?} {given:?}");
            }
        }
    }

    #[test]
    fn ceilings_are_rounded_down_but_not_to_nothing() {
        let ceiling = |text: &str| {
            let share: Share = text.parse().expect("a share");
            let resolved = resolve(&[share], UnitSizes::of(&h200()).into());
            (resolved[0].floor(), resolved[0].ceiling())
        };
        assert_eq!(ceiling("..75%"), (Some(0), Some(96)));
        assert_eq!(ceiling("..1%"), (Some(0), Some(8)));
        assert_eq!(ceiling("16..50%"), (Some(16), Some(64)));
        assert_eq!(ceiling("25%..50%"), (Some(32), Some(64)));
        assert_eq!(ceiling("1%..1%"), (Some(8), Some(8)));
        assert_eq!(ceiling("25%.."), (Some(32), None));
    }
}
