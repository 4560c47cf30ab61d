//! Workqueue resources, from CUDA 13.1 on. None of this behaviour was recorded on hardware.

use green_ctx_sys::{CUdevResourceType, CUdevWorkqueueConfigScope, CUresult};

use super::{Bytes, NOTHING, Workqueue, get, put};
use crate::pointer::Answer;
use crate::state::State;

const CONFIG: u32 = CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG.0;
const EXISTING: u32 = CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE.0;
const SCOPES: [u32; 2] = [
    CUdevWorkqueueConfigScope::CU_WORKQUEUE_SCOPE_DEVICE_CTX.0,
    CUdevWorkqueueConfigScope::CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED.0,
];
/// The offsets of the fields of a configuration.
const DEVICE: usize = 96;
const LIMIT: usize = 100;
const SCOPE: usize = 104;
/// The offsets at which the simulator stores the owner of existing workqueues and the complement of the
/// owner. The complement reveals damaged bytes.
const OWNER: usize = 96;
const CHECK: usize = 104;
/// The offset of the struct's pointer to another resource. The simulator never reads this pointer.
const NEXT: usize = 136;

impl Workqueue {
    /// Returns these workqueues for a new context. The context becomes the owner, unless the workqueues
    /// already have an owner.
    pub(crate) fn provisioned_by(self, context: usize) -> Workqueue {
        let owner = if self.owner == 0 { context } else { self.owner };
        Workqueue { owner, ..self }
    }

    fn config(self) -> Bytes {
        let mut bytes = NOTHING;
        put(&mut bytes, 0, CONFIG);
        put(&mut bytes, DEVICE, self.device as u32);
        put(&mut bytes, LIMIT, self.limit);
        put(&mut bytes, SCOPE, self.scope);
        bytes
    }

    fn existing(self) -> Bytes {
        let mut bytes = NOTHING;
        put(&mut bytes, 0, EXISTING);
        bytes[OWNER..OWNER + 8].copy_from_slice(&self.owner.to_ne_bytes());
        bytes[CHECK..CHECK + 8].copy_from_slice(&(!self.owner).to_ne_bytes());
        bytes
    }
}

impl State {
    fn has_workqueues(&self) -> bool {
        self.version >= 13_010
    }

    /// Returns the workqueues that all contexts of a device share by default.
    fn default_workqueue(&self, device: usize) -> Workqueue {
        let owner = self.devices[device].primary;
        Workqueue { device, owner, limit: self.profile.workqueue_limit, scope: SCOPES[0] }
    }

    /// Returns the workqueues of an existing context.
    fn workqueue(&self, context: usize) -> Workqueue {
        let context = &self.contexts[&context];
        let device = self.physical(context.device);
        context.workqueue.unwrap_or_else(|| self.default_workqueue(device))
    }

    /// Returns the workqueue resource of a device; `None` if `kind` is another type. According to the
    /// header of `cuDeviceGetDevResource`, a device has existing workqueues too. cuda.core 1.2 queries
    /// these workqueues on every driver from 13.1 on. Whether they are the workqueues of the primary
    /// context was not recorded.
    pub(super) fn encode_default_workqueue(
        &self,
        device: usize,
        kind: CUdevResourceType,
    ) -> Option<Bytes> {
        match kind.0 {
            CONFIG if self.has_workqueues() => Some(self.default_workqueue(device).config()),
            EXISTING if self.has_workqueues() => Some(self.default_workqueue(device).existing()),
            _ => None,
        }
    }

    /// Returns the workqueue resource of an existing context; `None` if `kind` is another type.
    pub(super) fn encode_workqueue_of(
        &self,
        context: usize,
        kind: CUdevResourceType,
    ) -> Option<Bytes> {
        match kind.0 {
            CONFIG if self.has_workqueues() => Some(self.workqueue(context).config()),
            EXISTING if self.has_workqueues() => Some(self.workqueue(context).existing()),
            _ => None,
        }
    }

    /// Returns the workqueues in a resource; `None` if the resource has another type.
    ///
    /// A configuration is accepted from any source if its fields are valid. Existing workqueues are
    /// accepted only if the driver returned them earlier. Whether workqueues outlive the context from
    /// which they were read was not recorded.
    pub(super) fn decode_workqueue(&self, bytes: &Bytes) -> Answer<Option<Workqueue>> {
        let found = match get(bytes, 0) {
            CONFIG if self.has_workqueues() => self.decode_config(bytes),
            EXISTING if self.has_workqueues() => self.decode_existing(bytes),
            _ => return Ok(None),
        };
        found.map(Some).ok_or(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)
    }

    fn decode_config(&self, bytes: &Bytes) -> Option<Workqueue> {
        let device = self.device(get(bytes, DEVICE) as i32).ok()?;
        // A limit above the device's number of queues is accepted (header of 13.1).
        let (limit, scope) = (get(bytes, LIMIT), get(bytes, SCOPE));
        let valid = limit > 0 && SCOPES.contains(&scope);
        valid.then_some(Workqueue { device, owner: 0, limit, scope })
    }

    fn decode_existing(&self, bytes: &Bytes) -> Option<Workqueue> {
        let owner = bytes[OWNER..].first_chunk().copied().map(usize::from_ne_bytes)?;
        self.contexts.get(&owner)?;
        let found = self.workqueue(owner);
        (found.existing()[..NEXT] == bytes[..NEXT]).then_some(found)
    }
}
