//! Kernel nodes.

use std::collections::BTreeMap;
use std::ffi::c_void;

use green_ctx_sys::{
    CUDA_KERNEL_NODE_PARAMS_v2, CUgraphNode_st, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUresult,
};

use super::kind::{At, Kind};
use super::node::{Action, Node, OTHER_KIND, Read};
use crate::crash;
use crate::driver::Driver;
use crate::handle;
use crate::launch::{Shape, read_params};
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::state::State;
use crate::work::KernelWork;

/// The launch of a kernel node.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(super) work: KernelWork,
    /// The handle of the `CUkernel`; 0 if the function belongs to a module that was loaded without a
    /// library.
    pub(super) kern: usize,
    /// Whether the parameters were last set as one buffer (`extra`) and not as an array (`kernelParams`).
    packed: bool,
    pub(super) attributes: Attributes,
}

/// The attributes that were set, by number.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Attributes(BTreeMap<u32, Value>);

/// The bytes of a `CUlaunchAttributeValue`.
type Value = [u8; 64];

/// The attributes of graph nodes (cuda.h, `CUlaunchAttributeID`). Except for the domain map, an attribute
/// that was not set is zero.
const ATTRIBUTES: [CUlaunchAttributeID; 10] = [
    CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
    CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
    CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY,
    CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
    CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
    CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION,
    CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE,
    CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
];

/// Returns an attribute value that consists of integers.
fn numbers<const N: usize>(numbers: [u32; N]) -> Value {
    let mut bytes = [0; 64];
    bytes[..4 * N].copy_from_slice(numbers.map(u32::to_ne_bytes).as_flattened());
    bytes
}

/// Returns the integer at an index of an attribute value that consists of integers.
fn number_at(value: &Value, index: usize) -> u32 {
    let bytes = value[4 * index..].first_chunk::<4>();
    bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

impl Attributes {
    fn get(&self, id: CUlaunchAttributeID) -> Value {
        let mut unset = [0; 64];
        if id == CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP {
            // The default domain is 0 and the remote domain 1 (CUDA programming guide).
            unset[1] = 1;
        }
        self.0.get(&id.0).copied().unwrap_or(unset)
    }

    fn set(&mut self, id: CUlaunchAttributeID, value: Value) {
        self.0.insert(id.0, value);
    }

    /// Applies these attributes to a launch shape. Drops the cluster size that a previous kernel required
    /// (recorded on hardware).
    fn shape(&self, shape: Shape) -> Shape {
        let cooperative = self.get(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
        let cluster = self.get(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
        let cluster = [0, 1, 2].map(|side| number_at(&cluster, side));
        Shape {
            cooperative: number_at(&cooperative, 0) != 0,
            cluster: Some(cluster).filter(|cluster| *cluster != [0; 3]),
            ..shape
        }
    }
}

impl Kernel {
    fn new(work: KernelWork, kern: usize, packed: bool) -> Kernel {
        Kernel { work, kern, packed, attributes: Attributes::default() }
    }

    /// Applies the attributes to the kernel; returns an error if the kernel cannot be launched with them.
    fn fit(&mut self, state: &State) -> Answer {
        let function = self.work.function;
        self.work.shape = self.attributes.shape(self.work.shape);
        let (_, bound) = state.kernel_info(function)?;
        self.work.blocks_per_sm = state.fit(function, bound.unwrap_or(0), &mut self.work.shape)?;
        Ok(())
    }

    /// Returns the parameters as `cuGraphKernelNodeGetParams` returns them: an array of addresses, followed
    /// by the values.
    fn lend(&self) -> Box<[usize]> {
        /// `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`.
        const NAMES: [usize; 2] = [1, 2];
        let params = &self.work.info.params;
        // The values follow the addresses, eight bytes per array element.
        let places = if self.packed { 6 } else { params.len() };
        let mut lent = vec![0_usize; places];
        lent.extend(self.work.params.chunks(8).map(|chunk| {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            usize::from_ne_bytes(bytes)
        }));
        let mut lent = lent.into_boxed_slice();
        let start = lent.as_ptr().expose_provenance();
        let values = start + 8 * places;
        if self.packed {
            lent[..6].copy_from_slice(&[NAMES[0], values, NAMES[1], start + 40, 0, 0]);
            lent[5] = self.work.params.len();
        } else {
            for (place, param) in lent.iter_mut().zip(params) {
                *place = values + param.offset;
            }
        }
        lent
    }
}

impl State {
    /// Returns the node of a captured launch. The node has both the `CUkernel` and the `CUfunction`, no
    /// matter which of the two was launched. The node has no `CUkernel` if the function belongs to a module
    /// without a library (recorded on hardware). The node has the priority of the stream (cuda.h,
    /// `cuGraphInstantiate`).
    pub(crate) fn captured_kernel(
        &mut self,
        mut work: KernelWork,
        device: usize,
        priority: i32,
    ) -> Answer<Kernel> {
        let kern = match self.functions.get(&work.function) {
            Some(function) => function.kernel.unwrap_or(0),
            None => {
                let kern = work.function;
                work.function = self.function_of(kern, device)?;
                kern
            }
        };
        let shape = work.shape;
        let mut kernel = Kernel::new(work, kern, false);
        let mut set = |id, value| kernel.attributes.set(id, value);
        if let Some(sides) = shape.cluster {
            set(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, numbers(sides));
        }
        if shape.cooperative {
            set(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, numbers([1]));
        }
        let priority = numbers([priority.cast_unsigned()]);
        set(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY, priority);
        Ok(kernel)
    }
}

impl Kind for Kernel {
    type Params = CUDA_KERNEL_NODE_PARAMS_v2;
    type Given = Ptr<CUDA_KERNEL_NODE_PARAMS_v2>;

    fn of(action: &Action) -> Option<Kernel> {
        if let Action::Kernel(kernel) = action { Some(kernel.clone()) } else { None }
    }

    /// Reads the parameters of a kernel node.
    ///
    /// `func` takes precedence over `kern` and `ctx` (recorded on hardware). If `func` is set, the node runs in the
    /// current context, or in the function's own context if the function belongs to another device or to a
    /// context from `cuCtxCreate`. If `func` comes from the kernel of a library, the node also gets that
    /// `CUkernel` (recorded on hardware). A `CUkernel` that is cast to a function is refused here, although such a
    /// handle can be launched and captured (recorded on hardware). Setting `func` on an existing node while no context
    /// is current ends the process (recorded on hardware).
    fn read(state: &mut State, params: Self::Given, at: At<'_>, present: Option<&Self>) -> Read {
        let value = params.read()?;
        let (func, kern) = (value.func.addr(), value.kern.addr());
        if func != 0 && matches!(at, At::Node) && state.current_handle().is_none() {
            crash::segmentation_fault();
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let (function, kern, context) = if func != 0 {
            let found = state.functions.get(&func).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            let (kern, own) = (found.kernel.unwrap_or(0), found.device);
            let current = state.current()?;
            let here = state.contexts[&current].device == own;
            (func, kern, if here { current } else { state.devices[own].primary })
        } else {
            refuse_if(!state.kernels.contains_key(&kern), CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            let context = state.or_current(value.ctx.addr())?;
            let device = state.context(context)?.device;
            (state.function_of(kern, device)?, kern, context)
        };
        let device = state.context(context)?.device;
        let (info, _) = state.kernel_info(function)?;
        let attributes = present.map(|kernel| kernel.attributes.clone()).unwrap_or_default();
        let mut shape = attributes.shape(Shape {
            grid: [value.gridDimX, value.gridDimY, value.gridDimZ],
            block: [value.blockDimX, value.blockDimY, value.blockDimZ],
            shared_bytes: value.sharedMemBytes,
            cooperative: false,
            cluster: None,
        });
        let blocks_per_sm = state.fit(function, device, &mut shape)?;
        let (array, extra) = (params.held(value.kernelParams), params.held(value.extra));
        let bytes = read_params(&info, array, extra)?;
        let work = KernelWork { function, info, shape, params: bytes, blocks_per_sm };
        let kernel = Kernel { attributes, ..Kernel::new(work, kern, !extra.is_null()) };
        Ok((Action::Kernel(kernel), context))
    }

    fn write(self, node: &mut Node, out: Ptr<Self::Params>) -> Answer {
        out.given()?;
        let lent = node.lent.get_or_insert_with(|| self.lend());
        let lent = lent.as_ptr().cast_mut().cast::<*mut c_void>();
        let (array, extra) =
            if self.packed { (std::ptr::null_mut(), lent) } else { (lent, std::ptr::null_mut()) };
        let Shape { grid, block, shared_bytes, .. } = self.work.shape;
        out.write(CUDA_KERNEL_NODE_PARAMS_v2 {
            func: handle::pointer(self.work.function),
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: shared_bytes,
            kernelParams: array,
            extra,
            kern: handle::pointer(self.kern),
            ctx: handle::pointer(node.context),
        })
    }
}

/// Returns the kernel of a node.
fn kernel(state: &State, node: usize) -> Answer<&Kernel> {
    match &state.node(node)?.action {
        Action::Kernel(kernel) => Ok(kernel),
        _ => Err(OTHER_KIND),
    }
}

/// Refuses attributes that kernel nodes do not have on this GPU. Preferred clusters are refused on compute
/// capability 9.0 (recorded on hardware). Preferred clusters are accepted from compute capability 10.0 on (not
/// recorded).
fn check_attribute(state: &State, id: CUlaunchAttributeID) -> Answer {
    let preferred = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION;
    let lacks_preferred = state.profile.compute_capability.0 < 10;
    invalid_if(!ATTRIBUTES.contains(&id) || id == preferred && lacks_preferred)
}

pub(crate) fn get_attribute(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    id: CUlaunchAttributeID,
    out: Ptr<CUlaunchAttributeValue>,
) -> Answer {
    let state = driver.state();
    let kernel = kernel(&state, node.address())?;
    check_attribute(&state, id)?;
    out.followed().cast().write(kernel.attributes.get(id))
}

/// Sets an attribute. A priority is clamped to the range of stream priorities. A cluster must fit the
/// kernel and the grid (recorded on hardware).
pub(crate) fn set_attribute(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    id: CUlaunchAttributeID,
    value: Ptr<CUlaunchAttributeValue>,
) -> Answer {
    let mut state = driver.state();
    let mut kernel = kernel(&state, node.address())?.clone();
    check_attribute(&state, id)?;
    let mut value: Value = value.followed().cast().read()?;
    if id == CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY {
        let (least, greatest) = state.profile.stream_priorities;
        let priority = number_at(&value, 0).cast_signed().clamp(greatest, least);
        value = numbers([priority.cast_unsigned()]);
    }
    kernel.attributes.set(id, value);
    kernel.fit(&state)?;
    if let Some(node) = state.nodes.get_mut(&node.address()) {
        node.action = Action::Kernel(kernel);
    }
    Ok(())
}
