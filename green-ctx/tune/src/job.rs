//! Jobs that run on a device.

use std::any::Any;
use std::fmt;

use green_ctx::{Graph, Stream};

use crate::arrival::Arrival;
use crate::request::Profile;

/// Why a job's own code failed.
pub type JobError = Box<dyn std::error::Error + Send + Sync>;

type Submit = dyn FnMut(&Stream) -> Result<(), JobError> + Send;

/// A job to be tuned: its name, when its iterations are due, and what submits one of them.
///
/// Iterations must be repeatable: the tuner runs thousands of them, in any stream, beside the other jobs. It never
/// looks at what they compute. A block lasts 8 ms or longer and begins with idle SMs and new streams. A job whose
/// state grows or runs out resets it in [`before_block`](Job::before_block). Caches are not cleared between blocks.
#[must_use = "a job does nothing until it is tuned"]
pub struct Job {
    pub(crate) profile: Profile,
    pub(crate) work: Work,
    pub(crate) before: Option<Box<Submit>>,
    /// Whether one capture is tried, to see what the closure submits.
    pub(crate) is_tried: bool,
    kept: Vec<Box<dyn Any + Send>>,
}

pub(crate) enum Work {
    /// Submits one iteration.
    Submit(Box<Submit>),
    /// Is one iteration, and is moved to wherever it runs.
    Graph(Graph),
}

impl Job {
    /// A job whose closure submits one iteration to the stream that it is given. It must not wait for the device.
    pub fn new(
        name: impl Into<String>,
        submit: impl FnMut(&Stream) -> Result<(), JobError> + Send + 'static,
    ) -> Job {
        Job::of(name, Work::Submit(Box::new(submit)))
    }

    /// A job whose iteration is a graph. The tuner moves copies of it to each partition.
    ///
    /// # Safety
    ///
    /// As [`Stream::launch_graph`], for as long as the job lives: what its kernels use must be alive, and it
    /// may run beside the other jobs. [`keep`](Job::keep) keeps what it uses.
    #[allow(unsafe_code, reason = "the caller answers for what the graph does")]
    pub unsafe fn graph(name: impl Into<String>, graph: Graph) -> Job {
        Job::of(name, Work::Graph(graph))
    }

    fn of(name: impl Into<String>, work: Work) -> Job {
        let profile = Profile::new(name);
        Job { profile, work, before: None, is_tried: true, kept: Vec::new() }
    }

    /// Sets the name, the arrivals and the key to those of a profile.
    pub fn profile(mut self, profile: Profile) -> Job {
        self.profile = profile;
        self
    }

    /// Sets when iterations are due. Unless it is set, two iterations are in flight or, where the goal names a
    /// percentile of this job, one.
    pub fn arrival(mut self, arrival: Arrival) -> Job {
        self.profile = self.profile.arrival(arrival);
        self
    }

    /// Sets what says that a job of the same name is the same, as [`Profile::key`] does.
    pub fn key(mut self, key: impl Into<String>) -> Job {
        self.profile = self.profile.key(key);
        self
    }

    /// Sets what is done before each block, such as a reset of state, in the stream of the iterations that follow. It is
    /// not measured.
    pub fn before_block(
        mut self,
        reset: impl FnMut(&Stream) -> Result<(), JobError> + Send + 'static,
    ) -> Job {
        self.before = Some(Box::new(reset));
        self
    }

    /// Says that the closure cannot be captured. Without this, the tuner captures it once, to see whether it submits
    /// something and waits for nothing.
    pub fn uncaptured(mut self) -> Job {
        self.is_tried = false;
        self
    }

    /// Keeps something alive as long as the job.
    pub fn keep(mut self, kept: impl Any + Send) -> Job {
        self.kept.push(Box::new(kept));
        self
    }

    /// The name.
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
