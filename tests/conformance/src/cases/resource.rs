//! Resources: their properties, and which of them a descriptor accepts.

use std::ptr::null_mut;

use green_ctx_sys::CUdevResourceType;

use super::{Case, Needs};
use crate::answer::{Answer, Outcome};
use crate::calls::blank;
use crate::gpu::{DEFAULT_STREAM, Gpu, SM, brief, bytes, in_full, tampered};

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [0, 1, 2, 1000, 10000, u32::MAX].map(of_type).into();
    cases.extend([
        Case::new("resource/device-without-context", |gpu, answer| {
            let reply = gpu.cuDeviceGetDevResource(gpu.device, SM)?;
            answer.add("status", reply);
            answer.add("resource", in_full(&reply.out));
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("resource/device-99", |gpu, answer| {
            let reply = gpu.cuDeviceGetDevResource(99, SM)?;
            answer.add("status", reply);
            answer.add("type", reply.out.type_.0);
            Ok(())
        }),
        Case::new("resource/null-context-none-current", null_context).needs(Needs::Init),
        Case::new("resource/null-context-primary-current", null_context),
        Case::new("resource/null-green", |gpu, answer| {
            answer.add("status", gpu.cuGreenCtxGetDevResource(null_mut(), SM)?);
            Ok(())
        }),
        Case::new("resource/of-each-context", of_each_context),
        Case::new("resource/of-a-split", |gpu, answer| {
            let split = gpu.split(&gpu.device_resource()?, 0, 2, 32)?.must()?;
            answer.add("group", in_full(&split.groups[0]));
            answer.add("remainder", in_full(&split.remainder));
            let fine = gpu.split(&gpu.device_resource()?, 1, 2, 32)?.must()?;
            answer.add("fine_group", in_full(&fine.groups[0]));
            answer.add("fine_remainder", in_full(&fine.remainder));
            Ok(())
        }),
        Case::new("resource/two-equal-splits-are-equal-bytes", |gpu, answer| {
            let first = gpu.split_device(0, 8)?;
            let second = gpu.split_device(0, 8)?;
            let pairs = first.groups.iter().zip(&second.groups);
            answer.add("groups", pairs.clone().count());
            answer.add("equal", pairs.clone().filter(|(a, b)| bytes(a) == bytes(b)).count());
            answer.add("remainder_equal", bytes(&first.remainder) == bytes(&second.remainder));
            answer.add("neighbours_equal", bytes(&first.groups[0]) == bytes(&first.groups[1]));
            Ok(())
        }),
        Case::new("resource/queried-twice-is-equal-bytes", |gpu, answer| {
            let (first, second) = (gpu.device_resource()?, gpu.device_resource()?);
            answer.add("equal", bytes(&first) == bytes(&second));
            Ok(())
        }),
        Case::new("resource/describe-device", |gpu, answer| {
            let mut all = gpu.device_resource()?;
            let desc = gpu.cuDevResourceGenerateDesc(&raw mut all, 1)?;
            answer.add("describe", desc);
            answer.add("null", desc.out.is_null());
            let green = gpu.cuGreenCtxCreate(desc.must()?, gpu.device, DEFAULT_STREAM)?;
            answer.add("create", green);
            answer.add("resource", in_full(&gpu.cuGreenCtxGetDevResource(green.out, SM)?.must()?));
            Ok(())
        }),
        Case::new("resource/describe-nothing", |gpu, answer| {
            let mut group = gpu.device_resource()?;
            let desc = gpu.cuDevResourceGenerateDesc(&raw mut group, 0)?;
            answer.add("status", desc);
            answer.add("null", desc.out.is_null());
            Ok(())
        }),
        Case::new("resource/describe-twice", |gpu, answer| {
            let mut group = gpu.device_resource()?;
            let first = gpu.cuDevResourceGenerateDesc(&raw mut group, 1)?.must()?;
            let second = gpu.cuDevResourceGenerateDesc(&raw mut group, 1)?.must()?;
            answer.add("same", first == second);
            Ok(())
        }),
        Case::new("resource/describe-forged-count", |gpu, answer| {
            let split = gpu.split_device(0, 8)?;
            for sms in [0, 7, 9, 16, 132] {
                let mut forged = tampered(&split.groups[0], sms);
                let desc = gpu.cuDevResourceGenerateDesc(&raw mut forged, 1)?;
                answer.add(format!("{sms} of 8"), desc);
            }
            Ok(())
        }),
        Case::new("resource/describe-forged-type", |gpu, answer| {
            let split = gpu.split_device(0, 8)?;
            for kind in [0, 2, 1000, 10000] {
                let mut forged = split.groups[0];
                forged.type_ = CUdevResourceType(kind);
                let desc = gpu.cuDevResourceGenerateDesc(&raw mut forged, 1)?;
                answer.add(format!("type {kind}"), desc);
            }
            Ok(())
        }),
        Case::new("resource/describe-group-and-nothing", |gpu, answer| {
            let split = gpu.split_device(0, 8)?;
            let mut pair = [split.groups[0], blank()];
            answer.add("status", gpu.cuDevResourceGenerateDesc(pair.as_mut_ptr(), 2)?);
            Ok(())
        }),
        Case::new("resource/describe-device-and-group", |gpu, answer| {
            let split = gpu.split_device(0, 8)?;
            let mut pair = [gpu.device_resource()?, split.groups[0]];
            answer.add("status", gpu.cuDevResourceGenerateDesc(pair.as_mut_ptr(), 2)?);
            Ok(())
        }),
        Case::new("resource/describe-empty-remainder", |gpu, answer| {
            let mut split = gpu.split(&gpu.device_resource()?, 0, 1, 132)?.must()?;
            answer.add("remainder", split.rest());
            let remainder = &raw mut split.remainder;
            answer.add("status", gpu.cuDevResourceGenerateDesc(remainder, 1)?);
            Ok(())
        }),
    ]);
    cases
}

/// Queries a resource of the device by its type.
fn of_type(kind: u32) -> Case {
    Case::new(format!("resource/device-type={kind}"), move |gpu, answer| {
        let reply = gpu.cuDeviceGetDevResource(gpu.device, CUdevResourceType(kind))?;
        answer.add("status", reply);
        answer.add("resource", brief(&reply.out));
        Ok(())
    })
    .needs(Needs::Init)
}

fn null_context(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let reply = gpu.cuCtxGetDevResource(null_mut(), SM)?;
    answer.add("status", reply);
    answer.add("resource", brief(&reply.out));
    Ok(())
}

/// Reads the resource back from the primary context, a green context, and the context derived from it.
fn of_each_context(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let green = gpu.green_with(64)?;
    let context = gpu.context_of(green)?;
    let primary = gpu.cuCtxGetDevResource(gpu.primary()?, SM)?;
    answer.add("primary", primary);
    answer.add("primary_resource", in_full(&primary.out));
    let of_green = gpu.cuGreenCtxGetDevResource(green, SM)?;
    answer.add("green", of_green);
    answer.add("green_resource", in_full(&of_green.out));
    let derived = gpu.cuCtxGetDevResource(context, SM)?;
    answer.add("derived", derived);
    answer.add("derived_resource", in_full(&derived.out));
    answer.add("green_and_derived_equal_bytes", bytes(&of_green.out) == bytes(&derived.out));
    Ok(())
}
