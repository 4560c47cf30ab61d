//! The simulated driver against the record of a real one, case by case.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use green_ctx_conformance::{Options, Record, all, run};
use serde_json::json;

/// The record of the driver that the simulated one plays.
const RECORD: &str = "records/h200-driver-580.159.04.jsonl";

/// The simulated driver.
const DRIVER: &str = "sim:h200@13.0";

fn recorded() -> Result<Record, Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORD);
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("no record of a real driver, {}: {error}", path.display()))?;
    Ok(Record::parse(&text)?)
}

/// What the simulator answers, asked once for all tests.
fn simulated() -> Result<&'static Record, Box<dyn Error>> {
    static SIMULATED: OnceLock<Result<Record, String>> = OnceLock::new();
    let ask = || -> Result<Record, Box<dyn Error>> {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_conformance"));
        let options = Options { driver: DRIVER.parse()?, program };
        let cases = all();
        let mut text = Vec::new();
        run(&options, &cases.iter().collect::<Vec<_>>(), &mut text)?;
        Ok(Record::parse(&String::from_utf8(text)?)?)
    };
    SIMULATED
        .get_or_init(|| ask().map_err(|error| error.to_string()))
        .as_ref()
        .map_err(|error| error.as_str().into())
}

#[test]
fn the_simulator_answers_as_the_record_does() -> Result<(), Box<dyn Error>> {
    let (recorded, simulated) = (recorded()?, simulated()?);
    let differences = recorded.differences(simulated);
    let mut text = String::new();
    for difference in &differences {
        writeln!(text, "{difference}")?;
    }
    let (differing, all) = (differences.len(), recorded.cases.len());
    assert!(differences.is_empty(), "{differing} of {all} cases differ:\n{text}");
    Ok(())
}

#[test]
fn the_record_holds_every_case_and_no_other() -> Result<(), Box<dyn Error>> {
    let recorded = recorded()?;
    let cases = all();
    let expected: BTreeSet<&str> = cases.iter().map(|case| case.name()).collect();
    let found: BTreeSet<&str> = recorded.cases.keys().map(String::as_str).collect();
    assert_eq!(expected, found);
    Ok(())
}

/// One changed answer of each topic, each the only difference that is then seen.
#[test]
fn a_changed_answer_is_seen() -> Result<(), Box<dyn Error>> {
    let (recorded, simulated) = (recorded()?, simulated()?);
    let before = recorded.differences(simulated);
    let mut topics = BTreeSet::new();
    for case in all().iter().filter(|case| topics.insert(case.topic().to_owned())) {
        let mut changed = recorded.clone();
        changed.cases.insert(case.name().to_owned(), json!({ "status": "CUDA_ERROR_CHANGED" }));
        let differences = changed.differences(simulated);
        let new: Vec<&str> = differences
            .iter()
            .filter(|difference| !before.contains(difference))
            .map(|difference| difference.case.as_str())
            .collect();
        assert_eq!(new, [case.name()]);
    }
    Ok(())
}

#[test]
fn a_missing_and_an_extra_case_are_seen() -> Result<(), Box<dyn Error>> {
    let mut recorded = recorded()?;
    let before = recorded.differences(simulated()?);
    recorded.cases.remove("misuse/destroy-null");
    recorded.cases.insert("misuse/not-asked".to_owned(), json!({}));
    let differences = recorded.differences(simulated()?);
    let new: Vec<&str> = differences
        .iter()
        .filter(|difference| !before.contains(difference))
        .map(|difference| difference.case.as_str())
        .collect();
    assert_eq!(new, ["misuse/destroy-null", "misuse/not-asked"]);
    Ok(())
}
