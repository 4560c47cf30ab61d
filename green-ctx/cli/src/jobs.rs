//! Built-in jobs: typical workloads for trying out a division of a device's SMs.
//!
//! A job is written as `NAME[:SIZE]`, and [`Spec`] parses this form. [`Kind`] lists the names, and the valid sizes for
//! each name. A [`Builder`] captures one iteration of a job on a plain stream. The resulting graph can be moved to any
//! partition.
//!
//! The bf16 matrix product uses [cuBLAS](cublas) if that library is found. All other kernels are part of this crate and
//! run on any GPU of compute capability 5.2 or higher. A simulated driver launches the kernels without computing
//! anything. With a simulated driver, cuBLAS is never loaded.
//!
//! # Examples
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
use crate::hinted::Hinted;

/// Returns the parser of a job on the command line.
pub(crate) fn hinted() -> Hinted<Spec> {
    Hinted::new(Kind::ALL.map(Kind::name))
}

/// The PTX text of the built-in kernels, for programs that launch them directly. The kernel `job_add` adds two buffers
/// and writes the sums to a third buffer. Each of its threads adds one pair of numbers. Comments in the PTX text
/// describe the other kernels.
pub const PTX: &str = include_str!("jobs/kernels.ptx");

/// A builder of jobs for one device.
pub struct Builder {
    /// A stream of the primary context, so kernels in this stream can use all SMs.
    stream: Stream,
    kernels: Kernels,
    /// The path of the cuBLAS library or of the folder that contains it, if the caller gave one.
    path: Option<PathBuf>,
    /// The loaded cuBLAS library, or `None` if cuBLAS was not found. The first job that needs cuBLAS fills this cell.
    cublas: OnceCell<Option<Cublas>>,
}

/// A job that can be launched.
#[non_exhaustive]
pub struct Built {
    /// The graph of one iteration.
    pub graph: Graph,
    /// The memory, kernels and handles that the graph uses. Keep this value alive until the last launch of the graph
    /// has finished, including launches of its copies and executables. Dropping this value waits until the device has
    /// finished its work.
    ///
    /// Different jobs share no memory and can run at the same time. Launches of the same job write to the same memory
    /// and must run one after the other.
    pub keep: Box<dyn Any + Send>,
    /// A description of the work, such as `product of 4096³ in bf16 by cuBLAS`.
    pub about: String,
}

/// The reason why a job could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The driver failed, for example because memory is exhausted.
    #[error(transparent)]
    Library(#[from] green_ctx::Error),
    /// cuBLAS failed, or was not found at the path that the caller gave.
    #[error(transparent)]
    Cublas(#[from] CublasError),
}

/// The work of one iteration, and the kernels, memory and handles that the work uses.
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
    /// Loads the built-in kernels. `cublas` is the path of the cuBLAS library or of the folder that contains it. If
    /// `cublas` is `None`, the system's loader searches for cuBLAS. If the loader does not find cuBLAS, the matrix
    /// product uses a built-in kernel. The first job that needs cuBLAS loads the library.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](green_ctx::Error::Driver) if the driver fails.
    /// [`Error::Unsupported`](green_ctx::Error::Unsupported) if the driver is older than CUDA 12.4.
    pub fn new(device: &Device, cublas: Option<&Path>) -> Result<Builder, JobError> {
        let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
        let (kernels, path) = (Kernels::load(device)?, cublas.map(Path::to_owned));
        Ok(Builder { stream, kernels, path, cublas: OnceCell::new() })
    }

    /// Builds a job: allocates its memory, runs one iteration, and captures a second iteration as a graph.
    ///
    /// # Errors
    ///
    /// [`JobError::Library`] if the device has too little memory or the driver fails. [`JobError::Cublas`] if cuBLAS
    /// fails, or is not at the path given to [`new`](Builder::new).
    pub fn build(&self, spec: &Spec) -> Result<Built, JobError> {
        let (iteration, about) = self.prepare(spec)?;
        // The driver loads kernels at their first launch. Faulty ones fail here.
        iteration.submit(&self.stream)?;
        self.stream.synchronize()?;
        // cuBLAS may make calls that other capture modes forbid.
        let submit = || iteration.submit(&self.stream);
        let graph = self.stream.capture(CaptureMode::Relaxed, submit)?;
        Ok(Built { graph, keep: Box::new(iteration), about })
    }

    /// Builds a job with this name for the tuner. The job's key is the description of its work ([`Built::about`]).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`build`](Builder::build).
    pub fn job(&self, name: &str, spec: &Spec) -> Result<Job, JobError> {
        let Built { graph, keep, about } = self.build(spec)?;
        #[allow(unsafe_code, reason = "launches the built-in graphs")]
        // SAFETY: the graph's kernels use only the job's own memory, which `keep` owns. The job keeps `keep` alive, and
        // no other job uses that memory.
        let job = unsafe { Job::graph(name, graph) };
        Ok(job.key(about).keep(keep))
    }

    /// Returns the version of cuBLAS, or `None` if no job has loaded cuBLAS so far.
    ///
    /// # Errors
    ///
    /// [`JobError::Cublas`] if cuBLAS does not report its version.
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

    /// Returns cuBLAS. If cuBLAS cannot be loaded or the driver is simulated, returns an error if the caller gave a
    /// path, and `None` otherwise.
    fn cublas(&self) -> Result<Option<&Cublas>, CublasError> {
        if self.cublas.get().is_none() {
            let found = match Cublas::open(self.device().driver(), self.path.as_deref()) {
                Ok(cublas) => Some(cublas),
                Err(CublasError::Load(_) | CublasError::Simulated) if self.path.is_none() => None,
                Err(error) => return Err(error),
            };
            // `set` cannot fail: the cell was empty, and it is not shared between threads.
            let _ = self.cublas.set(found);
        }
        Ok(self.cublas.get().and_then(Option::as_ref))
    }
}

/// Sets how long the jobs' kernels run on a simulated driver. With these durations, a job takes longer on fewer SMs.
#[cfg(feature = "sim")]
pub fn register(sim: &Sim) {
    kernels::register(sim);
}
