//! Methods of [`Device`] that return its resources, and that divide it into groups, contexts and partitions.

use std::sync::Arc;

use super::partition::{Partition, Partitions, SharedContext};
use super::resource::{ContextResources, LocalityDomains, Resources, SmResource, create};
use crate::handle::context::Context;
use crate::handle::device::Device;
#[cfg(doc)]
use crate::handle::error::Error;
use crate::handle::error::{Refused, Result};
use crate::handle::group::SmGroup;
use crate::handle::registry::Step;
use crate::ledger::SplitRequest;

impl Device {
    /// Returns the number of SMs that are reserved for partitions, which work outside of partitions may not use; 0 without
    /// a reserve.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] if the reserve leaves no SMs, and [`Error::Driver`] if the device cannot be divided. In
    /// both cases, no work runs outside of partitions.
    pub fn reserved_sm_count(&self) -> Result<u32> {
        let rest = self.division()?.map(|rest| rest.sms);
        rest.map_or(Ok(0), |rest| Ok(self.sm_count()? - rest))
    }

    /// Returns the device's resources: its SMs, which can be split, and its workqueues (CUDA 13.1 or newer).
    pub fn resources(&self) -> Resources {
        Resources::from(self)
    }

    /// Returns the device's locality domains: sets of SMs that are close to the same memory.
    /// [`SplitRequest::locality_domain`] takes a group's SMs from a locality domain.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] before CUDA 13.4, and [`Error::Driver`] if the driver fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, resource::LocalityDomain, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("b200@13.4")?)?;
    /// let device = driver.device(0)?;
    /// let domains = device.locality_domains()?;
    /// assert_eq!((domains.count, domains.sm_count), (2, 72));
    /// let request = SplitRequest::from([72, 72])
    ///     .coscheduled(2)
    ///     .locality_domain([LocalityDomain::Id(0), LocalityDomain::Id(1)]);
    /// let groups = device.resources().sm()?.split(request)?.groups;
    /// assert_eq!(groups[1].sm_count(), 72);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT")]
    pub fn locality_domains(&self) -> Result<LocalityDomains> {
        LocalityDomains::of(self)
    }

    /// Takes all SMs that are free for floors, and returns them as one group with this name. A
    /// [`PlanSet`](crate::PlanSet) can divide the group, and the group can be split again.
    ///
    /// # Errors
    ///
    /// [`Error::NotEnoughSms`], which lists the groups that hold SMs, if no SM is free. Other errors are
    /// those of [`SmResource::split`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, PlanRequest, PlanSet, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let comm = device.partition(SplitRequest::new().group("comm", 16))?;
    /// let first = PlanRequest::new("day", SplitRequest::new().group("decode", 32).rest("prefill"));
    /// let plans = PlanSet::new(device.rest("compute")?, first)?;
    /// assert_eq!(plans.sm_count(), 116);
    ///
    /// let error = device.rest("more").expect_err("no SMs are free");
    /// assert!(error.to_string().contains("comm (16 SMs), compute (116 SMs)"), "{error}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn rest(&self, name: impl Into<Arc<str>>) -> Result<SmGroup> {
        SmResource::of_device(self)?.take_rest(name.into())
    }

    /// Creates a green context on a group's SMs. [`SmGroup::with_workqueue`] adds a workqueue for the
    /// context.
    ///
    /// [`Context::close`] returns the context's group. Without that call, the SMs become free when the last
    /// handle of the context is dropped.
    ///
    /// The first context on a given set of SMs takes about 1 ms and 4 to 5 MiB of device memory, which the
    /// driver never frees. Creating this first context also waits for all work on the device (measured on an
    /// H200, driver 580.159.04). Later contexts on the same SMs reuse the driver's context, and splits prefer
    /// SMs for which a context exists.
    ///
    /// # Errors
    ///
    /// [`Refused`], which returns the resources, with one of these reasons: [`Error::DeviceMismatch`] if the
    /// group or the workqueue belongs to another device, [`Error::WrongSmCount`] if the driver provided a
    /// different number of SMs than requested, [`Error::Forked`], or [`Error::Driver`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// let device = driver.device(0)?;
    /// let split = device.resources().sm()?.split([16, 24])?;
    /// for group in split.groups {
    ///     let context = device.create_context(group)?;
    ///     println!("a partition of {} SMs", context.sm_count()?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuGreenCtxCreate")]
    pub fn create_context(
        &self,
        resources: impl Into<ContextResources>,
    ) -> Result<Context, Refused<ContextResources>> {
        create::context(self, resources.into(), None)
    }

    /// Creates a partition from a group: a context, and a stream in that context. [`SmGroup::with_workqueue`]
    /// adds a workqueue for the partition.
    ///
    /// # Errors
    ///
    /// The errors of [`create_context`](Device::create_context). The error returns the resources, unless the
    /// stream cannot be created and the new context cannot be closed.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// let device = driver.device(0)?;
    /// let part = device.create_partition(device.rest("all")?)?;
    /// assert_eq!((part.name(), part.sm_count()), ("all", 132));
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_partition(
        &self,
        resources: impl Into<ContextResources>,
    ) -> Result<Partition, Refused<Option<ContextResources>>> {
        let resources = resources.into();
        let (record, priority) = (resources.group.record().clone(), resources.group.priority());
        let workqueue = resources.workqueue.clone();
        let context = create::context(self, resources, None).map_err(|error| {
            let Refused { given, reason } = error;
            Refused { given: Some(given), reason }
        })?;
        match SharedContext::of(context, priority) {
            Ok(shared) => Ok(Partition::new(record, Vec::new(), Arc::new(shared))),
            Err((context, reason)) => {
                // No work was submitted to the context yet, so closing it needs no wait.
                let alone = |step| Context::alone(&[&context], self.driver(), step, 1);
                let is_alone = alone(Step::Watch) && alone(Step::Remove);
                let group = if is_alone { context.finish_close() } else { None };
                let resources = group.map(|group| ContextResources { group, workqueue });
                Err(Refused { given: resources, reason })
            }
        }
    }

    /// Splits the device's SMs into partitions: takes the SMs, and creates a context and a stream for each
    /// group. [`create_context`](Device::create_context) documents the cost of the first context on a set of
    /// SMs.
    ///
    /// # Errors
    ///
    /// The errors of [`SmResource::split`] and [`create_context`](Device::create_context). If the call fails,
    /// it releases all SMs that it took.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let parts = device.partition(SplitRequest::new().group("decode", 16).rest("prefill"))?;
    /// assert_eq!(parts["prefill"].sm_count(), 116);
    /// for part in &parts {
    ///     println!("{} has {} SMs", part.name(), part.sm_count());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn partition(&self, request: impl Into<SplitRequest>) -> Result<Partitions> {
        let split = SmResource::of_device(self)?.split(request)?;
        let groups = split.groups.into_iter().chain(split.remainder);
        groups.map(|group| Ok(self.create_partition(group)?)).collect()
    }
}
