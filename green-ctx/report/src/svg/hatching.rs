//! Patterns for the SMs that have no colour of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::usage::{Kind, Usage};
use crate::canvas::Colour;

/// The patterns that a picture needs.
pub(super) struct Hatching {
    /// Each set of partitions that share SMs, with how many SMs it shares.
    sets: Vec<(BTreeSet<usize>, usize)>,
    /// Each partition that may use SMs above its floor which nobody else reaches, with how many.
    pools: BTreeMap<usize, usize>,
}

/// A pattern's name for SMs on which blocks ran that should not have.
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

    /// The sets of partitions that share SMs, and how many each shares.
    pub(super) fn sets(&self) -> &[(BTreeSet<usize>, usize)] {
        &self.sets
    }

    /// The partitions with SMs above their floor that nobody else reaches, and how many each has.
    pub(super) fn pools(&self) -> &BTreeMap<usize, usize> {
        &self.pools
    }

    /// How the SMs of one set of partitions are filled.
    pub(super) fn shared(&self, users: &BTreeSet<usize>) -> String {
        self.number(users).map_or_else(String::new, |number| format!("url(#shared{number})"))
    }

    /// How the SMs are filled that only this partition may use, above its floor.
    pub(super) fn pool(user: usize) -> String {
        format!("url(#pool{user})")
    }

    fn number(&self, users: &BTreeSet<usize>) -> Option<usize> {
        self.sets.iter().position(|(set, _)| set == users)
    }

    /// The definitions.
    pub(super) fn definitions(&self) -> String {
        let mut out = String::from(VIOLATION_PATTERN);
        for (number, (users, _)) in self.sets.iter().enumerate() {
            // Partitions beyond the palette have colours that are there already.
            let colours = &users.iter().map(|user| user % Colour::COUNT).collect::<BTreeSet<_>>();
            // All colours show within a cell, and two are not so broad that they look like cells.
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

/// Crossed red lines, where those who share have stripes side by side in colours of their own.
const VIOLATION_PATTERN: &str = r##"<pattern id="violation" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="7" height="7" fill="#ffe3e3"/><path d="M0 3.5H7M3.5 0V7" stroke="#e00000" stroke-width="2"/></pattern>"##;
