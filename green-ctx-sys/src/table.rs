//! The macro behind `api.rs`: from a list of functions to a table and its accessors.

/// Makes the table of functions, the code that fills it, and a method of [`Api`](crate::Api) for
/// each. A `required` function is returned as it is; an `optional` one that the driver lacks is an
/// [`Unsupported`](crate::Unsupported) when it is asked for.
macro_rules! functions {
    ($($(#[$doc:meta])* $kind:ident $name:ident = $version:literal: $signature:ty;)*) => {
        /// Every function that [`Api`](crate::Api) knows, with the version it is asked for.
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
                        // SAFETY: the driver returned this address for the name at the version
                        // whose signature cudaTypedefs.h gives as the field's type, and a null
                        // address is the `None` of an optional field.
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
