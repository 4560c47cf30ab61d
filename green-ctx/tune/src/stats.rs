//! Medians, percentiles and confidence intervals.

/// Returns the value below which the fraction `share` of all values lies, interpolated between the two nearest values.
/// Returns `None` if there are no values.
pub(crate) fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut values = values.to_vec();
    let last = values.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (_, below, above) = values.select_nth_unstable_by(place as usize, f64::total_cmp);
    let above = above.iter().copied().reduce(f64::min).unwrap_or(*below);
    Some(*below + (above - *below) * place.fract())
}

pub(crate) fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// `None` without values.
pub(crate) fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, count) =
        values.into_iter().fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Returns the minimum number of samples that make a percentile meaningful.
pub(crate) fn samples_for(share: f64) -> usize {
    // The subtraction absorbs rounding: 5 / (1 - 0.99) is slightly above 500.
    (5.0 / (1.0 - share) - 1e-6).ceil() as usize
}

/// Returns a percentile. If there are too few samples for that percentile, returns the highest percentile for which
/// there are enough samples.
pub(crate) fn reachable(values: &[f64], share: f64) -> Option<f64> {
    let count = values.len();
    let share = match count < samples_for(share) {
        true => share.min((1.0 - 5.0 / count.max(1) as f64).max(0.5)),
        false => share,
    };
    quantile(values, share)
}

/// A value and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) middle: f64,
    pub(crate) high: f64,
}

impl Interval {
    /// Applies an increasing function to the value and to both ends of the interval.
    pub(crate) fn map(self, of: fn(f64) -> f64) -> Interval {
        Interval { low: of(self.low), middle: of(self.middle), high: of(self.high) }
    }

    /// Adds an independent error, given by its 95 % limits below and above the value.
    pub(crate) fn widened(self, [below, above]: [f64; 2]) -> Interval {
        let Interval { low, middle, high } = self;
        let low = middle - (middle - low).hypot(below);
        Interval { low, middle, high: middle + (high - middle).hypot(above) }
    }

    pub(crate) fn half_width(self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Returns the half-width relative to the ratio, if the interval is of a ratio minus 1.
    pub(crate) fn relative_half_width(self) -> f64 {
        self.half_width() / (1.0 + self.middle)
    }
}

/// The minimum number of repetitions that an interval requires.
pub(crate) const LEAST_REPETITIONS: usize = 3;
/// The maximum number of batches of consecutive repetitions that the jackknife leaves out in turn. More batches would
/// take longer and add little.
const MOST_BATCHES: usize = 20;

/// Computes a statistic over `count` repetitions of a measurement, and its 95 % confidence interval. `statistic`
/// receives the indices of the repetitions to use. Returns `None` if there are fewer than [`LEAST_REPETITIONS`]
/// repetitions, or if the statistic is undefined for some subset.
///
/// The interval combines three independent errors. The first is the scatter of the repetitions, estimated by leaving
/// out one batch at a time (the jackknife) with Student's distribution. The second is drift: half of the difference
/// between the first and the second half of the repetitions. The third is `besides`, an error that the caller passes.
pub(crate) fn interval(
    count: usize,
    besides: f64,
    statistic: impl Fn(&[usize]) -> Option<f64>,
) -> Option<Interval> {
    if count < LEAST_REPETITIONS {
        return None;
    }
    let all: Vec<usize> = (0..count).collect();
    let middle = statistic(&all)?;
    let batches = count.min(MOST_BATCHES);
    let without = |batch: usize| -> Option<f64> {
        let is_kept = |place: &usize| place * batches / count != batch;
        statistic(&all.iter().copied().filter(is_kept).collect::<Vec<_>>())
    };
    let left: Vec<f64> = (0..batches).map(without).collect::<Option<_>>()?;
    let centre = mean(left.iter().copied())?;
    let squares: f64 = left.iter().map(|value| (value - centre).powi(2)).sum();
    let error = ((batches - 1) as f64 / batches as f64 * squares).sqrt();
    let (first, second) = all.split_at(count / 2);
    let drift = (statistic(first)? - statistic(second)?) / 2.0;
    let scatter = student(batches - 1) * error;
    let half = (scatter.powi(2) + drift.powi(2) + besides.powi(2)).sqrt();
    let is_number = middle.is_finite() && half.is_finite();
    is_number.then_some(Interval { low: middle - half, middle, high: middle + half })
}

/// Returns the 97.5th percentile of Student's distribution. For three or more degrees of freedom, the function uses the
/// Cornish-Fisher expansion. This expansion is accurate to 0.03 for three degrees of freedom and to 0.01 for more.
fn student(freedom: usize) -> f64 {
    if freedom <= 2 {
        return 4.303;
    }
    let (z, v) = (1.959_964_f64, freedom as f64);
    z + (z.powi(3) + z) / (4.0 * v)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * v.powi(2))
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * v.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn quantiles_lie_between_their_neighbours() {
        let values = [3.0, 1.0, 2.0, 4.0];
        assert_eq!(median(&values), Some(2.5));
        assert_eq!([quantile(&values, 0.0), quantile(&values, 1.0)], [Some(1.0), Some(4.0)]);
        assert_eq!((quantile(&[], 0.5), mean([])), (None, None));
        assert_eq!([0.5, 0.9, 0.99, 0.999].map(samples_for), [10, 50, 500, 5000]);
        // With few samples the percentile is lower.
        let values: Vec<f64> = (0..101).map(f64::from).collect();
        assert_eq!(reachable(&values, 0.9), Some(90.0));
        assert!((reachable(&values, 0.999).expect("values") - 95.05).abs() < 0.01);
        assert_eq!(reachable(&[], 0.9), None);
    }

    #[test]
    fn student_is_as_in_tables() {
        for (freedom, value) in [(2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042)] {
            assert!((student(freedom) - value).abs() < 0.03, "{freedom}: {}", student(freedom));
        }
    }

    /// Returns how many of 1000 random series have an interval that contains their true mean of 0.
    fn covered(count: usize, series: impl Fn(&mut Rng, usize) -> f64) -> u32 {
        let mut rng = Rng::with_seed(3);
        let holds = (0..1000).filter(|_| {
            let values: Vec<f64> = (0..count).map(|place| series(&mut rng, place)).collect();
            let of = |kept: &[usize]| mean(kept.iter().map(|place| values[*place]));
            let interval = interval(count, 0.0, of).expect("enough values");
            assert!(interval.low <= interval.middle && interval.middle <= interval.high);
            interval.low <= 0.0 && 0.0 <= interval.high
        });
        holds.count() as u32
    }

    #[test]
    fn intervals_cover_what_is_true() {
        for count in [3, 4, 8, 16, 40] {
            let even = covered(count, |rng, _| rng.f64() - 0.5);
            assert!(
                (if count == 3 { 925 } else { 930 }..=985).contains(&even),
                "{even} of 1000 with {count} values"
            );
            // Two modes, as for streams that settle into one of two orders at each start. Three values may miss one.
            let modes = covered(
                count,
                |rng, _| if rng.bool() { 0.1 } else { -0.1 } + 0.01 * rng.f64() - 0.005,
            );
            assert!(
                modes > if count == 3 { 700 } else { 860 },
                "{modes} of 1000 with {count} values"
            );
        }
        assert_eq!(interval(2, 0.0, |_| Some(1.0)), None);
        assert_eq!(interval(9, 0.0, |_| None), None);
        let known = interval(9, 0.5, |_| Some(1.0)).expect("enough values");
        assert_eq!((known.low, known.middle, known.half_width()), (0.5, 1.0, 0.5));
    }

    #[test]
    fn drift_widens_an_interval() {
        let half = |slope: f64| {
            let of = |kept: &[usize]| {
                mean(kept.iter().map(|place| slope * *place as f64 + 0.01 * (place % 2) as f64))
            };
            interval(16, 0.0, of).expect("enough values").half_width()
        };
        assert!(half(0.01) > 4.0 * half(0.0), "{} and {}", half(0.01), half(0.0));
    }
}
