//! Operations on memory, host functions, and launch attributes.

use std::fmt;

use green_ctx::{DeviceBuffer, Stream, memory::PinnedBuffer};

use super::contexts::duration;
use super::{Done, KEPT, World};
use crate::machine::panic_quietly;
use crate::model::Way;
use crate::raw::{self, Kept, Special};
use crate::violation::{Rule, Violation};

/// The maximum number of buffers of a kind in a run.
const BUFFERS: usize = 3;

/// Host memory that a copy fills.
pub(super) struct Copied {
    target: PinnedBuffer<u32>,
    expected: Vec<u32>,
}

/// Copies values to the device and back, in stream order.
fn copy(
    stream: &Stream,
    values: &[u32],
    way: u32,
) -> green_ctx::Result<(DeviceBuffer<u32>, PinnedBuffer<u32>)> {
    let device = stream.context().device();
    let mut source = PinnedBuffer::zeroed(device, values.len())?;
    source.as_mut_slice()?.copy_from_slice(values);
    let mut target = PinnedBuffer::zeroed(device, values.len())?;
    let buffer = match way % 3 {
        0 => stream.allocate(values.len())?,
        1 => DeviceBuffer::zeroed(device, values.len())?,
        _ => DeviceBuffer::from_slice(device, values)?,
    };
    buffer.copy_from(&mut source, stream)?;
    buffer.copy_to(&mut target, stream)?;
    Ok((buffer, target))
}

impl World {
    pub(super) fn copy(&mut self, n: [u32; 4]) -> Done {
        if self.buffers.len() >= BUFFERS || self.copied.len() >= BUFFERS {
            return Done::Skipped;
        }
        let Some((stream, partition, of)) = self.lane(n[0]) else { return Done::Skipped };
        let expected: Vec<u32> = (0..=n[1] % 64).map(|at| at ^ n[2]).collect();
        self.say(|| format!("copy(&{of}, &{expected:?})?; // to the device and back"));
        match copy(&stream, &expected, n[3]) {
            Ok((buffer, target)) => {
                if n[2].is_multiple_of(2) {
                    // Stream-ordered memory holds a reference to its stream.
                    self.buffers.push((buffer, partition.filter(|_| n[3].is_multiple_of(3))));
                }
                self.copied.push(Copied { target, expected });
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        }
    }

    pub(super) fn drop_memory(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if n[0].is_multiple_of(2) {
            let Some((buffer, partition)) = self.buffers.pop() else { return Ok(Done::Skipped) };
            self.say(|| "drop(buffer);".to_owned());
            self.disturbed |= !self.captures.is_empty();
            drop(buffer);
            drop(partition);
            return Ok(Done::Ok);
        }
        let Some(Copied { target, expected }) = self.copied.pop() else {
            return Ok(Done::Skipped);
        };
        self.say(|| "drop(copied.as_slice()?);".to_owned());
        match target.as_slice() {
            Ok(found) if *found != *expected => Err(Violation::new(
                Rule::Answer,
                format!("{expected:?} were copied, but {found:?} came back"),
            )),
            Ok(_) => Ok(Done::Ok),
            Err(error) => Ok(Done::refused(&error)),
        }
    }

    pub(super) fn launch_host(&mut self, n: [u32; 4]) -> Done {
        let Some((stream, _, of)) = self.lane(n[0]) else { return Done::Skipped };
        let panics = n[1].is_multiple_of(4);
        self.say(|| format!("{of}.launch_host(|| ())?; // panics: {panics}"));
        Done::of(stream.launch_host(move || {
            if panics {
                panic_quietly("a function of a stream");
            }
        }))
    }

    pub(super) fn keep_alive(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let Some((stream, partition, of)) = self.lane(n[0]) else { return Ok(Done::Skipped) };
        if self.kept_streams.lock().len() >= KEPT {
            return Ok(Done::Skipped);
        }
        if let Err(error) = stream.keep_alive() {
            return Ok(Done::refused(&error));
        }
        // Borrowed streams, streams of the primary context and streams without a partition are not kept.
        let Some(partition) = partition.filter(|it| it.lease().is_some() && !self.is_borrowed(of))
        else {
            return Ok(Done::Ok);
        };
        self.keep(&stream, partition.context_id, of);
        Ok(Done::Ok)
    }

    /// Notes a stream that was kept alive.
    pub(super) fn keep(&mut self, stream: &Stream, context_id: u64, of: impl fmt::Display) -> Kept {
        let (name, kept) = (self.name(), Kept::new(stream, context_id));
        self.say(|| format!("let kept{name} = {of}; kept{name}.keep_alive()?; // its handle"));
        self.kept = true;
        self.kept_streams.lock().push((name, kept.clone()));
        kept
    }

    /// Checks that no kept stream was destroyed.
    pub(super) fn check_kept(&self) -> Result<(), Violation> {
        match self.kept_streams.lock().iter().find_map(|(_, kept)| kept.lost().ok()?) {
            None => Ok(()),
            Some(lost) => {
                Err(Violation::new(Rule::Left, format!("a kept stream was destroyed: {lost}")))
            }
        }
    }

    pub(super) fn launch_special(&mut self, n: [u32; 4]) -> Done {
        let Some((stream, partition, of)) = self.lane(n[0]) else { return Done::Skipped };
        let special =
            [Special::Cooperative, Special::Cluster, Special::Dependent][n[1] as usize % 3];
        let nanoseconds = duration(n[3]);
        self.say(|| format!("launch_special(&{of}, &kernel, {nanoseconds}, {special:?})?;"));
        self.launched = Some(Way::Direct);
        let kernel = self.kernel_for(&partition);
        Done::of(raw::launch_special(&stream, kernel, nanoseconds, special))
    }
}
