//! The trace of kernel launches, for programs and for people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use green_ctx_sim::{Launch, Sim};

use crate::machine::sim;

/// The launches in each context, by the device, id, kind and number of SMs of the context.
type Tally = BTreeMap<(usize, u64, bool, u32), Launched>;

/// The number of launches per kernel, and the ids of the SMs on which their blocks ran.
#[derive(Default)]
struct Launched {
    kernels: BTreeMap<String, usize>,
    sms: BTreeSet<u32>,
}

/// The launches that were taken from the trace.
static TALLY: Mutex<Tally> = Mutex::new(Tally::new());

/// Removes the recorded launches, counts them, and returns them in the order of submission.
pub(crate) fn take() -> Vec<Launch> {
    let launches = sim().map(Sim::take_launches).unwrap_or_default();
    let mut tally = TALLY.lock().unwrap_or_else(PoisonError::into_inner);
    for launch in &launches {
        let context = (launch.device, launch.context, launch.is_green, launch.context_sms);
        let launched = tally.entry(context).or_default();
        *launched.kernels.entry(short(&launch.kernel).to_owned()).or_default() += 1;
        launched.sms.extend(&*launch.sms);
    }
    launches
}

/// Returns the launches as events of a trace. Times are in µs.
pub(crate) fn events(launches: &[Launch]) -> String {
    let event = |launch: &Launch| {
        let Launch { kernel, device, stream, context, is_green, context_sms, grid, block, .. } =
            launch;
        let (start, end) = (launch.start_ns as f64 / 1e3, launch.end_ns as f64 / 1e3);
        let args = format!(
            r#"{{"device": {device}, "stream": {stream}, "context": {context}, "green": {is_green}, "sms": {context_sms}, "grid": {grid:?}, "block": {block:?}}}"#
        );
        format!(
            r#"{{"name": {kernel:?}, "cat": "kernel", "ts": {start}, "dur": {}, "args": {args}}}"#,
            end - start
        )
    };
    let events: Vec<String> = launches.iter().map(event).collect();
    format!("[{}]", events.join(",\n"))
}

/// Returns a line for each context: the number of launches, the SMs, and the names of the kernels.
pub(crate) fn summary() -> String {
    take();
    let mut text = "libcuda.so.1 (simulated): the kernels that were launched\n".to_owned();
    for ((device, context, is_green, sms), Launched { kernels, .. }) in
        &*TALLY.lock().unwrap_or_else(PoisonError::into_inner)
    {
        let kind = kind(*is_green);
        let total: usize = kernels.values().sum();
        let names: Vec<String> = kernels.iter().map(|(name, n)| format!("{n} x {name}")).collect();
        let names = names.join(", ");
        text += &format!(
            "  {total} in {kind} context {context} of {sms} SMs, device {device}: {names}\n"
        );
    }
    text
}

/// Returns a line for each context: its kind, its number of SMs, and the ids of the SMs on which blocks ran.
pub(crate) fn placement() -> String {
    take();
    let tally = TALLY.lock().unwrap_or_else(PoisonError::into_inner);
    let line =
        |((device, context, is_green, count), launched): (&(usize, u64, bool, u32), &Launched)| {
            let ids: Vec<String> = launched.sms.iter().map(u32::to_string).collect();
            let (kind, ids) = (kind(*is_green), ids.join(" "));
            format!("ran: device {device}, {kind} context {context} of {count} SMs: {ids}\n")
        };
    tally.iter().map(line).collect()
}

fn kind(is_green: bool) -> &'static str {
    if is_green { "green" } else { "primary" }
}

/// Returns the last part of a mangled C++ name (`work` of `_ZN2at6native4workIfEEvv`), or a plain name as it is.
fn short(kernel: &str) -> &str {
    let mut found = kernel;
    let mut rest = kernel.strip_prefix("_Z").unwrap_or("");
    rest = rest.strip_prefix('N').unwrap_or(rest);
    while let Some(end) = rest.find(|c: char| !c.is_ascii_digit()).filter(|&end| end > 0) {
        let len = rest[..end].parse().unwrap_or(0);
        let Some(part) = rest[end..].get(..len) else { break };
        (found, rest) = (part, &rest[end + len..]);
    }
    found
}
