//! What a simulated part is: data read off hardware and sheets, one file a part.

mod a100;
mod b200;
mod common;
mod h100;
mod h200;
mod provenance;
mod rtx5080;
mod thor;
mod transfer;

pub(crate) use h200::H200;
pub(crate) use provenance::dotted;
pub use provenance::{Origin, Provenance, Record, Source};
pub use transfer::{TransferRate, TransferRates};

use crate::topology::Topology;

const MIB: u64 = 1 << 20;

/// A GPU that can be simulated.
///
/// # Example
///
/// ```
/// use green_ctx_sim::Profile;
///
/// let profile = Profile::by_name("h200").expect("it is built in");
/// assert_eq!(profile.device_name, "NVIDIA H200");
/// assert_eq!(profile.topology.sm_count, 132);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Profile {
    /// The name that a [`Spec`](crate::Spec) uses.
    pub name: &'static str,
    /// The name that `cuDeviceGetName` returns.
    pub device_name: &'static str,
    /// Where the data come from: what was recorded on hardware, and what was not.
    pub provenance: Provenance,
    /// The first driver that knows the part, as `cuDriverGetVersion` counts; 0 where every driver does
    /// that knows green contexts.
    pub first_driver: u32,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Device memory that an active primary context takes, in bytes.
    pub primary_context_bytes: u64,
    /// Device memory that each green context takes and its destruction does not give back, in
    /// bytes.
    pub green_context_bytes: u64,
    /// How the SMs are numbered and grouped.
    pub topology: Topology,
    /// The largest cluster that runs without opting in, in blocks; 1 on a part without clusters.
    pub max_cluster: u32,
    /// How fast the device sets and copies its memory.
    pub transfer: TransferRates,
    /// How many stream-ordered workloads the workqueues of a device are for by default.
    pub workqueue_limit: u32,
    /// The stream priorities, from the least to the greatest.
    pub stream_priorities: (i32, i32),
    /// Device attributes by number, in lists of which the first that has a number counts; the other
    /// known attributes are 0. Attributes that follow from another field are left out.
    pub attributes: &'static [&'static [(u32, i32)]],
}

impl Profile {
    /// Every profile, in the order of their names.
    #[must_use]
    pub fn all() -> &'static [Profile] {
        static ALL: &[Profile] =
            &[a100::A100, b200::B200, h100::H100, H200, rtx5080::RTX5080, thor::THOR];
        ALL
    }

    /// The profile of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Profile> {
        Profile::all().iter().find(|profile| profile.name == name)
    }

    /// The names of all profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Profile::all().iter().map(|profile| profile.name)
    }

    /// A device attribute by number, `None` for a number that no driver knows.
    pub(crate) fn attribute(&self, attribute: u32) -> Option<i32> {
        let known = match attribute {
            attribute::MULTIPROCESSOR_COUNT => self.topology.sm_count as i32,
            attribute::COMPUTE_CAPABILITY_MAJOR => self.compute_capability.0 as i32,
            attribute::COMPUTE_CAPABILITY_MINOR => self.compute_capability.1 as i32,
            1..=attribute::LAST => {
                let mut listed = self.attributes.iter().copied().flatten();
                listed.find(|(number, _)| *number == attribute).map_or(0, |(_, value)| *value)
            }
            _ => return None,
        };
        Some(known)
    }
}

/// The attribute numbers that the simulator itself reads.
pub(crate) mod attribute {
    pub(crate) const MAX_THREADS_PER_BLOCK: u32 = 1;
    pub(crate) const MAX_BLOCK_DIM_X: u32 = 2;
    pub(crate) const MAX_GRID_DIM_X: u32 = 5;
    pub(crate) const MAX_SHARED_MEMORY_PER_BLOCK: u32 = 8;
    pub(crate) const WARP_SIZE: u32 = 10;
    pub(crate) const MAX_REGISTERS_PER_BLOCK: u32 = 12;
    pub(crate) const MULTIPROCESSOR_COUNT: u32 = 16;
    pub(crate) const PCI_BUS_ID: u32 = 33;
    pub(crate) const MAX_THREADS_PER_MULTIPROCESSOR: u32 = 39;
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
    pub(crate) const COMPUTE_CAPABILITY_MINOR: u32 = 76;
    pub(crate) const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: u32 = 81;
    pub(crate) const MAX_REGISTERS_PER_MULTIPROCESSOR: u32 = 82;
    pub(crate) const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: u32 = 97;
    pub(crate) const MAX_BLOCKS_PER_MULTIPROCESSOR: u32 = 106;
    pub(crate) const RESERVED_SHARED_MEMORY_PER_BLOCK: u32 = 111;
    pub(crate) const LOCALITY_DOMAIN_COUNT: u32 = 149;
    pub(crate) const LOCALITY_DOMAIN_MULTIPROCESSOR_COUNT: u32 = 157;
    /// The last attribute of CUDA 13.5.
    pub(crate) const LAST: u32 = 161;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_in_the_order_of_their_names() {
        let names: Vec<&str> = Profile::names().collect();
        assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
        assert!(Profile::all().iter().all(|profile| !profile.provenance.sources.is_empty()));
        let recorded = Profile::all().iter().filter(|part| part.provenance.recorded.is_some());
        assert_eq!(recorded.map(|part| part.name).collect::<Vec<_>>(), ["h100", "h200"]);
    }

    #[test]
    fn topologies_are_consistent() {
        for Profile { name, topology, .. } in Profile::all() {
            assert_eq!(topology.sm_count % topology.fine_unit, 0, "{name}");
            assert_eq!(topology.coarse_unit % topology.fine_unit, 0, "{name}");
            assert_eq!(topology.min_group % topology.coarse_unit, 0, "{name}");
            assert_eq!(topology.gpcs.iter().sum::<u32>() * topology.fine_unit, topology.sm_count);
            let mut fine =
                topology.fine_units().into_iter().flat_map(|unit| unit.iter().collect::<Vec<_>>());
            let mut sms: Vec<u32> = fine.by_ref().collect();
            sms.sort_unstable();
            assert!(sms.into_iter().eq(0..topology.sm_count), "{name}");
        }
    }

    #[test]
    fn attributes_are_consistent() {
        for profile in Profile::all() {
            let name = profile.name;
            for list in profile.attributes {
                assert!(list.is_sorted_by(|(one, _), (next, _)| one < next), "{name}");
                assert!(list.iter().all(|(number, _)| *number <= attribute::LAST), "{name}");
            }
            let of = |number| profile.attribute(number).unwrap_or(-1);
            // A block that opts in has all of an SM's shared memory but the reserved part.
            assert_eq!(of(81) - of(97), of(111), "{name}");
            assert_eq!(of(120) == 1, profile.max_cluster > 1, "{name}");
            assert_eq!(of(120) == 1, profile.compute_capability.0 >= 9, "{name}");
        }
    }
}
