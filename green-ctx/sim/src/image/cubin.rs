//! Cubins: ELF files for one architecture.
//!
//! LLVM documents most of NVIDIA's extensions to ELF (`llvm/BinaryFormat/ELF.h`: machine, flags,
//! `STO_CUDA_ENTRY`). Open-source tools that print `.nv.info` document the other extensions. The layouts
//! were compared with the output of ptxas 13.0.

use std::collections::HashMap;

use green_ctx_sys::CUresult;
use object::LittleEndian;
use object::elf::{self, FileHeader64, SectionHeader64};
use object::pod;
use object::read::elf::{FileHeader, SectionHeader, Sym};

use super::{Image, KernelInfo, Param, Target};
use crate::pointer::{Answer, refuse_if};

pub(super) const MAGIC: [u8; 4] = *b"\x7fELF";

/// The OS ABI in the ELF header of cubins from CUDA 13 on. This value marks a new layout of the flags.
const OS_CUDA_V2: u8 = 0x41;
/// The bit in a symbol's `st_other` that distinguishes kernels from device functions.
const STO_CUDA_ENTRY: u8 = 0x10;
/// The shared memory that is reserved per block from compute capability 9.0 on, in bytes. The size of a
/// section `.nv.shared.*` includes these bytes.
const RESERVED_SHARED: u64 = 1024;

type Header = FileHeader64<LittleEndian>;
type Section = SectionHeader64<LittleEndian>;

const LITTLE: LittleEndian = LittleEndian;

/// The architecture of a cubin. If `exact` is true, the cubin runs on that architecture only.
struct Architecture {
    number: u32,
    exact: bool,
}

impl Architecture {
    fn of(header: &Header) -> Architecture {
        let flags = header.e_flags(LITTLE).0;
        if header.e_ident().os_abi.0 == OS_CUDA_V2 {
            Architecture { number: flags >> 8 & 0xff, exact: flags & 8 != 0 }
        } else {
            Architecture { number: flags & 0xff, exact: flags & 0x800 != 0 }
        }
    }

    /// Returns whether a device can run the code. Unless `exact` is true, code runs on devices of the same
    /// major version with an equal or newer minor version (CUDA programming guide, "Binary compatibility").
    fn runs_on(&self, architecture: u32) -> bool {
        if self.exact {
            return self.number == architecture;
        }
        self.number / 10 == architecture / 10 && self.number <= architecture
    }
}

/// Returns the ELF header; `CUDA_ERROR_INVALID_IMAGE` if the file does not have the layout of a cubin.
fn parse(bytes: &[u8]) -> Answer<&Header> {
    let header = Header::parse(bytes).ok().filter(|header| header.is_little_endian());
    header.ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)
}

/// Reads a cubin.
pub(super) fn read(bytes: &[u8], target: Target) -> Answer<Image> {
    let header = parse(bytes)?;
    refuse_if(header.e_machine(LITTLE) != elf::EM_CUDA, CUresult::CUDA_ERROR_INVALID_IMAGE)?;
    let architecture = Architecture::of(header);
    refuse_if(!architecture.runs_on(target.architecture), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU)?;
    read_sections(header, bytes, architecture.number).ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)
}

fn read_sections(header: &Header, bytes: &[u8], architecture: u32) -> Option<Image> {
    let sections = header.sections(LITTLE, bytes).ok()?;
    let symbols = sections.symbols(LITTLE, bytes, elf::SHT_SYMTAB).ok()?;
    let names = sections
        .iter()
        .filter_map(|section| Some((sections.section_name(LITTLE, section).ok()?, section)));
    let file = Cubin { bytes, names: names.collect() };
    // The attributes of each kernel in the file, by attribute and symbol.
    let of_kernels: HashMap<(u8, u32), u32> =
        attributes(file.section(".nv.info").map_or(&[], |info| file.data(info)))
            .filter_map(|(attribute, value)| Some(((attribute, word(value, 0)?), word(value, 4)?)))
            .collect();
    let constant = file.section(".nv.constant3").map_or(0, |section| section.sh_size(LITTLE));
    let constant_bytes = u32::try_from(constant).ok()?;
    let virtual_architecture =
        file.section(".note.nv.cuinfo").and_then(|note| virtual_of(file.data(note)));

    let mut kernels = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.is_undefined(LITTLE) {
            continue;
        }
        let name = std::str::from_utf8(symbol.name(LITTLE, symbols.strings()).ok()?).ok()?;
        let is_entry = symbol.st_other().0 & STO_CUDA_ENTRY != 0;
        if symbol.st_type() != elf::STT_FUNC || !is_entry {
            continue;
        }
        let symbol = u32::try_from(index.0).ok()?;
        let of_this = |attribute| of_kernels.get(&(attribute, symbol)).copied();
        let mut kernel = file.kernel(name, architecture)?;
        kernel.registers = of_this(info::REGISTER_COUNT);
        kernel.local_bytes = of_this(info::FRAME_SIZE).unwrap_or(0);
        kernel.constant_bytes = constant_bytes;
        kernel.virtual_architecture = virtual_architecture.unwrap_or(architecture);
        kernels.push(kernel);
    }
    Some(Image::new(kernels))
}

/// The attribute numbers in `.nv.info` and `.nv.info.<kernel>`.
mod info {
    pub(super) const MAX_THREADS: u8 = 0x05;
    pub(super) const REQUIRED_BLOCK: u8 = 0x10;
    pub(super) const FRAME_SIZE: u8 = 0x11;
    pub(super) const PARAM: u8 = 0x17;
    pub(super) const REGISTER_COUNT: u8 = 0x2f;
    pub(super) const REQUIRED_CLUSTER: u8 = 0x3d;
    pub(super) const EXPLICIT_CLUSTER: u8 = 0x3e;
    /// A parameter whose size does not fit in the 14 bits that `PARAM` has for the size.
    pub(super) const LARGE_PARAM: u8 = 0x45;
}

struct Cubin<'a> {
    bytes: &'a [u8],
    names: HashMap<&'a [u8], &'a Section>,
}

impl<'a> Cubin<'a> {
    fn section(&self, name: &str) -> Option<&'a Section> {
        self.names.get(name.as_bytes()).copied()
    }

    /// Returns the bytes of a section; empty if the section lies outside the file.
    fn data(&self, section: &Section) -> &'a [u8] {
        section.data(LITTLE, self.bytes).unwrap_or_default()
    }

    /// Reads the sections that describe a kernel.
    fn kernel(&self, name: &str, architecture: u32) -> Option<KernelInfo> {
        let mut kernel = KernelInfo::named(name)?;
        if let Some(section) = self.section(&format!(".nv.shared.{name}")) {
            let reserved = if architecture >= 90 { RESERVED_SHARED } else { 0 };
            let bytes = section.sh_size(LITTLE).saturating_sub(reserved);
            kernel.shared_bytes = u32::try_from(bytes).ok()?;
        }
        let Some(section) = self.section(&format!(".nv.info.{name}")) else { return Some(kernel) };
        let mut params = Vec::new();
        for (attribute, value) in attributes(self.data(section)) {
            let sides = || Some([word(value, 0)?, word(value, 4)?, word(value, 8)?]);
            match attribute {
                info::PARAM | info::LARGE_PARAM => params.push(param(attribute, value)?),
                info::MAX_THREADS => kernel.bound_block(sides()?),
                info::REQUIRED_BLOCK => kernel.required_block = Some(sides()?),
                info::REQUIRED_CLUSTER => kernel.required_cluster = Some(sides()?),
                info::EXPLICIT_CLUSTER => kernel.explicit_cluster = true,
                _ => {}
            }
        }
        // The parameters are in any order, usually the last one first.
        params.sort_by_key(|(ordinal, _)| *ordinal);
        kernel.params = params.into_iter().map(|(_, param)| param).collect();
        Some(kernel)
    }
}

/// Iterates over the attributes in a section, as pairs of number and value. The format byte of an attribute
/// determines the length of the value.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    /// The format in which a length field precedes the value. In the other formats, a value has two bytes.
    const SIZED: u8 = 4;
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_at_checked(4)?;
        let (format, attribute) = (head[0], head[1]);
        if !(1..=SIZED).contains(&format) {
            return None;
        }
        if format < SIZED {
            bytes = rest;
            return Some((attribute, &head[2..]));
        }
        let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let (value, rest) = rest.split_at_checked(len)?;
        bytes = rest;
        Some((attribute, value))
    })
}

/// Returns a parameter and its ordinal. The layout is: index (4 bytes), ordinal and offset (2 bytes each),
/// then the size in the upper 14 bits of a word (`PARAM`) or in 2 bytes (`LARGE_PARAM`).
fn param(attribute: u8, value: &[u8]) -> Option<(u32, Param)> {
    let (place, last) = (word(value, 4)?, word(value, 8)?);
    let size = if attribute == info::PARAM { last >> 18 } else { last & 0xffff };
    let param = Param { offset: (place >> 16) as usize, size: size as usize };
    Some((place & 0xffff, param))
}

/// Returns the virtual architecture from NVIDIA's note section, `.note.nv.cuinfo`. The header and the name
/// of the note are followed by a version and the architecture, 2 bytes each.
fn virtual_of(note: &[u8]) -> Option<u32> {
    let name = word(note, 0)?.checked_next_multiple_of(4)? as usize;
    Some(word(note, name.checked_add(12)?)? >> 16).filter(|number| *number != 0)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Returns the length of a cubin in memory, which is the end of the last table or section. `read` copies
/// bytes from an offset. The machine type is not checked here but when the file is read (recorded on hardware).
pub(super) fn len(read: impl Fn(u64, &mut [u8]) -> Answer) -> Answer<u64> {
    const HEADER: u64 = size_of::<Header>() as u64;
    const SECTION: u64 = size_of::<Section>() as u64;
    let invalid = CUresult::CUDA_ERROR_INVALID_IMAGE;
    let mut head = [0; HEADER as usize];
    read(0, &mut head)?;
    let header = parse(&head)?;
    let count = u64::from(header.e_shnum(LITTLE));
    let start = header.e_shoff(LITTLE);
    // A file without sections is not an image, even for libraries (recorded on hardware).
    refuse_if(count == 0 || u64::from(header.e_shentsize(LITTLE)) != SECTION, invalid)?;
    let segments = u64::from(header.e_phnum(LITTLE)) * u64::from(header.e_phentsize(LITTLE));
    let mut end = HEADER;
    for (start, len) in [(start, count * SECTION), (header.e_phoff(LITTLE), segments)] {
        end = end.max(start.checked_add(len).ok_or(invalid)?);
    }
    for index in 0..count {
        let mut section = [0; SECTION as usize];
        // This cannot overflow, because the end of the table was computed above.
        read(start + index * SECTION, &mut section)?;
        let (section, _) = pod::from_bytes::<Section>(&section).map_err(|()| invalid)?;
        if let Some((start, len)) = section.file_range(LITTLE) {
            end = end.max(start.checked_add(len).ok_or(invalid)?);
        }
    }
    Ok(end)
}
