//! Bounds, and the noise about them.

use super::*;

/// A measure whose percentiles are what a function says of each arm, with a scatter from block to block.
struct Latencies {
    us: fn(&Arm) -> f64,
    scatter: f64,
    rng: Rng,
    now: Duration,
}

impl Measure for Latencies {
    type Error = Infallible;

    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<Infallible>> {
        self.now += block.duration;
        let mut job = |us: f64| {
            let us = us * (1.0 + self.scatter * (self.rng.f64() - 0.5));
            let latencies_us = vec![us; (block.duration.as_secs_f64() * 1e6 / us) as usize + 1];
            JobSample { rate: 1e6 / us, latencies_us, host_us: 1.0 }
        };
        let jobs = match task {
            Task::Alone { .. } => vec![job(50.0)],
            Task::Together(arm) => vec![job((self.us)(arm)), job(100.0)],
        };
        Ok(Sample { jobs, rounds_us: Vec::new() })
    }

    fn now(&self) -> Duration {
        self.now
    }
}

#[test]
fn noise_about_a_bound_is_no_reason_to_partition() {
    let jobs = ["a", "b"].map(Profile::new);
    let tune = |us: fn(&Arm) -> f64, scatter, goal, seed| {
        let rng = Rng::with_seed(seed);
        let mut latencies = Latencies { us, scatter, rng, now: Duration::ZERO };
        let request = Request::new(goal);
        let outcome = with(&mut latencies, &jobs, &H200, &request, &mut |_| true);
        outcome.expect("it runs").verdict
    };
    // Every arm lies on the bound, and the scatter decides on which side.
    let keep = |percentile| Goal::keep("a", percentile, 500.0);
    let dont = (0..20).filter(|seed| {
        let verdict = tune(|_| 500.0, 0.02, keep(0.5), *seed);
        verdict.sentence.starts_with("Don't partition; use ")
    });
    assert!(dont.count() >= 19);
    // One that misses it by more than noise is no rival.
    let us: fn(&Arm) -> f64 = |arm| if arm.kind() == ArmKind::Partition { 490.0 } else { 506.0 };
    let verdict = tune(us, 0.002, keep(0.99), 1);
    assert_eq!((verdict.kind, verdict.gain), (ArmKind::Partition, None));
    assert!(verdict.sentence.contains("with p99 of a at 490 µs (95 %:"), "{}", verdict.sentence);
    assert!(verdict.sentence.contains("Nothing without partitions meets"), "{}", verdict.sentence);
    // Of few iterations nobody knows a percentile.
    let verdict = tune(|_| 20_000.0, 0.02, Goal::keep("a", 0.99, 50_000.0), 1);
    assert!(!verdict.meets && verdict.gain.is_none());
    assert!(verdict.sentence.starts_with("Too few iterations to know"), "{}", verdict.sentence);
    // The gain of a percentile is that of all iterations, and not of each block's few.
    let us: fn(&Arm) -> f64 = |arm| if arm.kind() == ArmKind::Partition { 1000.0 } else { 1250.0 };
    let verdict = tune(us, 0.01, Goal::least("a", 0.99, "b", 0.4), 1);
    assert!(verdict.gain.is_some_and(|gain| (gain - 0.25).abs() < 0.02), "{verdict:?}");
}
