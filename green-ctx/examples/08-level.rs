//! Levels: closing a partition and dividing its SMs into smaller partitions.
//!
//! ```text
//! cargo run -p green-ctx --example 08-level                            # simulated H200
//! GREEN_CTX_DRIVER=cuda cargo run -p green-ctx --example 08-level      # GPU
//! ```

mod common;

use std::io::Write;
use std::process::ExitCode;

use common::Outcome;
use green_ctx::{Device, Partition, SplitRequest, verify};

fn main() -> ExitCode {
    common::start(run)
}

pub(crate) fn run(device: &Device, out: &mut dyn Write) -> Outcome {
    let sms = device.resources().sm()?;
    let mut parts = device.partition(SplitRequest::new().group("serving", 64))?.into_iter();
    let serving = parts.next().ok_or("there is one")?;

    // A partition can be closed only through its last handle. A stream holds a handle of the context.
    let stream = serving.stream().clone();
    let refused = serving.close().expect_err("there is a stream");
    writeln!(out, "refused: {refused}")?;
    drop(stream);
    let serving = refused.given;

    // Closing waits for the partition's work and returns its SMs as a group. No other partition can take them in
    // between.
    let group = serving.close()?;
    let sms_of_level = group.sm_count();
    writeln!(out, "{} has {sms_of_level} SMs and no context", group.name())?;

    // The group is a level. Its SMs can be divided like a device's, with floors and ceilings.
    let request = SplitRequest::new().group("decode", 16..).group("prefill", ..=40);
    let split = group.split(request).map_err(|refused| refused.reason)?;
    let mut inner: Vec<Partition> = Vec::new();
    for child in split.groups {
        inner.push(device.create_partition(child)?);
    }
    for part in &inner {
        let (name, floor, ceiling) = (part.name(), part.floor(), part.sm_count());
        writeln!(out, "{name}: {floor} SMs of its own, at most {ceiling}")?;
        assert!(ceiling <= sms_of_level, "within its level");
    }

    // Another partition of the device has none of the level's SMs.
    let mut all = inner.clone();
    all.extend(device.partition(SplitRequest::new().rest("training"))?);
    let report = verify::partitions(&all, verify::DEFAULT_STAY)?;
    assert!(report.ok());
    let (level, outside) = report.partitions.split_at(2);
    let level_sms = &level[0].alone_sms | &level[1].alone_sms;
    assert!(level_sms.is_disjoint(&outside[0].alone_sms));
    writeln!(out, "training ran on {} other SMs", outside[0].alone_sms.len())?;

    // The level holds its SMs until the last of its children is dropped.
    drop((all, inner));
    assert_eq!(sms.free_sm_count(), sms.sm_count());
    writeln!(out, "{} SMs are free again", sms.free_sm_count())?;
    Ok(())
}
