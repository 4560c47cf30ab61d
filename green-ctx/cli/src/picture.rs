//! The output file for a picture.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// An open file for a picture. If the file is new and the picture is not written, dropping this value removes the file.
pub(crate) struct Picture {
    path: PathBuf,
    file: File,
    /// True if the file did not exist before.
    is_new: bool,
}

impl Picture {
    /// Opens the file. The old content of the file stays until the picture is written.
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

    /// Fails if `path`, which another option names, is this file. The picture would replace that option's file, or be
    /// replaced by it.
    pub(crate) fn differs_from(&self, option: &str, path: &Path) -> Result<(), Failure> {
        // This file exists, so if `path` does not, they differ.
        let [ours, theirs] = [&self.path, path].map(fs::canonicalize);
        match theirs {
            Ok(theirs) if ours.is_ok_and(|ours| ours == theirs) => {
                let path = path.display();
                let reason = format!(
                    "{option} and --svg name the same file, {path}; give each its own file"
                );
                Err(Failure::Request(reason))
            }
            _ => Ok(()),
        }
    }

    /// Replaces the content of the file with the picture.
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
        // Only a regular file can be truncated. A terminal or a pipe takes the text as it comes.
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
            // The command has failed and is about to report why. An empty file left behind is the lesser problem.
            let _ = fs::remove_file(&self.path);
        }
    }
}
