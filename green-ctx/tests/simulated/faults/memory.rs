//! Stream-ordered memory, pinned memory, and copies between them.

use green_ctx::{Device, DeviceBuffer, Result, StreamOptions, memory::PinnedBuffer};

use super::scenario::Scenario;
use crate::common::Outcome;

fn copies(device: &Device, (): &mut ()) -> Result<()> {
    let primary = device.primary_context()?;
    let home = primary.create_stream(StreamOptions::default())?;
    let other = primary.create_stream(StreamOptions::default())?;
    let mut values = PinnedBuffer::<u32>::zeroed(device, 8)?;
    values.as_mut_slice()?.fill(7);
    let (first, second) = (home.allocate(8)?, DeviceBuffer::zeroed(device, 8)?);
    first.copy_from(&mut values, &home)?;
    first.copy_to(&mut values, &other)?;
    second.copy_from(&mut values, &other)?;
    second.copy_from_buffer(&first, &other)?;
    assert_eq!((values.as_slice()?, second.read(&home)?), (&[7; 8][..], vec![7; 8]));
    Ok(())
}

#[test]
fn memory() -> Outcome {
    let (set_up, tear_down) = (|_: &Device| Ok(()), |_: &Device, ()| Ok(()));
    let (name, spec, at_least) = ("memory", "h200@13.0", 50);
    Scenario { name, spec, at_least, set_up, run: copies, tear_down }.exhaust()
}
