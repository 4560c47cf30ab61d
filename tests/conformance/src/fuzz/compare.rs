//! Comparing the answers of two drivers to the same programs.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::excluded::FAILING;
use super::execute::{ABSENT, Reply, SKIPPED};
use super::function::Kind;
use super::functions;
use super::model::Model;
use super::program::{Made, Program, Step};
use crate::record::{Header, HeaderLine};

/// The most differences, as one in so many calls.
const ALL: u64 = 10_000;
/// The same of a single function.
const EACH: u64 = 1_000;

/// What every call answers once work of the device has failed.
const FAILED_WORK: &str = "CUDA_ERROR_LAUNCH_FAILED";

/// A file of answers.
#[derive(Clone, Debug)]
pub struct Answers {
    /// Who answered.
    pub header: Header,
    /// The answers to each program.
    pub programs: BTreeMap<String, Vec<Reply>>,
}

impl Answers {
    /// Reads what [`run`](super::run()) wrote.
    ///
    /// # Errors
    ///
    /// A line that is not what it should be, with its number.
    pub fn parse(text: &str) -> Result<Answers, String> {
        let mut lines = text.lines().enumerate();
        let (_, first) = lines.next().ok_or("there are no answers")?;
        let HeaderLine { record: header } =
            serde_json::from_str(first).map_err(|error| format!("line 1: {error}"))?;
        let mut programs: BTreeMap<String, Vec<Reply>> = BTreeMap::new();
        for (index, line) in lines {
            let reply: Reply = serde_json::from_str(line)
                .map_err(|error| format!("line {}: {error}", index + 1))?;
            programs.entry(reply.program.clone()).or_default().push(reply);
        }
        Ok(Answers { header, programs })
    }

    /// The programs that were answered, up to the step that ended the process where one did.
    #[must_use]
    pub fn asked(&self) -> Vec<Program> {
        let steps = |replies: &[Reply]| replies.iter().map(|reply| reply.step.clone()).collect();
        let programs = self.programs.iter();
        programs
            .map(|(name, replies)| Program { name: name.clone(), steps: steps(replies) })
            .collect()
    }
}

/// How often a function was called, and how often its answers differed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Calls that both drivers answered and that depend on no difference.
    pub calls: u64,
    /// Those of them that succeeded with the first driver.
    pub successes: u64,
    /// Those of them that were answered differently.
    pub differences: u64,
    /// Calls that depend on an earlier difference, which are not compared.
    pub dependent: u64,
}

/// One step that two drivers answered differently.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The program, and the step with its arguments.
    #[serde(flatten)]
    pub first: Reply,
    /// The other driver's answer.
    pub second: Reply,
    /// How many steps the program has up to it.
    pub length: usize,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = |reply: &Reply| {
            let wrote: Vec<String> = reply.wrote.iter().map(ToString::to_string).collect();
            format!("{} {}", reply.status, wrote.join(" "))
        };
        let Step { step, call, args } = &self.first.step;
        let args = serde_json::to_string(args).map_err(|_| fmt::Error)?;
        writeln!(
            f,
            "seed {}, step {step} ({} steps): {call}{args}",
            self.first.program, self.length
        )?;
        write!(f, "  first:  {}\n  second: {}", answer(&self.first), answer(&self.second))
    }
}

/// What comes of a comparison.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    /// The functions that were called.
    pub functions: BTreeMap<String, Counts>,
    /// The differences, by program and step.
    pub differences: Vec<Difference>,
}

/// Compares two drivers' answers to the same programs.
///
/// # Errors
///
/// The name of a program that only one of them has, or that is another one there.
pub fn compare(first: &Answers, second: &Answers) -> Result<Comparison, String> {
    let names: BTreeSet<&String> = first.programs.keys().chain(second.programs.keys()).collect();
    let mut comparison = Comparison::default();
    for name in names {
        let (Some(one), Some(other)) = (first.programs.get(name), second.programs.get(name)) else {
            return Err(format!("only one driver answered program {name}"));
        };
        comparison.add(one, other)?;
    }
    Ok(comparison)
}

impl Comparison {
    fn add(&mut self, first: &[Reply], second: &[Reply]) -> Result<(), String> {
        // The steps whose values are not what they are with the other driver.
        let mut tainted: BTreeSet<u32> = BTreeSet::new();
        let mut ended = false;
        let (mut model, mut names) = (Model::default(), Names::default());
        // The memory of graphs that are gone, and the step in which they went.
        let mut gone: BTreeMap<Made, u32> = BTreeMap::new();
        for (index, (one, other)) in first.iter().zip(second).enumerate() {
            if one.step != other.step {
                return Err(format!("program {} is not the same in both", one.program));
            }
            let same = equal_status(one, other) && names.same(one, other, first, &model);
            // The driver may have given its address out again.
            let stale = one.step.uses().iter().any(|used| {
                let mut nodes = model.objects.iter().filter(|it| it.kind == Kind::AllocNode);
                let step = gone.get(&Made { place: 0, ..*used }).filter(|_| used.place > 0);
                step.is_some_and(|step| nodes.any(|node| node.made.step > *step))
            });
            if let Some(function) = functions::find(&one.step.call) {
                model.apply(function, &one.step);
            }
            let nodes = model.objects.iter().filter(|it| it.kind == Kind::AllocNode && !it.alive);
            nodes.for_each(|node| _ = gone.entry(node.made).or_insert(one.step.step));
            let made = |reply: &Reply| ![ABSENT, SKIPPED].contains(&reply.status.as_str());
            let uses: Vec<u32> = one.step.uses().iter().map(|made: &Made| made.step).collect();
            // It depends on time which call first reports that work has failed.
            ended |= [one, other].iter().any(|reply| reply.status == FAILED_WORK);
            let dependent = ended || stale || uses.iter().any(|step| tainted.contains(step));
            if !made(one) && !made(other) {
                continue;
            }
            let counts = self.functions.entry(one.step.call.clone()).or_default();
            let differs = !same;
            if dependent {
                counts.dependent += 1;
                tainted.insert(one.step.step);
            } else {
                counts.calls += 1;
                counts.successes += u64::from(one.status == "CUDA_SUCCESS");
                if differs {
                    counts.differences += 1;
                    let (first, second) = (one.clone(), other.clone());
                    self.differences.push(Difference { first, second, length: index + 1 });
                }
            }
            if differs {
                tainted.insert(one.step.step);
                tainted.extend(uses);
                ended |= changes_everything(&one.step.call);
            }
        }
        Ok(())
    }

    /// The sum over all functions.
    #[must_use]
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        for counts in self.functions.values() {
            total.calls += counts.calls;
            total.successes += counts.successes;
            total.differences += counts.differences;
            total.dependent += counts.dependent;
        }
        total
    }

    /// Whether fewer than one call in 10,000 was answered differently, and of no function more than one
    /// in 1,000.
    #[must_use]
    pub fn holds(&self) -> bool {
        let total = self.total();
        let all = total.differences == 0 || total.differences * ALL < total.calls;
        all && self.functions.values().all(|counts| counts.differences * EACH <= counts.calls)
    }

    /// The functions that were called fewer than `calls` times, or that succeeded in less than a fifth of
    /// their calls though they can succeed.
    #[must_use]
    pub fn rare(&self, calls: u64) -> Vec<&str> {
        let is_rare = |export: &&str| {
            // What no driver had is not in the table.
            let Some(counts) = self.functions.get(*export) else { return false };
            let cannot = FAILING.iter().any(|(name, _)| name == export);
            let called = counts.calls + counts.dependent;
            called < calls || (!cannot && counts.successes * 5 < counts.calls)
        };
        functions::FUNCTIONS.iter().map(|function| function.export).filter(is_rare).collect()
    }

    /// Of each seed the shortest program that differs in its last step.
    #[must_use]
    pub fn shortest(&self) -> Vec<&Difference> {
        let mut shortest: BTreeMap<&str, &Difference> = BTreeMap::new();
        for difference in &self.differences {
            let name = difference.first.program.as_str();
            let seed = name.split('/').next().unwrap_or(name);
            let known = shortest.entry(seed).or_insert(difference);
            if difference.length < known.length {
                *known = difference;
            }
        }
        shortest.into_values().collect()
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let functions = self.functions.iter().map(|(name, counts)| (name.as_str(), *counts));
        for (name, counts) in functions.chain([("all", self.total())]) {
            let Counts { calls, successes, differences, dependent } = counts;
            writeln!(f, "{name:<56} {calls:>8} {successes:>10} {differences:>12} {dependent:>10}")?;
        }
        Ok(())
    }
}

/// The names that two drivers have for the same handles. Where one gives out the address of what is gone
/// again, it has the former name, as long as only a call that listed handles told of it.
#[derive(Default)]
struct Names {
    /// The second driver's, by the first one's.
    known: BTreeMap<String, String>,
}

impl Names {
    /// Whether both wrote the same.
    fn same(&mut self, one: &Reply, other: &Reply, replies: &[Reply], model: &Model) -> bool {
        let is_same = |(a, b): (&Value, &Value)| {
            let (Some(first), Some(second)) = (a.as_str(), b.as_str()) else { return a == b };
            if let Some(known) = self.known.get(first) {
                return known == second;
            }
            let names = [first, second].map(|name| name.parse::<Made>().ok());
            if a == b || is_same_memory(names, model) {
                return true;
            }
            let stands_in = names.iter().flatten().any(|made| is_gone(*made, replies, model));
            if stands_in && names.iter().all(Option::is_some) {
                self.known.insert(first.to_owned(), second.to_owned());
            }
            stands_in
        };
        one.wrote.len() == other.wrote.len() && one.wrote.iter().zip(&other.wrote).all(is_same)
    }
}

/// Whether a name is one that a call gave when it listed what is gone now.
fn is_gone(made: Made, replies: &[Reply], model: &Model) -> bool {
    let maker = replies.iter().find(|reply| reply.step.step == made.step);
    model.find(made).is_none()
        && maker.is_some_and(|maker| !maker.step.uses().iter().all(|used| model.lives(*used)))
}

/// Whether both are memory of one graph, which may give an address out again after a node that frees it.
fn is_same_memory(names: [Option<Made>; 2], model: &Model) -> bool {
    let [one, other] =
        names.map(|made| made.and_then(|made| model.find(made)).map(|index| &model.objects[index]));
    let (Some(one), Some(other)) = (one, other) else { return false };
    [one, other].iter().all(|it| it.kind == Kind::GraphMemory) && one.graph == other.graph
}

/// Whether two answers to a step are the same.
pub(crate) fn equal(one: &Reply, other: &Reply) -> bool {
    equal_status(one, other) && one.wrote == other.wrote
}

/// Whether two statuses are the same. Whether work is over already depends on time.
fn equal_status(one: &Reply, other: &Reply) -> bool {
    let timed = ["cuStreamQuery", "cuEventQuery", "cuEventElapsedTime", "cuEventElapsedTime_v2"];
    let status = |reply: &Reply| {
        let pending = reply.status == "CUDA_ERROR_NOT_READY";
        if pending && timed.contains(&reply.step.call.as_str()) {
            "CUDA_SUCCESS".to_owned()
        } else {
            reply.status.clone()
        }
    };
    status(one) == status(other)
}

/// Whether what every later call answers may depend on this one: it changes what is current, what is
/// captured, or a setting of the device or its contexts.
fn changes_everything(call: &str) -> bool {
    let any = |parts: &[&str]| parts.iter().any(|part| call.contains(part));
    (call.starts_with("cuCtx")
        && any(&["Push", "Pop", "Set", "Create", "Destroy", "Attach", "Detach"]))
        || (call.contains("Capture") && any(&["Begin", "End", "Exchange"]))
        || (call.starts_with("cuDevice") && any(&["Set", "Retain", "Release"]))
        || matches!(call, "cuGreenCtxDestroy" | "cuInit")
}
