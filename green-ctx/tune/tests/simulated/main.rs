//! The tuner on a simulated device. Its tests take real time, so they have a process of their own.

mod blocks;
mod search;

use green_ctx::sim_0_1::Sim;
use green_ctx::{Device, Driver, Kernel, LaunchConfig, Library, Stream};
use green_ctx_tune::{Job, JobError};

/// Any test's result: `?` on every error.
type Tested = Result<(), Box<dyn std::error::Error>>;

const PTX: &str = ".version 5.0 .target sm_52 .address_size 64 .visible .entry step() { ret; }";

/// A simulated driver and its device.
fn simulated(spec: &str) -> Result<(Sim, Device), Box<dyn std::error::Error>> {
    let sim = Sim::new(spec)?;
    let device = Driver::simulated(&sim)?.device(0)?;
    Ok((sim, device))
}

fn kernel(device: &Device) -> green_ctx::Result<Kernel> {
    Library::from_ptx(device, PTX)?.kernel("step")
}

fn launch(kernel: &Kernel, stream: &Stream) -> Result<(), JobError> {
    // SAFETY: the kernel takes no parameters.
    Ok(unsafe { stream.launch(kernel, LaunchConfig::new(132, 128), ()) }?)
}

/// A job that launches one kernel.
fn job(device: &Device, name: &str) -> green_ctx::Result<Job> {
    let kernel = kernel(device)?;
    Ok(Job::new(name, move |stream| launch(&kernel, stream)))
}

/// Whether all SMs are free, and nothing but contexts that wait to be used again is left.
fn nothing_is_left(sim: &Sim, device: &Device) -> Tested {
    assert_eq!(device.resources().sm()?.free(), 132);
    device.release_idle();
    let live = sim.live();
    assert_eq!((live.streams, live.green_contexts, live.graph_executables), (0, 0, 0));
    assert_eq!((live.events, live.graphs, live.allocations), (0, 0, 0));
    Ok(())
}
