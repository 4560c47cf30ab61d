//! The effects of operations. An operation takes effect not at submission but later, when virtual time
//! reaches the end of the operation.
//!
//! Pending effects form one queue, ordered by time. An operation begins only after everything that the
//! operation waits for has ended. The order by time therefore respects streams, events and host waits
//! without further rules. The queue is processed when time advances: at the beginning of a call and at the
//! end of a wait.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use green_ctx_sys::CUresult;

use crate::callback::Callback;
use crate::pointer::{Answer, Kept};
use crate::state::State;

/// A copy of bytes from one place to another.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) to: Place,
    pub(crate) from: Place,
    pub(crate) len: usize,
}

/// The source or target of a copy.
#[derive(Clone)]
pub(crate) enum Place {
    /// Memory that the driver knows: device memory, or page-locked host memory.
    Device(u64),
    /// Other memory of the program. The simulator reads a source when the copy is submitted, and writes a
    /// target when the copy ends.
    Host(Kept<c_void>),
}

/// The effect of an operation at its end.
pub(crate) enum Effect {
    /// Writes these bytes to memory, in the order of the list.
    Write(Vec<Written>),
    /// Copies from page-locked host memory, which the program may change until the copy ends.
    Copy { from: u64, copy: Copy },
    /// Fills `len` bytes at an address with a repeated pattern.
    Fill { address: u64, pattern: Vec<u8>, len: usize },
    /// Writes bytes to memory of the program.
    Deliver { to: Kept<c_void>, bytes: Vec<u8> },
    /// Releases an allocation that was freed in stream order. The flag is true if a graph allocated the
    /// memory.
    Release(u64, bool),
    /// Makes the device fail. Later calls that use the device return this status.
    Fault(CUresult),
    /// Adds a function of the program to the list of due functions.
    Call(Callback),
    /// Drops the references that a destroyed executable graph holds.
    LetGo(Arc<dyn Any + Send + Sync>),
}

/// Bytes written to one address.
pub(crate) struct Written {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The pending effects, ordered by time. Effects with equal times are in the order of submission.
pub(crate) struct Effects {
    queue: BTreeMap<(u64, u64), Queued>,
    /// The time of the first effect; `u64::MAX` if there is none.
    pub(crate) next: u64,
    /// The number of effects so far.
    count: u64,
}

struct Queued {
    device: usize,
    effect: Effect,
}

impl Default for Effects {
    fn default() -> Effects {
        Effects { queue: BTreeMap::new(), next: u64::MAX, count: 0 }
    }
}

impl Effects {
    fn see_next(&mut self) {
        self.next = self.queue.first_key_value().map_or(u64::MAX, |(&(time, _), _)| time);
    }
}

impl State {
    /// Queues an effect on a device, to be carried out at `time`.
    pub(crate) fn later(&mut self, time: u64, device: usize, effect: Effect) {
        let effects = &mut self.effects;
        effects.count += 1;
        effects.queue.insert((time, effects.count), Queued { device, effect });
        effects.next = effects.next.min(time);
    }

    /// Carries out all effects that are due.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.effects.next <= self.now {
            self.settle_due();
        }
    }

    #[cold]
    fn settle_due(&mut self) {
        while let Some(first) = self.effects.queue.first_entry()
            && first.key().0 <= self.now
        {
            let Queued { device, effect } = first.remove();
            self.happen(device, effect);
        }
        self.effects.see_next();
    }

    /// Carries out all pending effects of a device immediately.
    pub(crate) fn settle_device(&mut self, device: usize) {
        let here = |queued: &Queued| queued.device == device;
        let (now, later) = std::mem::take(&mut self.effects.queue)
            .into_iter()
            .partition(|(_, queued)| here(queued));
        self.effects.queue = later;
        self.effects.see_next();
        let now: BTreeMap<(u64, u64), Queued> = now;
        now.into_values().for_each(|queued| self.happen(device, queued.effect));
    }

    fn happen(&mut self, device: usize, effect: Effect) {
        match effect {
            Effect::Write(writes) => {
                for Written { address, bytes } in writes {
                    // Memory that no longer exists is not written.
                    if let Some(memory) = self.standing_memory(address, bytes.len()) {
                        memory.copy_from_slice(&bytes);
                    }
                }
            }
            Effect::Fill { address, pattern, len } => {
                if let Some(memory) = self.standing_memory(address, len) {
                    if let [byte] = pattern[..] {
                        memory.fill(byte);
                        return;
                    }
                    let chunks = memory.chunks_exact_mut(pattern.len());
                    chunks.for_each(|chunk| chunk.copy_from_slice(&pattern));
                }
            }
            Effect::Deliver { to, bytes } => {
                // The call already refused null pointers.
                let _ = to.pointer().cast::<u8>().write_bytes(&bytes);
            }
            Effect::Copy { from, copy } => {
                // Everything that precedes the copy has already taken effect.
                if let Some(bytes) = self.standing_bytes(from, copy.len, (0, 0)) {
                    self.happen(device, deliver(&copy, bytes));
                }
            }
            Effect::Release(address, of_graph) => {
                let memory = self.drop_memory(address).filter(|_| of_graph);
                self.spare.extend(memory);
            }
            Effect::LetGo(plan) => drop(plan),
            Effect::Fault(error) => self.devices[device].fault = Some(error),
            Effect::Call(callback) => {
                let status = self.unpoisoned(device).err().unwrap_or(CUresult::CUDA_SUCCESS);
                self.due.push((callback, status));
                self.came_due += 1;
            }
        }
    }

    /// Changes bytes that were read from an address to the values that they will have at `time`.
    pub(crate) fn foresee(&self, time: u64, address: u64, out: &mut [u8]) {
        if self.effects.next > time {
            return;
        }
        self.foresee_until((time, u64::MAX), address, out);
    }

    /// Changes bytes to the values that they will have just before the effect with the key `until`.
    fn foresee_until(&self, until: (u64, u64), address: u64, out: &mut [u8]) {
        for (&key, queued) in self.effects.queue.range(..until) {
            match &queued.effect {
                Effect::Copy { from, copy } => {
                    let Place::Device(to) = copy.to else { continue };
                    let end = to + copy.len as u64;
                    if to >= address + out.len() as u64 || end <= address {
                        continue;
                    }
                    if let Some(bytes) = self.standing_bytes(*from, copy.len, key) {
                        Written { address: to, bytes }.over(address, out);
                    }
                }
                Effect::Write(writes) => writes.iter().for_each(|write| write.over(address, out)),
                Effect::Fill { address: start, pattern, len } => {
                    let value = |offset: u64| pattern[(offset % pattern.len() as u64) as usize];
                    for (at, byte) in (address..).zip(&mut *out) {
                        if let Some(offset) = at.checked_sub(*start).filter(|at| *at < *len as u64)
                        {
                            *byte = value(offset);
                        }
                    }
                }
                Effect::Deliver { .. }
                | Effect::Release(..)
                | Effect::Fault(_)
                | Effect::Call(_)
                | Effect::LetGo(_) => {}
            }
        }
    }
}

impl State {
    /// Returns the bytes that a copy reads, with the values that they will have at `start`.
    pub(crate) fn gather(&self, start: u64, copy: &Copy) -> Answer<Vec<u8>> {
        let mut bytes = vec![0; copy.len];
        match copy.from {
            _ if bytes.is_empty() => {}
            Place::Host(from) => from.pointer().cast::<u8>().read_bytes(&mut bytes)?,
            Place::Device(from) => {
                bytes.copy_from_slice(self.target(from, copy.len)?);
                self.foresee(start, from, &mut bytes);
            }
        }
        Ok(bytes)
    }

    /// Returns the bytes that a copy reads, with the values just before the effect with the key `until`;
    /// `None` if the memory no longer exists.
    fn standing_bytes(&self, from: u64, len: usize, until: (u64, u64)) -> Option<Vec<u8>> {
        if len == 0 {
            return Some(Vec::new());
        }
        let (base, allocation) = self.allocation(from)?;
        let start = (from - base) as usize;
        let mut bytes = allocation.bytes().get(start..start + len)?.to_vec();
        self.foresee_until(until, from, &mut bytes);
        Some(bytes)
    }
}

/// Returns the effect that writes `bytes` to the target of a copy.
pub(crate) fn deliver(copy: &Copy, bytes: Vec<u8>) -> Effect {
    match copy.to {
        Place::Device(address) => Effect::Write(vec![Written { address, bytes }]),
        Place::Host(to) => Effect::Deliver { to, bytes },
    }
}

impl Written {
    /// Returns the addresses of the bytes.
    pub(crate) fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes.len() as u64
    }

    /// Writes these bytes over the part of `out` that has the same addresses. `out` was read from
    /// `address`.
    pub(crate) fn over(&self, address: u64, out: &mut [u8]) {
        let Range { start, end } = self.range();
        let (from, to) = (start.max(address), end.min(address + out.len() as u64));
        if from < to {
            let within = |base: u64| (from - base) as usize..(to - base) as usize;
            out[within(address)].copy_from_slice(&self.bytes[within(start)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_go_over_those_at_the_same_addresses() {
        let write = |address| Written { address, bytes: vec![1, 2, 3] };
        for (address, expected) in [
            (7, [0, 0, 0, 0]),
            (8, [3, 0, 0, 0]),
            (9, [2, 3, 0, 0]),
            (10, [1, 2, 3, 0]),
            (12, [0, 0, 1, 2]),
            (13, [0, 0, 0, 1]),
            (14, [0, 0, 0, 0]),
        ] {
            let mut out = [0; 4];
            write(address).over(10, &mut out);
            assert_eq!(out, expected, "{address}");
        }
    }
}
