//! How many iterations a block has, of a duration that is wanted.

use std::collections::HashMap;
use std::time::Duration;

use super::super::arm::Arm;
use super::super::arrival::{Arrival, Moments};
use super::super::measure::{Block, Counts, Sample, Task};
use super::super::request::Profile;
use super::super::runner::longest;
use super::super::stats::median;

/// What is known of how fast jobs are.
pub(super) struct Rates {
    arrivals: Vec<Arrival>,
    sms: u32,
    /// Each job's iterations a second in a plain stream.
    plain: Vec<Option<f64>>,
    /// Iterations a second of each job of a task, and the seconds of a round.
    tasks: HashMap<Task, (Vec<f64>, Option<f64>)>,
}

/// Whatever rates say, no block has more iterations of a job.
const MOST: f64 = 1e6;

impl Rates {
    pub(super) fn of(jobs: &[Profile], sms: u32) -> Rates {
        let arrivals = jobs.iter().map(|job| job.arrival.clone()).collect();
        Rates { arrivals, sms, plain: vec![None; jobs.len()], tasks: HashMap::new() }
    }

    pub(super) fn learn(&mut self, task: &Task, sample: &Sample) {
        let rates: Vec<f64> = sample.jobs.iter().map(|job| job.rate).collect();
        if let (Task::Alone { job, sms: None }, [rate]) = (task, &rates[..]) {
            self.plain[*job] = Some(*rate);
        }
        let round = median(&sample.rounds_us).map(|time| 1e-6 * time);
        self.tasks.insert(task.clone(), (rates, round));
    }

    /// The counts with which a task runs for about as long as a block should. Of what never ran there are as few
    /// as are wanted at least.
    pub(super) fn counts(&self, task: &Task, block: &Block) -> Counts {
        let jobs = match task {
            Task::Alone { job, .. } => *job..*job + 1,
            Task::Together(_) => 0..self.arrivals.len(),
        };
        let iterations = if block.rounds {
            vec![self.rounds(task, block); jobs.len()]
        } else {
            let places = jobs.enumerate();
            places.map(|(place, job)| self.iterations(task, block, place, job)).collect()
        };
        Counts { iterations, rounds: block.rounds, first: block.first, start: block.start }
    }

    fn rounds(&self, task: &Task, block: &Block) -> u64 {
        let known = self.tasks.get(task).and_then(|(_, round)| *round);
        // One after the other at most.
        let predicted = || self.plain.iter().map(|rate| Some(1.0 / (*rate)?)).sum::<Option<f64>>();
        count(block, known.or_else(predicted).map(|seconds| 1.0 / seconds))
    }

    fn iterations(&self, task: &Task, block: &Block, place: usize, job: usize) -> u64 {
        if let Some(moments) = self.arrivals[job].moments(block.start) {
            return arrivals(moments, block);
        }
        let known = self.tasks.get(task).and_then(|(rates, _)| rates.get(place).copied());
        count(block, known.or_else(|| Some(self.plain[job]? * self.part(task, job))))
    }

    /// Which part of its rate in a plain stream a job has, by its part of the SMs.
    fn part(&self, task: &Task, job: usize) -> f64 {
        let sms = f64::from(self.sms.max(1));
        match task {
            Task::Alone { sms: Some(count), .. } => (f64::from(*count) / sms).min(1.0),
            Task::Alone { sms: None, .. } => 1.0,
            Task::Together(arm) => {
                let ceilings = |arm: &Arm| arm.parts().iter().map(|part| part.ceiling).sum::<u32>();
                let own = arm.parts().get(job).map_or(0, |part| part.ceiling);
                f64::from(own) / f64::from(ceilings(arm)).max(sms)
            }
        }
    }
}

fn count(block: &Block, rate: Option<f64>) -> u64 {
    let least = u64::from(block.iterations).max(1);
    let wanted = rate.map_or(0.0, |rate| (rate * block.duration.as_secs_f64()).ceil());
    (wanted.clamp(0.0, MOST) as u64).max(least)
}

/// The iterations that arrive in a block: at least as many as are wanted, but those that arrive much later are
/// left out, as they are where the clock ends a block.
fn arrivals(moments: Moments, block: &Block) -> u64 {
    let until = |end: Duration| {
        let end = end.as_secs_f64();
        moments.clone().take(MOST as usize).take_while(move |moment| *moment < end)
    };
    let least = until(longest(block.duration)).take(block.iterations as usize).count();
    until(block.duration).count().max(least) as u64
}

#[cfg(test)]
mod tests {
    use super::super::super::measure::JobSample;
    use super::*;

    fn block(milliseconds: u64) -> Block {
        let duration = Duration::from_millis(milliseconds);
        Block { duration, iterations: 2, rounds: false, first: 1, start: Duration::ZERO }
    }

    fn sample(rates: &[f64]) -> Sample {
        let job = |rate: &f64| JobSample { rate: *rate, ..JobSample::default() };
        Sample { jobs: rates.iter().map(job).collect(), rounds_us: Vec::new() }
    }

    #[test]
    fn counts_are_of_what_is_known() {
        let jobs = [Profile::new("a"), Profile::new("b")];
        let mut rates = Rates::of(&jobs, 132);
        let counts = |rates: &Rates, task: &Task| rates.counts(task, &block(100)).iterations;
        let (alone, half) = (|job, sms| Task::Alone { job, sms }, Arm::ceilings([33, 99], 132));
        let together = Task::Together(half);
        assert_eq!(counts(&rates, &together), [2, 2]);
        assert_eq!(counts(&rates, &alone(1, None)), [2]);
        rates.learn(&alone(0, None), &sample(&[1000.0]));
        rates.learn(&alone(1, None), &sample(&[400.0]));
        assert_eq!(counts(&rates, &alone(0, None)), [100]);
        assert_eq!(counts(&rates, &alone(1, Some(33))), [10]);
        assert_eq!(counts(&rates, &together), [25, 30]);
        assert_eq!(counts(&rates, &Task::Together(Arm::streams(2, 132))), [50, 20]);
        rates.learn(&together, &sample(&[10.0, f64::INFINITY]));
        assert_eq!(counts(&rates, &together), [2, 1_000_000]);
        let rounds = Block { rounds: true, ..block(100) };
        let streams = Task::Together(Arm::streams(2, 132));
        // 1 ms and 2.5 ms.
        assert_eq!(rates.counts(&streams, &rounds).iterations, [29, 29]);
        rates.learn(&streams, &Sample { rounds_us: vec![2000.0], ..sample(&[500.0, 500.0]) });
        let counts = rates.counts(&streams, &rounds);
        assert_eq!((counts.iterations, counts.rounds, counts.first), (vec![50, 50], true, 1));
    }

    #[test]
    fn arrivals_are_those_of_the_duration() {
        let of = |arrival: Arrival, milliseconds| {
            let jobs = [Profile::new("a").arrival(arrival)];
            let task = Task::Alone { job: 0, sms: None };
            Rates::of(&jobs, 132).counts(&task, &block(milliseconds)).iterations[0]
        };
        assert_eq!(of(Arrival::rate(1000.0), 100), 100);
        assert_eq!(of(Arrival::rate(1000.0), 0), 2);
        // The second one comes after 10 s, which is too late.
        assert_eq!(of(Arrival::rate(0.1), 100), 1);
        let late = Arrival::trace([50.0, 60.0]).expect("a trace");
        assert_eq!(of(late, 100), 0);
        assert_eq!(of(Arrival::rate(1e6), 3000), 1_000_000);
    }
}
