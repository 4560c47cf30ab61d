//! How long fills and copies take, which depends on the SMs that they run on.

use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

const BYTES: usize = 16 << 20;

/// Times in microseconds of what is submitted to streams of all SMs, of 32 and of 8.
fn times(machine: &Machine, submit: impl Fn(CUstream) -> CUresult) -> [f32; 3] {
    let streams = [None, Some(32), Some(8)].map(|sms| match sms {
        Some(sms) => machine.green_stream(machine.green_of(sms)),
        None => machine.stream(NON_BLOCKING),
    });
    streams.map(|stream| {
        let [start, end] = [(); 2].map(|()| machine.event());
        ok(call!(machine, cuEventRecord(start, stream)));
        ok(submit(stream));
        ok(call!(machine, cuEventRecord(end, stream)));
        ok(machine.sync(stream));
        let (status, time) = ask!(machine, 0.0, cuEventElapsedTime(; start, end));
        ok(status);
        time * 1000.0
    })
}

/// As recorded: fills and copies on the device are done by SMs, and as fast as these.
#[test]
fn few_sms_fill_and_copy_slowly() {
    let (machine, _) = Machine::with_primary();
    let [to, from] = [(); 2].map(|()| ask!(machine, 0, cuMemAlloc(; BYTES)).1);
    let fill = times(&machine, |stream| call!(machine, cuMemsetD8Async(to, 7, BYTES, stream)));
    let copy = times(&machine, |stream| call!(machine, cuMemcpyDtoDAsync(to, from, BYTES, stream)));
    for ([all, some, few], name) in [(fill, "fill"), (copy, "copy")] {
        assert!(some > 1.5 * all && some < 5.0 * all, "{name}: {some} µs on 32 SMs, {all} on all");
        assert!(few > 5.0 * all, "{name}: {few} µs on 8 SMs, {all} on all");
    }
    assert!(copy[0] > fill[0], "a copy reads what it writes");
}

/// As recorded: the memory of an H100 is slower, so that fewer SMs are as fast as it is.
#[test]
fn few_sms_of_an_h100_copy_less_slowly() {
    let machine = Machine::with_devices("h100", 1);
    ok(machine.push(machine.retain()));
    let [to, from] = [(); 2].map(|()| ask!(machine, 0, cuMemAlloc(; BYTES)).1);
    let fill = times(&machine, |stream| call!(machine, cuMemsetD8Async(to, 7, BYTES, stream)));
    let copy = times(&machine, |stream| call!(machine, cuMemcpyDtoDAsync(to, from, BYTES, stream)));
    let slower = |[all, some, few]: [f32; 3]| (some / all, few / all);
    let (some, few) = slower(copy);
    assert!(some > 1.0 && some <= 1.5 && few > 1.5 && few <= 5.0, "copies: {some}, {few}");
    let (some, few) = slower(fill);
    assert!(some > 1.5 && some <= 5.0 && few > 5.0, "fills: {some}, {few}");
}

/// As recorded: what goes between host and device needs no SMs.
#[test]
fn the_host_is_as_far_from_few_sms() {
    let (machine, _) = Machine::with_primary();
    let (_, memory) = ask!(machine, 0, cuMemAlloc(; BYTES));
    let (_, host) = ask!(machine, null_mut(), cuMemAllocHost(; BYTES));
    let up =
        times(&machine, |stream| call!(machine, cuMemcpyHtoDAsync(memory, host, BYTES, stream)));
    let down =
        times(&machine, |stream| call!(machine, cuMemcpyDtoHAsync(host, memory, BYTES, stream)));
    for [all, some, few] in [up, down] {
        assert!(all > 100.0, "{all} µs are too few to compare");
        assert_eq!([some, few], [all; 2]);
    }
}
