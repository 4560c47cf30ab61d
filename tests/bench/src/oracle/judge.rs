//! How far a choice is from the best, by the comparison at the end.

use green_ctx::tune::Value;

use super::file::{Finalist, Worth};
use super::stats::{Interval, bootstrap, median};

/// The half width of the regret's interval at which a comparison ends.
pub(super) const WIDEST: f64 = 0.02;
/// By how much of its bound the choice may miss it and still count as one that meets it. What is best under a
/// bound is close to it, and lies on either side from one measurement to the next; the tuner chose by
/// another one. Whatever the choice is compared with meets the bound as it is.
pub(super) const SLACK: f64 = 0.05;
/// How often the blocks are drawn again for an interval.
const RESAMPLES: usize = 2000;

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Judged {
    /// The places of the tuner's choice and of the best among the finalists.
    pub(crate) chosen: usize,
    pub(crate) best: usize,
    /// 1 − the median of the ratios of neighbouring blocks, with its 95 % interval.
    pub(crate) regret: Interval,
    /// Against the best arm without partitions. `None` where that misses the bound and the choice does not.
    pub(crate) gain: Option<Interval>,
    /// By how much the choice misses a bound that another arm meets, as a part of the bound.
    pub(crate) missed: Option<f64>,
}

impl Judged {
    pub(crate) fn half_width(&self) -> f64 {
        (self.regret.high - self.regret.low) / 2.0
    }
}

/// Judges the finalists. `None` where none is the tuner's choice, or where there are no blocks.
pub(crate) fn judge(finalists: &[Finalist]) -> Option<Judged> {
    let chosen = finalists.iter().position(|finalist| finalist.chosen)?;
    let values: Vec<Value> = finalists.iter().map(allowed).collect();
    // Where another is only as good as the choice, the choice is the best.
    let is_rival = |place: &usize| *place != chosen && finalists[*place].is_rival();
    let others = (0..finalists.len()).filter(is_rival);
    let best =
        others.fold(
            chosen,
            |best, other| {
                if values[other].is_better_than(values[best]) { other } else { best }
            },
        );
    let ratio = |other: usize| ratio(&finalists[chosen], &finalists[other], values[other].meets());
    let regret = ratio(best)?;
    let regret =
        Interval { low: 1.0 - regret.high, middle: 1.0 - regret.middle, high: 1.0 - regret.low };
    let plain = finalists.iter().position(|finalist| finalist.unpartitioned);
    let gain = plain.and_then(|plain| gain(&finalists[chosen], &finalists[plain]));
    let missed = (!values[chosen].meets() && values[best].meets()).then_some(values[chosen].miss);
    Some(Judged { chosen, best, regret, gain, missed })
}

/// By how much one is better than another: their ratio minus 1. `None` where the other misses the bound and this one
/// does not.
pub(super) fn gain(one: &Finalist, other: &Finalist) -> Option<Interval> {
    let other_meets = allowed(other).meets();
    let is_comparable = other_meets || !allowed(one).meets();
    let ratio = if is_comparable { ratio(one, other, other_meets) } else { None }?;
    let Interval { low, middle, high } = ratio;
    Some(Interval { low: low - 1.0, middle: middle - 1.0, high: high - 1.0 })
}

/// What all blocks are worth, with the choice's slack.
pub(super) fn allowed(finalist: &Finalist) -> Value {
    let value = finalist.value();
    let has_slack = finalist.chosen && value.miss <= SLACK;
    Value { miss: if has_slack { 0.0 } else { value.miss }, ..value }
}

/// The median of the ratios of blocks of the same sweep: of scores or, where not even the other meets the
/// bound, of how close each block comes to it.
pub(super) fn ratio(one: &Finalist, other: &Finalist, by_score: bool) -> Option<Interval> {
    let worth = |worth: &Worth| if by_score { worth.score } else { 1.0 / (1.0 + worth.miss) };
    let pairs = one.worths.iter().zip(&other.worths);
    let ratios: Vec<f64> = pairs.map(|(one, other)| worth(one) / worth(other)).collect();
    let is_number = ratios.iter().all(|ratio| ratio.is_finite());
    let middle = median(&ratios).filter(|_| is_number)?;
    let drawn = |counts: &[u32]| {
        let drawn = ratios.iter().zip(counts);
        let drawn: Vec<f64> =
            drawn.flat_map(|(ratio, count)| std::iter::repeat_n(*ratio, *count as usize)).collect();
        median(&drawn)
    };
    let [low, high] = bootstrap(ratios.len(), RESAMPLES, drawn)?;
    Some(Interval { low, middle, high })
}

#[cfg(test)]
mod tests {
    use green_ctx::tune::Arm;

    use super::super::file::ArmShape;
    use super::*;

    fn finalist(chosen: bool, unpartitioned: bool, value: [f64; 2], scores: &[f64]) -> Finalist {
        let [miss, score] = value;
        Finalist {
            arm: ArmShape::of(&Arm::streams(2, 132)),
            chosen,
            rank: (!chosen && !unpartitioned).then_some(1),
            unpartitioned,
            grid: None,
            value: Worth { miss, score },
            worths: scores.iter().map(|score| Worth { miss, score: *score }).collect(),
            blocks: Vec::new(),
        }
    }

    #[test]
    fn regret_is_of_blocks_that_are_neighbours() {
        // The device is half as fast in the second half: the ratios do not see it.
        let choice = finalist(true, false, [0.0, 0.96], &[0.96, 0.96, 0.48, 0.48]);
        let best = finalist(false, false, [0.0, 1.0], &[1.0, 1.0, 0.5, 0.5]);
        let plain = finalist(false, true, [0.0, 0.8], &[0.8, 0.8, 0.4, 0.4]);
        let judged = judge(&[choice, best, plain]).expect("a judgement");
        assert_eq!((judged.chosen, judged.best, judged.missed), (0, 1, None));
        assert!((judged.regret.middle - 0.04).abs() < 1e-9 && judged.half_width() < 1e-9);
        assert!(judged.gain.is_some_and(|gain| (gain.middle - 0.2).abs() < 1e-9));
    }

    #[test]
    fn the_choice_may_be_the_best() {
        let choice = finalist(true, true, [0.0, 1.0], &[0.9, 1.1]);
        let judged = judge(&[choice.clone(), finalist(false, false, [0.0, 1.0], &[1.0, 1.0])]);
        let judged = judged.expect("a judgement");
        assert_eq!((judged.best, judged.regret.middle, judged.half_width()), (0, 0.0, 0.0));
        assert_eq!(judged.gain.map(|gain| gain.middle), Some(0.0));
        assert!(judge(&[finalist(false, true, [0.0, 1.0], &[1.0])]).is_none());
        assert!(judge(&[finalist(true, true, [0.0, 0.0], &[])]).is_none());
    }

    #[test]
    fn a_bound_comes_first() {
        let met = finalist(false, true, [0.0, 0.5], &[0.5, 0.5]);
        let close = finalist(true, false, [0.04, 0.8], &[0.8, 0.8]);
        let judged = judge(&[close, met.clone()]).expect("a judgement");
        assert_eq!((judged.best, judged.missed), (0, None));
        // The slack is the choice's alone.
        let exact = finalist(true, false, [0.0, 0.7], &[0.7, 0.7]);
        let beyond = finalist(false, false, [0.01, 0.9], &[0.9, 0.9]);
        let judged = judge(&[exact, beyond]).expect("a judgement");
        assert_eq!((judged.best, judged.regret.middle), (0, 0.0));
        let missed = finalist(true, false, [0.2, 0.8], &[0.8, 0.8]);
        let judged = judge(&[missed.clone(), met]).expect("a judgement");
        assert_eq!((judged.best, judged.missed), (1, Some(0.2)));
        // Where none meets it, whatever comes closest is the best.
        let closer = finalist(false, true, [0.1, 0.1], &[0.1, 0.1]);
        let judged = judge(&[missed, closer]).expect("a judgement");
        assert_eq!((judged.best, judged.missed), (1, None));
        assert!((judged.regret.middle - (1.0 - 1.1 / 1.2)).abs() < 1e-9);
    }

    #[test]
    fn what_was_only_compared_is_no_rival() {
        let choice = finalist(true, false, [0.0, 0.5], &[0.5, 0.5]);
        let mut other = finalist(false, false, [0.0, 1.0], &[1.0, 1.0]);
        other.rank = None;
        let judged = judge(&[choice, other]).expect("a judgement");
        assert_eq!((judged.best, judged.regret.middle), (0, 0.0));
    }

    #[test]
    fn an_arm_without_partitions_that_misses_the_bound_is_no_rival() {
        let choice = finalist(true, false, [0.0, 0.5], &[0.5, 0.5]);
        let plain = finalist(false, true, [0.9, 0.9], &[0.9, 0.9]);
        let judged = judge(&[choice, plain]).expect("a judgement");
        assert_eq!((judged.gain, judged.best), (None, 0));
    }
}
