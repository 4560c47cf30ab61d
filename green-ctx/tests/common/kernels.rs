//! Kernels: all PTX of this package's tests.
//!
//! A GPU runs the text. The simulator runs what a test registers for the name, or nothing.

use green_ctx::{Device, Kernel, Library};

/// The text of a kernel that takes no parameters and does nothing.
pub(crate) fn text(name: &str) -> String {
    taking(name, "")
}

/// The text of a kernel that takes these parameters and does nothing.
pub(crate) fn taking(name: &str, parameters: &str) -> String {
    format!(
        ".version 5.0 .target sm_52 .address_size 64 .visible .entry {name}({parameters}) {{ ret; }}"
    )
}

/// A kernel that takes no parameters and does nothing.
pub(crate) fn plain(device: &Device, name: &str) -> green_ctx::Result<Kernel> {
    Library::from_ptx(device, &text(name))?.kernel(name)
}

/// The library's own probe: each block writes its SM, its start and its end, and stays for as long as its
/// argument says.
pub(crate) fn probe(device: &Device) -> green_ctx::Result<Kernel> {
    Library::from_ptx(device, include_str!("../../src/observe/probe.ptx"))?
        .kernel("green_ctx_probe")
}

/// Kernels with parameters, for the simulator alone.
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

/// Kernels that require clusters of two, that require clusters of any size, and that require none.
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

/// Writes the last number of an aligned structure.
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

/// Adds 1 to each of a buffer's numbers, slowly, a thread to a number: a launch that overlaps the one
/// before it loses some.
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
