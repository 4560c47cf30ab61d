//! How fast each job is alone, and what that predicts of jobs together.

use std::collections::BTreeMap;

use super::super::arm::Arm;
use super::super::measure::{JobSample, Sample};

/// How fast a job is alone on certain counts of SMs.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    /// Iterations a second, and the seconds that one takes.
    points: BTreeMap<u32, (f64, f64)>,
}

impl Curve {
    pub(super) fn insert(&mut self, sms: u32, rate: f64, seconds: f64) {
        self.points.insert(sms, (rate, seconds));
    }

    /// Iterations a second by SMs.
    pub(super) fn rates(&self) -> BTreeMap<u32, f64> {
        self.points.iter().map(|(sms, (rate, _))| (*sms, *rate)).collect()
    }

    /// The seconds of an iteration on so many SMs: as on the next smaller count that is known, in
    /// proportion to the SMs, but never less than on the next greater one.
    fn seconds(&self, sms: f64) -> Option<f64> {
        let at = |(count, (_, seconds)): (&u32, &(f64, f64))| (f64::from(*count), *seconds);
        let below = self.points.iter().rev().map(at).find(|(count, _)| *count <= sms);
        let above = self.points.iter().map(at).find(|(count, _)| *count >= sms);
        match (below, above) {
            (Some((count, seconds)), Some((_, least))) => Some((seconds * count / sms).max(least)),
            (Some((_, seconds)), None) => Some(seconds),
            (None, Some((count, seconds))) => Some(seconds * count / sms.max(0.5)),
            (None, None) => None,
        }
    }
}

/// What jobs do together by their times alone: SMs that several may use are worth the same part to each.
/// What they gain or lose beside each other, it does not know. `None` where nothing is known of a job.
pub(super) fn predict(arm: &Arm, curves: &[Curve], sms: u32) -> Option<Sample> {
    let floors: u32 = arm.parts().iter().map(|part| part.floor).sum();
    let pool = f64::from(sms.saturating_sub(floors));
    let wants: f64 = arm.parts().iter().map(|part| f64::from(part.ceiling - part.floor)).sum();
    let part_of_want = if wants > 0.0 { (pool / wants).min(1.0) } else { 0.0 };
    let mut sample = Sample::default();
    let mut slowest = 0.0_f64;
    for (part, curve) in arm.parts().iter().zip(curves) {
        let shared = f64::from(part.ceiling - part.floor) * part_of_want;
        let seconds = curve.seconds(f64::from(part.floor) + shared)?;
        slowest = slowest.max(seconds);
        let latencies_us = vec![1e6 * seconds];
        sample.jobs.push(JobSample { rate: 1.0 / seconds, latencies_us, host_us: 0.0 });
    }
    sample.rounds_us = vec![1e6 * slowest];
    Some(sample)
}

/// The counts with the most different ones first: the ends, the middle, the quarters.
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
    fn times_between_counts_are_of_those() {
        let mut curve = Curve::default();
        curve.insert(16, 1.0, 1.0);
        curve.insert(64, 4.0, 0.3);
        assert_eq!(curve.seconds(16.0), Some(1.0));
        assert_eq!(curve.seconds(32.0), Some(0.5));
        assert_eq!(curve.seconds(60.0), Some(0.3));
        assert_eq!(curve.seconds(132.0), Some(0.3));
        assert_eq!(curve.seconds(8.0), Some(2.0));
        let both = [curve.clone(), curve];
        let sample = predict(&Arm::ceilings([132, 132], 132), &both, 132).expect("known");
        assert_eq!(sample.jobs[0].rate, 1.0 / 0.3);
        assert!(
            predict(&Arm::ceilings([1, 1], 2), &[Curve::default(), Curve::default()], 2).is_none()
        );
    }
}
