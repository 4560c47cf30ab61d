//! A range is no list of counts: `32..` would never end.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sms = green_ctx::Driver::load()?.device(0)?.resources().sm()?;
    sms.split(32..)?;
    Ok(())
}
