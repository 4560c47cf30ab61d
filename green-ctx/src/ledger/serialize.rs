//! Serialisation of the ledger's reports with the feature `serde`. Granularities and shares are written as
//! text.

use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::dry_run::{DryRun, GroupSms};
use super::refusal::Holder;
use super::share::Share;
use super::units::Granularity;

impl Serialize for Granularity {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Granularity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Granularity, D::Error> {
        let text = String::deserialize(from)?;
        Granularity::ALL
            .into_iter()
            .find(|granularity| granularity.to_string() == text)
            .ok_or_else(|| D::Error::unknown_variant(&text, &["coarse", "fine", "largest-cluster"]))
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Reads a share from text. A number is read as a count.
impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Share, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Count(u32),
            Text(String),
        }
        let wrong = |_| {
            D::Error::custom(
                "a share is a number such as 16, or text such as \"32..\", \"25%\" or \"rest\"",
            )
        };
        let text = match Form::deserialize(from).map_err(wrong)? {
            Form::Count(count) => count.to_string(),
            Form::Text(text) => text,
        };
        text.parse().map_err(D::Error::custom)
    }
}

/// Implements serialisation for a type whose name is an `Arc<str>`, through a second type whose name is a
/// `String`. Serialising `Arc<str>` directly would need serde's feature `rc`, which would then apply to every
/// crate in the program.
macro_rules! with_text_for_name {
    ($type:ident as $form:ident { $($field:ident: $field_type:ty),* }) => {
        #[derive(Serialize, Deserialize)]
        struct $form {
            name: String,
            $($field: $field_type),*
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let $type { name, $($field),* } = self;
                $form { name: name.to_string(), $($field: *$field),* }.serialize(to)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let $form { name, $($field),* } = $form::deserialize(from)?;
                Ok($type { name: Arc::from(name), $($field),* })
            }
        }
    };
}
with_text_for_name!(Holder as HolderForm { sm_count: u32 });
with_text_for_name!(GroupSms as GroupSmsForm { share: Share, floor: u32, sm_count: u32 });

#[derive(Serialize)]
struct DryRunForm<'a> {
    unit: u32,
    groups: &'a [GroupSms],
    remainder: u32,
    free_for_floors: u32,
    quarantined: u32,
}

impl Serialize for DryRun {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let DryRun { unit, groups, remainder, free_for_floors, quarantined } = self;
        let (unit, remainder) = (*unit, *remainder);
        let (free_for_floors, quarantined) = (*free_for_floors, *quarantined);
        DryRunForm { unit, groups, remainder, free_for_floors, quarantined }.serialize(to)
    }
}

#[derive(Deserialize)]
struct OwnedDryRunForm {
    unit: u32,
    groups: Vec<GroupSms>,
    remainder: u32,
    free_for_floors: u32,
    #[serde(default)]
    quarantined: u32,
}

impl<'de> Deserialize<'de> for DryRun {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<DryRun, D::Error> {
        let OwnedDryRunForm { unit, groups, remainder, free_for_floors, quarantined } =
            OwnedDryRunForm::deserialize(from)?;
        Ok(DryRun { unit, groups, remainder, free_for_floors, quarantined })
    }
}
