//! The only simulated driver of the process.

use std::env::VarError;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use green_ctx_sim::{Builder, Clock, Fault, Sim, Spec};

use crate::report;

/// The environment variable that sets the profile and the driver version.
const SPEC: &str = "GREEN_CTX_SIM";
/// The environment variable that sets the number of devices.
const DEVICES: &str = "GREEN_CTX_SIM_DEVICES";
/// The environment variable that sets the clock.
const CLOCK: &str = "GREEN_CTX_SIM_CLOCK";

/// The environment variable that makes calls fail.
const FAULT: &str = "GREEN_CTX_SIM_FAULT";

/// The maximum number of devices, which is more than any machine has. A larger number is an error.
const MOST_DEVICES: usize = 64;

/// Returns the driver. The first call creates the driver; if this fails, every call returns `None`.
#[inline]
pub(crate) fn sim() -> Option<&'static Sim> {
    static SIM: OnceLock<Option<Sim>> = OnceLock::new();
    SIM.get_or_init(make).as_ref()
}

/// Returns the name of the simulated profile, such as `h200`; `None` if the driver could not be created.
pub(crate) fn profile() -> Option<&'static CStr> {
    static PROFILE: OnceLock<Option<CString>> = OnceLock::new();
    let name = || CString::new(sim()?.spec().profile().name).ok();
    PROFILE.get_or_init(name).as_deref()
}

fn make() -> Option<Sim> {
    let builder = builder().unwrap_or_else(|wrong| {
        eprintln!("libcuda.so.1 (simulated): {wrong}; no devices are simulated");
        Sim::builder(Spec::default()).devices(0)
    });
    let sim = builder.build();
    let sim = sim.inspect_err(|error| eprintln!("libcuda.so.1 (simulated): {error}")).ok()?;
    if let Err(wrong) = fail(&sim) {
        eprintln!("libcuda.so.1 (simulated): {wrong}; no devices are simulated");
        return None;
    }
    report::at_exit();
    Some(sim)
}

/// Returns a builder configured by the environment variables, or an error message for an invalid variable.
fn builder() -> Result<Builder, String> {
    let mut spec = Spec::default();
    if let Some(text) = variable(SPEC)? {
        spec = text.parse().map_err(|error| format!("{SPEC}={text}: {error}"))?;
    }
    let mut builder = Sim::builder(spec);
    if let Some(text) = variable(DEVICES)? {
        let devices = text.parse().ok().filter(|devices| (0..=MOST_DEVICES).contains(devices));
        builder = builder.devices(devices.ok_or_else(|| {
            format!("{DEVICES}={text}: set a number of devices from 0 to {MOST_DEVICES}")
        })?);
    }
    match variable(CLOCK)?.as_deref() {
        None | Some("virtual") => Ok(builder),
        Some("real") => Ok(builder.clock(Clock::Real)),
        Some(text) => Err(format!("{CLOCK}={text}: set the clock to virtual or real")),
    }
}

/// Makes the calls fail that the environment variable names.
fn fail(sim: &Sim) -> Result<(), String> {
    let Some(text) = variable(FAULT)? else { return Ok(()) };
    let (function, nth) = text.split_once(':').unwrap_or((&text, "1"));
    let nth = nth.parse().map_err(|_| format!("{FAULT}={text}: write FUNCTION or FUNCTION:NTH"))?;
    let failed = sim.fail(Fault::on(function).nth(nth));
    failed.map_err(|error| format!("{FAULT}={text}: {error}"))
}

/// Returns an environment variable; `None` if the variable is not set or is empty.
fn variable(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Ok(value) => Ok((!value.is_empty()).then_some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name}: the value is not UTF-8")),
    }
}
