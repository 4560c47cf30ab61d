//! How much of a kernel fits on a context's SMs.

use green_ctx_sys::{CUfunc_st, CUlaunchConfig, CUresult};

use crate::driver::Driver;
use crate::launch::{check_cluster, read_config};
use crate::pointer::{Answer, Ptr};
use crate::profile::attribute;

pub(crate) fn max_active_blocks(
    driver: &Driver,
    out: Ptr<i32>,
    function: Ptr<CUfunc_st>,
    threads: i32,
    shared_bytes: usize,
) -> Answer {
    let state = driver.state();
    out.given()?;
    state.kernel_info(function.address())?;
    let threads = u32::try_from(threads).ok().filter(|&threads| threads > 0);
    let threads = threads.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    // A block that no SM runs is no error here, as recorded.
    let most = state.profile.attribute(attribute::MAX_THREADS_PER_BLOCK).unwrap_or(0);
    if threads > most as u32 {
        return out.write(0);
    }
    out.write(state.profile.blocks_per_sm(threads, shared_bytes as u64) as i32)
}

pub(crate) fn max_active_clusters(
    driver: &Driver,
    out: Ptr<i32>,
    function: Ptr<CUfunc_st>,
    config: Ptr<CUlaunchConfig>,
) -> Answer {
    let (shape, stream) = read_config(config)?;
    let mut state = driver.state();
    out.given()?;
    state.kernel_info(function.address())?;
    let stream = state.stream(stream)?;
    let cluster = shape.cluster.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let size = check_cluster(cluster, state.profile)?;
    shape.check(state.profile)?;
    let sms = &state.contexts[&state.streams[&stream].context].sms;
    let anywhere = sms.structure.is_some();
    let clusters = state.profile.topology.clusters(sms.set, sms.coscheduled, anywhere, size);
    let blocks = state.profile.blocks_per_sm(shape.threads(), u64::from(shape.shared_bytes));
    out.write((clusters * blocks) as i32)
}
