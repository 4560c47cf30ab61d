//! Resources: the bytes of `CUdevResource`, splits and descriptors.

mod structured;
mod workqueue;

use std::collections::HashMap;
use std::sync::Arc;

use green_ctx_sys::{CUdevResource, CUdevResourceDesc_st, CUdevResourceType, CUresult};

use crate::Profile;
use crate::clock::cost;
use crate::crash;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::sm_set::SmSet;
use crate::state::State;
use crate::topology::{SplitError, Topology, is_fine, join};

pub(crate) use structured::split as split_structured;

/// The size of `CUdevResource` in bytes, which is the same in every header.
const SIZE: usize = 144;
/// Offsets of fields in the struct. The offsets of the SM count, the minimum and the alignment follow the
/// header. The offsets of the other fields are those at which the recorded driver stores the same
/// information.
const ROOT: usize = 8;
const TOKEN: usize = 20;
const DIVISIBLE: usize = 91;
const SM_COUNT: usize = 96;
const MIN_PARTITION: usize = 100;
const ALIGNMENT: usize = 104;
const FLAGS: usize = 108;
const DOMAIN: usize = 112;
/// An odd factor that spreads tokens over 32 bits, so that damaged tokens are detected.
const SPREAD: u32 = 0x9e37_79b1;

type Bytes = [u8; SIZE];

/// The set of SMs behind a `CUdevResource`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Resource {
    pub(crate) device: usize,
    /// The number that identifies the resource from which the SMs were split. Only resources with the same
    /// root can be combined.
    root: usize,
    origin: Origin,
    /// Whether the resource was split in fine units.
    fine: bool,
    /// Whether a split of a context with this resource uses fine units.
    loose: bool,
    /// The values that a structured split reports for the resource.
    structure: Option<Structure>,
    sms: SmSet,
    count: u32,
}

/// The SMs of a context.
#[derive(Clone)]
pub(crate) struct Partition {
    pub(crate) set: SmSet,
    pub(crate) ids: Arc<[u32]>,
    /// The number of SMs that the driver reports. The reported number exceeds the real number if a
    /// descriptor contained the same SMs twice.
    pub(crate) count: u32,
    /// Whether a split of the partition uses fine units.
    pub(crate) loose: bool,
    /// The SMs, grouped into sets that can hold a cluster.
    pub(crate) places: Vec<SmSet>,
    /// The values that a structured split reports; `None` if the SMs do not come from a structured split.
    pub(crate) structure: Option<Structure>,
}

impl Partition {
    pub(crate) fn new(set: SmSet, count: u32, loose: bool, places: Vec<SmSet>) -> Partition {
        Partition { set, ids: set.iter().collect(), count, loose, places, structure: None }
    }

    /// Returns a partition of every SM of a device.
    pub(crate) fn all(profile: &Profile) -> Partition {
        let all = profile.topology.all();
        Partition::new(all, all.len(), false, profile.topology.places(all, false))
    }
}

/// The values that a structured split reports for a group. A context of that group reports the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Structure {
    /// The number of SMs per co-scheduled set; each set lies in one GPC. The header has one field for this
    /// number. Whether the reported minimum is the same number was not recorded.
    pub(crate) coscheduled: u32,
    pub(crate) flags: u32,
    /// The number of the locality domain; 0 if the flags do not select a domain.
    pub(crate) domain: u32,
}

/// The workqueues that contexts submit work through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workqueue {
    pub(crate) device: usize,
    /// The handle of the context that owns the workqueues; 0 before that context exists. The device's
    /// workqueues belong to the primary context.
    owner: usize,
    limit: u32,
    scope: u32,
}

/// The origin of a resource, which determines the operations that accept the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    /// The resource of a device or a context. Every split accepts such a resource.
    Owner,
    /// The remainder of a structured split. Only another structured split accepts such a resource (header
    /// of 13.1).
    Rest,
    /// Any other result of a split. No split accepts such a resource.
    Part,
}

/// The resources that the driver has returned to the program. Equal resources share one entry, so equal
/// splits give equal bytes (recorded on hardware).
#[derive(Default)]
pub(crate) struct Resources {
    entries: Vec<Resource>,
    index: HashMap<Resource, u32>,
}

/// The contents of a `CUdevResourceDesc`. The descriptor lives as long as the driver.
pub(crate) struct Descriptor {
    pub(crate) device: usize,
    pub(crate) sms: Partition,
    pub(crate) workqueue: Option<Workqueue>,
}

impl Resource {
    /// Returns whether one descriptor can contain both resources. Both resources must have the same root.
    /// Groups of a structured split must also have the same alignment and the same locality domain (headers
    /// of 13.1 and 13.4).
    fn combines_with(&self, other: &Resource) -> bool {
        let kind =
            |resource: &Resource| resource.structure.map(|known| (known.coscheduled, known.domain));
        self.root == other.root && kind(self) == kind(other)
    }
}

impl Resources {
    fn token(&mut self, resource: Resource) -> u32 {
        let next = self.entries.len() as u32 + 1;
        let number = *self.index.entry(resource).or_insert(next);
        if number == next {
            self.entries.push(resource);
        }
        number.wrapping_mul(SPREAD)
    }

    fn find(&self, token: u32) -> Option<Resource> {
        let number = token.wrapping_mul(inverse(SPREAD));
        self.entries.get((number as usize).checked_sub(1)?).copied()
    }
}

/// Returns the inverse of an odd number modulo 2^32, by Newton's iteration.
const fn inverse(odd: u32) -> u32 {
    let mut x = odd;
    let mut round = 0;
    while round < 5 {
        x = x.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(x)));
        round += 1;
    }
    x
}

fn put(bytes: &mut Bytes, at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn get(bytes: &Bytes, at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads the bytes of a resource that the caller passed.
fn read(from: Ptr<CUdevResource>) -> Answer<Bytes> {
    from.given()?;
    let mut bytes = NOTHING;
    from.read_bytes(&mut bytes)?;
    Ok(bytes)
}

const SM: u32 = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM.0;
const NOTHING: Bytes = [0; SIZE];

impl State {
    fn encode(&mut self, resource: Resource) -> Bytes {
        let mut bytes = NOTHING;
        if resource.count == 0 {
            return bytes;
        }
        put(&mut bytes, 0, SM);
        bytes[ROOT..ROOT + 8].copy_from_slice(&resource.root.to_ne_bytes());
        put(&mut bytes, TOKEN, self.resources.token(resource));
        bytes[DIVISIBLE] = u8::from(resource.origin != Origin::Part);
        put(&mut bytes, SM_COUNT, resource.count);
        // Other resources carry minimum and alignment only if they belong to a device or context, and only
        // from 13.0 on.
        if let Some(Structure { coscheduled, flags, domain }) = resource.structure {
            put(&mut bytes, MIN_PARTITION, coscheduled);
            put(&mut bytes, ALIGNMENT, coscheduled);
            put(&mut bytes, FLAGS, flags);
            put(&mut bytes, DOMAIN, domain);
        } else if resource.origin == Origin::Owner && self.version >= 13_000 {
            let Topology { fine_unit, coarse_unit, min_group, .. } = self.profile.topology;
            let fine = resource.loose.then_some(fine_unit);
            put(&mut bytes, MIN_PARTITION, fine.unwrap_or(min_group));
            put(&mut bytes, ALIGNMENT, fine.unwrap_or(coarse_unit));
        }
        bytes
    }

    fn decode(&mut self, bytes: &Bytes) -> Answer<Resource> {
        refuse_if(get(bytes, 0) != SM, CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE)?;
        let resource = self.resources.find(get(bytes, TOKEN));
        let resource = resource.ok_or(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)?;
        // The bytes from the minimum onwards are informational. All bytes before must be unmodified.
        if self.encode(resource)[..MIN_PARTITION] != bytes[..MIN_PARTITION] {
            return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        }
        Ok(resource)
    }

    /// Combines the SMs of resources that may be combined. If `parts` is empty, returns all SMs of the
    /// device.
    fn combine(&self, parts: &[Resource]) -> Partition {
        let Some(&first) = parts.first() else { return Partition::all(self.profile) };
        let topology = &self.profile.topology;
        let places = |part: &Resource| topology.places(part.sms, part.fine);
        let sms = parts.iter().map(|part| part.sms);
        let partition = Partition::new(
            sms.fold(SmSet::default(), SmSet::union),
            parts.iter().map(|part| part.count).sum(),
            // The resource of another context counts like a group (recorded on hardware).
            parts.iter().any(|part| part.loose && part.origin != Origin::Owner),
            parts.iter().map(places).fold(Vec::new(), join),
        );
        let flags = parts.iter().filter_map(|part| part.structure);
        let flags = flags.fold(0, |flags, structure| flags | structure.flags);
        let structure = first.structure.map(|structure| Structure { flags, ..structure });
        Partition { structure, ..partition }
    }

    /// Writes an SM resource. Fails if another type is requested.
    fn write_sms(
        &mut self,
        resource: Resource,
        out: Ptr<CUdevResource>,
        kind: CUdevResourceType,
    ) -> Answer {
        out.given()?;
        if kind.0 != SM {
            out.write_bytes(&NOTHING)?;
            return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE);
        }
        let bytes = self.encode(resource);
        out.write_bytes(&bytes)
    }

    /// Writes the SMs of an existing context.
    pub(crate) fn write_context_sms(
        &mut self,
        handle: usize,
        out: Ptr<CUdevResource>,
        kind: CUdevResourceType,
    ) -> Answer {
        let context = &self.contexts[&handle];
        let (device, green) = (self.physical(context.device), context.green);
        // The primary context has the whole device, so its resource has the device's root.
        let root = if green { handle } else { self.devices[device].root };
        let Partition { set: sms, count, loose, structure, .. } = context.sms;
        let (origin, fine) = (Origin::Owner, false);
        let sms = Resource { device, root, origin, fine, loose, structure, sms, count };
        self.write_sms(sms, out, kind)
    }

    /// Writes a resource of an existing context.
    pub(crate) fn write_context_resource(
        &mut self,
        handle: usize,
        out: Ptr<CUdevResource>,
        kind: CUdevResourceType,
    ) -> Answer {
        match self.encode_workqueue_of(handle, kind) {
            Some(bytes) => out.write_bytes(&bytes),
            None => self.write_context_sms(handle, out, kind),
        }
    }
}

pub(crate) fn of_device(
    driver: &Driver,
    ordinal: i32,
    out: Ptr<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    let mut state = driver.state();
    let device = state.device(ordinal)?;
    if let Some(bytes) = state.encode_default_workqueue(device, kind) {
        return out.write_bytes(&bytes);
    }
    let sms = state.profile.topology.all();
    let (root, origin, count) = (state.devices[device].root, Origin::Owner, sms.len());
    let (fine, loose, structure) = (false, false, None);
    let sms = Resource { device, root, origin, fine, loose, structure, sms, count };
    state.write_sms(sms, out, kind)
}

pub(crate) fn split_by_count(
    driver: &Driver,
    result: Ptr<CUdevResource>,
    groups: Ptr<u32>,
    input: Ptr<CUdevResource>,
    remaining: Ptr<CUdevResource>,
    flags: u32,
    minimum: u32,
) -> Answer {
    let mut state = driver.state();
    state.now += cost::LAUNCH / 2;
    let capacity = groups.read()?;
    let input = state.decode(&read(input)?)?;
    invalid_if(!result.is_null() && capacity == 0)?;
    refuse_if(input.origin != Origin::Owner, CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)?;
    let wanted = (!result.is_null()).then_some(capacity);
    let topology = &state.profile.topology;
    let split = topology.split(input.sms, input.loose, wanted, flags, minimum);
    let split = split.map_err(|error| match error {
        SplitError::Flags => CUresult::CUDA_ERROR_INVALID_VALUE,
        SplitError::Size => CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
    })?;
    groups.write(split.groups.len() as u32)?;
    let (origin, fine, structure) = (Origin::Part, is_fine(flags), None);
    let part = |sms: SmSet, loose| Resource {
        origin,
        fine,
        loose,
        structure,
        sms,
        count: sms.len(),
        ..input
    };
    if !result.is_null() {
        for (index, &group) in split.groups.iter().enumerate() {
            let bytes = state.encode(part(group, fine));
            result.element(index).write_bytes(&bytes)?;
        }
    }
    // A query leaves the remainder unchanged. A context of a remainder is split in fine units (recorded on hardware).
    if !result.is_null() && !remaining.is_null() {
        let bytes = state.encode(part(split.remainder, true));
        remaining.write_bytes(&bytes)?;
    }
    Ok(())
}

pub(crate) fn generate_desc(
    driver: &Driver,
    out: Ptr<*mut CUdevResourceDesc_st>,
    resources: Ptr<CUdevResource>,
    count: u32,
) -> Answer {
    let mut state = driver.state();
    state.now += 2 * cost::LAUNCH;
    out.given()?;
    resources.given()?;
    if count == 0 {
        // The driver reads the first resource without checking the count (recorded on hardware).
        crash::segmentation_fault();
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let (mut parts, mut workqueue) = (Vec::<Resource>::new(), None::<Workqueue>);
    for index in 0..count as usize {
        let bytes = read(resources.element(index))?;
        if let Some(next) = state.decode_workqueue(&bytes)? {
            // That at most one is allowed was not recorded.
            if workqueue.replace(next).is_some() {
                return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
            }
            continue;
        }
        let next = state.decode(&bytes)?;
        // 12.4 accepts one resource per type (header of 12.4); later drivers accept several with the same
        // root.
        let first = parts.first().unwrap_or(&next);
        if (!parts.is_empty() && state.version < 12_050) || !next.combines_with(first) {
            return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        }
        parts.push(next);
    }
    let sms = state.combine(&parts);
    let other = workqueue.map(|workqueue| workqueue.device);
    let device = parts.first().map(|part| part.device).or(other).unwrap_or_default();
    if other.is_some_and(|other| other != device) {
        return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    let handle = handle::next();
    state.descriptors.insert(handle, Descriptor { device, sms, workqueue });
    out.write(handle::pointer(handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_again_and_others_are_not() {
        let mut resources = Resources::default();
        let resource = |count| Resource {
            device: 0,
            root: 1,
            origin: Origin::Part,
            fine: false,
            loose: false,
            structure: None,
            sms: SmSet::default(),
            count,
        };
        let tokens: Vec<u32> = (1..100).map(|count| resources.token(resource(count))).collect();
        for (count, &token) in (1..).zip(&tokens) {
            assert_eq!(resources.find(token), Some(resource(count)));
            assert_eq!(resources.token(resource(count)), token);
            assert_eq!(resources.find(token ^ 1), None);
        }
        assert_eq!(resources.find(0), None);
    }
}
