//! The main features in one program: two partitions, a kernel, copies, an event, and a graph that moves.
use green_ctx::graph::CaptureMode;
use green_ctx::sim::{KernelCall, Sim};
use green_ctx::{DeviceBuffer, Driver, LaunchConfig, Library, Share, Stream};
use green_ctx::{error::ErrorKind, event::EventOptions, memory::PinnedBuffer};

/// The PTX of a kernel that adds 1 to each number. `nvcc -ptx` compiles CUDA C++ to PTX.
const PTX: &str = ".version 5.0 .target sm_52 .address_size 64
.visible .entry add_one(.param .u64 numbers) {
    .reg .b32 %number; .reg .b64 %at, %offset;
    ld.param.u64 %at, [numbers];
    cvta.to.global.u64 %at, %at;
    mov.u32 %number, %tid.x;
    mul.wide.u32 %offset, %number, 4; add.u64 %at, %at, %offset;
    ld.global.u32 %number, [%at];
    add.u32 %number, %number, 1; st.global.u32 [%at], %number;
    ret;
}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The simulated driver does not execute PTX. It calls this function instead.
    let sim = Sim::new("h200")?;
    sim.register_kernel("add_one", |call: &mut KernelCall<'_>| {
        let (mut bytes, Some(at)) = ([0; 16], call.param_u64(0)) else { return };
        if call.read(at, &mut bytes).is_ok() {
            bytes.iter_mut().step_by(4).for_each(|byte| *byte += 1);
            let _ = call.write(at, &bytes);
        }
    });
    let driver = match Driver::load() {
        Err(error) if error.kind() == ErrorKind::NoDriver => Driver::simulated(&sim)?,
        driver => driver?,
    };
    let device = driver.device(0)?;
    let kernel = Library::from_ptx(&device, PTX)?.kernel("add_one")?;

    let parts = device.partition([Share::percent(25), Share::percent(75)])?;
    let (a, b) = (parts[0].stream(), parts[1].stream());

    let mut input = PinnedBuffer::from_slice(&device, &[1u32, 2, 3, 4])?;
    let numbers = DeviceBuffer::<u32>::zeroed(&device, 4)?;
    numbers.copy_from(&mut input, a)?;
    // SAFETY: the kernel's parameter is the address of one number per thread, and the streams order all accesses.
    let add_one = |stream: &Stream| unsafe {
        stream.launch(&kernel, LaunchConfig::new(1, 4), (numbers.as_argument(),))
    };
    add_one(a)?;
    let done = device.create_event(EventOptions::default())?;
    a.record(&done)?;
    b.wait(&done)?;

    let graph = a.capture(CaptureMode::default(), || add_one(a))?;
    let moved = graph.retarget(parts[1].context())?.instantiate()?;
    for _ in 0..2 {
        // SAFETY: `numbers` is alive, and one stream runs the launches in order.
        unsafe { b.launch_graph(&moved) }?;
    }
    let mut output = PinnedBuffer::zeroed(&device, 4)?;
    numbers.copy_to(&mut output, b)?;
    assert_eq!(output.as_slice()?, [4, 5, 6, 7]);
    println!("partitions of {} and {} SMs", parts[0].sm_count(), parts[1].sm_count());
    Ok(())
}
