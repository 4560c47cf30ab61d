//! Running a program: the part of the child process.

use core::ffi::{CStr, c_char, c_void};
use std::collections::HashMap;
use std::ffi::CString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::ptr::null_mut;

use green_ctx_sys::{CUdriverProcAddressQueryResult, CUresult, CUstream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::function::{Field, Function, Kind, Shape, What};
use super::functions;
use super::model::Model;
use super::params::{BYTES, RESOURCE};
use super::program::{Arg, Buffer, Made, Program, Step, Symbol};
use crate::driver::Driver;

/// The code that the programs load.
const IMAGE: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("kernels.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    };

/// Pages of pageable memory.
const PAGES: usize = 16;

/// The most arguments that a function has.
const WORDS: usize = 11;

/// What a driver answered to one step, one line of a file of answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The program.
    pub program: String,
    /// The step, with its function and arguments.
    #[serde(flatten)]
    pub step: Step,
    /// The status, or `absent`, `skipped`, or how the process ended.
    pub status: String,
    /// What the driver wrote, where it succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrote: Vec<Value>,
}

/// The driver has no such function.
pub(crate) const ABSENT: &str = "absent";
/// A step that this one needs did not succeed.
pub(crate) const SKIPPED: &str = "skipped";

/// A value that a step wrote.
enum Stored {
    Word(u64),
    Bytes(Vec<u64>),
}

/// Memory of a process that runs one program. All of it stays until the process ends, since the driver
/// may remember any address.
struct Process<'a> {
    driver: &'a Driver,
    addresses: HashMap<&'static str, *mut c_void>,
    stored: HashMap<Made, Stored>,
    /// The last name of each handle.
    names: HashMap<(Kind, u64), Made>,
    model: Model,
    buffers: Vec<Box<[u64]>>,
    texts: Vec<CString>,
    pages: *mut u8,
    file: Option<PathBuf>,
}

/// Runs a program and writes each answer as soon as it is there, so that those before a crash are known.
pub(crate) fn execute(driver: &Driver, program: &Program, out: &mut dyn Write) -> io::Result<()> {
    let layout =
        std::alloc::Layout::from_size_align(PAGES * BYTES, BYTES).map_err(io::Error::other)?;
    // SAFETY: the layout's size is not 0.
    let pages = unsafe { std::alloc::alloc_zeroed(layout) };
    if pages.is_null() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let mut process = Process {
        driver,
        addresses: HashMap::new(),
        stored: HashMap::new(),
        names: HashMap::new(),
        model: Model::default(),
        buffers: Vec::new(),
        texts: Vec::new(),
        pages,
        file: None,
    };
    let result = program.steps.iter().try_for_each(|step| {
        let function = functions::find(&step.call)
            .ok_or_else(|| io::Error::other(format!("no function {}", step.call)))?;
        let (status, wrote) = process.run(function, step)?;
        let line = json!({ "step": step.step, "status": status, "wrote": wrote });
        writeln!(out, "{line}")?;
        out.flush()
    });
    if let Some(file) = &process.file {
        std::fs::remove_file(file)?;
    }
    result
}

impl Process<'_> {
    fn run(
        &mut self,
        function: &'static Function,
        step: &Step,
    ) -> io::Result<(String, Vec<Value>)> {
        if function.args.len() != step.args.len() {
            return Err(io::Error::other(format!("{} has other arguments", step.call)));
        }
        let needed = step.uses().into_iter().all(|made| self.stored.contains_key(&made));
        if !needed {
            self.model.apply(function, step);
            return Ok((SKIPPED.to_owned(), Vec::new()));
        }
        let Some(address) = self.address(function) else {
            self.model.apply(function, step);
            return Ok((ABSENT.to_owned(), Vec::new()));
        };
        let mut words = [0; WORDS];
        for ((word, shape), arg) in words.iter_mut().zip(function.args).zip(&step.args) {
            *word = self.word(shape, arg)?;
        }
        // SAFETY: each argument is an integer, or null, or the address of live memory that is as large as
        // the function's argument says, or a handle, which may be a dead one because that is what is
        // asked. What a call may reach later lasts as long as the process.
        let status = unsafe { call(address, words) };
        self.model.apply(function, step);
        let mut wrote = Vec::new();
        if status == CUresult::CUDA_SUCCESS {
            let mut place = 0;
            for ((shape, arg), word) in function.args.iter().zip(&step.args).zip(words) {
                self.read(shape, arg, word, step.step, &mut place, &mut wrote);
            }
        }
        Ok((status.to_string(), wrote))
    }

    /// Where the driver has the function.
    fn address(&mut self, function: &'static Function) -> Option<*mut c_void> {
        let entry = self.driver.calls.api.entry();
        let address = self.addresses.entry(function.export).or_insert_with(|| {
            let Ok(name) = CString::new(function.name()) else { return null_mut() };
            let mut address = null_mut();
            let mut found = CUdriverProcAddressQueryResult(0);
            let version = i32::try_from(function.version).unwrap_or(i32::MAX);
            // SAFETY: a terminated name and two live places.
            let status =
                unsafe { entry(name.as_ptr(), &raw mut address, version, 0, &raw mut found) };
            if status == CUresult::CUDA_SUCCESS { address } else { null_mut() }
        });
        (!address.is_null()).then_some(*address)
    }

    /// An argument as the function takes it.
    fn word(&mut self, shape: &Shape, arg: &Arg) -> io::Result<u64> {
        Ok(match arg {
            Arg::Number(number) => *number,
            Arg::Buffer(buffer) => self.buffer(buffer)?,
            Arg::Symbol(Symbol::Out) => self.keep(vec![0; size(shape).div_ceil(8)]),
            Arg::Symbol(Symbol::Made(made)) => match self.stored.get(made) {
                Some(Stored::Word(word)) => *word,
                Some(Stored::Bytes(bytes)) => {
                    let bytes = bytes.clone();
                    self.keep(bytes)
                }
                None => 0,
            },
            Arg::Symbol(Symbol::Image) => IMAGE.as_ptr() as u64,
            Arg::Symbol(Symbol::Text(text)) => {
                let text = CString::new(text.as_str()).map_err(io::Error::other)?;
                self.texts.push(text);
                self.texts.last().map_or(0, |text| text.as_ptr() as u64)
            }
            Arg::Symbol(Symbol::Host(offset)) => self.pages as u64 + *offset as u64,
            Arg::Symbol(Symbol::Callback) => callback as *const () as u64,
            Arg::Symbol(Symbol::StreamCallback) => stream_callback as *const () as u64,
            Arg::Symbol(Symbol::File) => {
                let path = std::env::temp_dir().join(format!("fuzz-{}.ptx", std::process::id()));
                if self.file.is_none() {
                    std::fs::write(&path, IMAGE.to_bytes())?;
                    self.file = Some(path.clone());
                }
                let text = CString::new(path.into_os_string().into_encoded_bytes());
                self.texts.push(text.map_err(io::Error::other)?);
                self.texts.last().map_or(0, |text| text.as_ptr() as u64)
            }
        })
    }

    /// Makes a structure and returns its address.
    fn buffer(&mut self, buffer: &Buffer) -> io::Result<u64> {
        let mut bytes = vec![0_u8; buffer.size.next_multiple_of(8)];
        for (offset, width, arg) in &buffer.at {
            let value: Vec<u8> = match arg {
                Arg::Symbol(Symbol::Made(made))
                    if matches!(self.stored.get(made), Some(Stored::Bytes(_))) =>
                {
                    match self.stored.get(made) {
                        Some(Stored::Bytes(words)) => {
                            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
                        }
                        _ => Vec::new(),
                    }
                }
                Arg::Number(0) => continue,
                arg => self.word(&Shape::Skip(8), arg)?.to_ne_bytes().to_vec(),
            };
            let to = bytes.get_mut(*offset..offset + width);
            let from = value.get(..*width);
            match (to, from) {
                (Some(to), Some(from)) => to.copy_from_slice(from),
                _ => return Err(io::Error::other("a field is outside of its structure")),
            }
        }
        let words = bytes.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_ne_bytes(bytes)
        });
        Ok(self.keep(words.collect()))
    }

    /// Keeps memory until the process ends, and returns its address. One word more than is asked for, so
    /// that it has an address of its own even if nothing is.
    fn keep(&mut self, mut words: Vec<u64>) -> u64 {
        words.push(0);
        self.buffers.push(words.into());
        self.buffers.last_mut().map_or(0, |words| words.as_mut_ptr() as u64)
    }

    /// Reads what was written for one argument.
    fn read(
        &mut self,
        shape: &Shape,
        arg: &Arg,
        address: u64,
        step: u32,
        place: &mut u32,
        wrote: &mut Vec<Value>,
    ) {
        let mut next = || {
            let made = Made { step, place: *place };
            *place += 1;
            made
        };
        // A null pointer and a number are no memory, but they have their place among the values.
        let passed = !matches!(arg, Arg::Number(_));
        match *shape {
            Shape::New(kind) => {
                let made = next();
                if passed {
                    wrote.push(self.named(kind, word(address, 8), made, true));
                }
            }
            Shape::Find(kind) => {
                let made = next();
                if passed {
                    wrote.push(self.named(kind, word(address, 8), made, false));
                }
            }
            Shape::Several(kind, count) => {
                for index in 0..count {
                    let made = next();
                    let handle = if passed { word(address + 8 * index as u64, 8) } else { 0 };
                    if handle != 0 {
                        wrote.push(self.named(kind, handle, made, false));
                    }
                }
            }
            Shape::Number(width) if passed => wrote.push(word(address, width).into()),
            Shape::Name if passed => wrote.push(text(word(address, 8)).into()),
            Shape::Resources(_, count) => {
                for index in 0..count {
                    let made = next();
                    if passed {
                        wrote.push(self.resource(address + (index * RESOURCE) as u64, made));
                    }
                }
            }
            Shape::Made(_, fields) | Shape::Fields(_, fields) => {
                for Field(offset, width, what) in fields {
                    let made = next();
                    if !passed {
                        continue;
                    }
                    let value = word(address + *offset as u64, *width);
                    wrote.push(match what {
                        What::Number => value.into(),
                        What::Find(kind) => self.named(*kind, value, made, false),
                        What::New(kind) => self.named(*kind, value, made, true),
                    });
                }
            }
            _ => {}
        }
    }

    /// What a handle is called: as the step that made it, while that should be alive.
    fn named(&mut self, kind: Kind, handle: u64, made: Made, new: bool) -> Value {
        if handle == 0 {
            return Value::Null;
        }
        let key = (kind.family(), handle);
        let known = self.names.get(&key).copied();
        let shared = matches!(
            kind,
            Kind::Primary
                | Kind::DefaultPool
                | Kind::Derived
                | Kind::Kernel
                | Kind::Function
                | Kind::LibraryModule
                | Kind::ChildGraph
        );
        self.stored.insert(made, Stored::Word(handle));
        if let Some(known) = known
            && (!new || shared)
            && (self.model.find(known).is_none() || self.model.lives(known))
        {
            return known.to_string().into();
        }
        self.names.insert(key, made);
        "new".into()
    }

    /// A resource: its type, and of SMs the number, the minimum and the alignment.
    fn resource(&mut self, address: u64, made: Made) -> Value {
        let words = (0..RESOURCE as u64 / 8).map(|index| word(address + 8 * index, 8)).collect();
        self.stored.insert(made, Stored::Bytes(words));
        json!([
            word(address, 4),
            word(address + 96, 4),
            word(address + 100, 4),
            word(address + 104, 4)
        ])
    }
}

/// How much memory the driver may write for an argument, in bytes.
fn size(shape: &Shape) -> usize {
    match *shape {
        Shape::Several(_, count) => 8 * count,
        Shape::Number(bytes) | Shape::Skip(bytes) | Shape::Fields(bytes, _) => bytes,
        Shape::Resources(_, count) => RESOURCE * count,
        _ => 8,
    }
}

/// The integer of `width` bytes at an address.
fn word(address: u64, width: usize) -> u64 {
    let mut bytes = [0; 8];
    let bytes_at = core::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the address is in memory that `keep` made for the argument, and its fields lie in there.
    unsafe { core::ptr::copy_nonoverlapping(bytes_at, bytes.as_mut_ptr(), width.min(8)) };
    u64::from_le_bytes(bytes)
}

/// The text that the driver gave the address of.
fn text(address: u64) -> String {
    let text = core::ptr::with_exposed_provenance::<c_char>(address as usize);
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the driver succeeded, and names are terminated and last as long as what they name.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

unsafe extern "C" fn callback(_: *mut c_void) {}

unsafe extern "C" fn stream_callback(_: CUstream, _: CUresult, _: *mut c_void) {}

/// Calls a function of the driver with up to [`WORDS`] integers and addresses.
///
/// # Safety
///
/// As the function that is there demands of its arguments.
unsafe fn call(address: *mut c_void, words: [u64; WORDS]) -> CUresult {
    type Any =
        unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> CUresult;
    // SAFETY: no argument of these functions is a floating-point number or a structure, so in the C
    // calling conventions of x86-64 and of AArch64 on Linux each takes one register or eight bytes of
    // the stack, the callee reads as much of them as it declares, and the caller cleans up: words beyond
    // those are not looked at.
    let function = unsafe { core::mem::transmute::<*mut c_void, Any>(address) };
    let [a, b, c, d, e, f, g, h, i, j, k] = words;
    // SAFETY: the caller's promise.
    unsafe { function(a, b, c, d, e, f, g, h, i, j, k) }
}
