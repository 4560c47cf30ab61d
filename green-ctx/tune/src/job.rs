//! The jobs that the tuner runs.

use std::any::Any;
use std::fmt;

use green_ctx::{Graph, Stream};

use crate::arrival::Arrival;
use crate::request::Profile;

/// The error that a job's own code returns.
pub type JobError = Box<dyn std::error::Error + Send + Sync>;

type Submit = dyn FnMut(&Stream) -> Result<(), JobError> + Send;

/// A job to be tuned: its name, when its iterations are due, and the code or graph that runs one iteration.
///
/// Iterations must be repeatable: the tuner runs thousands of them, on different streams and at the same time as the
/// other jobs. The tuner ignores the results of the iterations. A measurement block is a period of 8 ms or more in
/// which the tuner runs jobs. Each measurement block begins on idle SMs with new streams. Caches are not cleared
/// between measurement blocks. If a job's state grows or runs out, reset the state in
/// [`before_block`](Job::before_block).
#[must_use = "a job does nothing until it is tuned"]
pub struct Job {
    pub(crate) profile: Profile,
    pub(crate) work: Work,
    pub(crate) before: Option<Box<Submit>>,
    /// True if the tuner captures the closure once, to check that the closure submits work.
    pub(crate) is_tried: bool,
    kept: Vec<Box<dyn Any + Send>>,
}

pub(crate) enum Work {
    /// A closure that submits one iteration each time it is called.
    Submit(Box<Submit>),
    /// A graph of one iteration. For each partition, the tuner makes a copy whose kernels run in that partition.
    Graph(Graph),
}

impl Job {
    /// Creates a job from a closure that receives a stream and submits one iteration to that stream. The closure must
    /// not wait for the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, sim::Sim};
    /// use green_ctx_tune::{Arrival, Job};
    ///
    /// # let device = Driver::simulated(&Sim::new("h200")?)?.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// let kernel = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// let job = Job::new("decode", move |stream| {
    ///     // SAFETY: the kernel takes no parameters.
    ///     unsafe { stream.launch(&kernel, LaunchConfig::new(132, 128), ()) }.map_err(Into::into)
    /// });
    /// // 1000 iterations per second. The default is two iterations in flight.
    /// let job = job.arrival(Arrival::rate(1000.0));
    /// assert_eq!(job.name(), "decode");
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(
        name: impl Into<String>,
        submit: impl FnMut(&Stream) -> Result<(), JobError> + Send + 'static,
    ) -> Job {
        Job::of(name, Work::Submit(Box::new(submit)))
    }

    /// Creates a job from a graph of one iteration. For each partition, the tuner makes a copy of the graph whose
    /// kernels run in that partition.
    ///
    /// # Safety
    ///
    /// The requirements of [`Stream::launch_graph`] apply for the lifetime of the job. Everything that the graph's
    /// kernels use must stay alive; [`keep`](Job::keep) can ensure this. It must be sound to run the kernels at the
    /// same time as the other jobs.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, StreamOptions, sim::Sim};
    /// use green_ctx::graph::CaptureMode;
    /// use green_ctx_tune::Job;
    ///
    /// # let device = Driver::simulated(&Sim::new("h200")?)?.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// let kernel = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
    /// let graph = stream.capture(CaptureMode::Relaxed, || {
    ///     // SAFETY: the kernel takes no parameters.
    ///     unsafe { stream.launch(&kernel, LaunchConfig::new(132, 128), ()) }
    /// })?;
    /// // SAFETY: the kernel uses no memory, and the job keeps it loaded.
    /// let job = unsafe { Job::graph("decode", graph) }.keep(kernel);
    /// assert_eq!(job.name(), "decode");
    /// # Ok(())
    /// # }
    /// ```
    #[allow(unsafe_code, reason = "the caller guarantees that the graph can be launched")]
    pub unsafe fn graph(name: impl Into<String>, graph: Graph) -> Job {
        Job::of(name, Work::Graph(graph))
    }

    fn of(name: impl Into<String>, work: Work) -> Job {
        let profile = Profile::new(name);
        Job { profile, work, before: None, is_tried: true, kept: Vec::new() }
    }

    /// Replaces the name, the arrival and the key with those of a profile.
    pub fn profile(mut self, profile: Profile) -> Job {
        self.profile = profile;
        self
    }

    /// Sets when the job's iterations are due. By default, two iterations are in flight. If the goal names a latency
    /// percentile of this job, only one iteration is in flight.
    pub fn arrival(mut self, arrival: Arrival) -> Job {
        self.profile = self.profile.arrival(arrival);
        self
    }

    /// Sets the key that identifies the job's workload; see [`Profile::key`].
    pub fn key(mut self, key: impl Into<String>) -> Job {
        self.profile = self.profile.key(key);
        self
    }

    /// Sets a closure that runs before each measurement block, for example to reset the job's state. The closure
    /// receives the stream that the iterations use. The time of the closure is not measured.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// use green_ctx_tune::Job;
    ///
    /// let length = Arc::new(AtomicUsize::new(0));
    /// let growing = Arc::clone(&length);
    /// let job = Job::new("decode", move |_stream| {
    ///     let _position = growing.fetch_add(1, Ordering::Relaxed);
    ///     // Submit the step at this position here.
    ///     Ok(())
    /// })
    /// .before_block(move |_stream| {
    ///     length.store(0, Ordering::Relaxed);
    ///     Ok(())
    /// });
    /// # assert_eq!(job.name(), "decode");
    /// ```
    pub fn before_block(
        mut self,
        reset: impl FnMut(&Stream) -> Result<(), JobError> + Send + 'static,
    ) -> Job {
        self.before = Some(Box::new(reset));
        self
    }

    /// Declares that the job's closure cannot be captured. By default, the tuner captures one iteration to check that
    /// the closure submits work and does not wait for the device.
    pub fn uncaptured(mut self) -> Job {
        self.is_tried = false;
        self
    }

    /// Keeps a value alive for as long as the job exists.
    pub fn keep(mut self, kept: impl Any + Send) -> Job {
        self.kept.push(Box::new(kept));
        self
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.profile.name
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("profile", &self.profile).finish_non_exhaustive()
    }
}
