//! What operations do, and when: an operation is submitted at one time and has its effect at
//! another, when virtual time reaches its end.
//!
//! Effects wait in one queue in the order of their times. Whatever an operation waits for ends
//! before it begins, so this order keeps every order that streams, events and the host promise, and
//! needs no other rule. The queue is looked at when time goes on: at the beginning of a call and at
//! the end of a wait.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use green_ctx_sys::CUresult;

use crate::callback::Callback;
use crate::pointer::{Answer, Kept};
use crate::state::State;

/// Bytes from one place to another.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) to: Place,
    pub(crate) from: Place,
    pub(crate) len: usize,
}

/// Where a copy reads or writes.
#[derive(Clone)]
pub(crate) enum Place {
    /// Memory that the driver knows: of a device, or of the host if it is page-locked.
    Device(u64),
    /// Other memory of the program, read when the copy is submitted and written when it ends.
    Host(Kept<c_void>),
}

/// What an operation does at its end.
pub(crate) enum Effect {
    /// Writes bytes to addresses, in this order.
    Write(Vec<Written>),
    /// Copies from page-locked memory of the host, which the program may have changed meanwhile.
    Copy { from: u64, copy: Copy },
    /// Repeats a pattern from an address on, over this many bytes.
    Fill { address: u64, pattern: Vec<u8>, len: usize },
    /// Writes bytes to memory of the program.
    Deliver { to: Kept<c_void>, bytes: Vec<u8> },
    /// Gives up an allocation that was freed in stream order, or that a graph had.
    Release(u64, bool),
    /// Fails, and with it every context of the device.
    Fault(CUresult),
    /// Lets the program's function run.
    Call(Callback),
    /// Lets go of what an executable graph that is gone has held.
    LetGo(Arc<dyn Any + Send + Sync>),
}

/// Bytes written to one place.
pub(crate) struct Written {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The effects that are yet to come, by their time and, at one time, in the order of submission.
pub(crate) struct Effects {
    queue: BTreeMap<(u64, u64), Queued>,
    /// When the first is due; `u64::MAX` where there is none.
    pub(crate) next: u64,
    /// How many there have been.
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
    /// Lets something happen on a device at a time.
    pub(crate) fn later(&mut self, time: u64, device: usize, effect: Effect) {
        let effects = &mut self.effects;
        effects.count += 1;
        effects.queue.insert((time, effects.count), Queued { device, effect });
        effects.next = effects.next.min(time);
    }

    /// Lets happen everything whose time has come.
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

    /// Lets happen at once what is left to happen on a device.
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
                    // Memory that is gone cannot be written to any more.
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
                // The call refused a null pointer.
                let _ = to.pointer().cast::<u8>().write_bytes(&bytes);
            }
            Effect::Copy { from, copy } => {
                // What it comes after has happened.
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

    /// Changes bytes that were read from an address into what they will be at `time`.
    pub(crate) fn foresee(&self, time: u64, address: u64, out: &mut [u8]) {
        if self.effects.next > time {
            return;
        }
        self.foresee_until((time, u64::MAX), address, out);
    }

    /// Changes bytes into what they will be just before an effect.
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
    /// The bytes that a copy moves, as they are when it begins.
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

    /// The bytes that a copy reads, just before an effect; `None` if they are gone.
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

/// What a copy does with the bytes that it moves.
pub(crate) fn deliver(copy: &Copy, bytes: Vec<u8>) -> Effect {
    match copy.to {
        Place::Device(address) => Effect::Write(vec![Written { address, bytes }]),
        Place::Host(to) => Effect::Deliver { to, bytes },
    }
}

impl Written {
    /// The addresses that these bytes are written to.
    pub(crate) fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes.len() as u64
    }

    /// Puts these bytes over those that were read from `address`, as far as they are the same ones.
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
