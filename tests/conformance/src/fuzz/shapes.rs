//! Arguments that several functions have, as programs choose them.

use super::function::Kind::*;
use super::function::Shape;
use super::function::Shape::*;
use super::params::*;

pub(super) const DEVICE: Shape = Int(&[0], &[7, 0xffff_ffff]);
pub(super) const ZERO: Shape = Int(&[0], &[1, 77]);
pub(super) const ONE: Shape = Int(&[1], &[]);
pub(super) const GRID: Shape = Int(&[1, 2], &[0]);
pub(super) const BLOCK: Shape = Int(&[1, 32, 64], &[0, 4096]);
pub(super) const SHARED: Shape = Int(&[0, 0, 64], &[0x1000_0000]);
pub(super) const LENGTH: Shape = Int(&[1, 64, 256, 512], &[]);
pub(super) const NONE: Shape = Made(nothing, &[]);
pub(super) const AFTER: Shape = Made(after, &[]);
pub(super) const FEW: Shape = Made(after_count, &[]);
pub(super) const ROOM: Shape = Made(room, COUNT);
pub(super) const NODES: Shape = Several(AnyNode, 8);
pub(super) const PARAMS: Shape = Made(kernel_params, &[]);
pub(super) const IMAGE: Shape = Text(&["image"], &["no code", ""]);
pub(super) const PATH: Shape = Text(&["file"], &["/no/such/file"]);
pub(super) const KERNEL: Shape = Text(
    &["params", "params", "params", "empty", "shared", "bounded", "clustered"],
    &["missing", ""],
);
pub(super) const GLOBAL: Shape = Text(&["table"], &["missing", "empty"]);
pub(super) const MODE: Shape = Int(&[2, 2, 2, 0, 1], &[3]);
/// Attributes of functions that can be read, and none.
pub(super) const FUNCTION_ATTRIBUTE: Shape =
    Int(&[0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15], &[16, 99]);
/// Attributes of functions that can be set, and others. A driver divides by the dimensions of clusters as
/// soon as one of them is set, which ends the process where another is not.
pub(super) const SET_ATTRIBUTE: Shape = Int(&[8, 9, 14, 15], &[0, 1, 4, 99]);
pub(super) const POOL_ATTRIBUTE: Shape = Int(&[1, 2, 3, 4, 6, 8], &[99]);
pub(super) const SET_POOL_ATTRIBUTE: Shape = Int(&[1, 2, 3, 4], &[5, 99]);
pub(super) const POINTER_ATTRIBUTE: Shape = Int(&[2, 4, 6, 8, 9, 14], &[0, 9999]);
/// Limits of a context; the one of the cache that persists is left alone.
pub(super) const LIMIT: Shape = Int(&[0, 1, 2, 3, 4, 5], &[77]);
pub(super) const LAUNCH_ATTRIBUTE: Shape = Int(&[2, 3, 4, 8], &[99]);
pub(super) const STREAM_ATTRIBUTE: Shape = Int(&[3, 8], &[0, 99]);
pub(super) const RESOURCE_KIND: Shape = Int(&[1], &[0, 5]);
/// Attributes of the device that are the same on each board of its kind.
pub(super) const DEVICE_ATTRIBUTE: Shape = Int(
    &[
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 31, 32, 35, 38, 39, 40,
        41, 75, 76, 78, 79, 80, 81, 82, 83, 86, 87, 90, 91, 95, 96, 97, 106, 108, 109, 111, 115,
        120,
    ],
    &[0, 9999],
);
