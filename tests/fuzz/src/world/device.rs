//! Operations on the device as a whole.

use green_ctx::CUresult;
use green_ctx::sim::Fault;

use super::{Done, World};
use crate::model::Way;
use crate::violation::{Rule, Violation};

impl World {
    pub(super) fn idle_limit(&mut self, n: [u32; 4]) -> Done {
        let limit = [0, 1, 3, 8, 64][n[0] as usize % 5];
        self.say(|| format!("device.set_idle_limit({limit});"));
        self.machine.device.set_idle_limit(limit);
        Done::Ok
    }

    pub(super) fn release_idle(&mut self) -> Done {
        self.say(|| "device.release_idle();".to_owned());
        self.machine.device.release_idle();
        Done::Ok
    }

    pub(super) fn advance_time(&mut self, n: [u32; 4]) -> Done {
        let nanoseconds = [20_000, 300_000, 10_000_000, 2_000_000_000][n[0] as usize % 4];
        self.say(|| format!("advance({nanoseconds})?; // virtual nanoseconds"));
        let result = self.machine.advance(nanoseconds);
        self.launched = Some(Way::Direct);
        Done::of(result)
    }

    pub(super) fn settle(&mut self) -> Result<Done, Violation> {
        if !self.captures.is_empty() || !self.alone {
            // Waiting for a context invalidates the captures in it.
            return Ok(Done::Skipped);
        }
        self.say(|| "device.primary_context()?.synchronize()?;".to_owned());
        let device = &self.machine.device;
        let result = device.primary_context().and_then(|primary| primary.synchronize());
        if result.is_err() || self.faults || self.disturbed {
            return Ok(Done::of(result));
        }
        let live = self.machine.sim.live();
        let lanes: usize = self
            .sets
            .iter()
            .map(|set| 4 + set.plans.iter().map(|plan| 2 + 3 * plan.lanes.len()).sum::<usize>())
            .sum();
        let objects = lanes
            + self.groups.len()
            + 3 * (self.contexts.len() + self.partitions.len() + self.second.len())
            + 2 * self.streams.len()
            + 2 * self.foreign.len()
            + self.graphs.len()
            + self.execs.len()
            + self.cached.len();
        let most = 64 + 4 * objects as u64;
        if live.events > most || live.primary_retains > most {
            return Err(Violation::new(
                Rule::Growth,
                format!(
                    "on an idle device {} events and {} references to the primary context are alive for \
                 {objects} objects",
                    live.events, live.primary_retains
                ),
            ));
        }
        self.launched = Some(Way::Direct);
        Ok(Done::Ok)
    }

    pub(super) fn fault(&mut self, n: [u32; 4]) -> Done {
        const FUNCTIONS: [&str; 21] = [
            "cuEventCreate",
            "cuEventRecord",
            "cuEventQuery",
            "cuEventDestroy",
            "cuStreamWaitEvent",
            "cuGreenCtxRecordEvent",
            "cuGreenCtxWaitEvent",
            "cuGreenCtxStreamCreate",
            "cuStreamDestroy",
            "cuGreenCtxCreate",
            "cuCtxSynchronize",
            "cuDevicePrimaryCtxRetain",
            "cuDevicePrimaryCtxRelease",
            "cuStreamIsCapturing",
            "cuCtxPushCurrent",
            "cuCtxGetCurrent",
            "cuStreamGetCtx",
            "cuStreamGetPriority",
            "cuGraphInstantiateWithFlags",
            "cuGraphLaunch",
            "cuGraphClone",
        ];
        let function = FUNCTIONS[n[0] as usize % FUNCTIONS.len()];
        let nth = 1 + u64::from(n[1] % 6);
        let status =
            [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_UNKNOWN][n[2] as usize % 2];
        self.say(|| {
            format!("sim.fail(Fault::on({function:?}).nth({nth}).with(CUresult::{status:?}))?;")
        });
        // Only a few pending faults, so that most operations succeed.
        if n[3].is_multiple_of(4) {
            self.machine.sim.clear_faults();
        }
        Done::of(self.machine.sim.fail(Fault::on(function).nth(nth).with(status)))
    }
}
