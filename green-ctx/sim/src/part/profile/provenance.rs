//! Where the data of a profile come from.

use std::fmt;

/// Where the data of a [`Profile`](crate::Profile) come from.
///
/// # Example
///
/// ```
/// use green_ctx_sim::Profile;
///
/// let summary = |name| Profile::by_name(name).map(|part| part.provenance.summary(13_000));
/// assert_eq!(summary("h200").as_deref(), Some("recorded on driver 580.159.04"));
/// assert_eq!(summary("a100").as_deref(), Some("from documentation, unrecorded"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provenance {
    /// The driver whose answers were recorded; `None` for a part that nothing was recorded on.
    pub recorded: Option<Record>,
    /// What each group of the data rests on.
    pub sources: &'static [Source],
}

/// A driver whose answers were recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The driver's own version, such as `580.159.04`.
    pub driver: &'static str,
    /// The CUDA version of it as `cuDriverGetVersion` returns it.
    pub version: u32,
}

/// What a group of a profile's data rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// Which data.
    pub data: &'static str,
    /// How they are known.
    pub origin: Origin,
    /// Where they were found.
    pub from: &'static str,
}

/// How data are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// Hardware answered so.
    Recorded,
    /// The vendor's data sheets, white papers, guides and headers say so.
    Documented,
    /// Users of the part published it.
    Reported,
    /// Nothing that is public says so; it is the plainest reading of what does.
    Modelled,
}

/// Data that hardware answered.
pub(super) const fn recorded(data: &'static str, from: &'static str) -> Source {
    Source { data, origin: Origin::Recorded, from }
}

/// Data that the vendor published.
pub(super) const fn documented(data: &'static str, from: &'static str) -> Source {
    Source { data, origin: Origin::Documented, from }
}

/// Data that users of the part published.
pub(super) const fn reported(data: &'static str, from: &'static str) -> Source {
    Source { data, origin: Origin::Reported, from }
}

/// Data that nothing public gives.
pub(super) const fn modelled(data: &'static str, from: &'static str) -> Source {
    Source { data, origin: Origin::Modelled, from }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Recorded => "recorded",
            Origin::Documented => "documented",
            Origin::Reported => "reported",
            Origin::Modelled => "modelled",
        })
    }
}

impl Provenance {
    /// Where the answers of a driver of this version come from, in a line. The version is as
    /// `cuDriverGetVersion` returns it, 13000 for CUDA 13.0.
    #[must_use]
    pub fn summary(&self, version: u32) -> String {
        match self.recorded {
            None => "from documentation, unrecorded".to_owned(),
            Some(record) if record.version == version => {
                format!("recorded on driver {}", record.driver)
            }
            Some(record) => format!(
                "unrecorded for CUDA {}; those for CUDA {} were recorded on driver {}",
                dotted(version),
                dotted(record.version),
                record.driver
            ),
        }
    }
}

/// The version as people write it: 13000 is 13.0.
pub(crate) fn dotted(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
