//! Measures how another program scales with its SMs.

use std::ffi::OsString;
use std::time::Duration;

use regex::bytes::{Regex, RegexBuilder};

#[derive(clap::Args)]
pub(crate) struct ProgramRequest {
    /// The number of times that the program runs on each number of SMs.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "job")]
    repeat: u32,
    /// The number of times that the program runs on the whole device before it is measured.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "job")]
    warm_up: u32,
    /// Ends a run of the program after this time, and leaves out this number of SMs.
    #[arg(long, value_name = "SECONDS", value_parser = crate::request::seconds, allow_negative_numbers = true, conflicts_with = "job")]
    timeout: Option<Duration>,
    /// Measures a number that the program prints: the first group of the last match in its output, or in its errors.
    #[arg(long, value_name = "REGEX", value_parser = expression, conflicts_with = "job")]
    metric: Option<Regex>,
    /// The unit of --metric, for the table.
    #[arg(long, value_name = "UNIT", requires = "metric")]
    unit: Option<String>,
    /// Smaller values of --metric are better, as for a latency.
    #[arg(long, requires = "metric")]
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
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{self, Receiver};
    use std::sync::{Arc, Mutex, PoisonError};
    use std::thread;
    use std::time::{Duration, Instant};

    use green_ctx::Device;
    use green_ctx::resource::Granularity;
    use green_ctx_reserve::{Amount, program};
    use green_ctx_tune::{
        Block, Curve, CurveMetric, CurveRequest, JobSample, Measure, Refusal, Sample, Task,
        curve_with,
    };

    use regex::bytes::Regex;

    use super::ProgramRequest;
    use crate::Options;
    use crate::failure::Failure;
    use crate::run::{DEVICES, load, obeys, visible};
    use crate::tune::{failure, watched_by};

    /// The time between two looks at a running program.
    const EVERY: Duration = Duration::from_millis(1);
    /// If more time is between two looks, the command was suspended, and the run does not count.
    const SUSPENDED: Duration = Duration::from_secs(1);
    /// The time for which output is read after a program has ended. A process that has left the program's group may keep
    /// the output open.
    const GRACE: Duration = Duration::from_millis(500);
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
        arguments.program.first().map_or(Ok(()), |file| obeys(file))?;
        let sizes = device.resources().sm()?.unit_sizes(Granularity::default())?;
        let metric = match &arguments.metric {
            None => CurveMetric { unit: "s".to_owned(), lower_is_better: true },
            Some(_) => CurveMetric {
                unit: arguments.unit.clone().unwrap_or_else(|| "value".to_owned()),
                lower_is_better: arguments.lower_is_better,
            },
        };
        let mut programs = Programs {
            arguments,
            driver: driver_path,
            visible: visible(&device)?,
            whole: sizes.sms,
            is_simulated: driver.is_simulated(),
            metric: metric.clone(),
            warm_up: arguments.warm_up,
            began: Instant::now(),
            interrupted: Arc::default(),
        };
        let interrupted = Arc::clone(&programs.interrupted);
        let name = arguments.program.first().map(PathBuf::from).unwrap_or_default();
        let name = name.file_name().unwrap_or(name.as_os_str()).to_string_lossy().into_owned();
        let request = request.blocks(arguments.repeat);
        let curve = watched_by(&interrupted, |go_on| {
            curve_with(&mut programs, &name, sizes, &request, go_on)
        });
        let mut curve = curve.map_err(|error| failure(error, |failure| failure))?;
        (curve.metric, curve.host_us) = (Some(metric), None);
        Ok((device, curve))
    }

    /// Runs a program on numbers of SMs.
    struct Programs<'a> {
        arguments: &'a ProgramRequest,
        driver: &'a Path,
        /// The value of `CUDA_VISIBLE_DEVICES`.
        visible: String,
        whole: u32,
        is_simulated: bool,
        metric: CurveMetric,
        /// The number of runs that are still to come before the first measured one.
        warm_up: u32,
        began: Instant,
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
                self.once(sms)?;
            }
            let rate = self.metric.rate(self.once(sms)?);
            if !rate.is_normal() {
                return Err(Refusal::Skip(
                    "the measured number is too large or too small".to_owned(),
                ));
            }
            Ok(Sample {
                jobs: vec![JobSample { rate, ..JobSample::default() }],
                ..Sample::default()
            })
        }

        fn now(&self) -> Duration {
            self.began.elapsed()
        }

        fn stand_in(&self) -> Option<String> {
            self.is_simulated.then(|| "a program on a simulated driver".to_owned())
        }
    }

    impl Programs<'_> {
        /// Runs the program once, and returns the measured value.
        fn once(&self, sms: u32) -> Result<f64, Refusal<Failure>> {
            loop {
                if let Some(value) = self.attempt(sms)? {
                    return Ok(value);
                }
            }
        }

        /// Runs the program. Returns `None` if the command was suspended in the meantime.
        fn attempt(&self, sms: u32) -> Result<Option<f64>, Refusal<Failure>> {
            let amount = Amount { number: sms, percent: false, of_rest: true };
            let limit = program::limit(self.driver, amount, &format!("--sms {sms}"));
            let limit = limit.map_err(|error| Refusal::Stop(error.into()))?;
            let Some((file, rest)) = self.arguments.program.split_first() else {
                return Err(Refusal::Skip("there is no program".to_owned()));
            };
            let mut command = Command::new(file);
            command.args(rest).envs(limit.variables).env(DEVICES, &self.visible);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // Apart, so that its children end with it, and that it does not wait for the terminal.
            #[allow(unsafe_code, reason = "runs a function in the child before the program")]
            // SAFETY: the function only makes system calls.
            let command = unsafe { command.pre_exec(program::set_apart) };
            let began = Instant::now();
            let child = command.spawn();
            let mut child = child.map_err(|source| {
                Refusal::Stop(Failure::Program { program: file.into(), source })
            })?;
            let (out, errors) = (reader(child.stdout.take()), reader(child.stderr.take()));
            let ended = self.wait(&mut child, began);
            let time = began.elapsed();
            // Children that outlive the program would disturb the next run.
            program::end(child.id());
            let (out, errors) = (out.take(), errors.take());
            let last = String::from_utf8_lossy(&errors);
            let last = last.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("");
            let last: String = last.escape_debug().take(200).collect();
            let was_suspended = ended.map_err(|why| match &*last {
                "" => Refusal::Skip(why),
                last => Refusal::Skip(format!("{why}: {last}")),
            })?;
            if was_suspended {
                return Ok(None);
            }
            let value = match &self.arguments.metric {
                None => Ok(time.as_secs_f64()),
                Some(regex) => number(regex, [&out, &errors]).map_err(Refusal::Skip),
            };
            value.map(Some)
        }

        /// Waits for the program. Returns whether the command was suspended, or the reason if the program does not
        /// succeed.
        fn wait(&self, child: &mut Child, began: Instant) -> Result<bool, String> {
            let (mut seen, mut was_suspended) = (Instant::now(), false);
            loop {
                was_suspended |= seen.elapsed() > SUSPENDED;
                seen = Instant::now();
                match child.try_wait() {
                    Ok(Some(status)) if status.success() => return Ok(was_suspended),
                    Ok(Some(status)) => return Err(status.to_string()),
                    Ok(None) => {}
                    Err(error) => return Err(error.to_string()),
                }
                let is_late = self.arguments.timeout.filter(|timeout| began.elapsed() > *timeout);
                let interrupted = self.interrupted.load(Ordering::Relaxed);
                if is_late.is_some() || interrupted {
                    program::end(child.id());
                    let _ = child.wait();
                    return Err(is_late.map_or("interrupted".to_owned(), |timeout| {
                        format!("it runs longer than {} s", timeout.as_secs_f64())
                    }));
                }
                thread::sleep(EVERY);
            }
        }
    }

    /// The end of the output of a program, which another thread reads.
    struct Output {
        text: Arc<Mutex<Vec<u8>>>,
        ended: Receiver<()>,
    }

    impl Output {
        /// Returns what was read. Waits for the end of the output, but not for long.
        fn take(self) -> Vec<u8> {
            let _ = self.ended.recv_timeout(GRACE);
            std::mem::take(&mut *self.text.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }

    /// Reads a pipe to its end on another thread.
    fn reader(mut pipe: Option<impl Read + Send + 'static>) -> Output {
        let (ends, ended) = mpsc::channel();
        let output = Output { text: Arc::default(), ended };
        let text = Arc::clone(&output.text);
        thread::spawn(move || {
            let mut chunk = vec![0; 1 << 16];
            // The bytes before an error count.
            while let Some(length) = pipe.as_mut().and_then(|pipe| pipe.read(&mut chunk).ok()) {
                let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
                text.extend_from_slice(&chunk[..length]);
                if text.len() > 2 * TAIL {
                    let spare = text.len() - TAIL;
                    text.drain(..spare);
                }
                if length == 0 {
                    break;
                }
            }
            let _ = ends.send(());
        });
        output
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
        let before = match &output[..found.start()] {
            [.., digit, b',' | b'.' | b'e' | b'E'] => digit.is_ascii_digit(),
            [.., last] => last.is_ascii_digit() || b"+-".contains(last),
            [] => false,
        };
        let after = match &output[found.end()..] {
            [b'.' | b',' | b'e' | b'E', next, ..] => next.is_ascii_digit() || b"+-".contains(next),
            [next, ..] => next.is_ascii_digit(),
            [] => false,
        };
        let is_part = after
            || before && text.starts_with(|first: char| first.is_ascii_digit() || first == '.');
        if is_part {
            return Err(format!("{regex} finds {text:?}, which is only a part of a number"));
        }
        let number = text.parse().ok().filter(|it: &f64| it.is_normal() && *it > 0.0);
        number.ok_or_else(|| format!("{regex} finds {text:?}, which is not a positive number"))
    }
}
