//! Built-in jobs: work of a known character, to try a division of a device on.
//!
//! A job is named `NAME[:SIZE]`, which [`Spec`] reads; [`Kind`] lists the names with their sizes. A
//! [`Builder`] makes a graph of one iteration, captured on a plain stream, that can be moved to any
//! partition.
//!
//! The product in bf16 is [cuBLAS's](cublas), where that library is found. All other kernels are the
//! crate's own and run on any GPU from compute capability 5.2 on. A simulated driver launches the kernels
//! and computes nothing; cuBLAS is never loaded for it.
//!
//! # Example
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, sim::Sim};
//! use green_ctx_cli::jobs::Builder;
//!
//! let device = Driver::simulated(&Sim::new("h200")?)?.device(0)?;
//! let builder = Builder::new(&device, None)?;
//! let job = builder.build(&"small:16".parse()?)?;
//! assert_eq!(job.graph.node_count()?, 16);
//! assert_eq!(job.about, "16 additions of 256 × 256 numbers, one after the other");
//! # Ok(())
//! # }
//! ```

pub mod cublas;
mod kernels;
mod model;
mod spec;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use green_ctx::graph::CaptureMode;
#[cfg(feature = "sim")]
use green_ctx::sim::Sim;
use green_ctx::{Device, Graph, Stream, StreamOptions};
use green_ctx_tune::Job;

use self::cublas::{Cublas, CublasError, Handle, Product};
use self::kernels::{HEAD_LEN, HEADS, Kernels, Work};
pub use self::model::model;
pub use self::spec::{Kind, Spec, SpecError};

/// The text of the built-in kernels, for programs that launch one by itself. `job_add` adds the numbers
/// of two buffers into a third one, a number a thread; comments describe the others.
pub const PTX: &str = include_str!("jobs/kernels.ptx");

/// Builds jobs for one device.
pub struct Builder {
    /// Of the primary context, which has all SMs.
    stream: Stream,
    kernels: Kernels,
    /// The path of cuBLAS, or its folder, where one was given.
    path: Option<PathBuf>,
    /// The result of looking for cuBLAS, which the first job that needs it does.
    cublas: OnceCell<Option<Cublas>>,
}

/// A job that can be launched.
#[non_exhaustive]
pub struct Built {
    /// One iteration.
    pub graph: Graph,
    /// The memory, kernels and handles that the graph uses. They must live until the last launch of the
    /// graph, of its copies and of their executables; dropping them waits for the device's work.
    ///
    /// Jobs share no memory, so different jobs can run at the same time. Launches of one job write to the
    /// same memory and must come one after the other.
    pub keep: Box<dyn Any + Send>,
    /// What the job does, and by what.
    pub about: String,
}

/// Why a job could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The driver failed, for lack of memory for example.
    #[error(transparent)]
    Library(#[from] green_ctx::Error),
    /// cuBLAS failed, or is not at the path that was given.
    #[error(transparent)]
    Cublas(#[from] CublasError),
}

/// What one iteration submits, and all that it needs.
enum Iteration {
    BuiltIn(Work),
    Cublas { handle: Handle, product: Product },
}

impl Iteration {
    fn submit(&self, stream: &Stream) -> Result<(), JobError> {
        match self {
            Iteration::BuiltIn(work) => Ok(work.submit(stream)?),
            Iteration::Cublas { handle, product } => Ok(handle.launch(product, 0.0)?),
        }
    }
}

impl Builder {
    /// Loads the kernels. `cublas` is cuBLAS's path or folder; without it, a product is cuBLAS's where the
    /// system finds that library, and a built-in kernel's otherwise. The library is looked for when the
    /// first job needs it.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](green_ctx::Error::Driver), and
    /// [`Error::Unsupported`](green_ctx::Error::Unsupported) before CUDA 12.4.
    pub fn new(device: &Device, cublas: Option<&Path>) -> Result<Builder, JobError> {
        let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
        let (kernels, path) = (Kernels::load(device)?, cublas.map(Path::to_owned));
        Ok(Builder { stream, kernels, path, cublas: OnceCell::new() })
    }

    /// Builds a job: allocates its memory, runs one iteration, and captures another.
    ///
    /// # Errors
    ///
    /// [`JobError::Library`] where the device has too little memory or the driver fails, and
    /// [`JobError::Cublas`]: for a failing cuBLAS, and for none at the path of
    /// [`new`](Builder::new).
    pub fn build(&self, spec: &Spec) -> Result<Built, JobError> {
        let (iteration, about) = self.prepare(spec)?;
        // Kernels are loaded when they first run, and one that fails does so here.
        iteration.submit(&self.stream)?;
        self.stream.synchronize()?;
        // cuBLAS may make calls that other modes forbid.
        let submit = || iteration.submit(&self.stream);
        let graph = self.stream.capture(CaptureMode::Relaxed, submit)?;
        Ok(Built { graph, keep: Box::new(iteration), about })
    }

    /// Builds a job to be tuned, under this name. What it does, and by what, is its key.
    ///
    /// # Errors
    ///
    /// As [`build`](Builder::build).
    pub fn job(&self, name: &str, spec: &Spec) -> Result<Job, JobError> {
        let Built { graph, keep, about } = self.build(spec)?;
        #[allow(unsafe_code, reason = "launches the built-in graphs")]
        // SAFETY: the graph's kernels use memory of their own alone, which the job keeps.
        let job = unsafe { Job::graph(name, graph) };
        Ok(job.key(about).keep(keep))
    }

    /// The version of cuBLAS, where a job uses it.
    ///
    /// # Errors
    ///
    /// [`JobError::Cublas`].
    pub fn cublas_version(&self) -> Result<Option<String>, JobError> {
        let cublas = self.cublas.get().and_then(Option::as_ref);
        Ok(cublas.map(Cublas::version).transpose()?)
    }

    fn device(&self) -> &Device {
        self.stream.context().device()
    }

    fn prepare(&self, spec: &Spec) -> Result<(Iteration, String), JobError> {
        let Builder { stream, kernels, .. } = self;
        let size = |default| spec.size().unwrap_or(default);
        let (work, about) = match spec.kind() {
            Kind::Gemm => {
                if let Some(cublas) = self.cublas()? {
                    return self.product(cublas, size(4096));
                }
                let side = size(2048);
                let about =
                    format!("product of {side}³ in f32 by a built-in kernel: no cuBLAS found");
                (kernels.gemm(stream, side)?, about)
            }
            Kind::Gemv => {
                let side = size(8192);
                let about = format!("product of a {side} × {side} matrix with a vector in f32");
                (kernels.gemv(stream, side)?, about)
            }
            Kind::Copy => {
                let mib = size(256);
                (kernels.copy(stream, mib)?, format!("copy of {mib} MiB"))
            }
            Kind::Small => {
                let launches = size(64);
                let about =
                    format!("{launches} additions of 256 × 256 numbers, one after the other");
                (kernels.small(stream, launches)?, about)
            }
            Kind::Attention => {
                let length = size(2048);
                let about = format!(
                    "attention over {length} tokens with {HEADS} heads of {HEAD_LEN} numbers in f32"
                );
                (kernels.attention(stream, length)?, about)
            }
        };
        Ok((Iteration::BuiltIn(work), about))
    }

    fn product(&self, cublas: &Cublas, side: u32) -> Result<(Iteration, String), JobError> {
        let Builder { stream, kernels, .. } = self;
        let rows = side as usize;
        let factor = |seed| kernels.filled_bf16(stream, seed, rows * rows);
        let product = Product::new(self.device(), [rows; 3], [factor(1)?, factor(2)?])?;
        let handle = Handle::new(cublas, stream)?;
        let about = format!("product of {side}³ in bf16 by cuBLAS");
        Ok((Iteration::Cublas { handle, product }, about))
    }

    /// cuBLAS, if there is one. None at a path that was given is an error.
    fn cublas(&self) -> Result<Option<&Cublas>, CublasError> {
        if self.cublas.get().is_none() {
            let found = match Cublas::open(self.device().driver(), self.path.as_deref()) {
                Ok(cublas) => Some(cublas),
                Err(CublasError::Load(_) | CublasError::Simulated) if self.path.is_none() => None,
                Err(error) => return Err(error),
            };
            // The cell is empty, and no other thread has it.
            let _ = self.cublas.set(found);
        }
        Ok(self.cublas.get().and_then(Option::as_ref))
    }
}

/// Gives the jobs' kernels durations on a simulated driver: on fewer SMs they take longer.
#[cfg(feature = "sim")]
pub fn register(sim: &Sim) {
    kernels::register(sim);
}
