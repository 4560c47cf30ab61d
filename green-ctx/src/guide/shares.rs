//! Shares: SMs that a partition can count on, and SMs that it uses while others leave them idle.
//!
//! A wall between two jobs wastes what either of them leaves idle. A *share* is softer. Its *floor* is
//! the SMs that no other partition may use, and its *ceiling* is the most that the partition may use.
//! Between the two it shares SMs with every partition whose ceiling reaches them.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, sim::Sim};
//!
//! // With a GPU: `let driver = Driver::load()?;`
//! let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
//! let device = driver.device(0)?;
//!
//! // Decode has 32 SMs for itself and may use all 132. Prefill may use the other 100.
//! let request = SplitRequest::new().group("decode", 32..).group("prefill", ..=100);
//! let parts = device.partition(request)?;
//! assert_eq!((parts["decode"].floor(), parts["decode"].sm_count()), (32, 132));
//! assert_eq!((parts["prefill"].floor(), parts["prefill"].sm_count()), (0, 100));
//! assert_eq!(parts["decode"].shared_with()[0].to_string(), "prefill (100 SMs)");
//! # Ok(())
//! # }
//! ```
//!
//! While prefill pauses, decode runs on the whole GPU. When prefill comes back, decode still has its 32
//! SMs at once, because prefill never runs there. On the other 100 the blocks of both run side by side,
//! as far as an SM has room for them (measured on an H200, driver 580.159.04).
//!
//! # The forms of a share
//!
//! | in Rust | as text | floor | ceiling | meaning |
//! |---|---|---|---|---|
//! | `16` | `16` | 16 | 16 | exclusive: nobody else uses its SMs, and it uses no others |
//! | `32..` | `32..` | 32 | every SM in no other floor | 32 for sure, the rest while it is idle |
//! | `16..=48` | `16..48` or `16..=48` | 16 | 48 | 16 for sure, never more than 48 |
//! | `..=100` | `..100` or `..=100` | 0 | 100 | nothing for sure, never more than 100 |
//! | `..` | `..` | 0 | every SM in no floor | no promise and no cap |
//! | `.rest("name")`, [`Share::REST`] | `rest` | what remains | the same | exclusive |
//! | `None` | `all` | all regular units that are free | the same | exclusive |
//!
//! [`Share`] is the type, and [`SplitRequest::group`](crate::SplitRequest::group) takes any of the forms in
//! the first column. The command and [`FromStr`](std::str::FromStr) read the second one. Text includes both
//! ends: `16..48` is `16..=48`. Rust's half-open `16..48` is no share, so nobody writes one thing and gets
//! another.
//!
//! A count is a wall, `n..` is a floor without a cap, and `..=n` is a cap without a floor. The most useful
//! pair is the one above: `n..` for the job that must not wait, and `..=rest-of-the-device` for the other.
//!
//! # What is promised
//!
//! Among the open partitions of this process, and of a [set of plans](super::plans) among those of its
//! active plan:
//!
//! - No block of another partition runs on a partition's floor.
//! - No block of a partition runs outside of its ceiling.
//!
//! The promise is about where blocks run. It says nothing about how fast they are, since memory and
//! caches are shared, or about [concurrency](super::partitions#what-a-partition-does-not-promise).
//!
//! Four things are exempt, because this crate does not control them or was asked not to:
//!
//! - streams of the primary context, which run on all SMs;
//! - contexts of other libraries, which the ledger does not know;
//! - plans that were switched away from with [`fence(false)`](crate::SwitchOptions::fence);
//! - work that is submitted through a plan that is not the active one.
//!
//! [`Watch`](crate::Watch) finds such work where the driver can tell ([escapes](super::escapes)).
//!
//! # How a request becomes SMs
//!
//! A device is cut into units: 15 of 8 SMs and an odd one of 12 on an H200. A floor is rounded up to whole
//! units and a ceiling is rounded down, and neither passes the other. [`floor`](crate::Partition::floor) and
//! [`sm_count`](crate::Partition::sm_count) say what came of it.
//!
//! | request on an H200 | floor | ceiling | why |
//! |---|---|---|---|
//! | `17` | 24 | 24 | three units of 8 |
//! | `17..=20` | 20 | 20 | one of 8 and the odd one: 24 would pass the ceiling |
//! | `17..=18` | | | an error that suggests 16 or 20 |
//! | `..=121` | 0 | 120 | 15 units of 8 |
//! | `115`, `13` | 116, 16 | 116, 16 | the counts of one request are met together |
//!
//! All floors of a request are met first, together, so that what fits does not depend on their order. They
//! come from free units only. Then come the ceilings: those with a number in the request's order, then those
//! without one. A ceiling takes as many SMs as it may, and of equal choices the one that shares the least.
//! Last comes the rest, which is what nobody took. A share without a ceiling leaves no rest, so both in one
//! request are an error.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, Share, SplitRequest, sim::Sim};
//! # let device = Driver::simulated(&Sim::new("h200@13.0")?)?.device(0)?;
//! let shares = [Share::from(16..), Share::from(16..=48), Share::from(16)];
//! let dry = device.resources().sm()?.dry_run(shares)?;
//! let given: Vec<_> = dry.groups.iter().map(|group| (group.floor, group.sm_count)).collect();
//! assert_eq!(given, [(16, 100), (16, 48), (16, 16)]);
//! # Ok(())
//! # }
//! ```
//!
//! The units of a partition are fixed when it is made: `16..` does not grow when a neighbour closes, and
//! does not shrink when another one joins.
//!
//! # What one partition leaves for later ones
//!
//! A floor takes free units only, never units that somebody shares. So one partition with `n..` or `..` blocks
//! every later floor, because it shares every unit that is in no floor. Partitions without a floor can still
//! join. [`DryRun::free_for_floors`](crate::DryRun::free_for_floors) says in advance what a request leaves, and
//! the error names who is in the way:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, SplitRequest, sim::Sim};
//! # let device = Driver::simulated(&Sim::new("h200@13.0")?)?.device(0)?;
//! let decode = SplitRequest::new().group("decode", 32..);
//! assert_eq!(device.resources().sm()?.dry_run(decode.clone())?.free_for_floors, 0);
//! let decode = device.partition(decode)?;
//!
//! let error = device.partition([16]).expect_err("decode shares the other 100 SMs");
//! assert!(error.to_string().contains("100 SMs can only be shared while decode (100 SMs) shares them"));
//! // No floor, no conflict.
//! let prefill = device.partition(SplitRequest::new().group("prefill", ..=64))?;
//! assert_eq!(prefill[0].shared_with()[0].to_string(), "decode (64 SMs)");
//! # Ok(())
//! # }
//! ```
//!
//! There are four ways out: ask for all partitions in one request, give the share a ceiling (`32..=100`
//! leaves 32 SMs free), close it first, or use [plans](#shares-in-plans).
//!
//! SMs that change hands are ordered on the device. A floor waits for the work of everybody who had those SMs
//! before; shared SMs wait for nobody, even where they were a floor until now. A partition that waited for
//! eight shared SMs would stand still on all of its SMs.
//!
//! # Dividing a partition again
//!
//! [`close`](crate::Partition::close) gives a partition's SMs back as a group, and
//! [`SmGroup::split`](crate::SmGroup::split) divides them again. The floor of the group can become floors of its
//! parts. What the group only shares, the parts can only share, with each other and with everybody outside.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, SplitRequest, sim::Sim};
//! # let device = Driver::simulated(&Sim::new("h200@13.0")?)?.device(0)?;
//! let serving = device.partition(SplitRequest::new().group("serving", 32..=64))?;
//! let group = serving.into_iter().next().ok_or("there is one")?.close()?;
//!
//! let inner = SplitRequest::new().group("decode", 16..).group("prefill", ..=40).group("draft", 8);
//! let split = group.split(inner)?;
//! let given: Vec<_> = split.groups.iter().map(|part| (part.floor(), part.sm_count())).collect();
//! assert_eq!(given, [(16, 56), (0, 40), (8, 8)]);
//! for group in split.groups {
//!     let partition = device.create_partition(group)?;
//!     println!("{} has {} SMs", partition.name(), partition.sm_count());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Where parts share SMs, all of the group's SMs stay taken until the last part is gone.
//!
//! # Shares in plans
//!
//! Each [plan](super::plans) of a set divides the set's SMs as if it were alone. Partitions of two plans that have
//! the same SMs and the same priority are one context with one stream, even where their floors differ:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, PlanRequest, PlanSet, SplitRequest, SwitchOptions, sim::Sim};
//! # let device = Driver::simulated(&Sim::new("h200@13.0")?)?.device(0)?;
//! let plan = |name: &str, floor: u32, ceiling: u32| {
//!     PlanRequest::new(name, SplitRequest::new().group("decode", floor..).group("prefill", ..=ceiling))
//! };
//! let all = device.resources().sm()?.split(SplitRequest::new().rest("all"))?.remainder;
//! let set = PlanSet::new(all.ok_or("no SMs are free")?, plan("day", 32, 100))?;
//! let night = set.prepare(plan("night", 64, 68))?;
//!
//! // Decode may use all 132 SMs in both plans.
//! let day = set.plan("day")?;
//! assert_eq!(day.partitions()["decode"].context(), night.partitions()["decode"].context());
//! set.switch(&night, SwitchOptions::default())?;
//! # Ok(())
//! # }
//! ```
//!
//! After a switch, a partition's new work waits on the device for two things only:
//!
//! - **for its floor**: for work of contexts that the new plan does not have, where that work may still be on
//!   the partition's floor. That includes a partition that is the same in both plans and whose floor grows.
//! - **for its name**: for work of the partition that had the same name in a former plan, if that was another context.
//!   So one job never runs in two contexts at the same time.
//!
//! Partitions that share SMs never wait for each other. In the example, `night`'s decode waits for `day`'s
//! prefill, since its floor grows over SMs that prefill used, and `night`'s prefill waits for `day`'s prefill,
//! which has its name. Decode's own work goes on. On the way back only prefill waits.
//!
//! # Checking where partitions ran
//!
//! [`verify::partitions`](crate::verify::partitions) runs a kernel that writes down its SM: in each partition
//! alone, on each floor, and in all partitions at the same time. A partition that shares is verified when it
//! ran alone on as many SMs as its ceiling, together with the others on all of its floor and on nothing outside
//! of its ceiling, and when nobody else ran on its floor.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, SplitRequest, sim::Sim, verify};
//! # let device = Driver::simulated(&Sim::new("h200@13.0")?)?.device(0)?;
//! # let request = SplitRequest::new().group("decode", 32..).group("prefill", ..=100);
//! # let parts = device.partition(request)?;
//! let report = verify::partitions(&parts, verify::DEFAULT_STAY)?;
//! assert!(report.ok() && report.floors_kept());
//! // They share SMs, so they are not disjoint.
//! assert!(!report.disjoint());
//! assert_eq!(report.partitions[0].floor_sms.len(), 32);
//! # Ok(())
//! # }
//! ```
//!
//! The command does the same and draws it. The picture `docs/shares-h200.svg` of the repository shows these two
//! shares, measured on an H200.
//!
//! ```text
//! green-ctx verify --group decode=32.. --group prefill=..100 --svg shares.svg
//! ```
//!
//! # What a share costs
//!
//! - **At a launch, nothing.** The driver keeps a context's work to its SMs, whoever else has them.
//! - **A context for each partition**, as for exclusive ones: about 800 µs and 4 to 5 MiB of device memory the
//!   first time on an H200, and less than 2 µs when SMs are used [again](super::ownership#contexts-are-used-again).
//!   That looks at the SMs and not at the share, so `100` and `..=100` on the same SMs have one context.
//! - **At a switch**, only the waits above.
//! - **To verify a floor** below a ceiling, one more context, of the floor alone: the driver does not say which
//!   SMs those are. It is kept to be used again.
//! - **Later floors**, as [above](#what-one-partition-leaves-for-later-ones).
//!
//! # When a share pays
//!
//! Everything in this section was measured on an H200 with driver 580.159.04. The figures are rounded;
//! `docs/benchmarks.md` of the repository has the exact ones and says how they were taken (the arm `shares`).
//! The job is a graph of 16 products of 4096 × 4096 numbers with 8 columns, a decode step in small. The wall gives
//! it 32 SMs and the load 100; the shares are `32..` and `..=100`.
//!
//! **Alone**, the job with `32..` takes 213 µs, as on the whole device. Behind the wall it takes 369 µs, 0.58 of
//! that speed.
//!
//! **Beside a load that computes**, cuBLAS's products of 8192³:
//!
//! | | job, median | |
//! |---|---|---|
//! | plain streams, with or without a priority | 4.9 ms | the job waits for whole products |
//! | wall | 468 µs | |
//! | shares | 468 µs | p99 is 0.92 to 1.01 of the wall's; the load keeps 98 to 99 % of what it has behind the wall |
//!
//! So beside a load that never pauses a share is no slower than a wall, and it is 1.7 times as fast whenever the
//! load does. If the job never pauses either, it gets 7 % more done than behind the wall, and the load 1.6 to 3 %
//! less.
//!
//! **Beside a load that reads and writes memory**, SMs are not what is short:
//!
//! | | job, median | the load keeps |
//! |---|---|---|
//! | wall, or shares alone | 432 µs | 71 % of its rate |
//! | shares, the job with a high priority | 243 µs | 26 % |
//!
//! There the [priority](crate::SplitRequest::priority) decides who gets the memory. It helps the job as much as it
//! costs the load.
//!
//! **A decoder of 8 billion parameters beside arriving prompts** generates 2472 tokens a second behind a wall of
//! 32 and 100 SMs, 3080 with prefill cut into chunks that share a launch with decode, and 3168 with decode on all
//! SMs and prefill capped at 100.
//!
//! **The floors held**: of 10,000 launches of the capped job, no block ran on the floor.
//!
//! | the job | its share |
//! |---|---|
//! | has a deadline, comes and goes, many short kernels | `n..`, with as many SMs as the deadline needs |
//! | fills whatever it gets, has no deadline | `..=m`, so that it leaves the others' floors alone |
//! | is bound by memory, or runs beside one that is | as above, and a priority for the one that matters |
//! | a persistent or cooperative kernel, a collective | `n` |
//! | has to take the same time in every run, for a test or a benchmark | `n` |
//! | every job needs every SM | none: run one after the other |
//!
//! Which counts are best depends on the pair of jobs, and neighbouring counts can differ by more than their SMs: a
//! product's time goes in steps, by how many waves of tiles its SMs need. Measure some.
//!
//! # When a burst hurts
//!
//! A job that uses SMs above its floor bursts. That suits kernels of many short blocks, which take
//! whatever SM has room. It does not suit a kernel whose grid fills its SMs at once and stays:
//!
//! - **Persistent kernels** start as many blocks as their ceiling holds. Those on shared SMs begin when the
//!   neighbours leave room. If the work is divided among the blocks beforehand, the kernel ends with its slowest
//!   block, later than it would on its floor alone. And while its blocks stay, the neighbours do not get those SMs.
//! - **Cooperative grids** begin when all their blocks have room. One that is as large as the ceiling waits for
//!   the sharers first. Two of them on shared SMs, each as large as fits, both end, and each is there as a
//!   whole (recorded on an H200 and an H100): they come one after the other.
//! - **Collectives** and other plain launches whose blocks wait for each other are worse off. Their first blocks
//!   hold SMs while the last ones wait for room. If what holds that room stays, because it waits in the same way,
//!   neither ends.
//!
//! Such a job wants `n` and not `n..`. [`Fit`](crate::Fit) says so: [`shared_sms`](crate::Fit::shared_sms) is how
//! many of a partition's SMs others may use too.
//!
//! # Where shares are not available
//!
//! - On a driver for CUDA 12.4 a context is one piece of a split, so there are exclusive counts and, while no
//!   floor exists, `..` of the whole device. Other shares are [`Error::Unsupported`](crate::Error::Unsupported).
//! - [Structured requests](super::partitions#how-a-device-is-cut) take counts and the rest.
//! - [`overlapping`](crate::SplitRequest::overlapping) requests take counts: exactly so many SMs, all of them shared.
//!   They are for replacing libraries that promise nothing; new code says `..=n`.
//!
//! [`Share`]: crate::Share
//! [`Share::REST`]: crate::Share::REST
