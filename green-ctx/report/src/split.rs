//! The number of SMs that each group of a split would get.

use green_ctx::{Device, Result, Share, Version, resource::DryRun};
use serde::Serialize;

use crate::objects::{DeviceObject, DriverObject, count, heading};
use crate::table::{Align, table};

/// The output of `green-ctx split`: the number of SMs that each group would get. This type serialises to the
/// JSON that the command prints.
#[derive(Serialize)]
pub struct Split {
    driver: DriverObject,
    device: DeviceObject,
    unit: u32,
    groups: Vec<Group>,
    remainder: Remainder,
    free_for_floors: u32,
}

impl Split {
    /// Creates the output from a dry run on a device. `rest` names the group that gets the remaining SMs; the
    /// dry run counts its SMs as part of the remainder.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn of(device: &Device, dry: &DryRun, rest: Option<String>) -> Result<Split> {
        let groups = dry.groups.iter();
        let groups = groups.map(|group| {
            Group::of(group.name.to_string(), group.share, group.floor, group.sm_count)
        });
        let rest = rest.map(|name| {
            let sm_count = dry.remainder.saturating_sub(dry.free_for_floors);
            Group::of(name, Share::REST, sm_count, sm_count)
        });
        Ok(Split {
            driver: DriverObject::of(device.driver()),
            device: DeviceObject::of(device)?,
            unit: dry.unit,
            groups: groups.chain(rest).collect(),
            remainder: Remainder { sm_count: dry.free_for_floors },
            free_for_floors: dry.free_for_floors,
        })
    }

    /// Returns the output as text.
    #[must_use]
    pub fn text(&self, device: &Device) -> String {
        let answer = self;
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
            "{}\n{}\nfree for floors: {} SMs{}\ncounts of SMs, in units of {}; dry run, nothing was \
             created\n",
            heading(&device.driver().info(), &answer.device),
            table(columns, &rows),
            answer.free_for_floors,
            cure(device, answer),
            answer.unit,
        )
    }
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

/// Returns a hint if sharing leaves no SMs for later floors. With drivers before CUDA 12.5 there is no
/// remedy, so the hint is empty.
fn cure(device: &Device, answer: &Split) -> &'static str {
    let shares = answer.groups.iter().any(|group| group.ceiling > group.floor);
    let can_do_otherwise = device.driver().version() >= Version::new(12, 5);
    match shares && answer.free_for_floors == 0 && can_do_otherwise {
        true => {
            "; the remaining SMs are shared: request all floors together, or set a lower ceiling"
        }
        false => "",
    }
}
