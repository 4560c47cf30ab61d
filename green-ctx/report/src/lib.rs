//! The output of the command `green-ctx` and the module `green_ctx_torch`: text, JSON and SVG.
//!
//! Each type that implements [`Serialize`](serde::Serialize) serialises to the JSON object that the command prints with
//! `--json`.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, sim::Sim};
//! use green_ctx::verify;
//!
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! let report = verify::split(&driver.device(0)?, [16, 24], verify::DEFAULT_STAY)?;
//! let picture = green_ctx_report::verification_svg(&report);
//! assert!(picture.starts_with("<svg "));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod canvas;
mod csv;
mod curve;
mod findings;
#[cfg(feature = "sim")]
mod gpus;
mod info;
mod objects;
mod split;
mod svg;
mod table;
mod tuning;
mod verification;

pub use self::csv::to_csv;
pub use self::curve::{CurveObject, curve_text};
#[cfg(feature = "sim")]
pub use self::gpus::{Gpu, gpus_text};
pub use self::info::Info;
pub use self::objects::{DeviceObject, DriverObject, ReserveObject, heading};
pub use self::split::Split;
pub use self::svg::{curve_svg, tuning_svg, verification_svg};
pub use self::tuning::{Machine, Tuning, machine_of, progress_line, tuning_lines, tuning_table};
pub use self::verification::{Verification, verification_text};

/// Serialises the output of a command to JSON. This cannot fail, because the output consists of numbers,
/// text and lists.
#[must_use]
pub fn to_json(answer: &impl serde::Serialize) -> String {
    serde_json::to_string(answer).unwrap_or_default()
}
