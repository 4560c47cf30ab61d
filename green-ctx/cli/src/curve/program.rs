//! Measures how another program scales with its SMs.

use std::ffi::OsString;
use std::time::Duration;

use regex::bytes::{Regex, RegexBuilder};

#[derive(clap::Args)]
pub(crate) struct ProgramRequest {
    /// The number of times that the program runs on each number of SMs.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "job", help_heading = super::PROGRAM)]
    repeat: u32,
    /// The number of times that the program runs on the whole device before it is measured.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "job", help_heading = super::PROGRAM)]
    warm_up: u32,
    /// Ends a run of the program after this time. The run counts as one that failed.
    #[arg(long, value_name = "SECONDS", value_parser = crate::request::timeout, allow_negative_numbers = true, conflicts_with = "job", help_heading = super::PROGRAM)]
    timeout: Option<Duration>,
    /// Measures a number that the program prints: the first group of the last match in its output, or in its errors.
    #[arg(long, value_name = "REGEX", value_parser = expression, conflicts_with = "job", help_heading = super::PROGRAM)]
    metric: Option<Regex>,
    /// The unit of --metric, for the table.
    #[arg(
        long,
        value_name = "UNIT",
        requires = "metric",
        default_value = "value",
        conflicts_with = "job",
        help_heading = super::PROGRAM
    )]
    unit: String,
    /// Smaller values of --metric are better, as for a latency.
    #[arg(long, requires = "metric", conflicts_with = "job", help_heading = super::PROGRAM)]
    lower_is_better: bool,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", last = true, conflicts_with = "job")]
    program: Vec<OsString>,
}

fn expression(text: &str) -> Result<Regex, String> {
    // Without tables of Unicode, which only make the command larger.
    let regex = RegexBuilder::new(text).unicode(false).multi_line(true).build();
    let regex = regex.map_err(|error| error.to_string())?;
    match regex.captures_len() {
        1 => Err("it has no group for the number, as in '([0-9.]+) tokens/s'".to_owned()),
        _ => Ok(regex),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn curve(
    _: &crate::Options,
    _: &ProgramRequest,
    _: green_ctx_tune::CurveRequest,
) -> Result<(green_ctx::Device, green_ctx_tune::Curve), crate::failure::Failure> {
    Err(crate::failure::Failure::Request("a curve of a program needs Linux".to_owned()))
}

#[cfg(target_os = "linux")]
pub(crate) use self::linux::curve;

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeSet;
    use std::ffi::OsString;
    use std::fs::File;
    use std::io::{self, Read};
    use std::os::fd::OwnedFd;
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use green_ctx::Device;
    use green_ctx::resource::Granularity;
    use green_ctx_reserve::{Amount, program};
    use green_ctx_tune::{
        Block, Curve, CurveMetric, CurveRequest, JobSample, Measure, Refusal, Sample, Task,
        curve_with,
    };

    use regex::bytes::{Match, Regex};
    use rustix::io::ioctl_fionbio;
    use rustix::process::{
        Pid, Signal, kill_process_group, set_parent_process_death_signal, setsid,
    };

    use super::ProgramRequest;
    use crate::Options;
    use crate::failure::Failure;
    use crate::run::{DEVICES, load, obeys, open, visible};
    use crate::tune::{failure, watched_by};

    /// The time between two looks at a running program.
    const EVERY: Duration = Duration::from_millis(1);
    /// If more time is between two looks, the command was suspended, and the run does not count.
    const SUSPENDED: Duration = Duration::from_secs(1);
    /// The number of bytes at the end of the output that are searched.
    const TAIL: usize = 1 << 20;

    /// Measures how a program scales with the SMs of one device.
    pub(crate) fn curve(
        options: &Options,
        arguments: &ProgramRequest,
        request: CurveRequest,
    ) -> Result<(Device, Curve), Failure> {
        let (driver_path, driver) = load(&options.driver)?;
        let device = driver.device(options.device.unwrap_or(0))?;
        if let Some(outer) = program::outer() {
            let words = "a curve of a program cannot be measured under green-ctx run";
            return Err(Failure::Request(format!("{words} {outer}")));
        }
        let Some((file, rest)) = arguments.program.split_first() else {
            return Err(Failure::Request("the program is missing".to_owned()));
        };
        obeys(file)?;
        let sizes = device.resources().sm()?.unit_sizes(Granularity::default())?;
        let (unit, lower_is_better) = match arguments.metric {
            None => ("s", true),
            Some(_) => (arguments.unit.as_str(), arguments.lower_is_better),
        };
        let metric = CurveMetric { unit: unit.to_owned(), lower_is_better };
        let mut programs = Programs {
            arguments,
            program: (file, rest),
            driver: driver_path,
            visible: visible(&device)?,
            whole: sizes.sms,
            is_simulated: driver.is_simulated(),
            metric: metric.clone(),
            warm_up: arguments.warm_up,
            began: Instant::now(),
            others: BTreeSet::new(),
            interrupted: Arc::default(),
        };
        let interrupted = Arc::clone(&programs.interrupted);
        let name = Path::new(file).file_name().unwrap_or(file).to_string_lossy();
        let request = request.blocks(arguments.repeat);
        let curve = watched_by(&interrupted, |go_on| {
            curve_with(&mut programs, &name, sizes, &request, go_on)
        });
        let mut curve = curve.map_err(|error| failure(error, |failure| failure))?;
        (curve.metric, curve.host_us) = (Some(metric), None);
        if !programs.others.is_empty() {
            let others = programs.others.into_iter().collect::<Vec<_>>().join("; ");
            curve.notes.push(format!("other programs used the GPU in the meantime: {others}"));
        }
        Ok((device, curve))
    }

    /// Runs a program on numbers of SMs.
    struct Programs<'a> {
        arguments: &'a ProgramRequest,
        program: (&'a OsString, &'a [OsString]),
        driver: &'a Path,
        /// The value of `CUDA_VISIBLE_DEVICES`.
        visible: String,
        whole: u32,
        is_simulated: bool,
        metric: CurveMetric,
        /// The number of runs that are still to come before the first measured one.
        warm_up: u32,
        began: Instant,
        /// The other programs that were seen on the device.
        others: BTreeSet<String>,
        interrupted: Arc<AtomicBool>,
    }

    impl Measure for Programs<'_> {
        type Error = Failure;

        fn run(&mut self, task: &Task, _: &Block) -> Result<Sample, Refusal<Failure>> {
            let sms = match task {
                Task::Alone { sms: Some(sms), .. } => *sms,
                // The whole device, with the same library in front.
                _ => self.whole,
            };
            while self.warm_up > 0 {
                self.warm_up -= 1;
                self.attempt(sms)?;
            }
            let value = loop {
                if let Some(value) = self.attempt(sms)? {
                    break value;
                }
            };
            let rate = self.metric.rate(value);
            let jobs = vec![JobSample { rate, ..JobSample::default() }];
            Ok(Sample { jobs, ..Sample::default() })
        }

        fn now(&self) -> Duration {
            self.began.elapsed()
        }

        fn stand_in(&self) -> Option<String> {
            self.is_simulated.then(|| "a program on a simulated driver".to_owned())
        }
    }

    impl Programs<'_> {
        /// Runs the program, and returns the measured value, or `None` if the command was suspended in the meantime.
        fn attempt(&mut self, sms: u32) -> Result<Option<f64>, Refusal<Failure>> {
            self.note_others();
            let amount = Amount { number: sms, percent: false, of_rest: true };
            let limit = program::limit(self.driver, amount, &format!("--sms {sms}"));
            let limit = limit.map_err(|error| Refusal::Stop(error.into()))?;
            // If the loader cannot open the library, it runs the program without a limit.
            open(&limit.front).map_err(Refusal::Stop)?;
            let (file, rest) = self.program;
            let mut command = Command::new(file);
            command.args(rest).envs(limit.variables).env(DEVICES, &self.visible);
            let ran = self.run_apart(&mut command, self.arguments.timeout);
            let (ended, [out, errors]) = ran.map_err(|source| {
                Refusal::Stop(Failure::Program { program: file.into(), source })
            })?;
            let last = String::from_utf8_lossy(&errors);
            let last = last.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("");
            let last = printable(last, 200);
            let time = ended.map_err(|why| match &*last {
                "" => Refusal::Skip(why),
                last => Refusal::Skip(format!("{why}: {last}")),
            })?;
            let Some(regex) = self.arguments.metric.as_ref().filter(|_| time.is_some()) else {
                return Ok(time.map(|time| time.as_secs_f64()));
            };
            number(regex, [&out, &errors]).map(Some).map_err(Refusal::Skip)
        }

        /// Notes the processes that compute on the device, as NVIDIA's own command lists them. It may be missing or hang,
        /// and containers may hide other processes.
        fn note_others(&mut self) {
            let list = "--query-compute-apps=process_name,pid --format=csv,noheader --id";
            let mut command = Command::new("nvidia-smi");
            command.args(list.split(' ')).arg(&self.visible);
            if let Ok((Ok(_), [text, _])) =
                self.run_apart(&mut command, Some(Duration::from_secs(5)))
            {
                let text = String::from_utf8_lossy(&text);
                // Lines without a process number are remarks.
                let is_process = |line: &&str| line.ends_with(|it: char| it.is_ascii_digit());
                let lines = text.lines().filter(is_process).take(10);
                self.others.extend(lines.map(|line| printable(line, 100)));
            }
        }

        /// Runs a program with its children, and ends these with it. Returns the time until its end, or `None` if this
        /// command was suspended, or the reason if the program did not succeed; and what it printed.
        fn run_apart(&self, command: &mut Command, timeout: Option<Duration>) -> io::Result<Ran> {
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // Apart, so that its children end with it, and that it does not wait for the terminal.
            #[allow(unsafe_code, reason = "runs a function in the child before the program")]
            // SAFETY: the function only makes system calls.
            let command = unsafe { command.pre_exec(set_apart) };
            let began = Instant::now();
            let mut child = command.spawn()?;
            let mut outputs = [Output::of(child.stdout.take()), Output::of(child.stderr.take())];
            let (mut seen, mut was_suspended) = (Instant::now(), false);
            let ended = loop {
                was_suspended |= seen.elapsed() > SUSPENDED;
                seen = Instant::now();
                let reads = outputs.iter_mut().fold(false, |more, output| output.read() | more);
                match child.try_wait()? {
                    Some(status) if status.success() => {
                        break Ok(Some(began.elapsed()).filter(|_| !was_suspended));
                    }
                    Some(status) => break Err(status.to_string()),
                    None => {}
                }
                let late = timeout.filter(|timeout| began.elapsed() > *timeout);
                let late = late.map(|it| format!("it runs longer than {} s", it.as_secs_f64()));
                let interrupted = || self.interrupted.load(Ordering::Relaxed);
                if let Some(why) = late.or_else(|| interrupted().then(|| "interrupted".to_owned()))
                {
                    end(&child);
                    let _ = child.wait();
                    break Err(why);
                }
                if !reads {
                    thread::sleep(EVERY);
                }
            };
            // Children that outlive the program would disturb the next run.
            end(&child);
            outputs.iter_mut().for_each(|output| _ = output.read());
            Ok((ended, outputs.map(|output| output.text)))
        }
    }

    type Ran = (Result<Option<Duration>, String>, [Vec<u8>; 2]);

    /// Puts this process, which is about to become a program, into a session and a group of its own, without a terminal.
    /// It ends when its parent does.
    fn set_apart() -> io::Result<()> {
        setsid()?;
        Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
    }

    /// Ends all processes of a program's group.
    fn end(child: &Child) {
        // The group may have ended already.
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    }

    /// The output of a program.
    struct Output {
        pipe: Option<File>,
        /// The end of it.
        text: Vec<u8>,
    }

    impl Output {
        fn of(pipe: Option<impl Into<OwnedFd>>) -> Output {
            let pipe = pipe.map(|pipe| File::from(pipe.into()));
            let pipe = pipe.filter(|pipe| ioctl_fionbio(pipe, true).is_ok());
            Output { pipe, text: Vec::new() }
        }

        /// Reads what has been printed, and does not wait. Returns whether there may be more.
        fn read(&mut self) -> bool {
            let mut chunk = [0; 1 << 16];
            let read = self.pipe.as_mut().map_or(Ok(0), |pipe| pipe.read(&mut chunk));
            let length = read.unwrap_or(0);
            self.text.extend_from_slice(&chunk[..length]);
            if self.text.len() > 2 * TAIL {
                let spare = self.text.len() - TAIL;
                self.text.drain(..spare);
            }
            length > 0
        }
    }

    /// Returns the beginning of a program's line, without characters that control a terminal.
    fn printable(line: &str, most: usize) -> String {
        line.chars().map(|it| if it.is_control() { '\u{fffd}' } else { it }).take(most).collect()
    }

    /// Returns the number that an expression finds: in the last match in the output, or otherwise in the errors.
    fn number(regex: &Regex, output: [&[u8]; 2]) -> Result<f64, String> {
        let found =
            output.into_iter().find_map(|text| Some((text, regex.captures_iter(text).last()?)));
        let Some((output, found)) = found else {
            return Err(format!("nothing that it prints matches {regex}"));
        };
        let Some(found) = found.get(1) else {
            return Err(format!("the last match of {regex} has nothing in its first group"));
        };
        let text = String::from_utf8_lossy(found.as_bytes());
        let text = text.trim();
        // In "1,234 tokens/s" or "-5 tokens/s", an expression such as ([0-9.]+) finds only a part.
        let numbers = Regex::new(r"(?-u)[-+]?[0-9](?:[0-9.,]*[0-9])?(?:[eE][-+]?[0-9]+)?");
        let numbers = numbers.map_err(|error| error.to_string())?;
        let mut all = numbers.find_iter(output).skip_while(|it| it.end() <= found.start());
        let (start, end) = (found.start(), found.end());
        let is_more = |it: Match<'_>| it.start() < end && (it.start() < start || end < it.end());
        if all.next().is_some_and(is_more) {
            return Err(format!("{regex} finds {text:?}, which is only a part of a number"));
        }
        // Its reciprocal is a number, too.
        let number = text.parse().ok().filter(|it: &f64| (1e-300..1e300).contains(it));
        number.ok_or_else(|| format!("{regex} finds {text:?}, which is not a positive number"))
    }
}
