//! Failures that a test asks for.

use green_ctx_sys::CUresult;

/// A call that is to fail: which one, when, and how.
///
/// Without [`nth`](Fault::nth) it is the next call, without [`with`](Fault::with) the answer is
/// `CUDA_ERROR_UNKNOWN`.
///
/// # Example
///
/// ```
/// use green_ctx_sim::{Fault, Sim};
/// use green_ctx_sys::{Api, CUresult};
///
/// let sim = Sim::new(green_ctx_sim::Spec::default())?;
/// // SAFETY: the pointer is the simulated driver's, which lives as long as `sim`.
/// let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
/// sim.fail(Fault::on("cuInit").nth(2).with(CUresult::CUDA_ERROR_SYSTEM_NOT_READY))?;
/// // SAFETY: `cuInit` takes the flags 0 and nothing else.
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
    /// The next call of this C function fails; the name is without a version suffix.
    pub fn on(function: impl Into<String>) -> Fault {
        Fault { function: function.into(), after: 1, status: CUresult::CUDA_ERROR_UNKNOWN }
    }

    /// Not the next call fails but the `n`-th from now; 0 is taken as 1.
    pub fn nth(mut self, n: u64) -> Fault {
        self.after = n.max(1);
        self
    }

    /// What the call answers.
    pub fn with(mut self, status: CUresult) -> Fault {
        self.status = status;
        self
    }
}

/// The faults that have not struck yet.
#[derive(Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts a call of `function` and says whether it is to fail. Where several faults are due at
    /// once, the first that was asked for strikes and the others have had their call too.
    pub(crate) fn strike(&mut self, function: &str) -> Option<CUresult> {
        let mut status = None;
        self.0.retain_mut(|fault| {
            if fault.function != function {
                return true;
            }
            fault.after -= 1;
            if fault.after == 0 {
                status = status.or(Some(fault.status));
            }
            fault.after > 0
        });
        status
    }
}
