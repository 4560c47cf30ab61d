//! The macro that turns the list of functions in `api.rs` into a table and accessors.

/// Defines the table of functions, the code that fills it, and one method of [`Api`](crate::Api) per function. The
/// method of a `required` function returns the function. The method of an `optional` function returns
/// [`Unsupported`](crate::Unsupported) if the driver lacks the function.
macro_rules! functions {
    ($($(#[$doc:meta])* $kind:ident $name:ident = $version:literal: $signature:ty;)*) => {
        /// The name of every function that [`Api`](crate::Api) resolves, with the CUDA version that is requested for
        /// the function.
        pub const SYMBOLS: &[(&str, u32)] = &[$((stringify!($name), $version)),*];

        /// The functions of one driver.
        pub(crate) struct Table {
            $($name: $crate::table::field!($kind $signature),)*
        }

        impl Table {
            /// Resolves every function.
            ///
            /// # Safety
            ///
            /// The resolver's entry point must be a CUDA driver's `cuGetProcAddress_v2`.
            pub(crate) unsafe fn resolve(
                resolver: &$crate::load::Resolver<'_>,
            ) -> Result<Table, $crate::LoadError> {
                Ok(Table {
                    $($name: {
                        let address = resolver.$kind(
                            match core::ffi::CStr::from_bytes_with_nul(
                                concat!(stringify!($name), "\0").as_bytes(),
                            ) {
                                Ok(name) => name,
                                Err(_) => c"",
                            },
                            $version,
                        )?;
                        // SAFETY: the driver returned this address for the name at this version, and in
                        // cudaTypedefs.h this version of the function has the signature `$signature`. In an optional
                        // field, a null address becomes `None`.
                        unsafe { $crate::table::cast!($kind address, $signature) }
                    },)*
                })
            }
        }

        impl crate::Api {
            $(
                $(#[$doc])*
                #[inline]
                pub fn $name(&self) -> $crate::table::returned!($kind $signature) {
                    $crate::table::get!($kind self, $name, $version)
                }
            )*
        }
    };
}

macro_rules! field {
    (required $signature:ty) => { $signature };
    (optional $signature:ty) => { Option<$signature> };
}

macro_rules! cast {
    (required $address:ident, $signature:ty) => {
        core::mem::transmute::<core::ptr::NonNull<core::ffi::c_void>, $signature>($address)
    };
    (optional $address:ident, $signature:ty) => {
        core::mem::transmute::<*mut core::ffi::c_void, Option<$signature>>($address)
    };
}

macro_rules! returned {
    (required $signature:ty) => { $signature };
    (optional $signature:ty) => { Result<$signature, $crate::Unsupported> };
}

macro_rules! get {
    (required $api:ident, $name:ident, $version:literal) => {
        $api.table.$name
    };
    (optional $api:ident, $name:ident, $version:literal) => {
        match $api.table.$name {
            Some(function) => Ok(function),
            None => Err($api.unsupported(stringify!($name), $version)),
        }
    };
}

pub(crate) use {cast, field, functions, get, returned};
