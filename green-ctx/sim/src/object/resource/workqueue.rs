//! Workqueues, which drivers have as resources from 13.1 on. Nothing here is recorded.

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
/// Where the fields of a configuration lie.
const DEVICE: usize = 96;
const LIMIT: usize = 100;
const SCOPE: usize = 104;
/// Where the simulator keeps the owner of existing workqueues, and a second time to notice damage.
const OWNER: usize = 96;
const CHECK: usize = 104;
/// Where the struct's pointer to another resource lies, which nobody reads.
const NEXT: usize = 136;

impl Workqueue {
    /// These workqueues as a new context has them: its own, unless they existed before.
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

    /// The workqueues of a device that all its contexts share by default.
    fn default_workqueue(&self, device: usize) -> Workqueue {
        let owner = self.devices[device].primary;
        Workqueue { device, owner, limit: self.profile.workqueue_limit, scope: SCOPES[0] }
    }

    /// The workqueues of a context that was looked up already.
    fn workqueue(&self, context: usize) -> Workqueue {
        let context = &self.contexts[&context];
        let device = self.physical(context.device);
        context.workqueue.unwrap_or_else(|| self.default_workqueue(device))
    }

    /// The resource of a device, where the type is one of workqueues. That a device has existing
    /// ones too is what the header says of `cuDeviceGetDevResource` and what cuda.core 1.2 asks of
    /// every driver from 13.1 on; that they are those of the primary context is not recorded.
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

    /// The resource of a context that was looked up already, where the type is one of workqueues.
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

    /// The workqueues that a resource stands for, `None` where it is of another type.
    ///
    /// A configuration is what its fields say, whoever wrote them. Existing ones must have been
    /// given out; that they outlive the context that they were asked of is not recorded.
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
        // More than the device has queues for is accepted (header of 13.1).
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
