//! The search on pairs of made-up jobs, of which the best arm is known.

use std::time::Duration;

use fastrand::Rng;

use super::stats::median;
use super::*;

const H200: Pieces = Pieces { sms: 132, unit: 8, odd: 12 };

/// A job of some kind: bound by arithmetic or by memory, of few large blocks or many small ones.
fn made_up(rng: &mut Rng) -> ModelJob {
    let block_us = *rng.choice(&[2.0, 5.0, 20.0, 60.0, 150.0]).expect("some");
    let waves = 0.3 + 6.0 * rng.f64();
    let blocks = (132.0 * waves) as u32 + 1;
    let compute = waves * block_us;
    let memory_us =
        if rng.bool() { compute * (0.5 + rng.f64()) } else { compute * 0.2 * rng.f64() };
    let weight = block_us.sqrt();
    ModelJob { blocks, block_us, memory_us, weight, ..ModelJob::default() }
}

fn pair(seed: u64) -> Model {
    let mut rng = Rng::with_seed(seed);
    let jobs = vec![made_up(&mut rng), made_up(&mut rng)];
    Model::new(H200, jobs, seed)
}

fn profiles() -> [Profile; 2] {
    [Profile::new("a"), Profile::new("b")]
}

/// What an arm is worth to throughput when nothing scatters.
fn worth(model: &Model, arm: &Arm) -> f64 {
    let times = model.times(arm);
    (0..times.len()).map(|job| model.time_alone(job, H200.sms) / times[job]).sum()
}

/// The arm that an outcome chose.
fn choice(outcome: &Outcome, arms: &[Arm]) -> Arm {
    let verdict = &outcome.verdict;
    let same = |arm: &&Arm| {
        arm.kind() == verdict.kind
            && ["a", "b"].iter().enumerate().all(|(job, name)| {
                let share = if arm.kind() == ArmKind::Partition {
                    arm.share(job, 132).to_string()
                } else {
                    "..".into()
                };
                share == verdict.shares[*name] && arm.priorities()[job] == verdict.priority[*name]
            })
    };
    arms.iter().find(same).cloned().unwrap_or_else(|| panic!("{verdict:?}"))
}

/// Every arm with every order of priorities.
fn every_arm() -> Vec<Arm> {
    let arms = Request::default().every_arm(&profiles(), &H200).expect("a request");
    let ordered = arms
        .iter()
        .filter(|arm| arm.kind() == ArmKind::Partition)
        .flat_map(|arm| [vec![-1, 0], vec![0, -1]].map(|order| arm.with_priorities(order)));
    let ordered: Vec<Arm> = ordered.collect();
    arms.into_iter().chain(ordered).collect()
}

#[test]
fn the_choice_is_close_to_the_best() {
    let arms = every_arm();
    let mut regrets = Vec::new();
    for seed in 0..100 {
        let mut model = pair(seed);
        let outcome = with(&mut model, &profiles(), &H200, &Request::default(), &mut |_| true)
            .expect("it runs");
        let best = arms.iter().map(|arm| worth(&model, arm)).fold(0.0, f64::max);
        let chosen = choice(&outcome, &arms);
        let regret = 1.0 - worth(&model, &chosen) / best;
        let unpartitioned = arms
            .iter()
            .filter(|arm| arm.kind() != ArmKind::Partition)
            .map(|arm| worth(&model, arm))
            .fold(0.0, f64::max);
        println!(
            "{seed}: regret {regret:.3}, best {best:.3}, without {unpartitioned:.3}: {} in {:.1} s, {} arms",
            outcome.verdict.sentence,
            outcome.seconds,
            outcome.arms.len()
        );
        assert!(outcome.seconds < 11.0);
        regrets.push(regret);
    }
    regrets.sort_by(f64::total_cmp);
    println!(
        "median {:.4}, 90 % {:.4}, worst {:.4}",
        median(&regrets).expect("some"),
        regrets[90],
        regrets[99]
    );
    assert!(median(&regrets) < Some(0.03));
    let _ = Duration::ZERO;
}
