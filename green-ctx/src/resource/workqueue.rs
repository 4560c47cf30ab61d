//! Workqueues: through how many queues a context's work reaches the device, from CUDA 13.1 on.
//!
//! Everything here follows the header of CUDA 13.1 and newer and has not run on hardware yet.

use green_ctx_sys::{CUdevResource, CUdevResourceType, CUdevWorkqueueConfigScope, Version};

use super::sm;
use crate::dev_resource;
use crate::device::Device;
use crate::error::{Error, Result};
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
/// use green_ctx::{Driver, sim_0_1::Sim, resource::WorkqueueScope};
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
}

impl WorkqueueOptions {
    /// Sets who shares the queues.
    pub const fn scope(mut self, scope: WorkqueueScope) -> WorkqueueOptions {
        self.scope = Some(scope);
        self
    }

    /// Sets how many streams' work is expected to go on at the same time: from 1 to the device's
    /// budget.
    pub const fn concurrency_limit(mut self, limit: u32) -> WorkqueueOptions {
        self.concurrency_limit = Some(limit);
        self
    }
}

/// A configuration of workqueues for a context that is to be made
/// ([`SmGroup::with_workqueue`](crate::resource::SmGroup::with_workqueue)). Contexts that are made with clones of it have the same
/// configuration, each its own queues as far as the scope says.
#[derive(Clone, Debug)]
pub struct Workqueue {
    device: Device,
    config: Config,
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
        let config = Config { limit: part.wqConcurrencyLimit, scope };
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
    /// [`Error::InvalidRequest`] for a concurrency limit of 0, or above the limit of these queues,
    /// beyond which the driver would keep nothing apart (cuda.h).
    pub fn configure(&self, options: WorkqueueOptions) -> Result<Workqueue> {
        let most = self.config.limit;
        let limit = options.concurrency_limit.unwrap_or(most);
        if limit == 0 || limit > most {
            return Err(Error::InvalidRequest(format!(
                "a concurrency limit of {limit} was asked for; it can be from 1 to {most}"
            )));
        }
        let config = Config { limit, scope: options.scope.unwrap_or(self.config.scope) };
        Ok(Workqueue { device: self.device.clone(), config })
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
}

/// The resource of a configuration: the device's own, changed in place as the header says.
pub(super) fn provide(device: &Device, config: Config) -> Result<CUdevResource> {
    let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG;
    let mut resource = dev_resource::of_device(device.api(), device.as_raw(), kind)?;
    let part = dev_resource::workqueue_part(&mut resource);
    part.wqConcurrencyLimit = config.limit;
    part.sharingScope = raw_scope(config.scope);
    Ok(resource)
}
