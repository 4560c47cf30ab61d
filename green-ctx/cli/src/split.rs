//! `green-ctx split`: what each group of a split is given.

use green_ctx::{Context, Device, DryRun, Result, SplitRequest};
use serde::Serialize;

use crate::Options;
use crate::counts::Request;
use crate::failure::Failure;
use crate::output::{Align, DeviceObject, DriverObject, Outcome, heading, table};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    request: Request,
    /// Only computes the split, and creates nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(options: &Options, arguments: &Arguments) -> Result<Outcome, Failure> {
    let device = options.driver.device(options.device)?;
    let request = arguments.request.to_split();
    let dry = device.resources().sm()?.dry_run(request.clone())?;
    let given = if arguments.dry_run { as_computed(&dry) } else { provisioned(&device, request)? };

    let groups = dry.groups.iter().zip(&given.groups);
    let answer = Answer {
        driver: DriverObject::of(device.driver()),
        device: DeviceObject::of(&device)?,
        unit: dry.unit,
        groups: groups
            .map(|(group, sm_count)| Group { requested: group.share.count(), sm_count: *sm_count })
            .collect(),
        remainder: Remainder { sm_count: given.remainder },
    };
    if options.json {
        return Outcome::json(&answer, 0);
    }
    Ok(Outcome { text: text(&device, &dry, &answer, arguments.dry_run), status: 0 })
}

/// The SMs of each group, and those that remain.
struct Given {
    groups: Vec<u32>,
    remainder: u32,
}

fn as_computed(dry: &DryRun) -> Given {
    let groups = dry.groups.iter().map(|group| group.sm_count).collect();
    Given { groups, remainder: dry.remainder }
}

/// Makes the partitions, asks the driver what each has, and lets them go.
fn provisioned(device: &Device, request: SplitRequest) -> Result<Given> {
    let sms = device.resources().sm()?;
    let split = sms.split(request)?;
    let contexts: Vec<Context> = split
        .groups
        .into_iter()
        .map(|group| device.create_context(group))
        .collect::<Result<_, _>>()?;
    let groups = contexts.iter().map(Context::sm_count).collect::<Result<_>>()?;
    Ok(Given { groups, remainder: sms.free() })
}

#[derive(Serialize)]
struct Answer {
    driver: DriverObject,
    device: DeviceObject,
    unit: u32,
    groups: Vec<Group>,
    remainder: Remainder,
}

#[derive(Serialize)]
struct Group {
    requested: Option<u32>,
    sm_count: u32,
}

#[derive(Serialize)]
struct Remainder {
    sm_count: u32,
}

fn text(device: &Device, dry: &DryRun, answer: &Answer, dry_run: bool) -> String {
    let mut rows: Vec<[String; 3]> = dry
        .groups
        .iter()
        .zip(&answer.groups)
        .map(|(planned, Group { requested, sm_count })| {
            let requested = requested.map_or_else(|| "-".to_owned(), |count| count.to_string());
            [planned.name.to_string(), requested, sm_count.to_string()]
        })
        .collect();
    rows.push(["remainder".to_owned(), "-".to_owned(), answer.remainder.sm_count.to_string()]);
    let columns = [("group", Align::Left), ("requested", Align::Right), ("given", Align::Right)];
    let how = if dry_run { "a dry run: nothing was created" } else { "given by the driver" };
    format!(
        "{}\n{}\nSMs, in units of {}; {how}\n",
        heading(device.driver(), &answer.device),
        table(columns, &rows),
        answer.unit,
    )
}
