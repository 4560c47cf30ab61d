//! `green-ctx curve` of a program.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Bench;
use crate::{Run, command};

/// Appends the number of SMs to a file, and prints values that depend on it.
const PROGRAM: &str = "
import ctypes, sys, time
driver, sms = ctypes.CDLL('libcuda.so.1'), ctypes.c_int()
assert driver.cuInit(0) == 0
assert driver.cuDeviceGetAttribute(ctypes.byref(sms), 16, 0) == 0
sms, order, mode = sms.value, sys.argv[1], sys.argv[2]
print(sms, file=open(order, 'a'))
if mode == 'fail' and sms < 16:
    sys.exit(f'a warning\\ntoo few: {sms}\\n')
if mode == 'sleep':
    time.sleep(4 / sms)
print('warm-up: 1 steps/s')
print('errors: 0')
print(f'µ: {10 * sms} steps/s')
print(f'took {1000 / sms} ms, or nothing', file=sys.stderr)
";

struct Programs {
    bench: Bench,
    order: String,
}

impl Programs {
    fn new(test: &str) -> Programs {
        let bench = Bench::new(test);
        let order = bench.cache.file("order");
        Programs { bench, order }
    }

    fn command(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = command(&[&["curve"], options, &["--"], program].concat());
        command.env("XDG_CACHE_HOME", &self.bench.cache.0).env_remove("GREEN_CTX_RESERVE");
        command
    }

    fn run(&self, options: &[&str], mode: &str) -> Run {
        let program = ["python3", "-c", PROGRAM, &self.order, mode];
        Run::of(self.command(options, &program).output().expect("the command starts"))
    }

    /// Returns the numbers of SMs of all runs so far.
    fn order(&self) -> Vec<u32> {
        let text = fs::read_to_string(&self.order).unwrap_or_default();
        text.lines().map(|line| line.parse().expect("a number")).collect()
    }
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn the_wall_time_is_measured_in_turn() {
    let programs = Programs::new("curve-time");
    let answer = programs.run(&["--sms", "32,8", "--repeat", "2"], "sleep");
    assert_eq!((answer.status, answer.err.as_str()), (0, ""), "{}", answer.out);
    assert_eq!(programs.order(), [132, 132, 32, 8, 8, 32, 132]);
    let words = "(This curve comes from a program on a simulated driver, not from a GPU.)";
    assert!(answer.out.contains("python3 ") && answer.out.contains(words), "{}", answer.out);
    let rows = answer.out.lines().skip_while(|line| !line.starts_with("SMs"));
    let rows: Vec<Vec<&str>> = rows.map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..2], ["SMs", "s"]);
    let seconds: f64 = rows[1][1].parse().expect("a time");
    assert!(rows[1][0] == "8" && (0.5..5.0).contains(&seconds), "{rows:?}");
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_metric_is_the_last_match() {
    let programs = Programs::new("curve-metric");
    let metric = ["--sms", "64", "--repeat", "2", "--warm-up", "0", "--metric"];
    let rate = [&metric[..], &[r"^\S+ (\d+) steps/s$", "--unit", "steps/s"]].concat();
    let answer = programs.run(&rate, "quick");
    assert_eq!((answer.status, answer.err.as_str()), (0, ""), "{}", answer.out);
    assert_eq!(programs.order(), [132, 64, 64, 132]);
    let lines: Vec<&str> = answer.out.lines().collect();
    assert!(lines.contains(&"SMs  steps/s  spread  speed  doubling"), "{lines:?}");
    assert!(lines.contains(&" 64    640.0     0 %   48 %         -"), "{lines:?}");
    assert!(lines.contains(&"132     1320     0 %  100 %    2.06 x"), "{lines:?}");
    let answer = programs.run(&[&rate[..], &["--csv"]].concat(), "quick");
    assert_eq!(answer.err, crate::SIMULATED);
    let of_64 = answer.out.lines().nth(1).expect("a row");
    assert!(of_64.starts_with("64,") && of_64.ends_with(",640.0"), "{}", answer.out);

    let latency = [&metric[..], &["took ([0-9.]+) ms", "--lower-is-better", "--json"]].concat();
    let value = programs.run(&latency, "quick").json();
    assert_eq!(value["metric"]["lower_is_better"], true);
    let median = value["points"][0]["median"].as_f64();
    assert_eq!(median.map(|it| (1000.0 * it).round()), Some(15625.0));
    let speed = value["points"][0]["speed"].as_f64().expect("a speed");
    assert!((speed - 64.0 / 132.0).abs() < 1e-9, "{speed}");
}

/// A figure that silently lacks some digits would be worse than none.
#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_part_of_a_number_is_refused() {
    let programs = Programs::new("curve-part");
    let metric =
        ["--sms", "64", "--repeat", "1", "--warm-up", "0", "--metric", "([0-9.]+) tokens/s"];
    for printed in ["1,234.5", "-5", "1.5e3", "1e+03"] {
        let program = ["echo", &format!("{printed} tokens/s")];
        let done = Run::of(programs.command(&metric, &program).output().expect("it starts"));
        let words = "which is only a part of a number";
        assert!(done.out.contains(words) || done.err.contains(words), "{printed}: {}", done.out);
    }
    for (printed, expression) in [
        ("rate=1234.5 tokens/s.", "([0-9.]+) tokens/s"),
        ("tokens,1234.5", "^tokens,([0-9.]+)$"),
        ("rate......1234.5 tokens", r"rate\.+([0-9.]+) tokens"),
    ] {
        let options = [&metric[..7], &[expression]].concat();
        let program = ["echo", printed];
        let done = Run::of(programs.command(&options, &program).output().expect("it starts"));
        assert!(done.out.contains("1234"), "{expression}: {}{}", done.out, done.err);
    }
    let huge = [&metric[..7], &["(.*)"]].concat();
    let done = Run::of(programs.command(&huge, &["echo", "1e-320"]).output().expect("it starts"));
    assert!(!done.out.contains("NaN"), "{}", done.out);
}

/// A daemon that the program leaves behind keeps its output open.
#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_daemon_of_the_program_is_not_awaited() {
    let programs = Programs::new("curve-daemon");
    let options = ["--sms", "64", "--repeat", "1", "--warm-up", "0", "--metric", "(1) step"];
    let program = ["sh", "-c", "echo 1 step; setsid -f sleep 20"];
    let began = Instant::now();
    let done = Run::of(programs.command(&options, &program).output().expect("it starts"));
    assert_eq!(done.status, 0, "{} {}", done.out, done.err);
    assert!(began.elapsed() < Duration::from_secs(15));
}

/// The list comes from NVIDIA's command, which this one stands in for.
#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn other_programs_on_the_device_are_noted() {
    let programs = Programs::new("curve-others");
    let folder = &programs.bench.cache;
    let path = format!("{}:{}", folder.0.display(), std::env::var("PATH").expect("it is set"));
    let begins = "#!/bin/sh\n[ $4 = GPU-${4#GPU-} ] || exit 1\n";
    for (script, note) in [
        (
            "echo No devices were found; echo \"o\u{1b}[31mther.py, 4711\"",
            "o\u{fffd}[31mther.py, 4711.",
        ),
        ("echo other.py, 4711; exit 9", ""),
        // Neither a hanging command nor a child of it that keeps its output holds the program up for long.
        ("sleep 60 & exit 0", ""),
        ("exec sleep 60", ""),
    ] {
        fs::write(folder.file("nvidia-smi"), [begins, script, "\n"].concat())
            .expect("it can be written");
        let executable = Permissions::from_mode(0o700);
        fs::set_permissions(folder.file("nvidia-smi"), executable).expect("it is ours");
        let options = ["--sms", "64", "--repeat", "1", "--warm-up", "0"];
        let began = Instant::now();
        let mut command = programs.command(&options, &["true"]);
        let done = Run::of(command.env("PATH", &path).output().expect("it starts"));
        assert!(began.elapsed() < Duration::from_secs(40), "{script}");
        let notes: Vec<&str> = done.out.lines().filter(|line| line.starts_with("Note")).collect();
        assert_eq!((done.status, notes.len()), (0, usize::from(!note.is_empty())), "{}", done.out);
        assert!(notes.iter().all(|line| line.ends_with(note)), "{notes:?}");
    }
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_program_that_prints_without_end_is_ended() {
    let programs = Programs::new("curve-yes");
    let options = ["--sms", "64", "--repeat", "1", "--warm-up", "0", "--timeout", "0.3"];
    let done = Run::of(programs.command(&options, &["yes"]).output().expect("it starts"));
    assert_eq!(done.err, "error: yes does not run: it runs longer than 0.3 s\n");
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_program_that_fails_on_few_sms_keeps_the_rest() {
    let programs = Programs::new("curve-fail");
    let answer = programs.run(&["--sms", "8,16", "--repeat", "2"], "fail");
    assert_eq!((answer.status, answer.err.as_str()), (0, ""), "{}", answer.out);
    let words = "8 SMs: it does not run: exit status: 1: too few: 8";
    assert!(answer.out.lines().any(|line| line == words), "{}", answer.out);
    assert_eq!(programs.order(), [132, 132, 16, 8, 16, 132]);
    let points = programs.run(&["--sms", "8", "--repeat", "1", "--json"], "fail").json();
    let failed = points["points"][0].as_object().expect("a point");
    assert_eq!(failed.get("median"), Some(&serde_json::Value::Null));
    let fails = programs.command(&["--sms", "8"], &["sh", "-c", "exit 3"]).output();
    let answer = Run::of(fails.expect("the command starts"));
    assert_eq!((answer.status, answer.out.as_str()), (2, ""));
    assert_eq!(answer.err, "error: sh does not run: exit status: 3\n");
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_run_that_takes_too_long_ends_with_its_children() {
    let programs = Programs::new("curve-timeout");
    let began = Instant::now();
    // The child has the pipes, too, and would hold the command up.
    let script = "echo $$ >> $0; sleep 30 & wait";
    let once = ["--sms", "8", "--repeat", "1", "--warm-up", "0"];
    let options = [&once[..], &["--timeout", "2"]].concat();
    let slow = programs.command(&options, &["sh", "-c", script, &programs.order]);
    let answer = Run::of({ slow }.output().expect("the command starts"));
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!((answer.status, answer.out.as_str()), (2, ""));
    assert_eq!(answer.err, "error: sh does not run: it runs longer than 2 s\n");
    let killed = programs.order()[0];
    soon(|| !is_group(killed));
    // A child that outlives its program is ended, too.
    let daemon = ["sh", "-c", "echo $$ >> $0; sleep 30 & exit 0", &programs.order];
    let answer = programs.command(&once, &daemon).output();
    assert_eq!(Run::of(answer.expect("the command starts")).status, 0);
    assert!(began.elapsed() < Duration::from_secs(20));
    soon(|| !programs.order().into_iter().any(is_group));
}

/// Returns whether a process of a group is running.
fn is_group(group: u32) -> bool {
    let processes = fs::read_dir("/proc").expect("processes");
    let stat = |path: &Path| fs::read_to_string(path.join("stat")).unwrap_or_default();
    processes.filter_map(Result::ok).any(|process| {
        let stat = stat(&process.path());
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let (state, of) = (fields.next(), fields.nth(1).and_then(|it| it.parse().ok()));
        of == Some(group) && state != Some("Z")
    })
}

/// Writes its process to a file, and takes long in its `$1`th run.
const LONG: &str = "echo $$ >> $0; test $(wc -l < $0) -ne $1 || sleep $2";

impl Programs {
    /// Starts a curve on 8, 64 and all SMs, and waits for the run that takes long.
    fn start(&self, repeat: &str, run: usize, seconds: &str, more: &[&str]) -> Child {
        let options = [&["--sms", "8,64", "--repeat", repeat, "--warm-up", "0"], more].concat();
        let program = ["sh", "-c", LONG, &self.order, &run.to_string(), seconds];
        let mut command = self.command(&options, &program);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the command starts");
        soon(|| self.order().len() >= run);
        child
    }
}

/// Waits until something holds.
#[track_caller]
fn soon(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, name: &str) {
    let (flag, id) = (format!("-{name}"), child.id().to_string());
    assert!(Command::new("kill").args([&flag, &id]).status().expect("kill").success());
}

/// The program ends with its children, whichever signal ends the command.
#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn an_interruption_keeps_the_runs_so_far() {
    for name in ["INT", "TERM", "HUP"] {
        let programs = Programs::new("curve-interrupt");
        let child = programs.start("9", 4, "30", &[]);
        let began = Instant::now();
        signal(&child, name);
        let answer = Run::of(child.wait_with_output().expect("the command ends"));
        assert!(began.elapsed() < Duration::from_secs(20));
        assert_eq!((answer.status, answer.err.as_str()), (0, ""), "{name}: {}", answer.out);
        let words = "The measurement was interrupted: these are the blocks so far.";
        assert!(answer.out.contains(words), "{}", answer.out);
        soon(|| !programs.order().into_iter().any(is_group));
    }
    let programs = Programs::new("curve-interrupt-csv");
    let child = programs.start("9", 4, "30", &["--csv"]);
    signal(&child, "INT");
    let answer = Run::of(child.wait_with_output().expect("the command ends"));
    let words = "warning: the measurement was interrupted: these are the results so far\n";
    assert_eq!(answer.err, [crate::SIMULATED, words].concat());
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn an_interruption_before_the_first_result_is_no_curve() {
    let programs = Programs::new("curve-nothing");
    let child = programs.start("9", 1, "30", &[]);
    signal(&child, "INT");
    let answer = Run::of(child.wait_with_output().expect("the command ends"));
    assert_eq!((answer.status, answer.out.as_str()), (1, ""));
    assert!(answer.err.contains("interrupted before there was a result"), "{}", answer.err);
}

/// The program continues while the command is stopped, so its time would be wrong.
#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_run_during_which_the_command_was_stopped_is_repeated() {
    let programs = Programs::new("curve-stopped");
    let child = programs.start("1", 2, "0.3", &[]);
    signal(&child, "STOP");
    std::thread::sleep(Duration::from_millis(1500));
    signal(&child, "CONT");
    let answer = Run::of(child.wait_with_output().expect("the command ends"));
    assert_eq!((answer.status, answer.err.as_str()), (0, ""), "{}", answer.out);
    assert_eq!(programs.order().len(), 4, "three runs, and one again");
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_program_ends_with_a_command_that_is_killed() {
    let programs = Programs::new("curve-killed");
    let command = programs
        .command(&["--sms", "8"], &["sh", "-c", "echo $$ >> $0; exec sleep 30", &programs.order])
        .spawn();
    let mut child = command.expect("the command starts");
    soon(|| !programs.order().is_empty());
    let group = programs.order()[0];
    assert!(is_group(group));
    signal(&child, "KILL");
    assert!(!child.wait().expect("it ends").success());
    soon(|| !is_group(group));
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_program_has_no_terminal_and_no_input() {
    let programs = Programs::new("curve-apart");
    let script = "import os, sys; assert os.getsid(0) == os.getpid() and not sys.stdin.read()";
    let once = ["--sms", "8", "--repeat", "1", "--warm-up", "0"];
    let done = programs.command(&once, &["python3", "-c", script]).output();
    let answer = Run::of(done.expect("the command starts"));
    assert_eq!((answer.status, answer.err.as_str()), (0, ""), "{}", answer.out);
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn wrong_requests_are_refused() {
    let programs = Programs::new("curve-refused");
    for (options, words) in [
        (&["--metric", "("][..], "unclosed group"),
        (&["--metric", "steps"], "it has no group for the number"),
        (&["--metric", "(nowhere)"], "nothing that it prints matches (nowhere)"),
        (&["--metric", "([a-z]+)/s"], "finds \"steps\", which is not a positive number"),
        (&["--metric", "errors: (0)"], "finds \"0\", which is not a positive number"),
        (&["--unit", "ms"], "--metric"),
        (&["--lower-is-better"], "--metric"),
        (&["--job", "gemm"], "cannot be used with"),
        (&["--budget", "1"], "cannot be used with"),
        (&["--repeat", "0"], "--repeat"),
        (&["--timeout", "-1"], "a number of seconds"),
        (&["--driver", "sim"], "cannot be given to a program"),
        (&["--device", "1"], "device 1"),
    ] {
        let answer = programs.run(&[&["--sms", "8", "--repeat", "1"], options].concat(), "quick");
        assert!(answer.status == 2 && answer.err.contains(words), "{options:?}: {}", answer.err);
    }
    let repeated = crate::simulated(&["curve", "--job", "gemm", "--repeat", "2"]);
    assert!(
        repeated.status == 2 && repeated.err.contains("cannot be used with"),
        "{}",
        repeated.err
    );
    for (program, status) in [("no-such-program", 127), ("/etc/passwd", 126)] {
        let output = programs.command(&["--sms", "8"], &[program]).output();
        assert_eq!(Run::of(output.expect("the command starts")).status, status, "{program}");
    }
    let outer = ["--sms", "64", super::COMMAND, "curve", "--", "true"];
    let answer = programs.bench.run(&outer);
    assert!(answer.status == 2 && answer.err.contains("under green-ctx run --sms 64"));
}
