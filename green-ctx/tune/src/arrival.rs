//! Arrivals: the times at which the iterations of a job are due.

use std::fmt;
use std::iter;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::request::RequestError;

/// The times at which a job's iterations are submitted.
///
/// | as text | meaning |
/// |---|---|
/// | `closed:2` | two iterations are always in flight: the next one is submitted when one is done |
/// | `rate:1000` | 1000 iterations per second, at equal intervals |
/// | `poisson:1000:7` | 1000 iterations per second on average, at random times drawn from seed 7 |
/// | `trace:FILE` | recorded times: the file lists the arrival time of each iteration, in seconds from the start. The command reads it; [`FromStr`](std::str::FromStr) does not |
///
/// In a closed loop, the latency of an iteration begins when the iteration is submitted, so latencies are meaningful
/// only at depth 1. For all other arrivals, the latency of an iteration begins when the iteration is due, and includes
/// the wait for earlier iterations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Arrival {
    /// A closed loop, in which a fixed number of iterations is always in flight.
    Closed {
        /// The number of iterations in flight.
        depth: u32,
    },
    /// Iterations are due at equal intervals.
    Rate {
        /// The number of iterations per second.
        hz: f64,
    },
    /// Iterations are due at independent random times.
    Poisson {
        /// The average number of iterations per second.
        hz: f64,
        /// The seed of the random times. Equal seeds give equal times.
        seed: u64,
    },
    /// Iterations are due at recorded times. The first should be 0. The trace starts again one mean interval after its
    /// last time: that time divided by one less than the number of times.
    Trace {
        /// The times in ascending order, in seconds from the start.
        seconds: Vec<f64>,
    },
}

impl Arrival {
    /// Returns a closed loop with `depth` iterations in flight.
    #[must_use]
    pub const fn closed(depth: u32) -> Arrival {
        Arrival::Closed { depth }
    }

    /// Returns arrivals at equal intervals, with `hz` iterations per second.
    #[must_use]
    pub const fn rate(hz: f64) -> Arrival {
        Arrival::Rate { hz }
    }

    /// Returns arrivals at random times, with `hz` iterations per second on average. `seed` determines the times.
    #[must_use]
    pub const fn poisson(hz: f64, seed: u64) -> Arrival {
        Arrival::Poisson { hz, seed }
    }

    /// Returns arrivals at recorded times, given as seconds from the start in any order.
    ///
    /// # Errors
    ///
    /// [`RequestError::Wrong`] if the trace is empty, if a time is negative or not finite, if all times are 0, or if
    /// the trace has more than a million iterations per second on average.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_tune::Arrival;
    ///
    /// let arrival = Arrival::trace([0.0, 0.5, 1.0])?;
    /// // The trace starts again one mean interval after its last time: three iterations per 1.5 s.
    /// assert_eq!(arrival.hz(), Some(2.0));
    /// # Ok::<(), green_ctx_tune::RequestError>(())
    /// ```
    pub fn trace(seconds: impl Into<Vec<f64>>) -> Result<Arrival, RequestError> {
        let mut seconds = seconds.into();
        seconds.sort_by(f64::total_cmp);
        let arrival = Arrival::Trace { seconds };
        arrival.check()?;
        Ok(arrival)
    }

    /// Returns the number of iterations in flight; `None` if the arrival is not a closed loop.
    #[must_use]
    pub const fn depth(&self) -> Option<u32> {
        match self {
            Arrival::Closed { depth } => Some(*depth),
            _ => None,
        }
    }

    /// Returns the average number of iterations per second; `None` for a closed loop.
    #[must_use]
    pub fn hz(&self) -> Option<f64> {
        match self {
            Arrival::Closed { .. } => None,
            Arrival::Rate { hz } | Arrival::Poisson { hz, .. } => Some(*hz),
            Arrival::Trace { seconds } => Some(seconds.len() as f64 / trace_length(seconds)),
        }
    }

    /// Checks the values.
    pub(crate) fn check(&self) -> Result<(), RequestError> {
        let wrong = |reason: String| Err(RequestError::wrong(reason));
        match self {
            Arrival::Closed { depth: 0 } => {
                wrong("a depth of 0 submits nothing; use 1 or more".into())
            }
            Arrival::Closed { depth } if *depth > MOST_IN_FLIGHT => {
                wrong(format!("a depth of {depth} is too great; use {MOST_IN_FLIGHT} or less"))
            }
            Arrival::Trace { seconds } if seconds.is_empty() => {
                wrong("the trace is empty; give at least one time after 0".into())
            }
            Arrival::Trace { seconds }
                if !seconds.iter().all(|moment| moment.is_finite() && *moment >= 0.0) =>
            {
                wrong(
                    "the trace has a time that is negative or not finite; give seconds, 0 or more"
                        .into(),
                )
            }
            Arrival::Trace { seconds } if seconds.iter().all(|moment| *moment == 0.0) => {
                wrong("every time in the trace is 0; give seconds from the start".into())
            }
            Arrival::Trace { seconds } if !seconds.is_sorted() => {
                wrong("the trace is not sorted; use Arrival::trace, which sorts the times".into())
            }
            Arrival::Rate { .. } | Arrival::Poisson { .. } | Arrival::Trace { .. } => {
                let hz = self.hz().unwrap_or_default();
                if hz > 0.0 && hz <= MOST_HZ {
                    return Ok(());
                }
                wrong(format!(
                    "a rate of {hz} iterations per second is not valid; use more than 0, up to {MOST_HZ}"
                ))
            }
            Arrival::Closed { .. } => Ok(()),
        }
    }

    /// Returns the times at which iterations are due after `start`, in seconds from `start`. The iterator never ends.
    /// Returns `None` for a closed loop.
    pub(crate) fn moments(&self, start: Duration) -> Option<Box<dyn Iterator<Item = f64> + '_>> {
        let from = start.as_secs_f64();
        Some(match self {
            Arrival::Closed { .. } => return None,
            Arrival::Rate { hz } => {
                let next = ((from * hz).ceil() / hz - from).max(0.0);
                Box::new((0_u64..).map(move |number| next + number as f64 / hz))
            }
            Arrival::Poisson { hz, seed } => {
                // A Poisson process has no memory, so each start can use an independent sequence.
                let seed = seed ^ (start.as_nanos() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let (mut rng, mut last) = (Rng::with_seed(seed), 0.0);
                Box::new(iter::repeat_with(move || {
                    // The argument is never 0.
                    last -= (1.0 - rng.f64()).ln() / hz;
                    last
                }))
            }
            Arrival::Trace { seconds } => {
                let length = trace_length(seconds);
                let from = from % length;
                let next = seconds.partition_point(|moment| *moment < from);
                Box::new((next..).map(move |number| {
                    let (round, index) = (number / seconds.len(), number % seconds.len());
                    round as f64 * length + seconds[index] - from
                }))
            }
        })
    }

    /// Returns the time after which the arrivals of a trace repeat. For random arrivals, returns a time that is longer
    /// than a usual search. For all other arrivals, returns 0.
    pub(crate) fn period(&self) -> Duration {
        match self {
            Arrival::Closed { .. } | Arrival::Rate { .. } => Duration::ZERO,
            Arrival::Poisson { .. } => Duration::from_secs(1000),
            Arrival::Trace { seconds } => {
                Duration::try_from_secs_f64(trace_length(seconds)).unwrap_or(Duration::ZERO)
            }
        }
    }
}

/// The maximum depth of a closed loop. A greater depth does not help, and each iteration in flight needs an event.
const MOST_IN_FLIGHT: u32 = 1024;
/// The maximum number of iterations per second. No host can submit iterations faster.
const MOST_HZ: f64 = 1e6;

/// Returns the time after which a trace starts again, in seconds: one mean interval after its last arrival.
fn trace_length(seconds: &[f64]) -> f64 {
    let last = seconds.last().copied().unwrap_or(0.0);
    last + last / (seconds.len().max(2) - 1) as f64
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arrival::Closed { depth } => write!(f, "closed:{depth}"),
            Arrival::Rate { hz } => write!(f, "rate:{hz}"),
            Arrival::Poisson { hz, seed } => write!(f, "poisson:{hz}:{seed}"),
            Arrival::Trace { seconds } => write!(f, "a trace of {} arrivals", seconds.len()),
        }
    }
}

/// Parses every kind of arrival except traces, which are stored in files.
impl FromStr for Arrival {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Arrival, RequestError> {
        let wrong = || {
            RequestError::wrong(format!(
                "{text:?} is not a valid arrival pattern; write closed:2, rate:1000 or poisson:1000:7"
            ))
        };
        let mut parts = text.split(':');
        let (kind, number, seed) = (parts.next(), parts.next().ok_or_else(wrong)?, parts.next());
        let hz = || number.parse::<f64>().map_err(|_| wrong());
        let arrival = match (kind, seed, parts.next()) {
            (Some("closed"), None, _) => {
                Arrival::Closed { depth: number.parse().map_err(|_| wrong())? }
            }
            (Some("rate"), None, _) => Arrival::Rate { hz: hz()? },
            (Some("poisson"), Some(seed), None) => {
                Arrival::Poisson { hz: hz()?, seed: seed.parse().map_err(|_| wrong())? }
            }
            _ => return Err(wrong()),
        };
        arrival.check()?;
        Ok(arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(arrival: &Arrival, start: f64, count: usize) -> Vec<f64> {
        let start = Duration::from_secs_f64(start);
        arrival.moments(start).expect("it goes by the clock").take(count).collect()
    }

    #[test]
    fn arrivals_go_on_where_they_were() {
        let trace = Arrival::trace([2.0, 1.0, 3.0]).expect("a trace");
        assert!((trace.hz().expect("a rate") - 3.0 / 4.5).abs() < 1e-12);
        let rate = Arrival::rate(4.0);
        for (arrival, start, moments) in [
            (&rate, 0.0, &[0.0, 0.25, 0.5][..]),
            (&rate, 0.3, &[0.2, 0.45]),
            (&rate, 0.5, &[0.0, 0.25]),
            // The trace starts again after 4.5 s.
            (&trace, 0.0, &[1.0, 2.0, 3.0, 5.5, 6.5]),
            (&trace, 2.5, &[0.5, 3.0, 4.0]),
            (&trace, 3.5, &[2.0, 3.0]),
            (&trace, 4.5 * 7.0 + 2.5, &[0.5, 3.0]),
        ] {
            assert_eq!(from(arrival, start, moments.len()), moments, "{arrival} from {start}");
        }
        assert!(Arrival::closed(2).moments(Duration::ZERO).is_none());
    }

    #[test]
    fn random_arrivals_have_their_rate_and_come_again() {
        let random = Arrival::poisson(100.0, 7);
        let mut moments = from(&random, 0.0, 10_000);
        assert!((moments[9999] - 100.0).abs() < 3.0 && moments.is_sorted(), "{}", moments[9999]);
        // The first arrival of each block also has the right mean, and blocks differ.
        moments = (0..1000).flat_map(|block| from(&random, f64::from(block), 1)).collect();
        let mean = moments.iter().sum::<f64>() / 1000.0;
        assert!((mean - 0.01).abs() < 0.001, "{mean}");
        assert_eq!(from(&random, 3.0, 9), from(&random, 3.0, 9));
    }

    #[test]
    fn text_is_read_and_printed() {
        for text in ["closed:2", "rate:1000", "rate:0.5", "poisson:12.5:7"] {
            assert_eq!(text.parse::<Arrival>().expect(text).to_string(), text);
        }
        for (kind, wrong) in [
            ("closed", &["", ":0", ":x", ":2000"][..]),
            ("rate", &[":0", ":-1", ":nan", ":inf", ":1:2", ":1e9"]),
            ("poisson", &[":1", ":1:2:3"]),
            ("", &["", "burst:3"]),
        ] {
            for rest in wrong {
                assert!(format!("{kind}{rest}").parse::<Arrival>().is_err(), "{kind}{rest}");
            }
        }
        for wrong in [vec![], vec![0.0], vec![f64::NAN], vec![-1.0, 2.0], vec![f64::INFINITY]] {
            assert!(Arrival::trace(wrong).is_err());
        }
    }
}
