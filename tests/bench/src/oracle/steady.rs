//! Whether searches for the same thing choose alike.

use super::file::{ArmShape, Combination, Finalist};
use super::judge::{SLACK, ratio};

/// How far a choice may be from the usual one and still count as one as good.
pub(super) const CLOSE: f64 = 0.02;

/// What the searches of one combination chose.
#[derive(Debug, PartialEq)]
pub(super) struct Steadiness<'c> {
    pub(super) searches: usize,
    /// How many different choices there were.
    pub(super) different: usize,
    /// The most frequent one.
    pub(super) usual: &'c ArmShape,
    /// How many chose that.
    pub(super) same: usize,
    /// How many chose that, or what is as good in the comparison.
    pub(super) close: usize,
}

impl Steadiness<'_> {
    /// Whether 19 of 20 choices are the same or as good.
    pub(super) fn holds(&self) -> bool {
        20 * self.close >= 19 * self.searches
    }
}

/// How alike the choices are. `None` without a comparison.
pub(super) fn steadiness(combination: &Combination) -> Option<Steadiness<'_>> {
    let choices: Vec<&ArmShape> = combination.searches().map(|search| &search.arm).collect();
    let mut counts: Vec<(&ArmShape, usize)> = Vec::new();
    for choice in &choices {
        match counts.iter_mut().find(|(arm, _)| arm == choice) {
            Some((_, count)) => *count += 1,
            None => counts.push((choice, 1)),
        }
    }
    // Of choices that are equally frequent the first one.
    let most = counts.iter().map(|(_, count)| *count).max()?;
    let (usual, same) = *counts.iter().find(|(_, count)| *count == most)?;
    let compared = |arm: &ArmShape| combination.finalists.iter().find(|one| one.arm == *arm);
    let best = compared(usual)?;
    let is_close = |(arm, _): &&(&ArmShape, usize)| {
        *arm == usual || compared(arm).is_some_and(|one| is_as_good(one, best))
    };
    let close = counts.iter().filter(is_close).map(|(_, count)| count).sum();
    Some(Steadiness { searches: choices.len(), different: counts.len(), usual, same, close })
}

/// Both are choices, and so both may miss a bound by a little.
fn is_as_good(one: &Finalist, usual: &Finalist) -> bool {
    let meets = |finalist: &Finalist| finalist.value.miss <= SLACK;
    meets(one) == meets(usual)
        && ratio(one, usual, meets(usual)).is_some_and(|ratio| (ratio.middle - 1.0).abs() <= CLOSE)
}

#[cfg(test)]
mod tests {
    use green_ctx::tune::{Arm, Goal};

    use super::super::file::{TunerRecord, Worth};
    use super::*;

    fn shape(own: u32) -> ArmShape {
        ArmShape::of(&Arm::ceilings([own, 132 - own], 132))
    }

    /// Searches that chose these, and a comparison of some arms with a miss and a score.
    fn combination(choices: &[u32], compared: &[(u32, [f64; 2])]) -> Combination {
        let search = |own: &u32| TunerRecord {
            arm: shape(*own),
            sentence: String::new(),
            seconds: 10.0,
            gain: None,
            meets: true,
            arms: 80,
        };
        let finalist = |(own, [miss, score]): &(u32, [f64; 2])| Finalist {
            arm: shape(*own),
            chosen: *own == choices[0],
            rank: None,
            unpartitioned: false,
            grid: None,
            value: Worth { miss: *miss, score: *score },
            worths: vec![Worth { miss: *miss, score: *score }; 3],
            blocks: Vec::new(),
        };
        Combination {
            template: "throughput".to_owned(),
            goal: Goal::throughput(),
            tuner: choices.first().map(search),
            repeats: choices.iter().skip(1).map(search).collect(),
            finalists: compared.iter().map(finalist).collect(),
            error: None,
        }
    }

    #[test]
    fn choices_count_that_are_the_same_or_as_good() {
        let choices = [vec![16], vec![32; 17], vec![48], vec![64]].concat();
        let compared =
            [(16, [0.0, 0.99]), (32, [0.0, 1.0]), (48, [0.04, 1.019]), (64, [0.0, 0.97])];
        let combination = combination(&choices, &compared);
        let found = steadiness(&combination).expect("a comparison");
        let usual = shape(32);
        let expected =
            Steadiness { searches: 20, different: 4, usual: &usual, same: 17, close: 19 };
        assert_eq!(found, expected);
        assert!(found.holds());
    }

    #[test]
    fn choices_that_were_not_compared_or_miss_a_bound_do_not_count() {
        let choices = [vec![32; 18], vec![48], vec![64]].concat();
        let combination = combination(&choices, &[(32, [0.0, 1.0]), (48, [0.2, 1.0])]);
        let found = steadiness(&combination).expect("a comparison");
        assert_eq!((found.same, found.close, found.holds()), (18, 18, false));
    }

    #[test]
    fn without_a_comparison_nothing_is_known() {
        assert_eq!(steadiness(&combination(&[32, 32], &[])), None);
        let alone = combination(&[32], &[(32, [0.0, 1.0])]);
        assert!(steadiness(&alone).is_some_and(|found| found.holds() && found.same == 1));
    }
}
