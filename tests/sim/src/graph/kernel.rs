//! Nodes that launch kernels.

use std::collections::BTreeMap;
use std::ffi::c_void;

use green_ctx_sys::{
    CUDA_KERNEL_NODE_PARAMS_v2, CUgraph_st, CUgraphNode_st, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUresult,
};

use super::node::{Action, OTHER_KIND, Place};
use crate::driver::Driver;
use crate::handle;
use crate::launch::{Shape, read_params};
use crate::pointer::{Answer, Ptr};
use crate::state::State;
use crate::work::KernelWork;

/// What a kernel node launches.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(super) work: KernelWork,
    /// The `CUkernel`, 0 where only a `CUfunction` is known.
    pub(super) kern: usize,
    /// Whether the parameters were last set as one buffer.
    packed: bool,
    pub(super) attributes: Attributes,
}

/// Attributes that were set, by their numbers.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Attributes(BTreeMap<u32, Value>);

/// The bytes of a `CUlaunchAttributeValue`.
type Value = [u8; 64];

/// The attributes of graph nodes (cuda.h, `CUlaunchAttributeID`), all of them zero unless they are
/// set, apart from the domain map.
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

/// A value of one number.
fn number(value: i32) -> Value {
    let mut bytes = [0; 64];
    bytes[..4].copy_from_slice(&value.to_ne_bytes());
    bytes
}

/// The number at an index of a value of numbers.
fn number_at(value: &Value, index: usize) -> u32 {
    let bytes = value[4 * index..].first_chunk::<4>();
    bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

impl Attributes {
    fn get(&self, id: CUlaunchAttributeID) -> Value {
        let mut unset = [0; 64];
        if id == CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP {
            // The default domain is 0 and the remote one 1 (CUDA's programming guide).
            unset[1] = 1;
        }
        self.0.get(&id.0).copied().unwrap_or(unset)
    }

    /// The priority that a node was given.
    pub(super) fn priority(&self) -> u32 {
        number_at(&self.get(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY), 0)
    }
}

impl Kernel {
    fn new(work: KernelWork, kern: usize, packed: bool) -> Kernel {
        Kernel { work, kern, packed, attributes: Attributes::default() }
    }

    fn set_attribute(&mut self, id: CUlaunchAttributeID, value: Value) {
        match id {
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                self.work.shape.cooperative = number_at(&value, 0) != 0;
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                let cluster = [0, 1, 2].map(|side| number_at(&value, side));
                self.work.shape.cluster = (cluster != [0; 3]).then_some(cluster);
            }
            _ => {}
        }
        self.attributes.0.insert(id.0, value);
    }

    /// Refuses a shape that the kernel cannot be launched in.
    fn fit(&mut self, state: &State) -> Answer {
        let function = self.work.function;
        let (_, bound) = state.kernel_info(function)?;
        self.work.blocks_per_sm = state.fit(function, bound.unwrap_or(0), &mut self.work.shape)?;
        Ok(())
    }

    /// The parameters as they are given out: an array of addresses, and what it points to.
    fn lend(&self) -> Box<[usize]> {
        /// `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`.
        const NAMES: [usize; 2] = [1, 2];
        let params = &self.work.info.params;
        // The values come behind the addresses: eight bytes in a number, as they lie in memory.
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
    /// What a captured launch does: as recorded, a node of a `CUkernel` has it and its function,
    /// and a node of a `CUfunction` has no `CUkernel`. The priority is the stream's (cuda.h,
    /// `cuGraphInstantiate`).
    pub(crate) fn captured_kernel(
        &mut self,
        mut work: KernelWork,
        device: usize,
        priority: i32,
    ) -> Answer<Kernel> {
        let kern = if self.kernels.contains_key(&work.function) { work.function } else { 0 };
        if kern != 0 {
            work.function = self.function_of(kern, device)?;
        }
        let shape = work.shape;
        let mut kernel = Kernel::new(work, kern, false);
        let cluster = shape.cluster.map(|sides| {
            let mut value = [0; 64];
            for (bytes, side) in value.chunks_exact_mut(4).zip(sides) {
                bytes.copy_from_slice(&side.to_ne_bytes());
            }
            (CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value)
        });
        let cooperative = shape
            .cooperative
            .then_some((CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, number(1)));
        let priority = (CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY, number(priority));
        for (id, value) in [cluster, cooperative, Some(priority)].into_iter().flatten() {
            kernel.set_attribute(id, value);
        }
        Ok(kernel)
    }
}

/// Reads the parameters of a kernel node, and which context it is to run in.
///
/// With `func` set, `kern` and `ctx` are not looked at (cuda.h, `CUDA_KERNEL_NODE_PARAMS`): a node
/// that is there stays in its context, as recorded, and a new one runs in the primary context of
/// the function's device, to which functions belong, or in the current one for a `CUkernel` that
/// was cast (neither recorded).
pub(super) fn read(
    state: &mut State,
    params: Ptr<CUDA_KERNEL_NODE_PARAMS_v2>,
    present: Option<(&Kernel, usize)>,
) -> Answer<(Kernel, usize)> {
    let value = params.read()?;
    let (func, kern) = (value.func.addr(), value.kern.addr());
    let (kern, context) = if func != 0 {
        let (_, bound) = state.kernel_info(func)?;
        let kern = if bound.is_none() { func } else { 0 };
        match (present, bound) {
            (Some((present, context)), _) if present.work.function == func => {
                (present.kern, context)
            }
            (Some((_, context)), _) => (kern, context),
            (None, Some(device)) => (kern, state.devices[device].primary),
            (None, None) => (kern, state.current()?),
        }
    } else if kern != 0 {
        (kern, state.or_current(value.ctx.addr())?)
    } else {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    let device = state.context(context)?.device;
    let function = if kern == 0 || func != 0 && func != kern {
        func
    } else {
        state.function_of(kern, device)?
    };
    let (info, bound) = state.kernel_info(function)?;
    if bound.is_some_and(|bound| bound != device) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let attributes = present.map(|(kernel, _)| kernel.attributes.clone()).unwrap_or_default();
    let former = present.map(|(kernel, _)| kernel.work.shape);
    let mut shape = Shape {
        grid: [value.gridDimX, value.gridDimY, value.gridDimZ],
        block: [value.blockDimX, value.blockDimY, value.blockDimZ],
        shared_bytes: value.sharedMemBytes,
        cooperative: former.is_some_and(|shape| shape.cooperative),
        cluster: former.and_then(|shape| shape.cluster),
    };
    let blocks_per_sm = state.fit(function, device, &mut shape)?;
    let (array, extra) = (params.held(value.kernelParams), params.held(value.extra));
    let bytes = read_params(&info, array, extra)?;
    let work = KernelWork { function, info, shape, params: bytes, blocks_per_sm };
    let kernel = Kernel { attributes, ..Kernel::new(work, kern, !extra.is_null()) };
    Ok((kernel, context))
}

/// Replaces what a node launches.
pub(super) fn set(
    state: &mut State,
    node: usize,
    params: Ptr<CUDA_KERNEL_NODE_PARAMS_v2>,
) -> Answer {
    let found = state.node(node)?;
    let Action::Kernel(present) = &found.action else { return Err(OTHER_KIND) };
    let (present, context) = (present.clone(), found.context);
    let (kernel, context) = read(state, params, Some((&present, context)))?;
    state.set_action(node, Action::Kernel(kernel), context);
    Ok(())
}

/// Gives out the parameters of a node.
pub(super) fn write(
    state: &mut State,
    node: usize,
    out: Ptr<CUDA_KERNEL_NODE_PARAMS_v2>,
) -> Answer {
    out.given()?;
    state.node(node)?;
    let Some(found) = state.nodes.get_mut(&node) else { return Ok(()) };
    let Action::Kernel(kernel) = &found.action else { return Err(OTHER_KIND) };
    let lent = found.lent.get_or_insert_with(|| kernel.lend());
    let lent = lent.as_ptr().cast_mut().cast::<*mut c_void>();
    let (array, extra) =
        if kernel.packed { (std::ptr::null_mut(), lent) } else { (lent, std::ptr::null_mut()) };
    let Shape { grid, block, shared_bytes, .. } = kernel.work.shape;
    out.write(CUDA_KERNEL_NODE_PARAMS_v2 {
        func: handle::pointer(kernel.work.function),
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: shared_bytes,
        kernelParams: array,
        extra,
        kern: handle::pointer(kernel.kern),
        ctx: handle::pointer(found.context),
    })
}

pub(crate) fn add(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    count: usize,
    params: Ptr<CUDA_KERNEL_NODE_PARAMS_v2>,
) -> Answer {
    Place::new(out, graph, after, count).add(driver, |state| {
        let (kernel, context) = read(state, params, None)?;
        Ok((Action::Kernel(kernel), context))
    })
}

pub(crate) fn get_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<CUDA_KERNEL_NODE_PARAMS_v2>,
) -> Answer {
    write(&mut driver.state(), node.address(), out)
}

pub(crate) fn set_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    params: Ptr<CUDA_KERNEL_NODE_PARAMS_v2>,
) -> Answer {
    set(&mut driver.state(), node.address(), params)
}

/// The kernel of a node.
fn kernel(state: &State, node: usize) -> Answer<&Kernel> {
    match &state.node(node)?.action {
        Action::Kernel(kernel) => Ok(kernel),
        _ => Err(OTHER_KIND),
    }
}

fn is_attribute(id: CUlaunchAttributeID) -> Answer {
    if ATTRIBUTES.contains(&id) { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) }
}

pub(crate) fn get_attribute(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    id: CUlaunchAttributeID,
    out: Ptr<CUlaunchAttributeValue>,
) -> Answer {
    let state = driver.state();
    let kernel = kernel(&state, node.address())?;
    is_attribute(id)?;
    out.cast().write(kernel.attributes.get(id))
}

/// Sets an attribute. What can be wrong with a value shows when the graph is instantiated, apart
/// from the size of a cluster.
pub(crate) fn set_attribute(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    id: CUlaunchAttributeID,
    value: Ptr<CUlaunchAttributeValue>,
) -> Answer {
    let mut state = driver.state();
    let mut kernel = kernel(&state, node.address())?.clone();
    is_attribute(id)?;
    kernel.set_attribute(id, value.cast().read()?);
    kernel.fit(&state)?;
    if let Some(node) = state.nodes.get_mut(&node.address()) {
        node.action = Action::Kernel(kernel);
    }
    Ok(())
}

/// Copies the attributes of one node to another.
pub(crate) fn copy_attributes(
    driver: &Driver,
    to: Ptr<CUgraphNode_st>,
    from: Ptr<CUgraphNode_st>,
) -> Answer {
    let mut state = driver.state();
    let attributes = kernel(&state, from.address())?.attributes.clone();
    let mut copy = kernel(&state, to.address())?.clone();
    // Both have to be in one context (cuda.h).
    if state.node(from.address())?.context != state.node(to.address())?.context {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    copy.attributes = Attributes::default();
    copy.work.shape.cooperative = false;
    copy.work.shape.cluster = None;
    for (id, value) in attributes.0 {
        copy.set_attribute(CUlaunchAttributeID(id), value);
    }
    copy.fit(&state)?;
    if let Some(node) = state.nodes.get_mut(&to.address()) {
        node.action = Action::Kernel(copy);
    }
    Ok(())
}
