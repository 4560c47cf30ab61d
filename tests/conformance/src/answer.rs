//! The answer of a case: facts in the order in which the driver gave them.

use std::io::{self, Write};

use green_ctx_sys::{CUresult, Unsupported};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::calls::Reply;

/// What a child process reports to its parent, one JSON line each. It reports facts one by one, so
/// that those before a crash are known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// The case of this name begins.
    Begin(String),
    /// One fact of its answer.
    Fact(String, Value),
    /// The case could not be put to the driver: a step that it depends on failed.
    Failed(String),
    /// The driver lacks this function.
    Unsupported(String),
    /// The case is over.
    End,
}

/// Collects the facts of one case and passes each on at once.
pub(crate) struct Answer<'a> {
    out: &'a mut dyn Write,
    error: Option<io::Error>,
}

impl<'a> Answer<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Answer<'a> {
        Answer { out, error: None }
    }

    /// Adds a fact. Only what is the same in every run of the same driver is one: no pointers, no
    /// times, no amounts of free memory.
    pub(crate) fn add(&mut self, name: impl Into<String>, fact: impl Fact) {
        self.report(&Event::Fact(name.into(), fact.value()));
    }

    /// Reports an event; after a failure nothing more, and [`finish`](Answer::finish) returns it.
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

    /// Returns the error that kept an event from being reported.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.error.map_or(Ok(()), Err)
    }
}

/// What can stand in an answer.
pub(crate) trait Fact {
    /// Its JSON form.
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

/// Why a case could not be put to the driver.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A step that the case depends on failed.
    #[error("{call}: {status}")]
    Call { call: &'static str, status: CUresult },
    /// The driver lacks a function.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The driver answered something that the case cannot go on with.
    #[error("{0}")]
    Other(String),
}

/// What the body of a case returns.
pub(crate) type Outcome = Result<(), Failure>;
