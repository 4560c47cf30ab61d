//! A context on some units of a partition, used to find out which SMs these units contain.

use std::sync::Arc;

use super::create::obtain;
use crate::handle::context::Context;
use crate::handle::device::Device;
use crate::handle::error::{Error, Result};
use crate::handle::green::{self, Green};
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
    let green = obtain(device, group.units(), &placement, None, sm_count)?;
    let (lent, keeps) = (Arc::clone(&green), owner.clone());
    let lent = Lent { device: device.clone(), green: lent, _keeps: keeps };
    Ok(Context::of_green(device, &green, Some(Arc::new(lent))))
}

/// A driver context on a partition's units, with a reference to the partition's context.
struct Lent {
    device: Device,
    green: Arc<Green>,
    _keeps: Context,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.device.driver().is_forked() {
            green::leave(&self.device, Arc::clone(&self.green));
        }
    }
}
