//! Launching kernels.
#![allow(unsafe_code, reason = "calls the driver")]

mod config;

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use green_ctx_sys::{CUdevice_attribute, CUlaunchConfig, CUresult};

use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::work::fit::check as fit;
use crate::work::library::{Kernel, Library};
use crate::work::memory::{DeviceBuffer, Element};
use crate::work::stream::Stream;

pub use self::config::LaunchConfig;
pub(crate) use self::config::{Shape, cluster_attribute};

/// The function that checks each kernel launch while launches are watched. The function is set before the first watch
/// begins.
pub(crate) static CHECK: OnceLock<fn(&Stream, &Kernel) -> Result<()>> = OnceLock::new();
/// The function that notes each kernel launch that may become part of a graph, and returns whether the stream is being
/// captured. The function is set before the first capture begins.
pub(crate) static CAPTURE: OnceLock<fn(&Stream, &Library) -> Result<bool>> = OnceLock::new();

impl Stream {
    /// Launches a kernel on this stream. The kernel runs on the SMs of the stream's context.
    ///
    /// If the configuration is cooperative or sets a cluster, this call first checks that the blocks fit on those SMs
    /// ([`Kernel::fit`]). Launches into a capture are checked as well: a graph with a cooperative launch that does not
    /// fit would never end (recorded on an H200, driver 580.159.04). If a kernel's code fixes its cluster size, set the
    /// same size in the configuration, or nothing is checked.
    ///
    /// The kernel remembers the contexts and configurations in which it fitted, so that a repeated launch is one
    /// driver call. This crate does not notice if raw calls later change an attribute of the kernel
    /// (`cuKernelSetAttribute`, `cuFuncSetAttribute`). If a launch no longer fits because of such a change, only the
    /// driver can refuse the launch, and the driver refuses it only outside captures. To repeat the check, get the
    /// kernel from its library again ([`Library::kernel`](crate::Library::kernel)) or call [`Kernel::fit`], which
    /// always asks the driver. Launches that do not fit are never remembered.
    ///
    /// # Errors
    ///
    /// - [`Error::Arguments`] if the number or the sizes of the arguments differ from the kernel's parameters.
    /// - [`Error::DeviceMismatch`] if the kernel belongs to another driver.
    /// - [`Error::InvalidRequest`] if a dimension of the grid, block or cluster is 0, if a block has more threads
    ///   than the device allows, if a cluster does not divide the grid, or if the kernel requires another cluster
    ///   size.
    /// - [`Error::DoesNotFit`] if a cooperative grid has more blocks than fit at the same time, or if not even one
    ///   cluster of the configuration fits.
    /// - [`Error::Driver`] if the driver refuses the launch for another reason.
    ///
    /// If the kernel fails while it runs, later calls report the error.
    ///
    /// # Safety
    ///
    /// The arguments must match the kernel's parameters in type and order. Memory that the kernel accesses must
    /// stay alive until the kernel is done, and no other work may race with it on that memory. The previous kernel
    /// in the stream counts as other work if this launch
    /// [may begin early](LaunchConfig::programmatic_dependent_launch).
    ///
    /// While this call runs, no other thread may end a capture of the stream.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{DeviceBuffer, Driver, LaunchConfig, Library, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 5.0 .target sm_52 .address_size 64
    /// #     .visible .entry scale(.param .u64 values, .param .f32 factor) { ret; }";
    /// let scale = Library::from_ptx(&device, ptx)?.kernel("scale")?;
    /// let values = DeviceBuffer::<f32>::zeroed(&device, 1024)?;
    /// let parts = device.partition([32])?;
    /// let stream = parts[0].stream();
    ///
    /// let arguments = (values.as_argument(), 2.0f32);
    /// // SAFETY: these are the kernel's two parameters, and the buffer outlives the launch.
    /// unsafe { stream.launch(&scale, LaunchConfig::new(8, 128), arguments) }?;
    /// stream.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    #[doc(alias("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel"))]
    pub unsafe fn launch<A: Arguments>(
        &self,
        kernel: &Kernel,
        config: LaunchConfig,
        arguments: A,
    ) -> Result<()> {
        if A::SIZES != kernel.parameter_sizes() {
            return Err(wrong_arguments(kernel, A::SIZES));
        }
        if kernel.library().driver() != self.driver() {
            return Err(Error::DeviceMismatch { what: "the kernel and the stream" });
        }
        let functions = self.driver().functions()?;
        if let Some(check) = CHECK.get() {
            check(self, kernel)?;
        }
        let note = || CAPTURE.get().map_or(Ok(false), |note| note(self, kernel.library()));
        let is_noted = note()?;
        let LaunchConfig { grid, block, shared_bytes, programmatic, .. } = config;
        arguments
            .with_pointers(|pointers| {
                if config.is_together() | programmatic {
                    // SAFETY: `pointers` has one pointer per parameter, each to a value of the parameter's size.
                    // The caller guarantees the rest by this function's contract.
                    return unsafe { self.launch_with_attributes(kernel, config, pointers) };
                }
                // SAFETY: `kernel` and `self` keep the handles alive. `pointers` has one pointer per parameter,
                // each to a value of the parameter's size, and the driver copies the values during the call. The
                // caller guarantees the rest by this function's contract.
                unsafe {
                    call!(
                        functions,
                        cuLaunchKernel(
                            kernel.as_function(),
                            grid.0,
                            grid.1,
                            grid.2,
                            block.0,
                            block.1,
                            block.2,
                            shared_bytes,
                            self.raw(),
                            pointers.as_mut_ptr(),
                            ptr::null_mut(),
                        )
                    )
                }
            })
            .map_err(|error| self.why_refused(kernel, config, error))?;
        if !is_noted {
            // Another thread may have begun a capture in the meantime. The kernel is launched, so a failure must not
            // look like a failed launch, which the caller might repeat.
            self.driver().report(note().map(drop));
        }
        Ok(())
    }

    /// Returns an error that explains why the driver refused a launch with `CUDA_ERROR_INVALID_VALUE`. Other errors
    /// are returned unchanged.
    #[cold]
    fn why_refused(&self, kernel: &Kernel, config: LaunchConfig, error: Error) -> Error {
        if error.status() != Some(CUresult::CUDA_ERROR_INVALID_VALUE) {
            return error;
        }
        if let Err(sides) = config.check_sides(kernel.name()) {
            return sides;
        }
        let most = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        let (x, y, z) = config.block;
        let threads = u64::from(x) * u64::from(y) * u64::from(z);
        match self.context().device().attribute(most) {
            Ok(most) if u64::try_from(most).is_ok_and(|most| threads > most) => {
                Error::InvalidRequest(format!(
                    "kernel {} cannot run in blocks of {threads} threads; the device allows at most {most}",
                    kernel.name()
                ))
            }
            _ => error,
        }
    }

    /// Launches a kernel with launch attributes.
    ///
    /// # Safety
    ///
    /// As for `launch`. `pointers` must have one pointer per parameter, each to a value of the parameter's size.
    #[inline(never)]
    unsafe fn launch_with_attributes(
        &self,
        kernel: &Kernel,
        config: LaunchConfig,
        pointers: &mut [*mut c_void],
    ) -> Result<()> {
        if config.is_together() {
            fit::check_launch(self, kernel, config)?;
        }
        let (mut attributes, count) = config.attributes();
        let config = CUlaunchConfig {
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
            ..config.driver_config(config.grid, self.raw())
        };
        // SAFETY: `kernel` and `self` keep the handles alive, and `attributes` holds `numAttrs` attributes. The
        // caller guarantees `pointers` by this function's contract.
        unsafe {
            call!(
                self.driver().functions()?,
                cuLaunchKernelEx(
                    &raw const config,
                    kernel.as_function(),
                    pointers.as_mut_ptr(),
                    ptr::null_mut(),
                )
            )
        }
    }
}

#[cold]
fn wrong_arguments(kernel: &Kernel, given: &[usize]) -> Error {
    let expected = kernel.parameter_sizes();
    let problem = if expected.len() == given.len() {
        format!("takes parameters of {expected:?} bytes, not {given:?}")
    } else {
        format!("takes {} parameters, not {}", expected.len(), given.len())
    };
    Error::Arguments { kernel: kernel.name().to_owned(), problem }
}

/// A type whose values can be copied to a kernel as an argument: a number, a device address, or a type that the
/// program defines, such as a structure or a tensor map.
///
/// # Safety
///
/// The type must have a fixed layout, for example through `repr(C)` or `repr(transparent)`, and the layout must match
/// the kernel's parameter. A launch copies the value's bytes, and checks only their number.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, LaunchConfig, Library, StreamOptions, sim::Sim, launch::Argument};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
/// # let ptx = ".version 5.0 .target sm_52 .address_size 64
/// #     .visible .entry copy(.param .align 128 .b8 map[128], .param .align 4 .b8 box[8]) { ret; }";
/// # let kernel = Library::from_ptx(&device, ptx)?.kernel("copy")?;
/// #[derive(Clone, Copy)]
/// #[repr(C)]
/// struct Extent {
///     rows: u32,
///     columns: u32,
/// }
///
/// // SAFETY: it has the layout of the kernel's `struct Extent`.
/// unsafe impl Argument for Extent {}
///
/// /// A tensor map, as `cuTensorMapEncodeTiled` writes it.
/// #[derive(Clone, Copy)]
/// #[repr(C, align(128))]
/// struct TensorMap([u64; 16]);
///
/// // SAFETY: it has the layout of `CUtensorMap` (cuda.h), which kernels take as a `__grid_constant__` parameter.
/// unsafe impl Argument for TensorMap {}
///
/// # let map = TensorMap([0; 16]);
/// let extent = Extent { rows: 128, columns: 64 };
/// // SAFETY: the kernel is `copy(CUtensorMap, Extent)`, and accesses only the tensor that the map describes.
/// unsafe { stream.launch(&kernel, LaunchConfig::new(1, 128), (map, extent)) }?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a kernel",
    label = "not a kernel argument",
    note = "pass a `DeviceBuffer` as `buffer.as_argument()`, and a number with the kernel's own type, such as `1u32`",
    note = "a structure of your own needs `unsafe impl Argument`"
)]
pub unsafe trait Argument: Copy + 'static {}

/// The arguments of a launch: a tuple of up to 32 values. For a kernel with more parameters, use a structure.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple of kernel arguments",
    label = "not the arguments of a launch",
    note = "write a tuple even for one argument, as in `(buffer.as_argument(),)`, and `()` for none",
    note = "pass a `DeviceBuffer` as `buffer.as_argument()`"
)]
pub trait Arguments: sealed::Arguments {}

mod sealed {
    use std::ffi::c_void;

    pub trait Arguments {
        /// The size of each argument in bytes.
        const SIZES: &'static [usize];

        /// Calls `launch` with an array of pointers to the arguments, as the driver expects.
        fn with_pointers<R>(self, launch: impl FnOnce(&mut [*mut c_void]) -> R) -> R;
    }
}

macro_rules! arguments {
    ($($type:ty),*) => {$(
        // SAFETY: numbers have the same layout on the host and in kernels, and device addresses have 64 bits.
        unsafe impl Argument for $type {}
    )*};
}
arguments!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, usize, isize, DevicePointer);

/// Implements `Arguments` for the tuple in brackets, then for each longer tuple, adding one value at a time.
macro_rules! tuples {
    ([$($name:ident $field:tt)*]) => {
        impl<$($name: Argument),*> sealed::Arguments for ($($name,)*) {
            const SIZES: &'static [usize] = &[$(size_of::<$name>()),*];

            #[inline]
            #[allow(unused_mut, unused_variables, reason = "the empty tuple has no fields")]
            fn with_pointers<R>(mut self, launch: impl FnOnce(&mut [*mut c_void]) -> R) -> R {
                launch(&mut [$((&raw mut self.$field).cast()),*])
            }
        }
        impl<$($name: Argument),*> Arguments for ($($name,)*) {}
    };
    ([$($tuple:tt)*] $name:ident $field:tt $($more:tt)*) => {
        tuples! { [$($tuple)*] }
        tuples! { [$($tuple)* $name $field] $($more)* }
    };
}
tuples! {
    [] A0 0 A1 1 A2 2 A3 3 A4 4 A5 5 A6 6 A7 7 A8 8 A9 9 A10 10 A11 11 A12 12 A13 13 A14 14 A15 15 A16 16
    A17 17 A18 18 A19 19 A20 20 A21 21 A22 22 A23 23 A24 24 A25 25 A26 26 A27 27 A28 28 A29 29 A30 30 A31 31
}

/// An address in device memory, passed as a kernel argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct DevicePointer(u64);

impl<T: Element> DeviceBuffer<T> {
    /// Returns the buffer's address as a kernel argument.
    #[must_use]
    pub fn as_argument(&self) -> DevicePointer {
        DevicePointer(self.as_raw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_is_one_attribute() {
        use green_ctx_sys::CUlaunchAttributeID as Id;
        let plain = LaunchConfig::new(8, 32);
        let cluster = Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let cooperative = Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        let dependent = Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let configs = [
            (plain, vec![]),
            (plain.programmatic_dependent_launch(false), vec![]),
            (plain.cooperative(true), vec![cooperative]),
            (plain.programmatic_dependent_launch(true), vec![dependent]),
            (
                plain.cluster((2, 1, 1)).programmatic_dependent_launch(true),
                vec![cluster, dependent],
            ),
            (
                plain.programmatic_dependent_launch(true).cooperative(true).cluster((2, 1, 1)),
                vec![cluster, cooperative, dependent],
            ),
        ];
        for (config, expected) in configs {
            let (attributes, count) = config.attributes();
            let ids: Vec<Id> = attributes[..count].iter().map(|attribute| attribute.id).collect();
            assert_eq!(ids, expected);
            for attribute in &attributes[..count] {
                // SAFETY: every value is a union of plain numbers, and all of its bytes were set.
                let first = unsafe { attribute.value.pad[0] };
                assert_ne!(first, 0, "{:?}", attribute.id);
            }
        }
    }
}
