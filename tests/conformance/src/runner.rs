//! Runs cases: a parent that starts child processes and collects their answers, and the child that calls the driver.

use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;

use crate::answer::{Answer, Event, Failure};
use crate::cases::{Case, Isolation};
use crate::driver::{Choice, Driver, OpenError};
use crate::gpu::Gpu;
use crate::record::{HeaderLine, Line};

/// The maximum time without output from a child. The longest case takes well under a second.
const SILENCE: Duration = Duration::from_secs(60);

/// The driver and the program to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The driver to run the cases on.
    pub driver: Choice,
    /// The program that runs as a child with `--driver CHOICE --child`.
    pub program: PathBuf,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of cases that the driver answered.
    pub answered: usize,
    /// The number of cases that could not be run.
    pub failed: usize,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The driver could not be opened.
    #[error("no driver")]
    Open(#[from] OpenError),
    /// A child process could not be started or read.
    #[error("cannot run a child process")]
    Child(#[source] io::Error),
    /// The record could not be written.
    #[error("cannot write the record")]
    Write(#[source] io::Error),
}

/// Why a child process ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChildError {
    /// The driver could not be opened.
    #[error("no driver")]
    Open(#[from] OpenError),
    /// The names could not be read, or the answers could not be written.
    #[error("lost the parent process")]
    Pipe(#[from] io::Error),
    /// The parent requested a case that does not exist.
    #[error("no case {0}")]
    Unknown(String),
}

/// Runs all `cases`, and writes the record to `out` and progress to stderr.
///
/// # Errors
///
/// Returns a [`RunError`] if the driver could not be opened, a process could not be started, or `out` failed.
pub fn run(options: &Options, cases: &[&Case], out: &mut dyn Write) -> Result<Summary, RunError> {
    let header = Driver::open(&options.driver)?.header(&options.driver)?;
    write_line(out, &HeaderLine { record: header })?;
    let mut summary = Summary::default();
    for group in groups(&options.driver, cases) {
        match group.as_slice() {
            [case] => eprintln!("{}", case.name()),
            _ => eprintln!("{} and {} more", group[0].name(), group.len() - 1),
        }
        for (line, failed) in ask(options, &group)? {
            if failed {
                eprintln!("could not be run: {}", line.case);
                summary.failed += 1;
            } else {
                summary.answered += 1;
            }
            write_line(out, &line)?;
        }
    }
    Ok(summary)
}

fn write_line(out: &mut dyn Write, line: &impl serde::Serialize) -> Result<(), RunError> {
    serde_json::to_writer(&mut *out, line).map_err(|error| RunError::Write(error.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(RunError::Write)
}

/// Groups cases by process. For a simulated driver all cases share one, since a new driver replaces a new
/// process. Otherwise adjacent cases of one topic share a process, unless they need a separate one.
fn groups<'a>(driver: &Choice, cases: &[&'a Case]) -> Vec<Vec<&'a Case>> {
    let mut groups: Vec<Vec<&Case>> = Vec::new();
    let simulated = matches!(driver, Choice::Simulated(_));
    for case in cases {
        match groups.last_mut() {
            Some(last) if simulated || share(last[0], case) => last.push(case),
            _ => groups.push(vec![case]),
        }
    }
    groups
}

/// Returns whether two adjacent cases can use the same driver without a new process or a new simulated driver
/// in between.
fn share(one: &Case, other: &Case) -> bool {
    let shared = |case: &Case| case.isolation() == Isolation::Shared;
    shared(one) && shared(other) && one.topic() == other.topic()
}

/// A case as a child reported it.
struct Reported {
    line: Line,
    failed: bool,
    ended: bool,
}

/// Runs a group, with a new process after each case that ended one. Returns each line, and whether the case
/// could not be run.
fn ask(options: &Options, group: &[&Case]) -> Result<Vec<(Line, bool)>, RunError> {
    let mut lines = Vec::new();
    let mut rest = group;
    while let Some(first) = rest.first() {
        let (mut reported, ended) = ask_child(options, rest).map_err(RunError::Child)?;
        if reported.is_empty() {
            // No case began, so this is not an answer of the driver.
            let reason = format!("the process ended before the case: {ended:?}");
            let answer = vec![("failed".to_owned(), Value::String(reason))];
            let line = Line { case: first.name().to_owned(), answer };
            reported.push(Reported { line, failed: true, ended: true });
        }
        rest = rest.get(reported.len()..).unwrap_or_default();
        if let (Some(last), Some(how)) = (reported.last_mut(), ended) {
            if !last.ended || (group.len() == 1 && first.isolation() == Isolation::Alone) {
                last.line.answer.push(("died".to_owned(), Value::String(how)));
            } else {
                eprintln!("the process ended with {how} after its last case, {}", last.line.case);
                last.failed = true;
            }
        }
        lines.extend(reported.into_iter().map(|reported| (reported.line, reported.failed)));
    }
    Ok(lines)
}

/// Runs as many of `cases` as one process survives. The second value describes how the process died.
fn ask_child(options: &Options, cases: &[&Case]) -> io::Result<(Vec<Reported>, Option<String>)> {
    let mut command = Command::new(&options.program);
    command.arg("--driver").arg(options.driver.to_string()).arg("--child");
    if let Choice::Simulated(_) = options.driver {
        // A simulated device's memory is on the heap. Copies of 256 MiB take a third of the time if the C
        // library reuses freed memory instead of requesting pages from the system.
        let keep = "glibc.malloc.mmap_threshold=2147483648:glibc.malloc.trim_threshold=4294967296";
        command.env("GLIBC_TUNABLES", keep);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let events = listen(&mut child)?;
    if let Some(mut stdin) = child.stdin.take() {
        let names: String = cases.iter().map(|case| format!("{}\n", case.name())).collect();
        // If the child has already died, its exit status and the missing answers show it.
        if let Err(error) = stdin.write_all(names.as_bytes())
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            return Err(error);
        }
    }
    let mut reported: Vec<Reported> = Vec::new();
    loop {
        match events.recv_timeout(SILENCE) {
            Ok(event) => take(&mut reported, event),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                return Ok((reported, Some("timeout".to_owned())));
            }
        }
    }
    let status = child.wait()?;
    Ok((reported, if status.success() { None } else { Some(death(status)) }))
}

fn take(reported: &mut Vec<Reported>, event: Event) {
    if let Event::Begin(case) = event {
        let line = Line { case, answer: Vec::new() };
        reported.push(Reported { line, failed: false, ended: false });
        return;
    }
    let Some(last) = reported.last_mut() else { return };
    match event {
        Event::Begin(_) => {}
        Event::Fact(name, fact) => {
            // Two facts with one name would become one when the record is read back.
            if last.line.answer.iter().any(|(known, _)| *known == name) {
                take(reported, Event::Failed(format!("the fact {name} was reported twice")));
            } else {
                last.line.answer.push((name, fact));
            }
        }
        Event::Failed(reason) => {
            last.line.answer.push(("failed".to_owned(), Value::String(reason)));
            last.failed = true;
        }
        Event::Unsupported(call) => {
            last.line.answer.push(("unsupported".to_owned(), Value::String(call)));
        }
        Event::End => last.ended = true,
    }
}

/// Reads a child's events on a separate thread, so that a silent child is noticed.
fn listen(child: &mut Child) -> io::Result<Receiver<Event>> {
    let (send, receive) = channel();
    let stdout = child.stdout.take().ok_or_else(|| io::Error::other("the child has no output"))?;
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(event) => {
                    if send.send(event).is_err() {
                        break;
                    }
                }
                // Not an event: output of the driver is passed on to the user.
                Err(_) => eprintln!("{line}"),
            }
        }
    });
    Ok(receive)
}

fn death(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("signal {signal}");
    }
    status.code().map_or_else(|| status.to_string(), |code| format!("exit {code}"))
}

/// Runs as a child process: reads the names of cases from stdin, one per line, and writes the answers to stdout.
///
/// # Errors
///
/// Returns a [`ChildError`] if the driver could not be opened, a name is unknown, or the parent is gone.
pub fn child(choice: &Choice) -> Result<(), ChildError> {
    let names: Vec<String> = io::stdin().lines().collect::<Result<_, _>>()?;
    let cases = crate::cases::all();
    let mut gpu = Gpu::new(Driver::open(choice)?);
    let mut out = io::stdout().lock();
    let mut before: Option<&Case> = None;
    for name in names {
        let case = cases.iter().find(|case| case.name() == name);
        let case = case.ok_or_else(|| ChildError::Unknown(name.clone()))?;
        if before.replace(case).is_some_and(|before| !share(before, case)) {
            gpu = Gpu::new(Driver::open(choice)?);
        }
        let mut answer = Answer::new(&mut out);
        answer.report(&Event::Begin(name));
        match case.ask(&gpu, &mut answer) {
            Ok(()) => {}
            Err(Failure::Unsupported(function)) => {
                answer.report(&Event::Unsupported(function.call.to_owned()));
            }
            Err(failure) => answer.report(&Event::Failed(failure.to_string())),
        }
        answer.report(&Event::End);
        answer.finish()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(events: Vec<Event>) -> Vec<Reported> {
        let mut reported = Vec::new();
        events.into_iter().for_each(|event| take(&mut reported, event));
        reported
    }

    fn fact(name: &str) -> Event {
        Event::Fact(name.to_owned(), Value::Bool(true))
    }

    #[test]
    fn a_case_without_an_end_is_seen() {
        let events = ["a", "b"].map(|case| Event::Begin(case.to_owned()));
        let [a, b] = events;
        let reported = reported(vec![a, fact("x"), Event::End, b, fact("x")]);
        assert_eq!(
            reported.iter().map(|reported| reported.ended).collect::<Vec<_>>(),
            [true, false]
        );
        assert_eq!(reported[1].line.answer.len(), 1);
    }

    #[test]
    fn a_fact_twice_is_a_failure() {
        let reported =
            reported(vec![Event::Begin("a".to_owned()), fact("x"), fact("x"), Event::End]);
        assert!(reported[0].failed);
    }

    #[test]
    fn only_shared_cases_of_one_topic_share_a_process() {
        let cases = crate::cases::all();
        let cases: Vec<&Case> = cases.iter().collect();
        let groups = groups(&Choice::Cuda(None), &cases);
        assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), cases.len());
        for group in groups.iter().filter(|group| group.len() > 1) {
            assert!(group.iter().all(|case| case.isolation() == Isolation::Shared));
            assert!(group.iter().all(|case| case.topic() == group[0].topic()));
        }
    }

    #[test]
    fn a_simulated_driver_needs_one_process() {
        let cases = crate::cases::all();
        let cases: Vec<&Case> = cases.iter().collect();
        let groups = groups(&Choice::Simulated("h200".to_owned()), &cases);
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [cases.len()]);
    }
}
