//! The rates of each job alone, and the rates that they predict for jobs together.

use std::collections::BTreeMap;

use crate::arm::Arm;
use crate::measure::{JobSample, Sample};

/// A job's iterations per second alone, by number of SMs.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve(BTreeMap<u32, f64>);

impl Curve {
    pub(super) fn insert(&mut self, sms: u32, rate: f64) {
        self.0.insert(sms, rate.max(1e-9));
    }

    /// Returns the iterations per second by number of SMs.
    pub(super) fn rates(&self) -> BTreeMap<u32, f64> {
        self.0.clone()
    }

    /// Returns the iterations per second on `sms` SMs: the rate at the next lower measured number, scaled up in
    /// proportion to the SMs, but at most the rate at the next higher one.
    fn rate(&self, sms: f64) -> Option<f64> {
        let at = |(count, rate): (&u32, &f64)| (f64::from(*count), *rate);
        let below = self.0.iter().rev().map(at).find(|(count, _)| *count <= sms);
        let above = self.0.iter().map(at).find(|(count, _)| *count >= sms);
        match (below, above) {
            (Some((count, rate)), Some((_, most))) => Some((rate * sms / count).min(most)),
            (Some((_, rate)), None) => Some(rate),
            (None, Some((count, rate))) => Some(rate * sms.max(0.5) / count),
            (None, None) => None,
        }
    }
}

/// Predicts an arm's sample from the jobs' rates alone. SMs that several jobs may use are distributed in proportion to
/// what each may use. The prediction ignores what jobs gain or lose by running together. `None` if a job's rates are
/// unknown.
pub(super) fn predict(arm: &Arm, curves: &[&Curve], sms: u32) -> Option<Sample> {
    let floors: u32 = arm.parts().iter().map(|part| part.floor).sum();
    let pool = f64::from(sms.saturating_sub(floors));
    let wants: f64 = arm.parts().iter().map(|part| f64::from(part.ceiling - part.floor)).sum();
    let part_of_want = if wants > 0.0 { (pool / wants).min(1.0) } else { 0.0 };
    let mut sample = Sample::default();
    let mut slowest = 0.0_f64;
    for (part, curve) in arm.parts().iter().zip(curves) {
        let shared = f64::from(part.ceiling - part.floor) * part_of_want;
        let rate = curve.rate(f64::from(part.floor) + shared)?;
        slowest = slowest.max(1.0 / rate);
        sample.jobs.push(JobSample { rate, latencies_us: vec![1e6 / rate], host_us: 0.0 });
    }
    sample.rounds_us = vec![1e6 * slowest];
    Some(sample)
}

/// Orders counts so that the most different ones come first: the ends, the middle, the quarters.
pub(super) fn coarse_to_fine(counts: &[u32]) -> Vec<u32> {
    let last = counts.len() - 1;
    let mut order = vec![counts[last], counts[0]];
    let mut pieces = 2;
    while order.len() < counts.len() && pieces <= 2 * counts.len() {
        for piece in 1..pieces {
            let count = counts[last * piece / pieces];
            if !order.contains(&count) {
                order.push(count);
            }
        }
        pieces *= 2;
    }
    order.dedup();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_comes_once() {
        let counts: Vec<u32> = (1..=17).collect();
        let mut order = coarse_to_fine(&counts);
        assert_eq!(order[..5], [17, 1, 9, 5, 13]);
        order.sort_unstable();
        assert_eq!(order, counts);
        assert_eq!(coarse_to_fine(&[8]), [8]);
    }

    #[test]
    fn rates_between_counts_follow_from_those() {
        let mut curve = Curve::default();
        curve.insert(16, 1.0);
        curve.insert(64, 3.0);
        let rates = [8.0, 16.0, 32.0, 60.0, 132.0].map(|sms| curve.rate(sms));
        assert_eq!(rates, [0.5, 1.0, 2.0, 3.0, 3.0].map(Some));
        let sample = predict(&Arm::ceilings([132, 132], 132), &[&curve, &curve], 132);
        assert_eq!(sample.expect("known").jobs[0].rate, 3.0);
        let unknown = Curve::default();
        assert!(predict(&Arm::ceilings([1, 1], 2), &[&unknown, &unknown], 2).is_none());
    }
}
