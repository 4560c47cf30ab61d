//! Shares: the floor and the ceiling of a partition.

use std::fmt;
use std::ops::{RangeFrom, RangeFull, RangeInclusive, RangeToInclusive};
use std::str::FromStr;

/// The floor and the ceiling that one entry of a request asks for.
///
/// The *floor* is the number of SMs that only this partition may use. The *ceiling* is the maximum number of
/// SMs that the partition may use, its floor included. The SMs above the floor, up to the ceiling, may also
/// be used by other partitions.
///
/// | in Rust | as text | floor | ceiling | meaning |
/// |---|---|---|---|---|
/// | `16` | `16` | 16 | 16 | exclusive |
/// | `32..` | `32..` | 32 | every SM in no other floor | 32 guaranteed, the others shared |
/// | `16..=48` | `16..=48` | 16 | 48 | 16 guaranteed, at most 48 |
/// | `..=100` | `..=100` | 0 | 100 | none guaranteed, at most 100 |
/// | `..` | `..` | 0 | every SM in no floor | none guaranteed, no limit |
/// | `Share::REST` | `rest` | all that remain | the same | exclusive |
/// | `None` | `all` | all free SMs that can be scheduled together | the same | exclusive |
/// | [`Percent(25)`](Percent) | `25%` | 25 % | 25 % | exclusive |
/// | `Percent(25)..` | `25%..` | 25 % | every SM in no other floor | as with counts |
/// | `..=Percent(75)` | `..=75%` | 0 | 75 % | as with counts |
///
/// A percentage is relative to the SMs that are divided: the SMs of the device, or the floor of a group that is
/// split again (its shared SMs, if it has no floor). The same request therefore works on GPUs of different sizes. The percentages of one request are
/// rounded together. Floors that add up to at most 100 % fit if all SMs are free and there are at least as
/// many units as floors. A [structured](crate::SplitRequest::coscheduled) split rounds percentages to sets of
/// SMs that are scheduled together, and no group gets SMs outside such sets. Counts and percentages can be
/// mixed, as in `16..50%`. Groups and partitions report the number of SMs that each percentage gave.
///
/// A count is rounded up to whole units. In a range, a floor that is a count is rounded up and a ceiling is rounded
/// down, but a ceiling in percent is at least one unit. A floor in percent is rounded to a nearby number of whole
/// units. Rounding never makes the floor larger than the ceiling.
///
/// In text, a range includes both ends: `16..48` means `16..=48`. To avoid confusion with this text form,
/// Rust's half-open ranges cannot be used as shares. This does not compile:
///
/// ```compile_fail,E0277
/// let request = green_ctx::SplitRequest::new().group("decode", 16..48);
/// ```
///
/// # Examples
///
/// ```
/// use green_ctx::Share;
///
/// let share: Share = "16..48".parse()?;
/// assert_eq!(share, Share::from(16..=48));
/// assert_eq!(share.to_string(), "16..=48");
/// assert_eq!(share.floor(), Some(16));
/// assert!("48..16".parse::<Share>().is_err());
/// # Ok::<(), green_ctx::resource::ShareError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(ShareKind);

/// The kinds of [shares](Share).
///
/// The enum is exhaustive on purpose: if a new version adds a kind, a `match` without that kind no longer
/// compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShareKind {
    /// An exclusive number of SMs, rounded up to whole units.
    Count(u32),
    /// An exclusive percentage of the SMs, rounded together with the other percentages of the request.
    Percent(u32),
    /// A floor, and SMs shared with other partitions up to a ceiling.
    Between {
        /// The SMs that no other partition may use.
        floor: Amount,
        /// The maximum number of SMs that the partition may use, its floor included. `None` sets no limit.
        ceiling: Option<Amount>,
    },
    /// An exclusive share of all free SMs that can be scheduled together.
    Regular,
    /// An exclusive share of all SMs that the other groups leave free.
    Rest,
}

/// A number of SMs, or a percentage of the SMs that are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Amount {
    /// A number of SMs.
    Sms(u32),
    /// A percentage from 0 to 100.
    Percent(u32),
}

impl Amount {
    /// Returns the number of SMs, or `None` for a percentage.
    const fn sms(self) -> Option<u32> {
        match self {
            Amount::Sms(sms) => Some(sms),
            Amount::Percent(_) => None,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Sms(sms) => sms.fmt(f),
            Amount::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// A percentage of the SMs that are divided. A percentage converts into a [`Share`], and so does a range of
/// percentages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(pub u32);

impl Share {
    /// An exclusive share of all SMs that the other groups leave free. If no SMs remain, the split returns no
    /// such group.
    pub const REST: Share = Share(ShareKind::Rest);

    /// Returns an exclusive share of a percentage of the SMs. For the bounds of a range, use [`Percent`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use green_ctx::{Driver, Share, SplitRequest, resource::Percent, sim::Sim};
    ///
    /// let request = SplitRequest::new()
    ///     .group("decode", Share::percent(25))
    ///     .group("prefill", Percent(25)..=Percent(75));
    /// let sms = |gpu: &str| -> Result<_, Box<dyn std::error::Error>> {
    ///     let parts = Driver::simulated(&Sim::new(gpu)?)?.device(0)?.partition(request.clone())?;
    ///     Ok((parts["decode"].sm_count(), parts["prefill"].floor(), parts["prefill"].sm_count()))
    /// };
    /// assert_eq!(sms("h200")?, (32, 32, 92));
    /// assert_eq!(sms("thor")?, (6, 6, 14));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn percent(percent: u32) -> Share {
        Share(ShareKind::Percent(percent))
    }

    /// Returns the kind of the share, with its counts and percentages.
    #[must_use]
    pub const fn kind(self) -> ShareKind {
        self.0
    }

    /// Returns the requested floor in SMs. Returns `None` if the floor is a percentage or depends on the free
    /// SMs.
    #[must_use]
    pub const fn floor(self) -> Option<u32> {
        match self.0 {
            ShareKind::Count(count) => Some(count),
            ShareKind::Between { floor, .. } => floor.sms(),
            ShareKind::Percent(_) | ShareKind::Regular | ShareKind::Rest => None,
        }
    }

    /// Returns the requested ceiling in SMs. Returns `None` if the share has no ceiling, or if the ceiling is
    /// a percentage or depends on the free SMs.
    #[must_use]
    pub const fn ceiling(self) -> Option<u32> {
        match self.0 {
            ShareKind::Count(count) => Some(count),
            ShareKind::Between { ceiling: Some(ceiling), .. } => ceiling.sms(),
            ShareKind::Between { ceiling: None, .. }
            | ShareKind::Percent(_)
            | ShareKind::Regular
            | ShareKind::Rest => None,
        }
    }

    /// Returns the percentage of the floor, or 0 if the floor is a count.
    pub(super) const fn floor_percent(self) -> u32 {
        match self.0 {
            ShareKind::Percent(percent)
            | ShareKind::Between { floor: Amount::Percent(percent), .. } => percent,
            _ => 0,
        }
    }

    /// Returns whether the share contains a percentage.
    pub(super) const fn has_percent(self) -> bool {
        matches!(
            self.0,
            ShareKind::Percent(_)
                | ShareKind::Between { floor: Amount::Percent(_), .. }
                | ShareKind::Between { ceiling: Some(Amount::Percent(_)), .. }
        )
    }

    /// Returns whether no other partition may use any SM of this share.
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        match self.0 {
            ShareKind::Between { .. } => false,
            ShareKind::Count(_) | ShareKind::Percent(_) | ShareKind::Regular | ShareKind::Rest => {
                true
            }
        }
    }

    /// Returns whether the share has no ceiling. Such a share takes every SM that is in no floor, and leaves
    /// no SMs for a group that takes the rest.
    #[must_use]
    pub const fn is_unbounded(self) -> bool {
        matches!(self.0, ShareKind::Between { ceiling: None, .. })
    }

    /// Returns the floor in SMs, or 0 if the floor is not a count, and the maximum number of SMs to which
    /// rounding may raise the floor.
    pub(super) const fn wanted(self) -> (u32, u32) {
        let least = match self.floor() {
            Some(floor) => floor,
            None => 0,
        };
        match self.0 {
            ShareKind::Between { ceiling: Some(Amount::Sms(most)), .. } => (least, most),
            _ => (least, u32::MAX),
        }
    }

    /// Returns true if the floor is given as a count or a percentage.
    pub(super) const fn is_counted(self) -> bool {
        match self.0 {
            ShareKind::Count(_) | ShareKind::Percent(_) | ShareKind::Between { .. } => true,
            ShareKind::Regular | ShareKind::Rest => false,
        }
    }

    /// Returns the same share with a floor (or count) of `sm_count` SMs.
    pub(super) const fn with_floor(self, sm_count: u32) -> Share {
        match self.0 {
            ShareKind::Count(_) | ShareKind::Percent(_) => Share(ShareKind::Count(sm_count)),
            ShareKind::Between { ceiling, .. } => {
                Share(ShareKind::Between { floor: Amount::Sms(sm_count), ceiling })
            }
            ShareKind::Regular | ShareKind::Rest => self,
        }
    }

    /// Returns the reason why no device can give this share. The text is worded to follow the name of a
    /// group.
    pub(super) fn fault(self) -> Option<String> {
        use Amount::{Percent, Sms};
        let (floor, ceiling) = match self.0 {
            ShareKind::Count(0) => return Some("asks for 0 SMs; ask for 1 or more".to_owned()),
            ShareKind::Percent(0) => return Some("asks for 0%; ask for 1% or more".to_owned()),
            ShareKind::Percent(percent) => (Percent(percent), None),
            ShareKind::Between { floor, ceiling } => (floor, ceiling),
            ShareKind::Count(_) | ShareKind::Regular | ShareKind::Rest => return None,
        };
        if let Some(Sms(0) | Percent(0)) = ceiling {
            return Some(format!(
                "asks for {self}, a ceiling of 0 SMs; ask for 1 or more, or for `..`"
            ));
        }
        let is_above = |amount: &Amount| matches!(amount, Percent(percent) if *percent > 100);
        if let Some(above) = [Some(floor), ceiling].into_iter().flatten().find(is_above) {
            return Some(format!("asks for {above}; ask for at most 100%"));
        }
        match (floor, ceiling) {
            (Sms(least), Some(Sms(most))) | (Percent(least), Some(Percent(most)))
                if least > most =>
            {
                let swapped = Share(ShareKind::Between { floor: ceiling?, ceiling: Some(floor) });
                Some(format!("asks for {self}, a floor above its ceiling; ask for {swapped}"))
            }
            _ => None,
        }
    }
}

/// Stores a floor of 0 % as a floor of 0 SMs.
impl From<ShareKind> for Share {
    fn from(kind: ShareKind) -> Share {
        match kind {
            ShareKind::Between { floor: Amount::Percent(0), ceiling } => {
                Share(ShareKind::Between { floor: Amount::Sms(0), ceiling })
            }
            kind => Share(kind),
        }
    }
}

impl From<u32> for Share {
    fn from(sm_count: u32) -> Share {
        Share(ShareKind::Count(sm_count))
    }
}

/// Converts a number to a count of SMs, and `None` to all free SMs that can be scheduled together (all free
/// regular units).
impl From<Option<u32>> for Share {
    fn from(sm_count: Option<u32>) -> Share {
        sm_count.map_or(Share(ShareKind::Regular), Share::from)
    }
}

impl From<Percent> for Share {
    fn from(percent: Percent) -> Share {
        Share::percent(percent.0)
    }
}

/// Implements `From` for ranges of counts and of percentages.
macro_rules! ranges {
    ($($bound:ty: $amount:expr;)*) => {
        $(
            impl From<RangeFrom<$bound>> for Share {
                fn from(range: RangeFrom<$bound>) -> Share {
                    Share::from(ShareKind::Between { floor: $amount(range.start), ceiling: None })
                }
            }

            impl From<RangeInclusive<$bound>> for Share {
                fn from(range: RangeInclusive<$bound>) -> Share {
                    let (floor, ceiling) = range.into_inner();
                    let ceiling = Some($amount(ceiling));
                    Share::from(ShareKind::Between { floor: $amount(floor), ceiling })
                }
            }

            impl From<RangeToInclusive<$bound>> for Share {
                fn from(range: RangeToInclusive<$bound>) -> Share {
                    let ceiling = Some($amount(range.end));
                    Share(ShareKind::Between { floor: Amount::Sms(0), ceiling })
                }
            }
        )*
    };
}
ranges! {
    u32: Amount::Sms;
    Percent: |Percent(percent)| Amount::Percent(percent);
}

impl From<RangeFull> for Share {
    fn from(_: RangeFull) -> Share {
        Share(ShareKind::Between { floor: Amount::Sms(0), ceiling: None })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (floor, ceiling) = match self.0 {
            ShareKind::Count(count) => return count.fmt(f),
            ShareKind::Percent(percent) => return f.pad(&format!("{percent}%")),
            ShareKind::Regular => return f.pad("all"),
            ShareKind::Rest => return f.pad("rest"),
            ShareKind::Between { floor, ceiling } => (floor, ceiling),
        };
        let floor = if floor == Amount::Sms(0) { String::new() } else { floor.to_string() };
        let ceiling = ceiling.map_or_else(String::new, |ceiling| format!("={ceiling}"));
        f.pad(&format!("{floor}..{ceiling}"))
    }
}

/// The error for text that is not a share, or that requests a share that no device can give.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ShareError {
    reason: String,
}

green_ctx_sys::debug_as_text!(ShareError);

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Share, ShareError> {
        let text = text.trim();
        let number = |part: &str| {
            // `u32::from_str` accepts a leading `+`; a share does not.
            let part = part.trim().replace('+', "?");
            part.parse::<u32>().map_err(|error| ShareError { reason: wrong(text, &error) })
        };
        let amount = |part: &str| match part.trim().strip_suffix('%') {
            Some(percent) => number(percent).map(Amount::Percent),
            None => number(part).map(Amount::Sms),
        };
        let share = match (text, text.split_once("..")) {
            ("rest", _) => Share::REST,
            ("all", _) => Share(ShareKind::Regular),
            (_, None) => match amount(text)? {
                Amount::Sms(count) => Share::from(count),
                Amount::Percent(percent) => Share::percent(percent),
            },
            (_, Some((floor, ceiling))) => {
                let floor = if floor.trim().is_empty() { Amount::Sms(0) } else { amount(floor)? };
                let ceiling = match ceiling.strip_prefix('=') {
                    Some(ceiling) => Some(amount(ceiling)?),
                    None if ceiling.trim().is_empty() => None,
                    None => Some(amount(ceiling)?),
                };
                Share::from(ShareKind::Between { floor, ceiling })
            }
        };
        match share.fault() {
            None => Ok(share),
            Some(fault) => Err(ShareError { reason: format!("the share {fault}") }),
        }
    }
}

impl FromStr for Amount {
    type Err = ShareError;

    /// Reads a number of SMs such as `32`, or a percentage such as `25%`.
    fn from_str(text: &str) -> Result<Amount, ShareError> {
        match text.parse::<Share>()?.kind() {
            ShareKind::Count(sms) => Ok(Amount::Sms(sms)),
            ShareKind::Percent(percent) => Ok(Amount::Percent(percent)),
            _ => Err(ShareError { reason: format!("{text:?} is not an amount such as 32 or 25%") }),
        }
    }
}

/// Returns the reason why `text` is not a share.
fn wrong(text: &str, error: &std::num::ParseIntError) -> String {
    use std::num::IntErrorKind::PosOverflow;
    if let Some(part) = text.parse::<f64>().ok().filter(|part| (0.005..=1.0).contains(part)) {
        return format!("{text:?} is not a share; did you mean {:.0}%?", 100.0 * part);
    }
    match error.kind() {
        _ if text.is_empty() => {
            "a share is missing; ask for SMs as in 16, 32.., 16..48, ..100 or 25%".to_owned()
        }
        PosOverflow if text.contains('%') => format!("{text:?} is more than 100%; ask for less"),
        PosOverflow => format!("{text:?} is more SMs than any device has; ask for fewer"),
        _ => format!(
            "{text:?} is not a share; ask for SMs as in 16, 32.., 16..48, ..100, 25%, .., rest or all"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{Amount, Percent, Share};

    #[test]
    fn an_amount_is_a_count_or_a_percentage() {
        let read = |text: &str| text.parse::<Amount>().map_err(|error| error.to_string());
        assert_eq!([read("32"), read("25%")], [Ok(Amount::Sms(32)), Ok(Amount::Percent(25))]);
        for text in ["32..", "rest", "..", "x", "-1"] {
            assert!(read(text).is_err_and(|error| error.contains("is not a")), "{text}");
        }
    }

    #[test]
    fn text_is_inclusive_and_read_back() {
        let read = |text: &str| text.parse::<Share>().expect("a share");
        assert_eq!(read("16"), Share::from(16));
        assert_eq!(read(" 32.. "), Share::from(32..));
        assert_eq!([read("16..48"), read("16..=48")], [Share::from(16..=48); 2]);
        assert_eq!([read("..100"), read("..=100")], [Share::from(..=100); 2]);
        assert_eq!([read(".."), read("0..")], [Share::from(..); 2]);
        assert_eq!([read("rest"), read("all")], [Share::REST, Share::from(None)]);
        assert_eq!([read("25%"), read(" 25 % ")], [Share::percent(25), Percent(25).into()]);
        assert_eq!(
            [read("25%.."), read("..75%")],
            [(Percent(25)..).into(), (..=Percent(75)).into()]
        );
        assert_eq!(read("25%..75%"), Share::from(Percent(25)..=Percent(75)));
        assert_eq!([read("0%.."), Share::from(Percent(0)..)], [Share::from(..); 2]);
        assert_eq!([read("0%..50%"), Share::from(Percent(0)..=Percent(50))], [read("..50%"); 2]);
        let texts =
            ["16", "32..", "16..=48", "..=100", "..", "rest", "all", "25%", "25%..", "..=75%"];
        for text in texts.into_iter().chain(["16..=50%", "25%..=48", "10%..=50%"]) {
            assert_eq!(read(text).to_string(), text);
        }
    }

    #[test]
    fn what_no_device_can_give_is_refused() {
        for (text, needle) in [
            ("0", "asks for 0 SMs"),
            ("..0", "a ceiling of 0 SMs"),
            ("48..16", "ask for 16..=48"),
            ("0%", "ask for 1%"),
            ("..0%", "a ceiling of 0 SMs"),
            ("101%", "at most 100%"),
            ("50%..120%", "asks for 120%"),
            ("75%..25%", "ask for 25%..=75%"),
            ("%", "is not a share"),
            ("-3", "is not a share"),
            ("16...48", "is not a share"),
            ("16..=", "is not a share"),
            ("+16", "is not a share"),
            ("0.25", "did you mean 25%?"),
            ("1.5", "ask for SMs as in"),
            ("", "missing"),
            ("4294967296", "more SMs than any device has"),
        ] {
            let error = text.parse::<Share>().expect_err(text).to_string();
            assert!(error.contains(needle), "{error}");
        }
    }
}
