//! `cuDevSmResourceSplitByCount`: how the SMs are divided.

use std::ptr::{null, null_mut};

use green_ctx_sys::CUresult;

use super::{Case, Needs};
use crate::answer::{Answer, Outcome};
use crate::calls::blank;
use crate::gpu::{Gpu, brief, in_full, tampered};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for flags in 0..=4 {
        cases.extend((0..=133).map(|min| by_min(flags, min)));
    }
    cases.push(by_min(0, u32::MAX));
    for groups in [1, 2, 3, 4, 8, 16, 17, 40] {
        cases.extend([8, 16, 20, 32, 64, 100, 132].map(|min| by_groups(groups, min)));
    }
    cases.extend(
        [
            Case::new("split/no-place-for-the-remainder", |gpu, answer| {
                let all = gpu.device_resource()?;
                let mut groups = [blank(); 2];
                let mut count = 2;
                let result = groups.as_mut_ptr();
                let status = gpu.cuDevSmResourceSplitByCount(
                    result,
                    &raw mut count,
                    &raw const all,
                    null_mut(),
                    0,
                    16,
                )?;
                answer.add("status", status);
                answer.add("groups", count);
                answer.add("first", brief(&groups[0]));
                Ok(())
            }),
            Case::new("split/query-leaves-the-remainder", |gpu, answer| {
                let all = gpu.device_resource()?;
                let mut remainder = blank();
                let mut count = 77;
                let status = gpu.cuDevSmResourceSplitByCount(
                    null_mut(),
                    &raw mut count,
                    &raw const all,
                    &raw mut remainder,
                    0,
                    16,
                )?;
                answer.add("status", status);
                answer.add("groups", count);
                answer.add("remainder", brief(&remainder));
                Ok(())
            }),
            Case::new("split/room-for-no-group", |gpu, answer| {
                let split = gpu.split(&gpu.device_resource()?, 0, 0, 16)?;
                answer.add("status", split.status);
                answer.add("groups", split.count);
                answer.add("remainder", split.rest());
                Ok(())
            }),
            Case::new("split/input-of-zeros", |gpu, answer| {
                answer.add("status", gpu.split(&blank(), 0, 2, 16)?.status);
                Ok(())
            }),
            Case::new("split/unknown-flags", |gpu, answer| {
                for flags in [4, 5, 8, 6, 7, 0x8000_0000] {
                    let split = gpu.split(&gpu.device_resource()?, flags, 2, 16)?;
                    answer.add(format!("{flags:#x}"), split.status);
                }
                Ok(())
            }),
            Case::new("split/of-a-group", |gpu, answer| {
                let split = gpu.split(&gpu.device_resource()?, 0, 1, 64)?.must()?;
                again(gpu, answer, &split.groups[0])
            }),
            Case::new("split/of-a-remainder", |gpu, answer| {
                let split = gpu.split(&gpu.device_resource()?, 0, 1, 64)?.must()?;
                again(gpu, answer, &split.remainder)
            }),
            Case::new("split/of-a-group-of-everything", |gpu, answer| {
                let split = gpu.split(&gpu.device_resource()?, 0, 1, 132)?.must()?;
                again(gpu, answer, &split.groups[0])
            }),
            Case::new("split/of-a-green-context", |gpu, answer| {
                let green = gpu.green_with(64)?;
                let own = gpu.cuGreenCtxGetDevResource(green, crate::gpu::SM)?.must()?;
                again(gpu, answer, &own)
            }),
            Case::new("split/of-the-context-behind-a-green-one", |gpu, answer| {
                let context = gpu.context_of(gpu.green_with(64)?)?;
                let own = gpu.cuCtxGetDevResource(context, crate::gpu::SM)?.must()?;
                again(gpu, answer, &own)
            }),
            Case::new("split/of-the-primary-context", |gpu, answer| {
                let own = gpu.cuCtxGetDevResource(gpu.primary()?, crate::gpu::SM)?.must()?;
                again(gpu, answer, &own)
            }),
            Case::new("split/of-a-fine-green-context", |gpu, answer| {
                let fine = gpu.split_device(1, 2)?;
                let green = gpu.green(&fine.groups[..6])?;
                let own = gpu.cuGreenCtxGetDevResource(green, crate::gpu::SM)?.must()?;
                answer.add("own", in_full(&own));
                again(gpu, answer, &own)?;
                let split = gpu.split(&own, 1, 8, 2)?;
                answer.add("fine", split.status);
                answer.add("fine_groups", split.count);
                Ok(())
            }),
            Case::new("split/forged-count", |gpu, answer| {
                for sms in [0, 64, 131, 133, 136] {
                    let forged = tampered(&gpu.device_resource()?, sms);
                    let split = gpu.split(&forged, 0, 2, 16)?;
                    answer.add(format!("{sms} of 132"), split.status);
                }
                Ok(())
            }),
        ]
        .map(|case| case.needs(Needs::Primary)),
    );
    cases
}

/// Queries the number of groups of at least `min` SMs, then creates them.
fn by_min(flags: u32, min: u32) -> Case {
    let body = move |gpu: &Gpu, answer: &mut Answer<'_>| -> Outcome {
        let all = gpu.device_resource()?;
        let mut count = 8;
        let query = gpu.cuDevSmResourceSplitByCount(
            null_mut(),
            &raw mut count,
            &raw const all,
            null_mut(),
            flags,
            min,
        )?;
        answer.add("query", query);
        answer.add("query_groups", count);
        let split = gpu.split(&all, flags, count, min)?;
        answer.add("split", split.status);
        answer.add("groups", split.count);
        if split.status == CUresult::CUDA_SUCCESS {
            answer.add("each", split.each());
        }
        answer.add("remainder", split.rest());
        Ok(())
    };
    Case::new(format!("split/flags={flags}-min={min}"), body).needs(Needs::Init)
}

/// Requests `groups` groups of at least `min` SMs. The driver may create fewer.
fn by_groups(groups: u32, min: u32) -> Case {
    let body = move |gpu: &Gpu, answer: &mut Answer<'_>| -> Outcome {
        let split = gpu.split(&gpu.device_resource()?, 0, groups, min)?;
        answer.add("split", split.status);
        answer.add("groups", split.count);
        answer.add("each", split.each());
        answer.add("remainder", split.rest());
        Ok(())
    };
    Case::new(format!("split/groups={groups}-min={min}"), body).needs(Needs::Init)
}

/// Splits a resource that comes from a split or a context.
fn again(gpu: &Gpu, answer: &mut Answer<'_>, input: &green_ctx_sys::CUdevResource) -> Outcome {
    let mut count = 8;
    let query =
        gpu.cuDevSmResourceSplitByCount(null_mut(), &raw mut count, input, null_mut(), 0, 8)?;
    answer.add("query", query);
    answer.add("query_groups", count);
    let split = gpu.split(input, 0, 8, 8)?;
    answer.add("split", split.status);
    answer.add("groups", split.count);
    answer.add("each", split.each());
    answer.add("remainder", split.rest());
    Ok(())
}

/// Inputs that the function cannot read.
pub(super) fn misuse() -> Vec<Case> {
    vec![
        Case::new("misuse/split-null-input", |gpu, answer| {
            let mut count = 2;
            let mut groups = [blank(); 2];
            let result = groups.as_mut_ptr();
            answer.add(
                "status",
                gpu.cuDevSmResourceSplitByCount(result, &raw mut count, null(), null_mut(), 0, 16)?,
            );
            Ok(())
        }),
        Case::new("misuse/split-null-count", |gpu, answer| {
            let all = gpu.device_resource()?;
            let mut groups = [blank(); 2];
            let result = groups.as_mut_ptr();
            answer.add(
                "status",
                gpu.cuDevSmResourceSplitByCount(
                    result,
                    null_mut(),
                    &raw const all,
                    null_mut(),
                    0,
                    16,
                )?,
            );
            Ok(())
        }),
    ]
}
