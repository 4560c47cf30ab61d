//! The one simulated driver of the process.

use std::env::VarError;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use green_ctx_sim::{Builder, Clock, Sim, Spec};

use crate::report;

/// The variable that says which part and driver version are played.
const SPEC: &str = "GREEN_CTX_SIM";
/// The variable that says how many devices there are.
const DEVICES: &str = "GREEN_CTX_SIM_DEVICES";
/// The variable that says what makes time pass.
const CLOCK: &str = "GREEN_CTX_SIM_CLOCK";

/// More devices than any machine has; a larger number is taken for a mistake.
const MOST_DEVICES: usize = 64;

/// The driver, made at the first call; `None` where it could not be made.
#[inline]
pub(crate) fn sim() -> Option<&'static Sim> {
    static SIM: OnceLock<Option<Sim>> = OnceLock::new();
    SIM.get_or_init(make).as_ref()
}

/// The simulated device, `h200` for example; `None` where the driver could not be made.
pub(crate) fn profile() -> Option<&'static CStr> {
    static PROFILE: OnceLock<Option<CString>> = OnceLock::new();
    let name = || CString::new(sim()?.spec().profile().name).ok();
    PROFILE.get_or_init(name).as_deref()
}

fn make() -> Option<Sim> {
    let builder = builder().unwrap_or_else(|wrong| {
        eprintln!("libcuda.so.1 (simulated): {wrong}; there are no devices");
        Sim::builder(Spec::default()).devices(0)
    });
    // Nobody in the process can ask for the trace of launches.
    let sim = builder.trace(0).build();
    let sim = sim.inspect_err(|error| eprintln!("libcuda.so.1 (simulated): {error}")).ok()?;
    report::at_exit();
    Some(sim)
}

/// What the variables ask for, or what is wrong with them.
fn builder() -> Result<Builder, String> {
    let mut spec = Spec::default();
    if let Some(text) = variable(SPEC)? {
        spec = text.parse().map_err(|error| format!("{SPEC}={text}: {error}"))?;
    }
    let mut builder = Sim::builder(spec);
    if let Some(text) = variable(DEVICES)? {
        let devices = text.parse().ok().filter(|devices| (0..=MOST_DEVICES).contains(devices));
        builder = builder.devices(devices.ok_or_else(|| {
            format!("{DEVICES}={text}: the number of devices is from 0 to {MOST_DEVICES}")
        })?);
    }
    match variable(CLOCK)?.as_deref() {
        None | Some("virtual") => Ok(builder),
        Some("real") => Ok(builder.clock(Clock::Real)),
        Some(text) => Err(format!("{CLOCK}={text}: the clock is virtual or real")),
    }
}

/// A variable of the environment, `None` where it is not set or empty.
fn variable(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Ok(value) => Ok((!value.is_empty()).then_some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not UTF-8")),
    }
}
