//! Plans: dividing the same SMs in one way by day and in another way by night.
//!
//! ```text
//! cargo run -p green-ctx --example 04-plans                            # simulated H200
//! GREEN_CTX_DRIVER=cuda cargo run -p green-ctx --example 04-plans      # GPU
//! ```

mod common;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::Outcome;
use green_ctx::{
    Device, DeviceBuffer, LaunchConfig, PlanRequest, PlanSet, SplitRequest, plan::SwitchOptions,
};

fn main() -> ExitCode {
    common::start(run)
}

pub(crate) fn run(device: &Device, out: &mut dyn Write) -> Outcome {
    let step = common::step(device)?;
    let value = DeviceBuffer::<u32>::zeroed(device, 1)?;

    // The plan set owns these SMs. The contexts and streams of all its plans exist before they are needed.
    let plan = |name, decode: u32| {
        PlanRequest::new(name, SplitRequest::new().group("decode", decode).rest("prefill"))
    };
    let set = PlanSet::new(device.rest("all")?, plan("day", 16))?;
    let night = set.prepare(plan("night", 64))?;
    let day = set.plan("day")?;

    // Get the active partition for each submission, since a stream belongs to its plan.
    let submit = |name: &str, factor: u32, term: u32| -> Outcome {
        let active = set.active();
        let part = active.partition(name).ok_or("every plan has it")?;
        let arguments = (value.as_argument(), factor, term);
        // SAFETY: these are the kernel's three parameters. The buffer outlives the work, and the switch orders the
        // two launches.
        unsafe { part.stream().launch(&step, LaunchConfig::new(1, 1), arguments) }?;
        Ok(())
    };
    submit("prefill", 1, 20)?;

    let before = Instant::now();
    set.switch(&night, SwitchOptions::default())?;
    eprintln!("the switch took the host {:?}", before.elapsed());

    // By night, decode has SMs that prefill had by day. On those SMs, decode's work waits on the device for
    // prefill's work: 0 × 1 + 20, then 20 × 2 + 2.
    submit("decode", 2, 2)?;
    let active = set.active();
    let decode = active.partition("decode").ok_or("every plan has it")?;
    writeln!(out, "at {} decode has {} SMs", active.name(), decode.sm_count())?;
    let result = value.read(decode.stream())?[0];
    writeln!(out, "prefill by day, then decode by night: {result}")?;
    assert_eq!(result, 42, "decode waited for the former plan's work on its SMs");

    // With `drain`, the host first waits for the active plan's work, for at most this time.
    set.switch(&day, SwitchOptions::default().drain(Duration::from_secs(10)))?;
    let again = set.active().partition("decode").ok_or("every plan has it")?.clone();
    assert_eq!(Some(again.context()), day.partition("decode").map(|part| part.context()));
    writeln!(out, "by {} decode has {} SMs, in the same context", day.name(), again.sm_count())?;
    Ok(())
}
