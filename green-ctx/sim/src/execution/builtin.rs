//! The kernels that every simulated driver defines.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kernel::{KernelCall, KernelFn};

/// The size of the record that the probe writes per block, in bytes. A record holds the SM id, a reserved
/// word, the start time and the end time.
const RECORD: u64 = 24;

pub(crate) fn kernels() -> HashMap<String, KernelFn> {
    let probe: KernelFn = Arc::new(probe);
    let fault: KernelFn = Arc::new(fault);
    HashMap::from([("green_ctx_probe".to_owned(), probe), ("green_ctx_fault".to_owned(), fault)])
}

/// `green_ctx_probe(.param .u64 out, .param .u64 duration_ns)`: each block runs for `duration_ns` and
/// writes its SM, its start time and its end time to `out`.
fn probe(kernel: &mut KernelCall<'_>) {
    let (Some(out), Some(duration)) = (kernel.param_u64(0), kernel.param_u64(1)) else { return };
    kernel.set_duration_ns(duration.max(1));
    for block in kernel.blocks() {
        let mut record = [0; RECORD as usize];
        record[0..4].copy_from_slice(&block.sm.to_ne_bytes());
        record[8..16].copy_from_slice(&block.start_ns.to_ne_bytes());
        record[16..24].copy_from_slice(&block.end_ns.to_ne_bytes());
        if kernel.write(out.wrapping_add(RECORD * block.index), &record).is_err() {
            return;
        }
    }
}

/// `green_ctx_fault(.param .u64 address)`: writes four bytes to the address.
fn fault(kernel: &mut KernelCall<'_>) {
    let Some(address) = kernel.param_u64(0) else { return };
    // With an invalid address the launch fails, which is the purpose of this kernel.
    let _ = kernel.write(address, &1_u32.to_ne_bytes());
}
