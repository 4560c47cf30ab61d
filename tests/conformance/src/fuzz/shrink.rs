//! Making programs shorter that two drivers answer differently.

use std::collections::BTreeSet;

use super::program::Program;

/// The program without the steps of these numbers and without those that use what they made.
pub(crate) fn without(program: &Program, removed: &BTreeSet<u32>) -> Program {
    let mut removed = removed.clone();
    let mut kept = Vec::new();
    for step in &program.steps {
        if removed.contains(&step.step)
            || step.uses().iter().any(|made| removed.contains(&made.step))
        {
            removed.insert(step.step);
        } else {
            kept.push(step.clone());
        }
    }
    Program { name: program.name.clone(), steps: kept }
}

/// The program up to the step of this number.
pub(crate) fn up_to(program: &Program, step: u32) -> Program {
    let steps = program.steps.iter().take_while(|other| other.step <= step).cloned().collect();
    Program { name: program.name.clone(), steps }
}

/// The steps that the last one needs, and those of which it is unknown.
fn needed(program: &Program) -> BTreeSet<u32> {
    let mut needed: BTreeSet<u32> =
        program.steps.last().map(|last| last.step).into_iter().collect();
    for step in program.steps.iter().rev() {
        if needed.contains(&step.step) {
            needed.extend(step.uses().iter().map(|made| made.step));
        }
    }
    needed
}

/// Removes steps for as long as `differs` says that the last step still is answered differently.
///
/// # Errors
///
/// What `differs` fails with.
pub fn shrink<E>(
    program: &Program,
    mut differs: impl FnMut(&Program) -> Result<bool, E>,
) -> Result<Program, E> {
    let mut shortest = program.clone();
    let mut size = shortest.steps.len().div_ceil(2);
    while size > 0 {
        let mut end = shortest.steps.len().saturating_sub(1);
        while end > 0 {
            let begin = end.saturating_sub(size);
            let candidate = cut(&shortest, begin, end);
            if let Some(candidate) = candidate
                && differs(&candidate)?
            {
                shortest = candidate;
            }
            end = begin.min(shortest.steps.len().saturating_sub(1));
        }
        size /= 2;
    }
    Ok(shortest)
}

/// The program without the steps from `begin` to `end`, unless the last one needs any of them.
fn cut(program: &Program, begin: usize, end: usize) -> Option<Program> {
    let needed = needed(program);
    let steps = program.steps.get(begin..end)?.iter().map(|step| step.step);
    let removed: BTreeSet<u32> = steps.filter(|step| !needed.contains(step)).collect();
    (!removed.is_empty()).then(|| without(program, &removed))
}

/// Shorter forms of a program to be put to a driver that is not at hand, all in one run: what its last
/// step needs alone, and the program without a half, a quarter, and so on down to single steps. Where
/// there are more than `most`, the shorter ones of each size are left out.
#[must_use]
pub fn candidates(program: &Program, most: usize) -> Vec<Program> {
    let needed = needed(program);
    let others = program.steps.iter().map(|step| step.step);
    let others: BTreeSet<u32> = others.filter(|step| !needed.contains(step)).collect();
    let mut found = vec![program.clone(), without(program, &others)];
    // What changes the state of the thread or of a shared object comes back, from the end.
    let others: Vec<u32> = others.into_iter().collect();
    let mut size = others.len().div_ceil(2);
    while size > 0 && found.len() < most {
        for part in others.chunks(size) {
            // Without this part, and with this part alone.
            found.push(without(program, &part.iter().copied().collect()));
            let rest = others.iter().copied().filter(|step| !part.contains(step));
            found.push(without(program, &rest.collect()));
        }
        size /= 2;
    }
    found.truncate(most);
    let mut seen = Vec::new();
    found.retain(|candidate| {
        let steps: Vec<u32> = candidate.steps.iter().map(|step| step.step).collect();
        let new = !seen.contains(&steps);
        seen.push(steps);
        new
    });
    for (number, candidate) in found.iter_mut().enumerate() {
        candidate.name = format!("{}/{number}", program.name);
    }
    found
}
