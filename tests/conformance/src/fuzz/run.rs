//! Running programs: a parent that starts a process for each, several at a time.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::execute::{Reply, execute};
use super::program::{Program, Step};
use crate::driver::{Choice, Driver};
use crate::record::HeaderLine;
use crate::runner::{ChildError, Options, RunError, Summary, death, write_line};

/// How long a program may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// What a child writes about one step.
#[derive(Serialize, Deserialize)]
struct Answer {
    step: u32,
    status: String,
    wrote: Vec<Value>,
}

/// Runs programs, `jobs` at a time, and writes a header and their answers to `out`, in their order.
/// [`Summary::failed`] counts the programs whose process ended before they did.
///
/// # Errors
///
/// [`RunError`] where there is no driver, a process could not be started, or `out` failed.
pub fn run(
    options: &Options,
    programs: &[Program],
    jobs: usize,
    limit: Duration,
    out: &mut dyn Write,
) -> Result<Summary, RunError> {
    let header = Driver::open(&options.driver)?.header(&options.driver)?;
    write_line(out, &HeaderLine { record: header })?;
    let next = AtomicUsize::new(0);
    let (send, receive) = channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(program) = programs.get(index) else { break };
                    if send.send((index, run_one(options, program, limit))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        let mut summary = Summary::default();
        let mut waiting = BTreeMap::new();
        let mut written = 0;
        for (index, replies) in receive {
            waiting.insert(index, replies);
            while let Some(replies) = waiting.remove(&written) {
                let replies = replies.map_err(RunError::Child)?;
                summary.answered += replies.len();
                let complete = replies.len() == programs[written].steps.len();
                summary.failed += usize::from(!complete || replies.last().is_some_and(Reply::died));
                for reply in &replies {
                    let line = serde_json::to_string(reply)
                        .map_err(|error| RunError::Write(error.into()))?;
                    writeln!(out, "{line}").map_err(RunError::Write)?;
                }
                written += 1;
            }
        }
        out.flush().map_err(RunError::Write)?;
        Ok(summary)
    })
}

impl Reply {
    /// Whether the process ended in this step.
    pub(crate) fn died(&self) -> bool {
        self.status.starts_with("died")
    }
}

/// Runs one program in a process of its own.
pub(crate) fn run_one(
    options: &Options,
    program: &Program,
    limit: Duration,
) -> io::Result<Vec<Reply>> {
    let mut child = Command::new(&options.program)
        .args(["fuzz", "--child", "--driver"])
        .arg(options.driver.to_string())
        .args(options.fault.iter().flat_map(|fault| ["--fault", fault]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().ok_or_else(|| io::Error::other("the child has no output"))?;
    let (send, receive) = channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            match serde_json::from_str::<Answer>(&line) {
                Ok(answer) => {
                    if send.send(answer).is_err() {
                        break;
                    }
                }
                // Not ours: what the driver prints is for the person who runs this.
                Err(_) => eprintln!("{line}"),
            }
        }
    });
    if let Some(mut stdin) = child.stdin.take() {
        let text = serde_json::to_vec(program)?;
        // A child that is already gone shows in its exit status and in the missing answers.
        if let Err(error) = stdin.write_all(&text)
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            return Err(error);
        }
    }
    let until = Instant::now() + limit;
    let mut replies: Vec<Reply> = Vec::with_capacity(program.steps.len());
    let reply = |step: &Step, status: String, wrote: Vec<Value>| Reply {
        program: program.name.clone(),
        step: step.clone(),
        status,
        wrote,
    };
    let mut timed_out = false;
    loop {
        match receive.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(answer) => match program.steps.get(replies.len()) {
                Some(step) if step.step == answer.step => {
                    replies.push(reply(step, answer.status, answer.wrote));
                }
                _ => return Err(io::Error::other("the child answers what it was not asked")),
            },
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                timed_out = true;
                child.kill()?;
                break;
            }
        }
    }
    let status = child.wait()?;
    // The thread ends with the pipe, which the child held.
    drop(reader.join());
    if let Some(step) = program.steps.get(replies.len()) {
        let how = if timed_out { "timeout".to_owned() } else { death(status) };
        replies.push(reply(step, format!("died: {how}"), Vec::new()));
    }
    Ok(replies)
}

/// The child's part: reads a program from stdin and writes its answers to stdout. It does not come
/// back, since how a process with misused handles ends is not what is asked.
///
/// # Errors
///
/// [`ChildError`] where there is no driver or the parent is gone.
pub fn child(choice: &Choice, fault: Option<&str>) -> Result<(), ChildError> {
    let program: Program = serde_json::from_reader(io::stdin().lock()).map_err(io::Error::from)?;
    let driver = Driver::open(choice)?;
    if let Some(function) = fault {
        driver.fail(function);
    }
    execute(&driver, &program, &mut io::stdout().lock())?;
    // SAFETY: nothing is left to be cleaned up; every answer was written and flushed.
    unsafe { libc::_exit(0) }
}
