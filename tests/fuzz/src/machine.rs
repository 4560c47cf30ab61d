//! A simulated driver with its device, and what a run needs on it.

use std::sync::Arc;

use green_ctx::sim_0_1::Sim;
use green_ctx::{Device, Driver, Error, Kernel, Library, Stream, StreamOptions};
use parking_lot::Mutex;

use crate::raw;

/// The parts and versions that seeds choose from.
pub const SPECS: [&str; 12] = [
    "h200@13.0",
    "a100@13.0",
    "h200@12.4",
    "a100@12.4",
    "h200@12.5",
    "a100@12.5",
    "h200@12.8",
    "a100@12.8",
    "h200@13.1",
    "a100@13.1",
    "h200@13.4",
    "a100@13.4",
];

/// The calls whose failures were reported to the driver's clean-up hook.
pub type Reports = Arc<Mutex<Vec<String>>>;

/// A simulated driver, in use.
pub struct Machine {
    /// The simulator's side.
    pub sim: Sim,
    /// Its only device.
    pub device: Device,
    /// A kernel that runs as many nanoseconds as its argument says.
    pub kernel: Kernel,
    /// The same under another name, for work that is exempt from the promise where only names show
    /// who launched what.
    pub exempt: Kernel,
    /// A stream that shows the time.
    pub clock: Stream,
    /// Device memory for memsets.
    pub memory: green_ctx::DeviceBuffer<u32>,
    /// What the clean-up hook heard.
    pub reports: Reports,
}

/// Brings a simulated driver up.
///
/// # Errors
///
/// What the simulator or the library says.
pub fn start(spec: &str) -> Result<(Sim, Driver, Reports), Box<dyn std::error::Error>> {
    let sim = Sim::builder(spec).trace(1 << 16).build()?;
    let driver = Driver::simulated(&sim)?;
    let reports = Reports::default();
    let hook = Arc::clone(&reports);
    driver
        .on_cleanup_failure(move |error| {
            let call = match error {
                Error::Driver { call, .. } => (*call).to_owned(),
                other => other.to_string(),
            };
            hook.lock().push(call);
        })
        .keep();
    Ok((sim, driver, reports))
}

/// A kernel that runs as many nanoseconds as its argument says.
fn load(sim: &Sim, device: &Device, name: &str) -> green_ctx::Result<Kernel> {
    sim.register_kernel(name, |call| {
        if let Some(duration) = call.param_u64(0) {
            call.set_duration_ns(duration);
        }
    });
    let ptx = format!(
        ".version 7.0 .target sm_52 .visible .entry {name}(.param .u64 nanoseconds) {{ ret; }}"
    );
    Library::from_ptx(device, &ptx)?.kernel(name)
}

impl Machine {
    /// A machine with a kernel of this name.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn new(
        sim: &Sim,
        driver: &Driver,
        reports: &Reports,
        kernel: &str,
    ) -> Result<Machine, Box<dyn std::error::Error>> {
        let device = driver.device(0)?;
        let (kernel, exempt) = (load(sim, &device, kernel)?, load(sim, &device, "exempt")?);
        let clock = device.primary_context()?.create_stream(StreamOptions::default())?;
        let memory = green_ctx::DeviceBuffer::zeroed(&device, 64)?;
        let (sim, reports) = (sim.clone(), Arc::clone(reports));
        Ok(Machine { sim, device, kernel, exempt, clock, memory, reports })
    }

    /// Launches the shortest kernel in an idle stream, so that the trace shows the time.
    ///
    /// # Errors
    ///
    /// What the launch says.
    pub fn probe(&self) -> green_ctx::Result<()> {
        raw::launch(&self.clock, &self.kernel, 1)
    }

    /// Lets this much virtual time pass.
    ///
    /// # Errors
    ///
    /// What the launch or the wait for it says.
    pub fn advance(&self, nanoseconds: u64) -> green_ctx::Result<()> {
        raw::launch(&self.clock, &self.kernel, nanoseconds)?;
        self.clock.synchronize()
    }
}
