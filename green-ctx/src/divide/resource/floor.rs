//! A context on some units of a partition, used to find out which SMs these units contain.

use std::sync::Arc;

use super::create::obtain;
use crate::handle::context::Context;
use crate::handle::device::Device;
use crate::handle::error::{Error, Result};
use crate::handle::green::{self, RawGreen};
use crate::ledger::Placement;

/// Creates a context on units of a partition. The ledger does not record the context, and no later owner of
/// the SMs waits for the context's work. The caller must submit work to the context only before or alongside
/// the partition's own work, and must wait until the submitted work is done.
pub(crate) fn context_of_units(owner: &Context, units: &[usize], sm_count: u32) -> Result<Context> {
    let Some(group) = owner.group() else {
        return Err(Error::InvalidRequest("a context without a group has no units".to_owned()));
    };
    let device = owner.device();
    let cut = group.placement().cut.clone();
    let placement = Placement { cut, members: units.to_vec() };
    let raw = obtain(device, group.units(), &placement, None, sm_count)?;
    let (device, keeps) = (device.clone(), owner.clone());
    let lent = Lent { device: device.clone(), placement, sm_count, raw, _keeps: keeps };
    // SAFETY: the handles in `raw` are valid until `lent` is dropped, because only its `Drop` gives them
    // back, and the adopted context owns `lent`. `raw.green` is the green context of `raw.context`.
    #[allow(unsafe_code, reason = "the handles belong to a live context")]
    unsafe {
        Context::adopt(device.driver(), raw.context, Some(raw.green), Arc::new(lent))
    }
}

/// A driver context on a partition's units, with a reference to the partition's context.
struct Lent {
    device: Device,
    placement: Placement,
    sm_count: u32,
    raw: RawGreen,
    _keeps: Context,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.device.driver().is_forked() {
            green::leave(&self.device, self.raw, &self.placement, None, self.sm_count);
        }
    }
}
