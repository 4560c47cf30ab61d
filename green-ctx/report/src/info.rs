//! The driver, the devices, and the units into which the devices can be split.

use std::fmt::Write;

use green_ctx::{Device, Driver, Result, Version, resource::Granularity};
use serde::Serialize;

use crate::objects::{DeviceObject, DriverObject};

/// The output of `green-ctx info`: the driver, the devices, and the units into which the devices can be split. This
/// type serialises to the JSON that the command prints.
#[derive(Serialize)]
pub struct Info {
    driver: DriverObject,
    /// The origin of a simulated driver's behaviour.
    provenance: Option<String>,
    /// The source of each group of a simulated device's data.
    sources: Option<Vec<SourceObject>>,
    abilities: [AbilityObject; Ability::ALL.len()],
    devices: Vec<DeviceInfo>,
    /// Warnings about settings that change the size of partitions.
    warnings: Vec<String>,
}

impl Info {
    /// Collects the information about one device, or about all devices if `device` is `None`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDevice`](green_ctx::Error::NoSuchDevice) and [`Error::Driver`](green_ctx::Error::Driver).
    pub fn of(driver: &Driver, device: Option<u32>) -> Result<Info> {
        let devices: Vec<Device> = match device {
            Some(ordinal) => vec![driver.device(ordinal)?],
            None => driver.devices().collect(),
        };
        let (provenance, sources) = origin(driver).unzip();
        Ok(Info {
            driver: DriverObject::of(driver),
            provenance,
            sources,
            abilities: Ability::ALL.map(|ability| ability.on(driver)),
            devices: devices.iter().map(DeviceInfo::of).collect::<Result<_>>()?,
            warnings: warnings(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())),
        })
    }

    /// Returns the information as text.
    #[must_use]
    pub fn text(&self, driver: &Driver) -> String {
        let info = self;
        let mut text = format!("driver  {}\n", driver.info());
        if let Some(provenance) = &info.provenance {
            line(&mut text, "behaviour", provenance);
        }
        for SourceObject { data, origin, from } in info.sources.iter().flatten() {
            line(&mut text, &format!("  {origin}"), format!("{data}: {from}"));
        }
        for ability in &info.abilities {
            let answer = match ability.available {
                true => "yes".to_owned(),
                false => format!("needs CUDA {}", ability.needs),
            };
            line(&mut text, ability.words, answer);
        }
        for info in &info.devices {
            let DeviceInfo { device, units, .. } = info;
            let said = |count: u32| match info.limits_from.as_str() {
                "driver" => format!("{count} SMs"),
                rule => format!("{count} SMs (rule for its {rule})"),
            };
            let gibibytes = info.memory_bytes as f64 / f64::from(1 << 30);
            // Writing to a string does not fail.
            let _ = writeln!(text, "\ndevice  {}: {}", device.ordinal.unwrap_or(0), device.name);
            line(&mut text, "status", &info.status);
            line(&mut text, "UUID", &info.uuid);
            line(&mut text, "compute capability", &device.compute_capability);
            line(&mut text, "SMs", device.sm_count);
            if let Some(reserve) = &device.reserve {
                line(&mut text, "reserved SMs", reserve);
            }
            line(&mut text, "memory", format!("{gibibytes:.1} GiB"));
            line(&mut text, "smallest partition", said(info.min_partition));
            line(&mut text, "partition alignment", said(info.alignment));
            line(&mut text, "coarse units", runs(&units.coarse));
            line(&mut text, "fine units", runs(&units.fine));
            if let Some(Workqueues { concurrency_limit, scope }) = &info.workqueues {
                let queues = format!("{concurrency_limit} (sharing scope: {scope})");
                line(&mut text, "concurrent workqueues", queues);
            }
        }
        for warning in &info.warnings {
            let _ = writeln!(text, "\nwarning: {warning}");
        }
        text
    }
}

#[derive(Serialize)]
struct SourceObject {
    data: &'static str,
    /// One of `recorded`, `documented`, `reported` and `modelled`.
    origin: String,
    from: &'static str,
}

#[derive(Serialize)]
struct DeviceInfo {
    #[serde(flatten)]
    device: DeviceObject,
    /// Whether this project has run on such a device with such a driver.
    status: String,
    uuid: String,
    memory_bytes: usize,
    min_partition: u32,
    alignment: u32,
    /// The source of `min_partition` and `alignment`: the driver, or a rule for the architecture.
    limits_from: String,
    /// `None` if the driver is older than CUDA 13.1.
    workqueues: Option<Workqueues>,
    units: UnitsObject,
}

/// The workqueues of a device. `concurrency_limit` is the number of streams whose work can run concurrently without
/// sharing a queue.
#[derive(Serialize)]
struct Workqueues {
    concurrency_limit: u32,
    scope: String,
}

/// The number of SMs in each unit of the device.
#[derive(Serialize)]
struct UnitsObject {
    coarse: Vec<u32>,
    fine: Vec<u32>,
}

impl DeviceInfo {
    fn of(device: &Device) -> Result<DeviceInfo> {
        let sms = device.resources().sm()?;
        Ok(DeviceInfo {
            device: DeviceObject::of(device)?,
            status: status(device)?,
            uuid: device.uuid()?.to_string(),
            memory_bytes: device.total_memory()?,
            min_partition: sms.min_partition(),
            alignment: sms.alignment(),
            limits_from: sms.limits_from().to_string(),
            workqueues: workqueues(device)?,
            units: UnitsObject {
                coarse: sms.unit_counts(Granularity::Coarse)?,
                fine: sms.unit_counts(Granularity::Fine)?,
            },
        })
    }
}

/// The devices that this project has run on: a part of the device's name, and the driver's CUDA version.
const RUN: [(&str, Version); 2] = [("H100", Version::new(13, 0)), ("H200", Version::new(13, 0))];

/// Returns a short form of the device's row in docs/requirements.md.
fn status(device: &Device) -> Result<String> {
    let driver = device.driver();
    let (name, version) = (device.name()?, driver.version());
    let was_run = RUN.iter().any(|(known, cuda)| name.contains(known) && *cuda == version);
    Ok(match (driver.is_simulated(), was_run) {
        (true, _) => "simulated".to_owned(),
        (false, true) => format!("run: this project has run on such a GPU with CUDA {version}"),
        (false, false) => {
            format!("untested: this project has not run on such a GPU with CUDA {version}")
        }
    })
}

/// Returns warnings about environment variables of the process.
fn warnings(variables: impl Iterator<Item = String>) -> Vec<String> {
    let mut mps: Vec<String> = variables.filter(|name| name.starts_with("CUDA_MPS_")).collect();
    mps.sort_unstable();
    let text = |name| {
        format!(
            "{name} is set: under MPS a partition can get more SMs than requested; check with green-ctx verify"
        )
    };
    mps.into_iter().map(text).collect()
}

fn workqueues(device: &Device) -> Result<Option<Workqueues>> {
    match device.resources().workqueue() {
        Ok(queues) => Ok(Some(Workqueues {
            concurrency_limit: queues.concurrency_limit(),
            scope: queues.scope().to_string(),
        })),
        Err(error) if error.is_unsupported() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the origin of a simulated driver's behaviour, and the source of each group of its data.
#[cfg(feature = "sim")]
fn origin(driver: &Driver) -> Option<(String, Vec<SourceObject>)> {
    use green_ctx::sim::{Profile, Source};

    let Some(profile) = Profile::by_name(&driver.info().profile?) else {
        let words = "by rule from the number of SMs and the compute capability, unrecorded";
        return Some((words.to_owned(), Vec::new()));
    };
    let provenance = &profile.provenance;
    let object = |&Source { data, origin, from, .. }: &Source| SourceObject {
        data,
        origin: origin.to_string(),
        from,
    };
    let sources = provenance.sources.iter().map(object).collect();
    Some((provenance.summary(driver.version().number()), sources))
}

#[cfg(not(feature = "sim"))]
fn origin(_driver: &Driver) -> Option<(String, Vec<SourceObject>)> {
    None
}

/// A capability that not every driver has.
#[derive(Clone, Copy)]
struct Ability {
    name: &'static str,
    words: &'static str,
    needs: Version,
}

#[derive(Serialize)]
struct AbilityObject {
    name: &'static str,
    needs: String,
    available: bool,
    #[serde(skip)]
    words: &'static str,
}

impl Ability {
    const ALL: [Ability; 4] = [
        Ability {
            name: "composition",
            words: "groups of several units",
            needs: Version::new(12, 5),
        },
        Ability { name: "shares", words: "floors and ceilings", needs: Version::new(12, 5) },
        Ability { name: "structured_split", words: "structured split", needs: Version::new(13, 1) },
        Ability { name: "workqueues", words: "workqueues", needs: Version::new(13, 1) },
    ];

    fn on(self, driver: &Driver) -> AbilityObject {
        let Ability { name, words, needs } = self;
        let available = driver.version() >= needs;
        AbilityObject { name, words, needs: needs.to_string(), available }
    }
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "  {name:<25}{value}");
}

/// Counts equal consecutive units: `15 of 8 SMs, 1 of 12 SMs`.
fn runs(units: &[u32]) -> String {
    let runs = units.chunk_by(|one, next| one == next);
    runs.map(|run| format!("{} of {} SMs", run.len(), run[0])).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{runs, warnings};

    #[test]
    fn mps_is_warned_about() {
        let variables = ["PATH", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_VISIBLE_DEVICES"];
        let warned = warnings(variables.into_iter().map(str::to_owned));
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(warned[0].starts_with("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is set"), "{warned:?}");
    }

    #[test]
    fn equal_units_are_counted() {
        let mut units = vec![8; 15];
        units.push(12);
        assert_eq!(runs(&units), "15 of 8 SMs, 1 of 12 SMs");
        assert_eq!(runs(&[]), "");
    }
}
