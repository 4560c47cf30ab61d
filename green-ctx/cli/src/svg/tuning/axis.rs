//! Axes, and the chart that two of them span.

use super::super::canvas::{Canvas, Escaped, Number};
use super::super::ticks::{decimals, tick_step};
use super::super::{INK, SOFT};

/// A rectangle of the page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl Area {
    /// A square with this point in its middle.
    pub(super) fn around((x, y): (f64, f64), radius: f64) -> Area {
        Area { left: x - radius, top: y - radius, right: x + radius, bottom: y + radius }
    }
}

/// The values from one end to the other of an axis, linear or by powers of ten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
    is_log: bool,
}

/// About so many ticks.
const TICKS: f64 = 7.0;
/// Values whose greatest is so many times the smallest are easier to read on an axis by powers of ten.
const LOG_FROM: f64 = 8.0;

/// What an axis can show: beyond this, differences between values overflow.
pub(super) fn can_be_drawn(value: f64) -> bool {
    value.is_finite() && value.abs() <= 1e15
}

impl Axis {
    /// A linear axis that is a little longer than these values need.
    pub(super) fn around(values: impl Iterator<Item = f64>) -> Axis {
        let Some((low, high)) = ends(values) else {
            return Axis { low: 0.0, high: 100.0, is_log: false };
        };
        let middle = low.abs().max(high.abs());
        let span = (high - low).max(0.04 * middle).max(1e-3);
        let (padded, centre) = (0.58 * span, (low + high) / 2.0);
        let start = if low >= 0.0 { (centre - padded).max(0.0) } else { centre - padded };
        Axis { low: start, high: centre + padded, is_log: false }
    }

    /// An axis for these times, by powers of ten where they differ much.
    pub(super) fn of_times(values: impl Iterator<Item = f64> + Clone) -> Axis {
        match ends(values.clone()) {
            Some((low, high)) if low > 0.0 && high / low >= LOG_FROM => {
                let padding = (high / low).powf(0.06);
                Axis { low: low / padding, high: high * padding, is_log: true }
            }
            _ => Axis::around(values),
        }
    }

    /// How far along the axis a value is, from 0 to 1.
    fn along(&self, value: f64) -> f64 {
        let Axis { low, high, is_log } = *self;
        let along = match is_log {
            true => (value.max(low) / low).ln() / (high / low).ln(),
            false => (value - low) / (high - low),
        };
        along.clamp(0.0, 1.0)
    }

    /// Round values, with their texts.
    fn ticks(&self) -> Vec<(f64, String)> {
        let is_inside = |value: f64| value >= self.low * (1.0 - 1e-9) && value <= self.high;
        if self.is_log {
            let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
            let decades = self.high.log10() - self.low.log10();
            let of_ten: &[f64] = if decades <= 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let stride = (decades / TICKS).ceil().max(1.0) as usize;
            return (first..=last)
                .step_by(stride)
                .flat_map(|power| of_ten.iter().map(move |factor| (power, *factor)))
                .map(|(power, factor)| (factor * 10f64.powi(power), (-power).max(0) as usize))
                .filter(|(value, _)| is_inside(*value))
                .map(|(value, decimals)| (value, tick_text(value, decimals)))
                .collect();
        }
        let step = tick_step(self.high - self.low, TICKS);
        let first = (self.low / step - 1e-9).ceil();
        (0..)
            .map(|tick| (first + f64::from(tick)) * step)
            .take_while(|value| *value <= self.high + 1e-9 * step)
            .take(2 * TICKS as usize)
            .map(|value| (value, tick_text(value, decimals(step))))
            .collect()
    }
}

fn tick_text(value: f64, decimals: usize) -> String {
    if value.abs() >= 1e7 { format!("{value:.1e}") } else { format!("{value:.decimals$}") }
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| can_be_drawn(*value)).fold(None, |ends, value| {
        let (low, high) = ends.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// The area of a chart with its axes.
pub(super) struct Chart {
    pub(super) area: Area,
    pub(super) x: Axis,
    pub(super) y: Axis,
}

impl Chart {
    pub(super) fn x(&self, value: f64) -> f64 {
        self.area.left + self.x.along(value) * (self.area.right - self.area.left)
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        self.area.bottom - self.y.along(value) * (self.area.bottom - self.area.top)
    }

    /// Draws the ground and both axes.
    pub(super) fn draw(&self, canvas: &mut Canvas, x_caption: &str, y_caption: &str) {
        let Area { left, top, right, bottom } = self.area;
        canvas.put(format_args!(
            r##"<rect x="{}" y="{}" width="{}" height="{}" fill="#f7f7f7"/>"##,
            Number(left),
            Number(top),
            Number(right - left),
            Number(bottom - top),
        ));
        canvas.group(format_args!(
            r#"class="axis" font-size="10.5" text-anchor="middle" fill="{SOFT}""#
        ));
        for (value, text) in self.x.ticks() {
            let x = self.x(value);
            line(canvas, (x, top), (x, bottom + 4.0));
            canvas.text(x, bottom + 16.0, "", &text);
        }
        canvas.close();
        let attributes = format!(r#"font-size="11.5" text-anchor="middle" fill="{INK}""#);
        canvas.text((left + right) / 2.0, bottom + 34.0, &attributes, x_caption);
        canvas.group(format_args!(
            r#"class="axis" font-size="10.5" text-anchor="end" fill="{SOFT}""#
        ));
        for (value, text) in self.y.ticks() {
            let y = self.y(value);
            line(canvas, (left - 4.0, y), (right, y));
            canvas.text(left - 8.0, y + 3.7, "", &text);
        }
        canvas.close();
        let (x, y) = (Number(left - 42.0), Number((top + bottom) / 2.0));
        canvas.put(format_args!(
            r#"<text x="{x}" y="{y}" transform="rotate(-90 {x} {y})" font-size="11.5" text-anchor="middle" fill="{INK}">{}</text>"#,
            Escaped(y_caption),
        ));
    }

    /// Says why there is nothing to see.
    pub(super) fn say(&self, canvas: &mut Canvas, text: &str) {
        let Area { left, top, right, bottom } = self.area;
        let attributes = format!(r#"font-size="13" text-anchor="middle" fill="{SOFT}""#);
        canvas.text((left + right) / 2.0, (top + bottom) / 2.0, &attributes, text);
    }
}

fn line(canvas: &mut Canvas, from: (f64, f64), to: (f64, f64)) {
    canvas.put(format_args!(
        r##"<path d="M{} {}L{} {}" stroke="#dedede"/>"##,
        Number(from.0),
        Number(from.1),
        Number(to.0),
        Number(to.1),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(texts(Axis::around([61.0, 62.0].into_iter()))[0], "60.5");
        let times = Axis::of_times([100.0, 5000.0].into_iter());
        assert_eq!(texts(times), ["100", "200", "500", "1000", "2000", "5000"]);
        let decades = Axis::of_times([1e-3, 1e12].into_iter());
        assert!(texts(decades).len() <= 8, "{:?}", texts(decades));
    }

    #[test]
    fn any_values_give_an_axis() {
        let odd = [f64::NAN, f64::INFINITY, -3.0, 0.0, 1e300];
        for values in [&odd[..], &odd[..2], &odd[3..4], &[]] {
            let values = || values.iter().copied();
            for axis in [Axis::around(values()), Axis::of_times(values())] {
                assert!(axis.high > axis.low && axis.ticks().len() < 20, "{axis:?}");
                for value in odd.into_iter().filter(|value| can_be_drawn(*value)) {
                    assert!((0.0..=1.0).contains(&axis.along(value)), "{axis:?} {value}");
                }
            }
        }
    }
}
