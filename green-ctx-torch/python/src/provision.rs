//! What the drop-ins make contexts of: counts as the driver would round them, from the ledger.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use green_ctx::{
    Device, Driver, Error, Share, SplitRequest, Version,
    context::Context,
    resource::{Granularity, Provision, SmGroup},
};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::argument::Whole;
use crate::device::device;
use crate::fault::{Fault, advice};
use crate::gil::blocking;
use crate::green_context::GreenContext;
use crate::workqueue::{self, Workqueue};

/// The first driver that has green contexts.
const OLDEST: Version = Version::new(12, 4);

/// How a device's SMs can be cut.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    total: u32,
    min: u32,
    alignment: u32,
    /// The piece of which the counts of partitions are made.
    unit: u32,
}

impl Limits {
    /// The count that the driver would give: whole pieces, or all that there are.
    fn rounded(self, count: u32) -> u32 {
        let rounded = count.max(self.min).next_multiple_of(self.unit.max(1));
        if count <= self.total { rounded.min(self.total) } else { rounded }
    }
}

/// What is known of devices, so that asking is no driver call. Only taken without the GIL.
static KNOWN: Mutex<Vec<(u32, Limits)>> = Mutex::new(Vec::new());

/// A device and how it can be cut.
pub(crate) fn limits(ordinal: i64) -> Result<(Device, Limits), Fault> {
    let device = device(ordinal).map_err(runtime)?;
    let known = KNOWN.lock().iter().find(|(known, _)| *known == device.ordinal()).copied();
    if let Some((_, limits)) = known {
        return Ok((device, limits));
    }
    let sms = device.resources().sm().map_err(runtime)?;
    let units = sms.unit_counts(Granularity::Coarse).map_err(runtime)?;
    let limits = Limits {
        total: sms.sm_count(),
        min: sms.min_partition(),
        alignment: sms.alignment(),
        unit: units.first().copied().unwrap_or(sms.alignment()),
    };
    KNOWN.lock().push((device.ordinal(), limits));
    Ok((device, limits))
}

/// The originals raise RuntimeError for all that fails.
pub(crate) fn runtime(error: impl StdError + 'static) -> Fault {
    let error: &(dyn StdError + 'static) = &error;
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let reason = error.to_string();
        // A transparent error has its source's message as its own.
        if !message.ends_with(&reason) {
            message = format!("{message}: {reason}");
        }
        source = error.source();
    }
    let fault = error.downcast_ref().and_then(Fault::library);
    message.push_str(error.downcast_ref().or(fault).map_or("", advice));
    Fault::state(message)
}

/// What the ledger calls the SMs of the drop-ins' contexts, with a number for each: names are what the
/// allocator's accounts go by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropIn {
    GreenContext,
    FlashInfer,
    SgLang,
}

/// How many names were given out. A number says nothing but which context it is.
static NAMED: AtomicU64 = AtomicU64::new(0);

impl DropIn {
    const ALL: [DropIn; 3] = [DropIn::GreenContext, DropIn::FlashInfer, DropIn::SgLang];

    fn name(self) -> &'static str {
        match self {
            DropIn::GreenContext => "GreenContext",
            DropIn::FlashInfer => "flashinfer",
            DropIn::SgLang => "sglang",
        }
    }

    /// A name that no other context has or had.
    fn fresh_name(self) -> Arc<str> {
        let mut number = NAMED.fetch_add(1, Ordering::Relaxed) + 1;
        // By hand: formatting takes as long as a fifth of what else a context costs that is used again.
        let mut text = [b' '; 40];
        let mut begin = text.len();
        while number > 0 {
            begin -= 1;
            text[begin] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        let (name, end) = (self.name().as_bytes(), begin - 1);
        begin = end - name.len();
        text[begin..end].copy_from_slice(name);
        Arc::from(std::str::from_utf8(&text[begin..]).unwrap_or_default())
    }

    /// Whose context was given a name.
    pub(crate) fn of(name: &str) -> Option<DropIn> {
        let (of, number) = name.split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        // Read back: other texts stand for the number too.
        let was_given = (1..=NAMED.load(Ordering::Relaxed)).contains(&number)
            && name == format!("{of} {number}");
        DropIn::ALL.into_iter().find(|known| was_given && known.name() == of)
    }
}

/// What a green context is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    num_sms: Option<i64>,
    workqueue: Option<Workqueue>,
}

impl Request {
    pub(crate) fn read(
        num_sms: Option<Whole>,
        scope: Option<&str>,
        limit: Option<Whole>,
    ) -> Result<Request, Fault> {
        let read = |scope| {
            workqueue::scope(scope).ok_or_else(|| {
                Fault::value(format!(
                    "workqueue_scope must be 'device_ctx' or 'balanced', got '{scope}'"
                ))
            })
        };
        let scope = scope.map(read).transpose()?;
        if num_sms.is_none() && scope.is_none() {
            return Err(Fault::state(
                "At least one of num_sms or workqueue_scope must be specified, such as num_sms=16",
            ));
        }
        if limit.is_some() && scope.is_none() {
            return Err(Fault::state(
                "workqueue_concurrency_limit requires workqueue_scope to be set, such as 'balanced'",
            ));
        }
        let workqueue = scope.map(|scope| Workqueue::new(scope, limit));
        Ok(Request { num_sms: num_sms.map(|count| count.0), workqueue })
    }

    /// The SMs asked for.
    pub(crate) fn sm_count(self) -> Option<u32> {
        self.num_sms.and_then(|count| u32::try_from(count).ok())
    }

    pub(crate) fn create(self, ordinal: i64) -> Result<Context, Fault> {
        let (device, limits) = limits(ordinal)?;
        let wanted = self.num_sms.map(|count| checked(count, limits)).transpose()?;
        let workqueue = self.workqueue.map(|workqueue| workqueue.configure(&device));
        let workqueue = workqueue.transpose().map_err(runtime)?;
        let group = take(&device, wanted, limits).map_err(runtime)?;
        let provision: Provision = match workqueue {
            Some(workqueue) => group.with_workqueue(workqueue),
            None => group.into(),
        };
        device.create_context(provision).map_err(runtime)
    }
}

/// The SMs of a context: rounded up as the driver does or, where so many are not free, the next count
/// that is. Without a count every SM that nobody has for itself, shared with whoever else asks so.
fn take(device: &Device, wanted: Option<u32>, limits: Limits) -> green_ctx::Result<SmGroup> {
    let name = DropIn::GreenContext.fresh_name();
    let group = |share: Share| SplitRequest::new().group(Arc::clone(&name), share);
    let sms = device.resources().sm()?;
    let split = match wanted {
        None => match sms.split(group(Share::from(..))) {
            // What takes every unit takes them as finely as the others have cut them.
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
    first.ok_or_else(|| Error::InvalidRequest("the split gave no group".to_owned()))
}

/// A count that the device has.
fn checked(count: i64, limits: Limits) -> Result<u32, Fault> {
    let known = u32::try_from(count).ok().filter(|known| (1..=limits.total).contains(known));
    known.ok_or_else(|| {
        let total = limits.total;
        Fault::state(format!(
            "Invalid number of SMs requested for green context: {count} (device has {total} SMs); \
             ask for 1 to {total}"
        ))
    })
}

/// Whether the installed driver has green contexts.
#[pyfunction]
pub(crate) fn supported(py: Python<'_>) -> bool {
    py.detach(|| Driver::load().is_ok_and(|driver| driver.version() >= OLDEST))
}

/// A device's SMs, the least of a partition, the alignment, and of what counts are multiples.
#[pyfunction]
pub(crate) fn sm_limits(py: Python<'_>, device: Whole) -> PyResult<(u32, u32, u32, u32)> {
    let Limits { total, min, alignment, unit } = blocking(py, || Ok(limits(device.0)?.1))?;
    Ok((total, min, alignment, unit))
}

/// Contexts of these counts or, unless they are to be exact, of at least as many SMs: all of them, or with an
/// error none. They share no SMs with each other, and may share all of them with whoever has none for
/// itself.
#[pyfunction]
#[pyo3(signature = (device, counts, name, exact=true))]
pub(crate) fn split_green(
    py: Python<'_>,
    device: Whole,
    counts: Vec<u32>,
    name: &str,
    exact: bool,
) -> PyResult<Vec<GreenContext>> {
    let of = DropIn::ALL.into_iter().find(|known| known.name() == name);
    let of = of.ok_or_else(|| Fault::value(format!("there is no drop-in {name}")))?;
    blocking(py, move || {
        let (device, _) = limits(device.0)?;
        let sms = device.resources().sm().map_err(runtime)?;
        let group = |request: SplitRequest, count: &u32| request.group(of.fresh_name(), *count);
        let request = counts.iter().fold(SplitRequest::new().overlapping(true), group);
        let given = |granularity| {
            let would = sms.dry_run(request.clone().granularity(granularity))?;
            Ok::<Vec<u32>, Error>(would.groups.iter().map(|group| group.sm_count).collect())
        };
        // The pieces of 8 SMs of an H200 and its one of 12 make neither 64 and 64 nor 60 and 4.
        let coarse = given(Granularity::Coarse);
        let is_exact = |given: &Result<Vec<u32>, Error>| given.as_ref().is_ok_and(|g| *g == counts);
        let granularity = if exact && !is_exact(&coarse) && is_exact(&given(Granularity::Fine)) {
            Granularity::Fine
        } else {
            Granularity::Coarse
        };
        if exact && granularity == Granularity::Coarse && !is_exact(&coarse) {
            let given = coarse.map_err(runtime)?;
            return Err(Fault::state(format!(
                "{counts:?} SMs are asked for, and of what is in nobody's floor the device can give \
                 {given:?}; ask for these"
            )));
        }
        let split = sms.split(request.granularity(granularity)).map_err(runtime)?;
        let contexts = split.groups.into_iter().zip(counts).map(|(group, count)| {
            Ok(GreenContext::new(device.create_context(group).map_err(runtime)?, Some(count)))
        });
        contexts.collect()
    })
}
