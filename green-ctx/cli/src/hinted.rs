//! Arguments with some values that completions know.

use std::error::Error;
use std::ffi::OsStr;
use std::marker::PhantomData;
use std::str::FromStr;

use clap::builder::{PossibleValue, TypedValueParser};

/// Parses any text that the type accepts, and tells completions the given values.
#[derive(Clone)]
pub(crate) struct Hinted<T> {
    values: Vec<String>,
    of: PhantomData<fn() -> T>,
}

impl<T> Hinted<T> {
    pub(crate) fn new(values: impl IntoIterator<Item = impl Into<String>>) -> Hinted<T> {
        Hinted { values: values.into_iter().map(Into::into).collect(), of: PhantomData }
    }
}

impl<T> TypedValueParser for Hinted<T>
where
    T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        (|text: &str| text.parse::<T>()).parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.values.iter().cloned().map(PossibleValue::new)))
    }
}
