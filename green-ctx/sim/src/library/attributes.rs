//! Attributes of kernels and functions.

use green_ctx_sys::{CUfunc_cache, CUfunction_attribute};

use crate::image::KernelInfo;
use crate::occupancy::Sm;
use crate::pointer::{Answer, invalid_if};
use crate::state::State;

/// The number of registers per thread that the simulator reports for a kernel in PTX text. The simulator
/// has no compiler that could count registers. An H200 reports this number for kernels that do almost
/// nothing.
const REGISTERS: u32 = 4;

/// The number of function attributes from CUDA 13.5 on, and before CUDA 13.5. Unknown attributes are
/// refused (recorded on 13.0). The last two attributes are in the header of 13.5 but not in the header of
/// 13.0. It was not determined which version between 13.0 and 13.5 introduced these two attributes.
const COUNT: usize = 18;
const COUNT_BEFORE_13_5: u32 = 16;

/// One setting of a kernel or a function.
#[derive(Clone, Copy)]
pub(crate) enum Setting {
    Attribute(CUfunction_attribute, i32),
    Cache(CUfunc_cache),
}

/// The settings of a kernel or a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    values: [Option<i32>; COUNT],
    /// The preferred cache configuration.
    cache: Option<CUfunc_cache>,
}

impl Attributes {
    /// Merges two groups of settings. A setting in `below` applies only if the same setting is not set in
    /// `self`.
    pub(super) fn over(self, below: Attributes) -> Attributes {
        let mut values = self.values;
        for (value, below) in values.iter_mut().zip(below.values) {
            *value = value.or(below);
        }
        Attributes { values, cache: self.cache.or(below.cache) }
    }

    fn value(&self, attribute: CUfunction_attribute) -> Option<i32> {
        self.values.get(attribute.0 as usize).copied().flatten()
    }

    pub(super) fn get(
        &self,
        attribute: CUfunction_attribute,
        info: &KernelInfo,
        state: &State,
    ) -> Answer<i32> {
        invalid_if(attribute.0 >= count(state))?;
        let limits = Limits::new(info, self, &state.sm);
        let value = match attribute {
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => limits.threads,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => info.shared_bytes,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES => info.constant_bytes,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => info.local_bytes,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => limits.registers,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION => info.virtual_architecture,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION => {
                let (major, minor) = state.profile.compute_capability;
                major * 10 + minor
            }
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                limits.dynamic_shared
            }
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => {
                return Ok(self.value(attribute).unwrap_or(-1));
            }
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET => {
                u32::from(info.explicit_cluster)
            }
            _ => match required_side(attribute, info) {
                Some(side) => side,
                None => return Ok(self.value(attribute).unwrap_or(0)),
            },
        };
        Ok(i32::try_from(value).unwrap_or(i32::MAX))
    }

    /// Adds a setting. The bounds of the values were recorded.
    pub(super) fn with(
        mut self,
        setting: Setting,
        info: &KernelInfo,
        state: &State,
    ) -> Answer<Attributes> {
        let (attribute, value) = match setting {
            Setting::Attribute(attribute, value) => (attribute, value),
            Setting::Cache(config) => {
                invalid_if(config.0 > CUfunc_cache::CU_FUNC_CACHE_PREFER_EQUAL.0)?;
                self.cache = Some(config);
                return Ok(self);
            }
        };
        let within = match attribute {
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let most = state.sm.shared_opted_in.saturating_sub(info.shared_bytes);
                u32::try_from(value).is_ok_and(|value| value <= most)
            }
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => {
                (-1..=100).contains(&value)
            }
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
            | CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT
            | CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => {
                let value = u32::try_from(value).ok();
                // If the image requires a value, only that value can be set. The header names another error
                // for this case, `CUDA_ERROR_NOT_PERMITTED`.
                let required = required_side(attribute, info);
                value.is_some_and(|value| required.is_none_or(|required| required == value))
            }
            // Any number is accepted.
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => true,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
            | CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE => {
                (0..=2).contains(&value) && attribute.0 < count(state)
            }
            // The other attributes are read-only.
            _ => false,
        };
        invalid_if(!within)?;
        self.values[attribute.0 as usize] = Some(value);
        Ok(self)
    }
}

/// Returns the width, the height or the depth of the cluster that the image requires; `None` if the image
/// requires no cluster.
fn required_side(attribute: CUfunction_attribute, info: &KernelInfo) -> Option<u32> {
    let [width, height, depth] = info.required_cluster?;
    Some(match attribute {
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH => width,
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT => height,
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => depth,
        _ => return None,
    })
}

/// Returns the number of attributes that the driver has.
fn count(state: &State) -> u32 {
    if state.version >= 13_050 { COUNT as u32 } else { COUNT_BEFORE_13_5 }
}

/// The limits and requirements of a kernel, with its settings applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The maximum number of threads per block.
    pub(crate) threads: u32,
    /// The required block size; `None` if any size is possible.
    pub(crate) block: Option<[u32; 3]>,
    /// Registers per thread.
    pub(crate) registers: u32,
    /// Static shared memory per block, in bytes.
    pub(crate) static_shared: u32,
    /// The maximum dynamic shared memory per block, in bytes.
    pub(crate) dynamic_shared: u32,
    /// The preferred shared memory carve-out of an SM, in percent.
    pub(crate) carveout: Option<u32>,
    /// The required cluster size; `None` if any size is possible.
    pub(crate) cluster: Option<[u32; 3]>,
    pub(crate) must_cluster: bool,
    /// The maximum cluster size, in blocks.
    pub(crate) cluster_size: u32,
}

impl Limits {
    fn new(info: &KernelInfo, attributes: &Attributes, sm: &Sm) -> Limits {
        let number =
            |attribute| attributes.value(attribute).and_then(|value| u32::try_from(value).ok());
        let dynamic = number(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
        let cluster = [
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
        ]
        .map(|side| number(side).unwrap_or(0));
        // If all sides are zero, no cluster is required. If only some are, every launch must specify a
        // cluster.
        let cluster = Some(cluster).filter(|sides| *sides != [0; 3]);
        let beyond = attributes
            .value(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED)
            .is_some_and(|value| value != 0);
        Limits {
            threads: info.max_threads.unwrap_or(u32::MAX).min(sm.threads_per_block),
            block: info.required_block,
            registers: info.registers.unwrap_or(REGISTERS),
            static_shared: info.shared_bytes,
            dynamic_shared: dynamic
                .unwrap_or(sm.shared_per_block.saturating_sub(info.shared_bytes)),
            carveout: number(
                CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
            ),
            cluster: info.required_cluster.or(cluster),
            must_cluster: info.explicit_cluster,
            cluster_size: if beyond { sm.cluster_opted_in } else { sm.cluster_size },
        }
    }
}

impl State {
    /// Returns the limits and requirements that the kernel with this handle has on a device.
    pub(crate) fn limits(&self, handle: usize, device: usize) -> Answer<Limits> {
        let (info, _) = self.kernel_info(handle)?;
        let attributes = self.attributes(handle, device);
        let limits = Limits::new(&info, &attributes, &self.sm);
        let prefers_l1 = attributes.cache == Some(CUfunc_cache::CU_FUNC_CACHE_PREFER_L1);
        let no_shared = prefers_l1.then_some(0);
        Ok(Limits { carveout: limits.carveout.or(no_shared), ..limits })
    }
}
