//! Tensor maps: how a region of memory is laid out that kernels copy box by box.
//!
//! The checks are those that the header documents; nothing of them is recorded. What a driver keeps in the
//! 128 bytes is documented nowhere: here it is every parameter, in an order of the simulator's own.

use std::ffi::c_void;

use green_ctx_sys::CUresult;

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};

/// `CU_TENSOR_MAP_INTERLEAVE_NONE` and `CU_TENSOR_MAP_INTERLEAVE_32B`.
const NOT_INTERLEAVED: u32 = 0;
const INTERLEAVED_32: u32 = 2;
/// `CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B`, `…_16U4_ALIGN16B` and `…_16U6_ALIGN16B`.
const U4_BY_8: u32 = 13;
const U4_BY_16: u32 = 14;
const U6_BY_16: u32 = 15;
/// The bits of an element of each `CUtensorMapDataType`.
const BITS: [u32; 16] = [8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6];
/// The most bytes along the inner dimension for each `CUtensorMapSwizzle`.
const SPANS: [u32; 7] = [u32::MAX, 32, 64, 128, 128, 128, 128];
/// Where a map has its address, in bytes from its start, and how the address is aligned.
const ADDRESS: usize = 8;
const ALIGN: usize = 7;
/// What the maps of each kind begin with.
const TILED: u8 = 1;
const IM2COL: u8 = 2;

fn require(holds: bool) -> Answer {
    invalid_if(!holds)
}

/// The parameters that maps of both kinds have.
struct Tensor {
    /// The type of the elements, the rank, interleaving, swizzling, L2 promotion and the fill of what
    /// is out of bounds.
    numbers: [u32; 6],
    address: usize,
    dims: Ptr<u64>,
    strides: Ptr<u64>,
    steps: Ptr<u32>,
    /// How many elements a box has along the inner dimension.
    inner: u32,
}

impl Tensor {
    /// The bytes of a box along the inner dimension.
    fn inner_bytes(&self) -> u64 {
        u64::from(self.inner) * u64::from(BITS[self.numbers[0] as usize]) / 8
    }

    /// Checks what both kinds have in common, and writes it behind the kind.
    fn encode(&self, kind: u8) -> Answer<Vec<u8>> {
        let [element, rank, interleave, swizzle, promotion, fill] = self.numbers;
        require(element <= U6_BY_16 && interleave <= INTERLEAVED_32 && swizzle <= 6)?;
        // Only numbers with a fraction have a NaN.
        require(promotion <= 3 && (fill == 0 || fill == 1 && (6..=12).contains(&element)))?;
        let aligned = matches!(element, U4_BY_16 | U6_BY_16);
        let align = if aligned || interleave == INTERLEAVED_32 { 32 } else { 16 };
        require(self.address.is_multiple_of(align))?;
        let mut bytes = vec![kind];
        bytes.extend(self.numbers.map(|number| number as u8));
        bytes.push(align as u8);
        bytes.extend(self.address.to_le_bytes());

        let inner_dim = if aligned { 128 } else { 1 + u64::from(element == U4_BY_8) };
        for index in 0..rank as usize {
            let dim = self.dims.given()?.element(index).read()?;
            require((1..=1 << 31).contains(&dim))?;
            require(index > 0 || dim.is_multiple_of(inner_dim))?;
            bytes.extend((dim as u32).to_le_bytes());
        }
        for index in 1..rank as usize {
            let stride = self.strides.given()?.element(index - 1).read()?;
            require(stride.is_multiple_of(align as u64) && stride < 1 << 40)?;
            bytes.extend(&stride.to_le_bytes()[..5]);
        }
        for index in 0..rank as usize {
            let step = self.steps.given()?.element(index).read()?;
            let ignored = index == 0 && interleave == NOT_INTERLEAVED;
            require(ignored || (1..=8).contains(&step))?;
            bytes.push(step as u8);
        }

        let spans = u64::from(SPANS[swizzle as usize]);
        require(interleave != NOT_INTERLEAVED || self.inner_bytes() <= spans)?;
        require(interleave != INTERLEAVED_32 || swizzle == 1)?;
        require(!aligned || self.inner == 128)?;
        require(match element {
            U4_BY_16 => matches!(swizzle, 0 | 3 | 4),
            U6_BY_16 => interleave == NOT_INTERLEAVED && matches!(swizzle, 0 | 3 | 4 | 6),
            _ => true,
        })?;
        Ok(bytes)
    }
}

/// Refuses a missing map, and parts before 9.0, which have none. How the driver refuses these is not
/// recorded. The header wants maps aligned to 64 bytes, and cuda-core 1.2.2 has some encoded at multiples
/// of 16, in its own tests too: that is taken.
fn check_map(driver: &Driver, map: Ptr<c_void>) -> Answer<Ptr<[u8; 128]>> {
    let mut state = driver.state();
    state.current()?;
    refuse_if(state.profile.compute_capability.0 < 9, CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
    Ok(map.given()?.cast())
}

fn write(map: Ptr<[u8; 128]>, mut bytes: Vec<u8>) -> Answer {
    bytes.resize(128, 0);
    map.write_bytes(&bytes)
}

#[expect(clippy::too_many_arguments, reason = "the C function has them")]
pub(crate) fn encode_tiled(
    driver: &Driver,
    map: Ptr<c_void>,
    element: u32,
    rank: u32,
    address: Ptr<c_void>,
    dims: Ptr<u64>,
    strides: Ptr<u64>,
    sides: Ptr<u32>,
    steps: Ptr<u32>,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
) -> Answer {
    let (map, address) = (check_map(driver, map)?, address.address());
    let least = if interleave == NOT_INTERLEAVED { 1 } else { 3 };
    require((least..=5).contains(&rank))?;
    let numbers = [element, rank, interleave, swizzle, promotion, fill];
    let tensor = Tensor { numbers, address, dims, strides, steps, inner: sides.read()? };
    let mut bytes = tensor.encode(TILED)?;
    for index in 0..rank as usize {
        let side = sides.element(index).read()?;
        require((1..=256).contains(&side))?;
        bytes.extend((side as u16).to_le_bytes());
    }
    require(interleave != NOT_INTERLEAVED || tensor.inner_bytes().is_multiple_of(16))?;
    write(map, bytes)
}

#[expect(clippy::too_many_arguments, reason = "the C function has them")]
pub(crate) fn encode_im2col(
    driver: &Driver,
    map: Ptr<c_void>,
    element: u32,
    rank: u32,
    address: Ptr<c_void>,
    dims: Ptr<u64>,
    strides: Ptr<u64>,
    lower: Ptr<i32>,
    upper: Ptr<i32>,
    channels: u32,
    pixels: u32,
    steps: Ptr<u32>,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
) -> Answer {
    let (map, address) = (check_map(driver, map)?, address.address());
    require((3..=5).contains(&rank) && channels <= 256 && pixels <= 1024)?;
    let numbers = [element, rank, interleave, swizzle, promotion, fill];
    let tensor = Tensor { numbers, address, dims, strides, steps, inner: channels };
    let mut bytes = tensor.encode(IM2COL)?;
    let most = [32_767, 127, 15][rank as usize - 3];
    let mut sides = Vec::new();
    for index in 0..rank as usize - 2 {
        let corners = [lower.element(index).read()?, upper.element(index).read()?];
        require(corners.iter().all(|corner| (-most - 1..=most).contains(corner)))?;
        bytes.extend(corners.iter().flat_map(|corner| (*corner as i16).to_le_bytes()));
        sides.push(i64::from(corners[1]) - i64::from(corners[0]));
    }
    // The header gives corners outermost dimension first, and CUTLASS innermost first. A box that is
    // empty either way is none.
    let dims: Vec<u64> =
        (1..=sides.len()).map(|dim| dims.element(dim).read()).collect::<Answer<_>>()?;
    let is_box = |sides: &mut dyn Iterator<Item = &i64>| {
        dims.iter().zip(sides).all(|(dim, side)| *dim as i64 + side > 0)
    };
    require(is_box(&mut sides.iter()) || is_box(&mut sides.iter().rev()))?;
    bytes.extend((channels as u16).to_le_bytes());
    bytes.extend((pixels as u16).to_le_bytes());
    write(map, bytes)
}

/// Gives a map another address, aligned as the first one.
pub(crate) fn replace_address(driver: &Driver, map: Ptr<c_void>, address: Ptr<c_void>) -> Answer {
    let map = check_map(driver, map)?;
    let mut bytes = map.read()?;
    require(matches!(bytes[0], TILED | IM2COL))?;
    require(address.address().is_multiple_of(usize::from(bytes[ALIGN]).max(1)))?;
    let place = &mut bytes[ADDRESS..ADDRESS + size_of::<usize>()];
    place.copy_from_slice(&address.address().to_le_bytes());
    map.write(bytes)
}
