//! Workqueues: through how many queues a context's work reaches the device, from CUDA 13.1 on.
//!
//! Everything here follows the header of CUDA 13.1 and newer and has not run on hardware yet.

use green_ctx_sys::{CUdevResource, CUdevResourceType, CUdevWorkqueueConfigScope, Version};

use super::sm;
use crate::handle::context::Context;
use crate::handle::dev_resource;
use crate::handle::device::Device;
use crate::handle::error::{Error, Result};
use crate::ledger::{WorkqueueConfig as Config, WorkqueueScope};

/// The first driver with workqueues.
const WORKQUEUES: Version = Version::new(13, 1);
const CALL: &str = "the workqueue resource";

fn scope_of(raw: CUdevWorkqueueConfigScope) -> Result<WorkqueueScope> {
    match raw {
        CUdevWorkqueueConfigScope::CU_WORKQUEUE_SCOPE_DEVICE_CTX => Ok(WorkqueueScope::Device),
        CUdevWorkqueueConfigScope::CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED => {
            Ok(WorkqueueScope::GreenContextBalanced)
        }
        other => Err(Error::InvalidRequest(format!(
            "the driver reports the workqueue scope {}, which this crate does not know",
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
/// Two partitions with SMs of their own can still wait for each other where their work goes through
/// one queue. A partition that is made with queues of its own has the best chance not to (cuda.h).
///
/// CUDA 13.1 or newer; not yet run on hardware.
///
/// # Example
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

/// How to configure workqueues. What is not set stays as the driver reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing until passed to a call"]
pub struct WorkqueueOptions {
    scope: Option<WorkqueueScope>,
    concurrency_limit: Option<u32>,
    beyond_budget: bool,
}

impl WorkqueueOptions {
    /// Sets who shares the queues.
    pub const fn scope(mut self, scope: WorkqueueScope) -> WorkqueueOptions {
        self.scope = Some(scope);
        self
    }

    /// Sets how many streams' work is expected to go on at the same time: from 1 to the device's
    /// budget, or more where that is [allowed](WorkqueueOptions::beyond_budget).
    pub const fn concurrency_limit(mut self, limit: u32) -> WorkqueueOptions {
        self.concurrency_limit = Some(limit);
        self
    }

    /// Whether the limit may be above the budget. The driver takes that, and does not guarantee then that
    /// work is submitted through queues that do not overlap (cuda.h).
    pub const fn beyond_budget(mut self, allowed: bool) -> WorkqueueOptions {
        self.beyond_budget = allowed;
        self
    }
}

/// Workqueues for a context that is to be made
/// ([`SmGroup::with_workqueue`](crate::resource::SmGroup::with_workqueue)): a configuration, or those of another context
/// ([`Context::shared_workqueue`]). Contexts that are made with clones of a configuration have the same one, each
/// its own queues as far as the scope says.
#[derive(Clone, Debug)]
pub struct Workqueue {
    device: Device,
    config: Config,
    /// The context whose queues they are.
    owner: Option<Context>,
}

impl Context {
    /// The queues themselves that this context's work goes through, for another context that is to use the
    /// same: their work then waits for each other where queues do, and neither needs queues of its own.
    ///
    /// The other context keeps this one, with its SMs, for as long as it lives: whether queues outlive the
    /// context that they were made for, the header does not say. Of the primary context they are the
    /// device's.
    ///
    /// CUDA 13.1 or newer; not yet run on hardware.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], and [`Error::Unsupported`] before CUDA 13.1.
    ///
    /// # Example
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
    /// Reads what the driver says, once it is known to be new enough.
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

    /// The device that the queues are of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many streams' work can go on at the same time without sharing a queue: of a device its
    /// budget, which `CUDA_DEVICE_MAX_CONNECTIONS` sets, of a context what it was provisioned with.
    #[must_use]
    #[doc(alias = "wqConcurrencyLimit")]
    pub fn concurrency_limit(&self) -> u32 {
        self.config.limit
    }

    /// Who shares the queues.
    #[must_use]
    #[doc(alias = "sharingScope")]
    pub fn scope(&self) -> WorkqueueScope {
        self.config.scope
    }

    /// A configuration for a context, within what these queues allow. No driver call is made.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] for a concurrency limit of 0, or above the limit of these queues where that
    /// is not [allowed](WorkqueueOptions::beyond_budget).
    pub fn configure(&self, options: WorkqueueOptions) -> Result<Workqueue> {
        let most = self.config.limit;
        let limit = options.concurrency_limit.unwrap_or(most);
        if limit == 0 || (limit > most && !options.beyond_budget) {
            return Err(Error::InvalidRequest(format!(
                "a concurrency limit of {limit} was asked for; it can be from 1 to {most}"
            )));
        }
        let config = Config { limit, scope: options.scope.unwrap_or(self.config.scope), of: None };
        Ok(Workqueue { device: self.device.clone(), config, owner: None })
    }

    /// An equal part of these queues for each of `contexts` contexts, balanced among them: the
    /// concurrency limit divided, rounded down. No driver call is made.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] for no contexts, or for more than there are queues.
    pub fn divide(&self, contexts: u32) -> Result<Workqueue> {
        let most = self.config.limit;
        match most.checked_div(contexts) {
            None | Some(0) => Err(Error::InvalidRequest(format!(
                "{most} queues cannot be divided among {contexts} contexts; it can be from 1 to \
                 {most} of them"
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
    /// The concurrency limit.
    #[must_use]
    pub fn concurrency_limit(&self) -> u32 {
        self.config.limit
    }

    /// Who shares the queues.
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

    /// The context that one with these queues keeps.
    pub(crate) fn into_owner(self) -> Option<Context> {
        self.owner
    }

    /// The driver's resource: another context's queues, or the device's configuration, changed in place as
    /// the header says.
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
