//! Occupancy: how many blocks and clusters of a kernel fit on a context's SMs.
//!
//! The arithmetic for blocks follows NVIDIA's `cuda_occupancy.h`. Answers recorded on an H200 agree with
//! this arithmetic.

use std::sync::Arc;

use green_ctx_sys::{CUfunc_st, CUlaunchConfig, CUoccupancyB2DSize, CUresult};
use parking_lot::MutexGuard;

use crate::Profile;
use crate::driver::Driver;
use crate::image::KernelInfo;
use crate::launch::{Shape, check_cluster, read_config};
use crate::library::Limits;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if, valid};
use crate::profile::attribute;
use crate::state::State;
use crate::topology;

/// The allocation granularity of a warp's registers.
const REGISTER_PIECE: u64 = 256;
/// The number of parts of an SM that have their own registers.
const SM_PARTS: u64 = 4;
/// The maximum number of blocks of clusters that an SM holds at a time (recorded on an H200).
const MOST_IN_CLUSTERS: u32 = 8;

/// `CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE`, the only flag that is defined.
const DISABLE_CACHING_OVERRIDE: u32 = 1;

const KIB: u64 = 1 << 10;

/// The limits of an SM and of a block, read from the profile once.
#[derive(Clone, Copy)]
pub(crate) struct Sm {
    capability: (u32, u32),
    /// The number of threads per warp, per block, and per SM.
    warp: u64,
    pub(crate) threads_per_block: u32,
    threads: u64,
    blocks: u64,
    /// The number of registers per block, and per SM.
    registers_per_block: u64,
    registers: u64,
    /// The amount of shared memory per block, per block with opt-in, and per SM, in bytes.
    pub(crate) shared_per_block: u32,
    pub(crate) shared_opted_in: u32,
    shared: u64,
    /// The amount of shared memory that each block uses in addition to the kernel's shared memory, in
    /// bytes.
    reserved_shared: u64,
    /// The maximum cluster size in blocks, without and with opt-in.
    pub(crate) cluster_size: u32,
    pub(crate) cluster_opted_in: u32,
}

impl Sm {
    pub(crate) fn new(profile: &Profile) -> Sm {
        let limit = |number| profile.attribute(number).unwrap_or(0).max(0) as u32;
        let shared_per_block = limit(attribute::MAX_SHARED_MEMORY_PER_BLOCK);
        let cluster_size = profile.max_cluster;
        Sm {
            capability: profile.compute_capability,
            warp: u64::from(limit(attribute::WARP_SIZE).max(1)),
            threads_per_block: limit(attribute::MAX_THREADS_PER_BLOCK),
            threads: u64::from(limit(attribute::MAX_THREADS_PER_MULTIPROCESSOR)),
            blocks: u64::from(limit(attribute::MAX_BLOCKS_PER_MULTIPROCESSOR)),
            registers_per_block: u64::from(limit(attribute::MAX_REGISTERS_PER_BLOCK)),
            registers: u64::from(limit(attribute::MAX_REGISTERS_PER_MULTIPROCESSOR)),
            shared_per_block,
            shared_opted_in: limit(attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
                .max(shared_per_block),
            shared: u64::from(limit(attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)),
            reserved_shared: u64::from(limit(attribute::RESERVED_SHARED_MEMORY_PER_BLOCK)),
            cluster_size,
            // With opt-in, a cluster may be as large as fits: 17 was not an error on an H200 (recorded on hardware).
            // The tuning guides of Hopper and of data centre Blackwell mention 16. Those of other GPUs
            // mention nothing beyond the portable size.
            cluster_opted_in: match profile.compute_capability {
                (9 | 10, _) => u32::MAX,
                _ => cluster_size,
            },
        }
    }

    /// Returns the allocation granularity of shared memory, in bytes.
    fn shared_piece(&self) -> u64 {
        if self.capability.0 >= 8 { 128 } else { 256 }
    }

    /// Returns the number of blocks of a kernel that the SM holds at a time.
    pub(crate) fn blocks(&self, limits: &Limits, threads: u32, dynamic_shared: u64) -> u32 {
        if threads > self.threads_per_block {
            return 0;
        }
        let warps = u64::from(threads.max(1)).div_ceil(self.warp);
        let blocks = self
            .blocks
            .min(self.threads / self.warp / warps)
            .min(self.blocks_by_registers(limits, warps))
            .min(self.blocks_by_shared(limits, dynamic_shared));
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// Returns the number of blocks for which the SM has enough registers. All registers of a warp are in
    /// the same part of the SM.
    fn blocks_by_registers(&self, limits: &Limits, warps: u64) -> u64 {
        let per_warp = (u64::from(limits.registers) * self.warp).next_multiple_of(REGISTER_PIECE);
        if per_warp == 0 {
            return u64::MAX;
        }
        if per_warp * warps.next_multiple_of(SM_PARTS) > self.registers_per_block {
            return 0;
        }
        self.registers / SM_PARTS / per_warp * SM_PARTS / warps
    }

    fn blocks_by_shared(&self, limits: &Limits, dynamic: u64) -> u64 {
        let own = u64::from(limits.static_shared) + dynamic;
        // If the kernel's limit is below what every block may use anyway, occupancy uses the larger value
        // (recorded on hardware). Launches use the kernel's limit.
        let allowed = u64::from(limits.static_shared) + u64::from(limits.dynamic_shared);
        if own > allowed.max(u64::from(self.shared_per_block)) {
            return 0;
        }
        let block = (own + self.reserved_shared).next_multiple_of(self.shared_piece());
        let wanted = self.preferred_shared(limits);
        // The preference is a hint: a block that needs more gets more.
        let all = if wanted < block { self.shared_step(block) } else { wanted };
        all.checked_div(block).unwrap_or(u64::MAX)
    }

    /// Returns the size of the SM's shared memory in bytes, according to the kernel's preference.
    fn preferred_shared(&self, limits: &Limits) -> u64 {
        let part = |percent| self.shared_step(self.shared * u64::from(percent) / 100);
        limits.carveout.map_or(self.shared, part)
    }

    /// Returns the smallest shared memory size, of at least `bytes` bytes, for which an SM can be
    /// configured.
    fn shared_step(&self, bytes: u64) -> u64 {
        // Compute capability 7.5 has only two sizes.
        let steps: &[u64] = match self.capability {
            (7, 5) => &[32, 64],
            (7, _) => &[0, 8, 16, 32, 64, 96],
            _ => &[0, 8, 16, 32, 64, 100, 132, 164, 196, 228],
        };
        let step = steps.iter().map(|step| step * KIB).find(|step| *step >= bytes);
        step.filter(|step| *step <= self.shared).unwrap_or(self.shared)
    }
}

impl State {
    /// Checks that a kernel can be launched with this shape on a device, and returns the number of blocks
    /// per SM. If the kernel requires a cluster size, adds this size to the shape.
    pub(crate) fn fit(&self, function: usize, device: usize, shape: &mut Shape) -> Answer<u32> {
        let limits = self.limits(function, device)?;
        let other_block = limits.block.is_some_and(|block| block != shape.block);
        invalid_if(other_block || shape.threads() > limits.threads)?;
        shape.check(self, &limits)?;
        let blocks = self.sm.blocks(&limits, shape.threads(), u64::from(shape.shared_bytes));
        let none = blocks == 0;
        refuse_if(none && shape.cooperative, CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)?;
        invalid_if(shape.shared_bytes > limits.dynamic_shared)?;
        refuse_if(none, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)?;
        Ok(blocks)
    }

    /// Returns the kernel to launch on a stream. The kernel's function must belong to the stream's device.
    pub(crate) fn kernel_on(&self, function: usize, stream: usize) -> Answer<Arc<KernelInfo>> {
        let (info, bound) = self.kernel_info(function)?;
        let other = bound.is_some_and(|bound| bound != self.device_of_stream(stream));
        refuse_if(other, CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        Ok(info)
    }

    /// Returns the limits of a kernel in the current context. A current context is always required
    /// (recorded on hardware).
    fn limits_here(&mut self, function: Ptr<CUfunc_st>) -> Answer<Limits> {
        let current = self.current_device()?;
        self.limits(function.address(), current)
    }
}

fn threads(threads: i32) -> Answer<u32> {
    valid(u32::try_from(threads).ok().filter(|&threads| threads > 0))
}

pub(crate) fn max_active_blocks(
    driver: &Driver,
    out: Ptr<i32>,
    function: Ptr<CUfunc_st>,
    block: i32,
    shared_bytes: usize,
    flags: u32,
) -> Answer {
    invalid_if(flags & !DISABLE_CACHING_OVERRIDE != 0)?;
    let mut state = driver.state();
    out.given()?;
    let limits = state.limits_here(function)?;
    // A block that no SM can run is not an error here (recorded on hardware).
    out.write(state.sm.blocks(&limits, threads(block)?, shared_bytes as u64) as i32)
}

/// Finds the largest block size that puts the maximum number of threads on an SM.
pub(crate) fn max_potential_block_size(
    driver: &Driver,
    grid: Ptr<i32>,
    block: Ptr<i32>,
    function: Ptr<CUfunc_st>,
    shared_of: CUoccupancyB2DSize,
    shared_bytes: usize,
    limit: i32,
) -> Answer {
    let mut state = driver.state();
    grid.given()?;
    block.given()?;
    let mut limits = state.limits_here(function)?;
    // The only preference that counts is the one for no shared memory (recorded on hardware).
    limits.carveout = limits.carveout.filter(|percent| *percent == 0);
    let sm = state.sm;
    // The grid covers the SMs of the current context, as for clusters and cooperative launches (recorded on hardware).
    let context = state.current()?;
    let sms = state.contexts[&context].sms.set.len();
    // The program's function may call the driver.
    drop(state);
    let limit = u32::try_from(limit).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let limit = if limit == 0 { limits.threads } else { limit.min(limits.threads) };
    let warp = sm.warp as u32;
    let (mut best, mut best_blocks, mut most) = (0, 0, 0);
    let mut aligned = limit.next_multiple_of(warp);
    while aligned > 0 && u64::from(most) < sm.threads {
        let threads = aligned.min(limit);
        let shared = shared_for(shared_of, threads).unwrap_or(shared_bytes);
        let blocks = sm.blocks(&limits, threads, shared as u64);
        if blocks * threads > most {
            (best, best_blocks, most) = (threads, blocks, blocks * threads);
        }
        aligned -= warp;
    }
    grid.write((best_blocks * sms) as i32)?;
    block.write(best as i32)
}

/// Calls the program's function, if there is one, and returns the dynamic shared memory of a block in
/// bytes.
fn shared_for(function: CUoccupancyB2DSize, threads: u32) -> Option<usize> {
    // SAFETY: the caller of `cuOccupancyMaxPotentialBlockSize` promises that the function can be called
    // with a block size (header). The state is not locked here, so the function may call the driver.
    function.map(|function| unsafe { function(threads as i32) })
}

/// Reads the arguments of a query about clusters, and returns the stream, the launch shape and the limits
/// of the kernel. Unlike in queries about blocks, a null function gives `CUDA_ERROR_INVALID_VALUE`
/// (recorded on hardware).
fn clusters_of<'a>(
    driver: &'a Driver,
    out: Ptr<i32>,
    function: Ptr<CUfunc_st>,
    config: Ptr<CUlaunchConfig>,
) -> Answer<(MutexGuard<'a, State>, usize, Shape, Limits)> {
    let (mut shape, stream) = read_config(config)?;
    let mut state = driver.state();
    out.given()?;
    let stream = state.stream(stream)?;
    state.capturing(stream)?;
    state.kernel_on(function.given()?.address(), stream)?;
    let limits = state.limits(function.address(), state.device_of_stream(stream))?;
    shape.take_cluster(&limits)?;
    Ok((state, stream, shape, limits))
}

pub(crate) fn max_active_clusters(
    driver: &Driver,
    out: Ptr<i32>,
    function: Ptr<CUfunc_st>,
    config: Ptr<CUlaunchConfig>,
) -> Answer {
    let (state, stream, shape, limits) = clusters_of(driver, out, function, config)?;
    // Without a cluster in the kernel or the configuration, an H200 returns success and 0 (recorded on hardware).
    let Some(cluster) = shape.cluster else { return out.write(0) };
    let size = check_cluster(cluster, limits.cluster_size)?;
    shape.check_sides()?;
    shape.check_grid(cluster)?;
    out.write(state.clusters(stream, &limits, &shape, size) as i32)
}

/// Finds the largest cluster size, up to 16, at which at least one cluster fits. The result depends
/// neither on the cluster size that the kernel requires (recorded on hardware) nor on the cluster size in the
/// configuration (header).
pub(crate) fn max_potential_cluster_size(
    driver: &Driver,
    out: Ptr<i32>,
    function: Ptr<CUfunc_st>,
    config: Ptr<CUlaunchConfig>,
) -> Answer {
    let (state, stream, shape, limits) = clusters_of(driver, out, function, config)?;
    shape.check_sides()?;
    let most = limits.cluster_size.min(16);
    let fits = |size: &u32| state.clusters(stream, &limits, &shape, *size) > 0;
    out.write((1..=most).rev().find(fits).unwrap_or(0) as i32)
}

impl State {
    /// Returns how many clusters of `size` blocks run at the same time on the SMs of a stream's context.
    fn clusters(&self, stream: usize, limits: &Limits, shape: &Shape, size: u32) -> u32 {
        let places = &self.contexts[&self.streams[&stream].context].sms.places;
        let blocks = self.sm.blocks(limits, shape.threads(), u64::from(shape.shared_bytes));
        let blocks = blocks.min(MOST_IN_CLUSTERS);
        topology::clusters(places, blocks, size)
    }
}
