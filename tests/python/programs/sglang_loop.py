"""SGLang's multiplexing loop of a release, with the plug-in, on the simulated driver.

    python sglang_loop.py FOLDER BREAKAGE

FOLDER has the folder `sglang` of a release. Its plug-in framework and its loop run as they are; torch, the model and
the scheduler around the loop are stand-ins. BREAKAGE is `none`, or `hooks` for a release that applies no hooks.
"""

import contextlib
import enum
import importlib.util
import sys
import types
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

HERE = Path(__file__).parents[1]
sys.path[:0] = [str(HERE / "fake_torch"), str(HERE)]

import libtorch  # noqa: E402

libtorch.load()
import torch  # noqa: E402

FOLDER, BREAKAGE = Path(sys.argv[1]) / "sglang", sys.argv[2]
#: What runs as the release has it.
REAL = ("plugins", "plugins.hook_registry", "multiplex.pdmux_context", "multiplex.multiplexing_mixin")
LAYERS = 8


class Stop(Exception):
    """Ends the loop."""


# torch.


class Stream:
    """A plain stream, by a handle that no driver knows."""

    handles = iter(range(0x2000, 0x3000, 16))

    def __init__(self, device=None, priority=0):
        self.cuda_stream = next(self.handles)

    def synchronize(self):
        seen["synchronize"] += 1

    def record_event(self):
        return Event()


class Event:
    def __init__(self, enable_timing=False):
        pass

    def record(self, stream=None):
        pass

    def query(self):
        return True

    def elapsed_time(self, other):
        return 1.0


@contextlib.contextmanager
def stream(chosen):
    before = libtorch.current()
    libtorch.make_current(chosen.cuda_stream)
    try:
        yield
    finally:
        libtorch.make_current(before)


def stand_in_torch():
    torch.cuda.Stream, torch.cuda.Event, torch.cuda.stream = Stream, Event, stream
    torch.cuda.ExternalStream.synchronize = Stream.synchronize
    torch.cuda.ExternalStream.record_event = Stream.record_event
    torch.cuda.empty_cache = lambda: None
    torch.cuda.current_stream = lambda: SimpleNamespace(cuda_stream=libtorch.current())
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
    torch.zeros = lambda *shape, **named: SimpleNamespace(item=lambda: 0)
    torch.ones = lambda *shape, **named: SimpleNamespace(item=lambda: 1)
    torch.int32 = None
    torch.inference_mode = lambda: lambda function: function
    for name, contents in {
        "torch.distributed": SimpleNamespace(ReduceOp=MagicMock()),
        "torch.cuda.streams": SimpleNamespace(ExternalStream=torch.cuda.ExternalStream),
        "yaml": SimpleNamespace(),
    }.items():
        module = types.ModuleType(name)
        module.__dict__.update(vars(contents))
        sys.modules[name] = module
    torch.distributed = sys.modules["torch.distributed"]


# The parts of SGLang that are not its loop.


class ForwardMode(enum.Enum):
    SPLIT_PREFILL = enum.auto()
    DECODE = enum.auto()


class ServerArgs:
    def __init__(self, **named):
        self.__dict__.update(
            dict(
                enable_pdmux=False,
                pdmux_config_path=None,
                sm_group_num=8,
                chunked_prefill_size=2048,
                enable_mixed_chunk=False,
                disable_overlap_schedule=False,
            )
            | named
        )
        self.__post_init__()

    def __post_init__(self):
        pass


class TpModelWorker:
    def __init__(self):
        self.model_runner = ModelRunner()

    def forward_batch_split_prefill(self, batch):
        batch.split_forward_batch = SimpleNamespace(ngram_embedding_info=None)
        # What 0.5.12 passes.
        return self.model_runner.sample("logits", SimpleNamespace())


class ModelRunner:
    def __init__(self):
        self.model = SimpleNamespace(forward_split_prefill=True)
        self.decode_attn_backend_group = []
        self.decode_attn_backend = None

    def init_attention_backends(self):
        self.init_attention_backend()

    def init_attention_backend(self):
        self.decode_attn_backend_group = ["backend"]

    def sample(self, logits_output, forward_batch):
        return logits_output, forward_batch

    def update_decode_attn_backend(self, stream_idx):
        self.decode_attn_backend = self.decode_attn_backend_group[stream_idx]


class GraphRunner:
    def __init__(self, model_runner):
        self.model_runner = model_runner

    def maybe_init_pdmux(self):
        self.stream_groups = context().get_stream_groups()

    def _make_graph_key(self, size, stream_idx=None, variant_label=None):
        return size, stream_idx, variant_label


class Batch:
    """Requests: those that decode, or a prefill."""

    def __init__(self, size, tokens=0):
        self.size, self.extend_num_tokens = size, tokens
        self.split_index, self.split_forward_count, self.split_prefill_finished = 0, 1, False

    def is_empty(self):
        return self.size == 0

    def batch_size(self):
        return self.size

    def merge_batch(self, other):
        self.size += other.size


seen = Counter()


def modules():
    """Stand-ins for all modules of the release but those that run."""

    def package(name, **contents):
        module = types.ModuleType(name)
        module.__path__ = [str(FOLDER.joinpath(*name.split(".")[1:]))]
        module.__spec__ = importlib.util.spec_from_loader(name, None, origin=str(FOLDER / "__init__.py"))
        module.__dict__.update(contents)
        sys.modules[name] = module
        outer, _, own = name.rpartition(".")
        if outer:
            setattr(sys.modules[outer], own, module)

    package("sglang")
    for name in ("", ".managers", ".model_executor", ".model_executor.runner", ".multiplex", ".distributed"):
        package(f"sglang.srt{name}")
    none = SimpleNamespace(get=lambda: None)
    package("sglang.srt.environ", envs=SimpleNamespace(SGLANG_PLUGINS=none, SGLANG_PLATFORM=none))
    groups = contextlib.nullcontext
    package(
        "sglang.srt.distributed.parallel_state",
        set_pdmux_status=lambda on: None,
        pdmux_prefill_tp_group=groups,
    )
    package("sglang.srt.model_executor.forward_batch_info", ForwardMode=ForwardMode)
    arguments = lambda: SimpleNamespace(pdmux_config_path=scheduler_arguments.pdmux_config_path)  # noqa: E731
    package(
        "sglang.srt.runtime_context",
        get_disagg=arguments,
        get_device=lambda: SimpleNamespace(gpu_id=0),
        get_parallel=lambda: SimpleNamespace(tp_size=1),
    )
    package("sglang.srt.server_args", ServerArgs=ServerArgs)
    package("sglang.srt.managers.tp_worker", TpModelWorker=TpModelWorker)
    package("sglang.srt.model_executor.model_runner", ModelRunner=ModelRunner)
    package("sglang.srt.model_executor.cuda_graph_runner", CudaGraphRunner=GraphRunner)
    package("sglang.srt.model_executor.runner.decode_cuda_graph_runner", DecodeCudaGraphRunner=GraphRunner)
    package("sglang.srt.managers.scheduler", Scheduler=type("Scheduler", (), {"get_internal_state": state}))


def state(self, recv_req):
    return SimpleNamespace(internal_state={})


def context():
    return sys.modules["sglang.srt.multiplex.pdmux_context"]


def make_scheduler():
    from sglang.srt.multiplex.multiplexing_mixin import SchedulerMultiplexMixin

    class Scheduler(SchedulerMultiplexMixin):
        """Three prefills of 1000 tokens beside decode, and decode that ends."""

        def __init__(self):
            self.server_args, self.gpu_id, self.tp_size = scheduler_arguments, 0, 1
            self.tp_worker = TpModelWorker()
            self.running_batch = Batch(0)
            self.model_config = SimpleNamespace(num_hidden_layers=LAYERS)
            self.request_receiver = SimpleNamespace(recv_requests=self.recv_requests)
            self.tp_cpu_group = MagicMock()
            self.waiting, self.steps, self.log = [1, 1, 6], 0, []
            self.init_pdmux()
            self.tp_worker.model_runner.init_attention_backends()

        def recv_requests(self):
            self.steps += 1
            if self.steps > 60:
                raise Stop
            return []

        def ingest_requests(self):
            self.recv_requests()

        def process_input_requests(self, requests):
            pass

        def get_new_batch_prefill(self, running_batch=None):
            # Some steps of decode alone come first.
            batch = Batch(self.waiting.pop(0), 1000) if self.waiting and self.steps % 4 == 1 else None
            if running_batch is None:
                return batch
            return SimpleNamespace(batch_to_run=batch, running_batch=running_batch)

        def update_running_batch(self, batch):
            if self.steps == 50:
                batch.size = 0
            return batch

        def on_idle(self):
            seen["idle"] += 1

        def run_batch(self, batch):
            kind = "prefill" if batch is self.split_prefill_batch else "decode"
            if kind == "prefill":
                _, sampled = self.tp_worker.forward_batch_split_prefill(batch)
                assert hasattr(sampled, "ngram_embedding_info") == has_wrong_sample, "the mend"
            group = context().get_current_stream_idx()
            layers = batch.split_forward_count if kind == "prefill" else 0
            self.log.append((kind, group, libtorch.current(), layers, plugin.installed.groups.plan()))
            return SimpleNamespace()

        def process_batch_result(self, batch, result):
            pass

    return Scheduler()


def main():
    global plugin, scheduler_arguments, has_wrong_sample
    stand_in_torch()
    modules()
    from sglang.srt import plugins
    from sglang.srt.plugins.hook_registry import HookRegistry

    if BREAKAGE != "none":
        apply = HookRegistry._apply_target.__func__

        def failing(cls, target, hooks):
            if target.endswith(BREAKAGE):
                raise RuntimeError("not applied")
            apply(cls, target, hooks)

        HookRegistry._apply_target = classmethod(failing)
    plugins.load_plugins()
    from green_ctx_torch.engines.sglang import plugin

    has_wrong_sample = plugin.installed.sources.has_wrong_sample()
    scheduler_arguments = ServerArgs()
    assert scheduler_arguments.enable_pdmux and scheduler_arguments.chunked_prefill_size == -1
    scheduler = make_scheduler()
    groups = plugin.installed.groups
    with contextlib.suppress(Stop):
        scheduler.event_loop_pdmux()
    check(scheduler, groups)
    print("ok", Counter((kind, group) for kind, group, *_ in scheduler.log))


def check(scheduler, groups):
    by_kind = {kind: [each for each in scheduler.log if each[0] == kind] for kind in ("prefill", "decode")}
    # Decode always runs on its one stream, in a partition.
    assert {handle for _, _, handle, *_ in by_kind["decode"]} == {groups.decode.cuda_stream}
    streams = {0: groups.plain.cuda_stream} | {i + 1: s.cuda_stream for i, s in enumerate(groups.prefill)}
    assert all(handle == streams[group] for _, group, handle, *_ in by_kind["prefill"]), by_kind["prefill"]
    # The first prefill has nothing beside it: all layers at once, on all SMs. Others follow the setting.
    assert by_kind["prefill"][0][1:4] == (0, groups.plain.cuda_stream, LAYERS)
    beside = [each for each in by_kind["prefill"] if each[1] > 0]
    assert beside and all(layers == 2 for *_, layers, _ in beside), beside
    # The plan is that of the group, where there is one.
    assert all(plan == group - 1 for _, group, _, _, plan in beside), beside
    # One stream's graphs are captured, and all groups' keys are its.
    runner = GraphRunner(scheduler.tp_worker.model_runner)
    runner.maybe_init_pdmux()
    assert runner.stream_groups == [groups.streams[0]]
    assert {runner._make_graph_key(4, i) for i in range(4)} == {(4, 0, None)}
    assert runner._make_graph_key(4) == (4, None, None)
    assert len(list(scheduler.tp_worker.model_runner.decode_attn_backend_group)) == 1
    # Off and on again.
    scheduler.green_ctx_use(shares=False)
    assert {s.cuda_stream for pair in groups.streams for s in pair} == {
        groups.plain.cuda_stream,
        groups.plain_decode.cuda_stream,
    }
    scheduler.green_ctx_use(shares=True)
    assert groups.streams[1] == (groups.prefill[0], groups.decode)
    # Other shares.
    scheduler.green_ctx_change("decode=16..,prefill=..116;decode=40..,prefill=..92,batch=2")
    context().set_current_stream_idx(2)
    assert (groups.plan(), groups.plans.active["decode"].floor) == (1, 40)
    from sglang.srt.managers.scheduler import Scheduler

    reported = Scheduler().get_internal_state(None).internal_state["green_ctx"]
    assert reported["is_on"] and reported["plans"][0]["decode_floor"] == 16, reported


main()
