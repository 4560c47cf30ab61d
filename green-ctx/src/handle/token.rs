//! Default streams, which are no handles.

use std::fmt;
use std::ptr;

use green_ctx_sys::CUstream;

/// A default stream of whatever context is current on the thread that uses it.
///
/// Other libraries pass these tokens where a stream is expected. Each names another stream in another
/// context, and on another thread, so that no [`Stream`](crate::Stream) can stand for one: it is
/// looked up again at each call, [`Driver::find_stream`](crate::Driver::find_stream) does not know it, and
/// [`Stream::from_raw_borrowed`](crate::Stream::from_raw_borrowed) refuses it. This is the one place
/// where something depends on what is current.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, StreamOptions, sim::Sim, event::EventOptions, stream::DefaultStream};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let context = device.primary_context()?;
/// # let stream = context.create_stream(StreamOptions::default())?;
/// // Our stream waits for what another library submitted to the default stream.
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
    /// The null handle. Through this crate it is the same as [`Legacy`](DefaultStream::Legacy); C
    /// code can be compiled to take it for [`PerThread`](DefaultStream::PerThread).
    Null,
    /// The context's own default stream, which its blocking streams wait for and which waits for
    /// them. In a green context no stream does (recorded on an H200, driver 580.159.04).
    #[doc(alias = "CU_STREAM_LEGACY")]
    Legacy,
    /// The thread's own default stream in the context. A green context has none: every call answers
    /// `CUDA_ERROR_INVALID_HANDLE` there (recorded on an H200, driver 580.159.04).
    #[doc(alias = "CU_STREAM_PER_THREAD")]
    PerThread,
}

impl DefaultStream {
    /// The token that a raw handle is; `None` for a stream's own handle.
    #[must_use]
    pub fn from_raw(raw: CUstream) -> Option<DefaultStream> {
        [DefaultStream::Null, DefaultStream::Legacy, DefaultStream::PerThread]
            .into_iter()
            .find(|token| token.as_raw() == raw)
    }

    /// The token as C code passes it.
    #[must_use]
    pub const fn as_raw(self) -> CUstream {
        // The numbers are those of cuda.h.
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
