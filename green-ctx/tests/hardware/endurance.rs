//! Many partitions, created one after the other and by several threads at the same time.
//!
//! `GREEN_CTX_SECONDS` sets how many seconds the threads run (2 by default).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use green_ctx::{Device, Error, SplitRequest, StreamOptions, verify};

use crate::common::{Outcome, device, partition};

#[test]
fn churn_costs_no_more_memory_than_the_partitions_that_there_are() -> Outcome {
    let device = device()?;
    let cycle = |round: usize| -> green_ctx::Result<()> {
        let counts = [[8, 24], [16, 40], [64, 8], [24, 100]][round % 4];
        let split = device.resources().sm()?.split(SplitRequest::from(counts).rest("rest"))?;
        for group in split.groups.into_iter().chain(split.remainder) {
            device.create_context(group)?.create_stream(StreamOptions::default())?;
        }
        Ok(())
    };
    let _primary = device.primary_context()?;
    // Idle contexts of other tests would be reused.
    device.release_idle();
    // Returns the number of contexts that these rounds create, and the bytes of device memory that they take.
    let churn = |rounds: Range<usize>| -> Result<(usize, usize), Box<dyn std::error::Error>> {
        let (created, free) = (device.context_counts().created, device.free_memory()?);
        rounds.into_iter().try_for_each(cycle)?;
        let made = usize::try_from(device.context_counts().created - created)?;
        Ok((made, free.saturating_sub(device.free_memory()?)))
    };
    // How much memory a context takes depends on the device and the driver. The first rounds create the contexts.
    let (first, taken) = churn(0..8)?;
    let each = taken.div_ceil(first);
    let (more, lost) = churn(8..10_000)?;
    println!(
        "{first} contexts of {each} bytes; 9,992 further cycles: {more} contexts created, {} reused, \
         {lost} bytes lost",
        device.context_counts().reused
    );
    assert!(first + more <= 12, "{first} and {more} contexts for 11 partitions");
    // One more, since the driver may still enlarge its own pools.
    assert!(lost <= (more + 1) * each, "{lost} bytes for {more} contexts of {each} bytes");
    Ok(())
}

/// The thread whose partition runs on each SM.
type Owners = Mutex<HashMap<u32, usize>>;

#[test]
fn threads_never_share_an_sm() -> Outcome {
    let device = device()?;
    let seconds = std::env::var("GREEN_CTX_SECONDS").map_or(Ok(2), |text| text.parse())?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let (owners, rounds) = (Owners::default(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let (device, owners, rounds) = (&device, &owners, &rounds);
                scope.spawn(move || -> green_ctx::Result<()> {
                    let mut round = thread;
                    while Instant::now() < end {
                        let wanted = [8, 16, 24, 40][round % 4];
                        match one_round(device, owners, thread, wanted) {
                            // The other threads hold the remaining SMs.
                            Ok(()) | Err(Error::NotEnoughSms(_)) => {}
                            Err(error) => return Err(error),
                        }
                        round += 1;
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    println!("{} rounds in {seconds} s", rounds.load(Ordering::Relaxed));
    assert_eq!(device.resources().sm()?.free_sm_count(), device.sm_count()?);
    Ok(())
}

/// Creates a partition, observes its SMs, and checks that no other thread observes one of them at the same
/// time.
fn one_round(
    device: &Device,
    owners: &Owners,
    thread: usize,
    wanted: u32,
) -> green_ctx::Result<()> {
    let context = partition(device, wanted)?;
    let stream = context.create_stream(StreamOptions::default())?;
    let report = verify::contexts(std::slice::from_ref(&context), Duration::from_micros(200))?;
    let seen = report.partitions[0].observed_sms();
    assert_eq!(seen.len(), context.sm_count()? as usize);
    {
        let mut owners = owners.lock().expect("no panic");
        for sm in &seen {
            let other = owners.insert(*sm, thread);
            assert_eq!(other, None, "two threads have SM {sm}");
        }
    }
    stream.synchronize()?;
    // Remove the entries before the SMs are returned: until then no other thread can get them.
    let mut owners = owners.lock().expect("no panic");
    for sm in &seen {
        owners.remove(sm);
    }
    Ok(())
}
