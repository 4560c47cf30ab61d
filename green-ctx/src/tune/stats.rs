//! Medians, percentiles and confidence intervals.

use fastrand::Rng;

/// How often an interval's data is drawn again.
const RESAMPLES: usize = 2000;

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
    let share = if values.len() < samples_for(share) {
        share.min((1.0 - 5.0 / values.len().max(1) as f64).max(0.5))
    } else {
        share
    };
    quantile(values, share)
}

/// A number with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) middle: f64,
    pub(crate) high: f64,
}

/// The median of values, and the interval in which medians of as many values lie that are drawn from them.
pub(crate) fn median_interval(values: &[f64], seed: u64) -> Option<Interval> {
    let middle = median(values)?;
    let mut rng = Rng::with_seed(seed);
    let mut drawn = vec![0.0; values.len()];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            drawn.fill_with(|| values[rng.usize(..values.len())]);
            drawn.sort_by(f64::total_cmp);
            quantile_of_sorted(&drawn, 0.5)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let (low, high) = (quantile_of_sorted(&medians, 0.025)?, quantile_of_sorted(&medians, 0.975)?);
    Some(Interval { low, middle, high })
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
        let mut covered = 0;
        for seed in 0..200 {
            let values: Vec<f64> = (0..25).map(|_| rng.f64() + rng.f64()).collect();
            let interval = median_interval(&values, seed).expect("there are values");
            assert!(interval.low <= interval.middle && interval.middle <= interval.high);
            covered += usize::from(interval.low <= 1.0 && 1.0 <= interval.high);
        }
        assert!((180..=199).contains(&covered), "{covered} of 200");
    }
}
