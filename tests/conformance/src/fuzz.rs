//! The same random calls to two drivers.
//!
//! A [`Program`] is a list of raw calls that follows from a seed alone: handles are named by the step that
//! made them, so that both drivers run the same program whatever they answer. [`run`](run()) puts
//! programs to a driver, each in a process of its own with a time limit, and writes an answer for every
//! step; [`compare`](compare()) finds the steps that two drivers answered differently, and
//! [`shrink`](shrink()) the calls that such a difference needs.
//!
//! What is never called is what can hang or harm a GPU or the work of others; the list in `excluded.rs`
//! says of each function why. Kernels end at once, no graph waits or loops, no memory is larger than a
//! page, and handles that may be gone are not used. Null handles come in the last tenth of a program, and in
//! its last step null in place of any pointer, since the driver may follow it and end the process.

mod compare;
mod excluded;
mod execute;
mod function;
mod functions;
mod generate;
mod model;
mod params;
mod program;
mod run;
mod shapes;
mod shrink;

use std::io;
use std::time::Duration;

pub use compare::{Answers, Comparison, Counts, Difference, compare};
pub use execute::Reply;
pub use generate::program;
pub use program::{Arg, Buffer, Made, Program, Step, Symbol};
pub use run::{child, run};
pub use shrink::{candidates, shrink};

use crate::runner::Options;

/// How long a program may take before its process is ended.
pub const LIMIT: Duration = run::LIMIT;

/// The functions that programs call, under the names that a library exports them by, with the number of
/// their arguments.
pub fn called() -> impl Iterator<Item = (&'static str, usize)> {
    functions::FUNCTIONS.iter().map(|function| (function.export, function.args.len()))
}

/// The functions that no program calls, and why.
pub fn excluded() -> impl Iterator<Item = (&'static str, &'static str)> {
    excluded::EXCLUDED.iter().copied()
}

/// The program up to its step `step`, made as short as the difference in that step's answers allows.
/// `None` where two runs do not differ there.
///
/// # Errors
///
/// What keeps a process from running.
pub fn shrink_on(
    first: &Options,
    second: &Options,
    program: &Program,
    step: u32,
) -> io::Result<Option<Program>> {
    let program = shrink::up_to(program, step);
    let answers = |program: &Program| -> io::Result<Option<(String, String)>> {
        let one = run::run_one(first, program, LIMIT)?;
        let other = run::run_one(second, program, LIMIT)?;
        Ok(match (one.last(), other.last()) {
            (Some(one), Some(other))
                if one.step.step == step
                    && other.step.step == step
                    && !compare::equal(one, other) =>
            {
                Some((one.status.clone(), other.status.clone()))
            }
            _ => None,
        })
    };
    let Some(expected) = answers(&program)? else { return Ok(None) };
    shrink(&program, |candidate| Ok(answers(candidate)?.as_ref() == Some(&expected))).map(Some)
}

/// Shorter forms of the program up to its step `step`, at most `most`, for which the driver's answer to
/// that step stays what it is: those that another driver, which is not at hand, may answer as it did.
///
/// # Errors
///
/// What keeps a process from running.
pub fn candidates_on(
    options: &Options,
    program: &Program,
    step: u32,
    most: usize,
) -> io::Result<Vec<Program>> {
    let program = shrink::up_to(program, step);
    let answer = |program: &Program| -> io::Result<Option<String>> {
        let last = run::run_one(options, program, LIMIT)?.pop();
        Ok(last.filter(|last| last.step.step == step).map(|last| last.status))
    };
    let expected = answer(&program)?;
    let mut candidates = candidates(&program, most);
    let mut same = Vec::new();
    for candidate in candidates.drain(..) {
        if answer(&candidate)? == expected {
            same.push(candidate);
        }
    }
    Ok(same)
}
