# SPDX-License-Identifier: BSD-3-Clause
"""Readers beside a writer, a second writer, forked children, kills, signals, and no torch."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore._state.encode import Encoded
from optional import skip_without_torch, torch
from same import same

WRITER = """
import sys, torch, lmcstore
store = lmcstore.open(sys.argv[1], background=len(sys.argv) > 2)
shelf = store["run"]
step = 0
print("ready", flush=True)
while True:
    shelf.snapshot({"t": torch.full((50_000,), float(step)), "step": step}, step=step)
    print(step, flush=True)
    step += 1
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    skip_without_torch(code)
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_reading_while_another_process_writes(pool_path: str) -> None:
    writer = start(WRITER, pool_path, "background")
    try:
        assert line(writer) == "ready"
        while line(writer) != "3":
            pass
        with lmcstore.open(pool_path, mode="r") as store:
            shelf = store["run"]
            seen = 0
            views = []
            for _ in range(60):
                latest = shelf.latest
                assert latest is not None and latest.number >= seen
                seen = latest.number
                state = latest.state_dict()
                assert state["step"] == latest.step and bool((state["t"] == float(latest.step)).all())
                old = shelf[1 + seen // 2].state_dict()
                assert bool((old["t"] == float(old["step"])).all())
                views.append((state, latest.step))
                line(writer)
            assert seen > 4
            for state, step in views:
                assert bool((state["t"] == float(step)).all())
    finally:
        writer.kill()
        writer.wait()


def test_one_writer(pool_path: str) -> None:
    writer = start(WRITER, pool_path)
    try:
        assert line(writer) == "ready"
        started = time.monotonic()
        with pytest.raises(lmcstore.InUseError, match=str(writer.pid)):
            lmcstore.open(pool_path, wait=0.5)
        assert time.monotonic() - started > 0.4
    finally:
        writer.kill()
        writer.wait()
    with lmcstore.open(pool_path) as store:
        assert store["run"].snapshot({}).number >= 1


def test_each_rank_needs_a_pool(pool_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = start(WRITER, pool_path)
    try:
        assert line(writer) == "ready"
        stem = pool_path.removesuffix(".pool")
        for variable, rank in (("RANK", "3"), ("LOCAL_RANK", "1")):
            monkeypatch.delenv("RANK", raising=False)
            monkeypatch.setenv(variable, rank)
            with pytest.raises(lmcstore.InUseError, match=str(writer.pid)) as caught:
                lmcstore.open(pool_path, wait=0)
            message = str(caught.value)
            assert f"{variable}={rank}, can open test.{rank}.pool" in message
            assert f"lmcstore.open(f'{stem}.{{rank}}.pool')" in message
            assert (caught.value.errno, caught.value.bytes_needed) == (0, 0)
        lmcstore.open(f"{stem}.3.pool", wait=0).close()
    finally:
        writer.kill()
        writer.wait()


def test_a_writer_that_waits_gets_its_turn(pool_path: str) -> None:
    writer = start(WRITER, pool_path)
    assert line(writer) == "ready"
    waiter = start("import sys, lmcstore; lmcstore.open(sys.argv[1], wait=600).close(); print('done')", pool_path)
    time.sleep(1)
    writer.kill()
    writer.wait()
    assert line(waiter) == "done"
    assert waiter.wait() == 0


def test_killed_anywhere(pool_path: str) -> None:
    for round_number in range(6):
        writer = start(WRITER, pool_path, *(["background"] if round_number % 2 else []))
        last = -1
        assert line(writer) == "ready"
        end = time.monotonic() + 0.3 + 0.05 * round_number
        while time.monotonic() < end:
            last = int(line(writer))
        writer.send_signal(signal.SIGKILL)
        assert writer.stdout is not None
        rest = writer.stdout.read().split()
        writer.wait()
        last = int(rest[-1]) if rest else last
        with lmcstore.open(pool_path) as store:
            latest = store["run"].latest
            assert latest is not None and latest.step in (last, last + 1)
            state = latest.state_dict()
            assert state["step"] == latest.step and bool((state["t"] == float(latest.step)).all())
            assert store.verify()["damages"] == 0


def test_forked_child_lets_go(pool_path: str) -> None:
    store = lmcstore.open(pool_path)
    shelf = store["run"]
    snapshot = shelf.snapshot({"t": torch.arange(1000.0)})
    view = snapshot.state_dict()
    pending = shelf.snapshot({"t": torch.arange(1000.0)}, wait=False)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert view["t"][5] == 5
            view["t"][5] = 7
            for use in (lambda: shelf.snapshot({}), lambda: shelf.latest, store.info):
                try:
                    use()
                except lmcstore.Error:
                    continue
                os._exit(2)
            del view, snapshot, pending
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pending.wait()
    assert view["t"][5] == 5
    assert shelf.snapshot({"t": torch.zeros(1)}).number == 3
    store.close()


def test_forked_child_reads_what_its_parent_lets_go(pool_path: str) -> None:
    store = lmcstore.open(pool_path, background=False)
    shelf = store["run"]
    view = shelf.snapshot({"t": torch.full((1 << 17,), 1.0)}).state_dict()
    shelf.live["a"] = np.full(1 << 16, 1.0)
    array = shelf.live["a"]
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(100)
            os.close(tell)
            os.read(told, 1)
            # Not by torch, whose computing threads are the parent's.
            code = 0 if bool((view["t"].numpy() == 1).all()) and bool((array == 1).all()) else 2
        finally:
            os._exit(code)
    os.close(told)
    del view, array
    gc.collect()
    shelf.live["a"] = np.full(10, 2.0)
    shelf.remove(1)
    for i in range(8):
        shelf.live[f"b{i}"] = np.full(1 << 16, 7.0 + i)
        shelf.remove(shelf.snapshot({"t": torch.full((1 << 17,), 7.0 + i)}).number)
        store.compact()
    os.close(tell)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.close()


def test_forked_child_exits_in_peace(pool_path: str, run_python: Any) -> None:
    code = """
import os, sys, torch, lmcstore
store = lmcstore.open(sys.argv[1])
shelf = store["run"]
kept = [shelf.snapshot({"t": torch.ones(1000)}, wait=False) for _ in range(3)]
view = kept[0].state_dict()
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
kept[2].wait()
store.close()
assert len(lmcstore.open(sys.argv[1])["run"]) == 3
"""
    done = run_python(code, pool_path)
    assert done.returncode == 0, done.stderr


def test_a_child_that_outlives_its_killed_parent(pool_path: str) -> None:
    code = """
import os, sys, time, torch, lmcstore
store = lmcstore.open(sys.argv[1])
store["run"].snapshot({"t": torch.ones(1000)})
child = os.fork()
if child == 0:
    time.sleep(3600)
    os._exit(0)
print(child, flush=True)
time.sleep(3600)
"""
    parent = start(code, pool_path)
    child = int(line(parent))
    try:
        parent.kill()
        parent.wait()
        with lmcstore.open(pool_path, wait=600) as store:
            assert store["run"].snapshot({}).number == 2
    finally:
        os.kill(child, signal.SIGKILL)


def test_data_loader_workers(pool_path: str, run_python: Any) -> None:
    code = """
import sys, torch, lmcstore
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __init__(self, table):
        self.table = table
    def __len__(self):
        return len(self.table)
    def __getitem__(self, index):
        return self.table[index]

if __name__ == "__main__":
    with lmcstore.open(sys.argv[1]) as store:
        shelf = store["run"]
        table = shelf.snapshot({"table": torch.arange(64.0)})["table"]
        for epoch in range(2):
            total = 0.0
            for batch in DataLoader(Numbers(table), batch_size=8, num_workers=2, multiprocessing_context="fork"):
                total += float(batch.sum())
                last = shelf.snapshot({"total": torch.tensor(total)}, wait=False)
            assert total == 64 * 63 / 2, total
        last.wait()
        assert len(shelf) == 17
"""
    done = run_python(code, pool_path)
    assert done.returncode == 0, done.stderr


def test_interrupting_a_wait_for_the_lock(pool_path: str) -> None:
    writer = start(WRITER, pool_path)
    assert line(writer) == "ready"
    waiter = start(
        "import sys, lmcstore\ntry: print('waiting', flush=True); lmcstore.open(sys.argv[1], wait=3600)\n"
        "except KeyboardInterrupt: print('stopped', flush=True)",
        pool_path,
    )
    try:
        assert line(waiter) == "waiting"
        time.sleep(0.5)
        waiter.send_signal(signal.SIGINT)
        assert line(waiter) == "stopped"
        assert waiter.wait(timeout=600) == 0
    finally:
        writer.kill()
        writer.wait()


def test_import_is_light(run_python: Any) -> None:
    done = run_python(
        "import sys, lmcstore\nassert not {'torch', 'numpy', 'ml_dtypes'} & set(sys.modules)\n"
        "import logging; assert not logging.getLogger('lmcstore').handlers"
    )
    assert done.returncode == 0 and done.stderr == done.stdout == "", done.stderr


def test_without_torch(pool_path: str, run_python: Any) -> None:
    with lmcstore.open(pool_path) as store:
        store["run"].snapshot({"t": torch.ones(3), "n": 1, "l": [1.5]})
    code = """
import sys
sys.modules["torch"] = None
import lmcstore, numpy
with lmcstore.open(sys.argv[1]) as store:
    shelf = store["run"]
    assert shelf[1]["n"] == 1 and shelf[1]["l"] == [1.5]
    try:
        shelf[1].state_dict()
    except lmcstore.UnsupportedError as error:
        assert "torch" in str(error)
    else:
        raise SystemExit("torch was not missed")
    back = shelf.snapshot({"a": numpy.arange(5), "s": {1, 2}}).state_dict()
    assert back["a"].tolist() == [0, 1, 2, 3, 4] and back["s"] == {1, 2}
assert sys.modules["torch"] is None
"""
    done = run_python(code, pool_path)
    assert done.returncode == 0, done.stderr


def test_without_numpy_or_torch(pool_path: str, run_python: Any) -> None:
    code = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None
import lmcstore
with lmcstore.open(sys.argv[1]) as store:
    snapshot = store["run"].snapshot({"a": [1, 2.5, "x"], "b": {None: b"y"}}, step=3)
    assert snapshot.state_dict() == {"a": [1, 2.5, "x"], "b": {None: b"y"}}
"""
    done = run_python(code, pool_path)
    assert done.returncode == 0, done.stderr


def test_memory_stays_low_while_a_snapshot_is_taken(tmp_path: Any, run_python: Any) -> None:
    """At most 64 MiB of anonymous memory, for any size of the state."""
    code = """
import sys, threading, time, torch, lmcstore

def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10

state = {"rows": torch.randn(8192, 16384), "turned": torch.randn(8192, 4096).t()}
store = lmcstore.open(sys.argv[1], background=False)
store["run"].snapshot({"warm": torch.zeros(10)})
most, stop = 0, False
def watch():
    global most
    while not stop:
        most = max(most, anonymous())
        time.sleep(0.001)
before = anonymous()
watcher = threading.Thread(target=watch)
watcher.start()
store["run"].snapshot(state)
stop = True
watcher.join()
store.close()
print((most - before) >> 20)
"""
    done = run_python(code, str(tmp_path / "big.pool"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 64


def test_the_gil_is_free_while_bytes_move(pool_path: str) -> None:
    import threading

    state = {"t": torch.randn(1 << 24)}
    ticks, stop, during = 0, False, 0

    def tick() -> None:
        nonlocal ticks
        while not stop:
            time.sleep(0)
            ticks += 1

    with lmcstore.open(pool_path, background=False) as store:
        encoded = Encoded(state)
        thread = threading.Thread(target=tick)
        thread.start()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(3600)  # the other thread runs only while this one has released the GIL
        try:
            for _ in range(1000):
                capture = store._pool.begin("run")
                before = ticks
                encoded._columns.put(capture)
                during = ticks - before
                capture.abort()
                if during > 0:
                    break
        finally:
            sys.setswitchinterval(interval)
            stop = True
            thread.join()
        assert during > 0
        same(state["t"][:10], store["run"].snapshot(state)["t"][:10].clone())


IMPORTER = """
import sys, threading, lmcstore, numpy
store = lmcstore.open(sys.argv[1], background=False)
thread = threading.Thread(target=__import__, args=("torch",))
thread.start()
while "torch" not in sys.modules:
    pass
store["run"].live["w"] = numpy.arange(3.0)  # which asks whether it is one of torch's tensors
import torch
thread.join()
store["run"].live["t"] = torch.arange(3.0)
state = store["run"].snapshot({"t": torch.arange(3.0), "n": numpy.arange(3.0)}).state_dict()
print(type(state["t"]).__name__, type(state["n"]).__name__, len(store["run"].live))
"""


def test_another_thread_imports_torch_meanwhile(pool_path: str) -> None:
    """Waits as an import does: half a module has no Tensor yet."""
    process = start(IMPORTER, pool_path)
    assert line(process) == "Tensor ndarray 2"
    assert process.wait(600) == 0


FAILING_IMPORT = """
import os, signal, sys, threading, lmcstore, numpy
folder = sys.argv[2]
with open(os.path.join(folder, "torch.py"), "w") as file:
    file.write("import sys; sys.go_on.wait(); raise OSError('a library is missing')")
sys.path.insert(0, folder)
sys.go_on = threading.Event()

def fail():
    try:
        import torch
    except OSError:
        pass

thread = threading.Thread(target=fail)
thread.start()
while "torch" not in sys.modules:
    pass
store = lmcstore.open(sys.argv[1], background=False)
child = os.fork()
if child == 0:
    signal.alarm(600)
    with lmcstore.open(sys.argv[1] + "-child", background=False) as own:
        own["run"].snapshot({"n": numpy.arange(3.0)})
    os._exit(0)
threading.Timer(0.5, sys.go_on.set).start()
store["run"].snapshot({"n": numpy.arange(3.0)})
thread.join()
print(len(store["run"]), os.waitpid(child, 0)[1], flush=True)
"""


def test_an_import_that_fails_or_is_left(pool_path: str, tmp_path: Path) -> None:
    process = start(FAILING_IMPORT, pool_path, str(tmp_path))
    assert line(process) == "1 0"
    assert process.wait(600) == 0
