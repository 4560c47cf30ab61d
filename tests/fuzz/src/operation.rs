//! The operations of a seed, carried out one after the other.

use std::fmt;
use std::str::FromStr;

use fastrand::Rng;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $weight:literal,)*) => {
        /// The kind of an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $($(#[$doc])* $kind,)* }

        impl Kind {
            /// All kinds, in the order of the table that a run prints.
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// Returns the name on the command line and in the table.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name,)* }
            }

            /// Returns the frequency relative to other kinds.
            const fn weight(self) -> u32 {
                match self { $(Kind::$kind => $weight,)* }
            }
        }
    };
}

kinds! {
    /// Takes groups from the device.
    Split "split" 40,
    /// Splits a group by count.
    SplitNested "split-nested" 10,
    /// Takes groups with the driver's structured split.
    SplitStructured "split-structured" 6,
    /// Splits a group with the driver's structured split.
    SplitNestedStructured "split-nested-structured" 6,
    /// Takes groups that share SMs with others.
    SplitOverlapping "split-overlapping" 3,
    /// Requests more SMs than exist. The refusal must change nothing.
    SplitRefused "split-refused" 5,
    /// Joins two groups.
    Join "join" 20,
    /// Drops a group.
    DropGroup "drop-group" 8,
    /// Creates a partition from a group or from the device.
    MakePartition "make-partition" 50,
    /// Clones a partition.
    ClonePartition "clone-partition" 6,
    /// Closes a partition, sometimes at the end of an unrelated capture. The close must be refused if the
    /// context is current, its stream is being captured, or other handles exist.
    ClosePartition "close-partition" 30,
    /// Drops a handle of a partition, sometimes at the end of a capture.
    DropPartition "drop-partition" 25,
    /// Creates a context from a group.
    MakeContext "make-context" 60,
    /// Clones a context, or takes the context of a plan's partition.
    CloneContext "clone-context" 8,
    /// Closes a context.
    CloseContext "close-context" 15,
    /// Drops a handle of a context.
    DropContext "drop-context" 40,
    /// Creates a plan set from a group, with a first plan.
    NewSet "new-set" 14,
    /// Prepares another plan.
    Prepare "prepare" 40,
    /// Switches with a fence.
    SwitchFenced "switch-fenced" 90,
    /// Switches without a fence.
    SwitchUnfenced "switch-unfenced" 4,
    /// Switches after draining the active plan.
    SwitchDrain "switch-drain" 5,
    /// Retires a plan, sometimes while a partition of the plan has a handle. Closing the set must then be refused.
    Retire "retire" 20,
    /// Prepares, uses and retires many plans.
    ChurnPlans "churn-plans" 1,
    /// Switches after draining the active plan, unless the program gives up or panics.
    SwitchWhile "switch-while" 6,
    /// Closes a set. The close must be refused if something still uses the set.
    CloseSet "close-set" 6,
    /// Drops a set with its plans.
    DropSet "drop-set" 4,
    /// Creates a stream in a partition.
    MakeStream "make-stream" 80,
    /// Creates a stream in the primary context.
    MakePrimaryStream "make-primary-stream" 5,
    /// Clones a stream.
    CloneStream "clone-stream" 5,
    /// Drops a handle of a stream.
    DropStream "drop-stream" 80,
    /// Creates and drops many streams in a partition.
    ChurnStreams "churn-streams" 2,
    /// Creates a foreign stream in a partition.
    MakeForeign "make-foreign" 12,
    /// Drops a foreign stream, which is destroyed when no object borrows it.
    DropForeign "drop-foreign" 10,
    /// Takes ownership of a foreign stream.
    AdoptOwned "adopt-owned" 8,
    /// Borrows a foreign stream.
    AdoptBorrowed "adopt-borrowed" 15,
    /// Borrows and drops one foreign stream many times.
    AdoptAgain "adopt-again" 2,
    /// Launches a kernel in a stream.
    Launch "launch" 200,
    /// Launches a kernel in a partition's default stream.
    LaunchDefault "launch-default" 20,
    /// Launches a kernel in a foreign stream.
    LaunchForeign "launch-foreign" 10,
    /// Launches a kernel that is cooperative, has clusters, or may start early.
    LaunchSpecial "launch-special" 20,
    /// Runs a host function in a stream; some panic.
    LaunchHost "launch-host" 8,
    /// Keeps a stream alive until the process ends.
    KeepAlive "keep-alive" 4,
    /// Wraps a kept stream or its context. Their handles must lead to one object, before and after the next partition
    /// on the same SMs gets the context.
    WrapKept "wrap-kept" 24,
    /// Copies through device memory and back, and compares.
    Copy "copy" 10,
    /// Drops device memory, or checks pinned memory after a copy and drops it.
    DropMemory "drop-memory" 10,
    /// Makes one stream wait for another.
    Order "order" 15,
    /// Captures kernels in one partition.
    Capture "capture" 10,
    /// Captures kernels in two partitions.
    CaptureFork "capture-fork" 14,
    /// Captures a kernel in one partition and a memset in another.
    CaptureMemset "capture-memset" 6,
    /// Captures a kernel or a memset in a partition that is created during the capture, sometimes also a kernel
    /// of a new library. Partition and library are dropped before or at the end of the capture.
    CaptureDrop "capture-drop" 14,
    /// Lists where the nodes of a graph run.
    Audit "audit" 10,
    /// Moves a graph to another partition.
    Retarget "retarget" 8,
    /// Instantiates a graph.
    Instantiate "instantiate" 20,
    /// Gets an executable for a partition from the cache.
    CacheGet "cache-get" 12,
    /// Removes a partition from the cache.
    CacheForget "cache-forget" 8,
    /// Drops a graph.
    DropGraph "drop-graph" 16,
    /// Drops an executable, whose launches may still run.
    DropExec "drop-executable" 20,
    /// Launches a graph in any stream.
    LaunchGraph "launch-graph" 40,
    /// Sets the number of idle contexts to keep.
    IdleLimit "idle-limit" 3,
    /// Destroys idle contexts.
    ReleaseIdle "release-idle" 2,
    /// Waits for a stream.
    SynchronizeStream "synchronize-stream" 6,
    /// Lets simulated time pass.
    AdvanceTime "advance-time" 10,
    /// Waits for all work, and checks that no more driver objects are alive than needed.
    Settle "settle" 3,
    /// Watches a stream and an object's launches.
    Watch "watch" 5,
    /// Begins a capture in a foreign stream, which does not keep its partition alive.
    BeginForeignCapture "begin-foreign-capture" 2,
    /// Ends a capture in a foreign stream.
    EndForeignCapture "end-foreign-capture" 6,
    /// Creates a partition on a second device.
    SecondMake "second-make" 12,
    /// Launches a kernel on the second device.
    SecondLaunch "second-launch" 12,
    /// Makes a stream of one device wait for a stream of the other.
    SecondOrder "second-order" 6,
    /// Captures kernels on two devices.
    SecondCapture "second-capture" 8,
    /// Drops or closes a partition on the second device.
    SecondDrop "second-drop" 10,
    /// Splits while a reclaim hook panics.
    ReclaimPanics "reclaim-panics" 2,
    /// Makes a later driver call fail.
    Fault "fault" 30,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Kind, String> {
        let known = Kind::ALL.iter().find(|kind| kind.name() == name);
        known.copied().ok_or_else(|| {
            let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            format!("no kind of operation is named {name}; the kinds are {}", names.join(", "))
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An operation, with the numbers that choose its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its position in the original list. The names of its objects follow from it.
    pub number: u32,
    /// Its kind.
    pub kind: Kind,
    /// The numbers that choose its operands: each is an index modulo what exists.
    pub numbers: [u32; 4],
}

/// The operations that a run may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Whether driver calls fail.
    pub faults: bool,
    /// The kinds to leave out.
    pub without: Vec<Kind>,
}

/// Factors for the frequency of a kind, in quarters; each seed chooses one per kind. Seeds that hardly ever
/// drop objects reach states that others do not, and the reverse.
const BIAS: [u32; 6] = [1, 2, 4, 4, 4, 12];

/// Returns the operations of a seed.
#[must_use]
pub fn generate(seed: u64, count: usize, choice: &Choice) -> Vec<Operation> {
    let mut rng = Rng::with_seed(seed);
    let weights: Vec<(Kind, u32)> = Kind::ALL
        .iter()
        .map(|&kind| (kind, kind.weight() * BIAS[rng.usize(..BIAS.len())]))
        .filter(|(kind, _)| !choice.without.contains(kind))
        .filter(|(kind, _)| choice.faults || *kind != Kind::Fault)
        .collect();
    let total: u32 = weights.iter().map(|(_, weight)| weight).sum();
    if total == 0 {
        return Vec::new();
    }
    let pick = |rng: &mut Rng| {
        let mut ticket = rng.u32(..total);
        for &(kind, weight) in &weights {
            if ticket < weight {
                return kind;
            }
            ticket -= weight;
        }
        weights[0].0
    };
    (0..count)
        .map(|number| {
            let kind = pick(&mut rng);
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            Operation { number, kind, numbers: std::array::from_fn(|_| rng.u32(..)) }
        })
        .collect()
}
