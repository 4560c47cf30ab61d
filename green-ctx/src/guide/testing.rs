//! Testing: programs that use partitions, tested where there is no GPU.
//!
//! The simulated driver (package `green-ctx-sim`, reached through the feature `sim`) answers as an H200
//! or an H100 does in every case that was recorded on them, and shows what no GPU shows. In a program's
//! `Cargo.toml`:
//!
//! ```toml
//! [dependencies]
//! green-ctx = "0.1"
//!
//! [dev-dependencies]
//! green-ctx = { version = "0.1", features = ["sim"] }
//! ```
//!
//! The program's functions take a [`Driver`](crate::Driver) or a [`Device`](crate::Device); a test
//! gives them a simulated one. Several drivers, of different versions, live in one process without
//! sharing anything.
//!
//! # What ran on which SMs
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, StreamOptions, sim_0_1::Sim, verify};
//!
//! let sim = Sim::new("h200@13.0")?;
//! let device = Driver::simulated(&sim)?.device(0)?;
//! // What the program does: here, a partition whose work is probed.
//! let group = device.resources().sm()?.split([16])?.groups.remove(0);
//! verify::contexts(&[device.create_context(group)?], std::time::Duration::from_millis(1))?;
//! // Every launch is on record.
//! assert!(sim.launches().iter().all(|launch| launch.is_green && launch.sms.len() <= 16));
//! # Ok(())
//! # }
//! ```
//!
//! A kernel is a closure, registered under its name with
//! [`Sim::register_kernel`](crate::sim_0_1::Sim::register_kernel); one that is not registered is on record
//! and does nothing. [`Launch::happens_before`](crate::sim_0_1::Launch::happens_before) tells whether
//! streams and events put one launch after another.
//!
//! # A wait that is missing
//!
//! Two partitions that share memory need an event between them; on a GPU a program without it works
//! until it does not. The simulated driver knows what comes after what, and tells of every two accesses
//! that nothing orders ([`Sim::races`](crate::sim_0_1::Sim::races)):
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{DeviceBuffer, Driver, LaunchConfig, Library, StreamOptions, sim_0_1::Sim};
//!
//! let sim = Sim::new("h200@13.0")?;
//! sim.register_kernel("put", |call| {
//!     let _ = call.write(call.param_u64(0).unwrap_or(0), &[7; 64]);
//! });
//! let device = Driver::simulated(&sim)?.device(0)?;
//! # let ptx = ".version 7.0 .target sm_52 .visible .entry put(.param .u64 to) { ret; }";
//! let put = Library::from_ptx(&device, ptx)?.kernel("put")?;
//! let buffer = DeviceBuffer::<u8>::zeroed(&device, 64)?;
//! let mut groups = device.resources().sm()?.split([16, 32])?.groups.into_iter();
//! let mut stream = || -> green_ctx::Result<_> {
//!     let group = groups.next().expect("there are two");
//!     device.create_context(group)?.create_stream(StreamOptions::default())
//! };
//! let (first, second) = (stream()?, stream()?);
//! for (stream, wait) in [(&first, false), (&second, false), (&first, true)] {
//!     if wait {
//!         first.wait_for(&second)?;
//!     }
//!     // SAFETY: the kernel's one parameter; it writes what the buffer has.
//!     unsafe { stream.launch(&put, LaunchConfig::new(1, 32), (buffer.as_argument(),)) }?;
//! }
//! // The first two launches race; the third waited for the second.
//! assert_eq!(sim.races().len(), 1);
//! println!("{}", sim.races()[0]);
//! # Ok(())
//! # }
//! ```
//!
//! # When a call fails
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::sim_0_1::{Fault, Live, Sim};
//! use green_ctx::{CUresult, Driver};
//!
//! let sim = Sim::new("h200@13.0")?;
//! let device = Driver::simulated(&sim)?.device(0)?;
//! // The second context is refused.
//! sim.fail(Fault::on("cuGreenCtxCreate").nth(2).with(CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
//! let split = device.resources().sm()?.split([16, 24])?;
//! let made: Result<Vec<_>, _> =
//!     split.groups.into_iter().map(|group| device.create_context(group)).collect();
//! let refused = made.expect_err("the second one");
//! assert_eq!(refused.reason.status(), Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
//! // It comes with its group, to be tried again or let go.
//! drop(refused);
//! // Nothing is held, and nothing is left but the context that waits to be used again.
//! assert_eq!(device.resources().sm()?.free(), 132);
//! device.release_idle();
//! assert_eq!(sim.live(), Live::default());
//! # Ok(())
//! # }
//! ```
//!
//! # Other parts, other drivers
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, sim_0_1::Sim};
//!
//! // What the program falls back to where the driver cannot split unevenly.
//! let device = Driver::simulated(&Sim::new("h200@12.4")?)?.device(0)?;
//! let sms = device.resources().sm()?;
//! let split = match sms.split([16, 24]) {
//!     Err(error) if error.is_unsupported() => sms.split([24, 24])?,
//!     other => other?,
//! };
//! assert_eq!(split.groups.len(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! `h100` and `h200` answer as recorded; `a100`, `b200`, `l40s`, `rtx5080`, `rtx5090` and `thor`
//! follow from documentation, and [`Profile::provenance`](crate::sim_0_1::Profile) says of each group of
//! data where it comes from.
//!
//! # Programs in other languages
//!
//! `cargo xtask sim-lib` in this crate's repository builds the simulated driver as a `libcuda.so.1`.
//! NVIDIA's `cuda-core` and `cuda-bindings`, `cudarc` and plain C programs run on it.
