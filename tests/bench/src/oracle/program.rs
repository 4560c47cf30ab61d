//! Jobs that another program runs, such as PyTorch's.
//!
//! It is asked by lines of JSON on its standard input, each of which it answers by one on its standard
//! output; `docs/oracle/README.md` has them all.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use green_ctx::Device;
use green_ctx::tune::{self, Outcome, Pieces, Profile, Remote, Request};
use serde::{Deserialize, Serialize};

use super::bed::{Bed, Work};
use super::mix::Mix;
use crate::setup::{Failure, Result, chain};

/// How long a program may take to end by itself, once nothing more is asked of it.
const GRACE: Duration = Duration::from_secs(10);
/// How much is shown of a line that is not understood.
const SHOWN: usize = 200;

/// The first line of a program.
#[derive(Deserialize)]
struct Hello {
    /// The device that it runs on, and its SMs: both programs must mean the same.
    device: String,
    sms: u32,
    /// What runs the jobs, with its version.
    about: String,
}

/// What a program is asked, besides blocks.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Ask<'m> {
    /// The jobs of a mix, by name and as they are written. Those of the last mix are not needed any more.
    Prepare(Vec<(String, &'m str)>),
    /// Begin again with the same jobs, as if nothing had run: without partitions.
    Again,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Ready,
    Refused(String),
}

/// A program that runs jobs. It is started when it is first needed, and anew after whatever has failed.
pub(super) struct Program {
    command: Vec<String>,
    timeout: Duration,
    device: String,
    sms: u32,
    link: Option<Link>,
}

/// A program that runs.
struct Link {
    child: Child,
    /// `None` when nothing more is asked.
    input: Option<ChildStdin>,
    lines: Receiver<std::io::Result<String>>,
    timeout: Duration,
    about: String,
    /// The mix that it has prepared.
    prepared: Option<Mix>,
}

impl Program {
    /// A command and its arguments, with spaces between them. `timeout` is how long it may take for an
    /// answer.
    pub(super) fn new(command: &str, timeout: Duration, device: &Device) -> Result<Program> {
        let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        if command.is_empty() {
            return Err("--program names no command".into());
        }
        let (device, sms) = (device.name()?, device.sm_count()?);
        Ok(Program { command, timeout, device, sms, link: None })
    }

    /// Has it prepare a mix.
    pub(super) fn prepare(&mut self, mix: &Mix, pieces: &Pieces) -> Result<Distant<'_>> {
        let mut distant = Distant {
            program: self,
            mix: mix.clone(),
            pieces: pieces.clone(),
            about: String::new(),
        };
        distant.with_link(|_| Ok(()))?;
        Ok(distant)
    }

    fn start(&self) -> Result<Link> {
        let mut link = Link::start(&self.command, self.timeout)?;
        let line = link.answer()?;
        let hello: Hello = understood(&line)?;
        if (hello.device.as_str(), hello.sms) != (self.device.as_str(), self.sms) {
            let Hello { device, sms, .. } = hello;
            return Err(format!(
                "it runs on another device, {device} with {sms} SMs and not {} with {}",
                self.device, self.sms
            )
            .into());
        }
        link.about = hello.about;
        Ok(link)
    }
}

impl Link {
    fn start(command: &[String], timeout: Duration) -> Result<Link> {
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::from(format!("{}: {error}", command[0])))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = mpsc::channel();
        // It ends with the program's output, or when nobody listens any more.
        thread::spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Link { child, input, lines, timeout, about: String::new(), prepared: None })
    }

    /// Its next line.
    fn answer(&mut self) -> Result<String> {
        match self.lines.recv_timeout(self.timeout) {
            Ok(line) => Ok(line?),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("it has not answered for {} s", self.timeout.as_secs_f64()).into())
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        let Some(input) = &mut self.input else { return Err(self.ended()) };
        let written = input.write_all(format!("{line}\n").as_bytes());
        match written.and_then(|()| input.flush()) {
            Ok(()) => self.answer(),
            Err(_) => Err(self.ended()),
        }
    }

    /// Asks for what is ready or refused.
    fn want(&mut self, ask: &Ask<'_>) -> Result<()> {
        let line = self.ask(&serde_json::to_string(ask)?)?;
        match understood(&line)? {
            Answer::Ready => Ok(()),
            Answer::Refused(reason) => Err(reason.into()),
        }
    }

    fn ended(&mut self) -> Failure {
        match self.wait(Duration::from_secs(1)) {
            Some(status) => format!("it has ended with {status}").into(),
            None => "it has closed its output".into(),
        }
    }

    /// The exit status, where it ends within a time.
    fn wait(&mut self, time: Duration) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if began.elapsed() < time => thread::sleep(Duration::from_millis(5)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The end of its input asks it to end.
        self.input = None;
        if self.wait(GRACE.min(self.timeout)).is_none() {
            // It has ended by now, or is made to.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Reads a line, of which an error shows the beginning.
fn understood<'l, T: Deserialize<'l>>(line: &'l str) -> Result<T> {
    serde_json::from_str(line).map_err(|error| {
        let shown: String = line.chars().take(SHOWN).collect();
        format!("its line {shown:?} is not understood: {error}").into()
    })
}

/// A mix that a program has prepared.
pub(super) struct Distant<'p> {
    program: &'p mut Program,
    mix: Mix,
    pieces: Pieces,
    about: String,
}

impl Distant<'_> {
    /// Does something with the program, which has prepared the mix and divides nothing. Where it fails, the
    /// program is ended, since nobody knows in what state it is.
    fn with_link<T>(&mut self, work: impl FnOnce(&mut Link) -> Result<T>) -> Result<T> {
        let about = |failure: Failure| {
            Failure::from(format!("{}: {}", self.program.command[0], chain(&*failure)))
        };
        let mut link = match self.program.link.take() {
            Some(link) => link,
            None => self.program.start().map_err(about)?,
        };
        if link.prepared.as_ref() == Some(&self.mix) {
            link.want(&Ask::Again).map_err(about)?;
        } else {
            let jobs = self.mix.names().into_iter();
            let jobs = jobs.zip(self.mix.jobs().iter().map(String::as_str)).collect();
            link.want(&Ask::Prepare(jobs)).map_err(about)?;
            link.prepared = Some(self.mix.clone());
        }
        self.about.clone_from(&link.about);
        let done = work(&mut link).map_err(about)?;
        self.program.link = Some(link);
        Ok(done)
    }
}

impl Bed for Distant<'_> {
    fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    fn profiles(&self) -> Vec<Profile> {
        self.mix.names().into_iter().map(Profile::new).collect()
    }

    fn about(&self) -> Option<&str> {
        Some(&self.about)
    }

    fn tune(&mut self, request: &Request) -> Result<Outcome> {
        let (profiles, pieces) = (self.profiles(), self.pieces.clone());
        self.with_link(|link| {
            let mut remote = Remote::new(|line: &str| link.ask(line));
            Ok(tune::with(&mut remote, &profiles, &pieces, request, &mut |_| true)?)
        })
    }

    fn measure(&mut self, work: &mut Work<'_>) -> Result<()> {
        self.with_link(|link| work(&mut Remote::new(|line: &str| link.ask(line))))
    }
}
