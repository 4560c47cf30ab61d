//! The cases, topic by topic.

mod capture;
mod composition;
mod context;
mod event;
mod fence;
mod function;
mod graph;
mod launch;
mod library;
mod lifetime;
mod memory;
mod misuse;
mod occupancy;
mod poison;
mod resource;
mod split;
mod stream;
mod symbols;
mod transfer;

use crate::answer::{Answer, Failure, Outcome};
use crate::gpu::Gpu;

/// A case: a question to the driver.
pub struct Case {
    name: String,
    isolation: Isolation,
    needs: Needs,
    body: Body,
}

/// The body of a case: makes driver calls, and adds their results as facts.
type Body = Box<dyn Fn(&Gpu, &mut Answer<'_>) -> Outcome>;

/// The process that a case runs in. For a simulated driver a new driver replaces a new process, since it has no
/// state of earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// A process shared with other cases of the topic.
    Shared,
    /// A separate process, since the case may crash the process, poison its device, or change the driver's
    /// state. How the process ends is part of the answer.
    Alone,
}

/// The preparation before a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// None, not even `cuInit`.
    Nothing,
    /// `cuInit`; no context is current.
    Init,
    /// The primary context is retained and is the only one on the stack.
    Primary,
}

impl Case {
    /// Creates a case that runs in a shared process with the primary context current.
    fn new(
        name: impl Into<String>,
        body: impl Fn(&Gpu, &mut Answer<'_>) -> Outcome + 'static,
    ) -> Case {
        Case {
            name: name.into(),
            isolation: Isolation::Shared,
            needs: Needs::Primary,
            body: Box::new(body),
        }
    }

    /// Gives the case a separate process.
    fn alone(mut self) -> Case {
        self.isolation = Isolation::Alone;
        self
    }

    /// Sets the preparation before the case.
    fn needs(mut self, needs: Needs) -> Case {
        self.needs = needs;
        self
    }

    /// Returns the case's name, `topic/question`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the topic: the name up to the first slash.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Returns which process the case runs in.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Prepares and runs the case.
    pub(crate) fn ask(&self, gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
        self.prepare(gpu)?;
        (self.body)(gpu, answer)
    }

    fn prepare(&self, gpu: &Gpu) -> Result<(), Failure> {
        if self.needs == Needs::Nothing {
            return Ok(());
        }
        gpu.cuInit().must()?;
        gpu.clear_current()?;
        if self.needs == Needs::Primary {
            gpu.push(gpu.primary()?)?;
        }
        Ok(())
    }
}

/// Returns all cases, in the order of a record.
#[must_use]
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for topic in [
        symbols::cases,
        resource::cases,
        split::cases,
        context::cases,
        stream::cases,
        event::cases,
        launch::cases,
        composition::cases,
        memory::cases,
        memory::copy::cases,
        memory::fill::cases,
        memory::host::cases,
        memory::pool::cases,
        memory::pointer::cases,
        memory::ipc::cases,
        misuse::cases,
        poison::cases,
        lifetime::cases,
        fence::cases,
        capture::cases,
        library::cases,
        function::cases,
        occupancy::cases,
        graph::cases,
        transfer::cases,
    ] {
        let mut topic = topic();
        // Adjacent cases share a process, so those with a separate one come last.
        topic.sort_by_key(|case| case.isolation == Isolation::Alone);
        cases.extend(topic);
    }
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_have_a_topic() {
        let cases = all();
        let names: BTreeSet<&str> = cases.iter().map(Case::name).collect();
        assert_eq!(names.len(), cases.len());
        assert!(cases.iter().all(|case| case.name.contains('/')));
    }

    #[test]
    fn there_are_enough() {
        assert!(all().len() >= 300);
    }
}
