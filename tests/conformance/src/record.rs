//! Records of a driver's answers, with one JSON line per case, and their comparison.

use core::fmt;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// The first line of a record: the driver and the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// `cuda` or `simulated`.
    pub driver: String,
    /// The CUDA version that the driver supports.
    pub driver_version: String,
    /// The device's name.
    pub device: String,
    /// The number of SMs.
    pub sm_count: u32,
    /// The compute capability.
    pub compute_capability: String,
    /// The date of the run in UTC, `YYYY-MM-DD`.
    pub date: String,
    /// The version of the kernel driver, if the system reports it.
    pub kernel_driver: Option<String>,
}

/// The first line as it is written.
#[derive(Serialize, Deserialize)]
pub(crate) struct HeaderLine {
    pub(crate) record: Header,
}

/// A line of a record: a case with its facts, in the order in which the driver gave them.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The case's name.
    pub case: String,
    /// The driver's answer.
    pub answer: Vec<(String, Value)>,
}

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Facts<'a>(&'a [(String, Value)]);
        impl Serialize for Facts<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|(name, fact)| (name, fact)))
            }
        }
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("case", &self.case)?;
        map.serialize_entry("answer", &Facts(&self.answer))?;
        map.end()
    }
}

/// A record that was read back, for comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The driver and the device.
    pub header: Header,
    /// The answer of each case.
    pub cases: BTreeMap<String, Value>,
}

/// Why a text is not a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The text has no lines.
    #[error("the record is empty")]
    Empty,
    /// A line is invalid.
    #[error("line {line}")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// The reason.
        source: serde_json::Error,
    },
    /// A case occurs twice.
    #[error("line {line}: the case {case} occurs twice")]
    Again {
        /// The line's number, from 1.
        line: usize,
        /// The case's name.
        case: String,
    },
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    ///
    /// Returns a [`ParseError`] with the invalid line.
    pub fn parse(text: &str) -> Result<Record, ParseError> {
        #[derive(Deserialize)]
        struct CaseLine {
            case: String,
            answer: Value,
        }
        let mut lines = text.lines().enumerate();
        let (_, first) = lines.next().ok_or(ParseError::Empty)?;
        let HeaderLine { record: header } =
            serde_json::from_str(first).map_err(|source| ParseError::Line { line: 1, source })?;
        let mut cases = BTreeMap::new();
        for (index, text) in lines {
            let line = index + 1;
            let CaseLine { case, answer } =
                serde_json::from_str(text).map_err(|source| ParseError::Line { line, source })?;
            if cases.insert(case.clone(), answer).is_some() {
                return Err(ParseError::Again { line, case });
            }
        }
        Ok(Record { header, cases })
    }

    /// Returns the differences between this record and `other`: missing cases, additional cases, and cases with
    /// other answers. Of the header only the driver and the device are compared.
    #[must_use]
    pub fn differences(&self, other: &Record) -> Vec<Difference> {
        let who = |header: &Header| {
            serde_json::json!({
                "driver_version": header.driver_version,
                "device": header.device,
                "sm_count": header.sm_count,
                "compute_capability": header.compute_capability,
            })
        };
        let mut differences = Vec::new();
        let (expected, found) = (who(&self.header), who(&other.header));
        if expected != found {
            let (expected, found) = (Some(expected), Some(found));
            differences.push(Difference { case: "(header)".to_owned(), expected, found });
        }
        let names: std::collections::BTreeSet<&String> =
            self.cases.keys().chain(other.cases.keys()).collect();
        for case in names {
            let (expected, found) = (self.cases.get(case), other.cases.get(case));
            if expected != found {
                let (expected, found) = (expected.cloned(), found.cloned());
                differences.push(Difference { case: case.clone(), expected, found });
            }
        }
        differences
    }
}

/// A case in which two records differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The case's name.
    pub case: String,
    /// The answer in the reference record, or `None` if it lacks the case.
    pub expected: Option<Value>,
    /// The answer in the other record, or `None` if it lacks the case.
    pub found: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |answer: &Option<Value>| {
            answer.as_ref().map_or_else(|| "(no such case)".to_owned(), Value::to_string)
        };
        write!(
            f,
            "{}\n  record: {}\n  found:  {}",
            self.case,
            text(&self.expected),
            text(&self.found)
        )
    }
}

/// Returns today's date in UTC, `YYYY-MM-DD`.
pub(crate) fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns the date `days` after 1970-01-01, computed in eras of 400 years that begin in March.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = concat!(
        r#"{"record":{"driver":"cuda","driver_version":"13.0","device":"D","sm_count":132,"#,
        r#""compute_capability":"9.0","date":"2026-11-20","kernel_driver":null}}"#,
        "\n",
        r#"{"case":"a","answer":{"status":"CUDA_SUCCESS","n":1}}"#,
        "\n",
        r#"{"case":"b","answer":{}}"#,
        "\n",
    );

    fn record() -> Record {
        Record::parse(TEXT).expect("the text is a record")
    }

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_777), (2026, 11, 20));
    }

    #[test]
    fn equal_records_have_no_differences() {
        let mut later = record();
        later.header.date = "2030-01-01".to_owned();
        assert_eq!(record().differences(&later), []);
    }

    #[test]
    fn every_kind_of_difference_is_seen() {
        let mut other = record();
        other.header.sm_count = 114;
        other.cases.insert("a".to_owned(), serde_json::json!({"status": "CUDA_SUCCESS", "n": 2}));
        other.cases.remove("b");
        other.cases.insert("c".to_owned(), Value::Null);
        let cases: Vec<String> =
            record().differences(&other).into_iter().map(|difference| difference.case).collect();
        assert_eq!(cases, ["(header)", "a", "b", "c"]);
    }

    #[test]
    fn a_case_twice_is_no_record() {
        let text = format!("{TEXT}{}", "{\"case\":\"b\",\"answer\":{}}\n");
        assert!(matches!(Record::parse(&text), Err(ParseError::Again { line: 4, .. })));
    }

    #[test]
    fn a_line_keeps_the_order_of_its_facts() {
        let line = Line {
            case: "x".to_owned(),
            answer: vec![("z".to_owned(), 1.into()), ("a".to_owned(), true.into())],
        };
        let text = serde_json::to_string(&line).expect("a line is plain data");
        assert_eq!(text, r#"{"case":"x","answer":{"z":1,"a":true}}"#);
    }
}
