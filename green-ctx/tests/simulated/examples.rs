//! Runs the examples on the simulator. Each must succeed, print its expected lines, order every memory access,
//! and leave nothing alive.
#![allow(clippy::duplicate_mod, reason = "each example declares the module that all of them share")]

#[path = "../../examples/common/mod.rs"]
mod common;

use std::io::Write;

use common::Outcome;
use green_ctx::sim::Live;
use green_ctx::{Device, Driver};

/// Declares each example as a module, with a test that checks its output.
macro_rules! examples {
    ($($example:ident in $path:literal prints [$($line:literal),+ $(,)?];)+) => {
        $(
            #[path = $path]
            #[allow(dead_code, reason = "`main` is the program's")]
            mod $example;
        )+

        mod prints {
            use super::{Outcome, check};

            $(
                #[test]
                fn $example() -> Outcome {
                    check(super::$example::run, &[$($line),+])
                }
            )+
        }
    };
}

examples! {
    split in "../../examples/01-split.rs" prints [
        "NVIDIA H200: 132 SMs",
        "decode: asked for 16, has 16",
        "sampling: asked for 13, has 16",
        "prefill: asked for rest, has 100",
        "prefill ran on 100 SMs",
        "no SM ran blocks of two partitions",
        "held by decode (16 SMs), sampling (16 SMs), prefill (100 SMs)",
        "132 SMs are free again",
    ];
    shares in "../../examples/02-shares.rs" prints [
        "decode asked for 32..: 32 SMs of its own, at most 132; shares with prefill (100 SMs)",
        "prefill asked for ..=100: 0 SMs of its own, at most 100; shares with decode (100 SMs)",
        "prefill ran on 0 of decode's 32 own SMs",
        "refused: a group of 16 SMs does not fit",
        "sampling asked for ..=16: 0 SMs of its own, at most 16",
        "32..=64 leaves 68 SMs for later floors",
        "late asked for 16: 16 SMs of its own, at most 16",
    ];
    streams in "../../examples/03-streams.rs" prints [
        "prefill, then decode: 42",
        "decode, then sampling: 423",
        "decode is idle",
    ];
    plans in "../../examples/04-plans.rs" prints [
        "at night decode has 64 SMs",
        "prefill by day, then decode by night: 42",
        "by day decode has 16 SMs, in the same context",
    ];
    graphs in "../../examples/05-graphs.rs" prints [
        "captured: 0  kernel step  132 SMs of primary (device 0)",
        "moved:    0  kernel step  16 SMs of decode (device 0)",
        "four launches of 2 executables: 1111",
        "refused: the context is still in use",
        "closed, 16 SMs came back",
    ];
    fit in "../../examples/06-fit.rs" prints [
        "kernel work, blocks of 1024 threads, on 16 SMs",
        "resident blocks: 32, 2 per SM; requested: 264",
        "refused: a cooperative grid of 264 blocks of kernel work does not fit on 16 SMs",
        "a cooperative grid of 32 blocks ran",
        "a plain grid of 264 blocks ran",
    ];
    watch in "../../examples/07-watch.rs" prints [
        "sampling escapes decode: a stream of the primary context",
        "captured elsewhere escapes decode: a graph whose nodes 0 (step) are elsewhere",
        "step escapes decode: a stream of the primary context, 132 SMs of primary (device 0)",
        "refused: step escapes every partition",
    ];
    level in "../../examples/08-level.rs" prints [
        "refused: the context is still in use",
        "serving has 64 SMs and no context",
        "decode: 16 SMs of its own, at most 64",
        "prefill: 0 SMs of its own, at most 40",
        "training ran on 68 other SMs",
        "132 SMs are free again",
    ];
}

type Example = fn(&Device, &mut dyn Write) -> Outcome;

fn check(run: Example, lines: &[&str]) -> Outcome {
    let sim = common::simulator("h200@13.0")?;
    let device = Driver::simulated(&sim)?.device(0)?;
    let mut output = Vec::new();
    run(&device, &mut output)?;
    let output = String::from_utf8(output)?;
    let mut rest = output.as_str();
    for line in lines {
        let Some((_, after)) = rest.split_once(line) else {
            panic!("`{line}` is missing or out of order:\n{output}");
        };
        rest = after;
    }
    assert_eq!(sim.races(), [], "an access to memory is not ordered");
    device.release_idle();
    drop(device);
    assert_eq!(sim.live(), Live::default(), "an object is left");
    Ok(())
}
