//! The names and sizes of the built-in jobs.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The kind of a built-in job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The product of two square matrices with SIZE rows. cuBLAS computes the product in bf16; if cuBLAS is not found,
    /// a built-in kernel computes the product in f32. The job is compute-bound. SIZE is a multiple of 64 from 256 to
    /// 16384. The default is 4096 with cuBLAS, and 2048 with the built-in kernel.
    Gemm,
    /// The product of a square matrix with SIZE rows and a vector, in f32. The job is memory-bound. SIZE is a multiple
    /// of 256 from 256 to 32768; the default is 8192.
    Gemv,
    /// A copy of SIZE MiB within device memory. The job is memory-bound. SIZE is from 1 to 8192; the default is 256.
    Copy,
    /// SIZE additions of 256 × 256 numbers, which run one after the other. Each launch is far too small to fill the
    /// device. SIZE is from 1 to 4096; the default is 64.
    Small,
    /// The forward pass of attention in f32, with sequence length SIZE and 32 heads of dimension 32. SIZE is a multiple
    /// of 256 from 256 to 32768; the default is 2048.
    ///
    /// The kernel has the structure of attention, but is not as fast as a tuned attention kernel. The kernel runs in a
    /// few large blocks. Each block handles a tile of queries and reads all keys through shared memory. The kernel is
    /// compute-bound, computes exponentials between the products, and does not use tensor cores.
    Attention,
}

/// The valid sizes of a kind of job.
struct Sizes {
    range: RangeInclusive<u32>,
    /// Every valid size is a multiple of this number.
    step: u32,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 5] = [Kind::Gemm, Kind::Gemv, Kind::Copy, Kind::Small, Kind::Attention];

    /// Returns the kind's name, such as `gemm`. [`Spec`] parses this name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Gemm => "gemm",
            Kind::Gemv => "gemv",
            Kind::Copy => "copy",
            Kind::Small => "small",
            Kind::Attention => "attention",
        }
    }

    const fn sizes(self) -> Sizes {
        match self {
            Kind::Gemm => Sizes { range: 256..=16384, step: 64 },
            Kind::Gemv | Kind::Attention => Sizes { range: 256..=32768, step: 256 },
            Kind::Copy => Sizes { range: 1..=8192, step: 1 },
            Kind::Small => Sizes { range: 1..=4096, step: 1 },
        }
    }

    /// Describes the valid sizes in words.
    fn describe_sizes(self) -> String {
        let Sizes { range, step } = self.sizes();
        let numbers = format!("a whole number from {} to {}", range.start(), range.end());
        if step == 1 { numbers } else { format!("{numbers} and a multiple of {step}") }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = SpecError;

    fn from_str(name: &str) -> Result<Kind, SpecError> {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| SpecError::UnknownName(name.to_owned()))
    }
}

/// A kind of job and its size, parsed from `NAME[:SIZE]`.
///
/// # Examples
///
/// ```
/// use green_ctx_cli::jobs::{Kind, Spec};
///
/// let spec: Spec = "gemm:8192".parse()?;
/// assert_eq!((spec.kind(), spec.size()), (Kind::Gemm, Some(8192)));
/// assert_eq!("copy".parse::<Spec>()?.size(), None);
/// assert_eq!(
///     "gemm:100".parse::<Spec>().unwrap_err().to_string(),
///     "the size of gemm must be a whole number from 256 to 16384 and a multiple of 64, not `100`",
/// );
/// # Ok::<(), green_ctx_cli::jobs::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    kind: Kind,
    size: Option<u32>,
}

impl Spec {
    /// Returns a job of this size, or of its default size.
    ///
    /// # Errors
    ///
    /// [`SpecError::Size`] if the size is not valid for this kind.
    pub fn new(kind: Kind, size: Option<u32>) -> Result<Spec, SpecError> {
        let Sizes { range, step } = kind.sizes();
        match size {
            Some(size) if !range.contains(&size) || size % step != 0 => {
                Err(SpecError::Size { kind, given: size.to_string() })
            }
            size => Ok(Spec { kind, size }),
        }
    }

    /// Returns the kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the size; `None` for the default size.
    #[must_use]
    pub const fn size(&self) -> Option<u32> {
        self.size
    }
}

impl From<Kind> for Spec {
    fn from(kind: Kind) -> Spec {
        Spec { kind, size: None }
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let Some((name, size)) = text.split_once(':') else {
            return Ok(text.parse::<Kind>()?.into());
        };
        let kind = name.parse()?;
        let number = size.parse().map_err(|_| SpecError::Size { kind, given: size.to_owned() })?;
        Spec::new(kind, Some(number))
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size {
            Some(size) => write!(f, "{}:{size}", self.kind),
            None => self.kind.fmt(f),
        }
    }
}

/// The reason why a string is not a valid [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No job has this name.
    #[error("no job is named `{0}`; the jobs are {jobs}", jobs = names())]
    UnknownName(String),
    /// The size is not valid for this job.
    #[error("the size of {kind} must be {}, not `{given}`", kind.describe_sizes())]
    Size {
        /// The kind of job.
        kind: Kind,
        /// The size that the caller gave.
        given: String,
    },
}

fn names() -> String {
    Kind::ALL.map(Kind::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_read() {
        for kind in Kind::ALL {
            let spec: Spec = kind.name().parse().expect("a name");
            assert_eq!(spec, Spec::from(kind));
            assert_eq!(spec.to_string(), kind.name());
            let (least, most) = kind.sizes().range.into_inner();
            for size in [least, most] {
                let text = format!("{kind}:{size}");
                let spec: Spec = text.parse().expect("a size");
                assert_eq!((spec.kind(), spec.size()), (kind, Some(size)));
                assert_eq!(spec.to_string(), text);
            }
        }
    }

    #[test]
    fn wrong_names_and_sizes_are_refused() {
        let error = |text: &str| text.parse::<Spec>().expect_err(text).to_string();
        let jobs = "the jobs are gemm, gemv, copy, small, attention";
        assert_eq!(error("gem"), format!("no job is named `gem`; {jobs}"));
        assert_eq!(error(""), format!("no job is named ``; {jobs}"));
        assert_eq!(error("GEMM:256"), format!("no job is named `GEMM`; {jobs}"));
        let copy = "the size of copy must be a whole number from 1 to 8192";
        for size in ["", "0", "8193", "-1", "1.5", "1k", " 1", "99999999999"] {
            assert_eq!(error(&format!("copy:{size}")), format!("{copy}, not `{size}`"));
        }
        for text in
            ["gemm:192", "gemm:257", "gemm:16448", "gemv:320", "attention:128", "small:4097"]
        {
            assert!(error(text).contains("a whole number from"), "{text}");
        }
    }
}
