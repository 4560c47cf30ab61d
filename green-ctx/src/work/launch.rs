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

/// Checks a launch: set before the process's first watch begins.
pub(crate) static CHECK: OnceLock<fn(&Stream, &Kernel) -> Result<()>> = OnceLock::new();
/// Notes that a launch may become part of a graph: set before the process's first capture begins.
pub(crate) static CAPTURE: OnceLock<fn(&Stream, &Library) -> Result<()>> = OnceLock::new();

impl Stream {
    /// Launches a kernel on this stream: it runs on the SMs of the stream's context.
    ///
    /// A cooperative launch, or one in clusters, is first held against what fits there
    /// ([`Kernel::fit`]). So is one that a capture takes: as part of a graph a cooperative launch that
    /// does not fit would never end (recorded on an H200, driver 580.159.04).
    ///
    /// That a launch fits is remembered by kernel, context and configuration, so that repeating it is
    /// one driver call. An attribute of the kernel that raw calls change afterwards
    /// (`cuKernelSetAttribute`, `cuFuncSetAttribute`) is not noticed there: a launch that fits no
    /// longer is then left to the driver, which refuses it outside of captures. A kernel that is taken
    /// from its library again, by [`Library::kernel`](crate::Library::kernel), remembers nothing, and
    /// [`Kernel::fit`] always asks. That a launch does not fit is never remembered.
    ///
    /// # Errors
    ///
    /// [`Error::Arguments`] when the number or a size of the arguments is not that of the kernel's
    /// parameters, [`Error::DeviceMismatch`] for a kernel of another driver, and
    /// [`Error::InvalidRequest`] for sides of 0 and for blocks of more threads than the device takes.
    /// [`Error::Driver`] for what else the device cannot run. Errors of the running kernel come from later
    /// calls.
    ///
    /// Of a cooperative launch or one in clusters also [`Error::DoesNotFit`], for a cooperative grid
    /// of more blocks than are there at once and for clusters of which not one is there, and
    /// [`Error::InvalidRequest`], for clusters that do not divide the grid or that the kernel is not made for.
    ///
    /// # Safety
    ///
    /// The arguments must be what the kernel expects in each place, memory that it reaches must stay
    /// alive until it is done, and it must not race with other work on that memory, nor with the kernel
    /// before it in the stream where it is
    /// [allowed to begin early](LaunchConfig::programmatic_dependent_launch).
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
        if let Some(capture) = CAPTURE.get() {
            capture(self, kernel.library())?;
        }
        let LaunchConfig { grid, block, shared_bytes, programmatic, .. } = config;
        arguments
            .with_pointers(|pointers| {
                if config.is_together() | programmatic {
                    // SAFETY: there is a pointer for each parameter, to a value of its size. The rest is
                    // this function's contract.
                    return unsafe { self.launch_with_attributes(kernel, config, pointers) };
                }
                // SAFETY: kernel and stream are alive; there is a pointer for each parameter, to a value
                // of its size, which the driver copies during the call. The rest is this function's
                // contract.
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
            .map_err(|error| self.why_refused(kernel, config, error))
    }

    /// Says what is wrong with a launch that the driver calls an invalid value.
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
                    "kernel {} cannot run in blocks of {threads} threads; the device takes at most {most}",
                    kernel.name()
                ))
            }
            _ => error,
        }
    }

    /// A launch that says more than its shape.
    ///
    /// # Safety
    ///
    /// As for `launch`; there must be a pointer for each parameter, to a value of its size.
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
        // SAFETY: kernel and stream are alive, the configuration has as many live attributes as it
        // says; of the parameters see above.
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

/// A value that can be passed to a kernel by its bytes: a number, an address in device memory, or a type of
/// the program's, such as a structure or a tensor map.
///
/// # Safety
///
/// The type's layout must be fixed, as `repr(C)` and `repr(transparent)` fix it, and be that of the kernel's
/// parameter: a launch copies the value's bytes. It checks their number alone.
///
/// # Example
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
/// // SAFETY: as the kernel's own `struct Extent`.
/// unsafe impl Argument for Extent {}
///
/// /// What `cuTensorMapEncodeTiled` writes.
/// #[derive(Clone, Copy)]
/// #[repr(C, align(128))]
/// struct TensorMap([u64; 16]);
///
/// // SAFETY: as the header's `CUtensorMap`, which kernels take as a `__grid_constant__` parameter.
/// unsafe impl Argument for TensorMap {}
///
/// # let map = TensorMap([0; 16]);
/// let extent = Extent { rows: 128, columns: 64 };
/// // SAFETY: `copy(CUtensorMap, Extent)`, which reaches what the map was encoded for.
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

/// The arguments of a launch: a tuple of up to 32 values. A kernel that takes more takes them better as a
/// structure.
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

        /// Gives the driver's array of pointers to the arguments.
        fn with_pointers<R>(self, launch: impl FnOnce(&mut [*mut c_void]) -> R) -> R;
    }
}

macro_rules! arguments {
    ($($type:ty),*) => {$(
        // SAFETY: numbers have the same layout in kernels, and an address is one of 64 bits.
        unsafe impl Argument for $type {}
    )*};
}
arguments!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, usize, isize, DevicePointer);

/// Makes arguments of the tuple in brackets, and then of those that have one more value each.
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

/// An address in device memory, as a kernel argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct DevicePointer(u64);

impl<T: Element> DeviceBuffer<T> {
    /// The buffer's address, to be passed to a kernel.
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
                // SAFETY: every value is a union of plain numbers, all of which were set.
                let first = unsafe { attribute.value.pad[0] };
                assert_ne!(first, 0, "{:?}", attribute.id);
            }
        }
    }
}
