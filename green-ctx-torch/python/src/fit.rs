//! How much of a kernel fits in a partition.

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

/// What fits at once of a kernel in one shape on a partition's SMs, by the driver's account. As text one
/// line for each number.
///
/// It is about the SMs when nothing else is on them: work that was submitted before, or to other
/// streams of the partition, holds its share until it is done.
#[pyclass(frozen, eq, module = "green_ctx_torch")]
#[derive(PartialEq)]
pub(crate) struct Fit {
    fit: library::Fit,
    cooperative: bool,
}

#[pymethods]
impl Fit {
    /// The kernel's name, or its address where the driver does not report it (before CUDA 12.3).
    #[getter]
    fn kernel(&self) -> &str {
        &self.fit.kernel
    }

    /// The blocks of the grid.
    #[getter]
    fn blocks(&self) -> u64 {
        self.fit.blocks
    }

    /// The threads of a block.
    #[getter]
    fn threads(&self) -> u32 {
        self.fit.threads
    }

    /// The dynamic shared memory of a block, in bytes.
    #[getter]
    fn shared_memory(&self) -> u32 {
        self.fit.shared_bytes
    }

    /// The blocks of a cluster in each dimension: those asked for, or those that the kernel requires.
    /// None for a kernel that is launched without clusters.
    #[getter]
    fn cluster(&self) -> Option<(u32, u32, u32)> {
        self.fit.cluster
    }

    /// Whether the launch is cooperative: all blocks of the grid run at the same time.
    #[getter]
    fn cooperative(&self) -> bool {
        self.cooperative
    }

    /// The partition's SMs.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.fit.sm_count
    }

    /// How many of them other partitions may use too. They count in full: blocks there come as the
    /// others leave room.
    #[getter]
    fn shared_sms(&self) -> u32 {
        self.fit.shared_sms
    }

    /// How many of the blocks one SM holds; 0 for a block that no SM can run.
    #[getter]
    fn blocks_per_sm(&self) -> u32 {
        self.fit.blocks_per_sm
    }

    /// How many of the blocks are on the SMs at once; 0 where not even one, or one cluster, fits.
    #[getter]
    fn resident_blocks(&self) -> u32 {
        self.fit.resident_blocks
    }

    /// The sizes of clusters that fit, of 1, 2, 4, 8 and 16 blocks, and how many of each there can be at
    /// once: from blocks to clusters. Empty before compute capability 9.0. A kernel that requires a size
    /// has that one alone.
    #[getter]
    fn clusters(&self) -> std::collections::BTreeMap<u32, u32> {
        self.fit.clusters.iter().map(|cluster| (cluster.size, cluster.count)).collect()
    }

    /// The blocks of the largest cluster that fits, whatever size was asked for; 0 where none does.
    #[getter]
    fn largest_cluster(&self) -> u32 {
        self.fit.largest_cluster
    }

    /// Whether the launch can run: a cooperative one where all its blocks are on the SMs at once, any
    /// other where one block or one cluster is.
    #[getter]
    fn fits(&self) -> bool {
        match self.cooperative {
            true => self.fit.fits_at_once(),
            false => self.fit.resident_blocks > 0,
        }
    }

    /// Whether all blocks of the grid are on the SMs at once, so that they can wait for each other.
    #[getter]
    fn fits_at_once(&self) -> bool {
        self.fit.fits_at_once()
    }

    /// The most blocks of a cooperative launch, all of which have to be there at once.
    #[getter]
    fn cooperative_blocks(&self) -> u32 {
        self.fit.cooperative_blocks()
    }

    /// The grid that a persistent kernel should have: as many blocks as are there at once, in whole
    /// clusters. Its first side is 0 where not even one block or cluster fits.
    #[getter]
    fn persistent_grid(&self) -> (u32, u32, u32) {
        self.fit.persistent_grid()
    }

    /// How many blocks (CTAs) each of so many collectives may use that run on these SMs at the same
    /// time, on streams that do not wait for each other.
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

/// Asks the driver how many blocks of a kernel a partition has room for, before anything is launched.
///
///     fit(compiled, parts["decode"], grid=64, block=128, cooperative=True).fits
///
/// The kernel is a `CUfunction` or `CUkernel` of cuda.bindings, an object that has one as its `handle`
/// (cuda.core) or `function` (Triton's compiled kernels), or an address, of a CUfunction unless
/// `handle_type` is "CUkernel". It must be alive, and a CUfunction of the partition's device. Of `grid`,
/// `block` and `cluster` each is a number or a tuple of up to three; `shared_memory` is the dynamic shared
/// memory of a block in bytes.
///
/// ValueError for sides of 0, for clusters that do not divide the grid and for others than the kernel
/// requires. What does not fit is no error: the numbers say so.
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
        // SAFETY: the caller promises by this function's documentation that the handle is alive and of
        // its form, and a function of the partition's device.
        Ok(unsafe { handle.raw().fit(&context, config) }?)
    })?;
    Ok(Fit { fit, cooperative })
}

/// A kernel's address.
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
            // Of Triton's kernels it is None until they are loaded.
            if let Some(inner) = kernel.getattr_opt(name)?
                && let Some(handle) = Handle::of(&inner, of)?
            {
                return Ok(handle);
            }
        }
        Err(PyTypeError::new_err(format!(
            "a kernel is a CUfunction or CUkernel of cuda.bindings, an object with such a handle, or an \
             address, and not a {}; a kernel of Triton has its handle once it was launched",
            kind(kernel)
        )))
    }

    /// What an address is, or an object of cuda.bindings.
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
                "{} is no address of a kernel; give a CUfunction, a CUkernel or its address",
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

/// The sides of a grid, a block or a cluster: a number, or a tuple of up to three.
fn sides(what: &str, given: &Bound<'_, PyAny>) -> PyResult<(u32, u32, u32)> {
    let expected = format!("{what} is a whole number or a tuple of up to three, as in (8, 4, 1)");
    let side = |side: &Bound<'_, PyAny>| -> PyResult<u32> {
        let Whole(side) = index(side, || unexpected(given, &expected))?.extract()?;
        Ok(unsigned(&format!("a side of the {what}"), side)?)
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
