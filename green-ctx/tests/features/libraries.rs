//! Libraries of kernels: what counts as PTX text.

use green_ctx::{Library, error::ErrorKind};

use crate::common::Outcome;
use crate::{PTX, each_driver};

/// Texts that the driver would take for another format, whose offsets it follows past the end of the
/// text, and texts that are in no format.
const OTHERS: [&str; 12] = [
    // A cubin whose sections are said to lie far past the end of the text.
    "\x7fELF\x02\x01\x01aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\x7fELF",
    // CUDA Tile IR, once the text is terminated.
    "\x7fTileIR",
    "!<arch>\n.version 7.0",
    "; ModuleID = '.version 7.0'",
    "x .version 7.0 .target sm_52",
    "\u{feff}.version 7.0 .target sm_52",
    ".target sm_52 .version 7.0",
    "// .version 7.0",
    "/* .version 7.0",
    "not PTX",
    "",
];

#[test]
fn only_ptx_text_reaches_the_driver() -> Outcome {
    each_driver(|machine| {
        // Brings the primary context up, which the first library does otherwise.
        let _primary = machine.device.primary_context()?;
        for text in OTHERS {
            let refused = machine.without_calls(|| Library::from_ptx(&machine.device, text));
            let error = refused.expect_err("it is not PTX");
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{text:?}");
            let expected = "the text is not PTX: a PTX module begins with `.version`";
            assert!(error.to_string().starts_with(expected), "{error}");
        }
        Ok(())
    })
}

#[test]
fn comments_and_white_space_come_before_the_version() -> Outcome {
    each_driver(|machine| {
        for before in ["", "\n", " \t\r\n", "//\n// text\r\n", "/* .entry\n **/ /**/\n//\n"] {
            let library = Library::from_ptx(&machine.device, &format!("{before}{}", PTX.trim()))?;
            library.kernel("work")?;
        }
        Ok(())
    })
}
