use std::sync::LazyLock;
use std::time::Duration;

use green_ctx::tune::{self, Arrival, Goal, Model, ModelJob, Pieces, Profile, Request};
use roxmltree::{Document, Node};

use super::*;

/// A job that memory limits, one of large blocks, one that needs half of the SMs, and a small one.
fn model(jobs: usize) -> Model {
    let job = |blocks, block_us, memory_us| {
        let mut job = ModelJob::default();
        (job.blocks, job.block_us, job.memory_us) = (blocks, block_us, memory_us);
        job
    };
    let mut all =
        vec![job(132, 20.0, 90.0), job(1056, 60.0, 40.0), job(66, 80.0, 10.0), job(40, 30.0, 5.0)];
    all[1].weight = 3.0;
    all[1].least_sms = 24;
    all.truncate(jobs);
    Model::new(Pieces { sms: 132, unit: 8, odd: 12 }, all, 7)
}

fn tuned(names: &[&str], goal: Goal) -> Outcome {
    let jobs: Vec<Profile> = names.iter().map(|name| Profile::new(*name)).collect();
    let request =
        Request::new(goal).budget(Duration::from_secs(if names.len() > 2 { 10 } else { 2 }));
    let pieces = Pieces { sms: 132, unit: 8, odd: 12 };
    tune::with(&mut model(names.len()), &jobs, &pieces, &request, &mut |_| true)
        .expect("an outcome")
}

const PAIR: [&str; 2] = ["decode", "prefill"];
const FOUR: [&str; 4] = ["decode", "prefill", "embed", "rerank"];

/// Outcomes of every goal, of two jobs and of four.
static OUTCOMES: LazyLock<Vec<Outcome>> = LazyLock::new(|| {
    let least = Goal::least("decode", 0.99, "prefill", 0.6);
    let weighted = Goal::Throughput { weights: vec![("decode".to_owned(), 2.0)] };
    let of_pairs = [Goal::throughput(), weighted, Goal::Makespan, keep(), least.clone()];
    let of_four = [Goal::throughput(), Goal::Makespan, keep(), least];
    let pairs = of_pairs.into_iter().map(|goal| tuned(&PAIR, goal));
    pairs.chain(of_four.into_iter().map(|goal| tuned(&FOUR, goal))).collect()
});

fn keep() -> Goal {
    Goal::keep("decode", 0.99, 140.0)
}

fn of_class<'a, 'i>(document: &'a Document<'i>, class: &str) -> Vec<Node<'a, 'i>> {
    document.descendants().filter(|node| node.attribute("class") == Some(class)).collect()
}

/// Draws it, and checks that every coordinate is a number inside of the page.
fn drawn(outcome: &Outcome) -> String {
    let picture = render_tuning(outcome);
    assert_eq!(picture, render_tuning(outcome));
    assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    let document = Document::parse(&picture).expect("well-formed");
    let number = |node: Node<'_, '_>, name: &str| {
        let text = node.attribute(name)?;
        Some(text.parse::<f64>().unwrap_or_else(|_| panic!("{name}={text}")))
    };
    let root = document.root_element();
    let page = [number(root, "width"), number(root, "height")].map(|size| size.expect("a size"));
    assert!(page[1] < 1000.0, "{page:?}");
    for node in document.descendants() {
        for (name, size) in [("x", "width"), ("y", "height")] {
            let most = page[usize::from(name == "y")];
            let from = number(node, name).unwrap_or(0.0);
            let length = number(node, size).filter(|_| node.has_tag_name("rect")).unwrap_or(0.0);
            let centre = number(node, &format!("c{name}")).unwrap_or(0.0);
            assert!(from >= 0.0 && length >= 0.0 && from + length <= most, "{node:?}");
            assert!((0.0..=most).contains(&centre), "{node:?}");
        }
        // What is drawn begins with capital letters, which have coordinates of the page.
        let ends =
            node.attribute("d").unwrap_or("").split(['M', 'L']).filter(|end| !end.is_empty());
        for end in ends {
            let mut of_end = end.split([' ', 'a', 'h', 'Z']).map(|text| text.parse::<f64>());
            for most in page {
                let value = of_end.next().and_then(Result::ok).unwrap_or(f64::NAN);
                assert!((0.0..=most).contains(&value), "{node:?}");
            }
        }
    }
    picture
}

#[test]
fn every_measured_arm_has_a_point() {
    for outcome in OUTCOMES.iter() {
        let picture = drawn(outcome);
        let document = Document::parse(&picture).expect("well-formed");
        let measured = outcome.arms.iter().filter(|arm| !arm.rates.is_empty()).count();
        let marks = of_class(&document, "arm");
        assert_eq!(marks.len(), measured, "{}", outcome.goal);
        for mark in marks {
            let tooltip = mark.first_element_child().and_then(|title| title.text());
            assert!(
                tooltip.is_some_and(|text| text.contains("a second") && text.contains("block"))
            );
        }
    }
}

#[test]
fn the_chosen_arm_and_its_rival_are_marked_once() {
    for outcome in OUTCOMES.iter() {
        let picture = drawn(outcome);
        let document = Document::parse(&picture).expect("well-formed");
        for class in ["chosen", "rival"] {
            assert_eq!(of_class(&document, class).len(), 1, "{class} of {}", outcome.goal);
            assert_eq!(of_class(&document, &format!("label {class}")).len(), 1);
        }
    }
}

#[test]
fn title_and_verdict_say_what_was_asked_and_found() {
    let mut outcome = tuned(&PAIR, keep());
    outcome.complete = false;
    outcome.notes = (0..10).map(|number| format!("note {number}")).collect();
    let picture = drawn(&outcome);
    let title = "decode beside prefill: keep decode's p99 at most 140 µs on 132 SMs";
    assert_eq!(picture.matches(&format!(">{title}<")).count(), 2);
    assert!(picture.contains(r#"class="bound""#) && picture.contains(">p99 ≤ 140 µs<"));
    assert!(picture.contains(">Interrupted: this is the best so far.<"));
    assert!(picture.contains(">note 7<") && !picture.contains(">note 8<"));
    assert!(picture.contains(">2 more notes<"));
    for (kind, meets, colour) in [
        (ArmKind::Partition, true, GREEN),
        (ArmKind::Streams, true, "#0072b2"),
        (ArmKind::Partition, false, RED),
    ] {
        (outcome.verdict.kind, outcome.verdict.meets) = (kind, meets);
        assert!(drawn(&outcome).contains(&format!(r#"cy="85.5" r="5" fill="{colour}""#)));
    }
}

#[test]
fn bounds_far_away_do_not_press_points_together() {
    let mut outcome = tuned(&PAIR, keep());
    for (bound, text) in [(1e9, "p99 ≤ 1.00e9 µs →"), (1e-3, "← p99 ≤ 1.00e-3 µs"), (f64::NAN, "→")]
    {
        outcome.goal = Goal::keep("decode", 0.99, bound);
        let picture = drawn(&outcome);
        assert!(picture.contains(text), "{bound}");
        assert!(!picture.contains(r#"class="bound""#), "{bound}");
    }
}

#[test]
fn skipped_arms_are_counted() {
    let mut outcome = tuned(&PAIR, Goal::throughput());
    outcome.arms.retain(|arm| arm.skipped.is_none());
    let all = outcome.arms.len();
    for arm in outcome.arms.iter_mut().take(3) {
        arm.rates.clear();
        arm.skipped = Some("it needs 24 SMs & more".to_owned());
    }
    let picture = drawn(&outcome);
    assert!(picture.contains("; 3 arms skipped (it needs 24 SMs &amp; more)<"));
    assert_eq!(picture.matches(r#"class="arm""#).count(), all - 3);
}

#[test]
fn names_are_escaped_and_cut() {
    let long = "a rather long name ".repeat(20);
    for goal in [Goal::throughput(), Goal::keep("<b>&\"", 0.99, 150.0)] {
        let outcome = tuned(&["<b>&\"", &long, "größe", "x"], goal);
        let picture = drawn(&outcome);
        let document = Document::parse(&picture).expect("well-formed");
        let title = document.root_element().first_element_child().and_then(|title| title.text());
        assert!(title.is_some_and(|title| title.starts_with("<b>&\" beside a rather long name a")));
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        for text in texts.filter_map(|node| node.text()) {
            assert!(text.chars().count() <= LINE + 8, "{text}");
        }
    }
}

#[test]
fn outcomes_of_nothing_are_pictures_too() {
    for mut outcome in OUTCOMES.iter().cloned() {
        outcome.arms.truncate(1);
        drawn(&outcome);
        outcome.arms.clear();
        let picture = drawn(&outcome);
        assert!(picture.contains(">no arm has figures to show<"));
        outcome.pieces.sms = 0;
        outcome.verdict.sentence.clear();
        outcome.jobs.truncate(1);
        drawn(&outcome);
        outcome.jobs.clear();
        drawn(&outcome);
    }
}

#[test]
fn figures_that_are_none_are_left_out() {
    let odd = [f64::NAN, f64::INFINITY, 0.0, -1.0, 1e300, 5e-324];
    for outcome in OUTCOMES.iter() {
        for value in odd {
            let mut all = outcome.clone();
            all.seconds = value;
            for arm in &mut all.arms {
                arm.score = Some(value);
                arm.rates.values_mut().for_each(|rate| *rate = value);
                for latency in arm.latency_us.values_mut() {
                    (latency.p50, latency.p99) = (value, Some(value));
                }
            }
            drawn(&all);
            let mut alone = outcome.clone();
            for job in &mut alone.jobs {
                job.rate = value;
            }
            drawn(&alone);
            // One arm of many, which is not to take the others' room.
            let mut one = outcome.clone();
            one.arms[0].rates.values_mut().for_each(|rate| *rate = value);
            one.arms[1].score = Some(value);
            drawn(&one);
        }
    }
}

#[test]
fn arrivals_by_the_clock_are_drawn() {
    let mut outcome = tuned(&PAIR, keep());
    outcome.jobs[0].arrival = Arrival::Trace { seconds: vec![0.0; 4000] };
    drawn(&outcome);
}
