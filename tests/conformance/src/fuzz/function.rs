//! How a function of the driver is described to the fuzzer.

use super::generate::Generator;
use super::program::Arg;

/// A function, in the form of one version.
pub(crate) struct Function {
    /// The name that a library exports it by.
    pub(crate) export: &'static str,
    /// The version that introduced this form.
    pub(crate) version: u32,
    /// Its arguments, from left to right.
    pub(crate) args: &'static [Shape],
}

impl Function {
    /// The name without the suffix of the form.
    pub(crate) fn name(&self) -> &'static str {
        match self.export.rsplit_once("_v") {
            Some((name, form)) if form.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => self.export,
        }
    }
}

/// What an argument is.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// An integer: values that are legal, and values that are not.
    Int(&'static [u64], &'static [u64]),
    /// A handle or an address that a step wrote.
    In(Kind),
    /// One that lasts as long as the program, since what is made of it may run at any time.
    Lasting(Kind),
    /// One that does not live after the call.
    Take(Kind),
    /// A stream, or the number of a default stream.
    Stream,
    /// As `Stream`; but not while the stream is captured, or what the call uses must last.
    Idle,
    /// A text: ones that are legal, and ones that are not.
    Text(&'static [&'static str], &'static [&'static str]),
    /// What a function of the generator makes, legal or not; the driver may write these fields.
    Made(Build, &'static [Field]),
    /// A place for a new handle or address.
    New(Kind),
    /// A place for a handle that may be one that is known already.
    Find(Kind),
    /// A place for so many handles, each of which may be known, or null.
    Several(Kind, usize),
    /// A place for a number of so many bytes.
    Number(usize),
    /// A place for so many bytes that are not compared: addresses, times, sizes of the machine.
    Skip(usize),
    /// A place for the address of a text.
    Name,
    /// A place for so many resources of a kind.
    Resources(Kind, usize),
    /// A place for a structure: its size, and what is compared of it.
    Fields(usize, &'static [Field]),
}

/// Makes an argument; the second argument says whether it is to be legal.
pub(crate) type Build = fn(&mut Generator, bool) -> Arg;

/// A part of a structure that the driver writes: offset and width in bytes, and what it is.
#[derive(Clone, Copy)]
pub(crate) struct Field(pub(crate) usize, pub(crate) usize, pub(crate) What);

/// What is in a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A number that is compared.
    Number,
    /// A handle that may be known.
    Find(Kind),
    /// A new handle or address.
    New(Kind),
}

/// What a handle or an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The primary context.
    Primary,
    /// A context of `cuCtxCreate`.
    Created,
    /// A reference of `cuCtxAttach`.
    Attached,
    /// The context behind a green one.
    Derived,
    /// Any of the contexts above.
    Context,
    Green,
    /// The SMs of a device or a context, which can be split.
    Whole,
    /// A part of a split, which cannot be split again.
    Group,
    Resource,
    Descriptor,
    Stream,
    Event,
    Library,
    Kernel,
    /// The module of a library, which nobody unloads.
    LibraryModule,
    Module,
    /// A module of either kind.
    AnyModule,
    Function,
    /// A kernel or a function.
    Launchable,
    Memory,
    PoolMemory,
    /// Device memory of either kind.
    AnyMemory,
    /// Page-locked memory of the driver.
    HostMemory,
    Pool,
    /// The pool of the device.
    DefaultPool,
    AnyPool,
    Graph,
    /// A graph that belongs to a node.
    ChildGraph,
    KernelNode,
    MemcpyNode,
    MemsetNode,
    HostNode,
    ChildNode,
    RecordNode,
    WaitNode,
    AllocNode,
    FreeNode,
    OtherNode,
    AnyNode,
    GraphMemory,
    Condition,
    Exec,
    UserObject,
}

impl Kind {
    /// Whether something of this kind is passed where `wanted` is expected.
    pub(crate) fn is(self, wanted: Kind) -> bool {
        use Kind::*;
        match wanted {
            Context => matches!(self, Primary | Created | Derived),
            AnyModule => matches!(self, Module | LibraryModule),
            Launchable => matches!(self, Kernel | Function),
            AnyMemory => matches!(self, Memory | PoolMemory),
            AnyPool => matches!(self, Pool | DefaultPool),
            AnyNode => self.family() == AnyNode,
            Resource => matches!(self, Whole | Group),
            wanted => self == wanted,
        }
    }

    /// Handles of one family are compared by address. A context and a green context may have the same one.
    pub(crate) fn family(self) -> Kind {
        use Kind::*;
        match self {
            Primary | Created | Derived | Attached | Context => Context,
            Module | LibraryModule | AnyModule => AnyModule,
            Memory | PoolMemory | GraphMemory | AnyMemory => AnyMemory,
            Pool | DefaultPool | AnyPool => AnyPool,
            Graph | ChildGraph => Graph,
            KernelNode | MemcpyNode | MemsetNode | HostNode | ChildNode | RecordNode | WaitNode
            | AllocNode | FreeNode | OtherNode | AnyNode => AnyNode,
            other => other,
        }
    }

    /// Whether the end of something of the kind `owner` is the end of this.
    pub(crate) fn ends_with(self, owner: Kind) -> bool {
        use Kind::*;
        match self {
            Derived => owner == Green,
            Attached => owner == Created,
            Stream => matches!(owner, Green | Primary | Created | Derived),
            Event | Memory | HostMemory | Module => {
                matches!(owner, Primary | Created | Derived)
            }
            Kernel | LibraryModule => owner == Library,
            Function => matches!(owner, Module | LibraryModule | Kernel),
            PoolMemory => matches!(owner, Pool | Stream),
            ChildGraph => owner == ChildNode,
            GraphMemory => owner == AllocNode,
            Condition => matches!(owner, Graph | ChildGraph),
            node if node.family() == AnyNode => matches!(owner, Graph | ChildGraph),
            _ => false,
        }
    }

    /// The function that makes something of this kind.
    pub(crate) fn supplier(self) -> &'static str {
        use Kind::*;
        match self {
            Primary | Context => "cuDevicePrimaryCtxRetain",
            Created => "cuCtxCreate_v2",
            Attached => "cuCtxAttach",
            Derived => "cuCtxFromGreenCtx",
            Green => "cuGreenCtxCreate",
            Whole => "cuDeviceGetDevResource",
            Group | Resource => "cuDevSmResourceSplitByCount",
            Descriptor => "cuDevResourceGenerateDesc",
            Stream => "cuStreamCreate",
            Event => "cuEventCreate",
            Library => "cuLibraryLoadData",
            Kernel | Launchable => "cuLibraryGetKernel",
            LibraryModule => "cuLibraryGetModule",
            Module | AnyModule => "cuModuleLoadData",
            Function => "cuModuleGetFunction",
            Memory | AnyMemory => "cuMemAlloc_v2",
            PoolMemory => "cuMemAllocAsync",
            HostMemory => "cuMemHostAlloc",
            Pool => "cuMemPoolCreate",
            DefaultPool | AnyPool => "cuDeviceGetDefaultMemPool",
            Graph => "cuGraphCreate",
            ChildGraph => "cuGraphChildGraphNodeGetGraph",
            KernelNode => "cuGraphAddKernelNode_v2",
            MemcpyNode => "cuGraphAddMemcpyNode",
            MemsetNode => "cuGraphAddMemsetNode",
            HostNode => "cuGraphAddHostNode",
            ChildNode => "cuGraphAddChildGraphNode",
            RecordNode => "cuGraphAddEventRecordNode",
            WaitNode => "cuGraphAddEventWaitNode",
            AllocNode | GraphMemory => "cuGraphAddMemAllocNode",
            FreeNode => "cuGraphAddMemFreeNode",
            AnyNode => "cuGraphAddEmptyNode",
            OtherNode => "cuGraphAddNode_v2",
            Condition => "cuGraphConditionalHandleCreate",
            Exec => "cuGraphInstantiateWithFlags",
            UserObject => "cuUserObjectCreate",
        }
    }
}
