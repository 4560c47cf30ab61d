//! Profiles of GPUs that have none: a number of SMs and a compute capability, such as `36sm,cc12.0`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::provenance::modelled;
use super::{Profile, Provenance, a100, b200, common, h100, l40s, rtx5080, thor};
use crate::topology::Topology;

/// No more SMs fit into a set of SMs.
const MOST: u32 = 256;

/// The attributes of compute capability 8.6, whose SMs are those of 8.9 with fewer blocks (the technical specifications
/// of the CUDA programming guide).
const ATTRIBUTES_8_6: &[&[(u32, i32)]] = &[
    &[(106, 16)], // blocks per SM
    l40s::L40S.attributes[0],
    common::COMPUTE_8_9,
    common::DATA_CENTRE,
    common::ALL,
];

/// Returns the profile that a text describes, or the reason why there is none. Returns `None` if the text names a
/// profile.
pub(crate) fn by_rule(text: &str) -> Option<Result<&'static Profile, &'static str>> {
    /// A profile is made once, and lives as long as the program.
    static MADE: Mutex<BTreeMap<String, &'static Profile>> = Mutex::new(BTreeMap::new());
    let (sm_count, capability) = text.split_once("sm,cc")?;
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = made.get(text) {
        return Some(Ok(known));
    }
    let profile = make(text, sm_count, capability).map(|profile| &*Box::leak(Box::new(profile)));
    if let Ok(profile) = profile {
        made.insert(text.to_owned(), profile);
    }
    Some(profile)
}

fn make(name: &str, sm_count: &str, capability: &str) -> Result<Profile, &'static str> {
    let number = |text: &str| {
        // Without signs and leading zeros, so that a profile has one name.
        text.parse::<u32>().ok().filter(|number| number.to_string() == text)
    };
    let capability =
        capability.split_once('.').map(|(major, minor)| (number(major), number(minor)));
    let Some((Some(major), Some(minor))) = capability else {
        return Err("write a compute capability as in cc12.0");
    };
    // The unit and the attributes follow from the generation.
    let like = match (major, minor) {
        (8, 6) => Profile { attributes: ATTRIBUTES_8_6, ..l40s::L40S },
        (8, 9) => l40s::L40S,
        (8, _) => a100::A100,
        (9, _) => h100::H100,
        (10, _) => b200::B200,
        (11, _) => thor::THOR,
        (12, _) => rtx5080::RTX5080,
        _ => return Err("the compute capability must be 8.0 to 12.x"),
    };
    let Topology { fine_unit, min_group, .. } = like.topology;
    let Some(sm_count) = number(sm_count).filter(|sms| (min_group..=MOST).contains(sms)) else {
        return Err(
            "the number of SMs must be at least that of the smallest group, and at most 256",
        );
    };
    if sm_count % fine_unit != 0 {
        return Err("SMs come in pairs, so their number must be even");
    }
    // GPCs as large as the other GPU's, and a last one with what remains.
    let largest = like.topology.gpcs.iter().copied().max().unwrap_or(1);
    let tpcs = sm_count / fine_unit;
    let mut gpcs = vec![largest; (tpcs / largest) as usize];
    gpcs.extend(Some(tpcs % largest).filter(|rest| *rest > 0));
    Ok(Profile {
        name: name.to_owned().leak(),
        device_name: "Simulated GPU",
        provenance: Provenance {
            recorded: None,
            sources: const {
                &[modelled(
                    "all data",
                    "another GPU of this generation, with another number of SMs",
                )]
            },
        },
        compute_capability: (major, minor),
        topology: Topology {
            sm_count,
            gpcs: gpcs.leak(),
            domains: &[],
            fine_order: &[],
            splits: &[],
            ..like.topology
        },
        ..like
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_gpus_can_be_described() {
        // RTX 5060 Ti, RTX 5090, RTX PRO 4000, RTX PRO 6000, GB10, RTX 3060, RTX 4090, H20.
        for name in [
            "36sm,cc12.0",
            "170sm,cc12.0",
            "70sm,cc12.0",
            "188sm,cc12.0",
            "48sm,cc12.1",
            "28sm,cc8.6",
            "128sm,cc8.9",
            "78sm,cc9.0",
        ] {
            let profile = by_rule(name).expect(name).expect(name);
            let Profile { topology, compute_capability: (major, minor), .. } = profile;
            assert_eq!(format!("{}sm,cc{major}.{minor}", topology.sm_count), name);
            assert_eq!(topology.gpcs.iter().sum::<u32>() * topology.fine_unit, topology.sm_count);
            assert!(
                std::ptr::eq(by_rule(name).expect(name).expect(name), profile),
                "it is made once"
            );
            assert!(profile.provenance.recorded.is_none());
        }
    }

    #[test]
    fn sms_are_those_of_the_compute_capability() {
        // The threads, the bytes of shared memory, and the blocks of an SM.
        for (name, expected) in [
            ("108sm,cc8.0", [2048, 167_936, 32]),
            ("28sm,cc8.6", [1536, 102_400, 16]),
            ("128sm,cc8.9", [1536, 102_400, 24]),
        ] {
            let attributes = by_rule(name).expect(name).expect(name).attributes;
            let value = |number| {
                let mut known = attributes.iter().copied().flatten();
                known.find_map(|(known, value)| (*known == number).then_some(*value)).expect(name)
            };
            assert_eq!([39, 81, 106].map(value), expected, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_a_gpu_is_refused() {
        assert!(by_rule("h200").is_none() && by_rule("36sm").is_none());
        for (name, reason) in [
            ("35sm,cc12.0", "must be even"),
            ("036sm,cc12.0", "the number of SMs"),
            ("sm,cc12.0", "the number of SMs"),
            ("300sm,cc12.0", "at most 256"),
            ("2sm,cc9.0", "the smallest group"),
            ("36sm,cc12", "as in cc12.0"),
            ("36sm,cc7.5", "8.0 to 12.x"),
        ] {
            let error = by_rule(name).expect(name).expect_err(name);
            assert!(error.contains(reason), "{name}: {error}");
        }
    }
}
