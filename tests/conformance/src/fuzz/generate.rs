//! Making programs from seeds.

use fastrand::Rng;

use super::function::{Function, Kind, Shape};
use super::functions::{FUNCTIONS, function};
use super::model::Model;
use super::program::{Arg, Program, Step, Symbol};

/// How many calls are made at most so that one other has its arguments.
const DEPTH: usize = 6;

/// How many objects of a kind live at a time before new ones displace them.
const CROWD: usize = 8;

/// Makes one program.
pub(crate) struct Generator {
    pub(crate) rng: Rng,
    pub(crate) model: Model,
    steps: Vec<Step>,
    calls: usize,
    depth: usize,
    /// The graph among the arguments of the call that is being made.
    pub(crate) graph: Option<usize>,
    /// How many nodes its array has.
    pub(crate) after: u64,
    /// The pages of pageable memory that are registered.
    pub(crate) registered: Vec<usize>,
    /// How often each function was called.
    called: Vec<u32>,
}

/// The program of a seed: the same one wherever it is made. It has `calls` steps.
#[must_use]
pub fn program(seed: u64, calls: usize) -> Program {
    let mut generator = Generator {
        rng: Rng::with_seed(seed),
        model: Model::default(),
        steps: Vec::new(),
        calls,
        depth: 0,
        graph: None,
        after: 0,
        registered: Vec::new(),
        called: vec![0; FUNCTIONS.len()],
    };
    generator.begin();
    while generator.steps.len() + 1 < calls {
        generator.go_on();
    }
    generator.end();
    let mut steps = generator.steps;
    steps.truncate(calls);
    Program { name: seed.to_string(), steps }
}

impl Generator {
    /// Makes what lasts: contexts, kernels, memory, streams and events.
    fn begin(&mut self) {
        self.model.lasting = true;
        self.plain("cuInit", vec![Arg::Number(0)]);
        if self.rng.bool() {
            let flags = self.rng.choice([0, 1, 2, 4, 0x10]).unwrap_or(0);
            self.plain("cuDevicePrimaryCtxSetFlags", vec![Arg::NULL, Arg::Number(flags)]);
        }
        self.plain("cuDevicePrimaryCtxRetain", vec![Arg::OUT, Arg::NULL]);
        let primary = self.last();
        self.plain("cuCtxPushCurrent_v2", vec![primary]);
        let mut image = vec![Arg::OUT, Arg::Symbol(Symbol::Image)];
        image.extend(vec![Arg::NULL; 6]);
        self.plain("cuLibraryLoadData", image);
        let library = self.last();
        for name in ["params", "shared", "bounded", "clustered", "empty"] {
            self.plain("cuLibraryGetKernel", vec![Arg::OUT, library.clone(), Arg::text(name)]);
        }
        let first = self.model.living(Kind::Kernel).next();
        let params = first.map_or(Arg::NULL, |index| Arg::made(self.model.objects[index].made));
        self.plain("cuKernelGetFunction", vec![Arg::OUT, params]);
        for _ in 0..2 {
            self.plain("cuMemAlloc_v2", vec![Arg::OUT, Arg::Number(super::params::BYTES as u64)]);
            self.plain("cuEventCreate", vec![Arg::OUT, Arg::NULL]);
            self.plain("cuStreamCreate", vec![Arg::OUT, Arg::Number(1)]);
        }
        self.model.lasting = false;
    }

    /// Makes one call of any function, after those that it needs.
    fn go_on(&mut self) {
        if self.model.stack.last().copied().flatten().is_none() && self.rng.u8(..10) < 7 {
            self.push_primary();
            return;
        }
        if self.model.stack.len() > 4 || (self.model.realm().is_some() && self.rng.u8(..10) < 2) {
            self.call(function("cuCtxPopCurrent_v2"), true);
            return;
        }
        if let Some(&stream) = self.model.capturing.first()
            && self.rng.u8(..10) < 2
        {
            let stream = Arg::made(self.model.objects[stream].made);
            self.plain("cuStreamEndCapture", vec![stream, Arg::OUT]);
            return;
        }
        // The one of three that was called least, so that what others need is not called most.
        let indices = [0; 3].map(|_| self.rng.usize(..FUNCTIONS.len()));
        let often = |index: &usize| {
            // What becomes of graphs needs more calls before it that may fail.
            let weight = if FUNCTIONS[*index].export.starts_with("cuGraph") { 4 } else { 7 };
            weight * self.called[*index]
        };
        let Some(index) = indices.into_iter().min_by_key(often) else { return };
        // A context of its own takes a GPU some 100 ms and hundreds of MiB.
        let costly = FUNCTIONS[index].name() == "cuCtxCreate";
        let legal = match self.model.living(Kind::Created).count() {
            0 | 1 => self.rng.u8(..100) < if costly { 40 } else { 85 },
            _ => !costly && self.rng.u8(..100) < 85,
        };
        self.call(&FUNCTIONS[index], legal);
    }

    /// The last call is the one that may end the process: what careful callers never pass.
    fn end(&mut self) {
        let mut step = None;
        for _ in 0..8 {
            let function = &FUNCTIONS[self.rng.usize(..FUNCTIONS.len())];
            let places = function.args.iter().enumerate();
            let places =
                places.filter(|(_, shape)| !matches!(shape, Shape::Int(..) | Shape::Skip(_)));
            let places: Vec<usize> = places.map(|(index, _)| index).collect();
            let Some(index) = self.rng.choice(places) else { continue };
            let mut args = self.arguments(function, true);
            if let Some(args) = &mut args {
                args[index] = Arg::NULL;
            }
            step = args.map(|args| (function, args));
            break;
        }
        if self.steps.len() < self.calls
            && let Some((function, args)) = step
        {
            self.push(function, args);
        }
    }

    /// Makes a call of `function` with legal arguments, or with one that is not where there is such.
    pub(crate) fn call(&mut self, function: &'static Function, legal: bool) -> bool {
        self.depth += 1;
        self.prepare(function);
        let args = if self.depth > DEPTH { None } else { self.arguments(function, legal) };
        self.depth -= 1;
        let made = args.is_some();
        if let Some(args) = args {
            self.push(function, args);
        }
        made
    }

    /// Makes what the function wants beside its arguments.
    fn prepare(&mut self, wanting: &'static Function) {
        let has_context = self.model.stack.last().copied().flatten().is_some();
        let maker = match wanting.name() {
            "cuDevicePrimaryCtxRelease" if self.model.references < 2 => "cuDevicePrimaryCtxRetain",
            "cuCtxAttach" if self.model.realm().is_none() => {
                let created = self.model.living(Kind::Created).next();
                match created {
                    Some(context) => return self.push_context(context),
                    None => "cuCtxCreate_v2",
                }
            }
            "cuMemHostUnregister" if self.registered.is_empty() => "cuMemHostRegister_v2",
            "cuStreamEndCapture" | "cuStreamUpdateCaptureDependencies"
                if self.model.capturing.is_empty() =>
            {
                "cuStreamBeginCapture_v2"
            }
            // So that the pop leaves a context.
            "cuCtxPopCurrent" if self.model.stack.len() < 2 => return self.push_primary(),
            // A node that gets a function while no context is current ends the process.
            name if !has_context
                && ["KernelNode", "GraphAddNode", "NodeSetParams"]
                    .iter()
                    .any(|part| name.contains(part)) =>
            {
                return self.push_primary();
            }
            _ => return,
        };
        self.call(function(maker), true);
    }

    fn push_primary(&mut self) {
        let primary = self.model.living(Kind::Primary).next();
        if let Some(primary) = primary {
            self.push_context(primary);
        }
    }

    fn push_context(&mut self, context: usize) {
        let context = Arg::made(self.model.objects[context].made);
        self.plain("cuCtxPushCurrent_v2", vec![context]);
    }

    fn arguments(&mut self, function: &'static Function, legal: bool) -> Option<Vec<Arg>> {
        // Where a driver follows a null handle, no more than the end of a program is lost.
        let ending = 10 * self.steps.len() >= 9 * self.calls;
        let is_handle = |shape: &Shape| matches!(shape, Shape::In(_) | Shape::Lasting(_));
        let bad = function.args.iter().enumerate();
        let bad = bad.filter(|(_, shape)| has_illegal(shape) && (ending || !is_handle(shape)));
        let bad: Vec<usize> = bad.map(|(index, _)| index).collect();
        let bad = if legal { None } else { self.rng.choice(bad) };
        let mut args = Vec::with_capacity(function.args.len());
        self.graph = None;
        for (index, shape) in function.args.iter().enumerate() {
            args.push(self.argument(function, shape, bad != Some(index))?);
        }
        if bad.is_none() {
            self.belong_together(function, &mut args)?;
        }
        self.model.fails = bad.is_some();
        Some(args)
    }

    /// Most functions of two handles want those that have to do with each other.
    fn belong_together(&mut self, function: &Function, args: &mut [Arg]) -> Option<()> {
        if self.rng.u8(..10) == 0 {
            return Some(());
        }
        let (whole, part) = match (function.export, function.args) {
            ("cuGraphNodeFindInClone", _) => (2, 1),
            ("cuGraphReleaseUserObject", _) => {
                let retained = vec![args[0].clone(), args[1].clone(), Arg::Number(1), Arg::NULL];
                self.plain("cuGraphRetainUserObject", retained);
                return Some(());
            }
            ("cuGraphExecUpdate" | "cuGraphExecUpdate_v2", _) => {
                let exec = self.model.find(*args[0].uses().first()?)?;
                if let Some(graph) = self.model.objects[exec].graph
                    && self.model.objects[graph].alive
                {
                    args[1] = Arg::made(self.model.objects[graph].made);
                    if self.rng.bool() {
                        let of = args[1].clone();
                        self.plain("cuGraphInstantiateWithFlags", vec![Arg::OUT, of, Arg::NULL]);
                        args[0] = self.last();
                    }
                }
                return Some(());
            }
            ("cuKernelGetParamInfo" | "cuFuncGetParamInfo", [Shape::In(kind), ..]) => {
                // The first kernel is the one that has parameters.
                let first = self.model.living(*kind).next();
                if let Some(first) = first.filter(|_| self.rng.bool()) {
                    args[0] = Arg::made(self.model.objects[first].made);
                }
                return Some(());
            }
            ("cuEventElapsedTime" | "cuEventElapsedTime_v2", _) => {
                let stream = self.idle();
                for event in &args[1..3] {
                    self.plain("cuEventRecord", vec![event.clone(), stream.clone()]);
                }
                self.plain("cuStreamSynchronize", vec![stream]);
                return Some(());
            }
            (_, [Shape::In(Kind::Exec), Shape::In(kind), ..]) if kind.family() == Kind::AnyNode => {
                (0, 1)
            }
            _ => return Some(()),
        };
        let mut made = *args[part].uses().first()?;
        let mut node = self.model.find(made)?;
        let fits = |index: &usize| {
            let graph = self.model.objects[*index].graph;
            graph.is_some_and(|graph| !self.allocates(graph))
        };
        let Shape::In(kind) = function.args[part] else { return Some(()) };
        let nodes = self.model.living(kind).filter(fits);
        if let Some(other) = self.rng.choice(nodes.collect::<Vec<_>>()) {
            node = other;
            made = self.model.objects[node].made;
            args[part] = Arg::made(made);
        }
        let graph = self.model.objects[node].graph?;
        if function.export.ends_with("ChildGraphNodeSetParams")
            || function.export.ends_with("MemcpyNodeSetParams")
        {
            // Only a child or a copy like the one that the node has is taken.
            let maker = self.steps.iter().find(|step| step.step == made.step);
            if let Some(like) = maker.and_then(|step| step.args.get(4))
                && like.uses().iter().all(|made| self.model.lives(*made))
            {
                args[2] = like.clone();
            }
        }
        let made_of = |index: &usize| {
            let object = &self.model.objects[*index];
            object.graph == Some(graph) && object.made > self.model.objects[node].made
        };
        let kind = if whole == 0 { Kind::Exec } else { Kind::Graph };
        let found: Vec<usize> = self.model.living(kind).filter(made_of).collect();
        args[whole] = match self.rng.choice(found) {
            Some(index) => Arg::made(self.model.objects[index].made),
            None => {
                let graph = Arg::made(self.model.objects[graph].made);
                match kind {
                    Kind::Exec => {
                        self.plain("cuGraphInstantiateWithFlags", vec![Arg::OUT, graph, Arg::NULL]);
                    }
                    _ => self.plain("cuGraphClone", vec![Arg::OUT, graph]),
                }
                self.last()
            }
        };
        Some(())
    }

    fn argument(&mut self, function: &Function, shape: &Shape, legal: bool) -> Option<Arg> {
        Some(match *shape {
            Shape::Int(good, bad) => {
                let values = if legal { good } else { bad };
                Arg::Number(self.rng.choice(values.iter().copied()).unwrap_or(0))
            }
            Shape::Text(good, bad) => {
                let texts = if legal { good } else { bad };
                let text = self.rng.choice(texts.iter().copied())?;
                match text {
                    "file" => Arg::Symbol(Symbol::File),
                    "image" => Arg::Symbol(Symbol::Image),
                    text => Arg::text(text),
                }
            }
            Shape::In(_) | Shape::Lasting(_) if !legal => Arg::NULL,
            Shape::In(kind) => {
                let handle = if kind == Kind::Graph && self.rng.u8(..10) < 8 {
                    self.graph_for(function)?
                } else {
                    self.handle(kind, false)?
                };
                if kind == Kind::Graph {
                    self.graph = handle.uses().first().and_then(|made| self.model.find(*made));
                }
                handle
            }
            Shape::Lasting(kind) => self.handle(kind, true)?,
            Shape::Take(kind) => self.taken(kind)?,
            Shape::Stream => self.stream(function),
            Shape::Idle => self.idle(),
            Shape::Made(build, _) => build(self, legal),
            Shape::New(_)
            | Shape::Find(_)
            | Shape::Several(..)
            | Shape::Number(_)
            | Shape::Skip(_)
            | Shape::Name
            | Shape::Resources(..)
            | Shape::Fields(..) => Arg::OUT,
        })
    }

    /// Whether a graph has nodes that allocate or free, or a value for conditional ones, or may have them.
    pub(crate) fn allocates(&self, graph: usize) -> bool {
        let captured = self.steps.iter().any(|step| {
            step.step == self.model.objects[graph].made.step && step.call == "cuStreamEndCapture"
        });
        captured
            || self.model.objects.iter().any(|object| {
                object.graph == Some(graph)
                    && matches!(object.kind, Kind::AllocNode | Kind::FreeNode | Kind::Condition)
            })
    }

    /// A graph that the function takes: those that allocate cannot be cloned, and are instantiated once,
    /// so the others get most nodes.
    fn graph_for(&mut self, function: &Function) -> Option<Arg> {
        let allocates = matches!(
            function.export,
            "cuGraphAddMemAllocNode" | "cuGraphAddMemFreeNode" | "cuGraphConditionalHandleCreate"
        );
        let graphs = self.model.living(Kind::Graph);
        let graphs: Vec<usize> =
            graphs.filter(|graph| self.allocates(*graph) == allocates).collect();
        match self.rng.choice(graphs) {
            Some(graph) => Some(Arg::made(self.model.objects[graph].made)),
            None => Some(self.new_graph()),
        }
    }

    /// An empty graph.
    pub(crate) fn new_graph(&mut self) -> Arg {
        self.plain("cuGraphCreate", vec![Arg::OUT, Arg::NULL]);
        self.last()
    }

    /// Something living of this kind, made first where there is nothing.
    pub(crate) fn handle(&mut self, kind: Kind, lasting: bool) -> Option<Arg> {
        let index = match self.choose(kind, lasting) {
            Some(index) => index,
            None => {
                let supplier = kind.supplier();
                let before = self.model.lasting;
                // What something that lasts is made of lasts too.
                self.model.lasting |= lasting;
                let made = self.call(function(supplier), true);
                self.model.lasting = before;
                if !made {
                    return None;
                }
                self.choose(kind, lasting)?
            }
        };
        Some(Arg::made(self.model.objects[index].made))
    }

    fn choose(&mut self, kind: Kind, lasting: bool) -> Option<usize> {
        let realm = if self.rng.u8(..20) == 0 { None } else { Some(self.model.realm()) };
        let fits = |model: &Model, index: usize| {
            let object = &model.objects[index];
            (!lasting || object.lasts)
                && realm.is_none_or(|realm| object.realm == realm || !bound(object.kind))
        };
        let found: Vec<usize> =
            self.model.living(kind).filter(|index| fits(&self.model, *index)).collect();
        // Younger ones are used more, so that many states are seen and not only the first one.
        let recent = found.len().saturating_sub(CROWD);
        let from = if self.rng.bool() { &found[recent..] } else { &found[..] };
        self.rng.choice(from.iter().copied())
    }

    /// Something that the call may end.
    fn taken(&mut self, kind: Kind) -> Option<Arg> {
        for _ in 0..2 {
            let may_end = |index: &usize| {
                let object = &self.model.objects[*index];
                !object.lasts && !self.in_use(*index) && !self.model.is_extended(*index)
            };
            let found: Vec<usize> = self.model.living(kind).filter(may_end).collect();
            if let Some(index) = self.rng.choice(found) {
                return Some(Arg::made(self.model.objects[index].made));
            }
            let supplier = kind.supplier();
            if !self.call(function(supplier), true) {
                return None;
            }
        }
        None
    }

    /// Whether the thread's stack has a context that would end too: what is left there dangles, and
    /// the driver may then end the process.
    fn in_use(&self, index: usize) -> bool {
        let object = &self.model.objects[index];
        let top = self.model.stack.len().saturating_sub(1);
        self.model.stack.iter().enumerate().any(|(place, context)| {
            context.is_some_and(|context| {
                let current = &self.model.objects[context];
                (context == index && place != top)
                    || (object.kind == Kind::Green && current.kind == Kind::Derived)
            })
        })
    }

    /// A stream, of which one that is captured has better chances while there is any.
    fn stream(&mut self, function: &Function) -> Arg {
        let capture = function.name().contains("Capture");
        let chance = if capture { 7 } else { 2 };
        if let Some(&stream) = self.model.capturing.last()
            && self.rng.u8(..10) < chance
        {
            return Arg::made(self.model.objects[stream].made);
        }
        if !capture && self.rng.u8(..10) == 0 {
            return Arg::Number(self.rng.u64(..3));
        }
        self.idle()
    }

    /// A stream that is not captured as far as the model knows.
    fn idle(&mut self) -> Arg {
        for _ in 0..3 {
            match self.handle(Kind::Stream, false) {
                Some(stream) => {
                    let index = stream.uses().first().and_then(|made| self.model.find(*made));
                    if index.is_none_or(|index| !self.model.captured(index)) {
                        return stream;
                    }
                }
                None => break,
            }
        }
        if self.call(function("cuStreamCreate"), true) { self.last() } else { Arg::NULL }
    }

    /// Makes a call with these arguments.
    fn plain(&mut self, export: &'static str, args: Vec<Arg>) {
        self.push(function(export), args);
    }

    fn push(&mut self, function: &'static Function, args: Vec<Arg>) {
        let number = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
        let step = Step { step: number, call: function.export.to_owned(), args };
        self.model.apply(function, &step);
        let index = FUNCTIONS.iter().position(|other| other.export == function.export);
        if let Some(called) = index.and_then(|index| self.called.get_mut(index)) {
            *called += 1;
        }
        self.steps.push(step);
    }

    /// What the last call made.
    fn last(&self) -> Arg {
        self.model.objects.last().map_or(Arg::NULL, |object| Arg::made(object.made))
    }
}

/// What belongs to the context that was current, and is of no use to another's.
fn bound(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Stream
            | Kind::Event
            | Kind::Memory
            | Kind::HostMemory
            | Kind::Module
            | Kind::Function
            | Kind::LibraryModule
    )
}

fn has_illegal(shape: &Shape) -> bool {
    match shape {
        Shape::Int(_, bad) => !bad.is_empty(),
        Shape::Text(_, bad) => !bad.is_empty(),
        Shape::In(_) | Shape::Lasting(_) | Shape::Made(..) => true,
        _ => false,
    }
}
