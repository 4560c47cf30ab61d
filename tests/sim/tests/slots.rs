//! How many simulated drivers a process holds. In a program of its own, since it takes them all.

use green_ctx_sim::{Sim, SimError, Spec};

#[test]
fn slots_are_limited_and_come_back() {
    let mut sims: Vec<Sim> =
        (0..32).map(|_| Sim::new(Spec::default()).expect("a free slot")).collect();
    assert_eq!(Sim::new(Spec::default()).err(), Some(SimError::TooMany));
    sims.truncate(31);
    sims.push(Sim::new(Spec::default()).expect("a slot that came back"));
    assert_eq!(Sim::new(Spec::default()).err(), Some(SimError::TooMany));
}
