//! A simulated driver with its device, and the kernels and streams of a run.

use std::sync::Arc;

use green_ctx::sim::Sim;
use green_ctx::{Device, Driver, Error, Kernel, Library, Stream, StreamOptions};
use parking_lot::Mutex;

use crate::raw;

/// The parts and driver versions that a seed chooses from.
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

/// The driver calls whose failures were reported to the clean-up hook.
pub type Reports = Arc<Mutex<Vec<String>>>;

/// A simulated driver in use.
pub struct Machine {
    /// The simulator.
    pub sim: Sim,
    /// The first device.
    pub device: Device,
    /// The second device, if the driver has one.
    pub second: Option<Device>,
    /// A kernel that runs for as many nanoseconds as its argument.
    pub kernel: Kernel,
    /// The same kernel under another name, for work that the promise does not cover. With several threads only
    /// kernel names show who launched what.
    pub exempt: Kernel,
    /// A stream for launches that show the time.
    pub clock: Stream,
    /// Device memory for memsets.
    pub memory: green_ctx::DeviceBuffer<u32>,
    /// The failures reported to the clean-up hook.
    pub reports: Reports,
}

/// Variants of a simulated driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variant {
    /// Whether it has two devices.
    pub two_devices: bool,
    /// Whether the clean-up hook panics in every call.
    pub hook_panics: bool,
}

/// Panics without a message on standard error, for hooks and functions of the program.
pub fn panic_quietly(of: &str) -> ! {
    std::panic::resume_unwind(Box::new(format!("a panic of {of} escaped from the library")))
}

/// Creates a simulated driver and installs the clean-up hook.
///
/// # Errors
///
/// Returns an error of the simulator or the library.
pub fn start(
    spec: &str,
    variant: Variant,
) -> Result<(Sim, Driver, Reports), Box<dyn std::error::Error>> {
    let Variant { two_devices, hook_panics } = variant;
    let sim = Sim::builder(spec).trace(1 << 16).devices(1 + usize::from(two_devices)).build()?;
    let driver = Driver::simulated(&sim)?;
    let reports = Reports::default();
    let hook = Arc::clone(&reports);
    driver
        .on_cleanup_failure(move |error| {
            match error {
                Error::Driver { call, .. } => hook.lock().push((*call).to_owned()),
                // The panic was planned by the program.
                Error::HostPanic { .. } => {}
                other => hook.lock().push(other.to_string()),
            }
            if hook_panics {
                panic_quietly("the clean-up hook");
            }
        })
        .keep();
    Ok((sim, driver, reports))
}

/// Loads a kernel that runs for as many nanoseconds as its argument.
///
/// # Errors
///
/// Returns an error of the library.
pub fn load(sim: &Sim, device: &Device, name: &str) -> green_ctx::Result<Kernel> {
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
    /// Creates a machine whose kernel has this name.
    ///
    /// # Errors
    ///
    /// Returns an error of the library.
    pub fn new(
        sim: &Sim,
        driver: &Driver,
        reports: &Reports,
        kernel: &str,
    ) -> Result<Machine, Box<dyn std::error::Error>> {
        let device = driver.device(0)?;
        let (kernel, exempt) = (load(sim, &device, kernel)?, load(sim, &device, "exempt")?);
        let clock = device.primary_context()?.create_stream(StreamOptions::default())?;
        // Registered before any other stream, so the end of a capture asks about it first.
        let _raw = clock.as_raw();
        let memory = green_ctx::DeviceBuffer::zeroed(&device, 64)?;
        let (sim, reports) = (sim.clone(), Arc::clone(reports));
        let second = driver.device(1).ok();
        Ok(Machine { sim, device, second, kernel, exempt, clock, memory, reports })
    }

    /// Launches the shortest kernel in an idle stream, so that the trace shows the current time.
    ///
    /// # Errors
    ///
    /// Returns an error of the launch.
    pub fn probe(&self) -> green_ctx::Result<()> {
        raw::launch(&self.clock, &self.kernel, 1)
    }

    /// Lets simulated time pass.
    ///
    /// # Errors
    ///
    /// Returns an error of the launch or of the wait for it.
    pub fn advance(&self, nanoseconds: u64) -> green_ctx::Result<()> {
        raw::launch(&self.clock, &self.kernel, nanoseconds)?;
        self.clock.synchronize()
    }
}
