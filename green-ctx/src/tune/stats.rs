//! Medians, percentiles and confidence intervals.

use fastrand::Rng;

/// The value below which a share of all values lies, between the two nearest ones. `None` of nothing.
pub(crate) fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_of_sorted(&sorted, share)
}

pub(crate) fn quantile_of_sorted(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64))
}

pub(crate) fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// How many samples a percentile needs: below that it says little.
pub(crate) fn samples_for(share: f64) -> usize {
    // One that is 99.0 % and not a little more.
    (5.0 / (1.0 - share) - 1e-6).ceil() as usize
}

/// A percentile or, of too few samples for it, the greatest one that they are enough for.
pub(crate) fn reachable(values: &[f64], share: f64) -> Option<f64> {
    quantile(values, reachable_share(values.len(), share))
}

pub(crate) fn reachable_share(count: usize, share: f64) -> f64 {
    if count < samples_for(share) {
        share.min((1.0 - 5.0 / count.max(1) as f64).max(0.5))
    } else {
        share
    }
}

/// A number with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) middle: f64,
    pub(crate) high: f64,
}

/// The median with its 95 % interval, which is between two of the values whatever their distribution. `None` of fewer
/// than six: their interval says nothing.
pub(crate) fn median_interval(values: &[f64]) -> Option<Interval> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // How many of as many coins show heads: the median is above that many of the values.
    let mut logarithm = -(count as f64) * std::f64::consts::LN_2;
    let (mut sum, mut outside) = (logarithm.exp(), 0);
    while sum <= 0.025 && outside < count {
        outside += 1;
        logarithm += ((count - outside + 1) as f64 / outside as f64).ln();
        sum += logarithm.exp();
    }
    let below = outside.checked_sub(1)?;
    let middle = quantile_of_sorted(&sorted, 0.5)?;
    Some(Interval { low: sorted[below], middle, high: sorted[count - 1 - below] })
}

/// The 95 % interval of what a function makes of so many things, by drawing them again and again. The function takes how
/// often each was drawn.
pub(crate) fn bootstrap(
    count: usize,
    resamples: usize,
    mut statistic: impl FnMut(&[u32]) -> Option<f64>,
) -> Option<[f64; 2]> {
    let mut rng = Rng::with_seed(1);
    let mut drawn = vec![0; count];
    let mut values: Vec<f64> = (0..resamples)
        .filter_map(|_| {
            drawn.fill(0);
            (0..count).for_each(|_| drawn[rng.usize(..count)] += 1);
            statistic(&drawn)
        })
        .collect();
    values.sort_by(f64::total_cmp);
    Some([quantile_of_sorted(&values, 0.025)?, quantile_of_sorted(&values, 0.975)?])
}

/// Values of several groups, in their order, of which a quantile is taken with some groups counted several times.
pub(crate) struct Grouped {
    /// The values and their groups.
    sorted: Vec<(f64, usize)>,
}

impl Grouped {
    pub(crate) fn new<'a>(groups: impl Iterator<Item = &'a [f64]>) -> Grouped {
        let of_group =
            |(group, values): (usize, &'a [f64])| values.iter().map(move |value| (*value, group));
        let mut sorted: Vec<(f64, usize)> = groups.enumerate().flat_map(of_group).collect();
        sorted.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Grouped { sorted }
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The smallest value below or at which a share of all values lies, where each group counts so often.
    pub(crate) fn quantile(&self, share: f64, counts: &[u32]) -> Option<f64> {
        let count = |group: &usize| u64::from(counts[*group]);
        let all: u64 = self.sorted.iter().map(|(_, group)| count(group)).sum();
        let (above, mut seen) = ((1.0 - share) * all as f64, 0);
        let mut values = self.sorted.iter().rev().filter(|(_, group)| count(group) > 0);
        values.find_map(|(value, group)| {
            seen += count(group);
            (seen as f64 > above).then_some(*value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_between_their_neighbours() {
        let values = [3.0, 1.0, 2.0, 4.0];
        assert_eq!(median(&values), Some(2.5));
        assert_eq!([quantile(&values, 0.0), quantile(&values, 1.0)], [Some(1.0), Some(4.0)]);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!([0.5, 0.9, 0.99, 0.999].map(samples_for), [10, 50, 500, 5000]);
    }

    #[test]
    fn few_samples_give_a_lower_percentile() {
        let values: Vec<f64> = (0..101).map(f64::from).collect();
        assert_eq!(reachable(&values, 0.9), Some(90.0));
        assert!((reachable(&values, 0.999).expect("values") - 95.05).abs() < 0.01);
        assert_eq!(reachable(&[], 0.9), None);
    }

    #[test]
    fn an_interval_covers_the_median_that_is_true() {
        let mut rng = Rng::with_seed(3);
        for count in [6, 12, 25, 60] {
            let mut covered = 0;
            for _ in 0..1000 {
                let values: Vec<f64> = (0..count).map(|_| rng.f64() * rng.f64()).collect();
                let interval = median_interval(&values).expect("enough values");
                assert!(interval.low <= interval.middle && interval.middle <= interval.high);
                // The median of a product of two such numbers.
                covered += usize::from(interval.low <= 0.186_7 && 0.186_7 <= interval.high);
            }
            assert!((935..=990).contains(&covered), "{covered} of 1000 with {count} values");
        }
        let many: Vec<f64> = (0..10_001).map(f64::from).collect();
        let interval = median_interval(&many).expect("enough values");
        assert_eq!((interval.low, interval.high), (4901.0, 5099.0));
        assert_eq!(median_interval(&[1.0; 5]), None);
        assert_eq!(median_interval(&[]), None);
    }

    #[test]
    fn a_drawn_quantile_is_of_groups() {
        let groups = [vec![1.0, 2.0, 3.0, 4.0], vec![10.0], vec![]];
        let grouped = Grouped::new(groups.iter().map(Vec::as_slice));
        assert_eq!(grouped.len(), 5);
        assert_eq!(grouped.quantile(0.5, &[1, 1, 1]), Some(3.0));
        assert_eq!(grouped.quantile(0.9, &[1, 1, 1]), Some(10.0));
        assert_eq!(grouped.quantile(0.9, &[1, 0, 1]), Some(4.0));
        assert_eq!(grouped.quantile(0.5, &[1, 5, 1]), Some(10.0));
        assert_eq!(grouped.quantile(0.5, &[0, 0, 3]), None);
        // Blocks differ, and values of one block do not: as many blocks as there are decide.
        let blocks: Vec<Vec<f64>> = (0..20).map(|block| vec![f64::from(block); 50]).collect();
        let grouped = Grouped::new(blocks.iter().map(Vec::as_slice));
        let interval = bootstrap(20, 400, |drawn| grouped.quantile(0.5, drawn));
        let [low, high] = interval.expect("there are blocks");
        assert!((3.0..8.0).contains(&low) && (11.0..16.0).contains(&high), "{low} to {high}");
        assert_eq!(bootstrap(0, 10, |_| Some(1.0)), Some([1.0, 1.0]));
        assert_eq!(bootstrap(3, 10, |_| None), None);
    }
}
