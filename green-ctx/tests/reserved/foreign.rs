//! The driver as a library sees it that knows nothing of partitions.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

pub(crate) type Handle = *mut c_void;

/// The driver as a library sees it that knows nothing of partitions.
pub(crate) struct Foreign(pub(crate) Loaded);

pub(crate) type Retain = unsafe extern "C" fn(*mut Handle, c_int) -> c_int;
pub(crate) type Lookup =
    unsafe extern "C" fn(*const c_char, *mut Handle, c_int, u64, *mut c_int) -> c_int;
pub(crate) type Entry = unsafe extern "C" fn(Lookup) -> Lookup;

impl Foreign {
    /// Opens the driver like such a library, and makes the device's primary context current.
    pub(crate) fn begin(name: &str) -> Result<(Foreign, Handle), Box<dyn std::error::Error>> {
        let foreign = Foreign::open(name)?;
        let mut context = ptr::null_mut();
        assert_eq!(foreign.init(), 0);
        assert_eq!(foreign.retain(0, &mut context), 0);
        assert_eq!(foreign.on_context("cuCtxSetCurrent", context), 0);
        Ok((foreign, context))
    }

    pub(crate) fn open(name: &str) -> Result<Foreign, Box<dyn std::error::Error>> {
        Ok(Foreign(unsafe { Loaded::open(Some(name), RTLD_NOW | RTLD_LOCAL) }?))
    }

    pub(crate) fn init(&self) -> c_int {
        self.call("cuInit", |it: unsafe extern "C" fn(c_uint) -> c_int| unsafe { it(0) })
    }

    /// Calls a function that has the type `F`.
    pub(crate) fn call<F: Copy>(&self, name: &str, call: impl FnOnce(F) -> c_int) -> c_int {
        let function = unsafe { self.0.get::<F>(name.as_bytes()) };
        call(*function.unwrap_or_else(|error| panic!("{name}: {error}")))
    }

    pub(crate) fn retain(&self, device: c_int, context: &mut Handle) -> c_int {
        self.call("cuDevicePrimaryCtxRetain", |it: Retain| unsafe { it(context, device) })
    }

    /// Returns the current context.
    pub(crate) fn current(&self) -> Handle {
        type Current = unsafe extern "C" fn(*mut Handle) -> c_int;
        let mut current = ptr::null_mut();
        self.call("cuCtxGetCurrent", |it: Current| unsafe { it(&mut current) });
        current
    }

    /// Returns a device's own primary context, as the runtime gets it from the driver's private table.
    pub(crate) fn primary(&self, device: c_int) -> Handle {
        let (mut retain, mut context) = (ptr::null_mut(), ptr::null_mut());
        let entry = unsafe { self.0.get::<Entry>(b"greenCtxReserveEntry") }.expect("a front");
        let found = unsafe {
            let name = c"cuDevicePrimaryCtxRetain".as_ptr();
            let own = *self.0.get::<Lookup>(b"cuGetProcAddress_v2").expect("an entry point");
            entry(own)(name, &mut retain, 12000, 0, ptr::null_mut())
        };
        assert_eq!(found, 0);
        unsafe { std::mem::transmute::<Handle, Retain>(retain)(&mut context, device) };
        context
    }

    pub(crate) fn on_context(&self, name: &str, context: Handle) -> c_int {
        self.call(name, |it: unsafe extern "C" fn(Handle) -> c_int| unsafe { it(context) })
    }

    pub(crate) fn plain(&self, name: &str) -> c_int {
        self.call(name, |it: unsafe extern "C" fn() -> c_int| unsafe { it() })
    }

    /// Returns the number of SMs that the device has according to the driver.
    pub(crate) fn sm_count(&self) -> (c_int, c_int) {
        type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
        let mut sms = 0;
        let status =
            self.call("cuDeviceGetAttribute", |it: Attribute| unsafe { it(&mut sms, 16, 0) });
        (status, sms)
    }

    pub(crate) fn create_stream(&self, flags: c_uint) -> c_int {
        self.new_stream(flags).0
    }

    pub(crate) fn new_stream(&self, flags: c_uint) -> (c_int, Handle) {
        type Create = unsafe extern "C" fn(*mut Handle, c_uint, c_int) -> c_int;
        let mut stream = ptr::null_mut();
        let create = |it: Create| unsafe { it(&mut stream, flags, 0) };
        (self.call("cuStreamCreateWithPriority", create), stream)
    }

    /// Returns the flags that the driver has for a new blocking stream.
    pub(crate) fn flags_of_new_stream(&self) -> Result<c_uint, c_int> {
        type Flags = unsafe extern "C" fn(Handle, *mut c_uint) -> c_int;
        let ((status, stream), mut flags) = (self.new_stream(0), 0);
        if status != 0 {
            return Err(status);
        }
        match self.call("cuStreamGetFlags", |it: Flags| unsafe { it(stream, &mut flags) }) {
            0 => Ok(flags),
            status => Err(status),
        }
    }
}
