//! Patterns for SMs that are not drawn in the colour of a single partition.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::usage::{Kind, Usage};
use crate::canvas::Colour;

/// The patterns of a picture.
pub(super) struct Hatching {
    /// The sets of partitions that share SMs, each with the number of shared SMs.
    sets: Vec<(BTreeSet<usize>, usize)>,
    /// The partitions that are the only users of SMs above their floor, each with the number of those SMs.
    pools: BTreeMap<usize, usize>,
}

/// The fill of SMs that were used in violation of the shares.
pub(super) const VIOLATION: &str = "url(#violation)";

impl Hatching {
    pub(super) fn of(usages: &BTreeMap<u32, Usage>) -> Hatching {
        let mut hatching = Hatching { sets: Vec::new(), pools: BTreeMap::new() };
        for usage in usages.values() {
            match usage.kind() {
                Kind::Pool(user) => *hatching.pools.entry(user).or_default() += 1,
                Kind::Shared => match hatching.number(&usage.users) {
                    Some(number) => hatching.sets[number].1 += 1,
                    None => hatching.sets.push((usage.users.clone(), 1)),
                },
                _ => {}
            }
        }
        hatching
    }

    /// Returns the sets of partitions that share SMs, and how many SMs each set shares.
    pub(super) fn sets(&self) -> &[(BTreeSet<usize>, usize)] {
        &self.sets
    }

    /// Returns the partitions that are the only users of SMs above their floor, each with the number of those SMs.
    pub(super) fn pools(&self) -> &BTreeMap<usize, usize> {
        &self.pools
    }

    /// Returns the fill of the SMs that a set of partitions shares.
    pub(super) fn shared(&self, users: &BTreeSet<usize>) -> String {
        self.number(users).map_or_else(String::new, |number| format!("url(#shared{number})"))
    }

    /// Returns the fill of SMs above this partition's floor that no other partition may use.
    pub(super) fn pool(user: usize) -> String {
        format!("url(#pool{user})")
    }

    fn number(&self, users: &BTreeSet<usize>) -> Option<usize> {
        self.sets.iter().position(|(set, _)| set == users)
    }

    /// Returns the SVG definitions of the patterns.
    pub(super) fn definitions(&self) -> String {
        let mut out = String::from(VIOLATION_PATTERN);
        for (number, (users, _)) in self.sets.iter().enumerate() {
            // Partitions beyond the palette repeat its colours.
            let colours = &users.iter().map(|user| user % Colour::COUNT).collect::<BTreeSet<_>>();
            // All colours must be visible within one cell. Two colours must not be so wide that they look like cells.
            let width = (40.0 / colours.len() as f64).clamp(1.8, 5.0);
            let period = width * colours.len() as f64;
            // Writing to a string does not fail.
            let _ = write!(
                out,
                r#"<pattern id="shared{number}" width="{period}" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">"#
            );
            for (position, colour) in colours.iter().enumerate() {
                let (x, colour) = (width * position as f64, Colour::of(*colour));
                let _ =
                    write!(out, r#"<rect x="{x}" width="{width}" height="8" fill="{colour}"/>"#);
            }
            out.push_str("</pattern>");
        }
        for user in self.pools.keys() {
            let colour = Colour::of(*user);
            let _ = write!(
                out,
                r#"<pattern id="pool{user}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><rect width="6" height="6" fill="{}"/><rect width="1.5" height="6" fill="{colour}"/></pattern>"#,
                colour.tint(),
            );
        }
        out
    }
}

/// A pattern of crossed red lines. Unlike these SMs, shared SMs have parallel stripes in the partitions' colours.
const VIOLATION_PATTERN: &str = r##"<pattern id="violation" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="7" height="7" fill="#ffe3e3"/><path d="M0 3.5H7M3.5 0V7" stroke="#e00000" stroke-width="2"/></pattern>"##;
