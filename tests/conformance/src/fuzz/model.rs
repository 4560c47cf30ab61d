//! What should be alive after each call, if every call succeeds. It is optimistic about what a call
//! makes, and pessimistic about what it ends: nothing that may be gone is used again.

use std::collections::{BTreeSet, HashMap};

use super::function::{Function, Kind, Shape, What};
use super::program::{Arg, Made, Step};

/// A handle or an address.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) made: Made,
    pub(crate) kind: Kind,
    pub(crate) alive: bool,
    /// Whether it stays until the program ends.
    pub(crate) lasts: bool,
    /// The context of `cuCtxCreate` that was current when it was made.
    pub(crate) realm: Option<usize>,
    /// The graph that it was made of or in.
    pub(crate) graph: Option<usize>,
    owners: Vec<usize>,
    /// Of a graph, executable or not: the functions and contexts that it may have to do with. When one
    /// ends, the graph has nodes that dangle, and most calls end the process.
    needs: BTreeSet<usize>,
}

/// Everything that was made, and the state of the thread.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) objects: Vec<Object>,
    by_name: HashMap<Made, usize>,
    /// The contexts on the thread's stack, the current one last.
    pub(crate) stack: Vec<Option<usize>>,
    /// The streams whose capture began and did not end.
    pub(crate) capturing: Vec<usize>,
    /// Events that were recorded in a capture, and streams that waited for one and so joined it.
    joined: Vec<usize>,
    /// The streams that are captured into a graph that is there already, and that graph.
    extending: Vec<(usize, usize)>,
    /// References to the primary context.
    pub(crate) references: u32,
    /// Whether what is made now lasts.
    pub(crate) lasting: bool,
    /// Whether the next call is known to fail, so that it makes nothing.
    pub(crate) fails: bool,
}

impl Model {
    /// The object of this name.
    pub(crate) fn find(&self, made: Made) -> Option<usize> {
        self.by_name.get(&made).copied()
    }

    /// Whether what has this name lives.
    pub(crate) fn lives(&self, made: Made) -> bool {
        self.find(made).is_some_and(|index| self.objects[index].alive)
    }

    /// The living objects of a kind.
    pub(crate) fn living(&self, kind: Kind) -> impl Iterator<Item = usize> + '_ {
        (0..self.objects.len()).filter(move |&index| {
            let object = &self.objects[index];
            object.alive && object.kind.is(kind)
        })
    }

    /// The context of `cuCtxCreate` that is current.
    pub(crate) fn realm(&self) -> Option<usize> {
        let current = (*self.stack.last()?)?;
        (self.objects[current].kind == Kind::Created).then_some(current)
    }

    /// Takes note of a call.
    pub(crate) fn apply(&mut self, function: &Function, step: &Step) {
        let uses: Vec<usize> = step.uses().into_iter().filter_map(|made| self.find(made)).collect();
        let of = |model: &Model, index: usize| match step.args.get(index).map(Arg::uses) {
            Some(uses) => uses.first().and_then(|made| model.find(*made)),
            None => None,
        };
        match function.export {
            "cuCtxPushCurrent_v2" => {
                let context = of(self, 0);
                self.stack.push(context);
            }
            "cuCtxPopCurrent_v2" => {
                self.stack.pop();
            }
            "cuCtxSetCurrent" => {
                let context = of(self, 0);
                self.stack.pop();
                if context.is_some() {
                    self.stack.push(context);
                }
            }
            "cuDevicePrimaryCtxRetain" => self.references += 1,
            "cuDevicePrimaryCtxRelease" | "cuDevicePrimaryCtxRelease_v2" => {
                self.references = self.references.saturating_sub(1);
            }
            "cuStreamBeginCapture" | "cuStreamBeginCapture_v2" => {
                self.capturing.extend(of(self, 0))
            }
            "cuStreamBeginCaptureToGraph" => {
                self.capturing.extend(of(self, 0));
                self.extending.extend(of(self, 0).zip(of(self, 1)));
            }
            "cuStreamEndCapture" => {
                let stream = of(self, 0);
                self.capturing.retain(|capturing| Some(*capturing) != stream);
                if let Some(index) = self.extending.iter().position(|of| Some(of.0) == stream) {
                    // What comes back is the graph that is there, under another name; or it is gone, if
                    // the capture failed.
                    let (_, graph) = self.extending.swap_remove(index);
                    self.end(graph);
                    return;
                }
            }
            "cuEventRecord" | "cuEventRecordWithFlags" => self.join(of(self, 0), of(self, 1)),
            "cuStreamWaitEvent" => self.join(of(self, 0), of(self, 1)),
            _ => {}
        }
        if self.capturing.is_empty() {
            self.joined.clear();
        }
        let fails = core::mem::take(&mut self.fails);
        let mut place = 0;
        for (shape, arg) in function.args.iter().zip(&step.args) {
            if let Shape::Take(_) = shape {
                for taken in
                    arg.uses().into_iter().filter_map(|made| self.find(made)).collect::<Vec<_>>()
                {
                    self.end(taken);
                }
            }
            for kind in places(shape) {
                if *arg != Arg::NULL
                    && !fails
                    && let Some(kind) = kind
                {
                    self.make(Made { step: step.step, place }, kind, &uses);
                }
                place += 1;
            }
        }
        let made = self.find(Made { step: step.step, place: 0 });
        if function.name() == "cuCtxCreate" && !fails {
            self.stack.push(made);
        }
        self.entangle(uses.into_iter().chain(made));
    }

    /// The graphs of a call need what the call uses, what another of its graphs needs, and the context.
    fn entangle(&mut self, uses: impl Iterator<Item = usize>) {
        let mut graphs = BTreeSet::new();
        let mut needs: BTreeSet<usize> = self.stack.last().copied().flatten().into_iter().collect();
        for index in uses {
            let Object { kind, graph, .. } = self.objects[index];
            match kind.family() {
                Kind::Graph | Kind::Exec => drop(graphs.insert(index)),
                Kind::AnyNode => graphs.extend(graph),
                Kind::Context | Kind::Function | Kind::Kernel => drop(needs.insert(index)),
                _ => {}
            }
        }
        for graph in &graphs {
            needs.extend(&self.objects[*graph].needs);
        }
        for graph in graphs {
            self.objects[graph].needs.extend(&needs);
        }
    }

    /// Whether a stream is captured.
    pub(crate) fn captured(&self, stream: usize) -> bool {
        self.capturing.contains(&stream) || self.joined.contains(&stream)
    }

    /// Whether a stream is captured into this graph, or into the one that this node is in.
    pub(crate) fn is_extended(&self, index: usize) -> bool {
        let object = &self.objects[index];
        self.extending.iter().any(|(_, graph)| *graph == index || object.graph == Some(*graph))
    }

    /// An event is recorded in a stream, or a stream waits for an event: `which` is captured if
    /// `other` is.
    fn join(&mut self, which: Option<usize>, other: Option<usize>) {
        if let (Some(which), Some(other)) = (which, other)
            && self.captured(other)
        {
            self.joined.push(which);
        }
    }

    fn make(&mut self, made: Made, kind: Kind, uses: &[usize]) {
        let current = self.stack.last().copied().flatten();
        let owners = uses.iter().copied().chain(current);
        let owners = owners.filter(|owner| kind.ends_with(self.objects[*owner].kind)).collect();
        let realm = self.realm();
        let is_graph = |index: &&usize| self.objects[**index].kind.family() == Kind::Graph;
        let graph = uses.iter().find(is_graph).copied();
        self.by_name.insert(made, self.objects.len());
        self.objects.push(Object {
            made,
            kind,
            alive: true,
            lasts: self.lasting,
            realm,
            graph,
            owners,
            needs: BTreeSet::new(),
        });
    }

    /// Ends an object and what cannot be without it.
    fn end(&mut self, ended: usize) {
        if !self.objects[ended].alive {
            return;
        }
        self.objects[ended].alive = false;
        self.capturing.retain(|stream| *stream != ended);
        if self.stack.last() == Some(&Some(ended)) {
            self.stack.pop();
        }
        for index in 0..self.objects.len() {
            let object = &self.objects[index];
            if object.owners.contains(&ended) || object.needs.contains(&ended) {
                self.end(index);
            }
        }
    }
}

/// The values that the driver writes for an argument; of those that go into the model, their kinds.
pub(crate) fn places(shape: &Shape) -> Vec<Option<Kind>> {
    let of_field = |what: &What| match what {
        What::New(kind) => Some(*kind),
        What::Number | What::Find(_) => None,
    };
    match shape {
        Shape::New(kind) => vec![Some(*kind)],
        Shape::Resources(kind, count) => vec![Some(*kind); *count],
        Shape::Find(_) => vec![None],
        Shape::Several(_, count) => vec![None; *count],
        Shape::Made(_, fields) | Shape::Fields(_, fields) => {
            fields.iter().map(|field| of_field(&field.2)).collect()
        }
        _ => Vec::new(),
    }
}
