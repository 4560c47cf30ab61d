//! Operations on streams.

use std::sync::Arc;

use green_ctx::{StreamOptions, watch::Watch};

use super::contexts::duration;
use super::objects::StreamEntry;
use super::{Done, MOST, World};
use crate::model::Way;
use crate::raw::{self, Foreign, ForeignCapture};
use crate::violation::{Rule, Violation};

impl World {
    pub(super) fn make_stream(&mut self, n: [u32; 4]) -> Done {
        if self.streams.len() >= 2 * MOST {
            return Done::Skipped;
        }
        let Some((context, partition, of)) = self.place(n[0]) else { return Done::Skipped };
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
                self.streams.push(StreamEntry { name, stream, partition: Some(partition) });
                Done::Ok
            }
            Err(error) => Done::refused(&error),
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
                self.streams.push(StreamEntry { name, stream, partition: None });
                Done::Ok
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
        self.streams.push(StreamEntry { name, stream, partition });
        Done::Ok
    }

    pub(super) fn drop_stream(&mut self, n: [u32; 4]) -> Done {
        let Some(at) = self.pick(n[0], &self.streams) else { return Done::Skipped };
        let StreamEntry { name, stream, partition } = self.streams.remove(at);
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
                self.streams.push(StreamEntry { name, stream, partition: Some(partition) });
                Done::Ok
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
                let partition = Some(Arc::clone(&foreign.partition));
                self.streams.push(StreamEntry { name, stream, partition });
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        }
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
        if escapes != usize::from(!inside) && !self.faults {
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
