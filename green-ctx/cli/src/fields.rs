//! The fields of the JSON that each command prints, for its help.

const BEFORE: &str = "\
Fields with --json. Those of the list that is marked with * are the columns with --csv:
  driver         kind (cuda or simulated), version, profile (of a simulated driver)
";

pub(crate) const INFO: &str =
    "  provenance     where a simulated driver's behaviour comes from; null for a driver of a GPU, and in
                 a build without the simulator, such as the command that pip installs
  sources        the same for each group of its data: data, origin, from; or null
  abilities      name, needs (the CUDA version), available
  devices *      ordinal, name, sm_count, compute_capability, uuid, memory_bytes
                   status         whether this project has run on such a device and driver
                   min_partition  the smallest partition, in SMs
                   alignment      counts of SMs are multiples of it
                   limits_from    where the two come from: driver or architecture
                   workqueues     concurrency_limit and scope; null before CUDA 13.1
                   units          the SMs of each unit, coarse (the default) and fine
                   reserve        only if SMs are reserved: sm_count of it, and rest, the other SMs
  warnings       settings that change the size of partitions";

/// The field of `info --all`.
#[cfg(feature = "sim")]
pub(crate) const GPUS: &str = "
  gpus *         instead of all these with --all: profile, name, compute_capability, sm_count,
                 units, fine_unit, most_partitions (of coarse units), recorded (the driver)
                   percent_25, percent_50, percent_75  the SMs of a partition that requests this";

#[cfg(not(feature = "sim"))]
pub(crate) const GPUS: &str = "";

pub(crate) const SPLIT: &str = "  device         ordinal, name, sm_count, compute_capability
                   reserve        only if SMs are reserved: sm_count of it, and rest, the other SMs
  unit           the SMs of a unit
  groups *       name, requested (a number of SMs, or null), share (as text), floor and ceiling (in SMs),
                 sm_count (the same as ceiling)
  remainder      sm_count: the SMs that no group has
  free_for_floors  the SMs that further floors could get";

pub(crate) const VERIFY: &str = "  device         ordinal, name, sm_count, compute_capability
                   reserve        only if SMs are reserved: sm_count of it, and rest, the other SMs
  partitions *   name, requested (a number of SMs, or null), share (as text), floor and ceiling (in SMs),
                 sm_count (the same as ceiling). Under a reserve, the last one is the work outside of
                 partitions, and its share is null.
                   observed_sms   the ids of the SMs on which the kernel ran
                   floor_sms      the ids of those that are the partition's own
                   start_ns, end_ns  of the kernel, on the GPU's clock
                   kept           whether the partition kept to its share, and got all of it
  disjoint       whether the exclusive partitions had no SM in common
  concurrent     whether all partitions ran at the same time
  floors_kept    whether no partition ran on the floor of another
  ok             the verdict";

pub(crate) const CURVE: &str =
    "  device         ordinal, name, sm_count, compute_capability
                   reserve        only if SMs are reserved: sm_count of it, and rest, the other SMs
  job            its name
  metric         unit, lower_is_better; only if a program was measured
  points *       sms
                   blocks_us      the time of an iteration in each block, or of each run, in us; with
                                  --metric, a time that gives the same speed
                   median_us      their median
                   median         of a program, in the metric's unit; null if there are no blocks
                   spread         the slowest minus the fastest block, as a fraction of the median;
                                  null if there is only one
                   speed          as a fraction of the speed on the whole device
                   doubling       the factor compared with half of the SMs, or null
                   skipped        the reason if the job does not run, or fails after some blocks; or null
  shape          kind (scales, saturates, host_bound, hidden or unknown), sms (where it saturates)
  sentence       the shape in words
  host_us        the time in which the host submits an iteration, or null
  notes          remarks
  complete       false after an interruption
  within         5% and 10%: the fewest SMs from which on the job loses no more than this";

pub(crate) const TUNE: &str =
    "  device         ordinal, name, sm_count, compute_capability
                   reserve        only if SMs are reserved: sm_count of it, and rest, the other SMs
                 With --show, ordinal is null, and driver and device are null for jobs in a model.
  goal           as text
  verdict        arm, candidate, rival: the indices in arms of the recommended arm, of the best one
                 with partitions, and of the best one without. Arms that are certain to meet a bound
                 come before all others. candidate and rival are null if there is none.
                   kind, shares, priority  of the recommended arm
                   gain, interval  of candidate over rival: a fraction, and its 95 % interval; or null
                   meets          whether the arm is certain to meet a bound of the goal, or there is none
                   sentence       the verdict in words
  jobs           name, key, host_bound (whether the host is the limit)
                   arrival        closed with its depth, rate, poisson or trace
                   rate           iterations per second alone; references: the measurements of it
                   capacity       the most iterations per second, or null for a closed loop
                   solo           iterations per second alone on each number of SMs
  arms *         kind, shares (as text), priority (lower is higher)
                   stage          of the measurements: search, choice or final
                   rates          iterations per second of each job
                   latency_us     mean, p50, p99 (null for fewer than 500 iterations) and the number of
                                  iterations, of each job that has latencies
                   capacity       the most iterations per second, of jobs with an arrival rate
                   score          higher is better; null if it was not measured
                   excess         how far the measurements miss a bound, as a fraction; 0 or less if they
                                  meet it, perhaps by chance
                   certain        whether the worse end of its 95 % interval in the final comparison meets
                                  the bound, as the verdict demands; null for other arms and goals
                   blocks         the number of measurement blocks
                   skipped        the reason if the arm cannot run, or null
  notes          remarks
  complete       false after an interruption
  seconds        the duration of tuning";

/// Returns the help of a command with these fields. What `-h` shows too comes last.
pub(crate) fn with(fields: &str, help: &str) -> String {
    format!("{BEFORE}{fields}\n\n{help}")
}
