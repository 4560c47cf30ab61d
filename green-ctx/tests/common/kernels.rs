//! All PTX kernels of this package's tests.
//!
//! A GPU runs the PTX. The simulator runs the function that the test registers under the kernel's name, or
//! nothing.

use green_ctx::{Device, Kernel, Library};

/// Returns the PTX of a kernel without parameters that does nothing.
pub(crate) fn text(name: &str) -> String {
    taking(name, "")
}

/// Returns the PTX of a kernel with the given parameters that does nothing.
pub(crate) fn taking(name: &str, parameters: &str) -> String {
    format!(
        ".version 5.0 .target sm_52 .address_size 64 .visible .entry {name}({parameters}) {{ ret; }}"
    )
}

/// Loads a kernel without parameters that does nothing.
pub(crate) fn plain(device: &Device, name: &str) -> green_ctx::Result<Kernel> {
    Library::from_ptx(device, &text(name))?.kernel(name)
}

/// Loads the library's own probe. Each block stays for the time that its argument gives, and writes its SM, its
/// start and its end.
pub(crate) fn probe(device: &Device) -> green_ctx::Result<Kernel> {
    Library::from_ptx(device, include_str!("../../src/observe/probe.ptx"))?
        .kernel("green_ctx_probe")
}

/// Kernels with parameters, for the simulator only.
pub(crate) const WITH_PARAMETERS: &str = "
.version 5.0
.target sm_52
.address_size 64
.visible .entry fill(.param .u64 to, .param .u32 value) { ret; }
.visible .entry produce(.param .u64 to) { ret; }
.visible .entry consume(.param .u64 from, .param .u64 to) { ret; }
.visible .entry green_ctx_fault(.param .u64 address) { ret; }
.visible .entry take(.param .u32 first, .param .align 128 .b8 map[128], .param .align 4 .b8 extent[8])
{ ret; }
";

/// Kernels that require clusters of two blocks, clusters of any size, and no clusters.
pub(crate) const CLUSTERED: &str = "
.version 8.0
.target sm_90
.address_size 64
.visible .entry pairs()
.explicitcluster
.reqnctapercluster 2, 1, 1
{ ret; }
.visible .entry any_size()
.explicitcluster
{ ret; }
.visible .entry no_clusters() { ret; }
";

/// A kernel that writes the last 64-bit value of an aligned structure parameter.
pub(crate) const LAST_OF_MAP: &str = "
.version 7.0
.target sm_52
.address_size 64
.visible .entry last_of_map(.param .align 128 .b8 map[128], .param .u64 out)
{
    .reg .b64 %value, %out;
    ld.param.u64 %value, [map+120];
    ld.param.u64 %out, [out];
    cvta.to.global.u64 %out, %out;
    st.global.u64 [%out], %value;
    ret;
}
";

/// A kernel whose threads each add 1 to one number of a buffer, slowly: a launch that overlaps the previous one
/// loses some of the additions.
pub(crate) const COUNT: &str = "
.version 5.0
.target sm_52
.address_size 64
.visible .entry count(.param .u64 numbers, .param .u64 stay_ns)
{
    .reg .pred %early;
    .reg .b32 %thread, %threads, %block, %index, %number;
    .reg .b64 %numbers, %stay, %start, %now;
    ld.param.u64 %numbers, [numbers];
    ld.param.u64 %stay, [stay_ns];
    cvta.to.global.u64 %numbers, %numbers;
    mov.u32 %thread, %tid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %block, %ctaid.x;
    mad.lo.u32 %index, %block, %threads, %thread;
    mad.wide.u32 %numbers, %index, 4, %numbers;
    ld.volatile.global.u32 %number, [%numbers];
    mov.u64 %start, %globaltimer;
wait:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %early, %now, %stay;
    @%early bra wait;
    add.u32 %number, %number, 1;
    st.volatile.global.u32 [%numbers], %number;
    ret;
}
";
