//! Memory shared by partitions: the simulated driver reports unordered accesses, which on a GPU fail only
//! occasionally.

use green_ctx::sim::{Accessor, Race, Sim};
use green_ctx::{
    Device, DeviceBuffer, Kernel, LaunchConfig, Library, Stream, StreamOptions, context::Context,
    event::EventOptions,
};

use crate::common::{Outcome, kernels, partition, simulated};

/// How long `produce` runs: longer than a test's calls take.
const LONG_NS: u64 = 50_000_000;

/// Two partitions, a kernel that writes 64 bytes, and one that copies them.
struct Shared {
    sim: Sim,
    device: Device,
    partitions: [Context; 2],
    produce: Kernel,
    consume: Kernel,
    buffer: DeviceBuffer<u64>,
    result: DeviceBuffer<u64>,
}

impl Shared {
    fn new() -> Result<Shared, Box<dyn std::error::Error>> {
        let (sim, device) = simulated("h200@13.0")?;
        sim.register_kernel("produce", |kernel| {
            kernel.set_duration_ns(LONG_NS);
            let _ = kernel.write(kernel.param_u64(0).unwrap_or(0), &[7; 64]);
        });
        sim.register_kernel("consume", |kernel| {
            let mut bytes = [0; 64];
            let _ = kernel.read(kernel.param_u64(0).unwrap_or(0), &mut bytes);
            let _ = kernel.write(kernel.param_u64(1).unwrap_or(0), &bytes);
        });
        let library = Library::from_ptx(&device, kernels::WITH_PARAMETERS)?;
        let (produce, consume) = (library.kernel("produce")?, library.kernel("consume")?);
        let (buffer, result) =
            (DeviceBuffer::zeroed(&device, 8)?, DeviceBuffer::zeroed(&device, 8)?);
        let partitions = [partition(&device, 16)?, partition(&device, 24)?];
        Ok(Shared { sim, device, partitions, produce, consume, buffer, result })
    }

    fn stream(&self, partition: usize) -> green_ctx::Result<Stream> {
        self.partitions[partition].create_stream(StreamOptions::default())
    }

    fn produce(&self, stream: &Stream) -> green_ctx::Result<()> {
        let arguments = (self.buffer.as_argument(),);
        // SAFETY: the kernel writes 64 bytes, which `buffer` has, and the tests keep `buffer` until the work is
        // done. An unordered read is harmless in the simulation, and is what these tests look for.
        unsafe { stream.launch(&self.produce, LaunchConfig::new(64, 128), arguments) }
    }

    fn consume(&self, stream: &Stream) -> green_ctx::Result<()> {
        let arguments = (self.buffer.as_argument(), self.result.as_argument());
        // SAFETY: as above.
        unsafe { stream.launch(&self.consume, LaunchConfig::new(64, 128), arguments) }
    }

    /// Produces in the first partition, calls `between`, and consumes in the second. Returns the result and the races.
    fn run(
        &self,
        between: impl FnOnce(&Stream, &Stream) -> green_ctx::Result<()>,
    ) -> Result<(Vec<u64>, Vec<Race>), Box<dyn std::error::Error>> {
        let (producer, consumer) = (self.stream(0)?, self.stream(1)?);
        self.produce(&producer)?;
        between(&producer, &consumer)?;
        self.consume(&consumer)?;
        Ok((self.result.read(&consumer)?, self.sim.races()))
    }
}

const PRODUCED: u64 = u64::from_ne_bytes([7; 8]);

#[test]
fn a_missing_wait_between_partitions_is_reported() -> Outcome {
    let shared = Shared::new()?;
    let (result, races) = shared.run(|_, _| Ok(()))?;
    assert_eq!(result, [0; 8], "the consumer did not wait");
    let [race] = &races[..] else { panic!("one race, not {races:?}") };
    let launches = shared.sim.launches();
    for (access, launch, sm_count) in
        [(&race.first, &launches[0], 16), (&race.second, &launches[1], 24)]
    {
        let Accessor::Kernel { name, sms } = &access.what else { panic!("{access}") };
        assert_eq!((name, sms), (&launch.kernel, &launch.sms));
        assert_eq!(sms.len(), sm_count);
        assert_eq!((access.stream, access.context), (Some(launch.stream), launch.context));
    }
    assert!(race.first.write && !race.second.write);
    assert_eq!((race.address, race.bytes), (shared.buffer.as_raw(), 64));
    let text = race.to_string();
    assert!(text.contains("`produce` on 16 SMs") && text.contains("`consume` on 24 SMs"), "{text}");
    Ok(())
}

#[test]
fn every_way_to_wait_is_clean() -> Outcome {
    type Between = fn(&Shared, &Stream, &Stream) -> green_ctx::Result<()>;
    let ways: [(&str, Between); 6] = [
        ("a stream", |_, producer, consumer| consumer.wait_for(producer)),
        ("an event", |shared, producer, consumer| {
            let event = shared.device.create_event(EventOptions::default())?;
            producer.record(&event)?;
            consumer.wait(&event)
        }),
        ("a context", |shared, _, _| {
            let event = shared.device.create_event(EventOptions::default())?;
            shared.partitions[0].record(&event)?;
            shared.partitions[1].wait(&event)
        }),
        ("the host, for a stream", |_, producer, _| producer.synchronize()),
        ("the host, for an event", |shared, producer, _| {
            let event = shared.device.create_event(EventOptions::default())?;
            producer.record(&event)?;
            event.synchronize()
        }),
        ("the host, for a context", |shared, _, _| shared.partitions[0].synchronize()),
    ];
    for (name, way) in ways {
        let shared = Shared::new()?;
        let (result, races) = shared.run(|producer, consumer| way(&shared, producer, consumer))?;
        assert_eq!(races, [], "{name}");
        assert_eq!(result, [PRODUCED; 8], "{name}");
    }
    Ok(())
}

#[test]
fn waiting_the_wrong_way_round_is_reported() -> Outcome {
    let shared = Shared::new()?;
    let (_, races) = shared.run(|producer, consumer| producer.wait_for(consumer))?;
    assert_eq!(races.len(), 1);
    // An event recorded too early does not cover the work.
    let shared = Shared::new()?;
    let event = shared.device.create_event(EventOptions::default())?;
    let producer = shared.stream(0)?;
    producer.record(&event)?;
    shared.produce(&producer)?;
    let consumer = shared.stream(1)?;
    consumer.wait(&event)?;
    shared.consume(&consumer)?;
    assert_eq!(shared.sim.races().len(), 1);
    Ok(())
}

#[test]
fn a_second_round_needs_a_wait_of_its_own() -> Outcome {
    let shared = Shared::new()?;
    let (producer, consumer) = (shared.stream(0)?, shared.stream(1)?);
    shared.produce(&producer)?;
    consumer.wait_for(&producer)?;
    shared.consume(&consumer)?;
    // The producer writes again without waiting for the reader.
    shared.produce(&producer)?;
    let races = shared.sim.races();
    let [race] = &races[..] else { panic!("one race, not {races:?}") };
    assert!(!race.first.write && race.second.write);
    shared.sim.clear_races();
    producer.wait_for(&consumer)?;
    shared.produce(&producer)?;
    assert_eq!(shared.sim.races(), []);
    Ok(())
}

/// A partition is dropped while its kernel runs, and the same SMs are taken again. The fence between the owners
/// also orders their accesses.
#[test]
fn the_fence_of_recycled_sms_orders_their_owners() -> Outcome {
    for same_sms in [true, false] {
        let Shared { sim, device, partitions, produce, consume, buffer, result } = Shared::new()?;
        let [first, second] = partitions;
        let busy = first.create_stream(StreamOptions::default())?;
        // SAFETY: as in `Shared::produce`.
        unsafe {
            busy.launch(&produce, LaunchConfig::new(64, 128), (buffer.as_argument(),))?;
        }
        drop((busy, first));
        let next = if same_sms { partition(&device, 16)? } else { second };
        let stream = next.create_stream(StreamOptions::default())?;
        let arguments = (buffer.as_argument(), result.as_argument());
        // SAFETY: as in `Shared::consume`.
        unsafe { stream.launch(&consume, LaunchConfig::new(64, 128), arguments)? };
        let values = result.read(&stream)?;
        let launches = sim.launches();
        assert_eq!(launches[0].sms == launches[1].sms, same_sms);
        assert_eq!(sim.races().is_empty(), same_sms, "{:?}", sim.races());
        assert_eq!(values == [PRODUCED; 8], same_sms);
    }
    Ok(())
}
