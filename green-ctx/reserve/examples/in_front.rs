//! Writes the library in front of the driver to a folder: `in_front FOLDER AMOUNT`, for example `in_front front 25%`.
//! Programs that find the folder before the driver then have this reserve: `LD_LIBRARY_PATH=front PROGRAM`.

use std::error::Error;
use std::path::Path;

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, amount] = arguments.as_slice() else {
        return Err("usage: in_front FOLDER AMOUNT".into());
    };
    let amount = green_ctx_reserve::Amount::parse(amount)?;
    let real =
        green_ctx_sys::find(Path::new(green_ctx_sys::LIBRARY)).ok_or("no driver was found")?;
    std::fs::create_dir_all(folder)?;
    for (name, bytes) in green_ctx_reserve::files(&real, amount)? {
        std::fs::write(Path::new(folder).join(name), bytes)?;
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() -> Result<(), Box<dyn Error>> {
    Err(green_ctx_reserve::Error::System.into())
}
