//! Fat binaries: a header, then images for several architectures, each with its own header.
//!
//! The format is not documented. The offsets are those that open-source tools agree on. These offsets were
//! compared with the output of fatbinary 13.0.

use green_ctx_sys::CUresult;
use object::{LittleEndian, U16, U32, U64, pod};
use ruzstd::decoding::FrameDecoder;

use super::{Image, Target, cubin, read_text};
use crate::pointer::Answer;

pub(super) const MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

/// The maximum ratio of unpacked to packed size. A packed image typically has about a third of the unpacked
/// size. This maximum keeps a damaged length from exhausting the machine's memory.
const MAX_RATIO: u64 = 1 << 10;

const LITTLE: LittleEndian = LittleEndian;

/// The header of a fat binary.
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// The length of the header, in bytes.
    len: u64,
    /// The length of everything after the header, in bytes.
    rest: u64,
}

impl Head {
    pub(super) const LEN: usize = 16;

    /// Reads the header; `None` if `bytes` does not start with a valid header.
    pub(super) fn read(bytes: &[u8]) -> Option<Head> {
        let (magic, bytes) = bytes.split_first_chunk::<4>()?;
        let (_version, bytes) = take::<U16<LittleEndian>>(bytes)?;
        let (len, bytes) = take::<U16<LittleEndian>>(bytes)?;
        let (rest, _) = take::<U64<LittleEndian>>(bytes)?;
        let len = u64::from(len.get(LITTLE));
        let is_head = *magic == MAGIC && len >= Head::LEN as u64;
        is_head.then_some(Head { len, rest: rest.get(LITTLE) })
    }

    /// Returns the length of the fat binary.
    pub(super) fn total(self) -> Option<u64> {
        self.len.checked_add(self.rest)
    }
}

/// The contents of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ptx,
    Cubin,
    /// Other contents, such as intermediate code for the linker. The simulator skips such an entry unless
    /// the contents are PTX text, which counts as PTX despite the mark (recorded on hardware).
    Other,
}

/// One image in a fat binary.
struct Entry<'a> {
    kind: Kind,
    /// The architecture as a number, such as 90 for `sm_90`.
    architecture: u32,
    flags: u64,
    /// The image, which is either packed or padded with zeros at the end.
    payload: &'a [u8],
    /// The packed and the unpacked length of the image, in bytes.
    packed: u32,
    unpacked: u64,
}

/// The bits of `flags` that name the compression of an image.
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;

impl<'a> Entry<'a> {
    /// Reads the entry at the start of `bytes`. Returns the entry and the bytes after the entry.
    fn read(bytes: &'a [u8]) -> Option<(Entry<'a>, &'a [u8])> {
        let u16_at = |at| Some(take::<U16<LittleEndian>>(bytes.get(at..)?)?.0.get(LITTLE));
        let u32_at = |at| Some(take::<U32<LittleEndian>>(bytes.get(at..)?)?.0.get(LITTLE));
        let u64_at = |at| Some(take::<U64<LittleEndian>>(bytes.get(at..)?)?.0.get(LITTLE));
        let kind = match u16_at(0)? {
            1 => Kind::Ptx,
            2 => Kind::Cubin,
            _ => Kind::Other,
        };
        let head = usize::try_from(u32_at(4)?).ok().filter(|&head| head >= 64)?;
        let len = usize::try_from(u64_at(8)?).ok()?;
        let end = head.checked_add(len)?;
        let entry = Entry {
            kind,
            architecture: u32_at(28)?,
            flags: u64_at(40)?,
            payload: bytes.get(head..end)?,
            packed: u32_at(16)?,
            unpacked: u64_at(56)?,
        };
        Some((entry, &bytes[end..]))
    }

    /// Returns the unpacked image.
    fn unpack(&self) -> Answer<std::borrow::Cow<'a, [u8]>> {
        if self.flags & (LZ4 | ZSTD) == 0 {
            return Ok(self.payload.into());
        }
        let unpack = || {
            let packed = self.payload.get(..usize::try_from(self.packed).ok()?)?;
            let most = u64::from(self.packed) * MAX_RATIO;
            let len = usize::try_from(self.unpacked).ok().filter(|_| self.unpacked <= most)?;
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(len).ok()?;
            bytes.resize(len, 0);
            let written = if self.flags & ZSTD != 0 {
                FrameDecoder::new().decode_all(packed, &mut bytes).ok()?
            } else {
                lz4_flex::block::decompress_into(packed, &mut bytes).ok()?
            };
            bytes.truncate(written);
            Some(bytes.into())
        };
        unpack().ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)
    }

    /// Reads the image for a device; `None` if the image is for another device.
    fn image(&self, target: Target) -> Answer<Option<Image>> {
        let image = self.unpack().and_then(|bytes| match self.kind {
            Kind::Cubin => cubin::read(&bytes, target).map(Some),
            _ => read_text(&bytes, target),
        });
        match image {
            // The image is for another architecture after all: its suffix is not part of the fat binary's
            // entry.
            Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU) => Ok(None),
            Err(CUresult::CUDA_ERROR_INVALID_IMAGE | CUresult::CUDA_ERROR_INVALID_PTX)
                if self.kind == Kind::Other =>
            {
                Ok(None)
            }
            image => image,
        }
    }
}

/// Reads the image for a device: the newest cubin that runs on the device, or the newest PTX text if no
/// cubin does.
pub(super) fn read(bytes: &[u8], target: Target) -> Answer<Image> {
    let invalid = CUresult::CUDA_ERROR_INVALID_IMAGE;
    let head = Head::read(bytes).ok_or(invalid)?;
    let within = |len: u64| usize::try_from(len).ok();
    let range = within(head.len).zip(head.total().and_then(within));
    let mut rest = range.and_then(|(start, end)| bytes.get(start..end)).ok_or(invalid)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (entry, after) = Entry::read(rest).ok_or(invalid)?;
        rest = after;
        if entry.architecture <= target.architecture {
            entries.push(entry);
        }
    }
    // Binaries come first, because they need no compiler; within each kind the newest comes first.
    entries.sort_by_key(|entry| (entry.kind != Kind::Cubin, std::cmp::Reverse(entry.architecture)));
    for entry in entries {
        if let Some(image) = entry.image(target)? {
            return Ok(image);
        }
    }
    Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU)
}

fn take<T: pod::Pod>(bytes: &[u8]) -> Option<(&T, &[u8])> {
    pod::from_bytes(bytes).ok()
}
