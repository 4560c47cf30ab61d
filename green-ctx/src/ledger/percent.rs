//! Percentages of SMs, turned into counts.
//!
//! All percentages of one request are rounded together, each to a nearby number of SMs that consists of whole
//! units. If a request asks for no more SMs than the device has, the rounded counts do not exceed the
//! device's SMs. Percentages that add up to at most 100 therefore fit if all SMs are free and each percentage
//! can get at least one unit. If the percentages add up to less than 100 and the request takes the rest, at
//! least one unit remains for the rest.

use super::refusal::Refusal;
use super::share::{Amount, Share, ShareKind};
use super::units::UnitSizes;

/// The SMs that percentages refer to, and the rules for rounding counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounding {
    /// The SMs that 100 % refers to.
    pub(crate) sms: u32,
    /// The SMs of a unit.
    pub(crate) unit: u32,
    /// The number of units.
    pub(crate) units: u32,
    /// The SMs of the odd unit; 0 if no group can have one.
    pub(crate) odd: u32,
    /// Whether equal percentages must give equal counts. In that case, each count is rounded down.
    pub(crate) is_equal: bool,
}

impl From<UnitSizes> for Rounding {
    fn from(UnitSizes { sms, unit, odd }: UnitSizes) -> Rounding {
        let unit = unit.max(1);
        Rounding { sms, unit, units: sms.saturating_sub(odd) / unit, odd, is_equal: false }
    }
}

/// The kind of group in a request whose size is not given as a number, if there is such a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    None,
    /// A group of the rest, which can consist of any units.
    Rest,
    /// A group of all free regular units.
    Regular,
}

impl Others {
    pub(super) fn of(shares: &[Share], has_rest: bool) -> Others {
        match shares.iter().any(|share| share.kind() == ShareKind::Regular) {
            true => Others::Regular,
            false if has_rest => Others::Rest,
            false => Others::None,
        }
    }
}

/// A floor that is a percentage.
struct Floor {
    /// The floor's index among the shares.
    place: usize,
    /// The floor before rounding, in hundredths of an SM.
    ideal: u64,
    /// The maximum number of SMs to which the floor may be rounded.
    most: u32,
}

/// The floor that gets the odd unit, if any.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Odd {
    Unused,
    /// A floor that is a count.
    Count,
    /// The floor that is a percentage and has this index among such floors.
    Percent(usize),
}

/// Returns the shares with counts in place of percentages.
pub(super) fn resolve(shares: &[Share], rounding: Rounding, others: Others) -> Vec<Share> {
    let floors: Vec<Floor> = shares
        .iter()
        .enumerate()
        .filter_map(|(place, share)| {
            let (percent, most) = match share.kind() {
                ShareKind::Percent(percent) => (percent, u32::MAX),
                ShareKind::Between { floor: Amount::Percent(percent), ceiling } => {
                    let most = match ceiling {
                        Some(Amount::Sms(most)) => most,
                        // `with_ceiling` raises such a ceiling to the floor, so it limits nothing here.
                        Some(Amount::Percent(_)) | None => u32::MAX,
                    };
                    (percent, most)
                }
                _ => return None,
            };
            Some(Floor { place, ideal: u64::from(percent) * u64::from(rounding.sms), most })
        })
        .collect();
    let counts: Vec<u32> = shares.iter().filter_map(|share| share.floor()).collect();
    let given = Apportioned { floors: &floors, counts: &counts, rounding, others }.counts();
    let mut resolved = shares.to_vec();
    for (floor, count) in floors.iter().zip(given) {
        resolved[floor.place] = resolved[floor.place].with_floor(count);
    }
    resolved.into_iter().map(|share| with_ceiling(share, rounding)).collect()
}

/// Fails if a floor is above its ceiling, and one of the two is a percentage and the other is a count.
pub(super) fn check(
    name: &str,
    share: Share,
    Rounding { sms, .. }: Rounding,
) -> Result<(), Refusal> {
    let of = |percent: u32| u64::from(percent) * u64::from(sms) / 100;
    let reason = match share.kind() {
        ShareKind::Between {
            floor: Amount::Sms(least),
            ceiling: Some(Amount::Percent(percent)),
        } if u64::from(least) > of(percent) => {
            format!("{percent}% of {sms} SMs are {}; ask for a floor of at most that", of(percent))
        }
        ShareKind::Between {
            floor: Amount::Percent(percent),
            ceiling: Some(Amount::Sms(most)),
        } if of(percent) > u64::from(most) => {
            format!(
                "{percent}% of {sms} SMs are {}; ask for a ceiling of at least that",
                of(percent)
            )
        }
        _ => return Ok(()),
    };
    Err(Refusal::invalid(format!("group {name} asks for {share}, and {reason}")))
}

/// The percentages of a request, to be turned into counts.
struct Apportioned<'a> {
    floors: &'a [Floor],
    /// The floors of the same request that are counts.
    counts: &'a [u32],
    rounding: Rounding,
    others: Others,
}

impl Apportioned<'_> {
    /// Returns the counts with the smallest total error. Among results with equal errors, leaving the odd
    /// unit unused is preferred, then using it for a count, then using it for a percentage.
    fn counts(&self) -> Vec<u32> {
        let Rounding { sms, unit, odd, is_equal, .. } = self.rounding;
        // For a request that does not fit. Asking for more SMs than there are makes no percentage smaller.
        let alone = |floor: &Floor| {
            let half = if is_equal { 0 } else { hundredths(unit) / 2 };
            let units = |ideal: u64| u32::try_from(ideal / hundredths(unit)).unwrap_or(u32::MAX);
            let count = |ideal| units(ideal).max(1).saturating_mul(unit);
            let nearest = count(floor.ideal + half);
            if nearest <= floor.most { nearest } else { count(floor.ideal) }
        };
        if let [Floor { ideal, most, .. }] = self.floors
            && *ideal == hundredths(sms)
            && *most >= sms
            && (is_equal || odd + self.rounding.units * unit == sms)
        {
            return vec![sms];
        }
        let nearest = |others| {
            let percents = (0..self.floors.len()).map(Odd::Percent);
            let ways = [Odd::Unused, Odd::Count].into_iter().chain(percents);
            let ways = ways.filter(|way| odd > 0 || *way == Odd::Unused).filter_map(|way| {
                let given = self.with_odd(way, others)?;
                let error =
                    |(floor, count): (&Floor, &u32)| floor.ideal.abs_diff(hundredths(*count));
                Some((self.floors.iter().zip(&given).map(error).sum::<u64>(), given))
            });
            ways.min_by_key(|(error, _)| *error).map(|(_, given)| given)
        };
        let requested = self.requested();
        let with_others = if requested < hundredths(sms) { nearest(self.others) } else { None };
        let together = || if requested <= hundredths(sms) { nearest(Others::None) } else { None };
        with_others.or_else(together).unwrap_or_else(|| self.floors.iter().map(alone).collect())
    }

    /// Returns the sum of all requested counts and percentages, in hundredths of an SM.
    fn requested(&self) -> u64 {
        let ideals = self.floors.iter().map(|floor| floor.ideal).sum::<u64>();
        self.counts.iter().fold(ideals, |sum, count| sum.saturating_add(hundredths(*count)))
    }

    /// Returns the number of regular units that are left after the floors that are counts. One of these
    /// floors uses the odd unit if `way` is `Odd::Count`.
    fn left(&self, way: Odd) -> Option<u32> {
        let Rounding { unit, units, odd, .. } = self.rounding;
        let all = |count: &u32| count.div_ceil(unit);
        let spared = |count: &u32| all(count) - count.saturating_sub(odd).div_ceil(unit);
        let needed = self.counts.iter().map(all).fold(0, u32::saturating_add);
        let spared = self.counts.iter().map(spared).max().filter(|_| way == Odd::Count);
        units.checked_sub(needed.saturating_sub(spared.unwrap_or(0)))
    }

    /// Returns the counts for one use of the odd unit, if there are enough units for it.
    fn with_odd(&self, way: Odd, others: Others) -> Option<Vec<u32>> {
        let (floors, Rounding { unit, odd, is_equal, .. }) = (self.floors, self.rounding);
        let kept = match others {
            Others::None => 0,
            Others::Rest => u32::from(way != Odd::Unused || odd == 0),
            Others::Regular => 1,
        };
        let left = self.left(way)?.checked_sub(kept)?;
        let own = |place: usize| if way == Odd::Percent(place) { odd } else { 0 };
        if (0..floors.len()).any(|place| own(place) > floors[place].most) {
            return None;
        }
        let ideal = |place: usize| floors[place].ideal.saturating_sub(hundredths(own(place)));
        let least = |place: usize| u32::from(own(place) == 0);
        let whole =
            |place: usize| u32::try_from(ideal(place) / hundredths(unit)).unwrap_or(u32::MAX);
        let mut units: Vec<u32> =
            (0..floors.len()).map(|place| whole(place).max(least(place))).collect();
        // Small percentages are raised to a whole unit. The largest ones lose these units.
        while units.iter().sum::<u32>() > left {
            let larger = (0..floors.len()).filter(|place| units[*place] > least(*place));
            let largest = larger.max_by_key(|place| units[*place])?;
            units[largest] -= 1;
        }
        let sms = |place: usize, units: u32| own(place) + units * unit;
        let over = |place: usize| ideal(place) % hundredths(unit);
        let is_nearer = |place: &usize| !is_equal && 2 * over(*place) >= hundredths(unit);
        let mut nearer: Vec<usize> = (0..floors.len()).filter(is_nearer).collect();
        nearer.sort_by_key(|place| std::cmp::Reverse(over(*place)));
        for place in nearer {
            let is_there = units.iter().sum::<u32>() < left;
            let fits = sms(place, units[place] + 1) <= floors[place].most;
            if is_there && fits && units[place] == whole(place) {
                units[place] += 1;
            }
        }
        Some(units.into_iter().enumerate().map(|(place, units)| sms(place, units)).collect())
    }
}

/// Replaces a ceiling that is a percentage with a count. The count is at least one unit and at least the
/// floor.
fn with_ceiling(share: Share, Rounding { sms, unit, .. }: Rounding) -> Share {
    let ShareKind::Between { floor, ceiling: Some(Amount::Percent(percent)) } = share.kind() else {
        return share;
    };
    let most = u64::from(percent) * u64::from(sms) / 100;
    let most = u32::try_from(most).unwrap_or(u32::MAX).max(unit).max(share.floor().unwrap_or(0));
    Share::from(ShareKind::Between { floor, ceiling: Some(Amount::Sms(most)) })
}

fn hundredths(sms: u32) -> u64 {
    u64::from(sms) * 100
}

#[cfg(test)]
mod tests {
    use super::super::choose::choose;
    use super::super::units::UnitSet;
    use super::*;

    /// Returns the counts that percentages come to on a device with these units.
    fn counts(percents: &[u32], units: &[u32]) -> Vec<u32> {
        let shares: Vec<Share> = percents.iter().map(|percent| Share::percent(*percent)).collect();
        let resolved = resolve(&shares, UnitSizes::of(units).into(), Others::None);
        resolved.into_iter().map(|share| share.floor().expect("a count")).collect()
    }

    fn read(texts: &[&str]) -> Vec<Share> {
        texts.iter().map(|text| text.parse().expect("a share")).collect()
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
        // Two units are left. The first goes to the percentage that is furthest from its count.
        assert_eq!(counts(&[16, 66, 18], &[2; 10]), [4, 12, 4]);
        // Each small percentage gets a unit, and the last one gets what is left.
        assert_eq!(counts(&[1, 1, 1, 1, 1, 95], &[8; 8])[5], 24);
    }

    #[test]
    fn counts_do_not_make_percentages_smaller() {
        let given = |texts: &[&str]| {
            let resolved = resolve(&read(texts), UnitSizes::of(&h200()).into(), Others::None);
            resolved.into_iter().map(|share| share.floor().expect("a count")).collect::<Vec<_>>()
        };
        assert_eq!(given(&["13", "90%"]), [13, 116]);
        assert_eq!(given(&["16", "50%", "25%"]), [16, 64, 32]);
        assert_eq!(given(&["100", "25%"]), [100, 32]);
        // The count uses the odd unit.
        assert_eq!(given(&["116", "12%"]), [116, 16]);
        assert_eq!(given(&["8", "90%", "2%", "1%"]), [8, 108, 8, 8]);
        // These requests exceed the device's SMs, and the split fails later.
        assert_eq!(given(&["100", "30%"]), [100, 40]);
        assert_eq!(given(&["100", "30%..=39"]), [100, 32]);
        assert_eq!(given(&["4294967295", "4294967295..", "25%"])[2], 32);
        // The odd unit would exceed the ceiling.
        assert_eq!(given(&["8%..=11"]), [8]);
    }

    #[test]
    fn the_rest_keeps_a_unit() {
        let given = |texts: &[&str], others| {
            let resolved = resolve(&read(texts), UnitSizes::of(&h200()).into(), others);
            resolved.into_iter().map(|share| share.floor().expect("a count")).collect::<Vec<_>>()
        };
        assert_eq!(given(&["97%"], Others::Rest), [124]);
        assert_eq!(given(&["48%", "49%"], Others::Rest), [60, 64]);
        assert_eq!(given(&["97%"], Others::Regular), [124]);
        // Nothing is left for the rest.
        assert_eq!(given(&["100%"], Others::Rest), [132]);
        assert_eq!(given(&["5%"; 16], Others::Rest).iter().sum::<u32>(), 132);
    }

    /// On an H200, all sets of 8 SMs together have 120 SMs, and all sets of 16 SMs together have 112.
    #[test]
    fn sets_of_a_structured_split_are_fewer_than_the_sms() {
        let given = |percents: &[u32], unit, units| {
            let rounding = Rounding { sms: 132, unit, units, odd: 0, is_equal: false };
            let shares: Vec<Share> =
                percents.iter().map(|percent| Share::percent(*percent)).collect();
            let resolved = resolve(&shares, rounding, Others::None);
            resolved.into_iter().map(|share| share.floor().expect("a count")).collect::<Vec<_>>()
        };
        assert_eq!(given(&[25; 4], 8, 15), [32, 32, 32, 24]);
        assert_eq!(given(&[100], 8, 15), [120]);
        assert_eq!(given(&[50; 2], 16, 7), [64, 48]);
        assert_eq!(given(&[25; 4], 6, 17), [30, 24, 24, 24]);
    }

    /// A request that adds up to at most 100 % fits if each share given as a percentage can get at least one unit.
    #[test]
    fn counts_and_percentages_fit_together() {
        let mut random = fastrand::Rng::with_seed(46);
        let devices = [h200(), vec![2; 10], [[8; 18].as_slice(), &[4]].concat(), vec![4; 27]];
        let mut tried = 0;
        for _ in 0..20_000 {
            let units = random.choice(&devices).expect("there are some");
            let sizes = UnitSizes::of(units);
            let (mut left, mut shares) = (u64::from(sizes.sms) * 100, Vec::new());
            while left > 100 && shares.len() < 5 && random.u32(..6) > 0 {
                let (share, takes) = match random.bool() {
                    true => {
                        let count = random.u32(1..=(left / 100) as u32);
                        (Share::from(count), u64::from(count) * 100)
                    }
                    false => {
                        let percent = random.u32(1..=(left / u64::from(sizes.sms)).max(1) as u32);
                        (Share::percent(percent), u64::from(percent) * u64::from(sizes.sms))
                    }
                };
                let Some(less) = left.checked_sub(takes) else { continue };
                (left, _) = (less, shares.push(share));
            }
            let fits = |shares: &[Share]| {
                choose(units, sizes.unit, &UnitSet::all(units.len()), shares).is_some()
            };
            let least = |share: &Share| if share.has_percent() { Share::from(1) } else { *share };
            if fits(&shares.iter().map(least).collect::<Vec<_>>()) {
                let resolved = resolve(&shares, sizes.into(), Others::None);
                assert!(fits(&resolved), "{shares:?} {resolved:?}");
                tried += 1;
            }
        }
        assert!(tried > 10_000, "{tried}");
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
            let resolved = resolve(&[share], UnitSizes::of(&h200()).into(), Others::None);
            (resolved[0].floor(), resolved[0].ceiling())
        };
        assert_eq!(ceiling("..75%"), (Some(0), Some(99)));
        assert_eq!(ceiling("..1%"), (Some(0), Some(8)));
        assert_eq!(ceiling("16..50%"), (Some(16), Some(66)));
        assert_eq!(ceiling("25%..50%"), (Some(32), Some(66)));
        assert_eq!(ceiling("1%..1%"), (Some(8), Some(8)));
        assert_eq!(ceiling("25%.."), (Some(32), None));
    }
}
