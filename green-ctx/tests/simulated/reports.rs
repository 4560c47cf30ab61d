//! Reports serialised to JSON and read back.

use std::fmt::Debug;
use std::time::Duration;

use green_ctx::{
    Error, LaunchConfig, SplitRequest, StreamOptions,
    device::Uuid,
    resource::{ContextCounts, DryRun, Granularity},
    verify,
};
use serde_json::{Value, json};

use crate::common::{Outcome, kernels, partition, simulated};

fn there_and_back<T>(value: &T) -> Result<Value, Box<dyn std::error::Error>>
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + Debug,
{
    let text = serde_json::to_string(value)?;
    assert_eq!(&serde_json::from_str::<T>(&text)?, value);
    Ok(serde_json::from_str(&text)?)
}

#[test]
fn reports_survive() -> Outcome {
    let (_sim, device) = simulated("h200@13.0")?;
    let request = SplitRequest::new().group("decode", 16).rest("prefill");
    let report = verify::split(&device, request.clone(), Duration::from_millis(1))?;
    let written = there_and_back(&report)?;
    assert_eq!(written["driver"], json!({ "version": "13.0", "profile": "h200" }));
    assert_eq!(written["compute_capability"], "9.0");
    assert_eq!(written["partitions"][0]["name"], "decode");
    assert_eq!(written["partitions"][1]["share"], "rest");
    assert!(written["partitions"][0]["blocks"][0]["sm"].is_u64());

    let plan = device.resources().sm()?.dry_run(request)?;
    let expected = json!({
        "unit": 8,
        "groups": [{ "name": "decode", "share": "16", "floor": 16, "sm_count": 16 }],
        "remainder": 116,
        "free_for_floors": 0,
        "quarantined": 0,
    });
    assert_eq!(there_and_back::<DryRun>(&plan)?, expected);

    let counts = there_and_back::<ContextCounts>(&device.context_counts())?;
    assert_eq!(counts, json!({ "created": 2, "reused": 0, "idle": 2 }));
    let uuid = there_and_back::<Uuid>(&device.uuid()?)?;
    assert_eq!(uuid, device.uuid()?.to_string());
    assert_eq!(there_and_back(&Granularity::Fine)?, "fine");
    Ok(())
}

#[test]
fn a_shortage_survives() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let _held = device.resources().sm()?.split(SplitRequest::new().group("decode", 100))?;
    let Err(Error::NotEnoughSms(shortage)) = device.resources().sm()?.split([64]) else {
        return Err("it does not fit".into());
    };
    let written = there_and_back(&*shortage)?;
    assert_eq!(written["holders"], json!([{ "name": "decode", "sm_count": 100 }]));
    Ok(())
}

#[test]
fn a_fit_survives() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let kernel = kernels::probe(&device)?;
    let context = partition(&device, 8)?;
    let config = LaunchConfig::new(34, 1024).cluster((2, 1, 1)).cooperative(true);
    let written = there_and_back(&kernel.fit(&context, config)?)?;
    assert_eq!(written["cluster"], json!([2, 1, 1]));
    assert_eq!(written["clusters"][3], json!({ "size": 8, "count": 2 }));
    let stream = context.create_stream(StreamOptions::default())?;
    // SAFETY: the launch is refused, so the null arguments are never used.
    let Err(Error::DoesNotFit(reported)) =
        (unsafe { stream.launch(&kernel, config, (0_u64, 0_u64)) })
    else {
        return Err("it does not fit".into());
    };
    assert_eq!(there_and_back(&*reported)?["fit"], written);
    Ok(())
}

#[test]
fn what_is_none_is_refused() {
    assert!(serde_json::from_str::<Granularity>("\"medium\"").is_err());
    assert!(serde_json::from_str::<Uuid>("\"GPU-12\"").is_err());
    for version in ["13", "13.x", "", "13.100", "4294967.0", "4294968.0"] {
        let info = json!({ "version": version, "profile": null });
        let read = serde_json::from_value::<green_ctx::driver::DriverInfo>(info);
        assert_eq!(read.is_ok(), version == "4294967.0", "{version}");
    }
}
