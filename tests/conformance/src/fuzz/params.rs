//! Arguments that are structures and arrays, legal and not.

use core::mem::{offset_of, size_of};

use green_ctx_sys::*;

use super::function::{Field, Kind, What};
use super::generate::Generator;
use super::program::Arg;

/// How long each piece of device memory is.
pub(crate) const BYTES: usize = 4096;

/// The size of a resource.
pub(crate) const RESOURCE: usize = size_of::<CUdevResource>();

/// Where the union of [`CUgraphNodeParams`] begins.
const UNION: usize = offset_of!(CUgraphNodeParams, __bindgen_anon_1);

/// What is compared of the resources that drivers from 13.1 on write: the type and the number of SMs. No
/// later call uses them, since older drivers do not make them.
pub(crate) const SMS: &[Field] = &[Field(0, 4, What::Number), Field(96, 4, What::Number)];

type Fields = Vec<(usize, usize, Arg)>;

/// Fields of a structure by their names, with their widths.
macro_rules! fields {
    ($type:ty: $($field:ident $width:literal = $value:expr),* $(,)?) => {
        vec![$((offset_of!($type, $field), $width, $value)),*]
    };
}

/// What is read of a structure, by the names of its fields.
macro_rules! read {
    ($type:ty: $($field:ident $width:literal $what:expr),* $(,)?) => {
        &[$(Field(offset_of!($type, $field), $width, $what)),*]
    };
}

fn structure<T>(fields: Fields) -> Arg {
    Arg::buffer(size_of::<T>(), fields)
}

fn shifted(fields: Fields, by: usize) -> Fields {
    fields.into_iter().map(|(offset, width, arg)| (offset + by, width, arg)).collect()
}

impl Generator {
    fn or_null(&mut self, kind: Kind, lasting: bool) -> Arg {
        self.handle(kind, lasting).unwrap_or(Arg::NULL)
    }

    /// A graph that is not among the call's arguments: a graph that becomes its own child ends the
    /// process.
    pub(crate) fn other_graph(&mut self) -> Arg {
        let graphs = self.model.living(Kind::Graph);
        let others = graphs.filter(|index| Some(*index) != self.graph && !self.allocates(*index));
        let others: Vec<usize> = others.collect();
        match self.rng.choice(others) {
            Some(index) => Arg::made(self.model.objects[index].made),
            None => self.new_graph(),
        }
    }

    fn number(&mut self, values: &[u64]) -> Arg {
        Arg::Number(self.rng.choice(values.iter().copied()).unwrap_or(0))
    }

    /// One of the values, or of the others.
    fn pick(&mut self, legal: bool, good: &[u64], bad: &[u64]) -> Arg {
        self.number(if legal { good } else { bad })
    }
}

/// Parameters for a kernel: the address of eight addresses of memory that is zero. No kernel of the
/// programs follows an address.
pub(crate) fn kernel_params(_: &mut Generator, _: bool) -> Arg {
    let value = || Arg::buffer(64, Vec::new());
    Arg::buffer(64, (0..8).map(|index| (8 * index, 8, value())).collect())
}

/// Nodes to come after, as an array: none or one of the call's graph, or one of another graph.
pub(crate) fn after(generator: &mut Generator, legal: bool) -> Arg {
    let graph = generator.graph;
    let is_inside = |index: &usize| (generator.model.objects[*index].graph == graph) == legal;
    let nodes: Vec<usize> = generator.model.living(Kind::AnyNode).filter(is_inside).collect();
    let node =
        if generator.rng.bool() && graph.is_some() { generator.rng.choice(nodes) } else { None };
    generator.after = u64::from(node.is_some());
    let node = node.map(|node| Arg::made(generator.model.objects[node].made));
    Arg::buffer(8, node.map(|node| (0, 8, node)).into_iter().collect())
}

/// How many nodes that array has.
pub(crate) fn after_count(generator: &mut Generator, _: bool) -> Arg {
    Arg::Number(generator.after)
}

/// No array, of the length 0 that is passed with it.
pub(crate) fn nothing(_: &mut Generator, _: bool) -> Arg {
    Arg::NULL
}

/// A count of 8, as the room of an array, which the driver lowers.
pub(crate) fn room(_: &mut Generator, _: bool) -> Arg {
    Arg::buffer(8, vec![(0, 8, Arg::Number(8))])
}

/// How many groups a split is to make at most.
pub(crate) fn groups(generator: &mut Generator, legal: bool) -> Arg {
    let count = generator.pick(legal, &[3, 3, 3, 3, 3, 3, 2, 1], &[0]);
    Arg::buffer(8, vec![(0, 4, count)])
}

pub(crate) const COUNT: &[Field] = &[Field(0, 8, What::Number)];
pub(crate) const GROUPS: &[Field] = &[Field(0, 4, What::Number)];
/// The kind of an affinity, and its SMs.
pub(crate) const AFFINITY: &[Field] = &[Field(0, 4, What::Number), Field(4, 4, What::Number)];

/// Resources for a descriptor.
pub(crate) fn resources(generator: &mut Generator, legal: bool) -> Arg {
    if !legal {
        return Arg::buffer(RESOURCE, Vec::new());
    }
    let resource = generator.or_null(Kind::Resource, false);
    Arg::buffer(RESOURCE, vec![(0, RESOURCE, resource)])
}

/// The mode of a thread's captures, which the driver exchanges.
pub(crate) fn capture_mode(generator: &mut Generator, legal: bool) -> Arg {
    let mode = generator.pick(legal, &[0, 1, 2], &[3, 99]);
    Arg::buffer(8, vec![(0, 4, mode)])
}

pub(crate) fn group_params(generator: &mut Generator, legal: bool) -> Arg {
    let count = generator.pick(legal, &[8, 16, 32], &[3, 1000]);
    structure::<CU_DEV_SM_RESOURCE_GROUP_PARAMS>(vec![(0, 4, count)])
}

fn memory(generator: &mut Generator) -> Arg {
    generator.or_null(Kind::Memory, true)
}

fn kernel_node_fields(generator: &mut Generator, legal: bool) -> Fields {
    type Params = CUDA_KERNEL_NODE_PARAMS_v2;
    let mut fields = fields!(Params:
        gridDimX 4 = generator.number(&[1, 2]),
        gridDimY 4 = Arg::Number(1),
        gridDimZ 4 = Arg::Number(1),
        blockDimX 4 = generator.pick(legal, &[1, 32, 64], &[0, 4096]),
        blockDimY 4 = Arg::Number(1),
        blockDimZ 4 = Arg::Number(1),
        sharedMemBytes 4 = generator.number(&[0, 0, 64]),
        kernelParams 8 = kernel_params(generator, true),
    );
    if generator.rng.bool() {
        fields.extend(fields!(Params: kern 8 = generator.or_null(Kind::Kernel, true)));
    } else {
        fields.extend(fields!(Params: func 8 = generator.or_null(Kind::Function, true)));
    }
    if generator.rng.u8(..4) == 0 {
        fields.extend(fields!(Params: ctx 8 = generator.or_null(Kind::Primary, false)));
    }
    fields
}

pub(crate) fn kernel_node(generator: &mut Generator, legal: bool) -> Arg {
    structure::<CUDA_KERNEL_NODE_PARAMS_v2>(kernel_node_fields(generator, legal))
}

pub(crate) const KERNEL_NODE_SIZE: usize = size_of::<CUDA_KERNEL_NODE_PARAMS_v2>();
pub(crate) const KERNEL_NODE: &[Field] = read!(CUDA_KERNEL_NODE_PARAMS_v2:
    func 8 What::Find(Kind::Function),
    gridDimX 4 What::Number,
    blockDimX 4 What::Number,
    sharedMemBytes 4 What::Number,
    kern 8 What::Find(Kind::Kernel),
    ctx 8 What::Find(Kind::Context),
);

fn memset_fields(generator: &mut Generator, legal: bool) -> Fields {
    let width = if legal { 1 } else { 3 };
    let element = generator.number(&[1, 2, 4]);
    fields!(CUDA_MEMSET_NODE_PARAMS_v1:
        dst 8 = memory(generator),
        pitch 8 = Arg::Number(1024),
        value 4 = generator.number(&[0, 1, 255]),
        elementSize 4 = if width == 3 { Arg::Number(3) } else { element },
        width 8 = generator.number(&[1, 16, 64]),
        height 8 = generator.number(&[1, 1, 2]),
    )
}

pub(crate) fn memset_node(generator: &mut Generator, legal: bool) -> Arg {
    structure::<CUDA_MEMSET_NODE_PARAMS_v1>(memset_fields(generator, legal))
}

pub(crate) const MEMSET_SIZE: usize = size_of::<CUDA_MEMSET_NODE_PARAMS_v1>();
pub(crate) const MEMSET: &[Field] = read!(CUDA_MEMSET_NODE_PARAMS_v1:
    dst 8 What::Find(Kind::AnyMemory),
    pitch 8 What::Number,
    value 4 What::Number,
    elementSize 4 What::Number,
    width 8 What::Number,
    height 8 What::Number,
);

/// One side of a copy: kinds of memory are 1 host, 2 device, 3 array, 4 unified.
fn copy_sides(generator: &mut Generator, legal: bool) -> [(u64, Arg, Arg); 2] {
    let mut side = |legal: bool| {
        if !legal {
            return (generator.rng.choice([0, 9]).unwrap_or(0), Arg::NULL, Arg::NULL);
        }
        match generator.rng.u8(..5) {
            0 => (1, Arg::host(0), Arg::NULL),
            1 => (4, Arg::NULL, memory(generator)),
            _ => (2, Arg::NULL, memory(generator)),
        }
    };
    [side(true), side(legal)]
}

fn copy_3d_fields(generator: &mut Generator, legal: bool) -> Fields {
    let [from, to] = copy_sides(generator, legal);
    fields!(CUDA_MEMCPY3D_v2:
        srcMemoryType 4 = Arg::Number(from.0),
        srcHost 8 = from.1,
        srcDevice 8 = from.2,
        srcPitch 8 = Arg::Number(256),
        srcHeight 8 = Arg::Number(4),
        dstMemoryType 4 = Arg::Number(to.0),
        dstHost 8 = to.1,
        dstDevice 8 = to.2,
        dstPitch 8 = Arg::Number(256),
        dstHeight 8 = Arg::Number(4),
        dstXInBytes 8 = generator.number(&[0, 0, 8]),
        WidthInBytes 8 = generator.number(&[4, 64]),
        Height 8 = generator.number(&[1, 1, 1, 2]),
        Depth 8 = generator.number(&[1, 1, 1, 2]),
    )
}

pub(crate) fn copy_3d(generator: &mut Generator, legal: bool) -> Arg {
    structure::<CUDA_MEMCPY3D_v2>(copy_3d_fields(generator, legal))
}

pub(crate) fn copy_2d(generator: &mut Generator, legal: bool) -> Arg {
    let [from, to] = copy_sides(generator, legal);
    structure::<CUDA_MEMCPY2D_v2>(fields!(CUDA_MEMCPY2D_v2:
        srcMemoryType 4 = Arg::Number(from.0),
        srcHost 8 = from.1,
        srcDevice 8 = from.2,
        srcPitch 8 = generator.number(&[0, 256]),
        dstMemoryType 4 = Arg::Number(to.0),
        dstHost 8 = to.1,
        dstDevice 8 = to.2,
        dstPitch 8 = generator.number(&[256, 512]),
        WidthInBytes 8 = generator.number(&[4, 64]),
        Height 8 = generator.number(&[1, 2]),
    ))
}

pub(crate) const COPY_SIZE: usize = size_of::<CUDA_MEMCPY3D_v2>();
pub(crate) const COPY: &[Field] = read!(CUDA_MEMCPY3D_v2:
    srcMemoryType 4 What::Number,
    srcDevice 8 What::Find(Kind::AnyMemory),
    srcPitch 8 What::Number,
    dstMemoryType 4 What::Number,
    dstDevice 8 What::Find(Kind::AnyMemory),
    dstPitch 8 What::Number,
    dstXInBytes 8 What::Number,
    WidthInBytes 8 What::Number,
    Height 8 What::Number,
    Depth 8 What::Number,
);

fn callback(legal: bool) -> Arg {
    if legal { Arg::Symbol(super::program::Symbol::Callback) } else { Arg::NULL }
}

pub(crate) fn host_node(_: &mut Generator, legal: bool) -> Arg {
    structure::<CUDA_HOST_NODE_PARAMS_v1>(vec![(0, 8, callback(legal)), (8, 8, Arg::host(0))])
}

/// A function without effect.
pub(crate) fn host_function(_: &mut Generator, legal: bool) -> Arg {
    callback(legal)
}

/// As [`host_function`], for streams' callbacks.
pub(crate) fn stream_callback(_: &mut Generator, _: bool) -> Arg {
    Arg::Symbol(super::program::Symbol::StreamCallback)
}

/// Pageable memory of the process.
pub(crate) fn pageable(_: &mut Generator, legal: bool) -> Arg {
    if legal { Arg::host(0) } else { Arg::NULL }
}

/// A whole page of it that is not registered, or one that is where that is not legal.
pub(crate) fn page(generator: &mut Generator, legal: bool) -> Arg {
    let page = generator.rng.usize(2..10);
    let free = (2..10).cycle().skip(page).take(8).find(|page| !generator.registered.contains(page));
    match free {
        Some(page) if legal => {
            generator.registered.push(page);
            Arg::host(BYTES * page)
        }
        _ => generator.registered.last().map_or(Arg::NULL, |page| Arg::host(BYTES * page)),
    }
}

/// A page that is registered, or one that is not.
pub(crate) fn registered(generator: &mut Generator, legal: bool) -> Arg {
    match generator.registered.pop() {
        Some(page) if legal => Arg::host(BYTES * page),
        _ => Arg::host(BYTES * 12),
    }
}

fn pool_props_fields(generator: &mut Generator, legal: bool) -> Fields {
    let location = offset_of!(CUmemPoolProps, location);
    let mut fields = fields!(CUmemPoolProps: allocType 4 = generator.pick(legal, &[1], &[0, 9]));
    fields.push((location, 4, Arg::Number(1)));
    fields
}

pub(crate) fn pool_props(generator: &mut Generator, legal: bool) -> Arg {
    structure::<CUmemPoolProps>(pool_props_fields(generator, legal))
}

pub(crate) fn alloc_node(generator: &mut Generator, legal: bool) -> Arg {
    let mut fields = pool_props_fields(generator, legal);
    fields.extend(fields!(CUDA_MEM_ALLOC_NODE_PARAMS: bytesize 8 = Arg::Number(4096)));
    structure::<CUDA_MEM_ALLOC_NODE_PARAMS>(fields)
}

pub(crate) const ALLOC_SIZE: usize = size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>();
pub(crate) const ALLOC: &[Field] = read!(CUDA_MEM_ALLOC_NODE_PARAMS:
    bytesize 8 What::Number,
    accessDescCount 8 What::Number,
    dptr 8 What::Find(Kind::GraphMemory),
);
/// As above, where the address is new.
pub(crate) const ALLOCATED: &[Field] =
    &[Field(offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, dptr), 8, What::New(Kind::GraphMemory))];

pub(crate) fn location(generator: &mut Generator, legal: bool) -> Arg {
    let kind = generator.pick(legal, &[1], &[0, 77]);
    structure::<CUmemLocation>(vec![(0, 4, kind)])
}

pub(crate) fn access(generator: &mut Generator, legal: bool) -> Arg {
    let location = generator.pick(legal, &[1], &[0, 77]);
    structure::<CUmemAccessDesc>(vec![
        (0, 4, location),
        (offset_of!(CUmemAccessDesc, flags), 4, Arg::Number(3)),
    ])
}

/// A number behind a pointer, as attributes of pools and pointers take it.
pub(crate) fn value(generator: &mut Generator, _: bool) -> Arg {
    let value = generator.number(&[0, 1]);
    Arg::buffer(64, vec![(0, 8, value)])
}

/// Parameters of any node, for the functions that take them all.
pub(crate) fn any_node(generator: &mut Generator, legal: bool) -> Arg {
    let kind = generator.pick(legal, &[0, 1, 2, 3, 4, 5, 6, 7], &[12, 99]);
    let Arg::Number(number) = kind else { return Arg::NULL };
    let mut fields = match number {
        0 => kernel_node_fields(generator, true),
        1 => {
            let mut fields = shifted(
                copy_3d_fields(generator, true),
                offset_of!(CUDA_MEMCPY_NODE_PARAMS, copyParams),
            );
            let context = generator.or_null(Kind::Primary, false);
            fields.extend(fields!(CUDA_MEMCPY_NODE_PARAMS: copyCtx 8 = context));
            fields
        }
        2 => {
            let mut fields = memset_fields(generator, true);
            let context = generator.or_null(Kind::Primary, false);
            fields.extend(fields!(CUDA_MEMSET_NODE_PARAMS_v2: ctx 8 = context));
            fields
        }
        3 => vec![(0, 8, callback(true))],
        4 => vec![(0, 8, generator.other_graph())],
        6 | 7 => vec![(0, 8, generator.or_null(Kind::Event, true))],
        _ => Vec::new(),
    };
    fields = shifted(fields, UNION);
    fields.push((0, 4, kind));
    structure::<CUgraphNodeParams>(fields)
}

/// As [`any_node`], for an empty node, whose parameters can be read.
pub(crate) const NODE_SIZE: usize = size_of::<CUgraphNodeParams>();
pub(crate) const NODE: &[Field] = &[Field(0, 4, What::Number)];

pub(crate) fn launch_config(generator: &mut Generator, legal: bool) -> Arg {
    launch_config_with(generator, legal, false)
}

pub(crate) fn cluster_config(generator: &mut Generator, legal: bool) -> Arg {
    launch_config_with(generator, legal, true)
}

fn launch_config_with(generator: &mut Generator, legal: bool, cluster: bool) -> Arg {
    let stream = generator.or_null(Kind::Stream, false);
    let grid = if cluster { &[2, 4][..] } else { &[1, 2] };
    let mut fields = fields!(CUlaunchConfig:
        gridDimX 4 = generator.number(grid),
        gridDimY 4 = Arg::Number(1),
        gridDimZ 4 = Arg::Number(1),
        blockDimX 4 = generator.pick(legal, &[1, 32, 64], &[0, 4096]),
        blockDimY 4 = Arg::Number(1),
        blockDimZ 4 = Arg::Number(1),
        sharedMemBytes 4 = generator.number(&[0, 0, 64]),
        hStream 8 = stream,
    );
    if cluster || generator.rng.u8(..3) == 0 {
        let size = if cluster { generator.number(&[1, 2]) } else { Arg::Number(1) };
        fields.extend(
            fields!(CUlaunchConfig: attrs 8 = cluster_attribute(size), numAttrs 4 = Arg::Number(1)),
        );
    }
    structure::<CUlaunchConfig>(fields)
}

fn cluster_attribute(size: Arg) -> Arg {
    let value = offset_of!(CUlaunchAttribute, value);
    let id = u64::from(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION.0);
    structure::<CUlaunchAttribute>(vec![
        (0, 4, Arg::Number(id)),
        (value, 4, size),
        (value + 4, 4, Arg::Number(1)),
        (value + 8, 4, Arg::Number(1)),
    ])
}

pub(crate) fn instantiate_params(generator: &mut Generator, legal: bool) -> Arg {
    structure::<CUDA_GRAPH_INSTANTIATE_PARAMS>(fields!(CUDA_GRAPH_INSTANTIATE_PARAMS:
        flags 8 = generator.pick(legal, &[0, 1, 8], &[0x100])))
}

pub(crate) const INSTANTIATED: &[Field] =
    read!(CUDA_GRAPH_INSTANTIATE_PARAMS: result_out 4 What::Number);

pub(crate) const UPDATED_SIZE: usize = size_of::<CUgraphExecUpdateResultInfo>();
pub(crate) const UPDATED: &[Field] = read!(CUgraphExecUpdateResultInfo: result 4 What::Number);

/// Which attributes of a pointer are asked for, as an array of two.
pub(crate) fn pointer_attributes(_: &mut Generator, legal: bool) -> Arg {
    let second = if legal { 2 } else { 9999 };
    Arg::buffer(8, vec![(0, 4, Arg::Number(2)), (4, 4, Arg::Number(second))])
}

/// Where the values of two attributes go.
pub(crate) fn two_places(_: &mut Generator, _: bool) -> Arg {
    Arg::buffer(16, (0..2).map(|index| (8 * index, 8, Arg::buffer(64, Vec::new()))).collect())
}

/// As [`any_node`], for a kernel.
pub(crate) fn kernel_union(generator: &mut Generator, legal: bool) -> Arg {
    let mut fields = shifted(kernel_node_fields(generator, legal), UNION);
    fields.push((0, 4, Arg::NULL));
    structure::<CUgraphNodeParams>(fields)
}

/// A graph other than the one that gets it as its child.
pub(crate) fn child_graph(generator: &mut Generator, legal: bool) -> Arg {
    if legal { generator.other_graph() } else { Arg::NULL }
}
