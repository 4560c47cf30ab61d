//! The SMs of a device's units, found by running in each unit alone.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use green_ctx::{
    SplitRequest, Version,
    resource::{Granularity, SmGroup},
};
use parking_lot::Mutex;

use crate::account::{Place, Share, Sms};
use crate::machine::{self, Machine, Variant};
use crate::raw;

/// The first driver whose contexts are created from units.
const COMPOSITION: Version = Version::new(12, 5);

type Key = (String, Granularity);

/// The units found so far, per part.
static LEARNT: LazyLock<Mutex<HashMap<Key, Arc<[Sms]>>>> = LazyLock::new(Mutex::default);

/// The SMs of each unit of a device. Empty on drivers that do not create contexts from units.
pub(super) struct Units {
    sms: Arc<[Sms]>,
}

impl Units {
    pub(super) fn of(
        profile: &str,
        version: Version,
        granularity: Granularity,
    ) -> Result<Units, Box<dyn std::error::Error>> {
        if version < COMPOSITION {
            return Ok(Units { sms: Arc::default() });
        }
        let key = (profile.to_owned(), granularity);
        if let Some(sms) = LEARNT.lock().get(&key) {
            return Ok(Units { sms: Arc::clone(sms) });
        }
        let sms = learn(profile, granularity)?;
        LEARNT.lock().insert(key, Arc::clone(&sms));
        Ok(Units { sms })
    }

    /// Returns the number of SMs of the largest unit.
    pub(super) fn largest(&self) -> u32 {
        self.sms.iter().map(|sms| sms.len()).max().unwrap_or(0)
    }

    /// Returns the SMs of a group, or `None` if they are unknown.
    pub(super) fn place(&self, group: &SmGroup) -> Option<Place> {
        let floor = self.all(&group.floor_unit_indices())?;
        Some(Place { floor, ceiling: self.all(group.unit_indices())? })
    }

    /// Returns the SMs of these units, or `None` if they are unknown.
    pub(super) fn all(&self, units: &[usize]) -> Option<Sms> {
        if self.sms.is_empty() {
            return None;
        }
        Some(units.iter().fold(Sms::default(), |all, unit| all.and(self.sms[*unit])))
    }

    /// Returns what a group holds in the device's ledger.
    pub(super) fn share(&self, group: &SmGroup, structured: bool) -> Share {
        match self.place(group).filter(|_| !structured) {
            Some(place) => Share::Known(place.ceiling),
            None => Share::Unknown(group.sm_count()),
        }
    }
}

fn learn(
    profile: &str,
    granularity: Granularity,
) -> Result<Arc<[Sms]>, Box<dyn std::error::Error>> {
    let (sim, driver, reports) = machine::start(&format!("{profile}@13.0"), Variant::default())?;
    let machine = Machine::new(&sim, &driver, &reports, "learn")?;
    let counts = machine.device.resources().sm()?.unit_counts(granularity)?;
    let mut units = vec![Sms::default(); counts.len()];
    // The last group that requests a regular unit's size gets the odd unit.
    let request = SplitRequest::from(vec![counts[0]; counts.len()]).granularity(granularity);
    let parts = machine.device.partition(request)?;
    for part in &parts {
        sim.take_launches();
        raw::launch(part.stream(), &machine.kernel, 1)?;
        let launches = sim.launches();
        let [launch] = launches.as_slice() else { return Err("one launch".into()) };
        let [unit] = *part.unit_indices() else { return Err("one unit per partition".into()) };
        units[unit] = Sms::of(&launch.sms);
    }
    Ok(units.into())
}
