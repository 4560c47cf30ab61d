//! The Python class `Allocator`, which controls the memory allocator, and the torch objects that call the allocator's
//! C functions.

use std::sync::OnceLock;

use green_ctx_torch::allocator::{Allocator as Shared, Usage, c};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::argument::{self, DeviceId, Whole};
use crate::code::{Code, import};
use crate::device::{check_process, device};
use crate::drop_in::DropIn;
use crate::fault::{Fault, unsigned};
use crate::gil::{Held, blocking};
use crate::kept::kept;
use crate::made;
use crate::named::not_copied;
use crate::torch;

/// The memory allocator of a device. All `Allocator` objects of one device share one state, which the allocator's C
/// functions use too.
///
///     allocator = Allocator()
///     allocator.set_partition_limit("decode", 2 << 30)
///     pool = allocator.mem_pool()
///     with torch.cuda.use_mem_pool(pool), parts["decode"]:
///         y = a @ b
///
/// `use_mem_pool` applies to the calling thread only, and not to captures, which have a pool of their own: pass
/// `pool=pool.id` to `torch.cuda.graph`. Functions that are compiled with CUDA graphs, and streams outside of the
/// partition, have no limit. Memory that another thread allocates has no limit, unless that thread enters a pool too:
/// one of its own, because two threads cannot use a pool at the same time.
///
/// Above a limit, torch raises `torch.OutOfMemoryError`, and `snapshot()["last_error"]` is the reason. A limit also
/// counts memory that torch has cached in a pool. torch returns this memory when the pool is deleted, and the memory of
/// tensors that live longer in the next `torch.cuda.empty_cache()`. While the pool exists, `empty_cache` returns
/// nothing. The memory holds the SMs of its partition, so delete the pool and the tensors before you close the partition.
#[pyclass(frozen, module = "green_ctx_torch.allocator")]
pub(crate) struct Allocator {
    shared: Held<Shared>,
    device: u32,
}

impl Allocator {
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Shared) -> Result<T, Fault> + Send,
    ) -> PyResult<T> {
        let shared = &*self.shared;
        blocking(py, || {
            // In a forked child, the lock may be held by a thread that exists only in the parent.
            check_process(shared.device())?;
            call(shared)
        })
    }
}

#[pymethods]
impl Allocator {
    #[new]
    #[pyo3(signature = (device=DeviceId::Current), text_signature = "(device=None)")]
    fn new(py: Python<'_>, device: DeviceId) -> PyResult<Allocator> {
        let device = device.ordinal(py)?;
        let (shared, device) = blocking(py, || {
            let known = self::device(device)?;
            let ordinal = unsigned("a device", device)?;
            Ok((Shared::global(ordinal)?, known.ordinal()))
        })?;
        Ok(Allocator { shared: Held::new(shared), device })
    }

    /// The device's ordinal.
    #[getter]
    fn device(&self) -> u32 {
        self.device
    }

    /// The maximum number of bytes in use. None, the default, means no limit. Setting a limit frees no memory.
    #[getter]
    fn limit(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.ask(py, |shared| Ok(shared.limit()))
    }

    #[setter]
    fn set_limit(&self, py: Python<'_>, bytes: Option<Whole>) -> PyResult<()> {
        self.ask(py, |shared| {
            shared.set_limit(limit(bytes)?);
            Ok(())
        })
    }

    /// Limits the bytes in use on the streams of all partitions with this name, including partitions created later.
    /// None removes the limit.
    fn set_partition_limit(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        bytes: Option<Whole>,
    ) -> PyResult<()> {
        let name = argument::name("partition", name)?;
        self.ask(py, |shared| {
            shared.set_partition_limit(&name, limit(bytes)?);
            Ok(())
        })
    }

    /// Limits the bytes in use on streams outside any partition. None removes the limit.
    fn set_outside_limit(&self, py: Python<'_>, bytes: Option<Whole>) -> PyResult<()> {
        self.ask(py, |shared| {
            shared.set_outside_limit(limit(bytes)?);
            Ok(())
        })
    }

    /// Limits the bytes in use on streams of green contexts that other libraries, including torch, created. None
    /// removes the limit.
    fn set_foreign_limit(&self, py: Python<'_>, bytes: Option<Whole>) -> PyResult<()> {
        self.ask(py, |shared| {
            shared.set_foreign_limit(limit(bytes)?);
            Ok(())
        })
    }

    /// Sets whether new blocks have IPC handles. Freeing a block with an IPC handle takes longer.
    fn set_shareable(&self, py: Python<'_>, shareable: bool) -> PyResult<()> {
        self.ask(py, |shared| {
            shared.set_shareable(shareable);
            Ok(())
        })
    }

    /// Sets the number of unused bytes that the allocator keeps when the program synchronises with a stream, an event
    /// or a context. The default is 64 MiB.
    fn set_release_threshold(&self, py: Python<'_>, bytes: Whole) -> PyResult<()> {
        self.ask(py, |shared| {
            let bytes = fitting(bytes, "the threshold", "a number of bytes such as 1 << 30")?;
            Ok(shared.set_release_threshold(bytes)?)
        })
    }

    /// The number of bytes in use.
    #[getter]
    fn current_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask(py, |shared| Ok(shared.current_bytes()))
    }

    /// The greatest number of bytes in use since the peak was last reset.
    #[getter]
    fn peak_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask(py, |shared| Ok(shared.peak_bytes()))
    }

    /// Resets all peaks to the current usage.
    fn reset_peak(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, |shared| {
            shared.reset_peak();
            Ok(())
        })
    }

    /// Returns a dict with the bytes and blocks in use, their peaks, the limit, and the numbers of allocations,
    /// refusals and failures. `partition` restricts the usage to streams of partitions with this name. Without
    /// `partition`, the usage covers all streams.
    ///
    /// The allocator keeps one account per partition name. The allocator drops accounts that have no limit and no
    /// memory in use, except for the 64 that were used most recently. Raises ValueError if the name has no account
    /// and belongs to no open partition.
    #[pyo3(signature = (partition=None))]
    fn usage<'py>(
        &self,
        py: Python<'py>,
        partition: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let name = partition.map(|name| argument::name("partition", name)).transpose()?;
        let usage = self.ask(py, |shared| match name {
            None => Ok(shared.usage()),
            Some(name) => shared.partition(&name).map_or_else(|| unused(shared, &name), Ok),
        })?;
        dictionary(py, &usage)
    }

    /// Returns the usage on streams outside any partition.
    fn usage_outside<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dictionary(py, &self.ask(py, |shared| Ok(shared.outside()))?)
    }

    /// Returns the usage on streams of green contexts that other libraries, including torch, created.
    fn usage_foreign<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dictionary(py, &self.ask(py, |shared| Ok(shared.foreign()))?)
    }

    /// Returns the state of the allocator at one moment, as a dict. The dict contains the usage in total, per
    /// partition and outside partitions, every block, and the last error of the C functions.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let json = self.ask(py, |shared| Ok(shared.snapshot().to_json()))?;
        import(py, "json")?.run_method("loads", (json,))
    }

    /// Returns an IPC handle for the block that contains this address. Another process can open the block with the
    /// handle. The block must have been allocated while `set_shareable(True)` was in effect.
    fn ipc_handle<'py>(&self, py: Python<'py>, address: Whole) -> PyResult<Bound<'py, PyBytes>> {
        let handle = self.ask(py, |shared| {
            let address = fitting(address, "the address", "an address such as tensor.data_ptr()")?;
            Ok(shared.ipc_handle(address)?)
        })?;
        Ok(PyBytes::new(py, &handle))
    }

    /// Returns memory to the device that the allocator keeps and that torch has freed. torch frees the memory of a pool
    /// only after the pool was deleted.
    fn empty_cache(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, |shared| Ok(shared.empty_cache()?))
    }

    /// Returns a new torch.cuda.MemPool on the device, for use with torch.cuda.use_mem_pool in one thread.
    fn mem_pool<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, |_| Ok(()))?;
        let allocator = torch_allocator(py)?.bind(py).run_method("allocator", ())?;
        let cuda = import_torch(py)?.getattr("cuda")?;
        // A pool belongs to the device that is current when it is created (aten/src/ATen/cuda/MemPool.cpp).
        let current = cuda.run_method("device", (self.device,))?;
        current.run_method("__enter__", ())?;
        let made = cuda.run_method("MemPool", (allocator,));
        current.run_method("__exit__", (py.None(), py.None(), py.None()))?;
        made
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_copied("an Allocator", "call Allocator with the same device"))
    }

    fn __repr__(&self) -> String {
        format!("<Allocator of device {}>", self.device)
    }
}

/// Returns the path of the shared library that exports the allocator's C functions. This library is the module's own
/// file.
#[pyfunction]
pub(crate) fn library_path(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    import(py, "green_ctx_torch._native")?.getattr("__file__")
}

/// Returns the allocator for all devices as a torch.cuda.memory.CUDAPluggableAllocator. The first call creates the
/// object. The object is never freed, because a torch.cuda.MemPool does not keep its allocator alive.
#[pyfunction]
pub(crate) fn torch_allocator(py: Python<'_>) -> PyResult<Py<PyAny>> {
    static KEPT: OnceLock<Py<PyAny>> = OnceLock::new();
    kept(py, &KEPT, || {
        let memory = import_torch(py)?.getattr("cuda")?.getattr("memory")?;
        let names = (library_path(py)?, "green_ctx_torch_alloc", "green_ctx_torch_free");
        let made = memory.getattr("CUDAPluggableAllocator")?.run(names)?;
        let hooks = made.run_method("allocator", ())?;
        for (setter, function) in [
            ("set_init_fn", c::green_ctx_torch_init as *const ()),
            ("set_reset_fn", c::green_ctx_torch_reset as *const ()),
            ("set_memory_fraction_fn", c::green_ctx_torch_memory_fraction as *const ()),
            ("set_base_alloc_fn", c::green_ctx_torch_base_alloc as *const ()),
            ("set_record_stream_fn", c::green_ctx_torch_record_stream as *const ()),
        ] {
            // Some versions of torch lack some of these functions.
            if let Some(set) = hooks.getattr_opt(setter)? {
                set.run((function.addr(),))?;
            }
        }
        Ok(made.unbind())
    })
}

fn import_torch(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    torch::import_or(py, "call the C functions of green_ctx_torch.allocator.library_path()")
}

/// Returns the usage of a name that has no account: zero if a partition can have the name, otherwise an error.
fn unused(shared: &Shared, name: &str) -> Result<Usage, Fault> {
    let mut known = made::names_on(shared.device());
    if known.contains(name) || DropIn::of(name).is_some() {
        return Ok(Usage::default());
    }
    known.extend(shared.snapshot().partitions.into_keys());
    let known = match known.is_empty() {
        true => "no partition is open, so create it first".to_owned(),
        false => {
            format!("the known names are {}", known.into_iter().collect::<Vec<_>>().join(", "))
        }
    };
    Err(Fault::value(format!("there is no partition {name}; {known}")))
}

fn limit(bytes: Option<Whole>) -> Result<Option<u64>, Fault> {
    let advice = "a number of bytes such as 1 << 30, or None for no limit";
    bytes.map(|bytes| fitting(bytes, "the limit", advice)).transpose()
}

/// Returns the number as a `u64`, or an error if the number is negative or too large.
fn fitting(number: Whole, what: &str, advice: &str) -> Result<u64, Fault> {
    let wrong = match number.0 {
        ..0 => "negative",
        i64::MAX => "too large",
        number => return Ok(number.cast_unsigned()),
    };
    Err(Fault::value(format!("{what} is {wrong}; give {advice}")))
}

/// Returns a usage as a dict that has the same keys as in a snapshot.
fn dictionary<'py>(py: Python<'py>, usage: &Usage) -> PyResult<Bound<'py, PyDict>> {
    let output = PyDict::new(py);
    for (name, value) in [
        ("current_bytes", usage.current_bytes),
        ("peak_bytes", usage.peak_bytes),
        ("current_blocks", usage.current_blocks),
        ("peak_blocks", usage.peak_blocks),
        ("allocations", usage.allocations),
        ("refusals", usage.refusals),
        ("failures", usage.failures),
    ] {
        output.set_item(name, value)?;
    }
    output.set_item("limit_bytes", usage.limit_bytes)?;
    Ok(output)
}
