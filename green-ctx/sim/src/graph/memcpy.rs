//! Copy nodes.

use std::ffi::c_void;

use green_ctx_sys::{CUDA_MEMCPY3D_v2, CUmemorytype, CUresult};

use super::kind::{At, Kind};
use super::node::{Action, Node, Read};
use crate::effects::{Copy, Place};
use crate::pointer::{Answer, Ptr, invalid_if, valid};
use crate::state::State;

/// A copy of a box of bytes, as `CUDA_MEMCPY3D` describes it. CUDA arrays are not simulated.
#[derive(Clone)]
pub(crate) struct Memcpy {
    from: End,
    to: End,
    /// The size of the box: bytes per row (`width`), rows per slice (`height`), and slices (`depth`).
    width: usize,
    height: usize,
    depth: usize,
}

/// The source or target of a copy.
#[derive(Clone)]
struct End {
    kind: CUmemorytype,
    place: Place,
    /// The offset of the box from the place, in bytes, rows and slices.
    offset: [usize; 3],
    /// The distance between rows in bytes (`pitch`), and between slices in rows (`rows`).
    pitch: usize,
    rows: usize,
}

impl End {
    /// Returns the source or target of a copy that has one row of `len` bytes.
    fn at(place: Place, len: usize) -> End {
        let kind = match place {
            Place::Host(_) => CUmemorytype::CU_MEMORYTYPE_HOST,
            Place::Device(_) => CUmemorytype::CU_MEMORYTYPE_DEVICE,
        };
        End { kind, place, offset: [0; 3], pitch: len, rows: usize::from(len > 0) }
    }

    /// Returns the place of one row.
    fn row(&self, row: usize, slice: usize) -> Place {
        let [x, y, z] = self.offset;
        let rows = (z + slice) * self.rows + y + row;
        let bytes = rows * self.pitch + x;
        match &self.place {
            Place::Device(address) => Place::Device(address + bytes as u64),
            Place::Host(from) => {
                let from = from.pointer().cast::<u8>().element(bytes).cast::<c_void>();
                Place::Host(from.into())
            }
        }
    }

    /// Returns the distance from the place to the end of the box, in bytes; `None` if rows or slices
    /// overlap.
    fn end(&self, [width, height, depth]: [usize; 3]) -> Option<usize> {
        let [x, y, z] = self.offset;
        let (in_row, in_slice) = (x.checked_add(width)?, y.checked_add(height)?);
        let slices = z.checked_add(depth)?;
        if in_slice > 1 && in_row > self.pitch || slices > 1 && in_slice > self.rows {
            return None;
        }
        let rows = (slices - 1).checked_mul(self.rows)?.checked_add(in_slice - 1)?;
        rows.checked_mul(self.pitch)?.checked_add(in_row)
    }

    /// Refuses memory that does not exist, and rows that overlap.
    fn check(&self, state: &State, size: [usize; 3]) -> Answer {
        let end = valid(self.end(size))?;
        match (&self.place, self.row(0, 0)) {
            (Place::Device(address), Place::Device(first)) => {
                let before = (first - address) as usize;
                state.node_target(first, end - before)
            }
            (Place::Host(host), _) => host.pointer().given().map(drop),
            _ => Ok(()),
        }
    }
}

impl Memcpy {
    /// Returns the node of a captured copy.
    pub(crate) fn captured(copy: Copy) -> Memcpy {
        let Copy { to, from, len } = copy;
        Memcpy { from: End::at(from, len), to: End::at(to, len), width: len, height: 1, depth: 1 }
    }

    /// Returns one copy per row.
    pub(super) fn rows(&self) -> impl Iterator<Item = Copy> + use<'_> {
        let slices =
            (0..self.depth).flat_map(|slice| (0..self.height).map(move |row| (row, slice)));
        slices.map(|(row, slice)| {
            let (to, from) = (self.to.row(row, slice), self.from.row(row, slice));
            Copy { to, from, len: self.width }
        })
    }

    /// Returns the addresses of source and target; `None` if the source or the target is pageable host
    /// memory.
    pub(super) fn device_ends(&self) -> Option<[u64; 2]> {
        match (&self.from.place, &self.to.place) {
            (&Place::Device(from), &Place::Device(to)) => Some([from, to]),
            _ => None,
        }
    }

    /// Reads the parameters of a node. Refuses memory that does not exist.
    fn parse(state: &State, params: Ptr<CUDA_MEMCPY3D_v2>) -> Answer<Memcpy> {
        let value = params.read()?;
        let end = |kind, host: *mut c_void, device: u64| {
            let place = match kind {
                CUmemorytype::CU_MEMORYTYPE_HOST => Place::Host(params.held(host).into()),
                CUmemorytype::CU_MEMORYTYPE_DEVICE => Place::Device(device),
                CUmemorytype::CU_MEMORYTYPE_UNIFIED if state.node_target(device, 1).is_ok() => {
                    Place::Device(device)
                }
                CUmemorytype::CU_MEMORYTYPE_UNIFIED => {
                    let host = std::ptr::with_exposed_provenance_mut(device as usize);
                    Place::Host(params.held(host).into())
                }
                CUmemorytype::CU_MEMORYTYPE_ARRAY => {
                    return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
                }
                _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            };
            Ok(End { kind, place, offset: [0; 3], pitch: 0, rows: 0 })
        };
        let from = End {
            offset: [value.srcXInBytes, value.srcY, value.srcZ],
            pitch: value.srcPitch,
            rows: value.srcHeight,
            ..end(value.srcMemoryType, value.srcHost.cast_mut(), value.srcDevice)?
        };
        let to = End {
            offset: [value.dstXInBytes, value.dstY, value.dstZ],
            pitch: value.dstPitch,
            rows: value.dstHeight,
            ..end(value.dstMemoryType, value.dstHost, value.dstDevice)?
        };
        let size = [value.WidthInBytes, value.Height, value.Depth];
        invalid_if(size.contains(&0))?;
        from.check(state, size)?;
        to.check(state, size)?;
        let [width, height, depth] = size;
        Ok(Memcpy { from, to, width, height, depth })
    }
}

impl Kind for Memcpy {
    type Params = CUDA_MEMCPY3D_v2;
    type Given = Ptr<CUDA_MEMCPY3D_v2>;
    /// Flags, a reserved integer and the context come before the parameters.
    const PARAMS: usize = 16;
    const CONTEXT: Option<usize> = Some(8);

    fn of(action: &Action) -> Option<Memcpy> {
        if let Action::Memcpy(memcpy) = action { Some(memcpy.clone()) } else { None }
    }

    fn read(state: &mut State, params: Self::Given, at: At<'_>, _: Option<&Self>) -> Read {
        let memcpy = Memcpy::parse(state, params)?;
        Ok((Action::Memcpy(memcpy), at.context(state)?))
    }

    fn write(self, _: &mut Node, out: Ptr<Self::Params>) -> Answer {
        let host = |end: &End| match (&end.place, end.kind) {
            (Place::Host(host), CUmemorytype::CU_MEMORYTYPE_HOST) => host.pointer().raw(),
            _ => std::ptr::null_mut(),
        };
        let device = |end: &End| match (&end.place, end.kind) {
            (Place::Device(address), _) => *address,
            (Place::Host(host), CUmemorytype::CU_MEMORYTYPE_UNIFIED) => {
                host.pointer().raw().expose_provenance() as u64
            }
            _ => 0,
        };
        let (from, to) = (&self.from, &self.to);
        out.write(CUDA_MEMCPY3D_v2 {
            srcXInBytes: from.offset[0],
            srcY: from.offset[1],
            srcZ: from.offset[2],
            srcLOD: 0,
            srcMemoryType: from.kind,
            srcHost: host(from),
            srcDevice: device(from),
            srcArray: std::ptr::null_mut(),
            reserved0: std::ptr::null_mut(),
            srcPitch: from.pitch,
            srcHeight: from.rows,
            dstXInBytes: to.offset[0],
            dstY: to.offset[1],
            dstZ: to.offset[2],
            dstLOD: 0,
            dstMemoryType: to.kind,
            dstHost: host(to),
            dstDevice: device(to),
            dstArray: std::ptr::null_mut(),
            reserved1: std::ptr::null_mut(),
            dstPitch: to.pitch,
            dstHeight: to.rows,
            WidthInBytes: self.width,
            Height: self.height,
            Depth: self.depth,
        })
    }
}
