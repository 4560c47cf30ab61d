//! Testing: programs that use partitions, tested without a GPU.
//!
//! The simulated driver (package `green-ctx-sim`, reached through the feature `sim`) answers as an H200
//! or an H100 does in every case that was recorded on them, and shows what a GPU does not. In a program's
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
//! passes a simulated one. Several drivers, of different versions, can be in one process; they share nothing.
//!
//! # What ran on which SMs
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, sim::Sim, verify};
//!
//! let sim = Sim::new("h200@13.0")?;
//! let device = Driver::simulated(&sim)?.device(0)?;
//! // What the program does: here, it verifies a partition.
//! verify::partitions(&device.partition([16])?, verify::DEFAULT_STAY)?;
//! // Every launch is on record.
//! assert!(sim.launches().iter().all(|launch| launch.is_green && launch.sms.len() <= 16));
//! # Ok(())
//! # }
//! ```
//!
//! A kernel is a closure, registered under its name with
//! [`Sim::register_kernel`](crate::sim::Sim::register_kernel). One that is not registered is recorded
//! and does nothing. [`Launch::happens_before`](crate::sim::Launch::happens_before) says whether
//! streams and events order one launch before another.
//!
//! # A wait that is missing
//!
//! Two partitions that share memory need an event between them; on a GPU a program without it works
//! until it does not. The simulated driver knows how launches are ordered, and reports every two accesses
//! that nothing orders ([`Sim::races`](crate::sim::Sim::races)):
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{DeviceBuffer, Driver, LaunchConfig, Library, sim::Sim};
//!
//! let sim = Sim::new("h200@13.0")?;
//! sim.register_kernel("put", |call| {
//!     let _ = call.write(call.param_u64(0).unwrap_or(0), &[7; 64]);
//! });
//! let device = Driver::simulated(&sim)?.device(0)?;
//! # let ptx = ".version 7.0 .target sm_52 .visible .entry put(.param .u64 to) { ret; }";
//! let put = Library::from_ptx(&device, ptx)?.kernel("put")?;
//! let buffer = DeviceBuffer::<u8>::zeroed(&device, 64)?;
//! let parts = device.partition([16, 32])?;
//! let (first, second) = (parts[0].stream(), parts[1].stream());
//! for (stream, wait) in [(first, false), (second, false), (first, true)] {
//!     if wait {
//!         first.wait_for(second)?;
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
//! use green_ctx::sim::{Fault, Live, Sim};
//! use green_ctx::{CUresult, Driver};
//!
//! let sim = Sim::new("h200@13.0")?;
//! let device = Driver::simulated(&sim)?.device(0)?;
//! // The driver refuses the second context.
//! sim.fail(Fault::on("cuGreenCtxCreate").nth(2).with(CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
//! let refused = device.partition([16, 24]).expect_err("the second one");
//! assert_eq!(refused.status(), Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
//! // No SMs are held, and nothing is left but the first context, to be used again.
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
//! use green_ctx::{Driver, sim::Sim};
//!
//! // The program's fallback for drivers that cannot split unevenly.
//! let device = Driver::simulated(&Sim::new("h200@12.4")?)?.device(0)?;
//! let parts = match device.partition([16, 24]) {
//!     Err(error) if error.is_unsupported() => device.partition([24, 24])?,
//!     other => other?,
//! };
//! assert_eq!(parts.len(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! `h100` and `h200` answer as recorded; `a100`, `b200`, `l40s`, `rtx5080`, `rtx5090` and `thor`
//! follow from documentation. [`Profile::provenance`](crate::sim::Profile) names the source of each group of
//! data.
//!
//! # Programs in other languages
//!
//! `cargo xtask sim-lib` in this crate's repository builds the simulated driver as a `libcuda.so.1`.
//! NVIDIA's `cuda-core` and `cuda-bindings`, `cudarc` and plain C programs run on it.
