//! The sources of a profile's data.

use std::fmt;

/// The sources of the data of a [`Profile`](crate::Profile).
///
/// # Examples
///
/// ```
/// use green_ctx_sim::Profile;
///
/// let summary = |name| Profile::by_name(name).map(|profile| profile.provenance.summary(13_000));
/// assert_eq!(summary("h200").as_deref(), Some("recorded on driver 580.159.04"));
/// assert_eq!(summary("a100").as_deref(), Some("from documentation, unrecorded"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provenance {
    /// The driver whose behaviour was recorded; `None` if nothing was recorded on this GPU.
    pub recorded: Option<Record>,
    /// The source of each group of data.
    pub sources: &'static [Source],
}

/// A driver whose behaviour was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The driver's own version, such as `580.159.04`.
    pub driver: &'static str,
    /// The driver's CUDA version, as `cuDriverGetVersion` returns it.
    pub version: u32,
}

/// The source of one group of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// The group of data.
    pub data: &'static str,
    /// The kind of source.
    pub origin: Origin,
    /// The document, recording or rule behind the data.
    pub from: &'static str,
}

/// The kind of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The data was recorded on hardware.
    Recorded,
    /// The data comes from the vendor's data sheets, white papers, guides or headers.
    Documented,
    /// Users of the GPU published the data.
    Reported,
    /// No public source contains the data. The data is the simplest model that fits the public
    /// sources.
    Modelled,
}

/// Creates a source for data recorded on hardware.
pub(super) const fn recorded(data: &'static str, from: &'static str) -> Source {
    Source { data, origin: Origin::Recorded, from }
}

/// Creates a source for data that the vendor published.
pub(super) const fn documented(data: &'static str, from: &'static str) -> Source {
    Source { data, origin: Origin::Documented, from }
}

/// Creates a source for data that users published.
pub(super) const fn reported(data: &'static str, from: &'static str) -> Source {
    Source { data, origin: Origin::Reported, from }
}

/// Creates a source for data that no public source contains.
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
    /// Returns one line that describes the source of the simulated behaviour with this driver
    /// version. `version` is a number as `cuDriverGetVersion` returns it, such as 13000 for CUDA
    /// 13.0.
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

/// Returns a version in the usual notation: 13000 becomes 13.0.
pub(crate) fn dotted(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
