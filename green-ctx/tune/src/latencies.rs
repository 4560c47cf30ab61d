//! Latencies of a block, of which a bounded number is kept.

/// Latencies of one job, in microseconds. Where there are too many, only every second one is kept from then
/// on, and of the former ones too: their percentiles stay what they are.
#[derive(Debug)]
pub(crate) struct Latencies {
    kept: Vec<f64>,
    /// One of so many is kept.
    every: usize,
    seen: usize,
}

/// Enough for a percentile of 99.9. A block at a million arrivals a second that is far behind has far more.
const MOST: usize = 20_000;

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { kept: Vec::new(), every: 1, seen: 0 }
    }
}

impl Latencies {
    pub(crate) fn push(&mut self, latency_us: f64) {
        if self.seen.is_multiple_of(self.every) {
            self.kept.push(latency_us);
        }
        self.seen += 1;
        if self.kept.len() > MOST {
            let mut place = 0;
            self.kept.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.every *= 2;
        }
    }

    pub(crate) fn into_vec(self) -> Vec<f64> {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_like_the_whole() {
        for count in [0, 1, MOST, MOST + 1, 10 * MOST, 1_000_000] {
            let mut latencies = Latencies::default();
            (0..count).for_each(|number| latencies.push(number as f64));
            let kept = latencies.into_vec();
            assert!(kept.len() <= MOST + 1 && kept.len() >= count.min(MOST / 2), "{count}");
            // At equal distances, from the first on.
            let distance = kept.get(1).copied().unwrap_or(1.0);
            let is_even = |(place, value): (usize, &f64)| *value == place as f64 * distance;
            assert!(kept.iter().enumerate().all(is_even), "{count}");
            assert!(kept.last().is_none_or(|last| last + distance >= count as f64), "{count}");
        }
    }
}
