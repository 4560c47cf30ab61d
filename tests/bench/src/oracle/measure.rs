//! One mix: the grid, and then goal by goal the tuner and the comparison.

use std::path::Path;

use green_ctx::tune::{Goal, Request, Sample};

use super::Oracle;
use super::bed::Bed;
use super::file::{ArmRecord, BlockRecord, Combination, MixFile, TunerRecord};
use super::goals::Alone;
use super::grid::{self, Measured};
use super::stats::median;
use super::{finals, judge};
use crate::progress::Progress;
use crate::setup::{Result, chain};

/// Measures a mix, and writes its file whenever there is more to be kept. Whether there is a comparison
/// for each goal.
pub(super) fn run(
    bed: &mut dyn Bed,
    mut file: MixFile,
    options: &Oracle,
    out: &Path,
    progress: &Progress,
) -> Result<bool> {
    let began = progress.seconds();
    let (profiles, pieces) = (bed.profiles(), bed.pieces().clone());
    let arms = grid::arms(options, &profiles, &pieces)?;
    progress.step(&format!("  each job alone, and {} arms", arms.len()));
    let (mut alone, mut measured) = (Vec::new(), Vec::new());
    bed.measure(&mut |blocks| {
        let samples = grid::alone(blocks, profiles.len(), pieces.sms, options.final_block())?;
        for (job, samples) in file.jobs.iter_mut().zip(&samples) {
            let found = of_alone(&job.name, samples)?;
            (job.rate, job.p99_us) = (found.rate, found.p99_us);
            job.blocks = samples.iter().map(BlockRecord::of).collect();
            alone.push(found);
        }
        measured = grid::measure(blocks, arms.clone(), options, progress)?;
        Ok(())
    })?;
    file.arms = measured.iter().map(ArmRecord::of).collect();
    file.seconds = progress.seconds() - began;
    file.save(out)?;
    for template in &options.goals {
        for goal in template.goals(&alone, &measured)? {
            progress.step(&format!("  {goal}"));
            let mut combination = Combination {
                template: template.to_string(),
                goal: goal.clone(),
                tuner: None,
                repeats: Vec::new(),
                finalists: Vec::new(),
                error: None,
            };
            if let Err(failure) =
                combine(bed, &mut combination, &alone, &measured, options, progress)
            {
                progress.step(&format!("    failed: {}", chain(&*failure)));
                combination.error = Some(chain(&*failure));
            } else if let Some(judged) = judge(&combination.finalists) {
                let arm = &combination.finalists[judged.chosen].arm;
                let (arm, regret) = (file.describe(arm), 100.0 * judged.regret.middle);
                progress.step(&format!("    {arm}: regret {regret:.1} %"));
            }
            file.combinations.push(combination);
            file.seconds = progress.seconds() - began;
            file.save(out)?;
        }
    }
    Ok(file.combinations.iter().all(|combination| combination.error.is_none()))
}

/// What is known of a job alone.
fn of_alone(name: &str, samples: &[Sample]) -> Result<Alone> {
    let rates: Vec<f64> = samples.iter().map(|sample| sample.jobs[0].rate).collect();
    let found = median(&rates).zip(grid::percentile(samples, 0));
    let (rate, p99_us) = found.ok_or_else(|| format!("{name} has no rate alone"))?;
    Ok(Alone { name: name.to_owned(), rate, p99_us })
}

/// Tunes the mix, as often as is wanted, and compares the choices with the oracle's.
fn combine(
    bed: &mut dyn Bed,
    combination: &mut Combination,
    alone: &[Alone],
    grid: &[Measured],
    options: &Oracle,
    progress: &Progress,
) -> Result<()> {
    let goal: &Goal = &combination.goal;
    let request = Request::new(goal.clone()).budget(options.tuner_budget()?);
    let request = request.step(options.tuner_step);
    let scorer = finals::scorer(goal, alone)?;
    let mut choices = Vec::new();
    for search in 0..options.repeat.max(1) {
        progress.at(search, options.repeat);
        let outcome = bed.tune(&request)?;
        let chosen = outcome.chosen()?;
        let record = TunerRecord::of(&outcome, &chosen);
        match combination.tuner {
            None => combination.tuner = Some(record),
            Some(_) => combination.repeats.push(record),
        }
        choices.push(chosen);
    }
    let mut finalists = Vec::new();
    bed.measure(&mut |blocks| {
        let candidates = finals::candidates(&choices, grid, &scorer);
        finalists = finals::compare(blocks, candidates, &scorer, options)?;
        Ok(())
    })?;
    combination.finalists = finalists;
    Ok(())
}
