//! Failures and interruptions that a test injects into later calls.

use green_ctx_sys::CUresult;

/// A failure of one later call.
///
/// By default the next call of the function fails, with `CUDA_ERROR_UNKNOWN`.
///
/// # Examples
///
/// ```
/// use green_ctx_sim::{Fault, Sim};
/// use green_ctx_sys::{Api, CUresult};
///
/// let sim = Sim::new(green_ctx_sim::Spec::default())?;
/// // SAFETY: the function belongs to the simulated driver, which lives as long as `sim`.
/// let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
/// sim.fail(Fault::on("cuInit").nth(2).with(CUresult::CUDA_ERROR_SYSTEM_NOT_READY))?;
/// // SAFETY: `cuInit` has no precondition.
/// let init = || unsafe { api.cuInit()(0) };
/// assert_eq!(init(), CUresult::CUDA_SUCCESS);
/// assert_eq!(init(), CUresult::CUDA_ERROR_SYSTEM_NOT_READY);
/// assert_eq!(init(), CUresult::CUDA_SUCCESS);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a fault does nothing until it is passed to a simulated driver"]
pub struct Fault {
    pub(crate) function: String,
    pub(crate) after: u64,
    pub(crate) status: CUresult,
}

impl Fault {
    /// Creates a fault for the next call of this C function. The name has no version suffix.
    pub fn on(function: impl Into<String>) -> Fault {
        Fault { function: function.into(), after: 1, status: CUresult::CUDA_ERROR_UNKNOWN }
    }

    /// Makes the `n`-th call from now fail. The next call is number 1, and an `n` of 0 has the same
    /// meaning.
    pub fn nth(mut self, n: u64) -> Fault {
        self.after = n.max(1);
        self
    }

    /// Sets the status that the call returns.
    pub fn with(mut self, status: CUresult) -> Fault {
        self.status = status;
        self
    }
}

/// The pending faults and interruptions.
#[derive(Default)]
pub(crate) struct Faults(Vec<Pending>);

struct Pending {
    function: String,
    after: u64,
    due: Due,
}

enum Due {
    Fail(CUresult),
    Run(Interruption),
}

/// A closure of the test that runs before a call.
pub(crate) type Interruption = Box<dyn FnOnce() + Send>;

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        let Fault { function, after, status } = fault;
        self.0.push(Pending { function, after, due: Due::Fail(status) });
    }

    pub(crate) fn interrupt(&mut self, function: String, nth: u64, run: Interruption) {
        self.0.push(Pending { function, after: nth.max(1), due: Due::Run(run) });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts a call of `function`. Returns the closures to run before this call, and the status if this
    /// call fails. If several faults are due at the same call, the fault that was added first applies,
    /// and the other due faults are used up.
    pub(crate) fn strike(&mut self, function: &str) -> (Vec<Interruption>, Option<CUresult>) {
        let (mut run, mut status) = (Vec::new(), None);
        let is_due = |pending: &mut Pending| {
            let counts = pending.function == function;
            pending.after -= u64::from(counts);
            counts && pending.after == 0
        };
        for pending in self.0.extract_if(.., is_due) {
            match pending.due {
                Due::Fail(answer) => status = status.or(Some(answer)),
                Due::Run(interruption) => run.push(interruption),
            }
        }
        (run, status)
    }
}
