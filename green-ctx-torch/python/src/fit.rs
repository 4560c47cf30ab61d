//! The Python class `Fit`, and the function `fit`.

use std::ptr;

use green_ctx::LaunchConfig;
use green_ctx::fit::{self as library, RawKernel};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyTuple};

use crate::argument::{Whole, Word, index, shown, unexpected};
use crate::code::Code;
use crate::fault::{Fault, kind, unsigned};
use crate::gil::blocking;
use crate::report;

/// The number of blocks of a kernel that fit on a partition's SMs at the same time, according to the driver. `str()`
/// of a fit has one line per figure.
///
/// The figures are for SMs on which nothing else runs. Other work in the partition, whether submitted earlier or to
/// other streams, occupies part of the SMs until that work is done.
#[pyclass(frozen, eq, module = "green_ctx_torch")]
#[derive(PartialEq)]
pub(crate) struct Fit {
    fit: library::Fit,
    cooperative: bool,
}

#[pymethods]
impl Fit {
    /// The kernel's name, or its address if the driver does not report names (before CUDA 12.3).
    #[getter]
    fn kernel(&self) -> &str {
        &self.fit.kernel
    }

    /// The number of blocks in the grid.
    #[getter]
    fn blocks(&self) -> u64 {
        self.fit.blocks
    }

    /// The number of threads per block.
    #[getter]
    fn threads(&self) -> u32 {
        self.fit.threads
    }

    /// The dynamic shared memory per block, in bytes.
    #[getter]
    fn shared_memory(&self) -> u32 {
        self.fit.shared_bytes
    }

    /// The number of blocks per cluster in each dimension. The argument `cluster` sets this size, or the kernel
    /// itself requires it. None if the kernel is launched without clusters.
    #[getter]
    fn cluster(&self) -> Option<(u32, u32, u32)> {
        self.fit.cluster
    }

    /// Whether the launch is cooperative, so that all blocks of the grid must run at the same time.
    #[getter]
    fn cooperative(&self) -> bool {
        self.cooperative
    }

    /// The number of SMs of the partition.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.fit.sm_count
    }

    /// The number of the partition's SMs that other partitions may use too. The figures count these shared SMs in
    /// full, although blocks run there only while the other partitions leave space.
    #[getter]
    fn shared_sms(&self) -> u32 {
        self.fit.shared_sms
    }

    /// The number of blocks that one SM can hold; 0 if no SM can run such a block.
    #[getter]
    fn blocks_per_sm(&self) -> u32 {
        self.fit.blocks_per_sm
    }

    /// The maximum number of blocks that can be resident on the partition's SMs at the same time; 0 if not even one
    /// block or cluster fits.
    #[getter]
    fn resident_blocks(&self) -> u32 {
        self.fit.resident_blocks
    }

    /// A dict from each cluster size to the number of clusters that fit at the same time. The keys are the sizes that
    /// fit, out of 1, 2, 4, 8 and 16. The dict is empty on devices before compute capability 9.0. If the kernel
    /// requires a cluster size, only that size is a key.
    #[getter]
    fn clusters(&self) -> std::collections::BTreeMap<u32, u32> {
        self.fit.clusters.iter().map(|cluster| (cluster.size, cluster.count)).collect()
    }

    /// The number of blocks in the largest cluster that fits, regardless of the argument `cluster`; 0 if no cluster
    /// fits.
    #[getter]
    fn largest_cluster(&self) -> u32 {
        self.fit.largest_cluster
    }

    /// Whether the launch can run. All blocks of a cooperative launch must fit at the same time; for other
    /// launches, one block or cluster must fit.
    #[getter]
    fn fits(&self) -> bool {
        match self.cooperative {
            true => self.fit.fits_at_once(),
            false => self.fit.resident_blocks > 0,
        }
    }

    /// Whether all blocks of the grid can be resident on the SMs at the same time, so that the blocks can wait for
    /// each other.
    #[getter]
    fn fits_at_once(&self) -> bool {
        self.fit.fits_at_once()
    }

    /// The maximum number of blocks in a cooperative launch. All blocks of such a launch must be resident at the same
    /// time.
    #[getter]
    fn cooperative_blocks(&self) -> u32 {
        self.fit.cooperative_blocks()
    }

    /// The grid for a persistent kernel: as many blocks as fit at the same time, in whole clusters. The first
    /// dimension of the grid is 0 if not even one block or cluster fits.
    #[getter]
    fn persistent_grid(&self) -> (u32, u32, u32) {
        self.fit.persistent_grid()
    }

    /// Returns the maximum number of blocks (CTAs) that each of `concurrent` collectives may use. The collectives run
    /// on these SMs at the same time, on streams that do not wait for each other.
    #[pyo3(signature = (concurrent=Whole(1)), text_signature = "($self, concurrent=1)")]
    fn collective_blocks(&self, concurrent: Whole) -> PyResult<u32> {
        let concurrent = unsigned("a number of collectives", concurrent.0)?;
        Ok(self.fit.collective_blocks(concurrent))
    }

    fn __str__(&self) -> String {
        self.fit.to_string()
    }

    fn __repr__(&self) -> String {
        let library::Fit { kernel, blocks, resident_blocks, sm_count, .. } = &self.fit;
        format!("<Fit of {kernel}: {resident_blocks} of {blocks} blocks at once on {sm_count} SMs>")
    }
}

/// Asks the driver how many blocks of a kernel fit in a partition, without launching the kernel.
///
///     fit(compiled, parts["decode"], grid=64, block=128, cooperative=True).fits
///
/// `kernel` is a `CUfunction` or `CUkernel` of cuda.bindings, or an object with such a handle in its attribute
/// `handle` (cuda.core) or `function` (compiled Triton kernels). `kernel` can also be the address of a CUfunction, or
/// the address of a CUkernel if `handle_type` is "CUkernel". The kernel must be alive, and a CUfunction must belong
/// to the partition's device.
///
/// `partition` is a Partition or a GreenContext. `grid`, `block` and `cluster` are each a number or a tuple of up to
/// three numbers. `shared_memory` is the dynamic shared memory per block, in bytes.
///
/// A launch that does not fit raises no exception, but `fits` of the result is False. Raises ValueError if a
/// dimension is 0, if the cluster does not divide the grid, or if the cluster is not the one that the kernel
/// requires.
#[pyfunction]
#[pyo3(signature = (kernel, partition, *, grid, block, shared_memory=Whole(0), cluster=None,
    cooperative=false, handle_type=Word("CUfunction".to_owned())),
    text_signature = "(kernel, partition, *, grid, block, shared_memory=0, cluster=None, \
    cooperative=False, handle_type=\"CUfunction\")")]
#[allow(clippy::too_many_arguments, reason = "Python's keywords")]
pub(crate) fn fit(
    py: Python<'_>,
    kernel: &Bound<'_, PyAny>,
    partition: &Bound<'_, PyAny>,
    grid: &Bound<'_, PyAny>,
    block: &Bound<'_, PyAny>,
    shared_memory: Whole,
    cluster: Option<&Bound<'_, PyAny>>,
    cooperative: bool,
    handle_type: Word,
) -> PyResult<Fit> {
    let handle = Handle::read(kernel, &handle_type.0)?;
    let Some(context) = report::context(partition)? else {
        const EXPECTED: &str = "fit takes a Partition or a GreenContext as its second argument";
        return Err(unexpected(partition, EXPECTED));
    };
    let config = LaunchConfig::with_shape(sides("grid", grid)?, sides("block", block)?)
        .shared_bytes(unsigned("shared_memory", shared_memory.0)?)
        .cooperative(cooperative);
    let config = match cluster {
        Some(cluster) => config.cluster(sides("cluster", cluster)?),
        None => config,
    };
    let fit = blocking(py, move || {
        let context = context.into_inner();
        // SAFETY: the documentation of this function requires that the kernel is alive, that an address has the type
        // in `handle_type`, and that a CUfunction belongs to the partition's device.
        Ok(unsafe { handle.raw().fit(&context, config) }?)
    })?;
    Ok(Fit { fit, cooperative })
}

/// A kernel's address, and the type of its handle.
#[derive(Clone, Copy)]
enum Handle {
    Kernel(usize),
    Function(usize),
}

impl Handle {
    fn read(kernel: &Bound<'_, PyAny>, handle_type: &str) -> PyResult<Handle> {
        let of: fn(usize) -> Handle = match handle_type {
            "CUfunction" => Handle::Function,
            "CUkernel" => Handle::Kernel,
            other => {
                let reason =
                    format!("handle_type must be 'CUfunction' or 'CUkernel', got '{other}'");
                return Err(Fault::value(reason).into());
            }
        };
        if let Some(handle) = Handle::of(kernel, of)? {
            return Ok(handle);
        }
        for name in ["handle", "function"] {
            // A Triton kernel has `None` here until it is loaded.
            if let Some(inner) = kernel.getattr_opt(name)?
                && let Some(handle) = Handle::of(&inner, of)?
            {
                return Ok(handle);
            }
        }
        Err(PyTypeError::new_err(format!(
            "a kernel must be a CUfunction or CUkernel of cuda.bindings, an object with such a handle, or an \
             address, got {}; a Triton kernel has its handle after its first launch",
            kind(kernel)
        )))
    }

    /// Returns the handle for an address or an object of cuda.bindings, and `None` for other objects.
    fn of(object: &Bound<'_, PyAny>, address: fn(usize) -> Handle) -> PyResult<Option<Handle>> {
        let form = match kind(object).as_str() {
            "CUfunction" => Handle::Function,
            "CUkernel" => Handle::Kernel,
            _ if object.is_instance_of::<PyInt>() && !object.is_instance_of::<PyBool>() => address,
            _ => return Ok(None),
        };
        let number = object.run_method("__int__", ())?;
        let address = if number.is_instance_of::<PyInt>() { number.extract().ok() } else { None };
        match address {
            Some(address) => Ok(Some(form(address))),
            None => Err(Fault::value(format!(
                "{} is not the address of a kernel; give a CUfunction, a CUkernel, or the address of either",
                shown(&number)?
            ))
            .into()),
        }
    }

    fn raw(self) -> RawKernel {
        match self {
            Handle::Kernel(address) => RawKernel::Kernel(ptr::with_exposed_provenance_mut(address)),
            Handle::Function(address) => {
                RawKernel::Function(ptr::with_exposed_provenance_mut(address))
            }
        }
    }
}

/// Reads the dimensions of a grid, a block or a cluster: a number, or a tuple of up to three numbers.
fn sides(what: &str, given: &Bound<'_, PyAny>) -> PyResult<(u32, u32, u32)> {
    let expected =
        format!("{what} must be a whole number or a tuple of up to three, as in (8, 4, 1)");
    let side = |side: &Bound<'_, PyAny>| -> PyResult<u32> {
        let Whole(side) = index(side, || unexpected(given, &expected))?.extract()?;
        Ok(unsigned(&format!("a dimension of the {what}"), side)?)
    };
    let Ok(tuple) = given.cast::<PyTuple>() else { return Ok((side(given)?, 1, 1)) };
    let sides = tuple.iter().map(|one| side(&one)).collect::<PyResult<Vec<u32>>>()?;
    match *sides.as_slice() {
        [x] => Ok((x, 1, 1)),
        [x, y] => Ok((x, y, 1)),
        [x, y, z] => Ok((x, y, z)),
        _ => Err(unexpected(given, &expected)),
    }
}
