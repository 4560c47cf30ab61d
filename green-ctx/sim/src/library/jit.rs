//! Options of the PTX compiler, which is not simulated.

use std::ffi::c_void;

use green_ctx_sys::{CUjit_option, CUlibraryOption, CUresult};

use crate::pointer::{Answer, Ptr, invalid_if};

/// Checks the options, and writes the results of options that have results: empty logs and a compile time
/// of 0. Other options have no visible effect.
pub(super) fn answer(options: Ptr<CUjit_option>, values: Ptr<*mut c_void>, count: u32) -> Answer {
    let (mut logs, mut sizes) = ([None; 2], [None; 2]);
    for index in 0..count as usize {
        let option = options.given()?.element(index).read()?;
        let place = values.given()?.element(index);
        match option {
            CUjit_option::CU_JIT_WALL_TIME => place.cast().write(0.0_f32)?,
            CUjit_option::CU_JIT_INFO_LOG_BUFFER => logs[0] = Some(place),
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER => logs[1] = Some(place),
            CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => sizes[0] = Some(place),
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => sizes[1] = Some(place),
            CUjit_option(number) if number < CUjit_option::CU_JIT_NUM_OPTIONS.0 => {}
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
    for (log, size) in logs.into_iter().zip(sizes) {
        let Some(size) = size else { continue };
        // The number is stored in place of a pointer, in its lower half (header).
        let room: u32 = size.cast().read()?;
        if let Some(log) = log.filter(|_| room > 0) {
            let log = log.follow()?;
            if !log.is_null() {
                log.cast().write(0_u8)?;
            }
        }
        size.cast().write(0_u32)?;
    }
    Ok(())
}

/// Checks the library options, which have no visible effect.
pub(super) fn read_library_options(
    options: Ptr<CUlibraryOption>,
    values: Ptr<*mut c_void>,
    count: u32,
) -> Answer {
    for index in 0..count as usize {
        let option = options.given()?.element(index).read()?;
        values.given()?;
        invalid_if(option.0 >= CUlibraryOption::CU_LIBRARY_NUM_OPTIONS.0)?;
    }
    Ok(())
}
