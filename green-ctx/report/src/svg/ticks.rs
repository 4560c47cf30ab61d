//! Round steps between the ticks of an axis.

/// Returns a step of 1, 2 or 5 times a power of ten, chosen so that an axis has about `most` ticks
/// or fewer.
pub(super) fn tick_step(span: f64, most: f64) -> f64 {
    let rough = span / most;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * power)
}

/// Returns the number of decimal places that multiples of a step need.
pub(super) fn decimals(step: f64) -> usize {
    (-step.log10().floor()).max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let steps = [8.02, 8.5, 10.0, 40.0, 0.013].map(|span| tick_step(span, 10.0));
        let expected = [1.0, 1.0, 1.0, 5.0, 0.002];
        for (step, expected) in steps.into_iter().zip(expected) {
            assert!((step - expected).abs() < 1e-9, "{step} for {expected}");
        }
        assert_eq!([0.002, 0.5, 1.0, 20.0].map(decimals), [3, 1, 0, 0]);
    }
}
