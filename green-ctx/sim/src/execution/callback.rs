//! Functions of the program that the driver calls: host functions of streams and graphs, and destructors of
//! user objects.

use std::ffi::c_void;

use green_ctx_sys::{CUhostFn, CUresult};

use crate::pointer::{Kept, Ptr};

/// A function of the program and its argument.
#[derive(Clone)]
pub(crate) struct Callback {
    function: Function,
    user_data: Kept<c_void>,
}

#[derive(Clone)]
enum Function {
    /// A function from `cuLaunchHostFunc` or a host node. After an error, the driver does not call the
    /// function (cuda.h).
    Host(unsafe extern "C" fn(*mut c_void)),
    /// The destructor of a user object. The driver calls the destructor even after an error.
    Destructor(unsafe extern "C" fn(*mut c_void)),
}

impl Callback {
    /// Creates the callback of `cuLaunchHostFunc` or of a host node.
    pub(crate) fn host(
        function: unsafe extern "C" fn(*mut c_void),
        user_data: Ptr<c_void>,
    ) -> Callback {
        Callback { function: Function::Host(function), user_data: user_data.into() }
    }

    /// Creates the callback of a user object's destructor.
    pub(crate) fn destructor(
        function: unsafe extern "C" fn(*mut c_void),
        user_data: Ptr<c_void>,
    ) -> Callback {
        Callback { function: Function::Destructor(function), user_data: user_data.into() }
    }

    /// Returns the function and its argument as the parameters of a host node.
    pub(crate) fn as_host(&self) -> (CUhostFn, *mut c_void) {
        let function = match self.function {
            Function::Host(function) => Some(function),
            // Destructors are never captured.
            Function::Destructor(_) => None,
        };
        (function, self.user_data.pointer().raw())
    }

    /// Calls the function. The caller must not hold a lock of the driver, because the function may call the
    /// driver.
    pub(crate) fn run(self, status: CUresult) {
        match self.function {
            Function::Host(function) if status == CUresult::CUDA_SUCCESS => {
                // SAFETY: the program that passed the function and the pointer promised that the driver may
                // call the function with it (cuda.h, `cuLaunchHostFunc`, `CUDA_HOST_NODE_PARAMS`). Each
                // launch creates one callback, and `run` consumes the callback.
                unsafe { function(self.user_data.pointer().raw()) };
            }
            Function::Host(_) => {}
            Function::Destructor(function) => {
                // SAFETY: the program that passed the destructor and the pointer promised that the driver
                // may call the destructor with the pointer (cuda.h, `cuUserObjectCreate`).
                // `UserObject::drop` creates this callback once.
                unsafe { function(self.user_data.pointer().raw()) };
            }
        }
    }
}
