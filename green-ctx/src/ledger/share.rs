//! Shares: the SMs that a partition has for itself, and the most that it may use.

use std::fmt;
use std::ops::{RangeFrom, RangeFull, RangeInclusive, RangeToInclusive};
use std::str::FromStr;

/// How many SMs a partition has for itself, its *floor*, and the most that it may use, its *ceiling*.
/// Between the two it shares: the SMs there may be used by any partition whose ceiling reaches them.
///
/// | in Rust | as text | floor | ceiling | meaning |
/// |---|---|---|---|---|
/// | `16` | `16` | 16 | 16 | exclusive |
/// | `32..` | `32..` | 32 | every SM in nobody else's floor | 32 for sure, the rest while it is idle |
/// | `16..=48` | `16..=48` | 16 | 48 | 16 for sure, at most 48 |
/// | `..=100` | `..=100` | 0 | 100 | nothing for sure, never more than 100 |
/// | `..` | `..` | 0 | every SM in nobody's floor | no promise, no cap |
/// | `Share::REST` | `rest` | what remains | the same | exclusive |
/// | `None` | `all` | what can be scheduled together | the same | exclusive |
///
/// Floors are rounded up to whole units and ceilings are rounded down, never past each other. Text is
/// inclusive at both ends: `16..48` is read as `16..=48`. Half-open ranges of Rust are no shares, so
/// that nobody means one thing and gets another:
///
/// ```compile_fail,E0277
/// let request = green_ctx::SplitRequest::new().group("decode", 16..48);
/// ```
///
/// # Example
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
/// Code that handles shares matches all kinds, so that it does not compile when a kind is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShareKind {
    /// This many SMs, exclusive, rounded up to whole units.
    Count(u32),
    /// `floor` SMs that no other partition may use, and at most `ceiling` SMs in all. `None` sets no ceiling.
    Between {
        /// The SMs that no other partition may use.
        floor: u32,
        /// The most SMs that the partition may use, those of the floor included.
        ceiling: Option<u32>,
    },
    /// All free SMs that can be scheduled together, exclusive.
    Regular,
    /// All SMs that remain free, exclusive.
    Rest,
}

impl Share {
    /// What remains free, exclusive; nothing where nothing remains.
    pub const REST: Share = Share(ShareKind::Rest);

    /// Returns what the share asks for.
    #[must_use]
    pub const fn kind(self) -> ShareKind {
        self.0
    }

    /// The SMs asked for as a floor; `None` where they depend on what is free.
    #[must_use]
    pub const fn floor(self) -> Option<u32> {
        match self.0 {
            ShareKind::Count(count) => Some(count),
            ShareKind::Between { floor, .. } => Some(floor),
            ShareKind::Regular | ShareKind::Rest => None,
        }
    }

    /// The most SMs asked for; `None` where no number bounds them.
    #[must_use]
    pub const fn ceiling(self) -> Option<u32> {
        match self.0 {
            ShareKind::Count(count) => Some(count),
            ShareKind::Between { ceiling, .. } => ceiling,
            ShareKind::Regular | ShareKind::Rest => None,
        }
    }

    /// Whether all of the partition's SMs are its own.
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        match self.0 {
            ShareKind::Count(_) | ShareKind::Regular | ShareKind::Rest => true,
            ShareKind::Between { .. } => false,
        }
    }

    /// Whether it takes every SM that is in nobody's floor, so that none is left for the rest.
    #[must_use]
    pub const fn is_unbounded(self) -> bool {
        matches!(self.0, ShareKind::Between { ceiling: None, .. })
    }

    /// The SMs that a counted floor needs, 0 for none, and the most that rounding may come to.
    pub(super) const fn wanted(self) -> (u32, u32) {
        match self.0 {
            ShareKind::Count(count) => (count, u32::MAX),
            ShareKind::Between { floor, ceiling: Some(ceiling) } => (floor, ceiling),
            ShareKind::Between { floor, ceiling: None } => (floor, u32::MAX),
            ShareKind::Regular | ShareKind::Rest => (0, u32::MAX),
        }
    }

    /// Whether a number says how many SMs its floor has.
    pub(super) const fn is_counted(self) -> bool {
        match self.0 {
            ShareKind::Count(_) | ShareKind::Between { .. } => true,
            ShareKind::Regular | ShareKind::Rest => false,
        }
    }

    /// The same with another floor, or count.
    pub(super) const fn with_floor(self, sm_count: u32) -> Share {
        match self.0 {
            ShareKind::Count(_) => Share(ShareKind::Count(sm_count)),
            ShareKind::Between { ceiling, .. } => {
                Share(ShareKind::Between { floor: sm_count, ceiling })
            }
            ShareKind::Regular | ShareKind::Rest => self,
        }
    }

    /// What is wrong with a share that no device can give, to be said of whoever asks for it.
    pub(super) fn fault(self) -> Option<String> {
        match self.0 {
            ShareKind::Count(0) => Some("asks for 0 SMs; ask for 1 or more".to_owned()),
            ShareKind::Between { ceiling: Some(0), .. } => {
                Some(format!("asks for {self}, a ceiling of 0 SMs; ask for 1 or more, or for `..`"))
            }
            ShareKind::Between { floor, ceiling: Some(ceiling) } if floor > ceiling => Some(
                format!("asks for {self}, a floor above its ceiling; ask for {ceiling}..={floor}"),
            ),
            ShareKind::Count(_)
            | ShareKind::Between { .. }
            | ShareKind::Regular
            | ShareKind::Rest => None,
        }
    }
}

impl From<u32> for Share {
    fn from(sm_count: u32) -> Share {
        Share(ShareKind::Count(sm_count))
    }
}

/// A count, or with `None` as many SMs as can be scheduled together: all regular units that are free.
impl From<Option<u32>> for Share {
    fn from(sm_count: Option<u32>) -> Share {
        sm_count.map_or(Share(ShareKind::Regular), Share::from)
    }
}

impl From<RangeFrom<u32>> for Share {
    fn from(range: RangeFrom<u32>) -> Share {
        Share(ShareKind::Between { floor: range.start, ceiling: None })
    }
}

impl From<RangeInclusive<u32>> for Share {
    fn from(range: RangeInclusive<u32>) -> Share {
        Share(ShareKind::Between { floor: *range.start(), ceiling: Some(*range.end()) })
    }
}

impl From<RangeToInclusive<u32>> for Share {
    fn from(range: RangeToInclusive<u32>) -> Share {
        Share(ShareKind::Between { floor: 0, ceiling: Some(range.end) })
    }
}

impl From<RangeFull> for Share {
    fn from(_: RangeFull) -> Share {
        Share(ShareKind::Between { floor: 0, ceiling: None })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (floor, ceiling) = match self.0 {
            ShareKind::Count(count) => return count.fmt(f),
            ShareKind::Regular => return f.pad("all"),
            ShareKind::Rest => return f.pad("rest"),
            ShareKind::Between { floor, ceiling } => (floor, ceiling),
        };
        let floor = if floor == 0 { String::new() } else { floor.to_string() };
        let ceiling = ceiling.map_or_else(String::new, |ceiling| format!("={ceiling}"));
        f.pad(&format!("{floor}..{ceiling}"))
    }
}

/// Text that is no share, or a share that no device can give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ShareError {
    reason: String,
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Share, ShareError> {
        let text = text.trim();
        let number = |part: &str| {
            // A sign is none of a share's.
            let part = part.trim().replace('+', "?");
            part.parse::<u32>().map_err(|error| ShareError { reason: wrong(text, &error) })
        };
        let share = match (text, text.split_once("..")) {
            ("rest", _) => Share::REST,
            ("all", _) => Share(ShareKind::Regular),
            (_, None) => Share::from(number(text)?),
            (_, Some((floor, ceiling))) => {
                let floor = if floor.trim().is_empty() { 0 } else { number(floor)? };
                let ceiling = match ceiling.strip_prefix('=') {
                    Some(ceiling) => Some(number(ceiling)?),
                    None if ceiling.trim().is_empty() => None,
                    None => Some(number(ceiling)?),
                };
                Share(ShareKind::Between { floor, ceiling })
            }
        };
        match share.fault() {
            None => Ok(share),
            Some(fault) => Err(ShareError { reason: format!("the share {fault}") }),
        }
    }
}

/// Why a text is no share.
fn wrong(text: &str, error: &std::num::ParseIntError) -> String {
    use std::num::IntErrorKind::PosOverflow;
    match error.kind() {
        _ if text.is_empty() => {
            "a share is missing; ask for SMs as in 16, 32.., 16..48 or ..100".to_owned()
        }
        PosOverflow => format!("{text:?} is more SMs than any device has; ask for fewer"),
        _ => format!("{text:?} is no share; ask for SMs as in 16, 32.., 16..48, ..100, .. or rest"),
    }
}

#[cfg(test)]
mod tests {
    use super::Share;

    #[test]
    fn text_is_inclusive_and_read_back() {
        let read = |text: &str| text.parse::<Share>().expect("a share");
        assert_eq!(read("16"), Share::from(16));
        assert_eq!(read(" 32.. "), Share::from(32..));
        assert_eq!([read("16..48"), read("16..=48")], [Share::from(16..=48); 2]);
        assert_eq!([read("..100"), read("..=100")], [Share::from(..=100); 2]);
        assert_eq!([read(".."), read("0..")], [Share::from(..); 2]);
        assert_eq!([read("rest"), read("all")], [Share::REST, Share::from(None)]);
        for text in ["16", "32..", "16..=48", "..=100", "..", "rest", "all"] {
            assert_eq!(read(text).to_string(), text);
        }
    }

    #[test]
    fn what_no_device_can_give_is_refused() {
        for (text, needle) in [
            ("0", "asks for 0 SMs"),
            ("..0", "a ceiling of 0 SMs"),
            ("48..16", "ask for 16..=48"),
            ("-3", "is no share"),
            ("16...48", "is no share"),
            ("16..=", "is no share"),
            ("+16", "is no share"),
            ("", "missing"),
            ("4294967296", "more SMs than any device has"),
        ] {
            let error = text.parse::<Share>().expect_err(text).to_string();
            assert!(error.contains(needle), "{error}");
        }
    }
}
