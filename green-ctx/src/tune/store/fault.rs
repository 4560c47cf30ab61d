//! What is wrong with an outcome, which a file that was edited or copied may have.

use std::collections::BTreeMap;

use crate::ledger::Share;

use super::super::outcome::{ArmReport, BlockReport, Outcome};
use super::super::request::{Profile, Request};

/// Why nobody could use an outcome; `None` where it is sound.
pub(super) fn fault(outcome: &Outcome) -> Option<String> {
    of_request(outcome)
        .or_else(|| of_verdict(outcome))
        .or_else(|| outcome.arms.iter().find_map(|arm| of_arm(outcome, arm)))
        .or_else(|| of_numbers(outcome))
}

/// The jobs, the goal and the limits are those of a request that can be tuned.
fn of_request(outcome: &Outcome) -> Option<String> {
    let jobs = outcome.jobs.iter();
    let profiles: Vec<Profile> =
        jobs.map(|job| Profile::new(&job.name).arrival(job.arrival.clone())).collect();
    let mut request = Request::new(outcome.goal.clone()).step(outcome.limits.step);
    for (job, sms) in &outcome.limits.floors {
        request = request.floor(job, *sms);
    }
    for kind in &outcome.limits.left_out {
        request = request.leave_out(*kind);
    }
    request.check(&profiles, &outcome.pieces).err().map(|error| error.to_string())
}

fn of_verdict(outcome: &Outcome) -> Option<String> {
    let verdict = &outcome.verdict;
    let places = [verdict.arm, verdict.rival].into_iter().flatten();
    if let Some(place) = places.max().filter(|place| *place >= outcome.arms.len()) {
        return Some(format!("it names arm {place} of {}", outcome.arms.len()));
    }
    let is_arm = |arm: &ArmReport| {
        (arm.kind, &arm.shares, &arm.priority) == (verdict.kind, &verdict.shares, &verdict.priority)
    };
    if verdict.arm.is_some_and(|place| !is_arm(&outcome.arms[place])) {
        return Some("the verdict is not the arm that it names".to_owned());
    }
    of_shares(outcome, &verdict.shares)
}

fn of_arm(outcome: &Outcome, arm: &ArmReport) -> Option<String> {
    let jobs = outcome.jobs.len();
    let are_whole =
        |block: &BlockReport| (block.rates.len(), block.latencies_us.len()) == (jobs, jobs);
    if !arm.blocks.iter().all(are_whole) {
        return Some(format!("a block does not have figures of {jobs} jobs"));
    }
    of_shares(outcome, &arm.shares)
}

/// Each job has a floor and a ceiling, and there are SMs for all of them.
fn of_shares(outcome: &Outcome, shares: &BTreeMap<String, String>) -> Option<String> {
    let sms = outcome.pieces.sms;
    let mut floors = 0;
    for job in &outcome.jobs {
        let Some(text) = shares.get(&job.name) else {
            return Some(format!("{} has no share", job.name));
        };
        let share: Share = match text.parse() {
            Ok(share) => share,
            Err(error) => return Some(format!("the share of {}: {error}", job.name)),
        };
        let Some(floor) = share.floor() else {
            return Some(format!("the share {text} of {} has no floor in SMs", job.name));
        };
        if share.ceiling().unwrap_or(floor) > sms {
            return Some(format!("the share {text} of {} is more than {sms} SMs", job.name));
        }
        floors += u64::from(floor);
    }
    (floors > u64::from(sms)).then(|| format!("the floors are {floors} SMs together, of {sms}"))
}

fn of_numbers(outcome: &Outcome) -> Option<String> {
    let Outcome { verdict, jobs, arms, .. } = outcome;
    let blocks = || arms.iter().flat_map(|arm| &arm.blocks);
    let gains = [verdict.gain, verdict.confidence, verdict.upper].into_iter().flatten();
    let scores = arms.iter().filter_map(|arm| arm.score).chain(blocks().map(|block| block.score));
    if let Some(number) = gains.chain(scores).find(|number| !number.is_finite()) {
        return Some(format!("{number} is no gain and no score"));
    }
    let misses = arms.iter().map(|arm| &arm.miss).chain([&outcome.drift, &outcome.seconds]);
    let alone = jobs.iter().flat_map(|job| job.references.iter().chain(job.solo.values()));
    let rates = alone.chain(jobs.iter().map(|job| &job.rate));
    let rates = rates.chain(arms.iter().flat_map(|arm| arm.rates.values()));
    let rates = rates.chain(blocks().flat_map(|block| &block.rates));
    let times = blocks().flat_map(|block| block.latencies_us.iter().flatten());
    let times = times.chain(blocks().flat_map(|block| &block.rounds_us));
    let latencies = arms.iter().flat_map(|arm| arm.latency_us.values());
    let percentiles = latencies.flat_map(|latency| [Some(&latency.p50), latency.p99.as_ref()]);
    misses
        .chain(rates)
        .chain(times)
        .chain(percentiles.flatten())
        .find(|number| !(number.is_finite() && **number >= 0.0))
        .map(|number| format!("{number} is no rate and no time"))
}
