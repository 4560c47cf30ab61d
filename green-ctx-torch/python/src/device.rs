//! The device that an argument names.

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
    Ok(Driver::load()?.device(known)?)
}
