//! The fuzzer on simulated drivers: what it covers, and that it finds what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::time::Duration;

use green_ctx_conformance::fuzz::{self, Answers, Arg, Program, Step};
use green_ctx_conformance::{Choice, Options, Summary};
use green_ctx_sim::{Profile, Sim};
use green_ctx_sys::CUdriverProcAddressQueryResult;

const CALLS: usize = 400;

fn options(driver: &str, fault: Option<&str>) -> Result<Options, Box<dyn Error>> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_conformance"));
    Ok(Options { driver: driver.parse()?, program, fault: fault.map(str::to_owned) })
}

fn programs(count: u64) -> Vec<Program> {
    (0..count).map(|seed| fuzz::program(seed, CALLS)).collect()
}

fn answers(options: &Options, programs: &[Program]) -> Result<(Summary, Answers), Box<dyn Error>> {
    answers_within(options, programs, fuzz::LIMIT)
}

fn answers_within(
    options: &Options,
    programs: &[Program],
    limit: Duration,
) -> Result<(Summary, Answers), Box<dyn Error>> {
    let mut text = Vec::new();
    let summary = fuzz::run(options, programs, 2, limit, &mut text)?;
    Ok((summary, Answers::parse(&String::from_utf8(text)?)?))
}

/// The functions that a simulated driver gives out, by the names that a library exports them by, with the
/// number of their arguments. A form for the thread's default stream is the plain form but for that stream.
fn simulated() -> Result<BTreeMap<&'static str, usize>, Box<dyn Error>> {
    type Row = (&'static str, &'static str, &'static CStr, u32, &'static [&'static str]);
    macro_rules! list {
        ($($export:ident: $plain:ident = $name:literal $version:literal
            ($($argument:ident: $type:ty),*);)*) => {
            &[$((
                stringify!($export),
                stringify!($plain),
                match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
                $version,
                &[$(stringify!($argument)),*],
            )),*]
        };
    }
    let functions: &[Row] = green_ctx_sim::driver_functions!(list);
    let sim = Sim::new("h200@13.4")?;
    let look_up = sim.get_proc_address();
    let mut simulated = BTreeMap::new();
    for (export, plain, name, version, arguments) in functions {
        let mut address = null_mut();
        let mut found = CUdriverProcAddressQueryResult(0);
        let version = i32::try_from(*version)?;
        // SAFETY: a terminated name and two live places; the function is that of `sim`.
        unsafe { look_up(name.as_ptr(), &mut address, version, 0, &mut found) };
        if export == plain && !address.is_null() {
            simulated.insert(*export, arguments.len());
        }
    }
    Ok(simulated)
}

/// Every function that the simulator has is called by programs or excluded with a reason, with all of its
/// arguments.
#[test]
fn every_simulated_function_is_called_or_excluded() -> Result<(), Box<dyn Error>> {
    let simulated = simulated()?;
    assert!(simulated.len() > 200);
    let called: BTreeMap<&str, usize> = fuzz::called().collect();
    let excluded: BTreeMap<&str, &str> = fuzz::excluded().collect();
    let missing = simulated.keys();
    let missing =
        missing.filter(|name| !called.contains_key(*name) && !excluded.contains_key(*name));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "neither called nor excluded: {missing:?}");
    for (name, arguments) in &called {
        assert_eq!(simulated.get(name), Some(arguments), "{name} has other arguments");
        assert!(!excluded.contains_key(name), "{name} is in both");
    }
    let listed: BTreeSet<&str> = called.keys().chain(excluded.keys()).copied().collect();
    let unknown: Vec<_> = listed.iter().filter(|name| !simulated.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "not simulated: {unknown:?}");
    Ok(())
}

#[test]
fn a_seed_gives_one_program() {
    assert_eq!(fuzz::program(7, CALLS), fuzz::program(7, CALLS));
    assert_ne!(fuzz::program(7, CALLS).steps, fuzz::program(8, CALLS).steps);
    for seed in 0..20 {
        let program = fuzz::program(seed, CALLS);
        assert_eq!(program.steps.len(), CALLS);
        let text = serde_json::to_string(&program).expect("a program is plain data");
        assert_eq!(serde_json::from_str::<Program>(&text).expect("it was just written"), program);
    }
}

/// Two runs of one simulated driver give the same answers, and every function that can succeed does so in
/// a fifth of its calls. The command does the same with 220 longer programs, and 500 calls a function.
#[test]
fn the_simulator_answers_alike_twice() -> Result<(), Box<dyn Error>> {
    let options = options("sim:h200@13.0", None)?;
    let programs = programs(40);
    let (summary, first) = answers(&options, &programs)?;
    // No process ends before the last call, which may follow a null pointer.
    assert_eq!(summary.answered, 40 * CALLS);
    let (_, second) = answers(&options, &programs)?;
    let comparison = fuzz::compare(&first, &second)?;
    assert_eq!(comparison.differences, []);
    assert!(comparison.holds());
    assert_eq!(comparison.rare(20), [""; 0]);
    Ok(())
}

/// What GPUs answered to the shortest programs that the simulator once answered differently.
#[test]
fn recorded_programs_are_answered_as_recorded() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("records/fuzz");
    let mut records = 0;
    for entry in std::fs::read_dir(folder)? {
        let recorded = Answers::parse(&std::fs::read_to_string(entry?.path())?)?;
        let header = &recorded.header;
        let profile = Profile::all().iter().find(|profile| profile.device_name == header.device);
        let profile = profile.ok_or_else(|| format!("no profile is a {}", header.device))?;
        let driver = format!("sim:{}@{}", profile.name, header.driver_version);
        let (_, simulated) = answers(&options(&driver, None)?, &recorded.asked())?;
        let comparison = fuzz::compare(&recorded, &simulated)?;
        let differences: Vec<_> = comparison.differences.iter().map(ToString::to_string).collect();
        assert!(differences.is_empty(), "{driver}:\n{}", differences.join("\n"));
        assert_eq!(comparison.total().dependent, 0);
        records += 1;
    }
    assert_eq!(records, 2);
    Ok(())
}

/// A driver that answers one call otherwise is found, and the program made as short as that needs.
#[test]
fn a_difference_is_found_and_shrunk() -> Result<(), Box<dyn Error>> {
    let right = options("sim:h200@13.0", None)?;
    let wrong = options("sim:h200@13.0", Some("cuGraphAddHostNode"))?;
    let programs = programs(4);
    let (_, first) = answers(&right, &programs)?;
    let (_, second) = answers(&wrong, &programs)?;
    let comparison = fuzz::compare(&first, &second)?;
    assert!(!comparison.holds());
    // What a graph lacks after that may show later in the flags of a context, which name no graph.
    let shortest = comparison.shortest();
    for found in &shortest {
        assert_eq!(found.first.step.call, "cuGraphAddHostNode");
        assert_eq!(found.second.status, "CUDA_ERROR_UNKNOWN");
    }
    let found = *shortest.first().ok_or("no difference was found")?;

    let program = programs.iter().find(|program| program.name == found.first.program);
    let program = program.ok_or("an unknown program")?;
    let step = found.first.step.step;
    let shorter = fuzz::shrink_on(&right, &wrong, program, step)?.ok_or("no difference is left")?;
    let calls: Vec<&str> = shorter.steps.iter().map(|step| step.call.as_str()).collect();
    assert_eq!(calls.last(), Some(&"cuGraphAddHostNode"));
    assert!(calls.len() <= 20, "{calls:?}");

    // With one driver at hand: what may differ with the other, all as this driver answers it.
    let candidates = fuzz::candidates_on(&right, program, step, 40)?;
    let shortest = candidates.iter().map(|candidate| candidate.steps.len()).min();
    assert!(shortest.is_some_and(|shortest| shortest <= 20), "{shortest:?}");
    let (_, first) = answers(&right, &candidates)?;
    let (_, second) = answers(&wrong, &candidates)?;
    let comparison = fuzz::compare(&first, &second)?;
    let found = comparison.shortest();
    assert_eq!(found.len(), 1, "all candidates are of one seed");
    assert_eq!(Some(found[0].length), shortest);
    Ok(())
}

/// Answers that depend on a difference are not counted as differences.
#[test]
fn dependent_answers_are_no_differences() -> Result<(), Box<dyn Error>> {
    let right = options("sim:h200@13.0", None)?;
    let wrong = options("sim:h200@13.0", Some("cuLibraryLoadData"))?;
    let program = [fuzz::program(3, CALLS)];
    let (_, first) = answers(&right, &program)?;
    let (_, second) = answers(&wrong, &program)?;
    let comparison = fuzz::compare(&first, &second)?;
    assert_eq!(comparison.differences.len(), 1);
    assert!(comparison.total().dependent > 10);
    Ok(())
}

fn step(step: u32, call: &str, args: Vec<Arg>) -> Step {
    Step { step, call: call.to_owned(), args }
}

/// How a process ends is the answer to the step that ended it, and the other programs are run.
#[test]
fn a_crash_and_a_hang_are_answers() -> Result<(), Box<dyn Error>> {
    // A descriptor of no resources, for which the driver follows a wild pointer, as recorded.
    let out: Arg = serde_json::from_str("\"out\"")?;
    let resources: Arg = serde_json::from_str(r#"{"size":144,"at":[]}"#)?;
    let crash = Program {
        name: "crash".to_owned(),
        steps: vec![
            step(0, "cuInit", vec![Arg::Number(0)]),
            step(1, "cuDevResourceGenerateDesc", vec![out, resources, Arg::Number(0)]),
            step(2, "cuCtxSynchronize", vec![]),
        ],
    };
    let programs = [crash, fuzz::program(0, 50)];
    let options = options("sim:h200@13.0", None)?;
    let (summary, found) = answers(&options, &programs)?;
    assert_eq!(summary.failed, 1);
    let statuses: Vec<&str> =
        found.programs["crash"].iter().map(|reply| reply.status.as_str()).collect();
    assert_eq!(statuses, ["CUDA_SUCCESS", "died: signal 11"]);
    assert_eq!(found.programs["0"].len(), 50);

    // No process answers anything in no time.
    let (summary, found) = answers_within(&options, &programs, Duration::ZERO)?;
    assert_eq!(summary.failed, 2);
    assert!(
        found
            .programs
            .values()
            .all(|replies| replies.last().is_some_and(|reply| reply.status == "died: timeout"))
    );
    Ok(())
}

#[test]
fn the_command_compares_files() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let conformance = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_conformance"))
            .current_dir(&folder)
            .args(arguments)
            .output()
    };
    let fuzz = ["fuzz", "--driver", "sim:h200@13.0", "--seeds", "0..3", "--calls", "60", "--out"];
    let right = conformance(&[&fuzz[..], &["right.jsonl"]].concat())?;
    assert_eq!(right.status.code(), Some(0));
    conformance(&[&fuzz[..], &["wrong.jsonl", "--fault", "cuCtxPushCurrent"]].concat())?;
    let compare = ["fuzz-compare", "right.jsonl"];
    let same = conformance(&[&compare[..], &["right.jsonl"]].concat())?;
    assert_eq!(same.status.code(), Some(0));
    let differ = conformance(&[&compare[..], &["wrong.jsonl"]].concat())?;
    assert_eq!(differ.status.code(), Some(1));
    let text = String::from_utf8(differ.stdout)?;
    assert!(text.contains("cuCtxPushCurrent_v2") && text.contains("second: CUDA_ERROR_UNKNOWN"));
    let json = conformance(&[&compare[..], &["wrong.jsonl", "--json"]].concat())?;
    let json: serde_json::Value = serde_json::from_slice(&json.stdout)?;
    assert_eq!(json["functions"]["cuCtxPushCurrent_v2"]["differences"], 3);
    let missing = conformance(&["fuzz-compare", "right.jsonl", "no-such-file"])?;
    assert_eq!(missing.status.code(), Some(2));
    Ok(())
}

#[test]
fn a_missing_driver_is_3() -> Result<(), Box<dyn Error>> {
    let driver: Choice = "cuda:/no/such/libcuda.so.1".parse()?;
    let output = Command::new(env!("CARGO_BIN_EXE_conformance"))
        .args(["fuzz", "--seeds", "0..1", "--driver"])
        .arg(driver.to_string())
        .output()?;
    assert_eq!(output.status.code(), Some(3));
    Ok(())
}
