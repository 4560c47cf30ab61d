//! Tensor maps: what the header documents of their parameters.

use std::ffi::c_void;
use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

/// As many bytes as a map has, aligned as the header wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(align(64))]
struct Map([u8; 128]);

const EMPTY: Map = Map([0xee; 128]);

/// The parameters of a map of either kind.
#[derive(Clone)]
struct Params {
    element: u32,
    rank: u32,
    address: usize,
    dims: [u64; 5],
    strides: [u64; 4],
    sides: [u32; 5],
    lower: [i32; 3],
    upper: [i32; 3],
    channels: u32,
    pixels: u32,
    steps: [u32; 5],
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
}

/// A map of halves in three dimensions that both kinds take.
const PLAIN: Params = Params {
    element: 6,
    rank: 3,
    address: 0x1000,
    dims: [64, 32, 16, 8, 4],
    strides: [128, 4096, 65_536, 1 << 20],
    sides: [64, 8, 4, 2, 1],
    lower: [-1; 3],
    upper: [-1; 3],
    channels: 64,
    pixels: 128,
    steps: [1; 5],
    interleave: 0,
    swizzle: 3,
    promotion: 2,
    fill: 0,
};

type Change = fn(&mut Params);

fn tiled(machine: &Machine, of: &Params, map: *mut c_void) -> CUresult {
    old!(machine, c"cuTensorMapEncodeTiled", 12000 (
        map => *mut c_void, of.element => u32, of.rank => u32,
        std::ptr::without_provenance_mut(of.address) => *mut c_void,
        of.dims.as_ptr() => *const u64, of.strides.as_ptr() => *const u64,
        of.sides.as_ptr() => *const u32, of.steps.as_ptr() => *const u32,
        of.interleave => u32, of.swizzle => u32, of.promotion => u32, of.fill => u32))
}

fn im2col(machine: &Machine, of: &Params, map: *mut c_void) -> CUresult {
    old!(machine, c"cuTensorMapEncodeIm2col", 12000 (
        map => *mut c_void, of.element => u32, of.rank => u32,
        std::ptr::without_provenance_mut(of.address) => *mut c_void,
        of.dims.as_ptr() => *const u64, of.strides.as_ptr() => *const u64,
        of.lower.as_ptr() => *const i32, of.upper.as_ptr() => *const i32,
        of.channels => u32, of.pixels => u32, of.steps.as_ptr() => *const u32,
        of.interleave => u32, of.swizzle => u32, of.promotion => u32, of.fill => u32))
}

fn replace(machine: &Machine, map: &mut Map, address: usize) -> CUresult {
    let address = std::ptr::without_provenance_mut(address);
    let map = map.0.as_mut_ptr().cast();
    old!(machine, c"cuTensorMapReplaceAddress", 12000 (map => *mut c_void, address => *mut c_void))
}

type Encode = fn(&Machine, &Params, *mut c_void) -> CUresult;
const KINDS: [(&str, Encode); 2] = [("tiled", tiled), ("im2col", im2col)];

fn changed(change: Change) -> Params {
    let mut params = PLAIN;
    change(&mut params);
    params
}

fn encoded(machine: &Machine, encode: Encode, params: &Params) -> (CUresult, Map) {
    let mut map = EMPTY;
    (encode(machine, params, map.0.as_mut_ptr().cast()), map)
}

fn interleave_32(params: &mut Params) {
    (params.interleave, params.swizzle) = (2, 1);
}

/// Packed numbers of six bits.
fn packed(params: &mut Params) {
    (params.element, params.dims[0], params.swizzle) = (15, 256, 3);
    (params.sides[0], params.channels) = (128, 128);
}

const SHARED: [(&str, bool, Change); 36] = [
    ("as it is", true, |_| {}),
    ("an element that there is not", false, |of| of.element = 16),
    ("rank 5", true, |of| of.rank = 5),
    ("rank 6", false, |of| of.rank = 6),
    ("rank 0", false, |of| of.rank = 0),
    ("address by 8", false, |of| of.address = 0x1008),
    ("address by 16", true, |of| of.address = 0x1010),
    ("address by 16, interleaved by 32", false, |of| {
        interleave_32(of);
        of.address = 0x1010;
    }),
    ("interleaved by 32", true, interleave_32),
    ("interleaved by 32, another swizzle", false, |of| (of.interleave, of.swizzle) = (2, 2)),
    ("interleaved by 16, any swizzle", true, |of| (of.interleave, of.swizzle) = (1, 1)),
    ("interleave that there is not", false, |of| of.interleave = 3),
    ("dimension 0", false, |of| of.dims[1] = 0),
    ("the largest dimension", true, |of| of.dims[1] = 1 << 31),
    ("a larger dimension", false, |of| of.dims[1] = (1 << 31) + 1),
    ("a dimension that does not count", true, |of| of.dims[3] = 0),
    ("stride by 8", false, |of| of.strides[0] = 136),
    ("stride by 16", true, |of| of.strides[0] = 144),
    ("stride by 16, interleaved by 32", false, |of| {
        interleave_32(of);
        of.strides[0] = 144;
    }),
    ("the largest stride", true, |of| of.strides[1] = (1 << 40) - 16),
    ("a larger stride", false, |of| of.strides[1] = 1 << 40),
    ("step 0", false, |of| of.steps[1] = 0),
    ("step 8", true, |of| of.steps[1] = 8),
    ("step 9", false, |of| of.steps[1] = 9),
    ("the first step, which is ignored", true, |of| of.steps[0] = 9),
    ("the first step, interleaved", false, |of| {
        interleave_32(of);
        of.steps[0] = 9;
    }),
    ("swizzle that there is not", false, |of| of.swizzle = 7),
    ("no swizzle", true, |of| of.swizzle = 0),
    ("more than the swizzle's span", false, |of| of.swizzle = 2),
    ("promotion that there is not", false, |of| of.promotion = 4),
    ("NaN", true, |of| of.fill = 1),
    ("NaN in integers", false, |of| (of.element, of.fill) = (1, 1)),
    ("fill that there is not", false, |of| of.fill = 2),
    ("packed numbers", true, packed),
    ("packed numbers, interleaved", false, |of| {
        packed(of);
        of.interleave = 1;
    }),
    ("packed numbers, another width", false, |of| {
        packed(of);
        of.dims[0] = 192;
    }),
];

const OF_BOXES: [(&str, bool, Change); 6] = [
    ("side 0", false, |of| of.sides[1] = 0),
    ("side 256", true, |of| of.sides[1] = 256),
    ("side 257", false, |of| of.sides[1] = 257),
    ("inner bytes by 8", false, |of| of.sides[0] = 4),
    ("rank 1", true, |of| of.rank = 1),
    ("rank 2, interleaved", false, |of| {
        interleave_32(of);
        of.rank = 2;
    }),
];

const OF_PIXELS: [(&str, bool, Change); 8] = [
    ("rank 2", false, |of| of.rank = 2),
    ("channels 257", false, |of| (of.channels, of.swizzle) = (257, 0)),
    ("pixels 1024", true, |of| of.pixels = 1024),
    ("pixels 1025", false, |of| of.pixels = 1025),
    ("a corner of one dimension", true, |of| of.lower[0] = -32_768),
    ("a corner of two dimensions", false, |of| (of.rank, of.lower[1]) = (4, -129)),
    ("a corner of three dimensions", false, |of| (of.rank, of.upper[2]) = (5, 16)),
    ("no box", false, |of| of.upper[0] = -33),
];

#[test]
fn parameters_have_the_documented_limits() {
    let (machine, _) = Machine::with_primary();
    let of_kinds: [&[(&str, bool, Change)]; 2] = [&OF_BOXES, &OF_PIXELS];
    for ((kind, encode), of_kind) in KINDS.into_iter().zip(of_kinds) {
        for (name, valid, change) in SHARED.iter().chain(of_kind) {
            let (status, map) = encoded(&machine, encode, &changed(*change));
            assert_eq!(status, if *valid { OK } else { INVALID_VALUE }, "{kind}, {name}");
            assert_eq!(map != EMPTY, *valid, "{kind}, {name}");
        }
    }
}

/// Two maps are equal exactly if their parameters are.
#[test]
fn a_map_keeps_every_parameter() {
    let (machine, _) = Machine::with_primary();
    let changes: [Change; 12] = [
        |_| {},
        |of| of.element = 9,
        |of| of.rank = 4,
        |of| of.address += 0x1000,
        |of| of.dims[2] += 1,
        |of| of.strides[1] += 16,
        |of| of.steps[1] = 2,
        |of| of.interleave = 1,
        |of| of.swizzle = 4,
        |of| of.promotion = 0,
        |of| of.fill = 1,
        |of| (of.sides[2], of.pixels) = (5, 5),
    ];
    let mut maps = Vec::new();
    for (_, encode) in KINDS {
        for change in changes {
            let (status, map) = encoded(&machine, encode, &changed(change));
            ok(status);
            assert_eq!(encoded(&machine, encode, &changed(change)).1, map);
            assert!(!maps.contains(&map));
            maps.push(map);
        }
    }
    // Elsewhere it is the map of that address, and back again the first one.
    let mut map = maps[0].clone();
    ok(replace(&machine, &mut map, PLAIN.address + 0x1000));
    assert_eq!(map, maps[3]);
    assert_eq!(replace(&machine, &mut map, 0x1008), INVALID_VALUE);
    ok(replace(&machine, &mut map, PLAIN.address));
    assert_eq!(map, maps[0]);
    assert_eq!(replace(&machine, &mut EMPTY.clone(), 0x1000), INVALID_VALUE);
}

#[test]
fn a_map_needs_an_address_a_context_and_a_part_that_has_them() {
    let (machine, _) = Machine::with_primary();
    #[repr(align(64))]
    struct Space([u8; 192]);
    let mut space = Space([0; 192]);
    for (_, encode) in KINDS {
        assert_eq!(encode(&machine, &PLAIN, null_mut()), INVALID_VALUE);
        // cuda-core has maps encoded that are aligned to 16 bytes.
        let (_, aligned) = encoded(&machine, encode, &PLAIN);
        ok(encode(&machine, &PLAIN, space.0[16..].as_mut_ptr().cast()));
        assert_eq!(space.0[16..][..128], aligned.0);
    }
    ok(machine.pop());
    let older = Machine::with_devices("a100", 1);
    ok(older.push(older.retain()));
    for (_, encode) in KINDS {
        assert_eq!(encoded(&machine, encode, &PLAIN).0, INVALID_CONTEXT);
        let refused = CUresult::CUDA_ERROR_NOT_SUPPORTED;
        assert_eq!(encoded(&older, encode, &PLAIN).0, refused);
    }
}
