//! Streams of green contexts and of the primary context.

use std::ptr::null_mut;

use green_ctx_sys::{CUcontext, CUgreenCtx, CUstream};
use serde_json::json;

use super::{Case, Needs};
use crate::answer::{Answer, Fact, Failure, Outcome};
use crate::gpu::{Gpu, NON_BLOCKING, token};

/// The default stream: shared by all threads, and per thread.
const TOKENS: [(&str, usize); 3] = [("null", 0), ("legacy", 1), ("per_thread", 2)];

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [0, 1, 2, 3, 4, 5].map(green_flags).into();
    cases.extend([-100, -6, -5, -4, -3, -2, -1, 0, 1, 100].map(green_priority));
    cases.extend([-100, -5, -1, 0, 1, 100].map(primary_priority));
    cases.extend([0, 1, 2, 3].map(primary_flags));
    cases.extend([
        Case::new("stream/of-null-green", |gpu, answer| {
            answer.add("status", gpu.cuGreenCtxStreamCreate(null_mut(), NON_BLOCKING, 0)?);
            Ok(())
        }),
        Case::new("stream/created-with-none-current", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let stream = gpu.cuGreenCtxStreamCreate(green, NON_BLOCKING, 0)?;
            answer.add("create", stream);
            answer.add("none_current", gpu.cuCtxGetCurrent()?.out.is_null());
            answer.add("query", gpu.cuStreamQuery(stream.out)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream.out)?);
            answer.add("get_flags", gpu.cuStreamGetFlags(stream.out)?);
            answer.add("get_priority", gpu.cuStreamGetPriority(stream.out)?);
            answer.add("get_id", gpu.cuStreamGetId(stream.out)?);
            answer.add("destroy", gpu.cuStreamDestroy(stream.out)?);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("stream/contexts-of-a-green-stream", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let stream = gpu.stream_of(green)?;
            contexts(gpu, answer, "", stream, green)
        }),
        Case::new("stream/contexts-of-a-primary-stream", |gpu, answer| {
            let green = gpu.green_with(64)?;
            contexts(gpu, answer, "", gpu.stream()?, green)
        }),
        Case::new("stream/contexts-of-the-default-streams", |gpu, answer| {
            let green = gpu.green_with(64)?;
            for (name, number) in TOKENS {
                contexts(gpu, answer, &format!("{name}_"), token(number), green)?;
            }
            Ok(())
        }),
        Case::new("stream/contexts-of-the-default-streams-green-current", |gpu, answer| {
            let green = gpu.green_with(64)?;
            gpu.push(gpu.context_of(green)?)?;
            for (name, number) in TOKENS {
                contexts(gpu, answer, &format!("{name}_"), token(number), green)?;
            }
            Ok(())
        }),
        Case::new("stream/default-streams-none-current", |gpu, answer| {
            for (name, number) in TOKENS {
                answer.add(format!("{name}_green"), gpu.cuStreamGetGreenCtx(token(number))?);
                answer.add(format!("{name}_ctx"), gpu.cuStreamGetCtx(token(number))?);
                answer.add(format!("{name}_query"), gpu.cuStreamQuery(token(number))?);
            }
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("stream/default-streams-primary-current", default_streams),
        Case::new("stream/default-streams-green-current", |gpu, answer| {
            gpu.push(gpu.context_of(gpu.green_with(64)?)?)?;
            default_streams(gpu, answer)
        }),
        Case::new("stream/created-with-green-current", created_with_green_current),
        Case::new("stream/ids-differ", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let ids = [gpu.stream_of(green)?, gpu.stream_of(green)?, gpu.stream()?]
                .map(|stream| gpu.cuStreamGetId(stream));
            let [a, b, c] = ids;
            let (a, b, c) = (a?.must()?, b?.must()?, c?.must()?);
            answer.add("same_context", a != b);
            answer.add("other_context", b != c);
            Ok(())
        }),
        Case::new("stream/idle", |gpu, answer| {
            let green = gpu.green_with(64)?;
            for (name, stream) in [("green", gpu.stream_of(green)?), ("primary", gpu.stream()?)] {
                answer.add(format!("{name}_query"), gpu.cuStreamQuery(stream)?);
                answer.add(format!("{name}_synchronize"), gpu.cuStreamSynchronize(stream)?);
                let capture = gpu.cuStreamIsCapturing(stream)?;
                answer.add(format!("{name}_capture"), capture.out.to_string());
                answer.add(format!("{name}_destroy"), gpu.cuStreamDestroy(stream)?);
            }
            Ok(())
        }),
        Case::new("stream/wait-null-event", |gpu, answer| {
            let stream = gpu.stream()?;
            answer.add("status", gpu.cuStreamWaitEvent(stream, null_mut(), 0)?);
            Ok(())
        }),
    ]);
    cases
}

/// Streams of a green context must be non-blocking.
fn green_flags(flags: u32) -> Case {
    Case::new(format!("stream/green-flags={flags}"), move |gpu, answer| {
        let green = gpu.green_with(64)?;
        let stream = gpu.cuGreenCtxStreamCreate(green, flags, 0)?;
        answer.add("create", stream);
        if stream.is_ok() {
            answer.add("flags", gpu.cuStreamGetFlags(stream.out)?.must()?);
        }
        Ok(())
    })
}

fn green_priority(priority: i32) -> Case {
    Case::new(format!("stream/green-priority={priority}"), move |gpu, answer| {
        let green = gpu.green_with(64)?;
        let stream = gpu.cuGreenCtxStreamCreate(green, NON_BLOCKING, priority)?;
        answer.add("create", stream);
        if stream.is_ok() {
            answer.add("priority", gpu.cuStreamGetPriority(stream.out)?.must()?);
        }
        Ok(())
    })
}

fn primary_priority(priority: i32) -> Case {
    Case::new(format!("stream/primary-priority={priority}"), move |gpu, answer| {
        let stream = gpu.cuStreamCreateWithPriority(NON_BLOCKING, priority)?;
        answer.add("create", stream);
        if stream.is_ok() {
            answer.add("priority", gpu.cuStreamGetPriority(stream.out)?.must()?);
        }
        Ok(())
    })
}

fn primary_flags(flags: u32) -> Case {
    Case::new(format!("stream/primary-flags={flags}"), move |gpu, answer| {
        let stream = gpu.cuStreamCreate(flags)?;
        answer.add("create", stream);
        if stream.is_ok() {
            answer.add("flags", gpu.cuStreamGetFlags(stream.out)?.must()?);
        }
        Ok(())
    })
}

/// Compares the results of both functions that return a stream's context with `green` and the primary context.
fn contexts(
    gpu: &Gpu,
    answer: &mut Answer<'_>,
    prefix: &str,
    stream: CUstream,
    green: CUgreenCtx,
) -> Result<(), Failure> {
    let (context, primary) = (gpu.context_of(green)?, gpu.primary()?);
    let which_green = |found: CUgreenCtx| match found {
        found if found.is_null() => "null",
        found if found == green => "green",
        _ => "other",
    };
    let which_context = |found: CUcontext| match found {
        found if found == primary => "primary",
        found if found == context => "derived",
        found if found.is_null() => "null",
        _ => "other",
    };
    let get_green = gpu.cuStreamGetGreenCtx(stream)?;
    answer.add(
        format!("{prefix}green"),
        json!({ "status": get_green.value(), "green": which_green(get_green.out) }),
    );
    let get_ctx = gpu.cuStreamGetCtx(stream)?;
    answer.add(
        format!("{prefix}ctx"),
        json!({
            "status": get_ctx.value(),
            "context": which_context(get_ctx.out.0),
            "green": which_green(get_ctx.out.1),
        }),
    );
    Ok(())
}

/// Makes the calls that are possible on streams that always exist.
fn default_streams(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    for (name, number) in TOKENS {
        let stream = token(number);
        answer.add(format!("{name}_query"), gpu.cuStreamQuery(stream)?);
        answer.add(format!("{name}_synchronize"), gpu.cuStreamSynchronize(stream)?);
        let flags = gpu.cuStreamGetFlags(stream)?;
        answer.add(format!("{name}_get_flags"), flags);
        answer.add(format!("{name}_flags"), flags.out);
        let priority = gpu.cuStreamGetPriority(stream)?;
        answer.add(format!("{name}_get_priority"), priority);
        answer.add(format!("{name}_priority"), priority.out);
        answer.add(format!("{name}_get_id"), gpu.cuStreamGetId(stream)?);
    }
    Ok(())
}

/// Functions that do not know green contexts create streams of the current context.
fn created_with_green_current(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let green = gpu.green_with(64)?;
    gpu.push(gpu.context_of(green)?)?;
    for flags in [NON_BLOCKING, 0] {
        let stream = gpu.cuStreamCreate(flags)?;
        answer.add(format!("create_flags={flags}"), stream);
        let stream = stream.must()?;
        answer.add(format!("flags={flags}_read"), gpu.cuStreamGetFlags(stream)?.out);
        answer.add(
            format!("flags={flags}_is_green"),
            gpu.cuStreamGetGreenCtx(stream)?.must()? == green,
        );
    }
    let stream = gpu.cuStreamCreateWithPriority(NON_BLOCKING, -2)?;
    answer.add("create_with_priority", stream);
    answer.add("priority", gpu.cuStreamGetPriority(stream.out)?.out);
    answer.add("sms", gpu.sms_of(stream.out)?.len());
    Ok(())
}
