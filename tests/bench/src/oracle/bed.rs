//! Where a mix of jobs runs: on a device, in the tuner's model, or in another program.

use std::error::Error;

use green_ctx::Device;
use green_ctx::tune::{
    self, Block, Job, Measure, Model, Outcome, Pieces, Profile, Refusal, Request, Runner, Sample,
    Task,
};
use green_ctx_cli::jobs::{self, Builder};

use super::mix::Mix;
use crate::setup::Result;

/// Runs single blocks.
pub(super) trait Blocks {
    /// A block's sample, or why the task cannot run.
    fn block(&mut self, task: &Task, block: &Block) -> Result<std::result::Result<Sample, String>>;
}

impl<M> Blocks for M
where
    M: Measure,
    M::Error: Error + Send + Sync + 'static,
{
    fn block(&mut self, task: &Task, block: &Block) -> Result<std::result::Result<Sample, String>> {
        match self.run(task, block) {
            Ok(sample) => Ok(Ok(sample)),
            Err(Refusal::Skip(reason)) => Ok(Err(reason)),
            Err(Refusal::Stop(error)) => Err(error.into()),
        }
    }
}

/// What is measured in one go.
pub(super) type Work<'a> = dyn FnMut(&mut dyn Blocks) -> Result<()> + 'a;

/// A mix of jobs, and what runs them.
pub(super) trait Bed {
    fn pieces(&self) -> &Pieces;
    fn profiles(&self) -> Vec<Profile>;
    /// The program that runs the jobs, where it is not this one.
    fn about(&self) -> Option<&str> {
        None
    }
    /// Tunes the jobs as a program would: no partition exists before.
    fn tune(&mut self, request: &Request) -> Result<Outcome>;
    fn measure(&mut self, work: &mut Work<'_>) -> Result<()>;
}

/// On a device.
pub(super) struct Gpu {
    device: Device,
    jobs: Vec<Job>,
    profiles: Vec<Profile>,
    pieces: Pieces,
}

impl Gpu {
    pub(super) fn new(builder: &Builder, device: &Device, mix: &Mix) -> Result<Gpu> {
        let named = mix.names().into_iter().zip(mix.specs()?);
        let mut jobs = Vec::new();
        for (name, spec) in named {
            jobs.push(builder.job(&name, &spec)?);
        }
        let runner = Runner::new(device, &mut jobs)?;
        let (profiles, pieces) = (runner.profiles(), runner.pieces().clone());
        Ok(Gpu { device: device.clone(), jobs, profiles, pieces })
    }
}

impl Bed for Gpu {
    fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    fn profiles(&self) -> Vec<Profile> {
        self.profiles.clone()
    }

    fn tune(&mut self, request: &Request) -> Result<Outcome> {
        Ok(tune::run(&self.device, &mut self.jobs, request, &mut |_| true)?)
    }

    fn measure(&mut self, work: &mut Work<'_>) -> Result<()> {
        work(&mut Runner::new(&self.device, &mut self.jobs)?)
    }
}

/// In the model, whose clock goes as fast as it computes.
pub(super) struct Modelled {
    model: Model,
    profiles: Vec<Profile>,
    pieces: Pieces,
}

impl Modelled {
    pub(super) fn new(mix: &Mix, pieces: &Pieces) -> Result<Modelled> {
        let jobs = mix.specs()?.iter().map(|spec| jobs::model(spec, pieces)).collect();
        let model = Model::new(pieces.clone(), jobs, 1);
        let profiles = mix.names().into_iter().map(Profile::new).collect();
        Ok(Modelled { model, profiles, pieces: pieces.clone() })
    }
}

impl Bed for Modelled {
    fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    fn profiles(&self) -> Vec<Profile> {
        self.profiles.clone()
    }

    fn tune(&mut self, request: &Request) -> Result<Outcome> {
        let Modelled { model, profiles, pieces } = self;
        Ok(tune::with(model, profiles, pieces, request, &mut |_| true)?)
    }

    fn measure(&mut self, work: &mut Work<'_>) -> Result<()> {
        work(&mut self.model)
    }
}
