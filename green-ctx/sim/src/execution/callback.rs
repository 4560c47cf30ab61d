//! Functions of the program that run in stream order.

use std::ffi::c_void;

use green_ctx_sys::{CUhostFn, CUresult};

use crate::pointer::{Kept, Ptr};

/// A function of the program and what it is called with.
#[derive(Clone)]
pub(crate) struct Callback {
    function: Function,
    user_data: Kept<c_void>,
}

#[derive(Clone)]
enum Function {
    /// Of `cuLaunchHostFunc`: not called after an error (cuda.h).
    Host(unsafe extern "C" fn(*mut c_void)),
    /// Of a user object: called whatever happened.
    Destructor(unsafe extern "C" fn(*mut c_void)),
}

impl Callback {
    /// A function of `cuLaunchHostFunc` or of a node.
    pub(crate) fn host(
        function: unsafe extern "C" fn(*mut c_void),
        user_data: Ptr<c_void>,
    ) -> Callback {
        Callback { function: Function::Host(function), user_data: user_data.into() }
    }

    /// The function that a user object is destroyed with.
    pub(crate) fn destructor(
        function: unsafe extern "C" fn(*mut c_void),
        user_data: Ptr<c_void>,
    ) -> Callback {
        Callback { function: Function::Destructor(function), user_data: user_data.into() }
    }

    /// The function and what it is called with, as a node has them.
    pub(crate) fn as_host(&self) -> (CUhostFn, *mut c_void) {
        let function = match self.function {
            Function::Host(function) => Some(function),
            // These are never captured.
            Function::Destructor(_) => None,
        };
        (function, self.user_data.pointer().raw())
    }

    /// Runs the function. No lock of the driver may be held: it may call the driver.
    pub(crate) fn run(self, status: CUresult) {
        match self.function {
            Function::Host(function) if status == CUresult::CUDA_SUCCESS => {
                // SAFETY: who added it promised that it can be called with this pointer, once.
                unsafe { function(self.user_data.pointer().raw()) };
            }
            Function::Host(_) => {}
            Function::Destructor(function) => {
                // SAFETY: as above.
                unsafe { function(self.user_data.pointer().raw()) };
            }
        }
    }
}
