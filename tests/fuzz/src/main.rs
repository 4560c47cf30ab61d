//! `green-ctx-fuzz`: runs seeds until one fails or the time is over.
fn main() {
    let progress = std::sync::atomic::AtomicU64::new(0);
    let args: Vec<String> = std::env::args().collect();
    let first: u64 = args[1].parse().unwrap_or(0);
    let count: u64 = args[2].parse().unwrap_or(0);
    let ops: usize = args[3].parse().unwrap_or(0);
    let without = args
        .get(4)
        .map(|w| w.split(',').filter(|w| !w.is_empty()).map(|k| k.parse().expect("kind")).collect())
        .unwrap_or_default();
    let choice = green_ctx_fuzz::operation::Choice { faults: args.len() > 5, without };
    let start = std::time::Instant::now();
    let mut table = green_ctx_fuzz::table::Table::default();
    for seed in first..first + count {
        let plan = green_ctx_fuzz::run::Plan::of(seed, ops, &choice);
        match green_ctx_fuzz::run::run(&plan, false, &progress) {
            Ok(o) => table.add(&o.table),
            Err(f) => {
                println!(
                    "seed {seed} {} after {} ops, {:?}: {}",
                    plan.spec,
                    f.operations,
                    start.elapsed(),
                    f.violation
                );
                let (plan, f) = green_ctx_fuzz::shrink::shrink(plan, *f, &progress);
                println!(
                    "{} ops: {}\n{}",
                    plan.operations.len(),
                    f.violation,
                    f.program.join("\n")
                );
                return;
            }
        }
    }
    println!("{table}\n{} tried in {:?}", table.tried(), start.elapsed());
}
