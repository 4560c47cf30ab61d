//! `cargo xtask regen-bindings`: generates `bindings.rs` and `api.rs` of green-ctx-sys, the simulator's
//! list of all driver functions, and the reserve's list of those that put work on a stream, from NVIDIA's headers.

mod api;
mod bindings;
mod functions;
pub(crate) mod headers;
mod libclang;
mod symbols;

use std::path::{Path, PathBuf};

use crate::{Failure, workspace_root};
use symbols::Symbols;

/// The location of the headers, and whether to write files.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write nothing; fail if a generated file differs from the committed one.
    #[arg(long)]
    check: bool,
    /// The folder with cuda.h and cudaTypedefs.h [default: $CUDA_HOME/include if it contains CUDA 13.5,
    /// otherwise the pinned header package, which pip downloads and a checksum verifies]
    #[arg(long, value_name = "DIR")]
    cuda_include: Option<PathBuf>,
}

/// Generates the files, and writes or compares them.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let sys = workspace_root().join("green-ctx-sys");
    let symbols = Symbols::read(&sys.join("symbols.toml"))?;
    let include = headers::locate(options.cuda_include.as_deref())?;
    libclang::locate()?;
    eprintln!("headers: {}", include.display());

    let wrapper = sys.join("wrapper.h");
    let bindings = bindings::generate(&wrapper, &include, &symbols)?;
    let api = api::generate(&bindings, &symbols)?;
    let (functions, ordered) = functions::generate(&wrapper, &include, &bindings)?;
    let outputs = [
        (sys.join("src/bindings.rs"), bindings::render(&bindings)),
        (sys.join("src/api.rs"), api),
        (workspace_root().join("green-ctx/sim/src/entry/functions/generated.rs"), functions),
        (workspace_root().join("green-ctx/reserve/front/ordered.rs"), ordered),
    ];
    if options.check { check(&outputs) } else { write(&outputs) }
}

fn check(outputs: &[(PathBuf, String)]) -> Result<(), Failure> {
    for (path, fresh) in outputs {
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        if let Some(line) = first_difference(&committed, fresh) {
            return Err(Failure::new(format!(
                "{} differs from the generated text, first at line {line}; \
                 run `cargo xtask regen-bindings` and commit the result",
                relative(path)
            )));
        }
        println!("{}: up to date", relative(path));
    }
    Ok(())
}

fn write(outputs: &[(PathBuf, String)]) -> Result<(), Failure> {
    for (path, fresh) in outputs {
        std::fs::write(path, fresh).map_err(|error| Failure::io("writing", path, error))?;
        println!("{}: written, {} lines", relative(path), fresh.lines().count());
    }
    Ok(())
}

/// Returns the number of the first line that differs, or `None` if the texts are equal.
fn first_difference(left: &str, right: &str) -> Option<usize> {
    if left == right {
        return None;
    }
    let same = left.lines().zip(right.lines()).take_while(|(a, b)| a == b).count();
    Some(same + 1)
}

fn relative(path: &Path) -> String {
    path.strip_prefix(workspace_root()).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::first_difference;

    #[test]
    fn a_difference_is_found_where_it_is() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(2));
        assert_eq!(first_difference("a\nb\n", "a\n"), Some(2));
        assert_eq!(first_difference("", "a\n"), Some(1));
    }
}
