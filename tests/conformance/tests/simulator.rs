//! Compares the simulated driver with the records of real drivers, case by case.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use green_ctx_conformance::{Options, Record, all, run};
use green_ctx_sim::Profile;
use serde_json::json;

/// The cases that some record lacks, since they have not been run on that device yet.
const UNRECORDED: &str = include_str!("../unrecorded.txt");

/// The answers of a real driver, and of the simulated driver of the same part and version.
struct Pair {
    profile: &'static Profile,
    recorded: Record,
    simulated: Record,
}

impl Pair {
    /// Reads a record, and runs the cases on the simulated driver of the same device.
    fn read(path: &Path) -> Result<Pair, Box<dyn Error>> {
        let recorded = Record::parse(&std::fs::read_to_string(path)?)?;
        let device = &recorded.header.device;
        let profile = Profile::all().iter().find(|profile| profile.device_name == device);
        let profile = profile.ok_or_else(|| format!("no profile is a {device}"))?;
        let driver = format!("sim:{}@{}", profile.name, recorded.header.driver_version);
        let program = PathBuf::from(env!("CARGO_BIN_EXE_conformance"));
        let options = Options { driver: driver.parse()?, program };
        let mut text = Vec::new();
        run(&options, &all().iter().collect::<Vec<_>>(), &mut text)?;
        let simulated = Record::parse(&String::from_utf8(text)?)?;
        Ok(Pair { profile, recorded, simulated })
    }

    /// Returns the differences between `recorded` and the simulated driver that this pair does not have.
    fn new_differences(&self, recorded: &Record) -> Vec<String> {
        let before = self.recorded.differences(&self.simulated);
        let now = recorded.differences(&self.simulated);
        now.into_iter()
            .filter(|difference| !before.contains(difference))
            .map(|difference| difference.case)
            .collect()
    }
}

/// Returns the paths of the committed records.
fn paths() -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("records");
    let files = std::fs::read_dir(folder)?.map(|file| file.map(|file| file.path()));
    let mut paths = files.collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns every committed record with the simulated driver's answers, which are computed once for all tests.
fn pairs() -> Result<&'static [Pair], Box<dyn Error>> {
    static PAIRS: OnceLock<Result<Vec<Pair>, String>> = OnceLock::new();
    let ask = || -> Result<Vec<Pair>, String> {
        let paths = paths().map_err(|error| error.to_string())?;
        thread::scope(|scope| {
            let read =
                |path| Pair::read(path).map_err(|error| format!("{}: {error}", path.display()));
            let threads: Vec<_> =
                paths.iter().map(|path: &PathBuf| scope.spawn(move || read(path))).collect();
            let end = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))
            };
            threads.into_iter().map(end).collect()
        })
    };
    Ok(PAIRS.get_or_init(ask).as_ref().map_err(String::as_str)?)
}

#[test]
fn the_simulator_answers_as_the_records_do() -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    for Pair { profile, recorded, simulated } in pairs()? {
        let mut differences = recorded.differences(simulated);
        differences.retain(|difference| {
            difference.expected.is_some() || !UNRECORDED.lines().any(|name| name == difference.case)
        });
        if !differences.is_empty() {
            let (differing, all) = (differences.len(), recorded.cases.len());
            writeln!(text, "{}: {differing} of {all} cases differ:", profile.name)?;
        }
        for difference in &differences {
            writeln!(text, "{difference}")?;
        }
    }
    assert!(text.is_empty(), "{text}");
    Ok(())
}

#[test]
fn the_records_hold_every_case_and_no_other() -> Result<(), Box<dyn Error>> {
    let cases = all();
    let expected: BTreeSet<&str> = cases.iter().map(|case| case.name()).collect();
    let unrecorded: BTreeSet<&str> = UNRECORDED.lines().collect();
    let mut missing = BTreeSet::new();
    for Pair { profile, recorded, .. } in pairs()? {
        let found: BTreeSet<&str> = recorded.cases.keys().map(String::as_str).collect();
        let others: Vec<_> = found.difference(&expected).collect();
        assert!(others.is_empty(), "{}: no such cases: {others:?}", profile.name);
        missing.extend(expected.difference(&found).copied());
    }
    assert_eq!(missing, unrecorded, "unrecorded.txt lists the cases that a record lacks");
    Ok(())
}

/// The simulator must answer every case that is not recorded yet. The test prints these cases; the simulator's
/// own tests check the answers.
#[test]
fn unrecorded_cases_are_answered() -> Result<(), Box<dyn Error>> {
    UNRECORDED.lines().for_each(|name| eprintln!("not recorded yet: {name}"));
    for Pair { profile, simulated, .. } in pairs()? {
        for name in UNRECORDED.lines() {
            let answer = &simulated.cases[name];
            let unanswered = ["failed", "unsupported", "died"].map(|fact| answer.get(fact));
            assert_eq!(unanswered, [None; 3], "{}: {name}", profile.name);
        }
    }
    Ok(())
}

/// A profile claims to be recorded if and only if its record is committed under its name.
#[test]
fn each_recorded_profile_has_its_record() -> Result<(), Box<dyn Error>> {
    let claimed = Profile::all().iter().filter_map(|profile| {
        let record = profile.provenance.recorded?;
        let (major, minor) = (record.version / 1000, record.version % 1000 / 10);
        let file = format!("{}-driver-{}.jsonl", profile.name, record.driver);
        Some((file, Some(record.driver.to_owned()), format!("{major}.{minor}"), "cuda".to_owned()))
    });
    let claimed: BTreeSet<_> = claimed.collect();
    let names = paths()?.into_iter().map(|path| {
        path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    });
    let headers = pairs()?.iter().map(|pair| pair.recorded.header.clone());
    let found: BTreeSet<_> = names
        .zip(headers)
        .map(|(name, header)| (name, header.kernel_driver, header.driver_version, header.driver))
        .collect();
    assert_eq!(claimed, found);
    Ok(())
}

/// For each topic of each record, one changed answer must be reported as the only difference.
#[test]
fn a_changed_answer_is_seen() -> Result<(), Box<dyn Error>> {
    for pair in pairs()? {
        let mut topics = BTreeSet::new();
        for case in all().iter().filter(|case| topics.insert(case.topic().to_owned())) {
            let mut changed = pair.recorded.clone();
            changed.cases.insert(case.name().to_owned(), json!({ "status": "CUDA_ERROR_CHANGED" }));
            assert_eq!(pair.new_differences(&changed), [case.name()], "{}", pair.profile.name);
        }
    }
    Ok(())
}

/// Parts differ in the time that copies take on few SMs, so another part's answer must be reported as a difference.
#[test]
fn another_parts_answers_are_seen() -> Result<(), Box<dyn Error>> {
    for pair in pairs()? {
        let case = "transfer/copy-on-the-device";
        let answers = pairs()?.iter().map(|other| &other.recorded.cases[case]);
        for other in answers.filter(|answer| **answer != pair.recorded.cases[case]) {
            let mut changed = pair.recorded.clone();
            changed.cases.insert(case.to_owned(), other.clone());
            assert_eq!(pair.new_differences(&changed), [case], "{}", pair.profile.name);
        }
    }
    Ok(())
}

#[test]
fn a_missing_and_an_extra_case_are_seen() -> Result<(), Box<dyn Error>> {
    for pair in pairs()? {
        let mut changed = pair.recorded.clone();
        changed.cases.remove("misuse/destroy-null");
        changed.cases.insert("misuse/not-asked".to_owned(), json!({}));
        let expected = ["misuse/destroy-null", "misuse/not-asked"];
        assert_eq!(pair.new_differences(&changed), expected, "{}", pair.profile.name);
    }
    Ok(())
}
