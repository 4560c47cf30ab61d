//! Creation of the contexts behind `GreenContext`, the drop-in replacement for torch's class.

use std::sync::Arc;

use green_ctx::{
    Device, Error, Share, SplitRequest,
    context::Context,
    resource::{ContextResources, Granularity, SmGroup},
};

use crate::argument::{Whole, Word};
use crate::description::{Claim, Description};
use crate::drop_in::DropIn;
use crate::fault::Fault;
use crate::limits::{Limits, limits, runtime};
use crate::workqueue::{self, Workqueue};

/// A request for a green context.
#[derive(Clone)]
pub(crate) struct Request {
    sms: Sms,
    workqueue: Option<Workqueue>,
}

/// The requested SMs.
#[derive(Clone)]
enum Sms {
    /// All SMs that are in no floor. Other contexts may use these SMs too.
    Shared,
    Count(i64),
    Described(Arc<Description>),
}

impl Request {
    pub(crate) fn read(
        num_sms: Option<Whole>,
        described: Option<Arc<Description>>,
        scope: Option<Word>,
        limit: Option<Whole>,
    ) -> Result<Request, Fault> {
        let read = |Word(scope): Word| {
            workqueue::scope(&scope).ok_or_else(|| {
                Fault::value(format!(
                    "workqueue_scope must be 'device_ctx' or 'balanced', got '{scope}'"
                ))
            })
        };
        let scope = scope.map(read).transpose()?;
        let sms = match (num_sms, described) {
            (Some(_), Some(_)) => {
                return Err(Fault::value(
                    "num_sms and sm_partition cannot be combined; split the SMPartition, and pass only a part",
                ));
            }
            (None, None) if scope.is_none() => {
                return Err(Fault::state(
                    "At least one of num_sms, sm_partition or workqueue_scope must be specified, such as \
                     num_sms=16",
                ));
            }
            (None, None) => Sms::Shared,
            (Some(Whole(count)), None) => Sms::Count(count),
            (None, Some(description)) => Sms::Described(description),
        };
        if limit.is_some() && scope.is_none() {
            return Err(Fault::state(
                "workqueue_concurrency_limit requires workqueue_scope to be set, such as 'balanced'",
            ));
        }
        let workqueue = scope.map(|scope| Workqueue::new(scope, limit));
        Ok(Request { sms, workqueue })
    }

    /// Returns a request for the SMs of one part of a split, with the workqueue of this request.
    pub(crate) fn of_part(&self, part: Arc<Description>) -> Request {
        Request { sms: Sms::Described(part), ..self.clone() }
    }

    pub(crate) fn create(self, ordinal: i64) -> Result<Created, Fault> {
        let (device, limits) = limits(ordinal)?;
        let workqueue = self.workqueue.map(|workqueue| workqueue.configure(&device));
        let workqueue = workqueue.transpose().map_err(runtime)?;
        let (name, mut claim) = (DropIn::GreenContext.fresh_name(), None);
        let (requested, group) = match self.sms {
            Sms::Shared => (None, take(&device, &name, None, limits).map_err(runtime)?),
            Sms::Count(count) => {
                let count = checked(count, limits)?;
                (Some(count), take(&device, &name, Some(count), limits).map_err(runtime)?)
            }
            Sms::Described(description) => {
                let claimed = claim.insert(description.claim(name)?);
                (Some(description.sm_count()), description.take(&device, claimed.name())?)
            }
        };
        let provision: ContextResources = match workqueue {
            Some(workqueue) => group.with_workqueue(workqueue),
            None => group.into(),
        };
        let context =
            device.create_context(provision).map_err(|error| runtime(Error::from(error)))?;
        Ok(Created { context, requested, claim })
    }
}

/// A new context, with the requested number of SMs and the claim to the SMs.
pub(crate) struct Created {
    pub(crate) context: Context,
    /// The requested number of SMs.
    pub(crate) requested: Option<u32>,
    /// The claim to the context's SMs, if the request gave an `SMPartition`.
    pub(crate) claim: Option<Arc<Claim>>,
}

impl Created {
    /// Wraps a context whose request gave only a number of SMs.
    pub(crate) fn counted(context: Context, requested: Option<u32>) -> Created {
        Created { context, requested, claim: None }
    }
}

/// Takes the SMs for a new context. The count `wanted` is rounded up as the driver rounds counts. If too few SMs are
/// free for the rounded count, the ledger rounds `wanted` itself. If `wanted` is `None`, the context takes every SM
/// that is in no floor, and shares these SMs with other contexts.
fn take(
    device: &Device,
    name: &Arc<str>,
    wanted: Option<u32>,
    limits: Limits,
) -> green_ctx::Result<SmGroup> {
    let group = |share: Share| SplitRequest::new().group(Arc::clone(name), share);
    let sms = device.resources().sm()?;
    let split = match wanted {
        None => match sms.split(group(Share::from(..))) {
            // The group takes every unit, so it can follow the finer units into which other groups cut the device.
            Err(Error::CutInUse { .. }) => {
                sms.split(group(Share::from(..)).granularity(Granularity::Fine))
            }
            split => split,
        },
        Some(count) => match sms.split(group(limits.rounded(count).into())) {
            Err(Error::NotEnoughSms(_)) => sms.split(group(count.into())),
            split => split,
        },
    };
    let first = split?.groups.into_iter().next();
    first.ok_or_else(|| Error::InvalidRequest("the split returned no group".to_owned()))
}

/// Checks that the device has this many SMs.
fn checked(count: i64, limits: Limits) -> Result<u32, Fault> {
    let known = u32::try_from(count).ok().filter(|known| (1..=limits.sizes.sms).contains(known));
    known.ok_or_else(|| {
        let total = limits.sizes.sms;
        Fault::state(format!(
            "Invalid number of SMs requested for green context: {count} (device has {total} SMs); \
             ask for 1 to {total}"
        ))
    })
}
