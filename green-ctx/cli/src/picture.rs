//! The file that a picture goes to.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use crate::failure::Failure;

/// A file open for a picture. One that was not there before is removed unless it was written.
pub(crate) struct Picture {
    path: PathBuf,
    file: File,
    /// Whether the file is ours to remove.
    is_new: bool,
}

impl Picture {
    /// Opens the file, and leaves what is in it until there is something better.
    pub(crate) fn open(path: PathBuf) -> Result<Picture, Failure> {
        if let Some(other) =
            path.extension().filter(|extension| !extension.eq_ignore_ascii_case("svg"))
        {
            let (other, svg) = (other.display(), path.with_extension("svg"));
            let reason = format!("pictures are SVG, not {other}; write --svg {}", svg.display());
            return Err(Failure::Request(reason));
        }
        let opened = match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                OpenOptions::new().write(true).open(&path).map(|file| (file, false))
            }
            other => other.map(|file| (file, true)),
        };
        match opened {
            Ok((file, is_new)) => Ok(Picture { path, file, is_new }),
            Err(source) => Err(Failure::File { path, source }),
        }
    }

    /// Writes the picture in place of what the file held.
    pub(crate) fn write(mut self, svg: &str) -> Result<(), Failure> {
        match self.replace(svg) {
            Ok(()) => {
                self.is_new = false;
                Ok(())
            }
            Err(source) => Err(Failure::File { path: self.path.clone(), source }),
        }
    }

    fn replace(&mut self, svg: &str) -> io::Result<()> {
        // Only a regular file has a length; a terminal or a pipe takes what comes.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(svg.as_bytes())?;
        self.file.flush()
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        if self.is_new {
            // The command has failed and is about to say why: an empty file left is the lesser
            // evil.
            let _ = fs::remove_file(&self.path);
        }
    }
}
