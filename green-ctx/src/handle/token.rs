//! Default-stream tokens, which are not handles.

use std::fmt;
use std::ptr;

use green_ctx_sys::CUstream;

/// A token that means a default stream of the calling thread's current context.
///
/// Other libraries pass these tokens in place of a stream. A token means a different stream in each context, and
/// possibly on each thread, so no [`Stream`](crate::Stream) can represent it. The driver resolves the token at each
/// call. [`Driver::find_stream`](crate::Driver::find_stream) returns `None` for a token, and
/// [`Stream::from_raw_borrowed`](crate::Stream::from_raw_borrowed) refuses it. Only the methods of this type depend on
/// the current context.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, StreamOptions, sim::Sim, event::EventOptions, stream::DefaultStream};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let context = device.primary_context()?;
/// # let stream = context.create_stream(StreamOptions::default())?;
/// // `stream` waits for the work that another library submitted to the default stream.
/// let done = device.create_event(EventOptions::default())?;
/// {
///     let _current = context.make_current()?;
///     DefaultStream::Legacy.record(&done)?;
/// }
/// stream.wait(&done)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DefaultStream {
    /// The null handle. In this crate, the null handle means the same as [`Legacy`](DefaultStream::Legacy). C code can
    /// be compiled so that the null handle means [`PerThread`](DefaultStream::PerThread).
    Null,
    /// The context's legacy default stream, which synchronises with the context's blocking streams. In a green context,
    /// no stream synchronises with the legacy default stream (measured on an H200, driver 580.159.04).
    #[doc(alias = "CU_STREAM_LEGACY")]
    Legacy,
    /// The thread's own default stream in the context. A green context has no such stream: every call with this token
    /// returns `CUDA_ERROR_INVALID_HANDLE` (recorded on an H200, driver 580.159.04).
    #[doc(alias = "CU_STREAM_PER_THREAD")]
    PerThread,
}

impl DefaultStream {
    /// Returns the token with the value `raw`, or `None` if `raw` is the handle of a stream.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx::stream::DefaultStream;
    ///
    /// let token = DefaultStream::from_raw(std::ptr::null_mut());
    /// assert_eq!(token, Some(DefaultStream::Null));
    /// ```
    #[must_use]
    pub fn from_raw(raw: CUstream) -> Option<DefaultStream> {
        [DefaultStream::Null, DefaultStream::Legacy, DefaultStream::PerThread]
            .into_iter()
            .find(|token| token.as_raw() == raw)
    }

    /// Returns the value that C code passes to the driver for this token.
    #[must_use]
    pub const fn as_raw(self) -> CUstream {
        // The values of CU_STREAM_LEGACY and CU_STREAM_PER_THREAD in cuda.h.
        ptr::without_provenance_mut(match self {
            DefaultStream::Null => 0,
            DefaultStream::Legacy => 1,
            DefaultStream::PerThread => 2,
        })
    }
}

impl fmt::Display for DefaultStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DefaultStream::Null => "the null stream",
            DefaultStream::Legacy => "CU_STREAM_LEGACY",
            DefaultStream::PerThread => "CU_STREAM_PER_THREAD",
        })
    }
}
