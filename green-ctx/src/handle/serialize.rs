//! Serialisation of versions, compute capabilities and UUIDs, with the feature `serde`. Each value is serialised as its
//! `Display` text.

use green_ctx_sys::Version;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::handle::device::{ComputeCapability, Uuid};

/// Serialises a version as text, such as `13.0`. `Version` belongs to the bindings, which do not depend on serde.
pub(crate) mod version {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(version: &Version, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(version)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Version, D::Error> {
        let (major, minor) = numbers(from, "a CUDA version such as 13.0")?;
        // The driver's version number has two digits for the minor version.
        let number = u32::checked_mul(major, 1000)
            .filter(|_| minor < 100)
            .and_then(|number| number.checked_add(minor * 10));
        number.map(Version::from_number).ok_or_else(|| D::Error::custom("not a CUDA version"))
    }
}

/// Reads two numbers that are separated by a dot.
fn numbers<'de, D: Deserializer<'de>, T: std::str::FromStr>(
    from: D,
    expected: &str,
) -> Result<(T, T), D::Error> {
    let text = String::deserialize(from)?;
    let pair = text
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    pair.ok_or_else(|| D::Error::custom(format_args!("{text:?} is not {expected}")))
}

impl Serialize for ComputeCapability {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ComputeCapability {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ComputeCapability, D::Error> {
        let (major, minor) = numbers(from, "a compute capability such as 9.0")?;
        Ok(ComputeCapability { major, minor })
    }
}

impl Serialize for Uuid {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Uuid {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        let text = String::deserialize(from)?;
        uuid(&text).ok_or_else(|| D::Error::custom(format_args!("{text:?} is not a device UUID")))
    }
}

/// Parses the `Display` text of a UUID. The hexadecimal digits may be in upper or lower case.
fn uuid(text: &str) -> Option<Uuid> {
    let digits: String = text.strip_prefix("GPU-")?.split('-').collect();
    let number = u128::from_str_radix(&digits, 16).ok()?;
    let uuid = Uuid(number.to_be_bytes());
    (uuid.to_string() == text.to_ascii_lowercase().replacen("gpu", "GPU", 1)).then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_read_as_they_print() {
        let printed = Uuid(std::array::from_fn(|index| index as u8 * 16)).to_string();
        assert_eq!(uuid(&printed).map(|uuid| uuid.to_string()), Some(printed.clone()));
        assert_eq!(uuid(&printed.to_uppercase()), uuid(&printed));
        for wrong in ["", "GPU-", "GPU-12", &printed[1..], &printed.replace('-', "")] {
            assert_eq!(uuid(wrong), None, "{wrong}");
        }
    }
}
