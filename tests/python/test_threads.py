"""Threads: a call that waits lets other Python threads run."""

import random
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import driver
import pytest
from green_ctx_torch import PlanSet, partition, verify

DAY = {"decode": 16, "prefill": "rest"}
NIGHT = {"decode": 64, "prefill": "rest"}


def all_at_once(count, work):
    """Runs a function on several threads, and raises the first exception of any of them."""
    failures = []
    start = threading.Barrier(count)

    def run(index):
        try:
            start.wait()
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=[index], daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread waits for ever"
    if failures:
        raise failures[0]


def test_threads_make_and_close_partitions(fake_torch):
    def work(index):
        chance = random.Random(index)
        for _ in range(50):
            streams = []
            with closing(partition({f"a{index}": 8, f"b{index}": 8})) as parts:
                streams += [part.create_stream() for part in parts.values()]
                raw = [stream.cuda_stream for stream in streams]
                if chance.random() < 0.1:
                    assert verify(parts).ok
                if chance.random() < 0.5:
                    streams.clear()
                    raw = [part.raw_stream for part in parts.values()]
                for address in raw:
                    driver.synchronize(address)
            # The SMs stay in use while one of these streams exists.
            streams.clear()

    # Eight threads need 16 of 132 SMs each. All fit, so no thread may fail.
    all_at_once(8, work)


def test_threads_share_partitions(fake_torch):
    with closing(partition({"a": 16, "b": "rest"})) as parts:

        def work(index):
            for _ in range(100):
                stream = parts["ab"[index % 2]].create_stream()
                assert parts["a"].raw_stream != stream.cuda_stream

        all_at_once(8, work)


def test_one_thread_closes_what_others_use(fake_torch):
    for _ in range(20):
        a = partition({"a": 16})["a"]

        def work(index):
            if index == 0:
                a.close()
                return
            try:
                for _ in range(20):
                    a.create_stream()
            except RuntimeError as error:
                assert "partition a is closed" in str(error)

        all_at_once(4, work)


def test_threads_switch_and_ask():
    with closing(PlanSet({"day": DAY, "night": NIGHT})) as plans:

        def work(index):
            for turn in range(50):
                if index % 2:
                    plans.switch(["day", "night"][turn % 2])
                else:
                    assert plans.active.name in plans.plans

        all_at_once(8, work)


def test_what_waits_lets_python_go_on(python):
    folder = str(Path(__file__).parent)
    calls = "partition plans prepare switch verify info retarget end unregister"
    assert python(WAITS, folder).split() == calls.split()


# In each call, the driver waits until another Python thread has run. If the call held the GIL, it would never
# return, and the test's time limit would end it.
WAITS = """
import ctypes, sys, threading, time
sys.path.append(sys.argv[1])
import driver
from green_ctx_torch import PlanSet, info, partition, retarget, runtime, verify

DAY, NIGHT = {"a": 8, "b": 8}, {"a": 16}
holder = partition({"holder": 8})["holder"]

def waits(name, call):
    go_on = driver.hold(holder.raw_stream)
    def other():
        time.sleep(0.1)
        go_on()
    thread = threading.Thread(target=other)
    start = time.monotonic()
    thread.start()
    result = call()
    assert time.monotonic() - start >= 0.09, f"{name} did not wait"
    thread.join()
    print(name, flush=True)
    return result

parts = waits("partition", lambda: partition({"c": 8, "d": 8}))
plans = waits("plans", lambda: PlanSet({"day": DAY}, sm_count=16))
waits("prepare", lambda: plans.prepare("night", NIGHT))
driver.keep_busy(plans.active.partitions["a"].raw_stream)
waits("switch", lambda: plans.switch("night", drain_ms=60_000))
waits("verify", lambda: verify(parts))
waits("info", info)
stream = parts["c"].raw_stream
memory = driver.Memory(64, stream)
graph = driver.capture(stream, lambda: memory.fill(1, stream))
waits("retarget", lambda: retarget(graph, parts["d"]))
plans = [plans]
waits("end", plans.clear)
host = ctypes.create_string_buffer(64)
runtime.host_register(ctypes.addressof(host), 64)
waits("unregister", lambda: runtime.host_unregister(ctypes.addressof(host)))
memory.free(stream)
driver.destroy_graph(graph)
"""


@pytest.mark.parametrize("calls", [[], ["divide"]])
def test_daemon_threads_within_calls_end_with_the_process(calls):
    program = Path(__file__).parent / "programs" / "daemons.py"
    for seconds in (0.05, 0.1, 0.2):
        ended = subprocess.run(
            [sys.executable, program, str(seconds), *calls],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, (ended.returncode, ended.stderr)
