//! Asking the driver what is done while somebody captures a stream.
#![allow(unsafe_code, reason = "calls the driver")]

use green_ctx_sys::CUstreamCaptureMode;

use crate::driver::Driver;
use crate::error::{Result, call};

/// While it lives, this thread may ask what is done. Without it, a question about any event would
/// spoil the graph that another thread captures in global mode (recorded on an H200, driver
/// 580.159.04), and whoever captures knows nothing of a partition that is dropped meanwhile.
pub(crate) struct Relaxed<'a> {
    driver: &'a Driver,
    former: CUstreamCaptureMode,
}

impl<'a> Relaxed<'a> {
    pub(crate) fn enter(driver: &'a Driver) -> Result<Relaxed<'a>> {
        let former = exchange(driver, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        Ok(Relaxed { driver, former })
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        self.driver.report(exchange(self.driver, self.former).map(drop));
    }
}

/// Sets the thread's mode and returns the former one.
fn exchange(driver: &Driver, mut mode: CUstreamCaptureMode) -> Result<CUstreamCaptureMode> {
    // SAFETY: the pointer is to a live value.
    unsafe { call!(driver.api(), cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
    Ok(mode)
}
