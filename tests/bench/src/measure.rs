//! Taking times, and their statistics.

use std::time::{Duration, Instant};

use crate::report::{Figure, Sample, Unit};

/// Times of one operation, in nanoseconds.
pub(crate) struct Times {
    values: Vec<f64>,
}

impl Times {
    /// Reserves room for `count` times, so that no measurement includes an allocation.
    pub(crate) fn with_capacity(count: usize) -> Times {
        Times { values: Vec::with_capacity(count) }
    }

    /// Times a call, and returns its result.
    #[inline]
    pub(crate) fn take<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        self.push(start.elapsed());
        result
    }

    /// Adds a time.
    #[inline]
    pub(crate) fn push(&mut self, time: Duration) {
        self.values.push(time.as_nanos() as f64);
    }

    /// Adds the average time of `calls` calls that were timed together.
    pub(crate) fn push_each(&mut self, time: Duration, calls: u32) {
        self.values.push(time.as_nanos() as f64 / f64::from(calls));
    }

    /// Adds the times of another list.
    pub(crate) fn append(&mut self, other: Times) {
        self.values.extend(other.values);
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns each time as a multiple of the other list's time at the same position.
    pub(crate) fn ratios(&self, other: &Times) -> Vec<f64> {
        self.values.iter().zip(&other.values).map(|(own, other)| own / other).collect()
    }

    pub(crate) fn sample(self, name: impl Into<String>) -> Sample {
        sample(name, Unit::Nanoseconds, self.values)
    }
}

/// Pauses of irregular length, the same in every run. A job that always follows the end of the previous one
/// would meet a load at the same point each time.
pub(crate) struct Pauses {
    rng: fastrand::Rng,
    most: Duration,
}

impl Pauses {
    pub(crate) fn up_to(most: Duration) -> Pauses {
        Pauses { rng: fastrand::Rng::with_seed(1), most }
    }

    pub(crate) fn pause(&mut self) {
        let end = Instant::now() + self.most.mul_f64(self.rng.f64());
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
}

/// Returns the distribution of at least one value.
pub(crate) fn sample(name: impl Into<String>, unit: Unit, mut values: Vec<f64>) -> Sample {
    values.sort_by(f64::total_cmp);
    let [min, p50, p90, p99, max] = [0.0, 0.5, 0.9, 0.99, 1.0].map(|share| rank(&values, share));
    Sample { name: name.into(), unit, count: values.len(), min, p50, p90, p99, max }
}

/// Returns the median of at least one value.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

/// Returns the smallest of the sorted values that is at least as large as `share` of them.
fn rank(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Creates a figure.
pub(crate) fn figure(name: impl Into<String>, unit: Unit, value: f64) -> Figure {
    Figure { name: name.into(), unit, value }
}

/// Measures how long reading the clock takes.
pub(crate) fn timer() -> Sample {
    const COUNT: usize = 20_000;
    let mut times = Times::with_capacity(COUNT);
    (0..COUNT).for_each(|_| times.take(|| ()));
    times.sample("timer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_taken() {
        let values = (1..=200).rev().map(f64::from).collect();
        let sample = sample("", Unit::Nanoseconds, values);
        let Sample { count, min, p50, p90, p99, max, .. } = sample;
        assert_eq!((count, min, p50, p90, p99, max), (200, 1.0, 100.0, 180.0, 198.0, 200.0));
    }

    #[test]
    fn one_value_is_every_percentile() {
        let sample = sample("", Unit::Nanoseconds, vec![7.0]);
        assert_eq!((sample.min, sample.p50, sample.p99, sample.max), (7.0, 7.0, 7.0, 7.0));
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
