//! A table of the GPUs that can be simulated: how many SMs each has, and into what these divide.

use green_ctx::resource::Granularity;
use green_ctx::sim::{Profile, Sim, Spec};
use green_ctx::{Driver, Result, Share, SplitRequest};
use serde::Serialize;

use crate::table::{Align, table};

/// A GPU, and how its SMs divide.
#[derive(Debug, Serialize)]
pub struct Gpu {
    /// The name for `--driver sim:NAME`.
    profile: &'static str,
    /// The name that the driver gives to the device.
    name: &'static str,
    compute_capability: String,
    sm_count: u32,
    /// The number of SMs of each unit of a split, and that of a fine unit.
    units: Vec<u32>,
    fine_unit: u32,
    /// The largest number of partitions that share no SMs, in coarse units.
    most_partitions: usize,
    /// The number of SMs of a partition with this percentage.
    percent_25: u32,
    percent_50: u32,
    percent_75: u32,
    /// The driver on which the behaviour was recorded, or null.
    recorded: Option<&'static str>,
}

impl Gpu {
    /// Returns all GPUs that have a profile, with the simulated driver that is the default.
    ///
    /// # Errors
    ///
    /// The errors of the simulated driver.
    pub fn all() -> Result<Vec<Gpu>> {
        Profile::all().iter().map(Gpu::of).collect()
    }

    fn of(profile: &'static Profile) -> Result<Gpu> {
        let spec = profile.name.parse::<Spec>().unwrap_or_default();
        let device = Driver::simulated(&Sim::new(spec)?)?.device(0)?;
        let sms = device.resources().sm()?;
        let units = sms.unit_counts(Granularity::Coarse)?;
        let part = |percent: u32| -> Result<u32> {
            let dry = sms.dry_run(SplitRequest::new().group("part", Share::percent(percent)))?;
            Ok(dry.groups.iter().map(|group| group.sm_count).sum())
        };
        let (major, minor) = profile.compute_capability;
        Ok(Gpu {
            profile: profile.name,
            name: profile.device_name,
            compute_capability: format!("{major}.{minor}"),
            sm_count: sms.sm_count(),
            most_partitions: units.len(),
            units,
            fine_unit: profile.topology.fine_unit,
            percent_25: part(25)?,
            percent_50: part(50)?,
            percent_75: part(75)?,
            recorded: profile.provenance.recorded.map(|record| record.driver),
        })
    }

    /// Returns the units as text, such as `15 of 8, 1 of 12`.
    fn units(&self) -> String {
        let groups = self.units.chunk_by(|one, next| one == next);
        groups.map(|same| format!("{} of {}", same.len(), same[0])).collect::<Vec<_>>().join(", ")
    }

    fn cells(&self) -> [String; 10] {
        let [quarter, half, most] = [self.percent_25, self.percent_50, self.percent_75];
        [
            self.profile.to_owned(),
            self.name.to_owned(),
            self.compute_capability.clone(),
            self.sm_count.to_string(),
            self.units(),
            self.fine_unit.to_string(),
            self.most_partitions.to_string(),
            quarter.to_string(),
            half.to_string(),
            most.to_string(),
        ]
    }
}

/// Returns the table as text.
#[must_use]
pub fn gpus_text(gpus: &[Gpu]) -> String {
    use Align::{Left, Right};
    let columns = [
        ("profile", Left),
        ("name", Left),
        ("cc", Right),
        ("SMs", Right),
        ("units", Left),
        ("fine", Right),
        ("partitions", Right),
        ("25%", Right),
        ("50%", Right),
        ("75%", Right),
    ];
    let rows: Vec<_> = gpus.iter().map(Gpu::cells).collect();
    let recorded = gpus.iter().filter(|gpu| gpu.recorded.is_some()).map(|gpu| gpu.profile);
    format!(
        "{}\n\
         partitions: the most of coarse units. 25%: the SMs of a partition that requests this.\n\
         recorded on hardware: {}. The others follow documentation and models.\n\
         Another GPU: green-ctx info --driver sim:36sm,cc12.0\n",
        table(columns, &rows),
        recorded.collect::<Vec<_>>().join(", ")
    )
}
