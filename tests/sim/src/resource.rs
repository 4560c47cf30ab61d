//! Resources: the bytes of `CUdevResource`, splits and descriptors.

use std::collections::HashMap;

use green_ctx_sys::{CUdevResource, CUdevResourceDesc_st, CUdevResourceType, CUresult};

use crate::Profile;
use crate::clock::cost;
use crate::context::Partition;
use crate::crash;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr};
use crate::sm_set::SmSet;
use crate::state::State;
use crate::topology::{SplitError, is_fine};

/// The size of `CUdevResource`, the same in every header.
const SIZE: usize = 144;
/// Where the parts of the struct lie. Type, SM count, minimum and alignment are the header's; the
/// rest is where a recorded driver keeps its own data of the same meaning.
const ROOT: usize = 8;
const TOKEN: usize = 20;
const DIVISIBLE: usize = 91;
const SM_COUNT: usize = 96;
const MIN_PARTITION: usize = 100;
const ALIGNMENT: usize = 104;
/// An odd factor that spreads tokens over 32 bits, so that damaged ones are noticed.
const SPREAD: u32 = 0x9e37_79b1;

type Bytes = [u8; SIZE];

/// A set of SMs as a `CUdevResource` stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Resource {
    pub(crate) device: usize,
    /// What the SMs were split out of: resources combine only within one root.
    root: usize,
    /// Resources of devices and contexts can be split, results of a split cannot.
    divisible: bool,
    /// Cut in fine units, or out of something that was.
    fine: bool,
    sms: SmSet,
    count: u32,
}

/// The resources that were given out. Equal ones are one and the same, so that two equal splits
/// give equal bytes, as recorded.
#[derive(Default)]
pub(crate) struct Resources {
    entries: Vec<Resource>,
    index: HashMap<Resource, u32>,
}

/// What a `CUdevResourceDesc` points to; it lives as long as the driver.
pub(crate) struct Descriptor {
    pub(crate) device: usize,
    pub(crate) sms: Partition,
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

/// The inverse of an odd number modulo 2^32, by Newton's iteration.
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
        bytes[DIVISIBLE] = u8::from(resource.divisible);
        put(&mut bytes, SM_COUNT, resource.count);
        // Only resources of devices and contexts carry these, and only from 13.0 on.
        if resource.divisible && self.version >= 13_000 {
            let Profile { topology, min_partition, alignment, .. } = self.profile;
            let fine = resource.fine.then_some(topology.fine_unit);
            put(&mut bytes, MIN_PARTITION, fine.unwrap_or(*min_partition));
            put(&mut bytes, ALIGNMENT, fine.unwrap_or(*alignment));
        }
        bytes
    }

    fn decode(&mut self, from: Ptr<CUdevResource>) -> Answer<Resource> {
        from.given()?;
        let mut bytes = NOTHING;
        from.read_bytes(&mut bytes)?;
        if get(&bytes, 0) != SM {
            return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE);
        }
        let resource = self.resources.find(get(&bytes, TOKEN));
        let resource = resource.ok_or(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)?;
        // Minimum and alignment are information only; everything before them must be untouched.
        if self.encode(resource)[..MIN_PARTITION] != bytes[..MIN_PARTITION] {
            return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        }
        Ok(resource)
    }

    /// Writes the resource of a type, of which SMs are the only one.
    fn write_resource(
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

    /// Writes the resource of a context that was looked up already.
    pub(crate) fn write_context_resource(
        &mut self,
        handle: usize,
        out: Ptr<CUdevResource>,
        kind: CUdevResourceType,
    ) -> Answer {
        let context = &self.contexts[&handle];
        let (device, green) = (context.device, context.green);
        // The primary context has the whole device, and its resource is the device's own.
        let root = if green { handle } else { self.devices[device].root };
        let Partition { set: sms, count, fine, .. } = context.sms;
        self.write_resource(Resource { device, root, divisible: true, fine, sms, count }, out, kind)
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
    let sms = state.profile.topology.all();
    let root = state.devices[device].root;
    state.write_resource(
        Resource { device, root, divisible: true, fine: false, sms, count: sms.len() },
        out,
        kind,
    )
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
    let input = state.decode(input)?;
    if !result.is_null() && capacity == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if !input.divisible {
        return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    let wanted = (!result.is_null()).then_some(capacity);
    let topology = &state.profile.topology;
    let split = topology.split(input.sms, input.fine, wanted, flags, minimum);
    let split = split.map_err(|error| match error {
        SplitError::Flags => CUresult::CUDA_ERROR_INVALID_VALUE,
        SplitError::Size => CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
    })?;
    groups.write(split.groups.len() as u32)?;
    let fine = input.fine || is_fine(flags);
    let part = |sms: SmSet| Resource { divisible: false, fine, sms, count: sms.len(), ..input };
    if !result.is_null() {
        for (index, &group) in split.groups.iter().enumerate() {
            let bytes = state.encode(part(group));
            result.element(index).write_bytes(&bytes)?;
        }
    }
    // A query leaves the remainder as it was, as recorded.
    if !result.is_null() && !remaining.is_null() {
        let bytes = state.encode(part(split.remainder));
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
        // The first resource is looked at without a check that there is one, as recorded.
        crash::segmentation_fault();
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let topology = &state.profile.topology;
    let coscheduled = |resource: &Resource| {
        if resource.fine { SmSet::default() } else { topology.coscheduled(resource.sms) }
    };
    let first = state.decode(resources)?;
    let (mut sms, mut total, mut fine) = (first.sms, first.count, first.fine);
    let mut together = coscheduled(&first);
    for index in 1..count as usize {
        let next = state.decode(resources.element(index))?;
        // 12.4 takes one resource of a type (its header); later drivers take those of one root.
        if state.version < 12_050 || next.root != first.root {
            return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        }
        sms = sms.union(next.sms);
        total += next.count;
        fine |= next.fine;
        together = together.union(coscheduled(&next));
    }
    let sms = Partition::new(sms, total, fine, together);
    let handle = handle::next();
    state.descriptors.insert(handle, Descriptor { device: first.device, sms });
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
            divisible: false,
            fine: false,
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
