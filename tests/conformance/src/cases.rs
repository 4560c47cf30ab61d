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

/// One question to the driver.
pub struct Case {
    name: String,
    isolation: Isolation,
    needs: Needs,
    body: Body,
}

/// What a case does: it puts its calls and adds what came back.
type Body = Box<dyn Fn(&Gpu, &mut Answer<'_>) -> Outcome>;

/// Which process a case runs in; of a simulated driver, which driver, since a new one knows nothing of
/// those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// One that the cases of the same topic share.
    Shared,
    /// One of its own, since it may crash it, poison it or leave the driver in another state. How
    /// the process ends is part of the answer.
    Alone,
}

/// What is done before a case begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing, not even `cuInit`.
    Nothing,
    /// `cuInit`, and no context current.
    Init,
    /// The primary context retained and current, the stack otherwise empty.
    Primary,
}

impl Case {
    /// A case that shares its process and finds the primary context current.
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

    /// Gives the case a process of its own.
    fn alone(mut self) -> Case {
        self.isolation = Isolation::Alone;
        self
    }

    /// Says what is done before the case begins.
    fn needs(mut self, needs: Needs) -> Case {
        self.needs = needs;
        self
    }

    /// The case's name, `topic/question`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The topic: the name up to the first slash.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Which process the case runs in.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Puts the case to the driver.
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

/// Every case, in the order of a record.
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
        // Neighbours share a process, so those that want one of their own come last.
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
