//! Operations on streams.

use std::sync::Arc;

use green_ctx::{Stream, StreamOptions, context::Context, watch::Watch};

use super::contexts::duration;
use super::objects::{ContextEntry, Name, StreamEntry};
use super::{Done, KEPT, MOST, World, endings};
use crate::account::Partition;
use crate::machine::Machine;
use crate::model::Way;
use crate::raw::{self, Foreign, ForeignCapture, Kept};
use crate::violation::{Rule, Violation};

impl World {
    pub(super) fn make_stream(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if self.streams.len() >= 2 * MOST {
            return Ok(Done::Skipped);
        }
        let Some((context, partition, of)) = self.place(n[0]) else { return Ok(Done::Skipped) };
        let priority = -i32::try_from(n[1] % 3).unwrap_or(0);
        match context.create_stream(StreamOptions::default().priority(priority)) {
            Ok(stream) => {
                let name = self.name();
                self.say(|| {
                    format!(
                        "let stream{name} = {of}\
                         .create_stream(StreamOptions::default().priority({priority}))?;"
                    )
                });
                if let Some(same) = self.streams.iter().find(|entry| entry.stream == stream) {
                    let seen =
                        format!("stream{name} is new, but is the same as stream{}", same.name);
                    return Err(Violation::new(Rule::Answer, seen));
                }
                Ok(self.enter_stream(name, stream, Some(partition), false))
            }
            Err(error) => Ok(Done::refused(&error)),
        }
    }

    pub(super) fn make_primary_stream(&mut self) -> Done {
        if self.streams.iter().filter(|entry| entry.partition.is_none()).count() >= 3 {
            return Done::Skipped;
        }
        let primary = self.machine.device.primary_context();
        match primary.and_then(|primary| primary.create_stream(StreamOptions::default())) {
            Ok(stream) => {
                let name = self.name();
                self.say(|| {
                    format!(
                        "let stream{name} = device.primary_context()?\
                         .create_stream(StreamOptions::default())?;"
                    )
                });
                self.enter_stream(name, stream, None, false)
            }
            Err(error) => Done::refused(&error),
        }
    }

    pub(super) fn clone_stream(&mut self, n: [u32; 4]) -> Done {
        if self.streams.len() >= 2 * MOST {
            return Done::Skipped;
        }
        let Some((stream, partition, of)) = self.lane(n[0]) else { return Done::Skipped };
        let name = self.name();
        self.say(|| format!("let stream{name} = {of}.clone();"));
        self.enter_stream(name, stream, partition, self.is_borrowed(of))
    }

    pub(super) fn drop_stream(&mut self, n: [u32; 4]) -> Done {
        let Some(at) = self.pick(n[0], &self.streams) else { return Done::Skipped };
        let StreamEntry { name, stream, partition, .. } = self.streams.remove(at);
        self.say(|| format!("drop(stream{name});"));
        self.disturbed |= !self.captures.is_empty();
        drop(stream);
        drop(partition);
        Done::Ok
    }

    pub(super) fn churn_streams(&mut self, n: [u32; 4]) -> Done {
        let Some((context, _partition, of)) = self.place(n[0]) else { return Done::Skipped };
        self.say(|| {
            format!("for _ in 0..100 {{ drop({of}.create_stream(StreamOptions::default())?); }}")
        });
        for _ in 0..100 {
            if let Err(error) = context.create_stream(StreamOptions::default()) {
                return Done::refused(&error);
            }
        }
        Done::Ok
    }

    pub(super) fn make_foreign(&mut self, n: [u32; 4]) -> Done {
        if self.foreign.len() >= MOST / 2 {
            return Done::Skipped;
        }
        let Some((context, partition, of)) = self.place(n[0]) else { return Done::Skipped };
        match Foreign::make(&context, &partition) {
            Ok(foreign) => {
                let name = self.name();
                self.say(|| format!("let foreign{name} = make_foreign_stream(&{of})?;"));
                self.foreign.push((name, Arc::new(foreign)));
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        }
    }

    pub(super) fn drop_foreign(&mut self, n: [u32; 4]) -> Done {
        let Some(at) = self.pick(n[0], &self.foreign) else { return Done::Skipped };
        let (name, foreign) = self.foreign.remove(at);
        self.say(|| format!("drop(foreign{name});"));
        self.disturbed |= !self.captures.is_empty();
        drop(foreign);
        Done::Ok
    }

    pub(super) fn adopt_owned(&mut self, n: [u32; 4]) -> Done {
        if self.streams.len() >= 2 * MOST {
            return Done::Skipped;
        }
        // A stream that no object borrows now.
        let alone = self.foreign_alone();
        let Some(at) = self.pick(n[0], &alone) else { return Done::Skipped };
        let (foreign_name, foreign) = self.foreign.remove(alone[at].1);
        let partition = Arc::clone(&foreign.partition);
        match foreign.give() {
            Ok(stream) => {
                let name = self.name();
                self.say(|| format!("let stream{name} = adopt_owned(foreign{foreign_name})?;"));
                self.enter_stream(name, stream, Some(partition), false)
            }
            Err((foreign, error)) => {
                self.foreign.push((foreign_name, foreign));
                Done::refused(&error)
            }
        }
    }

    pub(super) fn adopt_borrowed(&mut self, n: [u32; 4]) -> Done {
        if self.streams.len() >= 2 * MOST {
            return Done::Skipped;
        }
        let Some(at) = self.pick(n[0], &self.foreign) else { return Done::Skipped };
        let (foreign_name, foreign) = (self.foreign[at].0, Arc::clone(&self.foreign[at].1));
        let ends_with_a_stream = n[1].is_multiple_of(4);
        match foreign.lend(ends_with_a_stream) {
            Ok(stream) => {
                let name = self.name();
                self.say(|| {
                    format!(
                        "let stream{name} = adopt_borrowed(&foreign{foreign_name}, \
                         {ends_with_a_stream})?;"
                    )
                });
                self.enter_stream(name, stream, Some(Arc::clone(&foreign.partition)), true)
            }
            Err(error) => Done::refused(&error),
        }
    }

    /// Returns whether a stream borrows the driver's stream.
    pub(super) fn is_borrowed(&self, of: Name) -> bool {
        let Name::Stream(name) = of else { return false };
        self.streams.iter().any(|entry| entry.name == name && entry.is_borrowed)
    }

    /// Wraps a kept stream or its context, as foreign code does that has only the handle. If no partition has the
    /// context, the next partition on its SMs must have the same object.
    pub(super) fn wrap_kept(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if self.streams.len() >= 2 * MOST || self.contexts.len() >= MOST {
            return Ok(Done::Skipped);
        }
        let kept = self.kept_streams.lock().clone();
        let Some((of, kept)) = self.pick(n[0], &kept).map(|at| kept[at].clone()) else {
            return Ok(Done::Skipped);
        };
        let name = self.name();
        if n[1].is_multiple_of(4) {
            let context = match kept.wrap_context() {
                Ok(context) => context,
                Err(error) => return Ok(Done::refused(&error)),
            };
            self.say(|| format!("let context{name} = wrap_context(kept{of})?;"));
            let partition = self.account_of(&context)?;
            self.contexts.push(ContextEntry { name, context, partition });
            return Ok(Done::Ok);
        }
        let stream = match kept.wrap() {
            Ok(stream) => stream,
            Err(error) => return Ok(Done::refused(&error)),
        };
        self.say(|| format!("let stream{name} = wrap(kept{of})?;"));
        if !kept.is(&stream) {
            let seen = format!("kept{of} has two objects");
            return Err(Violation::new(Rule::Answer, seen));
        }
        let partition = self.account_of(stream.context())?;
        Ok(self.enter_stream(name, stream, Some(partition), true))
    }

    /// Returns a kept stream of one of these contexts, if necessary a new one.
    pub(super) fn kept_stream_of<'a>(
        &mut self,
        contexts: impl IntoIterator<Item = (&'a Context, &'a Arc<Partition>)>,
    ) -> Option<Kept> {
        let contexts: Vec<_> = contexts.into_iter().collect();
        let kept = self.kept_streams.lock().clone();
        let is_of = |kept: &Kept| contexts.iter().any(|(_, it)| it.context_id == kept.context_id);
        if let Some((_, kept)) = kept.iter().find(|(_, kept)| is_of(kept)) {
            return Some(kept.clone());
        }
        let (context, partition) = contexts.first()?;
        if kept.len() >= KEPT || partition.lease().is_none() {
            return None;
        }
        let stream = context.create_stream(StreamOptions::default().priority(-2)).ok()?;
        stream.keep_alive().ok()?;
        let of = format_args!("a stream of priority -2 of the context that is closed next");
        Some(self.keep(&stream, partition.context_id, of))
    }

    /// Calls `close`. Meanwhile another thread wraps the kept stream and launches work in it. That thread drops the
    /// stream again, or it is returned.
    pub(super) fn beside_wrap<T>(
        &mut self,
        kept: Option<Kept>,
        n: u32,
        close: impl FnOnce() -> T,
    ) -> (T, Option<Stream>) {
        let Some(kept) = kept.filter(|_| self.alone) else { return (close(), None) };
        let (stays, nanoseconds) = (n.is_multiple_of(2), duration(n >> 1));
        let (call, nth) = endings::call_of_close(n >> 8);
        self.say(|| {
            format!(
                "// before call {nth} of {call}: let stream = wrap(kept)?; launch(&stream, &kernel, \
                 {nanoseconds})?; the stream is dropped again: {}",
                !stays
            )
        });
        let Machine { sim, kernel, .. } = &self.machine;
        let kernel = kernel.clone();
        let wrap = move || {
            // After the end of the close, the context is idle.
            let stream = kept.wrap().ok().filter(|it| it.context().group().is_some())?;
            raw::launch(&stream, &kernel, nanoseconds).ok().filter(|()| stays).map(|()| stream)
        };
        let (closed, wrapped) = endings::beside((sim, call, nth), close, wrap);
        if wrapped.is_some() {
            self.launched = Some(Way::Direct);
        }
        (closed, wrapped.flatten())
    }

    /// Records a stream that another thread wrapped during a close, which was refused for that reason.
    pub(super) fn hold_wrapped(&mut self, wrapped: Option<Stream>) -> Result<(), Violation> {
        let Some(stream) = wrapped else { return Ok(()) };
        let (name, partition) = (self.name(), self.account_of(stream.context())?);
        self.say(|| format!("let stream{name} = /* the stream that the other thread wrapped */;"));
        self.enter_stream(name, stream, Some(partition), true);
        Ok(())
    }

    /// Checks that the work of a partition that was closed is done.
    pub(super) fn check_done(&mut self, partition: &Partition) -> Result<(), Violation> {
        let Some(lease) = partition.lease().filter(|_| self.alone && !self.faults) else {
            return Ok(());
        };
        self.check_launches(Way::Direct)?;
        if self.model.is_busy(lease.number) {
            let seen = format!("partition {} was closed while its work still runs", lease.number);
            return Err(Violation::new(Rule::Exclusive, seen));
        }
        Ok(())
    }

    pub(super) fn adopt_again(&mut self, n: [u32; 4]) -> Done {
        let Some(at) = self.pick(n[0], &self.foreign) else { return Done::Skipped };
        let (name, foreign) = (self.foreign[at].0, Arc::clone(&self.foreign[at].1));
        self.say(|| format!("for _ in 0..100 {{ drop(adopt_borrowed(&foreign{name}, false)?); }}"));
        for _ in 0..100 {
            if let Err(error) = foreign.lend(false) {
                return Done::refused(&error);
            }
        }
        Done::Ok
    }

    pub(super) fn launch(&mut self, n: [u32; 4]) -> Done {
        let Some((stream, partition, of)) = self.lane(n[0]) else { return Done::Skipped };
        let nanoseconds = duration(n[3]);
        self.say(|| format!("launch(&{of}, &kernel, {nanoseconds})?;"));
        self.launched = Some(Way::Direct);
        Done::of(raw::launch(&stream, self.kernel_for(&partition), nanoseconds))
    }

    pub(super) fn launch_foreign(&mut self, n: [u32; 4]) -> Done {
        // Work in a borrowed stream counts as that object's work.
        let alone = self.foreign_alone();
        let Some(at) = self.pick(n[0], &alone) else { return Done::Skipped };
        let (name, foreign) = &self.foreign[alone[at].1];
        let (name, nanoseconds) = (*name, duration(n[3]));
        let kernel = if self.alone { &self.machine.kernel } else { &self.machine.exempt };
        let done = Done::of(foreign.launch(kernel, nanoseconds));
        self.say(|| format!("launch_raw(foreign{name}, &kernel, {nanoseconds})?;"));
        self.launched = Some(Way::Foreign);
        done
    }

    /// Returns the names and indices of foreign streams that no object wraps.
    fn foreign_alone(&self) -> Vec<(u32, usize)> {
        let all = self.foreign.iter().enumerate();
        let alone = all.filter(|(_, (_, foreign))| Arc::strong_count(foreign) == 1);
        alone.map(|(at, (name, _))| (*name, at)).collect()
    }

    pub(super) fn order(&mut self, n: [u32; 4]) -> Done {
        let (Some((first, _, a)), Some((second, _, b))) = (self.lane(n[0]), self.lane(n[1])) else {
            return Done::Skipped;
        };
        self.say(|| format!("{a}.wait_for(&{b})?;"));
        Done::of(first.wait_for(&second))
    }

    pub(super) fn synchronize_stream(&mut self, n: [u32; 4]) -> Done {
        let Some((stream, _, of)) = self.lane(n[0]) else { return Done::Skipped };
        self.say(|| format!("{of}.synchronize()?;"));
        Done::of(stream.synchronize())
    }

    /// Checks that a watch distinguishes launches inside and outside its partition.
    pub(super) fn watch(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let (Some((context, _, of)), Some((stream, partition, name))) =
            (self.place(n[0]), self.lane(n[1]))
        else {
            return Ok(Done::Skipped);
        };
        let inside = stream.context() == &context;
        self.say(|| {
            format!(
                "let watch = Watch::new(&{of}); let watching = watch.launches(); \
                 launch(&{name}, &kernel, 5_000)?; drop(watching); // inside: {inside}"
            )
        });
        let watch = Watch::new(&context);
        let watching = watch.launches();
        self.launched = Some(Way::Direct);
        let launched = raw::launch(&stream, self.kernel_for(&partition), 5_000);
        drop(watching);
        if let Err(error) = launched {
            return Ok(Done::refused(&error));
        }
        let escapes = watch.escapes().len();
        // A captured launch is not reported, and another thread may capture a kept stream.
        let may_lack = self.faults || !self.alone;
        let expected = usize::from(!inside);
        if (escapes > expected && !self.faults) || (escapes < expected && !may_lack) {
            return Err(Violation::new(
                Rule::Answer,
                format!("a watch reported {escapes} escapes for a launch (inside: {inside})"),
            ));
        }
        Ok(Done::Ok)
    }

    pub(super) fn begin_foreign_capture(&mut self, n: [u32; 4]) -> Done {
        if !self.captures.is_empty() || !self.alone {
            return Done::Skipped;
        }
        let Some((context, _partition, of)) = self.place(n[0]) else { return Done::Skipped };
        match ForeignCapture::begin(&context) {
            Ok(capture) => {
                let name = self.name();
                self.say(|| format!("let capture{name} = begin_foreign_capture(&{of})?;"));
                self.captures.push((name, capture));
                self.disturbed = true;
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        }
    }

    pub(super) fn end_foreign_capture(&mut self, n: [u32; 4]) -> Done {
        let Some(at) = self.pick(n[0], &self.captures) else { return Done::Skipped };
        let (name, capture) = self.captures.remove(at);
        self.say(|| format!("end_foreign_capture(capture{name});"));
        if capture.end().is_err() {
            self.left_behind += 1;
        }
        Done::Ok
    }
}
