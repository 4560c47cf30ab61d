//! While a partition is entered and left, each call of the driver and of libtorch fails in turn. The previous state
//! is restored, the failure is reported, nothing leaks, and the same work succeeds afterwards.
#![allow(unsafe_code, reason = "sets PyTorch's streams")]

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use green_ctx::sim::Fault;
use green_ctx::{CUresult, Stream, context::Context, graph::CaptureMode};
use green_ctx_torch::scope::{self, Mode};
use green_ctx_torch::{TorchError, raw_stream};

use crate::common::{Machine, Outcome};
use crate::fake;

const STATUSES: [CUresult; 2] =
    [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS];

/// The call that fails.
#[derive(Clone, Copy, Debug)]
enum Failing {
    Driver(&'static str, u64, CUresult),
    Torch(usize),
}

/// The state in which a partition is entered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    /// A stream of PyTorch's pool is current.
    Pool,
    /// The default stream is current, and the device's primary context.
    Default,
    /// The default stream is current, and no context.
    Bare,
    /// The default stream is current, inside the other partition.
    Nested,
    /// A stream of PyTorch's pool is current. On leaving, another context has replaced the partition's.
    Replaced,
    /// A stream of PyTorch's pool is current. On leaving, another stream is current.
    Side,
}

struct Case {
    machine: Machine,
    start: Start,
    mode: Mode,
    pool: Stream,
    side: Stream,
    stream: Stream,
    other: Stream,
    reported: Arc<AtomicU64>,
}

impl Case {
    fn new(start: Start, mode: Mode) -> Result<Case, Box<dyn std::error::Error>> {
        let machine = Machine::new()?;
        let (pool, stream, other) =
            (machine.pool_stream()?, machine.stream(0)?, machine.stream(1)?);
        let side = machine.stream(0)?;
        let reported = Arc::new(AtomicU64::new(0));
        let (driver, torch) = (Arc::clone(&reported), Arc::clone(&reported));
        machine
            .device
            .driver()
            .on_cleanup_failure(move |_| {
                driver.fetch_add(1, Ordering::Relaxed);
            })
            .keep();
        machine.torch.on_cleanup_failure(move |_| {
            torch.fetch_add(1, Ordering::Relaxed);
        });
        let case = Case { machine, start, mode, pool, side, stream, other, reported };
        match start {
            Start::Pool | Start::Replaced | Start::Side => {
                fake::set_own(raw_stream(&case.pool), 0);
            }
            Start::Nested => {
                scope::enter_as(&case.machine.torch, &case.other, Mode::Context)?;
                // SAFETY: the default stream always exists.
                unsafe { case.machine.torch.set_current_stream(ptr::null_mut(), 0) }?;
            }
            Start::Default | Start::Bare => {}
        }
        Ok(case)
    }

    fn enter(&self) -> green_ctx_torch::Result<()> {
        scope::enter_as(&self.machine.torch, &self.stream, self.mode)
    }

    /// Does what a program does inside the partition.
    fn inside(&self) -> Outcome {
        match self.start {
            // Without the partition's context on the stack, there is nothing to replace.
            Start::Replaced if self.mode == Mode::Context => {
                self.machine.replace_current(&self.machine.primary)
            }
            Start::Side => {
                let side = raw_stream(&self.side);
                // SAFETY: the stream lives as long as the case.
                let set = unsafe { self.machine.torch.set_current_stream(side, 0) };
                Ok(set?)
            }
            _ => Ok(()),
        }
    }

    fn leave(&self) -> green_ctx_torch::Result<()> {
        scope::leave(self.stream.context())
    }

    fn state(&self) -> (fake::TorchStream, usize, usize) {
        (fake::current(0), self.machine.current().addr(), scope::depth())
    }

    fn end(self) -> Outcome {
        if self.start == Start::Nested {
            scope::leave(self.other.context())?;
        }
        fake::set_own(ptr::null_mut(), 0);
        scope::release_idle();
        Ok(())
    }
}

/// Returns the calls of the driver and of libtorch that `work` makes, each as a failure.
fn calls(
    case: &Case,
    work: impl FnOnce() -> Outcome,
) -> Result<Vec<Failing>, Box<dyn std::error::Error>> {
    case.machine.sim.clear_calls();
    case.machine.sim.record_calls(true);
    fake::take_calls();
    work()?;
    let torch = fake::take_calls().len();
    let log = case.machine.sim.call_log();
    case.machine.sim.record_calls(false);
    let driver = log.iter().enumerate().flat_map(|(index, call)| {
        let nth = log[..=index].iter().filter(|c| c.function == call.function).count() as u64;
        STATUSES.map(|status| Failing::Driver(call.function, nth, status))
    });
    Ok(driver.chain((1..=torch).map(Failing::Torch)).collect())
}

fn arm(case: &Case, failing: Failing) -> Outcome {
    case.reported.store(0, Ordering::Relaxed);
    match failing {
        Failing::Driver(function, nth, status) => {
            case.machine.sim.fail(Fault::on(function).nth(nth).with(status))?;
        }
        Failing::Torch(nth) => fake::fail(nth),
    }
    Ok(())
}

fn check_reported(case: &Case, failing: Failing, result: green_ctx_torch::Result<()>, what: &str) {
    case.machine.sim.clear_faults();
    fake::fail(0);
    match (result, failing) {
        (Ok(()), _) => {
            assert!(case.reported.load(Ordering::Relaxed) > 0, "{what}: nothing was reported")
        }
        (Err(TorchError::Driver(error)), Failing::Driver(function, _, status)) => {
            assert_eq!(error.status(), Some(status), "{what}");
            assert!(error.to_string().starts_with(function), "{what}: {error}");
        }
        (Err(TorchError::Call { code: 1, .. }), Failing::Torch(_)) => {}
        (Err(error), _) => panic!("{what}: {error}"),
    }
}

fn current(case: &Case) -> green_ctx::Result<Option<green_ctx::context::Current>> {
    let primary = &case.machine.primary;
    let current =
        matches!(case.start, Start::Default | Start::Pool | Start::Replaced | Start::Side);
    current.then(|| Context::make_current(primary)).transpose()
}

/// Makes each call of entering and leaving fail in turn.
fn exhaust(start: Start) -> Outcome {
    exhaust_as(start, Mode::Stream)?;
    exhaust_as(start, Mode::Context)
}

fn exhaust_as(start: Start, mode: Mode) -> Outcome {
    let plain = Case::new(start, mode)?;
    let (entering, leaving) = {
        let _current = current(&plain)?;
        let entering = calls(&plain, || Ok(plain.enter()?))?;
        plain.inside()?;
        (entering, calls(&plain, || Ok(plain.leave()?))?)
    };
    plain.end()?;
    assert!(entering.len() >= 10 && leaving.len() >= 6, "{entering:?} {leaving:?}");
    for (failing, on_the_way_in) in entering
        .into_iter()
        .map(|call| (call, true))
        .chain(leaving.into_iter().map(|call| (call, false)))
    {
        let what = format!("{start:?}, {mode:?}, {failing:?}, on the way in: {on_the_way_in}");
        let case = Case::new(start, mode)?;
        let live = case.machine.sim.live();
        {
            let _current = current(&case)?;
            let before = case.state();
            let guards = fake::guards();
            if on_the_way_in {
                arm(&case, failing)?;
                let result = case.enter();
                let entered = result.is_ok();
                check_reported(&case, failing, result, &what);
                if entered {
                    case.leave()?;
                }
            } else {
                case.enter()?;
                case.inside()?;
                arm(&case, failing)?;
                let result = case.leave();
                check_reported(&case, failing, result, &what);
            }
            let (stream, context, depth) = case.state();
            assert_eq!((context, depth), (before.1, before.2), "{what}");
            let stuck = matches!(failing, Failing::Torch(_)) && fake::guards() > guards;
            if stuck {
                // PyTorch itself failed to restore its stream.
                let inside = if start == Start::Side { &case.side } else { &case.stream };
                assert_eq!(stream.raw, raw_stream(inside).addr(), "{what}");
                fake::set_own(ptr::null_mut(), 0);
                continue;
            }
            assert_eq!((stream, fake::guards()), (before.0, guards), "{what}");
            case.machine.sim.take_launches();
            case.machine.sim.clear_races();
            again(&case).map_err(|error| format!("{what}: {error}"))?;
            assert_eq!(case.state(), before, "{what}");
        }
        let (sim, reported) = (case.machine.sim.clone(), Arc::clone(&case.reported));
        scope::release_idle();
        let left = sim.live();
        let leaked = left.events + left.primary_retains - live.events - live.primary_retains;
        assert!(leaked <= reported.load(Ordering::Relaxed), "{what}: {left:?} {live:?}");
        case.end()?;
    }
    Ok(())
}

/// Does the same work again, and checks the order.
fn again(case: &Case) -> Outcome {
    let machine = &case.machine;
    // Like PyTorch, make the device's context current if the thread has none.
    let launch = || -> Outcome {
        let _device =
            machine.current().is_null().then(|| machine.primary.make_current()).transpose()?;
        machine.produce()
    };
    launch()?;
    case.enter()?;
    launch()?;
    case.leave()?;
    launch()?;
    machine.ordered(3);
    Ok(())
}

/// If several calls fail, the first error is returned and the hook receives the others.
#[test]
fn two_failures_at_once() -> Outcome {
    let case = Case::new(Start::Default, Mode::Context)?;
    let _current = current(&case)?;
    case.enter()?;
    arm(&case, Failing::Driver("cuCtxPopCurrent", 1, STATUSES[0]))?;
    arm(&case, Failing::Driver("cuEventRecord", 1, STATUSES[0]))?;
    let Err(TorchError::Driver(error)) = case.leave() else { panic!("two calls fail") };
    assert!(error.to_string().starts_with("cuEventRecord"), "{error}");
    assert_eq!(case.reported.load(Ordering::Relaxed), 1);
    assert_eq!(case.machine.current(), case.machine.primary.as_raw());
    case.end()
}

/// If a partition cannot be entered during a capture, it takes no part in the capture, which stays valid.
#[test]
fn a_capture_survives() -> Outcome {
    let plain = Case::new(Start::Pool, Mode::Stream)?;
    let entering = calls(&plain, || Ok(plain.enter()?))?;
    plain.leave()?;
    plain.end()?;
    for failing in entering {
        let case = Case::new(Start::Pool, Mode::Stream)?;
        let graph = case.pool.capture(CaptureMode::Relaxed, || -> Outcome {
            case.machine.produce()?;
            arm(&case, failing)?;
            let result = case.enter();
            let entered = result.is_ok();
            check_reported(&case, failing, result, &format!("{failing:?}"));
            assert_eq!(case.stream.is_capturing()?, entered, "{failing:?}");
            if entered {
                case.leave()?;
            }
            case.machine.consume()
        });
        assert_eq!(graph?.node_count()?, 2, "{failing:?}");
        case.end()?;
    }
    Ok(())
}

#[test]
fn from_a_stream_of_the_pool() -> Outcome {
    exhaust(Start::Pool)
}

#[test]
fn from_the_default_stream() -> Outcome {
    exhaust(Start::Default)
}

#[test]
fn from_the_default_stream_without_a_context() -> Outcome {
    exhaust(Start::Bare)
}

#[test]
fn from_another_partitions_default_stream() -> Outcome {
    exhaust(Start::Nested)
}

#[test]
fn with_another_context_in_the_partitions_place() -> Outcome {
    exhaust(Start::Replaced)
}

#[test]
fn with_another_stream_current_inside() -> Outcome {
    exhaust(Start::Side)
}
