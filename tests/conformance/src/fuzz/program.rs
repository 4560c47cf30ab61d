//! Programs: fixed lists of calls whose arguments are symbols, so that every driver runs the same ones.

use core::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A list of calls. A handle in it is "what that step wrote", whatever that was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The seed it was made from; after a slash, which reduction of that program it is.
    pub name: String,
    /// The calls, in their order.
    pub steps: Vec<Step>,
}

/// One call of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its number in the program that the seed gives. Reduced programs keep it.
    pub step: u32,
    /// The function, under the name that a library exports it by.
    pub call: String,
    /// Its arguments, from left to right.
    pub args: Vec<Arg>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Arg {
    /// An integer, or the null pointer.
    Number(u64),
    /// A name for something that only the process knows.
    Symbol(Symbol),
    /// The address of a structure or an array, zero but for its fields.
    Buffer(Buffer),
}

/// Memory that is passed by its address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Its size in bytes.
    pub size: usize,
    /// What stands in it: offset and width in bytes, and the value.
    pub at: Vec<(usize, usize, Arg)>,
}

/// A value that differs from process to process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Symbol {
    /// What a step wrote.
    Made(Made),
    /// The address of memory for what the driver writes.
    Out,
    /// The address of this text, with a null byte at its end.
    Text(String),
    /// This many bytes into pageable memory of the process.
    Host(usize),
    /// A function without effect, as `CUhostFn`.
    Callback,
    /// A function without effect, as `CUstreamCallback`.
    StreamCallback,
    /// The PTX text of the kernels.
    Image,
    /// The path of a file with that text.
    File,
}

/// A value that a step wrote: the step, and which of the values that it writes, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Made {
    /// The step's number.
    pub step: u32,
    /// Which of its values.
    pub place: u32,
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            0 => write!(f, "#{}", self.step),
            place => write!(f, "#{}.{place}", self.step),
        }
    }
}

impl FromStr for Made {
    type Err = String;

    fn from_str(text: &str) -> Result<Made, String> {
        let number =
            |text: &str| text.parse().map_err(|_| format!("{text} is no number of a step"));
        let name = text.strip_prefix('#').ok_or_else(|| format!("{text} names no step"))?;
        let (step, place) = name.split_once('.').unwrap_or((name, "0"));
        Ok(Made { step: number(step)?, place: number(place)? })
    }
}

impl From<Symbol> for String {
    fn from(symbol: Symbol) -> String {
        match symbol {
            Symbol::Made(made) => made.to_string(),
            Symbol::Out => "out".to_owned(),
            Symbol::Text(text) => format!("text:{text}"),
            Symbol::Host(offset) => format!("host:{offset}"),
            Symbol::Callback => "callback".to_owned(),
            Symbol::StreamCallback => "stream callback".to_owned(),
            Symbol::Image => "image".to_owned(),
            Symbol::File => "file".to_owned(),
        }
    }
}

impl TryFrom<String> for Symbol {
    type Error = String;

    fn try_from(text: String) -> Result<Symbol, String> {
        if let Some(text) = text.strip_prefix("text:") {
            return Ok(Symbol::Text(text.to_owned()));
        }
        if let Some(offset) = text.strip_prefix("host:") {
            return offset.parse().map(Symbol::Host).map_err(|_| format!("{offset} is no offset"));
        }
        match text.as_str() {
            "out" => Ok(Symbol::Out),
            "callback" => Ok(Symbol::Callback),
            "stream callback" => Ok(Symbol::StreamCallback),
            "image" => Ok(Symbol::Image),
            "file" => Ok(Symbol::File),
            text => text.parse().map(Symbol::Made),
        }
    }
}

impl Arg {
    /// The null pointer.
    pub(crate) const NULL: Arg = Arg::Number(0);

    pub(crate) const OUT: Arg = Arg::Symbol(Symbol::Out);

    pub(crate) fn text(text: &str) -> Arg {
        Arg::Symbol(Symbol::Text(text.to_owned()))
    }

    pub(crate) fn host(offset: usize) -> Arg {
        Arg::Symbol(Symbol::Host(offset))
    }

    pub(crate) fn made(made: Made) -> Arg {
        Arg::Symbol(Symbol::Made(made))
    }

    /// A structure of `size` bytes with these fields.
    pub(crate) fn buffer(size: usize, at: Vec<(usize, usize, Arg)>) -> Arg {
        Arg::Buffer(Buffer { size, at })
    }

    /// The values of other steps in it.
    pub(crate) fn uses(&self) -> Vec<Made> {
        match self {
            Arg::Symbol(Symbol::Made(made)) => vec![*made],
            Arg::Buffer(buffer) => buffer.at.iter().flat_map(|(_, _, arg)| arg.uses()).collect(),
            _ => Vec::new(),
        }
    }
}

impl Step {
    /// The values of other steps among its arguments.
    pub(crate) fn uses(&self) -> Vec<Made> {
        self.args.iter().flat_map(Arg::uses).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_back() {
        let made = Arg::made(Made { step: 7, place: 2 });
        let args = vec![
            Arg::NULL,
            Arg::Number(u64::MAX),
            Arg::OUT,
            Arg::text("empty"),
            Arg::host(64),
            Arg::Symbol(Symbol::Callback),
            Arg::Symbol(Symbol::StreamCallback),
            Arg::Symbol(Symbol::Image),
            Arg::Symbol(Symbol::File),
            Arg::buffer(16, vec![(0, 8, made.clone()), (8, 4, Arg::Number(3))]),
        ];
        let text = serde_json::to_string(&args).expect("arguments are plain data");
        let read: Vec<Arg> = serde_json::from_str(&text).expect("it was just written");
        assert_eq!(read, args);
        assert_eq!(args[9].uses(), [Made { step: 7, place: 2 }]);
        assert!(serde_json::from_str::<Arg>("\"#x\"").is_err());
    }
}
