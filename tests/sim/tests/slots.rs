//! How many simulated drivers a process holds. In a program of its own, since it takes them all.

use std::thread;
use std::time::{Duration, Instant};

use green_ctx_sim::{Sim, SimError, Spec};

#[test]
fn slots_are_limited_and_come_back() {
    let mut sims: Vec<Sim> =
        (0..32).map(|_| Sim::new(Spec::default()).expect("a free slot")).collect();
    let without_a_place = |patience| {
        let begin = Instant::now();
        let refused = Sim::builder(Spec::default()).patience(patience).build().err();
        assert_eq!(refused, Some(SimError::TooMany));
        assert!(begin.elapsed() >= patience);
    };
    without_a_place(Duration::ZERO);
    without_a_place(Duration::from_millis(20));
    sims.truncate(31);
    sims.push(Sim::new(Spec::default()).expect("a slot that came back"));
    without_a_place(Duration::ZERO);

    // Who asks for a driver waits for one to end.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Sim::new(Spec::default()).map(drop));
        thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished(), "there was no place yet");
        drop(sims);
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
    });
}
