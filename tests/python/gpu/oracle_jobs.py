"""PyTorch's jobs for the oracle of the tuner, on one GPU or two.

    green-ctx-bench oracle --program "python oracle_jobs.py" --mix norm:16384,product:4096 --out FOLDER
    green-ctx-bench oracle --program "python oracle_jobs.py --ranks" --mix allreduce,products --out FOLDER
    python oracle_jobs.py --list
    python oracle_jobs.py --time [JOB ...]

The first form has this program prepare the jobs and run blocks of them, by lines of JSON (docs/oracle/README.md).
With --ranks it does so on two GPUs, each with a process of its own: then there is an all-reduce too. The last one
prints what an iteration of each job takes alone. A job is NAME[:SIZE]; all compute in bf16 and
without gradients, and are captured as `green_ctx_torch.tune` captures its users' functions.
"""

import gc
import json
import os
import socket
import subprocess
import sys
from datetime import timedelta

from green_ctx_torch import Job, _native, _ranks, _tuning

JOBS = {}
"""By name: the default size, what an iteration does, and a function that returns one."""


def job(size, about):
    """Marks a function of torch and a size that returns an iteration: a function of no arguments."""

    def mark(build):
        JOBS[build.__name__] = (size, about, build)
        return build

    return mark


def normal(torch, *shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def weight(torch, out, *into):
    """Weights that leave numbers as large as they are."""
    inputs = 1
    for count in into:
        inputs *= count
    return normal(torch, out, *into).mul_(inputs**-0.5)


@job(4096, "a product of two square matrices of SIZE rows")
def product(torch, size):
    a, b = normal(torch, size, size), normal(torch, size, size)
    c = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=c)


@job(8192, "two products of square matrices of SIZE rows, one after the other")
def products(torch, size):
    each = [product(torch, size) for _ in range(2)]

    def step():
        for one in each:
            one()

    return step


@job(16, "SIZE rows times each of four matrices of 8192 × 8192")
def skinny(torch, size):
    rows = normal(torch, size, 8192)
    # Together they are far larger than the cache.
    weights = [weight(torch, 8192, 8192) for _ in range(4)]
    outputs = [torch.empty_like(rows) for _ in weights]

    def step():
        for each, output in zip(weights, outputs, strict=True):
            torch.mm(rows, each, out=output)

    return step


HEADS, KEY_HEADS, HEAD = 32, 8, 128
HIDDEN, INNER = HEADS * HEAD, 14336
"""Of a model of 8 billion parameters."""


@job(4096, "causal attention over SIZE tokens, 32 heads of 128 numbers with 8 of keys")
def attention(torch, size):
    attend = torch.nn.functional.scaled_dot_product_attention
    query = normal(torch, 1, HEADS, size, HEAD)
    keys, values = (normal(torch, 1, KEY_HEADS, size, HEAD) for _ in range(2))
    return lambda: attend(query, keys, values, is_causal=True, enable_gqa=True)


@job(16384, "a layer norm of SIZE rows of 8192 numbers")
def norm(torch, size):
    normalize = torch.nn.functional.layer_norm
    rows, scale, shift = normal(torch, size, 8192), normal(torch, 8192), normal(torch, 8192)
    return lambda: normalize(rows, (8192,), scale, shift)


@job(256, "a copy of SIZE MiB to other memory of the device")
def copy(torch, size):
    source = torch.zeros(size << 20, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


BATCH, PAST = 16, 2048


class Layer:
    """A layer of the model with the cache of what came before."""

    def __init__(self, torch):
        self.functional = torch.nn.functional
        self.norms = [torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        self.widths = [HIDDEN, KEY_HEADS * HEAD, KEY_HEADS * HEAD]
        self.qkv = weight(torch, sum(self.widths), HIDDEN)
        self.out = weight(torch, HIDDEN, HIDDEN)
        self.gate_up = weight(torch, 2 * INNER, HIDDEN)
        self.down = weight(torch, HIDDEN, INNER)
        self.keys, self.values = (normal(torch, BATCH, KEY_HEADS, PAST, HEAD) for _ in range(2))

    def __call__(self, x):
        linear, rms_norm = self.functional.linear, self.functional.rms_norm
        attend, silu = self.functional.scaled_dot_product_attention, self.functional.silu
        h = rms_norm(x, (HIDDEN,), self.norms[0])
        query, key, value = linear(h, self.qkv).split(self.widths, dim=-1)
        # Each step is the same one, and writes to the same place.
        self.keys[:, :, -1] = key.view(BATCH, KEY_HEADS, HEAD)
        self.values[:, :, -1] = value.view(BATCH, KEY_HEADS, HEAD)
        query = query.view(BATCH, HEADS, 1, HEAD)
        h = attend(query, self.keys, self.values, enable_gqa=True)
        x = x + linear(h.reshape(BATCH, HIDDEN), self.out)
        gate, up = linear(rms_norm(x, (HIDDEN,), self.norms[1]), self.gate_up).chunk(2, dim=-1)
        return x + linear(silu(gate) * up, self.down)


@job(8, "one token in SIZE of 32 layers of an 8B-shaped model, for 16 sequences of 2048 tokens")
def decode(torch, size):
    layers = [Layer(torch) for _ in range(size)]
    tokens = normal(torch, BATCH, HIDDEN)
    output = torch.empty_like(tokens)

    def step():
        x = tokens
        for layer in layers:
            x = layer(x)
        output.copy_(x)

    return step


@job(64, "SIZE additions of 256 × 256 numbers, one after the other")
def small(torch, size):
    a, b = normal(torch, 256, 256), normal(torch, 256, 256)
    c = torch.empty_like(a)

    def step():
        for _ in range(size):
            torch.add(a, b, out=c)

    return step


@job(16, "inference of a stem and eight bottleneck blocks, as in ResNet-50, for SIZE images")
def conv(torch, size):
    functional = torch.nn.functional
    convolve, last = functional.conv2d, torch.channels_last

    def filters(out, into, side):
        shift = torch.zeros(out, device="cuda", dtype=torch.bfloat16)
        return weight(torch, out, into, side, side).contiguous(memory_format=last), shift

    images = normal(torch, size, 3, 224, 224).contiguous(memory_format=last)
    stem, blocks, channels = filters(64, 3, 7), [], 64
    for width, stride in [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]:
        narrow, middle = filters(width, channels, 1), filters(width, width, 3)
        wide = filters(4 * width, width, 1)
        past = filters(4 * width, channels, 1) if channels != 4 * width else None
        blocks.append((narrow, middle, wide, past, stride))
        channels = 4 * width
    output = torch.empty(size, channels, device="cuda", dtype=torch.bfloat16)

    def step():
        x = convolve(images, *stem, stride=2, padding=3).relu_()
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        for narrow, middle, wide, past, stride in blocks:
            y = convolve(x, *narrow).relu_()
            y = convolve(y, *middle, stride=stride, padding=1).relu_()
            x = x if past is None else convolve(x, *past, stride=stride)
            x = convolve(y, *wide).add_(x).relu_()
        output.copy_(x.mean((2, 3)))

    return step


@job(8192, "a sigmoid of SIZE² numbers")
def sigmoid(torch, size):
    return repeated_sigmoid(torch, size, 1)


@job(8192, "eight sigmoids of SIZE² numbers, one after the other")
def sigmoids(torch, size):
    return repeated_sigmoid(torch, size, 8)


def repeated_sigmoid(torch, size, count):
    x = normal(torch, size, size)
    y = torch.empty_like(x)

    def step():
        for _ in range(count):
            torch.sigmoid(x, out=y)

    return step


@job(256, "an all-reduce of SIZE MiB over two GPUs, with --ranks alone")
def allreduce(torch, size):
    import torch.distributed as dist

    if not dist.is_initialized():
        raise ValueError("an all-reduce needs two GPUs; use oracle_jobs.py --ranks")
    x = torch.ones((size << 20) // 2, device="cuda", dtype=torch.bfloat16)
    # The values stay what they are.
    return lambda: dist.all_reduce(x, op=dist.ReduceOp.AVG)


def build(torch, text):
    """An iteration of a job."""
    name, colon, given = text.partition(":")
    if name not in JOBS:
        raise ValueError(f"no job is named {name}; there are {', '.join(JOBS)}")
    size, _, build = JOBS[name]
    if colon:
        if not given.isascii() or not given.isdigit() or int(given) == 0:
            raise ValueError(f"the size of {name} is a whole number above 0, and not {given!r}")
        size = int(given)
    return build(torch, size)


class Mix:
    """Jobs that are ready to run, on all ranks where there are several."""

    def __init__(self, torch, named, ranks):
        self.ranks = ranks
        # The graphs do not keep what the functions have, such as weights.
        self.jobs = [(name, Job(build(torch, text), key=text)) for name, text in named]
        described = [(name, job.arrival, job.key) for name, job in self.jobs]
        self.tuner = _native._Tuner(described, "throughput", None, None, None, 1, None, ())
        self.works: list = []
        notes = _tuning._prepare(self.works, self.tuner, self.jobs, ranks)
        if notes:
            # What is called from Python is another job than the one that was meant.
            raise RuntimeError("; ".join(notes))

    def serve(self, lines, say):
        """Runs blocks, and returns the line that asks for something else; None at the end."""
        other = None

        def exchange(answer):
            nonlocal other
            say(json.dumps("ready") if answer is None else answer)
            line = next(lines, None)
            if line is not None and "task" in json.loads(line):
                return line
            other = line
            return None

        self.tuner.serve(self.works, exchange, self.ranks)
        return other


def serve(torch, lines, say, ranks=None):
    """Answers lines, each by one, until there is none. Of ranks the first one has the lines and says which the
    others need: not those of blocks."""
    lines = iter(lines)
    mix, line = None, next(lines, None)
    while line is not None:
        try:
            if ranks is not None:
                line = ranks.share(line)[0]
                if not line:
                    return
            asked = json.loads(line)
            if isinstance(asked, dict) and "prepare" in asked:
                # Of two mixes there may not be enough memory.
                mix = None
                gc.collect()
                torch.cuda.empty_cache()
                mix = Mix(torch, asked["prepare"], ranks)
            elif mix is None or asked != "again":
                raise ValueError(f"{line.strip()} is asked, and no mix is prepared for it")
            line = mix.serve(lines, say)
            if ranks is not None and ranks.rank > 0:
                line = next(lines)
        except Exception as error:
            say(json.dumps({"refused": f"{type(error).__name__}: {error}"}))
            if ranks is not None:
                # The other rank hears of it, and both are started anew.
                ranks.fail(str(error), False)
                return
            line = next(lines, None)
    if ranks is not None:
        ranks.share("")


def rank(torch, number, port):
    """Makes this process a rank of two, and returns what it has in common with the other."""
    import torch.distributed as dist

    os.environ.update(RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.cuda.set_device(number)
    device = torch.device("cuda", number)
    dist.init_process_group("nccl", timeout=timedelta(minutes=5), device_id=device)
    # NCCL connects at the first collective.
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    torch.cuda.synchronize()
    return _ranks._join(dist.group.WORLD)


def start_ranks(torch):
    """Starts the second rank, and returns this one."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    # What it prints is no line of this program's.
    subprocess.Popen([sys.executable, __file__, "--rank", port], stdin=subprocess.DEVNULL, stdout=2)
    return rank(torch, 0, port)


def hello(torch):
    """What this program runs on."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    sms, about = properties.multi_processor_count, f"PyTorch {torch.__version__}"
    return {"device": properties.name, "sms": sms, "about": about}


def measured(torch, text):
    """What a job does alone in a plain stream, as the tuner sees it."""
    block = {"duration": {"secs": 0, "nanos": 300_000_000}, "iterations": 10, "rounds": False, "first": 0}
    alone = {"task": {"alone": {"job": 0, "sms": None}}, "block": block}
    # A mix has two jobs. The first block lets the clocks rise.
    asked = [{"prepare": [["job", text], ["other", "small:1"]]}, alone, alone]
    answers = []
    serve(torch, map(json.dumps, asked), lambda line: answers.append(json.loads(line)))
    failed = [answer for answer in answers if answer != "ready" and "sample" not in answer]
    if failed:
        return str(failed[0])
    sample = answers[-1]["sample"]["jobs"][0]
    return f"{1e3 / sample['rate']:.3f} ms, {sample['rate']:.0f}/s; {sample['host_us']:.1f} µs of the host's"


def own_output():
    """What writes lines to standard output, to which nothing else is written from now on."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(line):
        output.write(f"{line}\n")
        output.flush()

    return say


def main(arguments):
    if arguments == ["--list"]:
        for name, (size, about, _) in JOBS.items():
            print(f"{name}:{size}".ljust(16), about)
        return 0
    if arguments and arguments[0] not in ("--time", "--ranks", "--rank"):
        print("usage: oracle_jobs.py [--list | --time [JOB ...] | --ranks]", file=sys.stderr)
        return 2
    import torch

    torch.set_grad_enabled(False)
    torch.cuda.init()
    if arguments[:1] == ["--rank"]:
        # It has no lines of its own, and says nothing.
        serve(torch, iter(lambda: "", None), lambda line: None, rank(torch, 1, arguments[1]))
        # Communicators wait for graphs, and graphs for the end of the interpreter.
        os._exit(0)
    if arguments[:1] == ["--time"]:
        print(json.dumps(hello(torch)))
        for text in arguments[1:] or JOBS:
            print(text.ljust(16), measured(torch, text), flush=True)
        return 0
    say = own_output()
    if arguments == ["--ranks"]:
        ranks = start_ranks(torch)
        say(json.dumps(hello(torch)))
        serve(torch, sys.stdin, say, ranks)
        os._exit(0)
    say(json.dumps(hello(torch)))
    serve(torch, sys.stdin, say)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
