"""Shows where the work of other libraries runs, with and without a reserve of 32 SMs that they know nothing of.

    python reserved_clients.py RESULTS.json          # one GPU
    python reserved_clients.py RESULTS.json --two    # what needs two GPUs

Each client runs in a process of its own, with the library in front of the driver on the loader's path. CUPTI reports
the context of every kernel, and a probe the SMs of streams, threads and graphs in which it can be launched. The exit
status is 1 if a kernel ran elsewhere or a result is wrong. It needs nvcc, CUPTI's headers, and `in_front`.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import reserved_programs
from reserved_programs import HERE, RESERVED

PROGRAMS = ["memory", "graphs", "order"]


def near(found, expected, tolerance=2e-2):
    """Compares two tensors of the host. The tolerance is relative to the greatest element."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def on_both(call, *operands):
    """Computes on the GPU and on the host, and compares."""
    return near(call(*(each.cuda() for each in operands)), call(*operands))


def default():
    import probe
    import torch

    return on_both(torch.matmul, torch.randn(700, 900), torch.randn(900, 800)), probe.sms()


def pool():
    import probe
    import torch

    seen, right = set(), True
    for priority in (0, -1, -5):
        with torch.cuda.stream(torch.cuda.Stream(priority=priority)):
            right &= on_both(torch.matmul, torch.randn(700, 900), torch.randn(900, 800))
            seen |= probe.sms()
    return right, seen


def graph():
    import probe
    import torch

    a, b, out = torch.randn(700, 900), torch.randn(900, 800), probe.blocks()
    x, y = a.cuda(), b.cuda()
    probe.sms(), x @ y
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        z = x @ y
        probe.launch(out, torch.cuda.current_stream())
    captured.replay()
    torch.cuda.synchronize()
    return near(z, a @ b), set(out.tolist())


def backward():
    """A backward pass, whose functions run on autograd's own thread, and threads of the program."""
    import threading

    import probe
    import torch

    seen, threads = set(), set()

    class Probed(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 2

        @staticmethod
        def backward(context, gradient):
            seen.update(probe.sms())
            threads.add(threading.get_ident())
            return gradient * 2

    x = torch.randn(300, 300)
    y = x.cuda().requires_grad_()
    Probed.apply(y @ y).sum().backward()
    x.requires_grad_()
    (2 * (x @ x)).sum().backward()
    more = [threading.Thread(target=lambda: seen.update(probe.sms())) for _ in range(3)]
    for each in more:
        each.start()
    for each in more:
        each.join()
    return near(y.grad, x.grad) and threads != {threading.get_ident()}, seen


def compiled():
    import torch

    def f(x, y):
        return torch.nn.functional.gelu(x @ y).softmax(-1).cumsum(0)

    right = True
    for mode in ("default", "reduce-overhead"):
        built = torch.compile(f, mode=mode)
        for _ in range(4):
            x, y = torch.randn(256, 256), torch.randn(256, 256)
            right &= near(built(x.cuda(), y.cuda()), f(x, y))
    return right, ()


def attention():
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, right = torch.randn(2, 8, 512, 64, dtype=torch.bfloat16), True
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(q.double(), q.double(), q.double())
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            right &= near(attend(q.cuda(), q.cuda(), q.cuda()), expected)
    return right, ()


def cudnn():
    import copy

    import torch

    right, x = True, torch.randn(8, 16, 64, 64)
    net = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 8, 5))
    right &= near(copy.deepcopy(net).cuda()(x.cuda()), net(x))
    lstm, x = torch.nn.LSTM(256, 256, num_layers=2), torch.randn(64, 8, 256)
    return right and near(copy.deepcopy(lstm).cuda()(x.cuda())[0], lstm(x)[0]), ()


def loader():
    import torch

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            return torch.full((1000,), float(index))

    total = 0.0
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True):
        total += batch.cuda(non_blocking=True).sum().item()
    return total == 1000 * 63 * 32, ()


def triton():
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(to, x, y, size: tl.constexpr):
        at = tl.program_id(0) * size + tl.arange(0, size)
        tl.store(to + at, tl.load(x + at) + tl.load(y + at))

    @triton.jit
    def where(to):
        sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
        tl.store(to + tl.program_id(0), sm)

    x, y = torch.randn(1 << 20), torch.randn(1 << 20)
    to, seen = torch.empty(1 << 20, device="cuda"), torch.empty(100_000, dtype=torch.int32, device="cuda")
    add[(1024,)](to, x.cuda(), y.cuda(), 1024)
    where[(100_000,)](seen)
    return near(to, x + y), set(seen.tolist())


def jax():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp
    import numpy

    x = numpy.random.default_rng(1).standard_normal((600, 600), numpy.float32)
    found = jax.jit(lambda v: jnp.tanh(v @ v).sum(0))(x)
    gradient = jax.jit(jax.grad(lambda v: (v * v).sum()))(x)
    right = numpy.allclose(found, numpy.tanh(x @ x).sum(0), rtol=0.05, atol=1.0)
    return right and numpy.allclose(gradient, 2 * x, rtol=1e-3), ()


def cupy():
    import cupy
    import numpy

    x = numpy.random.default_rng(1).standard_normal((600, 600), numpy.float32)
    right = numpy.allclose(cupy.asnumpy(cupy.asarray(x) @ cupy.asarray(x)), x @ x, atol=1e-2)
    where = r'extern "C" __global__ void where(int* to) { asm volatile("mov.u32 %0, %%smid;" : "=r"(to[blockIdx.x])); }'
    kernel, seen = cupy.RawKernel(where, "where"), set()
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            to = cupy.zeros(20_000, dtype=cupy.int32)
            kernel((20_000,), (32,), (to,))
            seen |= set(cupy.asnumpy(to).tolist())
    return right, seen


def profiler():
    """torch.profiler uses CUPTI itself, so its own trace has the contexts."""
    import tempfile

    import probe
    import torch

    x = torch.randn(256, 256)
    x.cuda() @ x.cuda()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        y = x.cuda() @ x.cuda()
        seen = probe.sms()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        events = json.load(open(file.name, encoding="utf-8"))["traceEvents"]
    contexts = {each["args"]["context"] for each in events if each.get("cat") == "kernel"}
    return near(y, x @ x) and len(contexts) == 1, seen


def green_contexts():
    """Green contexts of torch, and how the resource that others get divides."""
    import probe
    import torch
    from cuda.bindings import driver

    torch.zeros(1, device="cuda")
    device = driver.cuDeviceGet(0)[1]
    _, whole = driver.cuDeviceGetDevResource(device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    splits = {}
    for count in (1, 2, 3, 4, 8):
        for least in (8, 16, 24, 32, 48):
            status, groups, made, left = driver.cuDevSmResourceSplitByCount(count, whole, 0, least)
            sizes = [each.sm.smCount for each in groups[:made]] if int(status) == 0 else int(status)
            splits[f"{count} x {least}"] = [sizes, left.sm.smCount if int(status) == 0 else None]
    seen, sizes, x = set(probe.sms()), {}, torch.randn(300, 300)
    right = True
    for count in (1, 8, 16, 24, 32, 48, 64):
        try:
            context = torch.cuda.green_contexts.GreenContext.create(count, 0)
            with torch.cuda.stream(context.Stream()):
                right &= on_both(torch.matmul, x, x)
                found = probe.sms()
            seen |= found
            sizes[count] = len(found)
        except RuntimeError as error:
            sizes[count] = str(error).splitlines()[0]
    return right, seen, {"resource": whole.sm.smCount, "splits": splits, "torch": sizes}


def moved():
    import probe
    import torch

    x = torch.randn(300, 300)
    there = x.cuda(0).to(1)
    with torch.cuda.device(1):
        right = near((there @ there).to(0), x @ x)
    return right, probe.sms()


def distributed():
    import torch
    import torch.distributed as dist

    rank = int(os.environ.get("RANK", -1))
    if rank < 0:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        done = subprocess.run([*command, __file__, "run", "distributed"], stdout=subprocess.PIPE, text=True, check=True)
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        right = len(answers) == 2 and all(each["right"] for each in answers)
        return right, (), {"ranks": answers}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    right = True
    for size in (1, 1 << 10, 1 << 24):
        x = torch.full((size,), float(rank + 1), device="cuda")
        dist.all_reduce(x)
        right &= bool((x == 3).all())
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        right &= bool((x == 6).all())
    torch.manual_seed(1)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, bias=False).cuda(), device_ids=[rank])
    x = torch.randn(2, 32, 64)
    net(x[rank].cuda()).sum().backward()
    right &= near(next(net.parameters()).grad, x.sum(1).mean(0).expand(64, 64))
    dist.barrier()
    dist.destroy_process_group()
    return right, ()


ONE = [default, pool, graph, backward, compiled, attention, cudnn, loader, triton, jax, cupy, profiler, green_contexts]
TWO = [moved, distributed]


def run(name):
    """Runs a client, and prints its answer."""
    right, seen, *more = {each.__name__: each for each in ONE + TWO}[name]()
    answer = {"right": bool(right), "sms": [len(seen)] if seen else [], **(more[0] if more else {})}
    print(json.dumps(answer | {"told": told()}), flush=True)


def told():
    """Returns the number of SMs that the driver says device 0 has."""
    device, count, cuda = ctypes.c_int(), ctypes.c_int(), ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == cuda.cuDeviceGetAttribute(ctypes.byref(count), 16, device) == 0
    return count.value


def watched(folder):
    """Returns the variables with which a process writes its contexts to a folder that has the compiled library."""
    return {"CUDA_INJECTION64_PATH": str(folder / "contexts"), "CONTEXTS": f"{folder}/contexts"}


def contexts(folder):
    """Returns the contexts of all processes since the last call: device, green, SMs, kernels, copies and memsets."""
    found = []
    for file in Path(folder).glob("contexts.*"):
        found += [[int(word) for word in line.split()] for line in file.read_text().splitlines()]
        file.unlink()
    return sorted(found)


def problems(case, found, reserved, total):
    answer, wrong = found["answer"], []
    if found["status"] != 0 or not (answer.get("right") or answer.get("wrong") in (0, [5 if "none" in case else 0] * 4)):
        wrong.append(f"status {found['status']}, answer {answer}")
    most = total - RESERVED if reserved else total
    if answer.get("told") != most or any(count > most for count in answer.get("sms", [])):
        wrong.append(f"it was told {answer.get('told')} SMs and saw {answer.get('sms')}; there are {most}")
    if case != "profiler" and not found["contexts"]:
        wrong.append("no kernel was seen")
    for device, green, sms, kernels, copies in found["contexts"]:
        # Copies may run on copy engines in any context.
        if not kernels:
            continue
        if green != reserved and case != "green_contexts" or reserved and (not green or sms > most):
            wrong.append(f"{kernels} kernels on device {device} in a context with {green=} and {sms} SMs")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--two", action="store_true", help="the clients that need two GPUs")
    parser.add_argument("--only", nargs="+", help="the names of the clients to run")
    parser.add_argument("--in-front", default=reserved_programs.in_front())
    parser.add_argument("--nvcc", default=reserved_programs.NVCC)
    options = parser.parse_args()
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    about = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    cases = [each.__name__ for each in (TWO if options.two else ONE)]
    cases += [] if options.two else ["memory", "graphs", "order blocking", "order none"]
    cases = options.only or cases
    results, total, failed = {"devices": about, "cases": {}}, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        front, folder = Path(folder, "front"), Path(folder)
        reserved_programs.front(front, options.in_front)
        reserved_programs.compiled(folder, options.nvcc, PROGRAMS)
        reserved_programs.compiled(folder, options.nvcc, ["contexts"], *cupti())
        for case in cases:
            for reserved in (False, True):
                name, *arguments = case.split()
                command = [folder / name, *arguments] if name in PROGRAMS else [sys.executable, __file__, "run", name]
                environment = dict(os.environ)
                if case != "profiler":
                    environment |= watched(folder)
                others = environment.get("LD_LIBRARY_PATH", "")
                if reserved:
                    environment["LD_LIBRARY_PATH"] = f"{front}:{others}"
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
                lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
                found = {"status": done.returncode, "answer": json.loads(lines[-1]) if lines else {}}
                found["contexts"] = contexts(folder)
                # The first program runs without a reserve, and is told all SMs.
                total = total or found["answer"].get("told", 0)
                found["problems"] = problems(case, found, reserved, total)
                failed += bool(found["problems"])
                label = f"{case}, {'with' if reserved else 'without'} a reserve"
                results["cases"][label] = found
                kept = {key: found[key] for key in ("answer", "contexts")}
                print("FAILED" if found["problems"] else "ok    ", label, json.dumps(kept), flush=True)
                if found["problems"]:
                    print(*found["problems"], done.stderr[-3000:], sep="\n       ", flush=True)
    reserved_programs.finish(results, failed, options.results)


def cupti():
    """Returns nvcc's flags for CUPTI: from CUDA's toolkit, or from NVIDIA's package for Python."""
    homes = [Path("/usr/local/cuda/extras/CUPTI"), *(Path(each, "nvidia/cu13") for each in sys.path)]
    for home in homes:
        for library in sorted([*home.glob("lib*/libcupti.so.*")]):
            if (home / "include/cupti.h").exists():
                flags = ["-shared", "-Xcompiler", "-fPIC", "-I", home / "include"]
                return [*flags, "-Xlinker", f"{library},-rpath={library.parent}"]
    sys.exit("CUPTI was not found")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2])
    else:
        main()
