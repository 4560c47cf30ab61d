//! Profiles of GPUs, one file per GPU. The data comes from recordings, data sheets and other published
//! sources.

mod a100;
mod b200;
mod common;
mod h100;
mod h200;
mod l40s;
mod provenance;
mod rtx5080;
mod rule;
mod thor;
mod transfer;

pub(crate) use h200::H200;
pub(crate) use provenance::dotted;
pub use provenance::{Origin, Provenance, Record, Source};
pub(crate) use rule::by_rule;
pub use transfer::{TransferRate, TransferRates};

use crate::topology::Topology;

const MIB: u64 = 1 << 20;

/// A GPU that can be simulated.
///
/// # Examples
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
    /// The name in a [`Spec`](crate::Spec).
    pub name: &'static str,
    /// The name that `cuDeviceGetName` returns.
    pub device_name: &'static str,
    /// The sources of the data.
    pub provenance: Provenance,
    /// The first driver version that supports the GPU, as `cuDriverGetVersion` returns it; 0 if every
    /// driver with green contexts supports it.
    pub first_driver: u32,
    /// The compute capability, as its major and minor numbers.
    pub compute_capability: (u32, u32),
    /// The device memory, in bytes.
    pub memory_bytes: u64,
    /// The device memory that an active primary context uses, in bytes.
    pub primary_context_bytes: u64,
    /// The device memory that each green context uses, in bytes. Destroying the green context does not
    /// release this memory.
    pub green_context_bytes: u64,
    /// The numbering and grouping of the SMs.
    pub topology: Topology,
    /// The maximum portable cluster size, in blocks; 1 if the GPU has no clusters.
    pub max_cluster: u32,
    /// The speed of memsets and copies within the device.
    pub transfer: TransferRates,
    /// The default concurrency limit of a workqueue configuration.
    pub workqueue_limit: u32,
    /// The stream priorities, from the least to the greatest.
    pub stream_priorities: (i32, i32),
    /// Device attributes by number. If several lists contain a number, the first list applies. An
    /// attribute that drivers know but no list contains is 0. Attributes that follow from other fields
    /// are not listed.
    pub attributes: &'static [&'static [(u32, i32)]],
}

impl Profile {
    /// Returns every profile, ordered by name.
    #[must_use]
    pub fn all() -> &'static [Profile] {
        static ALL: &[Profile] =
            &[a100::A100, b200::B200, h100::H100, H200, l40s::L40S, rtx5080::RTX5080, thor::THOR];
        ALL
    }

    /// Returns the profile with this name; `None` if no profile has the name.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::Profile;
    ///
    /// let thor = Profile::by_name("thor").map(|profile| profile.first_driver);
    /// assert_eq!(thor, Some(13_000));
    /// assert!(Profile::by_name("h201").is_none());
    /// ```
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Profile> {
        Profile::all().iter().find(|profile| profile.name == name)
    }

    /// Returns the names of all profiles, in order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Profile::all().iter().map(|profile| profile.name)
    }

    /// Returns a device attribute by number; `None` if no driver has an attribute with this number.
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

/// The numbers of the attributes that the simulator itself uses.
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
    /// The highest attribute number of CUDA 13.5.
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
            // A block that opts in can use all shared memory of an SM except the reserved part.
            assert_eq!(of(81) - of(97), of(111), "{name}");
            assert_eq!(of(120) == 1, profile.max_cluster > 1, "{name}");
            assert_eq!(of(120) == 1, profile.compute_capability.0 >= 9, "{name}");
        }
    }
}
