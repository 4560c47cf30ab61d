"""Compiled functions and exported programs together with partitions: `python compiling.py [RESULTS.json]`."""

import warnings

import torch
from harness import check, main, raises
from probe import sms

import green_ctx_torch

SIZE = 1024


def one(share=16):
    return green_ctx_torch.partition({"a": share})["a"]


def operands():
    return torch.ones(SIZE, SIZE, device="cuda"), torch.ones(SIZE, SIZE, device="cuda")


@torch.library.custom_op("green_ctx_checks::where", mutates_args=())
def where(x: torch.Tensor) -> torch.Tensor:
    """Doubles a tensor, and notes the SMs that the current stream runs on."""
    SEEN.append(sms())
    return x * 2


@where.register_fake
def _(x):
    return torch.empty_like(x)


SEEN = []


@check
def a_block_in_a_compiled_function_breaks_the_graph():
    part = one()

    def step(x):
        x = where(x + 1)
        with part:
            x = where(x)
        return where(x - 1)

    x = torch.ones(8, device="cuda")
    expected, compiled = step(x), torch.compile(step)
    SEEN.clear()
    torch._dynamo.reset()
    for _ in range(3):
        assert torch.equal(compiled(x), expected)
    inside = sms(part.stream)
    assert len(inside) == part.sm_count
    for before, within, after in zip(*[iter(SEEN)] * 3, strict=True):
        assert within <= inside and len(before) > len(inside) < len(after)
    reasons = torch._dynamo.explain(step)(x).break_reasons
    assert reasons, "the graph was not broken"
    torch._dynamo.reset()
    whole = torch.compile(step, fullgraph=True)
    message = raises(torch._dynamo.exc.Unsupported, lambda: whole(x), "enter a `Partition`")
    torch._dynamo.reset()
    return {"fullgraph": message.splitlines()[0]}


class Product(torch.nn.Module):
    def forward(self, x, y):
        return x @ y + 1


class InBlock(torch.nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x, y):
        with self.part:
            return x @ y + 1


@check
def torch_export_does_not_drop_a_block():
    part, arguments = one(), operands()
    inner = InBlock(part)
    torch.export.export(Product(), arguments, strict=False)
    messages = {}
    for strict in (False, True):
        messages[f"strict={strict}"] = raises(
            Exception, lambda: torch.export.export(inner, arguments, strict=strict)
        ).splitlines()[0]
        torch._dynamo.reset()
    raises(
        RuntimeError,
        lambda: torch.export.export(inner, arguments, strict=False),
        "call the exported program inside one",
    )
    # The block is around the calls, not inside the program.
    with part:
        program = torch.export.export(Product(), arguments, strict=False).module()
        program(*arguments)
        with green_ctx_torch.watch() as watched:
            result = program(*arguments)
    assert watched.ok, watched
    assert torch.equal(result, Product()(*arguments))
    return messages


def reduced():
    """Returns a function compiled with CUDA graphs, and its operands."""
    torch._dynamo.reset()
    return torch.compile(lambda x, y: torch.relu(x @ y) + 1, mode="reduce-overhead"), operands()


def warm(compiled, arguments, count=4):
    for _ in range(count):
        result = compiled(*arguments)
    torch.cuda.synchronize()
    return result


def captures_of(call):
    """Returns how many captures torch begins during a call."""
    count, graph = [0], torch.cuda.CUDAGraph
    begin = graph.capture_begin

    def counted(self, *arguments, **named):
        count[0] += 1
        return begin(self, *arguments, **named)

    graph.capture_begin = counted
    try:
        call()
    finally:
        graph.capture_begin = begin
    return count[0]


@check
def a_closed_partition_gives_up_its_compiled_graphs():
    compiled, arguments = reduced()
    parts = green_ctx_torch.partition({"a": 16, "b": 16})
    a, b = parts.values()
    with b:
        kept = warm(compiled, arguments).clone()
    with a:
        warm(compiled, arguments)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    a.close()
    torch.cuda.empty_cache()
    given_up = before - torch.cuda.memory_reserved()
    assert given_up > 0, f"{before} bytes before and after"
    # The SMs are free, and the other partition need not capture again.
    again = green_ctx_torch.partition({"again": 16})["again"]
    with b:
        assert captures_of(lambda: warm(compiled, arguments, 1)) == 0
        assert torch.equal(compiled(*arguments), kept)
    again.close()
    parts.close()
    return {"bytes": given_up}


@check
def graphs_that_run_and_outputs_that_are_held_outlive_the_partition():
    compiled, arguments = reduced()
    a = one()
    with a:
        warm(compiled, arguments)
        torch.cuda._sleep(500_000_000)
        result = compiled(*arguments)
    # The replay has not begun on the device.
    a.close()
    torch.cuda.empty_cache()
    noise = [torch.full((SIZE, SIZE), -1.0, device="cuda") for _ in range(64)]
    expected = torch.relu(arguments[0] @ arguments[1]) + 1
    torch.cuda.synchronize()
    assert torch.equal(result, expected), "the output was overwritten"
    del noise, result


@check
def one_partition_after_the_other_leaves_no_memory():
    compiled, arguments = reduced()
    reserved = []
    for _ in range(20):
        a = one()
        with a:
            warm(compiled, arguments)
        a.close()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    # The first iterations allocate memory that stays, such as workspaces.
    assert reserved[-1] <= reserved[4], reserved
    return {"first": reserved[0], "last": reserved[-1]}


@check
def this_torch_fits():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        green_ctx_torch.sizing.install()
        compiled, arguments = reduced()
        with one():
            warm(compiled, arguments)
        green_ctx_torch.sizing.uninstall()
    misfits = [str(each.message) for each in caught if "green_ctx_torch expects" in str(each.message)]
    assert not misfits, misfits


if __name__ == "__main__":
    main()
