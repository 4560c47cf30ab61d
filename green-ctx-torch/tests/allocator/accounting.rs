//! Accounts of partitions, of other streams and of foreign contexts.

use std::ptr::{null_mut, without_provenance_mut};

use green_ctx::sys::CUstream_st;
use green_ctx::{StreamOptions, call};
use green_ctx_torch::allocator::c;

use crate::machine::{Machine, Outcome, alloc, free, last_error, limit_partition, snapshot};
use crate::raw::{self, Green};

#[test]
fn each_partition_has_an_account() -> Outcome {
    let machine = Machine::new()?;
    let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
    let primary = machine.device.primary_context()?.create_stream(StreamOptions::default())?;
    let blocks = [
        (alloc(1000, decode.as_raw()), decode.as_raw()),
        (alloc(500, decode.as_raw()), decode.as_raw()),
        (alloc(300, prefill.as_raw()), prefill.as_raw()),
        (alloc(70, primary.as_raw()), primary.as_raw()),
        (alloc(30, null_mut()), null_mut()),
    ];
    assert!(blocks.iter().all(|(block, _)| !block.is_null()));
    let usage = |name| machine.usage(name);
    let bytes = |name| usage(name).current_bytes;
    let outside = machine.allocator.outside().current_bytes;
    assert_eq!([bytes("decode"), bytes("prefill"), outside], [1500, 300, 100]);
    assert_eq!(c::green_ctx_torch_current_bytes(0), 1900);
    assert_eq!(machine.sim.live().allocated_bytes, 1900);
    free(blocks[0].0, blocks[0].1);
    assert_eq!((bytes("decode"), usage("decode").current_blocks), (500, 1));
    assert_eq!((usage("decode").peak_bytes, usage("decode").peak_blocks), (1500, 2));
    assert_eq!(
        (c::green_ctx_torch_current_bytes(0), c::green_ctx_torch_peak_bytes(0)),
        (900, 1900)
    );
    assert_eq!(c::green_ctx_torch_reset_peak(0), 0);
    assert_eq!((c::green_ctx_torch_peak_bytes(0), usage("decode").peak_bytes), (900, 500));

    let report = snapshot();
    assert_eq!(report["total"]["current_bytes"], 900);
    assert_eq!(report["total"]["allocations"], 5);
    assert_eq!(report["partitions"]["decode"]["current_bytes"], 500);
    assert_eq!(report["partitions"]["prefill"]["current_blocks"], 1);
    assert_eq!(report["outside"]["current_bytes"], 100);
    assert_eq!(report["foreign"]["current_bytes"], 0);
    let listed = report["blocks"].as_array().ok_or("a list")?;
    let block = listed.iter().find(|block| block["bytes"] == 300).ok_or("a block")?;
    assert_eq!(block["partition"], "prefill");
    assert_eq!(block["address"], blocks[2].0.addr() as u64);
    assert_eq!(block["stream"], prefill.as_raw().addr() as u64);
    blocks[1..].iter().for_each(|(block, stream)| free(*block, *stream));
    drop((decode, prefill, primary));
    machine.end()
}

#[test]
fn streams_of_others_lead_to_their_partition() -> Outcome {
    let machine = Machine::new()?;
    let decode = machine.partition("decode", 16)?;
    let primary = machine.device.primary_context()?;
    let elsewhere = Green::create(&machine.device)?;
    let streams = [raw::stream(&decode)?, raw::stream(&primary)?, elsewhere.stream()?];
    let blocks = streams.map(|stream| alloc(64, stream));
    let allocator = &machine.allocator;
    for usage in [machine.usage("decode"), allocator.outside(), allocator.foreign()] {
        assert_eq!(usage.current_bytes, 64);
    }
    let listed = allocator.snapshot().blocks;
    let mut owners: Vec<_> =
        listed.iter().map(|block| (block.partition.as_deref(), block.foreign)).collect();
    owners.sort_unstable();
    assert_eq!(owners, [(None, false), (None, true), (Some("decode"), false)]);
    // A token means a stream of the current context.
    let (in_decode, in_primary) = {
        let _current = decode.make_current()?;
        let block = alloc(100, null_mut());
        assert_eq!(machine.usage("decode").current_bytes, 164);
        (block, alloc(100, without_provenance_mut(1)))
    };
    assert_eq!(machine.usage("decode").current_bytes, 264);
    // Freed while another context or none is current, they still go back in the order of their own stream.
    free(in_decode, null_mut());
    {
        let _current = primary.make_current()?;
        free(in_primary, without_provenance_mut(1));
    }
    assert_eq!(machine.sim.races(), []);
    blocks.into_iter().zip(streams).for_each(|(block, stream)| free(block, stream));
    for stream in streams {
        raw::destroy_stream(&machine.device, stream)?;
    }
    drop((decode, primary, elsewhere));
    machine.end()
}

#[test]
fn nothing_and_nobody_s() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    assert!(alloc(0, stream.as_raw()).is_null());
    free(null_mut(), stream.as_raw());
    assert_eq!(machine.allocator.usage(), Default::default());
    let calls_of = |calls: &[&str]| calls.iter().any(|call| machine.sim.calls().contains_key(call));
    assert!(!calls_of(&["cuMemAllocFromPoolAsync", "cuMemFreeAsync"]));
    drop(stream);
    machine.end()
}

#[test]
fn a_block_keeps_its_partition() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    let raw = stream.as_raw();
    let block = alloc(64, raw);
    drop(stream);
    assert_eq!(machine.device.resources().sm()?.free_sm_count(), 116, "the partition is alive");
    free(block, raw);
    assert_eq!(machine.device.resources().sm()?.free_sm_count(), 132);
    machine.end()
}

#[test]
fn a_default_stream_that_cannot_be_named_is_waited_for() -> Outcome {
    let machine = Machine::new()?;
    let elsewhere = Green::create(&machine.device)?;
    let api = machine.device.driver().api();
    let waiting = || machine.allocator.snapshot().waiting.len();
    let mut blocks = [null_mut(); 3];
    raw::push(&machine.device, elsewhere.context)?;
    for block in &mut blocks {
        *block = alloc(64, null_mut());
        // SAFETY: the block has 64 bytes.
        unsafe { call!(api, cuMemsetD8Async(block.addr() as u64, 1, 64, null_mut())) }?;
    }
    assert_eq!(machine.allocator.foreign().current_bytes, 192);
    free(blocks[0], null_mut());
    assert_eq!(waiting(), 0);
    raw::pop(&machine.device)?;
    free(blocks[1], null_mut());
    assert_eq!(waiting(), 1, "its stream cannot be named here");
    raw::push(&machine.device, elsewhere.context)?;
    free(alloc(8, null_mut()), null_mut());
    raw::pop(&machine.device)?;
    assert_eq!(waiting(), 0, "it could be named for a moment");
    free(blocks[2], null_mut());
    machine.allocator.empty_cache()?;
    assert_eq!((waiting(), machine.allocator.current_bytes()), (0, 0));
    assert_eq!(machine.sim.races(), []);
    drop(elsewhere);
    machine.end()
}

#[test]
fn a_per_thread_stream_is_its_thread_s() -> Outcome {
    let machine = Machine::new()?;
    let per_thread = without_provenance_mut::<CUstream_st>(2).addr();
    let token = || without_provenance_mut(per_thread);
    let block = std::thread::scope(|scope| {
        scope.spawn(|| alloc(64, token()).addr()).join().map_err(|_| "a panic")
    })?;
    free(without_provenance_mut(block), token());
    assert_eq!(machine.allocator.snapshot().waiting.len(), 1);
    machine.allocator.empty_cache()?;
    assert_eq!(machine.allocator.current_bytes(), 0);
    machine.end()
}

#[test]
fn a_partition_of_any_name_has_an_account_of_its_own() -> Outcome {
    let machine = Machine::new()?;
    let allocator = &machine.allocator;
    let (primary, borrowed) = (machine.stream("primary", 16)?, machine.stream("borrowed", 16)?);
    assert_eq!(c::green_ctx_torch_set_outside_limit(0, 100), 0);
    assert_eq!(c::green_ctx_torch_set_foreign_limit(0, 100), 0);
    assert_eq!(limit_partition("primary", 1000), 0);
    let elsewhere = Green::create(&machine.device)?;
    let foreign = elsewhere.stream()?;
    let streams = [primary.as_raw(), borrowed.as_raw(), foreign, null_mut()];
    assert!(alloc(1001, streams[0]).is_null());
    assert!(last_error().contains("bytes of partition primary"), "{}", last_error());
    assert!(alloc(101, streams[2]).is_null());
    assert!(last_error().contains("bytes of foreign green contexts"), "{}", last_error());
    assert!(alloc(101, streams[3]).is_null());
    assert!(last_error().contains("bytes of memory outside partitions"), "{}", last_error());
    let bytes = [1000, 2000, 30, 40];
    let blocks: Vec<_> = bytes.iter().zip(streams).map(|(bytes, at)| alloc(*bytes, at)).collect();
    let own = ["primary", "borrowed"].map(|name| machine.usage(name).current_bytes);
    assert_eq!(own, [1000, 2000]);
    let others = [allocator.foreign(), allocator.outside()];
    assert_eq!(others.map(|usage| usage.current_bytes), [30, 40]);
    assert_eq!(others.map(|usage| usage.limit_bytes), [Some(100); 2]);
    blocks.into_iter().zip(streams).for_each(|(block, stream)| free(block, stream));
    raw::destroy_stream(&machine.device, foreign)?;
    drop((primary, borrowed, elsewhere));
    machine.end()
}

#[test]
fn accounts_of_partitions_that_are_gone_do_not_pile_up() -> Outcome {
    let machine = Machine::new()?;
    let allocator = &machine.allocator;
    assert_eq!(limit_partition("limited", 1000), 0);
    for number in 0..200 {
        let stream = machine.stream(&format!("p{number}"), 16)?;
        let block = alloc(64, stream.as_raw());
        assert!(!block.is_null());
        free(block, stream.as_raw());
    }
    assert_eq!(allocator.snapshot().partitions.len(), 64 + 1);
    assert_eq!(allocator.partition("p0"), None);
    assert_eq!(machine.usage("p199").peak_bytes, 64);
    assert_eq!(machine.usage("limited").limit_bytes, Some(1000));
    assert_eq!(allocator.usage().allocations, 200);
    machine.end()
}
