//! `green-ctx split`: what each group of a split is given.

use green_ctx::{Device, Share, Version, resource::DryRun};
use serde::Serialize;

use crate::Options;
use crate::failure::Failure;
use crate::output::{Align, DeviceObject, DriverObject, Outcome, count, heading, table};
use crate::request::Request;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    request: Request,
    /// Accepted for older scripts; split never creates anything.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(options: &Options, arguments: &Arguments) -> Result<Outcome, Failure> {
    // Before the driver is loaded, so that a wrong request costs nothing.
    let request = arguments.request.to_split()?;
    let device = options.driver.device(options.device)?;
    let dry = device.resources().sm()?.dry_run(request)?;
    let rest = arguments.request.rest_name();
    let given = Given::computed(&dry, rest);
    let answer = Answer {
        driver: DriverObject::of(device.driver()),
        device: DeviceObject::of(&device)?,
        unit: dry.unit,
        groups: given.groups,
        remainder: Remainder { sm_count: given.free },
        free_for_floors: given.free,
    };
    if options.json {
        return Outcome::json(&answer, 0);
    }
    Ok(Outcome { text: text(&device, &answer), status: 0 }.marked(options, device.driver()))
}

/// What each group has, and the SMs that no group may use.
struct Given {
    groups: Vec<Group>,
    free: u32,
}

impl Given {
    /// What the dry run says. It counts the group that takes the rest with the remainder.
    fn computed(dry: &DryRun, rest: Option<String>) -> Given {
        let groups = dry.groups.iter();
        let groups = groups.map(|group| {
            Group::of(group.name.to_string(), group.share, group.floor, group.sm_count)
        });
        let rest = rest.map(|name| {
            let sm_count = dry.remainder.saturating_sub(dry.free_for_floors);
            Group::of(name, Share::REST, sm_count, sm_count)
        });
        Given { groups: groups.chain(rest).collect(), free: dry.free_for_floors }
    }
}

#[derive(Serialize)]
struct Answer {
    driver: DriverObject,
    device: DeviceObject,
    unit: u32,
    groups: Vec<Group>,
    remainder: Remainder,
    free_for_floors: u32,
}

#[derive(Serialize)]
struct Group {
    name: String,
    requested: Option<u32>,
    share: Share,
    floor: u32,
    ceiling: u32,
    sm_count: u32,
}

impl Group {
    fn of(name: String, share: Share, floor: u32, sm_count: u32) -> Group {
        Group { name, requested: count(share), share, floor, ceiling: sm_count, sm_count }
    }
}

#[derive(Serialize)]
struct Remainder {
    sm_count: u32,
}

fn text(device: &Device, answer: &Answer) -> String {
    let row = |Group { name, share, floor, ceiling, .. }: &Group| {
        [name.clone(), share.to_string(), floor.to_string(), ceiling.to_string()]
    };
    let rows: Vec<_> = answer.groups.iter().map(row).collect();
    let columns = [
        ("group", Align::Left),
        ("share", Align::Right),
        ("floor", Align::Right),
        ("ceiling", Align::Right),
    ];
    format!(
        "{}\n{}\nfree for floors: {} SMs{}\nSMs, in units of {}; a dry run: nothing was created\n",
        heading(&device.driver().info(), &answer.device),
        table(columns, &rows),
        answer.free_for_floors,
        cure(device, answer),
        answer.unit,
    )
}

/// What to do where sharing leaves nothing for later floors. Before CUDA 12.5 there is nothing to do.
fn cure(device: &Device, answer: &Answer) -> &'static str {
    let shares = answer.groups.iter().any(|group| group.ceiling > group.floor);
    let can_do_otherwise = device.driver().version() >= Version::new(12, 5);
    match shares && answer.free_for_floors == 0 && can_do_otherwise {
        true => {
            "; the others are shared: ask for every floor in one request, or set a lower ceiling"
        }
        false => "",
    }
}
