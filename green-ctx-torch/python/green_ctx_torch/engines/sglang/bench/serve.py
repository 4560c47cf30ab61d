"""One start of the engine: one arm or several, and all their loads. `python -m green_ctx_torch.engines.sglang.bench` starts it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from green_ctx_torch.engines import sglang as plugin
from green_ctx_torch.engines.sglang.bench.arms import Arm
from green_ctx_torch.engines.sglang.bench.load import Load, Request

#: Shapes of models, as Hugging Face's configurations have them. The weights are random.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "rope_theta": 500000.0,
    },
    "codellama-34b": {
        "hidden_size": 8192,
        "intermediate_size": 22016,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "rope_theta": 1000000.0,
    },
    "two-layers": {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "rope_theta": 10000.0,
    },
}


def write_model(shape: str, folder: Path) -> int:
    """Writes a model's configuration, and returns the size of its vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **SHAPES[shape],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return int(config["vocab_size"])


def arguments(arm: Arm, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """What `sglang.Engine` is called with."""
    sizes = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    made: dict[str, Any] = {
        "model_path": str(folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "context_length": 16384,
        "attention_backend": "fa3",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_radix_cache": True,
        "mem_fraction_static": 0.8,
        "cuda_graph_bs": sizes,
        "cuda_graph_max_bs": max(sizes),
        "max_running_requests": max(sizes),
        "max_prefill_tokens": 16384,
        "disable_piecewise_cuda_graph": True,
        "incremental_streaming_output": True,
        "stream_interval": 1,
        "random_seed": 1,
        "log_level": "info",
        **arm.arguments,
    }
    if arm.budget is not None:
        groups = len(arm.divisions) + 2 if arm.divisions else 8
        lines = [f"sm_group_num: {groups}", f"split_forward_token_budget: {arm.budget}"]
        if arm.divisions:
            lines += ["manual_divisions:", *(f"  - {list(each)}" for each in arm.divisions)]
        path = folder / "pdmux.yaml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        made |= {
            "enable_pdmux": True,
            "pdmux_config_path": str(path),
            "sm_group_num": groups,
            "chunked_prefill_size": -1,
            "disable_overlap_schedule": True,
        }
    return {**made, **options}


async def ask(engine: Any, start: float, request: Request, record: dict[str, Any]) -> None:
    """Sends one request when it is due, and notes when its tokens come, in ms after its arrival."""
    due = start + request.arrival
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    record["late"] = round((time.perf_counter() - due) * 1e3, 2)
    parameters = {"max_new_tokens": request.output, "temperature": 0.0, "ignore_eos": True}
    chunks = await engine.async_generate(input_ids=request.prompt, sampling_params=parameters, stream=True)
    async for chunk in chunks:
        now = round((time.perf_counter() - due) * 1e3, 2)
        count = chunk["meta_info"]["completion_tokens"]
        record["tokens"] += [now] * (count - len(record["tokens"]))


async def serve(engine: Any, requests: Sequence[Request], limit: float) -> list[dict[str, Any]]:
    """Sends all requests, and waits for them until the limit, in seconds."""
    records: list[dict[str, Any]] = [
        {"arrival": round(each.arrival, 4), "prompt": len(each.prompt), "output": each.output, "tokens": []}
        for each in requests
    ]
    start = time.perf_counter() + 0.1
    tasks = [asyncio.ensure_future(ask(engine, start, *pair)) for pair in zip(requests, records, strict=True)]
    _done, late = await asyncio.wait(tasks, timeout=limit)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=10)
        with contextlib.suppress(Exception):
            engine.tokenizer_manager.abort_request(abort_all=True)
        await asyncio.sleep(1)
    return records


def append(out: Path, entry: dict[str, Any]) -> None:
    """Adds a line to a file, at once: what was measured survives whatever comes after."""
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, separators=(",", ":")) + "\n")


async def measure(engine: Any, arm: Arm, load: Load, vocabulary: int) -> dict[str, Any]:
    """One arm under one load, after two seconds of other requests."""
    await serve(engine, Load(load.rate, 2, load.seed + 1000, load.arrivals).requests(vocabulary), 60)
    with contextlib.suppress(Exception):
        await engine.tokenizer_manager.freeze_gc()
    gc.collect()
    gc.freeze()
    gc.disable()
    started = time.perf_counter()
    records = await serve(engine, load.requests(vocabulary), load.seconds + 30)
    gc.enable()
    return {
        "arm": arm.name,
        "family": arm.family,
        "load": load.name,
        "rate": load.rate,
        "seconds": load.seconds,
        "seed": load.seed,
        "arrivals": load.arrivals,
        "took": round(time.perf_counter() - started, 2),
        "requests": records,
    }


def main() -> None:
    work = [(Arm.from_json(arm), [Load(**load) for load in loads]) for arm, loads in json.loads(sys.argv[1])]
    shape, folder, out = sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    options = json.loads(sys.argv[5])
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    vocabulary = write_model(shape, folder)
    began = time.perf_counter()
    import sglang  # type: ignore[import-not-found]

    engine = sglang.Engine(**arguments(work[0][0], folder, options))
    ready = round(time.perf_counter() - began, 2)
    print(f"  ready after {ready:.0f} s", flush=True)
    # What is compiled at its first use, and allocators.
    lengths = (40, 8000, 200, 3000, 900, 1500) * 4
    warm = [Request(0.05 * i, [17 + i] * length, 24) for i, length in enumerate(lengths)]
    engine.loop.run_until_complete(serve(engine, warm, 200))
    for number, (arm, loads) in enumerate(work):
        if number:
            plugin.change(engine, arm.variable)
        for load in loads:
            entry = engine.loop.run_until_complete(measure(engine, arm, load, vocabulary))
            append(out, {**entry, "ready": ready, "first_arm": work[0][0].name})
            print(f"  {arm.name}: {load.name}, {entry['took']:.0f} s", flush=True)
        state = engine.get_server_info()["internal_states"][0]
        append(
            out, {"arm": arm.name, "state": {key: state.get(key) for key in ("green_ctx", "memory_usage")}}
        )
    engine.shutdown()


if __name__ == "__main__":
    main()
