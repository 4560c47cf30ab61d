//! What a device is divided into: its resources, contexts and partitions on some of its SMs.

use std::sync::Arc;

use super::partition::{Partition, Partitions, SharedContext};
use super::resource::{ContextResources, LocalityDomains, Resources, SmResource, create};
use crate::handle::context::Context;
use crate::handle::device::Device;
use crate::handle::error::{Refused, Result};
use crate::handle::group::SmGroup;
use crate::ledger::SplitRequest;

impl Device {
    /// What the device has: SMs to be split, and workqueues from CUDA 13.1 on.
    pub fn resources(&self) -> Resources {
        Resources::from(self)
    }

    /// The locality domains: parts whose SMs are near to one memory.
    /// [`SplitRequest::locality_domain`](crate::SplitRequest::locality_domain) takes SMs of one.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) before CUDA 13.4,
    /// [`Error::Driver`](crate::Error::Driver).
    ///
    /// # Example
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

    /// Takes all SMs that are free for floors, as one group of this name: for a set of plans, or to be divided
    /// further.
    ///
    /// # Errors
    ///
    /// [`Error::NotEnoughSms`] where none is free, with who has them, and as
    /// [`SmResource::split`].
    ///
    /// # Example
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

    /// Creates a green context on a group's SMs, with a workqueue of its own if one is added
    /// ([`SmGroup::with_workqueue`](crate::resource::SmGroup::with_workqueue)). The group comes back from
    /// [`Context::close`], or returns its SMs when the last handle of the context goes.
    ///
    /// The first context of certain SMs takes about 1 ms on an H200 and 4 to 5 MiB of device
    /// memory, which the driver does not give back, and it waits for all work that runs on the device
    /// (measured and recorded with driver 580.159.04). It is used again for every later one of the
    /// same SMs, which a split prefers.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which gives the group back: [`Error::DeviceMismatch`] for another device's
    /// group or workqueue, [`Error::Forked`], [`Error::Driver`], and [`Error::WrongSmCount`] where the
    /// driver gave other SMs than were asked for.
    ///
    /// # Example
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
    ) -> Result<Context, Refused<Box<ContextResources>>> {
        create::context(self, resources.into())
    }

    /// Makes a partition of a group, with a workqueue of its own if one is added
    /// ([`SmGroup::with_workqueue`]).
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which gives the group back, for the reasons of
    /// [`create_context`](Device::create_context).
    pub fn create_partition(
        &self,
        resources: impl Into<ContextResources>,
    ) -> Result<Partition, Refused<Option<Box<ContextResources>>>> {
        let resources = resources.into();
        let (record, priority) = (resources.group.record().clone(), resources.group.priority());
        let workqueue = resources.workqueue.clone();
        let context = create::context(self, resources).map_err(|error| {
            let Refused { given, reason } = error;
            Refused { given: Some(given), reason }
        })?;
        match SharedContext::of(context, priority) {
            Ok(shared) => Ok(Partition::new(record, Vec::new(), Arc::new(shared))),
            Err((context, reason)) => {
                // Nothing was submitted to it yet.
                let group = if context.seclude(None) { context.finish_close() } else { None };
                let resources = group.map(|group| Box::new(ContextResources { group, workqueue }));
                Err(Refused { given: resources, reason })
            }
        }
    }

    /// Divides the device's SMs into partitions: takes them, and makes a context and a stream for each.
    ///
    /// The first context of certain SMs takes about 1 ms on an H200 and 4 to 5 MiB of device memory
    /// ([`create_context`](Device::create_context)); later ones of the same SMs use it again.
    ///
    /// # Errors
    ///
    /// As [`SmResource::split`](crate::resource::SmResource::split) and [`Device::create_context`]. Nothing is
    /// taken then.
    ///
    /// # Example
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
