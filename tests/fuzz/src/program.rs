//! A failing run as a Rust program.

use std::collections::HashMap;

use crate::run::{Failure, Plan};
use crate::runner::Mode;
use crate::violation::Rule;

/// Returns whether the run can be repeated step by step: it runs on one thread, and ends.
#[must_use]
pub fn can_shrink(mode: Mode, failure: &Failure) -> bool {
    let repeats = !matches!(failure.violation.rule, Rule::Hang | Rule::Panic | Rule::Same);
    mode != Mode::Threads && repeats
}

/// The text before the program, which describes its environment.
const PREAMBLE: &str = "\
// `kernel` runs for as many simulated nanoseconds as its argument, on all SMs of its context. `launch`,
// `launch_default` and `launch_raw` submit it to a stream, to a context's default stream (by making the
// context current), and to a raw stream. Foreign streams are created with cuStreamCreate while the context
// is current. `adopt_owned` and `adopt_borrowed` are `Stream::from_raw_owned` and
// `Stream::from_raw_borrowed`; `true` gives the stream an owner whose drop creates a stream in the context. `wrap` and
// `wrap_context` wrap the handles of a kept stream and of its context.";

/// Renumbers the objects 1, 2 and so on, in order of appearance.
fn renumber(lines: &[String]) -> Vec<String> {
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut one = |line: &String| {
        let mut text = String::new();
        let mut rest = line.as_str();
        while let Some(at) = rest.find(|c: char| c.is_ascii_lowercase()) {
            let (before, word) = rest.split_at(at);
            text += before;
            let letters = word.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(word.len());
            let digits = word[letters..].find(|c: char| !c.is_ascii_digit());
            let end = digits.map_or(word.len(), |digits| letters + digits);
            let found = OBJECTS.iter().find(|object| **object == &word[..letters]);
            match found.filter(|_| end > letters) {
                Some(object) => {
                    let number = *known.entry(word[..end].to_owned()).or_insert_with(|| {
                        let count = counts.entry(object).or_default();
                        *count += 1;
                        *count
                    });
                    text += &format!("{object}{number}");
                }
                None => text += &word[..end],
            }
            rest = &word[end..];
        }
        text + rest
    };
    lines.iter().map(&mut one).collect()
}

/// The names of objects in programs.
const OBJECTS: [&str; 11] = [
    "group", "part", "context", "stream", "set", "plan", "foreign", "kept", "capture", "graph",
    "exec",
];

/// Returns a run that broke the promise as program text, one operation per line.
#[must_use]
pub fn print(plan: &Plan, failure: &Failure) -> String {
    let mut text = format!("{PREAMBLE}\n#[test]\nfn seed_{}() -> Outcome {{\n", plan.seed);
    text += &format!("    let sim = Sim::new({:?})?;\n", plan.spec);
    text += "    let device = Driver::simulated(&sim)?.device(0)?;\n";
    if failure.program.iter().any(|line| line.contains("cache.")) {
        text += "    let cache = GraphCache::new();\n";
    }
    for line in renumber(&failure.program) {
        text += &format!("    {line}\n");
    }
    text += &format!("    // {}\n    Ok(())\n}}", failure.violation);
    text
}
