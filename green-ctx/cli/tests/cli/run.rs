//! `green-ctx run`, on the simulated `libcuda.so.1`. `cargo xtask clients` runs these tests; without the library in
//! `LD_LIBRARY_PATH`, they are skipped and say so.

mod curve;

use std::env;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Folder, Run, command};

/// Prints the number of SMs that each name or path of the driver tells a program, in this order.
const SEEN: &str = "
import ctypes, sys
for name in sys.argv[1:] or ['libcuda.so.1']:
    driver, sms = ctypes.CDLL(name), ctypes.c_int()
    assert driver.cuInit(0) == 0
    assert driver.cuDeviceGetAttribute(ctypes.byref(sms), 16, 0) == 0
    print(sms.value)
";

const COMMAND: &str = env!("CARGO_BIN_EXE_green-ctx");

/// A cache of one test, and the simulated driver.
struct Bench {
    cache: Folder,
    library: PathBuf,
}

impl Bench {
    fn new(test: &str) -> Bench {
        let folders = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let library = env::split_paths(&folders).map(|folder| folder.join("libcuda.so.1"));
        let library = library.into_iter().find(|path| path.exists());
        let library = library.expect("LD_LIBRARY_PATH names a folder with libcuda.so.1");
        Bench { cache: Folder::new(&format!("run-{test}")), library }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(&[&["run"], arguments].concat());
        command.env("XDG_CACHE_HOME", &self.cache.0).env_remove("GREEN_CTX_RESERVE");
        command
    }

    fn run(&self, arguments: &[&str]) -> Run {
        Run::of(self.command(arguments).output().expect("the command starts"))
    }

    /// Runs a program that must succeed without a line on standard error, and returns its output.
    #[track_caller]
    fn out(&self, arguments: &[&str]) -> String {
        let answer = self.run(arguments);
        assert_eq!((answer.status, answer.err.as_str()), (0, ""), "{arguments:?}");
        answer.out
    }

    /// The command is refused before the program starts.
    #[track_caller]
    fn refused(&self, arguments: &[&str], status: i32, part: &str) {
        let answer = self.run(&[arguments, &["--", "echo", "started"]].concat());
        assert_eq!((answer.status, answer.out.as_str()), (status, ""), "{}", answer.err);
        assert!(answer.err.contains(part), "{part:?} is not in: {}", answer.err);
    }

    /// Returns the files in the cache, without those that are being written.
    fn files(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.cache.0.join("green-ctx")).expect("the folder is there");
        files.map(|file| file.expect("a file").path()).collect()
    }
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_program_sees_its_sms_by_each_name_of_the_driver() {
    let bench = Bench::new("names");
    let path = bench.library.to_str().expect("a plain path").to_owned();
    let bare = path.trim_end_matches(".1");
    let winding = path.replace("/sim-lib/", "/sim-lib/../sim-lib/./");
    for (amount, sms) in [("32", 32), ("30", 28), ("25%", 32), ("132", 132), ("8", 8)] {
        for names in [["libcuda.so.1", &path], ["libcuda.so", bare], [&winding, "libcuda.so.1"]] {
            let out = bench.out(&["--sms", amount, "python3", "-c", SEEN, names[0], names[1]]);
            assert_eq!(out, format!("{sms}\n{sms}\n"), "{amount} {names:?}");
        }
    }
    let out = bench.out(&["--reserve", "32", "--", "python3", "-c", SEEN, &path, "libcuda.so"]);
    assert_eq!(out, "100\n100\n");
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn kernels_run_on_the_sms_of_the_limit() {
    let bench = Bench::new("kernels");
    let report = bench.cache.file("report");
    let mut command = bench.command(&["--sms", "32", COMMAND, "verify", "--counts", "8,16"]);
    let answer = Run::of(command.env("GREEN_CTX_SIM_REPORT", &report).output().expect("it starts"));
    assert_eq!(answer.status, 0, "{}{}", answer.out, answer.err);
    assert!(answer.out.contains("NVIDIA H200, 32 SMs,"), "{}", answer.out);
    let report = fs::read_to_string(report).expect("the report");
    let ran = report.lines().filter(|line| line.starts_with("ran: "));
    let ids = ran.filter_map(|line| line.rsplit_once(": ")).flat_map(|(_, ids)| ids.split(' '));
    let mut ids: Vec<u32> = ids.map(|id| id.parse().expect("an id")).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 32, "{ids:?}");
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn green_ctx_has_the_limit_as_its_device_or_the_reserve() {
    let bench = Bench::new("own");
    let verify = [COMMAND, "verify", "--counts", "8"];
    let out = bench.out(&[&["--reserve", "32"], &verify[..]].concat());
    assert!(out.contains("132 SMs (32 for partitions alone, 100 also for work outside"), "{out}");
    for (option, device) in [
        ("--sms", "32 SMs (8 for partitions alone, 24 also"),
        ("--reserve", "132 SMs (32 for partitions alone, 100 also"),
    ] {
        let reserve = if option == "--sms" { "8" } else { "32" };
        let mut command = bench.command(&[&[option, "32"], &verify[..]].concat());
        let output = command.env("GREEN_CTX_RESERVE", reserve).output().expect("it starts");
        let answer = Run::of(output);
        assert_eq!((answer.status, answer.err.as_str()), (0, ""), "{}", answer.out);
        assert!(answer.out.contains(device), "{}", answer.out);
    }
    let mut command = bench.command(&["--reserve", "32", COMMAND, "info"]);
    let answer = Run::of(command.env("GREEN_CTX_RESERVE", "16").output().expect("it starts"));
    assert_eq!(answer.status, 2);
    assert!(
        answer.err.contains("a reserve of 32 SMs was requested in this process already"),
        "{}",
        answer.err
    );
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_limit_within_a_limit_is_not_larger() {
    let bench = Bench::new("nested");
    let inner = |outer: [&str; 2], inner: [&str; 2]| {
        bench.run(&[&outer[..], &[COMMAND, "run"], &inner, &["python3", "-c", SEEN]].concat())
    };
    for (outer, amount, sms) in [
        (["--sms", "64"], "32", 32),
        (["--sms", "64"], "50%", 32),
        (["--sms", "64"], "64", 64),
        (["--reserve", "64"], "40", 40),
    ] {
        let answer = inner(outer, ["--sms", amount]);
        assert_eq!((answer.out, answer.err), (format!("{sms}\n"), String::new()), "{outer:?}");
    }
    for (outer, option, amount, part) in [
        (["--sms", "64"], "--sms", "65", "has 64 SMs, and not 65"),
        // The outer limit has the unit of another size, which the driver cuts into smaller ones than the whole device.
        (
            ["--sms", "28"],
            "--sms",
            "4",
            "4 of 28 SMs is too few: device 0, NVIDIA H200, gives at least 8",
        ),
        (
            ["--sms", "21"],
            "--sms",
            "6",
            "6 of 20 SMs is too few: device 0, NVIDIA H200, gives at least 8",
        ),
        (["--reserve", "64"], "--sms", "69", "has 68 SMs outside of the reserve, and not 69"),
        (["--reserve", "64"], "--sms", "5%", "5% of 68 SMs outside of the reserve is too few"),
        (["--sms", "64"], "--reserve", "8", "under green-ctx run --sms 64"),
        (["--reserve", "64"], "--reserve", "8", "under green-ctx run --reserve 64"),
    ] {
        let answer = inner(outer, [option, amount]);
        assert_eq!((answer.status, answer.out.as_str()), (2, ""), "{outer:?} {option}");
        assert!(answer.err.contains(part), "{}", answer.err);
    }
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn children_have_the_limit() {
    let bench = Bench::new("children");
    let fork = format!("import os\nif os.fork() == 0:{}", SEEN.replace('\n', "\n    "));
    let fork = format!("{fork}\nelse:\n    os.wait()");
    assert_eq!(bench.out(&["--sms", "32", "python3", "-c", &fork]), "32\n");
    let pipe = "python3 -c \"$0\" | (cat; python3 -c \"$0\")";
    assert_eq!(bench.out(&["--sms", "32", "sh", "-c", pipe, SEEN]), "32\n32\n");
    // A program that sets the loader's other variables.
    let sets = "LD_PRELOAD=libm.so.6 LD_LIBRARY_PATH=$0 python3 -c \"$1\"";
    let folder = bench.library.parent().and_then(Path::to_str).expect("a folder");
    assert_eq!(bench.out(&["--sms", "32", "sh", "-c", sets, folder, SEEN]), "32\n");
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn other_audit_libraries_stay() {
    let bench = Bench::new("audit");
    let print = ["--sms", "32", "sh", "-c", "echo $LD_AUDIT; echo $GREEN_CTX_RUN"];
    let out = bench.out(&print);
    let (own, limit) = out.trim().split_once('\n').expect("two lines");
    assert_eq!(limit, "--sms 32");
    let other = bench.cache.file("other.so");
    fs::copy(own, &other).expect("it can be copied");
    let mut command = bench.command(&print);
    let answer = Run::of(command.env("LD_AUDIT", format!("{other}:{own}")).output().expect("it"));
    assert_eq!(answer.out, format!("{own}:{other}\n--sms 32\n"), "{}", answer.err);
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn status_and_signals_are_the_programs() {
    let bench = Bench::new("status");
    assert_eq!(bench.out(&["--sms", "32", "true"]), "");
    assert_eq!(bench.run(&["--sms", "32", "--", "sh", "-c", "exit 7"]).status, 7);
    let crash = bench.command(&["--sms", "32", "--", "sh", "-c", "kill -SEGV $$"]).output();
    assert_eq!(crash.expect("it starts").status.signal(), Some(11));

    // A shell that starts one program after another can lose a signal.
    let script =
        "trap 'kill $!; echo interrupted; exit 5' INT; echo ready; sleep 60 > /dev/null & wait";
    let mut command = bench.command(&["--sms", "32", "--", "sh", "-c", script]);
    // In a group of its own, because the system does not stop a group without a parent in the session.
    let command = command.process_group(0).stdout(Stdio::piped());
    let mut program = command.spawn().expect("it starts");
    let mut lines = BufReader::new(program.stdout.take().expect("a pipe")).lines();
    let mut line = || lines.next().and_then(Result::ok);
    assert_eq!(line().as_deref(), Some("ready"));
    let id = program.id().to_string();
    let send = |signal: &str| Command::new("kill").args([signal, &id]).status().expect("kill");
    let has_state = |state: &str| {
        (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            stat.contains(&format!(") {state} "))
        })
    };
    send("-TSTP");
    assert!(has_state("T"), "it does not stop");
    send("-CONT");
    send("-INT");
    assert_eq!(line().as_deref(), Some("interrupted"));
    assert_eq!(program.wait().expect("it ends").code(), Some(5));
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn nothing_is_printed_unless_asked() {
    let bench = Bench::new("verbose");
    let mut command = bench.command(&["--sms", "30", "-v", "echo", "-v"]);
    let answer = Run::of(command.env("GREEN_CTX_SIM_DEVICES", "2").output().expect("it starts"));
    assert_eq!((answer.status, answer.out.as_str()), (0, "-v\n"));
    let lines: Vec<&str> = answer.err.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let begin =
        |device: u32| format!("green-ctx run: 28 of 132 SMs of device {device}, NVIDIA H200, GPU-");
    assert!(lines[0].starts_with(&begin(0)) && lines[1].starts_with(&begin(1)), "{lines:?}");

    // The device by its UUID, because it is device 0 in a program that sees no other.
    let print = ["--sms", "32", "--device", "1", "-v", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"];
    let mut command = bench.command(&print);
    let answer = Run::of(command.env("GREEN_CTX_SIM_DEVICES", "2").output().expect("it starts"));
    let uuid = lines[1].rsplit(' ').next().expect("a UUID");
    assert_eq!(answer.out.trim(), uuid);
    assert_eq!(answer.err.lines().count(), 1, "{}", answer.err);
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn what_cannot_be_held_is_refused() {
    let bench = Bench::new("refused");
    let nonsense =
        "an amount is a number of SMs from 1, such as 32, or from 1% to 100%, such as 25%";
    for amount in ["", "0", "-3", "abc", "1.5", "101%", "0%", "32..", "99999999999"] {
        bench.refused(&["--sms", amount], 2, nonsense);
        bench.refused(&["--reserve", amount], 2, nonsense);
    }
    for (option, amount, part) in [
        ("--sms", "133", "device 0, NVIDIA H200, has 132 SMs, and not 133"),
        ("--reserve", "133", "has 132 SMs, and not 133"),
        ("--sms", "7", "7 of 132 SMs is too few: device 0, NVIDIA H200, gives at least 8"),
        ("--sms", "5%", "5% of 132 SMs is too few"),
        ("--sms", "1", "1 of 132 SMs is too few"),
        ("--reserve", "125", "7 of 132 SMs for work outside of partitions is too few"),
        ("--reserve", "100%", "0 of 132 SMs for work outside of partitions is too few"),
    ] {
        bench.refused(&[option, amount], 2, part);
    }
    bench.refused(&[], 2, "required arguments were not provided");
    bench.refused(&["--sms", "8", "--reserve", "8"], 2, "cannot be used with");
    bench.refused(&["--sms", "8", "--device", "1"], 2, "device 1");
    bench.refused(&["--sms", "8", "--driver", "sim"], 2, "cannot be given to a program");
    bench.refused(&["--sms", "8", "--driver", "cuda:/nowhere.so"], 3, "no CUDA driver library");
    for (simulated, status, part) in [
        (
            "h200@12.4",
            3,
            "a limit for a program needs CUDA 12.5, but the driver supports only 12.4",
        ),
        ("h200@12.3", 3, "cuInit failed"),
        ("h200@12.5", 0, ""),
    ] {
        let mut command = bench.command(&["--sms", "8", "true"]);
        let output = command.env("GREEN_CTX_SIM", simulated).output().expect("it starts");
        let answer = Run::of(output);
        assert_eq!(answer.status, status, "{}", answer.err);
        assert!(answer.err.contains(part), "{}", answer.err);
    }
    for (program, status, part) in [
        ("no-such-program", 127, "cannot run no-such-program"),
        ("/no/such/program", 127, "cannot run /no/such/program"),
        ("/etc/passwd", 126, "cannot run /etc/passwd"),
    ] {
        let answer = bench.run(&["--sms", "8", "--", program]);
        assert_eq!(answer.status, status, "{program}: {}", answer.err);
        assert!(answer.err.contains(part), "{}", answer.err);
        let answer = bench.run(&["--json", "--sms", "8", "--", program]);
        assert_eq!((answer.status, answer.json()["error"]["kind"].as_str()), (status, Some("io")));
    }
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_program_of_another_user_is_refused() {
    let bench = Bench::new("setuid");
    let program = bench.cache.0.join("program");
    fs::copy("/bin/true", &program).expect("it can be copied");
    if chown(&program, Some(1), None).is_err() {
        println!("skipped: only root can give a file away");
        return;
    }
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).expect("it can be set");
    let path = env::join_paths([&bench.cache.0, Path::new("/bin")]).expect("plain paths");
    for name in ["program", program.to_str().expect("a plain path")] {
        let output = bench.command(&["--sms", "8", name]).env("PATH", &path).output();
        let answer = Run::of(output.expect("it starts"));
        assert_eq!(answer.status, 2, "{}", answer.err);
        assert!(answer.err.contains("runs with the rights of another user"), "{}", answer.err);
        assert!(answer.err.contains("as in sudo green-ctx run or su -c "), "{}", answer.err);
    }
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_changed_file_in_the_cache_is_replaced() {
    let bench = Bench::new("changed");
    let seen = ["--sms", "32", "python3", "-c", SEEN];
    assert_eq!(bench.out(&seen), "32\n");
    let files = bench.files();
    assert_eq!(files.len(), 2, "{files:?}");
    let about = fs::metadata(bench.cache.0.join("green-ctx")).expect("it is there");
    let (folder, own) = if about.uid() == 0 { (0o755, 0o644) } else { (0o700, 0o600) };
    assert_eq!(about.mode() & 0o777, folder);
    for file in &files {
        let good = fs::read(file).expect("it can be read");
        let is_good = || {
            assert_eq!(bench.out(&seen), "32\n");
            assert_eq!(fs::read(file).expect("it can be read"), good);
            let about = fs::symlink_metadata(file).expect("it is there");
            assert!(about.is_file() && about.mode() & 0o777 == own, "{about:?}");
        };
        let mut bad = good.clone();
        *bad.last_mut().expect("a byte") ^= 1;
        for bad in [bad, good[..100].to_vec(), Vec::new()] {
            fs::write(file, bad).expect("it can be written");
            is_good();
        }
        // Others could write it, and others could not read it.
        for mode in [0o666, 0o400] {
            fs::set_permissions(file, Permissions::from_mode(mode)).expect("it can be set");
            is_good();
        }
        let elsewhere = bench.cache.0.join("elsewhere");
        fs::rename(file, &elsewhere).expect("it can be moved");
        std::os::unix::fs::symlink(&elsewhere, file).expect("a link");
        is_good();
    }
    assert_eq!(bench.files().len(), 2, "{:?}", bench.files());
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_cache_that_others_can_change_is_refused() {
    let bench = Bench::new("unsafe");
    let folder = bench.cache.0.join("green-ctx");
    fs::create_dir(&folder).expect("a folder");
    for mode in [0o777, 0o770, 0o702] {
        fs::set_permissions(&folder, Permissions::from_mode(mode)).expect("it can be set");
        bench.refused(&["--sms", "8"], 2, "green-ctx can be written by other users");
    }
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("it can be set");
    assert_eq!(bench.out(&["--sms", "8", "true"]), "");
    fs::set_permissions(&bench.cache.0, Permissions::from_mode(0o777)).expect("it can be set");
    bench.refused(&["--sms", "8"], 2, "can be written by other users");
    fs::set_permissions(&bench.cache.0, Permissions::from_mode(0o755)).expect("it can be set");
    if chown(&folder, Some(1), None).is_ok() {
        bench.refused(&["--sms", "8"], 2, "green-ctx is not a folder of yours");
        chown(&folder, Some(0), None).expect("it can be set");
        chown(&bench.cache.0, Some(1), None).expect("it can be set");
        bench.refused(&["--sms", "8"], 2, "belongs to another user");
        chown(&bench.cache.0, Some(0), None).expect("it can be set");
    }
    fs::remove_dir_all(&folder).expect("it can be removed");
    for target in ["/tmp", "/nowhere"] {
        std::os::unix::fs::symlink(target, &folder).expect("a link");
        bench.refused(&["--sms", "8"], 2, "green-ctx is not a folder of yours");
        fs::remove_file(&folder).expect("it can be removed");
    }
    fs::write(&folder, "").expect("a file");
    bench.refused(&["--sms", "8"], 2, "green-ctx is not a folder of yours");
}

/// The loader says so on standard error if it cannot read the library that it is to ask.
#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_program_that_gives_up_roots_rights_has_the_limit() {
    let bench = Bench::new("root");
    if fs::metadata(&bench.cache.0).expect("it is there").uid() != 0 {
        return eprintln!("skipped: only root can give up root's rights");
    }
    let program =
        "import os; os.setuid(65534); os.execv('/bin/sh', ['sh', '-c', 'echo $LD_AUDIT'])";
    // Where others can search no folder, programs that remain root's have the limit.
    let closed = bench.cache.0.join("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).expect("it can be set");
    let mut command = bench.command(&["--sms", "32", "python3", "-c", SEEN]);
    command.env("XDG_CACHE_HOME", &closed).env("TMPDIR", &closed);
    let answer = Run::of(command.output().expect("it starts"));
    assert_eq!(answer.out, "32\n");
    assert!(
        answer.err.starts_with("note: a program that gives up root's rights"),
        "{}",
        answer.err
    );
    for (mode, folder) in [(0o755, "cache/green-ctx"), (0o700, "green-ctx-0")] {
        let cache = bench.cache.0.join("cache");
        fs::create_dir_all(&cache).expect("a folder");
        fs::set_permissions(&cache, Permissions::from_mode(mode)).expect("it can be set");
        let mut command = bench.command(&["--sms", "32", "python3", "-c", program]);
        command.env("XDG_CACHE_HOME", &cache).env("TMPDIR", &bench.cache.0);
        let answer = Run::of(command.output().expect("it starts"));
        let there = bench.cache.0.join(folder);
        assert!(answer.out.starts_with(there.to_str().expect("a name")), "{}", answer.out);
        assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    }
}

/// The program gets the folder that was checked, and not a link that could lead elsewhere later.
#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_link_to_the_cache_is_resolved() {
    let bench = Bench::new("linked");
    let (there, link) = (bench.cache.0.join("there"), bench.cache.0.join("link"));
    fs::create_dir(&there).expect("a folder");
    std::os::unix::fs::symlink(&there, &link).expect("a link");
    let mut command = bench.command(&["--sms", "8", "sh", "-c", "echo $LD_AUDIT"]);
    let answer = Run::of(command.env("XDG_CACHE_HOME", &link).output().expect("it starts"));
    let folder = there.canonicalize().expect("it is there").join("green-ctx");
    let is_there = answer.out.starts_with(folder.to_str().expect("a name"));
    assert!(is_there, "{} {}", answer.out, answer.err);
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn a_limit_without_its_variable_is_a_limit() {
    let bench = Bench::new("without-variable");
    let inner = [env!("CARGO_BIN_EXE_green-ctx"), "run", "--sms", "100%", "--"];
    let outer = ["--sms", "64", "env", "-u", "GREEN_CTX_RUN"];
    assert_eq!(bench.out(&[&outer[..], &inner, &["python3", "-c", SEEN]].concat()), "64\n");
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn without_a_cache_a_temporary_folder_is_used() {
    let bench = Bench::new("temporary");
    let answer = |home: Option<&str>, temporary: &Path| {
        let mut command = bench.command(&["--sms", "32", "python3", "-c", SEEN]);
        command.env_remove("XDG_CACHE_HOME").env_remove("HOME").env("TMPDIR", temporary);
        if let Some(home) = home {
            command.env("HOME", home);
        }
        Run::of(command.output().expect("it starts"))
    };
    let user = fs::metadata(&bench.cache.0).expect("it is there").uid();
    let own = bench.cache.0.join(format!("green-ctx-{user}"));
    // No folder can be made in /proc.
    for home in [None, Some("/proc"), Some("not/absolute")] {
        let answer = answer(home, &bench.cache.0);
        assert_eq!((answer.out.as_str(), answer.err.as_str()), ("32\n", ""), "{home:?}");
        assert_eq!(fs::read_dir(&own).expect("it was made").count(), 2, "{home:?}");
        fs::remove_dir_all(&own).expect("it can be removed");
    }
    // Another user was first.
    fs::create_dir(&own).expect("a folder");
    fs::set_permissions(&own, Permissions::from_mode(0o777)).expect("it can be set");
    let refused = answer(None, &bench.cache.0);
    assert_eq!((refused.status, refused.out.as_str()), (2, ""));
    assert!(refused.err.contains("can be written by other users; remove it"), "{}", refused.err);
    let refused = answer(Some("/proc"), Path::new("/proc"));
    assert_eq!((refused.status, refused.out.as_str()), (2, ""));
    let words = format!("/proc/green-ctx-{user} cannot be used; set XDG_CACHE_HOME");
    assert!(refused.err.contains(&words), "{}", refused.err);
}

#[test]
#[ignore = "`cargo xtask clients` runs it with the simulated libcuda.so.1"]
fn outputs_under_a_reserve_say_so() {
    let bench = Bench::new("reserved-outputs");
    let reserved =
        |arguments: &[&str]| bench.run(&[&["--reserve", "32", "--", COMMAND], arguments].concat());
    for arguments in [
        &["info"][..],
        &["split", "--counts", "8"],
        &["split", "--counts", "64"],
        &["verify", "--counts", "8"],
        &["curve", "--job", "copy"],
        &["tune", "--job", "gemm", "--job", "copy", "--budget", "1"],
    ] {
        let output = reserved(&[arguments, &["--json"]].concat()).json();
        crate::fields::are_listed(arguments[0], &output);
        if ["curve", "tune"].contains(&arguments[0]) {
            let notes = output["notes"].to_string();
            assert!(notes.contains("the model ignores the reserve of 32 SMs"), "{notes}");
        }
    }
    let last = "simulated: the driver library that was loaded simulates a GPU, and no GPU was used";
    let answer = reserved(&["split", "--counts", "8"]);
    assert_eq!(answer.out.lines().last(), Some(last), "{}", answer.out);
}
