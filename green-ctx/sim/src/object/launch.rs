//! Kernel launches.

use std::ffi::c_void;

use green_ctx_sys::{CUfunc_st, CUlaunchAttributeID, CUlaunchConfig, CUresult};

use crate::clock::cost;
use crate::driver::Driver;
use crate::image::KernelInfo;
use crate::kernel::blocks;
use crate::library::Limits;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::profile::attribute;
use crate::state::State;
use crate::trace::Launch;
use crate::work::{self, KernelWork, Work};

/// The shape of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) cooperative: bool,
    /// The requested cluster size, in blocks; `None` if no cluster was requested.
    pub(crate) cluster: Option<[u32; 3]>,
}

impl Shape {
    /// Creates a shape without clusters.
    pub(crate) fn new(
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        cooperative: bool,
    ) -> Shape {
        Shape { grid, block, shared_bytes, cooperative, cluster: None }
    }

    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().fold(1, |threads, &side| threads.saturating_mul(side))
    }

    /// Uses the cluster size that the kernel requires if the launch gives none. Fails if the launch gives a
    /// different cluster size, or if the kernel needs a cluster size and none is given or required.
    pub(crate) fn take_cluster(&mut self, limits: &Limits) -> Answer {
        self.cluster = self.cluster.or(limits.cluster);
        let required = limits.cluster.unwrap_or_default();
        let mut sides = self.cluster.iter().flatten().zip(required);
        let differs = sides.any(|(side, required)| required != 0 && *side != required);
        let missing = limits.must_cluster && self.cluster.is_none();
        refuse_if(differs || missing, CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE)
    }

    /// Refuses a grid or block with a side of 0.
    pub(crate) fn check_sides(&self) -> Answer {
        invalid_if(self.grid.contains(&0) || self.block.contains(&0))
    }

    /// Refuses a grid that does not consist of whole clusters.
    pub(crate) fn check_grid(&self, cluster: [u32; 3]) -> Answer {
        let mut sides = self.grid.iter().zip(cluster);
        let cut = sides.any(|(grid, side)| !grid.is_multiple_of(side));
        refuse_if(cut, CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE)
    }

    /// Refuses grids, blocks and clusters that no context of the device can run.
    pub(crate) fn check(&mut self, state: &State, limits: &Limits) -> Answer {
        self.check_sides()?;
        let limit = |number| state.profile.attribute(number).unwrap_or(0) as u32;
        let fits = |sides: [u32; 3], first| {
            (first..).zip(sides).all(|(number, side)| side <= limit(number))
        };
        let shape = fits(self.grid, attribute::MAX_GRID_DIM_X)
            && fits(self.block, attribute::MAX_BLOCK_DIM_X);
        invalid_if(!shape || self.threads() > state.sm.threads_per_block)?;
        self.take_cluster(limits)?;
        if let Some(cluster) = self.cluster {
            check_cluster(cluster, limits.cluster_size)?;
            self.check_grid(cluster)?;
        }
        Ok(())
    }
}

/// Returns the number of blocks in a cluster. Fails with `CUDA_ERROR_INVALID_CLUSTER_SIZE` if the number is
/// 0 or exceeds `most`.
pub(crate) fn check_cluster(cluster: [u32; 3], most: u32) -> Answer<u32> {
    let size = cluster.iter().fold(1_u32, |size, &side| size.saturating_mul(side));
    refuse_if(size == 0 || size > most, CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE)?;
    Ok(size)
}

/// Reads the shape and the stream from a `CUlaunchConfig`.
pub(crate) fn read_config(config: Ptr<CUlaunchConfig>) -> Answer<(Shape, usize)> {
    let config = config.read()?;
    let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
    let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
    let mut shape = Shape::new(grid, block, config.sharedMemBytes, false);
    for index in 0..config.numAttrs as usize {
        let attribute = Ptr::attribute(&config, index)?;
        match attribute.id {
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                // SAFETY: every field of the union is plain data without invalid values, and `attribute.id`
                // selects this field.
                shape.cooperative = unsafe { attribute.value.cooperative } != 0;
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                // SAFETY: every field of the union is plain data without invalid values, and `attribute.id`
                // selects `clusterDim`.
                let cluster = unsafe { attribute.value.clusterDim };
                shape.cluster = Some([cluster.x, cluster.y, cluster.z]);
            }
            _ => {}
        }
    }
    Ok((shape, config.hStream.addr()))
}

/// Reads the parameters of a launch into one buffer. `params` is an array of pointers to the parameters;
/// `extra` describes a buffer that contains them.
pub(crate) fn read_params(
    info: &KernelInfo,
    params: Ptr<*mut c_void>,
    extra: Ptr<*mut c_void>,
) -> Answer<Vec<u8>> {
    /// `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`.
    const BUFFER_POINTER: usize = 1;
    const BUFFER_SIZE: usize = 2;
    invalid_if(!params.is_null() && !extra.is_null())?;
    let mut bytes = vec![0; info.param_bytes()];
    if extra.is_null() {
        for (index, param) in info.params.iter().enumerate() {
            let value = params.given()?.element(index).follow()?;
            value.read_bytes(&mut bytes[param.offset..param.offset + param.size])?;
        }
        return Ok(bytes);
    }
    let (mut buffer, mut size) = (None, None);
    for index in (0..).step_by(2) {
        let value = extra.element(index + 1);
        match extra.element(index).read()?.addr() {
            BUFFER_POINTER => buffer = Some(value.follow()?),
            BUFFER_SIZE => size = Some(value.follow()?.cast::<usize>().read()?),
            0 => break,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
    let (Some(buffer), Some(size)) = (buffer, size) else {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    invalid_if(size < bytes.len())?;
    buffer.read_bytes(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn launch(
    driver: &Driver,
    function: Ptr<CUfunc_st>,
    shape: Shape,
    stream: usize,
    params: Ptr<*mut c_void>,
    extra: Ptr<*mut c_void>,
) -> Answer {
    let _in_turn = driver.launching.lock();
    let mut state = driver.state();
    state.now += cost::LAUNCH;
    let stream = state.stream(stream)?;
    state.capturing(stream)?;
    let work = state.kernel_work(function.address(), shape, stream, params, extra);
    if work.is_err() {
        // A failed launch invalidates the capture of its stream (recorded on hardware).
        let _ = state.not_captured(stream);
    }
    work::submit(driver, state, stream, Work::Kernel(work?)).map(drop)
}

impl State {
    /// Returns the work that a kernel launch adds to a valid stream.
    fn kernel_work(
        &mut self,
        function: usize,
        mut shape: Shape,
        stream: usize,
        params: Ptr<*mut c_void>,
        extra: Ptr<*mut c_void>,
    ) -> Answer<KernelWork> {
        let info = self.kernel_on(function, stream)?;
        let device = self.device_of_stream(stream);
        let blocks_per_sm = self.fit(function, device, &mut shape)?;
        let context = &self.contexts[&self.streams[&stream].context];
        let resident = u64::from(context.sms.set.len()) * u64::from(blocks_per_sm);
        let too_large = shape.cooperative && blocks(shape.grid) > resident;
        refuse_if(too_large, CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)?;
        let params = read_params(&info, params, extra)?;
        Ok(KernelWork { function, info, shape, params, blocks_per_sm })
    }

    pub(crate) fn trace_launch(&mut self, launch: Launch) {
        if self.trace == 0 {
            return;
        }
        if self.launches.len() == self.trace {
            self.launches.pop_front();
        }
        self.launches.push_back(launch);
    }
}

pub(crate) fn extended(
    driver: &Driver,
    config: Ptr<CUlaunchConfig>,
    function: Ptr<CUfunc_st>,
    params: Ptr<*mut c_void>,
    extra: Ptr<*mut c_void>,
) -> Answer {
    let (shape, stream) = read_config(config)?;
    launch(driver, function, shape, stream, params, extra)
}
