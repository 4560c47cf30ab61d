//! Drops, closes and launches on another thread while a capture is being ended.
//!
//! The simulated driver halts the capturing thread before one of the driver calls that end the capture, and the
//! other thread works at that moment. Each test is repeated for every one of those calls.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use green_ctx::{
    DeviceBuffer, Graph, Kernel, Partition, SplitRequest, Stream, StreamOptions,
    context::CloseReason,
    graph::CaptureMode,
    sim::{Fault, Sim},
};

use crate::common::Outcome;
use crate::{LONG, Machine, each_composing_driver, each_driver, kernels, launch, raw};

/// The driver call that returns whether a stream takes part in a capture.
const QUESTION: &str = "cuStreamGetCaptureInfo";

/// One of the driver calls that end a capture: its name, and its number among the calls of that name.
type Halt = (&'static str, u64);

/// Runs a test for each driver call that ends the test's capture, on each driver. A first run without a halt
/// records the calls.
fn at_each_call(test: impl Fn(&Machine, Option<Halt>) -> Outcome) -> Outcome {
    each_composing_driver(|machine| {
        test(machine, None)?;
        let calls: Vec<_> = machine.sim.call_log().iter().map(|call| call.function).collect();
        assert!(calls.contains(&QUESTION) && calls.contains(&"cuStreamEndCapture"), "{calls:?}");
        for (index, &function) in calls.iter().enumerate() {
            let nth = calls[..=index].iter().filter(|other| **other == function).count() as u64;
            eprintln!("halted before {function}, call {nth} of that name");
            test(machine, Some((function, nth)))?;
            assert_eq!(machine.free()?, 132, "SMs are still held");
        }
        Ok(())
    })
}

/// The thread that does the interfering work.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// A separate thread. A halt before [`QUESTION`] does not wait for it, since the end of a stream may wait
    /// for the answer.
    OtherThread,
    /// The halted thread itself. The capture continues after the work.
    HaltedThread,
}

type Work = Box<dyn FnOnce() + Send>;

/// The work that is left to do after the capture.
#[derive(Clone, Default)]
struct Other(Arc<Mutex<Option<Work>>>);

impl Other {
    /// Runs `work` when the capture, which is about to end, makes the call `at`. Without `at`, records the
    /// calls and leaves the work for [`Other::finish`].
    fn halt(
        sim: &Sim,
        at: Option<Halt>,
        place: Place,
        work: impl FnOnce() + Send + 'static,
    ) -> Other {
        let other = Other::default();
        let Some((function, nth)) = at else {
            other.leave(work);
            sim.clear_calls();
            sim.record_calls(true);
            return other;
        };
        let rest = other.clone();
        let run = move || {
            if place == Place::HaltedThread {
                return work();
            }
            let (begun, begins) = mpsc::channel();
            let thread = thread::spawn(move || {
                begun.send(()).expect("the other thread waits");
                work();
            });
            begins.recv().expect("it begins");
            let join = || thread.join().expect("no panic");
            if function == QUESTION { rest.leave(join) } else { join() }
        };
        sim.run_before(function, nth, run).expect("there is such a call");
        other
    }

    fn leave(&self, work: impl FnOnce() + Send + 'static) {
        *self.0.lock().expect("no panic") = Some(Box::new(work));
    }

    /// Does the remaining work after the capture.
    fn finish(&self, sim: &Sim) {
        sim.record_calls(false);
        let left = self.0.lock().expect("no panic").take();
        left.into_iter().for_each(|work| work());
    }
}

/// How the partition's stream takes part in the capture.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// A launch through this crate, on a stream whose raw handle was never given out.
    Launch,
    /// A launch through this crate, on a stream whose raw handle was given out.
    LaunchExposed,
    /// A memset through the raw handle. Drivers before CUDA 13.2 do not report its context.
    Memset,
}

const PARTS: [Part; 3] = [Part::Launch, Part::LaunchExposed, Part::Memset];

/// A stream to capture, and a partition whose stream takes part in the capture.
struct Capture {
    origin: Stream,
    kernel: Kernel,
    memory: DeviceBuffer<u32>,
    decode: Shared<Partition>,
}

type Shared<T> = Arc<Mutex<Option<T>>>;

fn shared<T>(value: T) -> Shared<T> {
    Arc::new(Mutex::new(Some(value)))
}

fn take<T>(shared: &Shared<T>) -> Option<T> {
    shared.lock().expect("no panic").take()
}

impl Capture {
    fn new(machine: &Machine) -> Result<Capture, Box<dyn std::error::Error>> {
        let origin = machine.device.primary_context()?.create_stream(StreamOptions::default())?;
        expose(&origin);
        let (kernel, memory) = (machine.kernel(LONG)?, DeviceBuffer::zeroed(&machine.device, 8)?);
        Ok(Capture { origin, kernel, memory, decode: shared(partition(machine, "decode", 16)?) })
    }

    /// Captures work of the partition, then calls `last`.
    fn graph(
        &self,
        part: Part,
        last: impl FnOnce() -> green_ctx::Result<()>,
    ) -> green_ctx::Result<Graph> {
        self.origin.capture(CaptureMode::Relaxed, || {
            let decode = self.decode.lock().expect("no panic");
            let stream = decode.as_ref().expect("it is there").stream();
            stream.wait_for(&self.origin)?;
            if part != Part::Launch {
                expose(stream);
            }
            if part == Part::Memset {
                raw::fill(stream, self.memory.as_raw(), 7, 8)?;
            } else {
                launch(stream, &self.kernel)?;
            }
            self.origin.wait_for(stream)?;
            drop(decode);
            last()
        })
    }

    /// Checks that the graph keeps the partition alive and can be launched.
    fn check(&self, machine: &Machine, graph: Graph, nodes: usize) -> Outcome {
        assert_eq!(labels(&graph), ["decode", "primary"]);
        machine.device.release_idle();
        assert_eq!(machine.free()?, 116, "the graph does not hold the SMs");
        assert_eq!(graph.audit()?.nodes.len(), nodes);
        let exec = graph.instantiate()?;
        // SAFETY: the graph keeps its kernels, `self` the memory, and no other work uses the memory.
        unsafe { self.origin.launch_graph(&exec) }?;
        self.origin.synchronize()?;
        Ok(())
    }
}

/// Creates a partition with this name.
fn partition(
    machine: &Machine,
    name: &str,
    sms: u32,
) -> Result<Partition, Box<dyn std::error::Error>> {
    let parts = machine.device.partition(SplitRequest::new().group(name, sms))?;
    parts.into_iter().next().ok_or("one partition".into())
}

/// Gives out a stream's raw handle. The end of a capture asks the driver about such streams.
fn expose(stream: &Stream) {
    let _raw = stream.as_raw();
}

/// Returns the labels of the contexts that a graph holds, sorted.
fn labels(graph: &Graph) -> Vec<String> {
    let mut labels: Vec<_> = graph.contexts().iter().map(|one| one.label().to_owned()).collect();
    labels.sort();
    labels
}

#[test]
fn a_graph_keeps_a_partition_that_another_thread_drops() -> Outcome {
    for part in PARTS {
        at_each_call(|machine, at| {
            let capture = Capture::new(machine)?;
            let decode = Arc::clone(&capture.decode);
            let mut other = Other::default();
            let graph = capture.graph(part, || {
                let drop_it = move || drop(take(&decode));
                other = Other::halt(&machine.sim, at, Place::OtherThread, drop_it);
                Ok(())
            })?;
            other.finish(&machine.sim);
            assert!(take(&capture.decode).is_none(), "the other thread dropped it");
            capture.check(machine, graph, 1)
        })?;
    }
    Ok(())
}

#[test]
fn another_thread_cannot_close_a_partition_that_takes_part() -> Outcome {
    for part in PARTS {
        at_each_call(|machine, at| {
            let capture = Capture::new(machine)?;
            let decode = Arc::clone(&capture.decode);
            let mut other = Other::default();
            let graph = capture.graph(part, || {
                let close = move || {
                    let refused = take(&decode).expect("it is there").close().expect_err("a graph");
                    let expected =
                        [CloseReason::Capturing, CloseReason::Shared { streams: Some(0) }];
                    let reason = refused.reason.to_string();
                    assert!(expected.iter().any(|one| one.to_string() == reason), "{reason}");
                };
                other = Other::halt(&machine.sim, at, Place::OtherThread, close);
                Ok(())
            })?;
            other.finish(&machine.sim);
            assert!(take(&capture.decode).is_none(), "the other thread has tried");
            capture.check(machine, graph, 1)
        })?;
    }
    Ok(())
}

/// Ends a partition that takes no part in the capture.
type End = fn(Partition);

#[test]
fn a_partition_that_takes_no_part_can_be_closed_at_any_moment() -> Outcome {
    let ends: [End; 2] = [
        |partition| drop(partition.close().expect("nothing else has a handle of it")),
        |partition| drop(partition),
    ];
    for (end, place) in ends
        .iter()
        .flat_map(|end| [Place::OtherThread, Place::HaltedThread].map(|place| (*end, place)))
    {
        at_each_call(|machine, at| {
            // The end of the capture asks about its origin, the other partition's stream, and two more.
            if place == Place::HaltedThread && at == Some((QUESTION, 2)) {
                // The second question is about the stream that `end` destroys; a thread does not destroy a
                // stream in the middle of its own question.
                return Ok(());
            }
            let capture = Capture::new(machine)?;
            let unrelated = partition(machine, "unrelated", 16)?;
            expose(unrelated.stream());
            let last = machine.device.primary_context()?.create_stream(StreamOptions::default())?;
            expose(&last);
            let (device, mut other) = (machine.device.clone(), Other::default());
            let graph = capture.graph(Part::LaunchExposed, || {
                let work = move || {
                    end(unrelated);
                    let free = device.resources().sm().expect("the driver answers").free_sm_count();
                    assert_eq!(free, 116, "the SMs are not free immediately");
                };
                other = Other::halt(&machine.sim, at, place, work);
                Ok(())
            })?;
            other.finish(&machine.sim);
            drop(take(&capture.decode));
            capture.check(machine, graph, 1)
        })?;
    }
    Ok(())
}

#[test]
fn a_graph_keeps_the_kernels_that_another_thread_launches_at_the_end() -> Outcome {
    at_each_call(|machine, at| {
        let capture = Capture::new(machine)?;
        let (decode, origin) = (Arc::clone(&capture.decode), capture.origin.clone());
        let (device, mut other) = (machine.device.clone(), Other::default());
        let graph = capture.graph(Part::Launch, || {
            let work = move || {
                let decode = take(&decode).expect("it is there");
                let launch = || {
                    let kernel = kernels::plain(&device, "work")?;
                    launch(decode.stream(), &kernel)?;
                    origin.wait_for(decode.stream())
                };
                launch().expect("the driver launches");
            };
            // On the halted thread, so that the launch comes before the end of the capture.
            other = Other::halt(&machine.sim, at, Place::HaltedThread, work);
            Ok(())
        })?;
        other.finish(&machine.sim);
        let nodes = graph.node_count()?;
        let was_captured =
            at.is_some_and(|(function, _)| [QUESTION, "cuStreamEndCapture"].contains(&function));
        assert_eq!(nodes, if was_captured { 2 } else { 1 });
        assert_eq!(machine.sim.live().libraries, nodes as u64, "of the graph's kernels only");
        capture.origin.synchronize()?;
        capture.check(machine, graph, nodes)
    })
}

#[test]
fn each_of_several_open_captures_keeps_its_own() -> Outcome {
    at_each_call(|machine, at| {
        let (outer, inner) = (Capture::new(machine)?, Capture::new(machine)?);
        let lost = [Arc::clone(&outer.decode), Arc::clone(&inner.decode)];
        let (mut other, mut within) = (Other::default(), None);
        let graph = outer.graph(Part::LaunchExposed, || {
            within = Some(inner.graph(Part::Launch, || {
                let drop_them = move || lost.iter().for_each(|one| drop(take(one)));
                other = Other::halt(&machine.sim, at, Place::OtherThread, drop_them);
                Ok(())
            })?);
            // The end of the outer capture is not halted.
            machine.sim.record_calls(false);
            Ok(())
        });
        other.finish(&machine.sim);
        let (graph, within) = (graph?, within.ok_or("it was captured")?);
        for one in [&graph, &within] {
            assert_eq!(labels(one), ["decode", "primary"]);
        }
        assert_ne!(graph.contexts(), within.contexts());
        assert_eq!(machine.free()?, 100);
        drop(within);
        outer.check(machine, graph, 1)
    })
}

/// A partition is closed during another stream's capture, and the driver call that returns whether a stream
/// takes part fails.
#[test]
fn a_close_during_a_capture_needs_no_answer_about_captures() -> Outcome {
    each_driver(|machine| {
        let capture = Capture::new(machine)?;
        let unrelated = partition(machine, "unrelated", 16)?;
        expose(unrelated.stream());
        let graph = capture.origin.capture(CaptureMode::Relaxed, || {
            machine.sim.fail(Fault::on(QUESTION)).expect("there is such a call");
            unrelated.close().expect("it takes no part");
            machine.sim.clear_faults();
            Ok::<(), green_ctx::Error>(())
        })?;
        assert_eq!(labels(&graph), ["primary"]);
        Ok(())
    })
}

/// The other thread is halted after the last handle is dropped, before it has recorded anything.
#[test]
fn the_end_of_a_capture_waits_for_a_stream_that_is_ending() -> Outcome {
    each_composing_driver(|machine| {
        let (capture, sim) = (Capture::new(machine)?, &machine.sim);
        let mut ending = None;
        let graph = capture.graph(Part::Memset, || {
            let ((halted, halts), (goes_on, go_on)) = (mpsc::channel(), mpsc::channel());
            let halt = move || {
                halted.send(()).expect("the test waits");
                go_on.recv().expect("the capture lets it continue");
            };
            sim.run_before(QUESTION, 1, halt).expect("there is such a call");
            let partition = take(&capture.decode);
            ending = Some(thread::spawn(move || drop(partition)));
            halts.recv().expect("the stream ends");
            // Released when the capture asks about this stream (the second question), and at the latest when
            // the capture ends.
            for (function, nth) in [(QUESTION, 2), ("cuStreamEndCapture", 1)] {
                let goes_on = goes_on.clone();
                let go_on = move || {
                    // The receiver may be gone: it receives only once.
                    let _sent = goes_on.send(());
                };
                sim.run_before(function, nth, go_on).expect("there is such a call");
            }
            Ok(())
        })?;
        ending.ok_or("it was spawned")?.join().map_err(|_| "no panic")?;
        capture.check(machine, graph, 1)
    })
}
