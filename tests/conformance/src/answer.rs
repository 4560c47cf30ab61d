//! The answer of a case: its facts, in the order in which the driver gave them.

use std::io::{self, Write};

use green_ctx_sys::{CUresult, Unsupported};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::calls::Reply;

/// An event that a child process reports to its parent as one JSON line. Facts are reported one by one, so that
/// those before a crash are known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// A case of this name begins.
    Begin(String),
    /// A fact of the answer.
    Fact(String, Value),
    /// The case could not be run: a step that it depends on failed.
    Failed(String),
    /// The driver lacks this function.
    Unsupported(String),
    /// The case is over.
    End,
}

/// Collects the facts of one case, and reports each immediately.
pub(crate) struct Answer<'a> {
    out: &'a mut dyn Write,
    error: Option<io::Error>,
}

impl<'a> Answer<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Answer<'a> {
        Answer { out, error: None }
    }

    /// Adds a fact. It must be the same in every run on the same driver, so pointers, times and amounts of free
    /// memory are not facts.
    pub(crate) fn add(&mut self, name: impl Into<String>, fact: impl Fact) {
        self.report(&Event::Fact(name.into(), fact.value()));
    }

    /// Reports an event. After a failure nothing more is reported, and [`finish`](Answer::finish) returns the error.
    pub(crate) fn report(&mut self, event: &Event) {
        if self.error.is_none() {
            self.error = self.write(event).err();
        }
    }

    fn write(&mut self, event: &Event) -> io::Result<()> {
        serde_json::to_writer(&mut *self.out, event)?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    /// Returns the error if an event could not be reported.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.error.map_or(Ok(()), Err)
    }
}

/// A value that can be part of an answer.
pub(crate) trait Fact {
    /// Returns its JSON form.
    fn value(self) -> Value;
}

impl Fact for Value {
    fn value(self) -> Value {
        self
    }
}

impl Fact for CUresult {
    fn value(self) -> Value {
        Value::String(self.to_string())
    }
}

impl<T> Fact for Reply<T> {
    fn value(self) -> Value {
        self.status.value()
    }
}

macro_rules! plain_facts {
    ($($type:ty),*) => {
        $(impl Fact for $type {
            fn value(self) -> Value {
                Value::from(self)
            }
        })*
    };
}

plain_facts!(bool, i32, u32, u64, usize, &str, String, Vec<u32>, Vec<Value>);

/// Why a case could not be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A step that the case depends on failed.
    #[error("{call}: {status}")]
    Call { call: &'static str, status: CUresult },
    /// The driver lacks a function.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The driver returned a result with which the case cannot continue.
    #[error("{0}")]
    Other(String),
}

/// The result of a case's body.
pub(crate) type Outcome = Result<(), Failure>;
