//! The device that an argument names.

use std::sync::OnceLock;

use green_ctx::{Device, Driver};

use crate::fault::Fault;

/// The installed driver's device of this ordinal. Loads the driver the first time.
pub(crate) fn device(ordinal: i64) -> Result<Device, Fault> {
    let known = u32::try_from(ordinal).map_err(|_| {
        let ordinal = match ordinal {
            // What these stand for is further from 0.
            i64::MIN | i64::MAX => "of such a number".to_owned(),
            ordinal => ordinal.to_string(),
        };
        Fault::value(format!("there is no device {ordinal}; devices are numbered from 0 on"))
    })?;
    let driver = Driver::load()?;
    SINGLE.get_or_init(|| driver.devices().nth(1).is_none());
    Ok(driver.device(known)?)
}

/// Refuses to use what the parent of a forked child made: CUDA does not survive a fork.
///
/// Each object of Python calls this where it hands out what it holds, unless it is closed.
pub(crate) fn check_process(device: &Device) -> Result<(), Fault> {
    device.driver().device(device.ordinal())?;
    Ok(())
}

/// Whether there is one device, once the driver is loaded.
static SINGLE: OnceLock<bool> = OnceLock::new();

/// Whether there is one device, as far as that is known: torch's current one then is that.
pub(crate) fn is_single() -> bool {
    SINGLE.get().is_some_and(|single| *single)
}
