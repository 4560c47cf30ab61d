//! A group makes one context: two would share its SMs.

fn both(device: &green_ctx::Device, group: green_ctx::resource::SmGroup) -> green_ctx::Result<()> {
    let _first = device.create_context(group)?;
    let _second = device.create_context(group)?;
    Ok(())
}

fn main() {}
