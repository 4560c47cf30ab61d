//! What the drop-ins make contexts of: counts as the driver would round them, from the ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use green_ctx::{
    Device, Driver, Error, Share, SplitRequest, Version,
    context::Context,
    resource::{ContextResources, Granularity, SmGroup, UnitSizes},
};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::argument::{Whole, Word};
use crate::description::{Claim, Description};
use crate::device::device;
use crate::fault::Fault;
use crate::gil::blocking;
use crate::green_context::GreenContext;
use crate::workqueue::{self, Workqueue};

/// The first driver that has green contexts.
const OLDEST: Version = Version::new(12, 4);

/// How a device's SMs can be cut.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) sizes: UnitSizes,
    min: u32,
    pub(crate) alignment: u32,
}

impl Limits {
    /// The count that the driver would give: whole pieces, or all that there are.
    fn rounded(self, count: u32) -> u32 {
        let rounded = self.sizes.round_up(count.max(self.min), false);
        if count <= self.sizes.sms { rounded.min(self.sizes.sms) } else { rounded }
    }

    /// The groups of so many SMs, and how many remain; 0 is as many as can be scheduled together. Nothing
    /// is rounded.
    pub(crate) fn divide(self, sm_count: u32, counts: &[u32]) -> Result<(Vec<u32>, u32), Fault> {
        let too_many = || {
            let counts = counts.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            Fault::state(format!(
                "groups of {counts} SMs do not fit into {sm_count} SMs, which are {}; ask for fewer",
                self.pieces(sm_count)
            ))
        };
        let (mut units, mut odd) = self.sizes.exactly(sm_count).ok_or_else(too_many)?;
        let mut given = Vec::with_capacity(counts.len());
        for count in counts {
            let (regular, has_odd) = match count {
                0 if units > 0 => (units, false),
                0 => (0, true),
                _ => self.sizes.exactly(*count).ok_or_else(|| self.inexact(*count, sm_count))?,
            };
            if regular > units || (has_odd && !odd) {
                return Err(too_many());
            }
            units -= regular;
            odd &= !has_odd;
            given.push(self.sms(regular, has_odd));
        }
        Ok((given, self.sms(units, odd)))
    }

    fn sms(self, units: u32, odd: bool) -> u32 {
        units * self.sizes.unit + if odd { self.sizes.odd } else { 0 }
    }

    /// The pieces of a count, as text.
    fn pieces(self, count: u32) -> String {
        match self.sizes.exactly(count) {
            Some((units, true)) => {
                format!("{units} pieces of {} SMs and one of {}", self.sizes.unit, self.sizes.odd)
            }
            _ => format!("pieces of {} SMs", self.sizes.unit),
        }
    }

    /// That no pieces make up a count.
    fn inexact(self, count: u32, sm_count: u32) -> Fault {
        let is_exact = |count: &u32| self.sizes.exactly(*count).is_some();
        let end = sm_count.saturating_add(1);
        let (below, above) =
            ((1..count.min(end)).rev().find(is_exact), (count..end).find(is_exact));
        let near: Vec<String> =
            [below, above].into_iter().flatten().map(|count| count.to_string()).collect();
        Fault::state(format!(
            "{count} SMs cannot be given exactly; ask for {} or, from CUDA 13.1 on, for SMs that are \
             scheduled together in smaller numbers, with coscheduled_sm_count=2",
            near.join(" or ")
        ))
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
    let limits = Limits {
        sizes: sms.unit_sizes(Granularity::Coarse).map_err(runtime)?,
        min: sms.min_partition(),
        alignment: sms.alignment(),
    };
    KNOWN.lock().push((device.ordinal(), limits));
    Ok((device, limits))
}

/// A failure of a drop-in: the originals raise RuntimeError for every failure.
pub(crate) fn runtime(error: impl Into<Fault>) -> Fault {
    Fault::Runtime(Box::new(error.into()))
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
#[derive(Clone)]
pub(crate) struct Request {
    sms: Sms,
    workqueue: Option<Workqueue>,
}

/// Which SMs.
#[derive(Clone)]
enum Sms {
    /// Those that nobody has for itself.
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
                    "num_sms and sm_partition exclude each other; split the SMPartition, and give a part of it",
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

    /// The SMs of a part of a split, with the workqueue of this request.
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

/// A context, and what it was made of.
pub(crate) struct Created {
    pub(crate) context: Context,
    /// The SMs asked for.
    pub(crate) requested: Option<u32>,
    /// Where an `SMPartition` describes its SMs.
    pub(crate) claim: Option<Arc<Claim>>,
}

impl Created {
    /// Of a context that was made for so many SMs.
    pub(crate) fn counted(context: Context, requested: Option<u32>) -> Created {
        Created { context, requested, claim: None }
    }
}

/// The SMs of a context: rounded up as the driver does or, where so many are not free, the next count
/// that is. Without a count every SM that nobody has for itself, shared with whoever else asks so.
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
    let known = u32::try_from(count).ok().filter(|known| (1..=limits.sizes.sms).contains(known));
    known.ok_or_else(|| {
        let total = limits.sizes.sms;
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
    let Limits { sizes, min, alignment } = blocking(py, || Ok(limits(device.0)?.1))?;
    Ok((sizes.sms, min, alignment, sizes.unit))
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
            return Err(Fault::unavailable(format!(
                "{counts:?} SMs are asked for, and of what is in nobody's floor the device can give \
                 {given:?}; ask for these"
            )));
        }
        let split = sms.split(request.granularity(granularity)).map_err(runtime)?;
        let contexts = split.groups.into_iter().zip(counts).map(|(group, count)| {
            let context =
                device.create_context(group).map_err(|error| runtime(Error::from(error)))?;
            Ok(GreenContext::of(Created::counted(context, Some(count))))
        });
        contexts.collect()
    })
}
