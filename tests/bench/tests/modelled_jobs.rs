//! A program for `oracle --program`: jobs of the tuner's model under names of its own.
//!
//! `modelled-jobs FILE [HOW]` adds lines to the file, one with its process id and one each time that it begins
//! again, and fails on purpose where it is asked to: see [`How`].

#![deny(unsafe_code)]

use std::error::Error;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

use green_ctx::tune::{Model, ModelJob, Pieces, answer};
use serde_json::{Value, json};

/// An H200's.
const PIECES: Pieces = Pieces { sms: 132, unit: 8, odd: 12 };

/// What goes wrong.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Nothing.
    Well,
    /// It runs on another device than it should.
    Elsewhere,
    /// The first line is none of the protocol's.
    Chatters,
    /// It ends at some block with status 7.
    Ends(usize),
    /// It answers some block with what is no answer.
    Rambles(usize),
    /// It says at some block that nothing can run any more.
    Stops(usize),
    /// It does not answer some block, nor end when nothing more is asked.
    Hangs(usize),
}

fn how(text: Option<&str>) -> Result<How, Box<dyn Error>> {
    let Some(text) = text else { return Ok(How::Well) };
    let (name, block) = text.split_once(':').unwrap_or((text, "0"));
    let block = block.parse()?;
    Ok(match name {
        "elsewhere" => How::Elsewhere,
        "chatters" => How::Chatters,
        "ends" => How::Ends(block),
        "rambles" => How::Rambles(block),
        "stops" => How::Stops(block),
        "hangs" => How::Hangs(block),
        _ => return Err(format!("{text}?").into()),
    })
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().ok_or("a file is missing")?;
    let mut notes = OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(notes, "{}", std::process::id())?;
    let how = how(arguments.get(1).map(String::as_str))?;
    let say = |line: String| -> io::Result<()> {
        let mut output = io::stdout().lock();
        output.write_all(line.as_bytes())?;
        output.write_all(b"\n")?;
        output.flush()
    };
    if how == How::Chatters {
        say("Loading jobs ...".to_owned())?;
    }
    let device = if how == How::Elsewhere { "NVIDIA H100 80GB HBM3" } else { "NVIDIA H200" };
    say(json!({ "device": device, "sms": PIECES.sms, "about": "made-up jobs 1.0" }).to_string())?;
    let (mut model, mut blocks) = (None, 0);
    for line in io::stdin().lock().lines() {
        let line = line?;
        let asked: Value = serde_json::from_str(&line)?;
        if asked == "again" {
            writeln!(notes, "again")?;
            say(json!("ready").to_string())?;
            continue;
        }
        if let Some(jobs) = asked["prepare"].as_array() {
            let found: Result<Vec<ModelJob>, String> = jobs.iter().map(job).collect();
            say(match found {
                Ok(jobs) => {
                    model = Some(Model::new(PIECES, jobs, 1));
                    json!("ready").to_string()
                }
                Err(reason) => json!({ "refused": reason }).to_string(),
            })?;
            continue;
        }
        blocks += 1;
        match how {
            How::Ends(at) if at == blocks => return Ok(ExitCode::from(7)),
            How::Rambles(at) if at == blocks => say("{}".to_owned())?,
            How::Stops(at) if at == blocks => say(json!({ "stop": "it is too hot" }).to_string())?,
            How::Hangs(at) if at == blocks => loop {
                std::thread::sleep(Duration::from_secs(60));
            },
            _ => say(answer(model.as_mut().ok_or("no mix was prepared")?, &line)?)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A job by its name and size: `waves:BLOCKS`, `reads:MICROSECONDS`.
fn job(named: &Value) -> Result<ModelJob, String> {
    let text = named[1].as_str().unwrap_or_default();
    let (kind, size) = text.split_once(':').unwrap_or((text, "400"));
    let size: u32 = size.parse().map_err(|_| format!("{size:?} is no size"))?;
    let mut job = ModelJob::default();
    match kind {
        "waves" => (job.blocks, job.block_us) = (size, 50.0),
        "reads" => (job.blocks, job.block_us, job.memory_us) = (1056, 2.0, f64::from(size)),
        _ => return Err(format!("no job is named {kind}; there are waves and reads")),
    }
    Ok(job)
}
