//! Workqueues: the queues through which a context's work reaches the device (CUDA 13.1 and newer).
//!
//! This module follows the header of CUDA 13.1 and newer, and has not yet run on hardware.

use green_ctx_sys::{CUdevResource, CUdevResourceType, CUdevWorkqueueConfigScope, Version};

use super::sm;
use crate::handle::context::Context;
use crate::handle::dev_resource;
use crate::handle::device::Device;
use crate::handle::error::{Error, Result};
use crate::ledger::{WorkqueueConfig as Config, WorkqueueScope};

/// The first driver version with workqueues.
const WORKQUEUES: Version = Version::new(13, 1);
const CALL: &str = "the workqueue resource";

fn scope_of(raw: CUdevWorkqueueConfigScope) -> Result<WorkqueueScope> {
    match raw {
        CUdevWorkqueueConfigScope::CU_WORKQUEUE_SCOPE_DEVICE_CTX => Ok(WorkqueueScope::Device),
        CUdevWorkqueueConfigScope::CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED => {
            Ok(WorkqueueScope::GreenContextBalanced)
        }
        other => Err(Error::InvalidRequest(format!(
            "the driver reports the workqueue scope {}, which this crate does not support",
            other.0
        ))),
    }
}

fn raw_scope(scope: WorkqueueScope) -> CUdevWorkqueueConfigScope {
    match scope {
        WorkqueueScope::Device => CUdevWorkqueueConfigScope::CU_WORKQUEUE_SCOPE_DEVICE_CTX,
        WorkqueueScope::GreenContextBalanced => {
            CUdevWorkqueueConfigScope::CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED
        }
    }
}

/// The workqueues of a device, or those that a context was provisioned with.
///
/// Two partitions on different SMs can still block each other if their work goes through the same queue.
/// Creating a partition with its own queues gives the best chance to avoid such blocking (cuda.h).
///
/// Needs CUDA 13.1 or newer; not yet run on hardware.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use green_ctx::{Driver, sim::Sim, resource::WorkqueueScope};
///
/// let driver = Driver::simulated(&Sim::new("h200@13.1")?)?;
/// let device = driver.device(0)?;
///
/// // Two partitions with half of the queues each.
/// let half = device.resources().workqueue()?.divide(2)?;
/// for group in device.resources().sm()?.split([64, 64])?.groups {
///     let context = device.create_context(group.with_workqueue(half.clone()))?;
///     let queues = context.resources().workqueue()?;
///     assert_eq!(queues.scope(), WorkqueueScope::GreenContextBalanced);
///     assert_eq!(queues.concurrency_limit(), half.concurrency_limit());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias("CUdevWorkqueueConfigResource", "CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG"))]
pub struct WorkqueueResource {
    device: Device,
    config: Config,
}

/// Options for configuring workqueues. Options that are not set keep the values that the driver reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing until passed to a call"]
pub struct WorkqueueOptions {
    scope: Option<WorkqueueScope>,
    concurrency_limit: Option<u32>,
    beyond_budget: bool,
}

impl WorkqueueOptions {
    /// Sets which contexts share the queues.
    pub const fn scope(mut self, scope: WorkqueueScope) -> WorkqueueOptions {
        self.scope = Some(scope);
        self
    }

    /// Sets the number of streams whose work is expected to run at the same time. The smallest number is 1,
    /// and the largest is the [limit](WorkqueueResource::concurrency_limit) of the queues, unless
    /// [`beyond_budget`](WorkqueueOptions::beyond_budget) allows more.
    pub const fn concurrency_limit(mut self, limit: u32) -> WorkqueueOptions {
        self.concurrency_limit = Some(limit);
        self
    }

    /// Sets whether the concurrency limit may exceed the limit of the queues. The driver accepts a larger
    /// limit, but then does not guarantee that work is submitted through queues that do not overlap (cuda.h).
    pub const fn beyond_budget(mut self, allowed: bool) -> WorkqueueOptions {
        self.beyond_budget = allowed;
        self
    }
}

/// The workqueue of a context to be created
/// ([`SmGroup::with_workqueue`](crate::resource::SmGroup::with_workqueue)). A workqueue is either a
/// configuration or the queues of another context ([`Context::shared_workqueue`]).
///
/// Contexts created with clones of a configuration have equal configurations. Each of these contexts has its
/// own queues if the scope allows it.
#[derive(Clone, Debug)]
pub struct Workqueue {
    device: Device,
    config: Config,
    /// The context that owns the queues; `None` for a configuration.
    owner: Option<Context>,
}

impl Context {
    /// Returns the queues through which this context's work goes, for use by another context. If another
    /// context uses these queues, the two contexts can block each other, but the other context needs no
    /// queues of its own.
    ///
    /// The other context keeps this context alive and its SMs held, because the header does not say whether
    /// queues outlive the context that they were created for. A primary context uses the device's queues.
    ///
    /// Needs CUDA 13.1 or newer; not yet run on hardware.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] before CUDA 13.1, and [`Error::Driver`] if the driver fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200@13.1")?)?;
    /// # let device = driver.device(0)?;
    /// # let mut groups = device.resources().sm()?.split([16, 32])?.groups.into_iter();
    /// # let mut group = || groups.next().ok_or("two groups");
    /// # let half = device.resources().workqueue()?.divide(2)?;
    /// let first = device.create_context(group()?.with_workqueue(half))?;
    /// let second = device.create_context(group()?.with_workqueue(first.shared_workqueue()?))?;
    /// assert_eq!(second.resources().workqueue()?.concurrency_limit(), 4);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "CU_DEV_RESOURCE_TYPE_WORKQUEUE")]
    pub fn shared_workqueue(&self) -> Result<Workqueue> {
        let WorkqueueResource { device, config } = self.resources().workqueue()?;
        let owner = self.owner_of_queues();
        let config = Config { of: Some(owner.id()?), ..config };
        Ok(Workqueue { device, config, owner: Some(owner) })
    }
}

impl WorkqueueResource {
    /// Reads the workqueues from the driver, if it is new enough.
    pub(super) fn read(
        device: &Device,
        fetch: impl FnOnce(CUdevResourceType) -> Result<CUdevResource>,
    ) -> Result<WorkqueueResource> {
        sm::check_version(device, WORKQUEUES, CALL)?;
        let mut resource = fetch(CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG)?;
        let part = dev_resource::workqueue_part(&mut resource);
        let scope = scope_of(part.sharingScope)?;
        let config = Config { limit: part.wqConcurrencyLimit, scope, of: None };
        Ok(WorkqueueResource { device: device.clone(), config })
    }

    /// Returns the device that the queues belong to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the number of streams whose work can run at the same time without sharing a queue. For a device, this is
    /// the number of queues that `CUDA_DEVICE_MAX_CONNECTIONS` sets. For a context it is the number that the context
    /// was provisioned with.
    #[must_use]
    #[doc(alias = "wqConcurrencyLimit")]
    pub fn concurrency_limit(&self) -> u32 {
        self.config.limit
    }

    /// Returns which contexts share the queues.
    #[must_use]
    #[doc(alias = "sharingScope")]
    pub fn scope(&self) -> WorkqueueScope {
        self.config.scope
    }

    /// Returns a configuration for a context, within the limits of these queues. Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] if the concurrency limit is 0, or if it exceeds the limit of these queues
    /// and [`beyond_budget`](WorkqueueOptions::beyond_budget) is not set.
    pub fn configure(&self, options: WorkqueueOptions) -> Result<Workqueue> {
        let most = self.config.limit;
        let limit = options.concurrency_limit.unwrap_or(most);
        if limit == 0 || (limit > most && !options.beyond_budget) {
            return Err(Error::InvalidRequest(format!(
                "the concurrency limit {limit} is out of range; use 1 to {most}"
            )));
        }
        let config = Config { limit, scope: options.scope.unwrap_or(self.config.scope), of: None };
        Ok(Workqueue { device: self.device.clone(), config, owner: None })
    }

    /// Returns a configuration that divides these queues equally among `contexts` contexts. Create each of
    /// the contexts with a clone of the configuration. The concurrency limit of each context is the limit of
    /// these queues divided by `contexts`, rounded down. Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] if `contexts` is 0 or exceeds the number of queues.
    pub fn divide(&self, contexts: u32) -> Result<Workqueue> {
        let most = self.config.limit;
        match most.checked_div(contexts) {
            None | Some(0) => Err(Error::InvalidRequest(format!(
                "{most} queues cannot be divided among {contexts} contexts; divide them among 1 to \
                 {most}"
            ))),
            Some(limit) => self.configure(
                WorkqueueOptions::default()
                    .scope(WorkqueueScope::GreenContextBalanced)
                    .concurrency_limit(limit),
            ),
        }
    }
}

impl Workqueue {
    /// Returns the concurrency limit.
    #[must_use]
    pub fn concurrency_limit(&self) -> u32 {
        self.config.limit
    }

    /// Returns which contexts share the queues.
    #[must_use]
    pub fn scope(&self) -> WorkqueueScope {
        self.config.scope
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn config(&self) -> Config {
        self.config
    }

    /// Returns the context that owns the queues. A context that uses the queues must keep the owner alive.
    pub(crate) fn into_owner(self) -> Option<Context> {
        self.owner
    }

    /// Returns the driver's resource: another context's queues, or the device's configuration with changed
    /// values, as the header prescribes.
    pub(super) fn provide(&self) -> Result<CUdevResource> {
        if let Some(owner) = &self.owner {
            return owner.dev_resource(CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE);
        }
        let (device, kind) =
            (&self.device, CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG);
        let mut resource = dev_resource::of_device(device.functions()?, device.as_raw(), kind)?;
        let part = dev_resource::workqueue_part(&mut resource);
        part.wqConcurrencyLimit = self.config.limit;
        part.sharingScope = raw_scope(self.config.scope);
        Ok(resource)
    }
}
