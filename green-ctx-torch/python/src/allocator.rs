//! The allocator for PyTorch's memory: the state behind this library's C functions, and torch's objects
//! that call them.

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

/// The allocator of a device, which the library's C functions use too: every object for the device
/// stands for the same.
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
            // A thread of the parent may hold the lock, and does not exist in a forked child.
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

    /// The most bytes that may be in use; None for no limit, as at first. What is in use stays.
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

    /// Limits the bytes that may be in use on streams of partitions of a name, now or later; None for no
    /// limit.
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

    /// Limits the bytes that may be in use on streams that are in no partition; None for no limit.
    fn set_outside_limit(&self, py: Python<'_>, bytes: Option<Whole>) -> PyResult<()> {
        self.ask(py, |shared| {
            shared.set_outside_limit(limit(bytes)?);
            Ok(())
        })
    }

    /// Limits the bytes that may be in use on streams of other libraries' green contexts, torch's own
    /// among them; None for no limit.
    fn set_foreign_limit(&self, py: Python<'_>, bytes: Option<Whole>) -> PyResult<()> {
        self.ask(py, |shared| {
            shared.set_foreign_limit(limit(bytes)?);
            Ok(())
        })
    }

    /// Whether blocks are allocated from now on so that they have IPC handles, and are slower to free.
    fn set_shareable(&self, py: Python<'_>, shareable: bool) -> PyResult<()> {
        self.ask(py, |shared| {
            shared.set_shareable(shareable);
            Ok(())
        })
    }

    /// How many bytes that are not in use are kept when work is waited for; 64 MiB at first.
    fn set_release_threshold(&self, py: Python<'_>, bytes: Whole) -> PyResult<()> {
        self.ask(py, |shared| {
            let bytes = fitting(bytes, "the threshold", "a number of bytes such as 1 << 30")?;
            Ok(shared.set_release_threshold(bytes)?)
        })
    }

    /// The bytes in use.
    #[getter]
    fn current_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask(py, |shared| Ok(shared.current_bytes()))
    }

    /// The most bytes that were in use since the peak was last reset.
    #[getter]
    fn peak_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask(py, |shared| Ok(shared.peak_bytes()))
    }

    /// Lets all peaks begin again at what is in use.
    fn reset_peak(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, |shared| {
            shared.reset_peak();
            Ok(())
        })
    }

    /// Bytes and blocks in use, their peaks, what was refused, and the limit: in total, or on streams of
    /// partitions of a name.
    ///
    /// What has nothing in use and no limit is remembered for the 64 names that were used last. ValueError
    /// for a name that is not remembered and no open partition has.
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

    /// The usage on streams that are in no partition.
    fn usage_outside<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dictionary(py, &self.ask(py, |shared| Ok(shared.outside()))?)
    }

    /// The usage on streams of other libraries' green contexts, torch's own among them.
    fn usage_foreign<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dictionary(py, &self.ask(py, |shared| Ok(shared.foreign()))?)
    }

    /// The state of the allocator at one moment: usage in total, of each partition, and outside of
    /// them, every block, what the C functions could not do last.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let json = self.ask(py, |shared| Ok(shared.snapshot().to_json()))?;
        import(py, "json")?.run_method("loads", (json,))
    }

    /// The handle by which another process opens the block that an address is in, which was allocated
    /// while the allocator was shareable.
    fn ipc_handle<'py>(&self, py: Python<'py>, address: Whole) -> PyResult<Bound<'py, PyBytes>> {
        let handle = self.ask(py, |shared| {
            let address = fitting(address, "the address", "an address such as tensor.data_ptr()")?;
            Ok(shared.ipc_handle(address)?)
        })?;
        Ok(PyBytes::new(py, &handle))
    }

    /// Gives back to the device what is not in use. torch keeps freed memory for itself:
    /// torch.cuda.empty_cache() comes first.
    fn empty_cache(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, |shared| Ok(shared.empty_cache()?))
    }

    /// A new torch.cuda.MemPool of the device, for torch.cuda.use_mem_pool.
    fn mem_pool<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, |_| Ok(()))?;
        let allocator = torch_allocator(py)?.bind(py).run_method("allocator", ())?;
        let cuda = import_torch(py)?.getattr("cuda")?;
        // A pool is of the device that is current when it is made (aten/src/ATen/cuda/MemPool.cpp).
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

/// The file of the library that exports the allocator's C functions: this module's own.
#[pyfunction]
pub(crate) fn library_path(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    import(py, "green_ctx_torch._native")?.getattr("__file__")
}

/// The allocator as a torch.cuda.memory.CUDAPluggableAllocator, for all devices, made when first asked
/// for. It is kept, since a torch.cuda.MemPool does not keep its allocator.
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
            // Some versions of torch lack some of them.
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

/// The usage of a name that has no account: nothing, where partitions can have the name.
fn unused(shared: &Shared, name: &str) -> Result<Usage, Fault> {
    let mut known = made::names_on(shared.device());
    if known.contains(name) || DropIn::of(name).is_some() {
        return Ok(Usage::default());
    }
    known.extend(shared.snapshot().partitions.into_keys());
    let known = match known.is_empty() {
        true => "none is open, so make it first".to_owned(),
        false => format!("there are {}", known.into_iter().collect::<Vec<_>>().join(", ")),
    };
    Err(Fault::value(format!("there is no partition {name}; {known}")))
}

fn limit(bytes: Option<Whole>) -> Result<Option<u64>, Fault> {
    let advice = "a number of bytes such as 1 << 30, or None for no limit";
    bytes.map(|bytes| fitting(bytes, "the limit", advice)).transpose()
}

/// A number that is not negative, and smaller than whatever does not fit and was clamped.
fn fitting(number: Whole, what: &str, advice: &str) -> Result<u64, Fault> {
    let wrong = match number.0 {
        ..0 => "negative",
        i64::MAX => "too large",
        number => return Ok(number.cast_unsigned()),
    };
    Err(Fault::value(format!("{what} is {wrong}; give {advice}")))
}

/// A usage under the names that a snapshot has.
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
