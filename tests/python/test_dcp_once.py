# SPDX-License-Identifier: BSD-3-Clause
"""Ranks of one machine load by DCP: a coded block that several of them need is decoded by one."""

from __future__ import annotations

import itertools
import math
import os
import random
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import lmcstore
import pytest
from optional import torch
from same import same
from test_scrub import damage

torch.Tensor  # noqa: B018 (skips without torch)

import dcp_ranks as ranks  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from lmcstore import _core  # noqa: E402
from lmcstore._folder import fills, once  # noqa: E402
from lmcstore._folder.joined import Handle  # noqa: E402
from lmcstore.dcp import StoreReader, StoreWriter  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

SHAPES = {
    "even": (512, 1024),
    "odd": (517, 1103),
    "deep": (130, 5, 901),
    "flat": (600_003,),
}
_BLOCK = 1 << 20
_LONG_S = 40.0


def _whole(name: str, step: int) -> torch.Tensor:
    made = torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(len(name)))
    made[step::40] += step
    return made


def _save(rank: int, world: int, folder: Path, *steps: int) -> None:
    mesh = ranks.init_device_mesh("cpu", (world,))
    for step in steps:
        state: dict[str, Any] = {
            "rows": {},
            "same": {},
            "small": torch.full((10,), float(step)),
        }
        for name in SHAPES:
            state["rows"][name] = distribute_tensor(_whole(name, step), mesh, [Shard(0)])
            state["same"][name] = _whole(name, step)
        dcp.save(state, storage_writer=StoreWriter(folder, step=step))


@pytest.fixture(scope="module")
def coded() -> Iterator[Path]:
    """A run of two ranks with the steps 1 to 3: step 2's deltas are of step 3, and step 1's of step 2."""
    with tempfile.TemporaryDirectory(prefix="lmcs-test-") as made:
        folder = Path(made, "run")
        ranks.run(2, _save, folder, 1, 2, 3)
        with lmcstore.open(folder, mode="r+") as run:
            run["run"].policy = "keep_raw=1 chain=3"
            run.compact()
            stored = {entry["name"]: entry["stored_as"] for entry in run["run"].at(step=1).entries()}
            assert stored["same.even"] == stored["rows.odd"] == "delta"
        yield folder


class _Counted:
    """A rank's snapshot that notes the blocks that are read."""

    calls: ClassVar[list[list[tuple[int, str, int, int]]]] = []

    def __init__(self, part: Any, rank: int, reads: list[tuple[int, str, int]], most: int) -> None:
        self._part, self._rank, self._reads, self._most = part, rank, reads, most

    @property
    def __class__(self) -> Any:
        return type(self._part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def _note(self, name: str, first: int, count: int) -> None:
        if len(self._reads) >= self._most:
            os.kill(os.getpid(), signal.SIGKILL)
        if count >= 4096:
            blocks = range(first // _BLOCK, -(-(first + count) // _BLOCK))
            self._reads.extend((self._rank, name, block) for block in blocks)

    def read_to(self, kind: int, ranges: list[tuple[str, int, int, int]]) -> None:
        for name, first, count, _ in ranges:
            self._note(name, first, count)
        self.calls.append([(self._rank, *one[:3]) for one in ranges])
        self._part.read_to(kind, ranges)

    def read_range(self, kind: int, name: str, first: int, count: int) -> bytearray:
        self._note(name, first, count)
        found: bytearray = self._part.read_range(kind, name, first, count)
        return found

    def view(self, names: Any, kind: int, flags: int) -> Any:
        for entry in self._part.entries():
            if entry[1] == _core.TENSOR and entry[0] in names:
                self._note(entry[0], 0, entry[4])
        return self._part.view(names, kind, flags)


def _count(most: int = 1 << 60) -> list[tuple[int, str, int]]:
    """Note the blocks that this process reads; it ends by SIGKILL before it reads more than `most`."""
    reads: list[tuple[int, str, int]] = []
    part = Handle.part
    Handle.part = lambda self, rank, wanted: _Counted(part(self, rank, wanted), rank, reads, most)  # type: ignore
    return reads


def _targets(world: int, place: Any, names: list[str]) -> dict[str, Any]:
    mesh = ranks.init_device_mesh("cpu", (world,))
    rows = {name: distribute_tensor(torch.zeros(SHAPES[name]), mesh, [place]) for name in names}
    return {
        "rows": rows,
        "same": {name: torch.zeros(SHAPES[name]) for name in names},
        "small": torch.zeros(10),
    }


def _load(rank: int, world: int, source: Any, step: int, axis: int | None) -> list[tuple[int, str, int]]:
    once.PATIENCE_S = _LONG_S
    place = Replicate() if axis is None else Shard(axis)
    names = [name for name, shape in SHAPES.items() if axis is None or axis < len(shape)]
    state = _targets(world, place, names)
    reads = _count()
    dcp.load(state, storage_reader=StoreReader(source, step=step))
    rows = {name: tensor.full_tensor() for name, tensor in state["rows"].items()}
    wanted = {name: _whole(name, step) for name in names}
    same(
        {**state, "rows": rows},
        {"rows": wanted, "same": wanted, "small": torch.full((10,), float(step))},
    )
    return reads


def _times(found: list[Any]) -> dict[str, int]:
    """Return how many times the most read block of each tensor was read."""
    made: dict[str, int] = {}
    for (_, name, _), times in Counter(itertools.chain.from_iterable(found)).items():
        made[name] = max(times, made.get(name, 0))
    return made


@pytest.mark.parametrize(("world", "axis"), [(2, None), (3, None), (2, 1), (4, 1), (3, 2), (3, 0)])
def test_blocks_of_deltas_are_decoded_once(coded: Path, world: int, axis: int | None) -> None:
    """Step 1 is a delta of a delta. Replicated, and rows loaded as columns or as other rows."""
    times = _times(ranks.run(world, _load, coded, 1, axis))
    names = [name for name, shape in SHAPES.items() if axis is None or axis < len(shape)]
    assert set(times) == {f"{place}.{name}" for place in ("rows", "same") for name in names}
    assert set(times.values()) == {1}, times


def test_raw_blocks_are_read_once_for_parts_of_rows(coded: Path) -> None:
    times = _times(ranks.run(3, _load, coded, 3, 1))
    assert {name: number for name, number in times.items() if name.startswith("rows")} == {
        f"rows.{name}": 1 for name, shape in SHAPES.items() if len(shape) > 1
    }


def _load_alone(rank: int, world: int, folder: Path, step: int, place: Any) -> int:
    made: list[Any] = []
    once.Slots = lambda *arguments: made.append(arguments)  # type: ignore
    mesh = ranks.init_device_mesh("cpu", (world,))
    state = {"rows": {"even": distribute_tensor(torch.zeros(SHAPES["even"]), mesh, [place])}}
    dcp.load(state, storage_reader=StoreReader(folder, step=step))
    assert torch.equal(state["rows"]["even"].full_tensor(), _whole("even", step))
    return len(made)


@pytest.mark.parametrize(("step", "place"), [(3, Replicate()), (1, Shard(0))])
def test_raw_blocks_and_those_of_one_rank_are_not_shared(coded: Path, step: int, place: Any) -> None:
    assert ranks.run(2, _load_alone, coded, step, place) == [0, 0]


# Failures


def _load_failing(rank: int, world: int, folder: Path) -> list[str]:
    found = []
    for alone in (False, True):
        state = {"same": {name: torch.zeros(SHAPES[name]) for name in SHAPES}}
        with pytest.raises(dcp.CheckpointException) as caught:
            dcp.load(state, storage_reader=StoreReader(folder, step=1), no_dist=alone)
        failures = caught.value.failures
        assert sorted(failures) == list(range(1 if alone else world))
        found.append({f"{type(error).__name__}: {error}" for error, _ in failures.values()})
    assert found[0] == found[1], found
    return sorted(found[0])


def test_damage_gives_the_usual_error_on_each_rank(coded: Path, folder: Path) -> None:
    subprocess.run(["cp", "-r", "--sparse=always", coded, folder], check=True)
    (pool,) = (path for path in folder.glob("rank-*.pool") if _holds(path, "same.odd"))
    start = _BLOCK * 3 // 2 if pool.name == "rank-00000.pool" else 60_000  # the pool's rows.odd lacks it
    damage(pool, _whole("odd", 3).numpy().tobytes()[start:][:60_000], 100)
    for texts in ranks.run(3, _load_failing, folder):
        (text,) = texts
        assert text.startswith("DamagedError") and "same.odd" in text, text


def _holds(path: Path, name: str) -> bool:
    with lmcstore.open(path, "r") as pool:
        return name in pool["run"].latest.names()  # type: ignore[union-attr]


class _Noting(StoreReader):
    """Knows whether all was read: DCP's exchange fails without the killed rank."""

    has_read = False

    def read_data(self, plan: Any, planner: Any) -> Any:
        done = super().read_data(plan, planner)
        self.has_read = True
        return done


def _load_killed(rank: int, world: int, folder: Path, killed: int, where: str) -> bool:
    state = _targets(world, Replicate(), list(SHAPES))
    reader = _Noting(folder, step=1)
    if rank == killed:

        def kill(*_: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        if where == "before":
            once.Slots = kill  # type: ignore
        elif where == "reading":
            _count(0)
        else:
            fills.Stored.copy = kill  # type: ignore
    with pytest.raises(BaseException):  # noqa: B017 (of gloo, or DCP's)
        dcp.load(state, storage_reader=reader)
    same(state["same"], {name: _whole(name, 1) for name in SHAPES})
    return reader.has_read


@pytest.mark.parametrize("where", ["before", "reading", "copying"])
@pytest.mark.parametrize("killed", [0, 1])
def test_without_a_killed_rank_the_others_read_everything(coded: Path, killed: int, where: str) -> None:
    found = ranks.run(3, _load_killed, coded, killed, where, killed=(killed,))
    assert [one for rank, one in enumerate(found) if rank != killed] == [True, True]


# The memory


def _offers(needs: list[list[once.Need]], **fields: Any) -> list[once.Offer | None]:
    memory = once.Memory(0, 0, "")
    return [once.Offer((1, 0.0), **{"place": (1,), "memory": memory, "needs": one, **fields}) for one in needs]


def _shares(memory: once.Memory, needs: list[list[once.Need]]) -> list[once.Share]:
    found = once.shares_of(_offers(needs, memory=memory))
    assert all(found)
    return [share for share in found if share is not None]


def _value(unit: once.Unit, number: int) -> int:
    name, first, _ = unit.pieces[number]
    return 1 + (first // _BLOCK * 7 + len(name)) % 250


class _Fake:
    """Takes the bytes of units, and does something to its process meanwhile."""

    def __init__(self, share: once.Share, units: list[once.Unit], when: str, signals: int) -> None:
        self.left = {unit for unit in units if share.index in unit.readers}
        self.decoded = 0
        self._when, self._signals = when, signals

    def _event(self, what: str) -> None:
        if what == self._when and self.decoded >= 2:
            if self._signals == 0:
                raise lmcstore.DamagedError("a block")
            os.kill(os.getpid(), self._signals)

    def needs(self, unit: once.Unit) -> bool:
        return True

    def decode(self, unit: once.Unit, data: list[torch.Tensor]) -> None:
        self.decoded += 1
        for one in data:
            one.fill_(255)
        self._event("decode")
        for number, one in enumerate(data):
            one.fill_(_value(unit, number))

    def copy(self, unit: once.Unit, data: list[torch.Tensor]) -> None:
        self._event("copy")
        for number, ((_, first, last), one) in enumerate(zip(unit.pieces, data, strict=True)):
            assert len(one) == last - first
            assert bool((one == _value(unit, number)).all()), unit
        self.left.remove(unit)

    def read(self, unit: once.Unit) -> None:
        self.decoded += 1
        self.left.remove(unit)


def _use(share: once.Share, patience: float, when: str, signals: int, sender: Any) -> None:
    once.PATIENCE_S = patience
    units = once.units_of(share)
    fake = _Fake(share, units, when, signals)
    slots = once.Slots(share, units, None)
    slots.read(fake)
    slots.close()
    sender.send((len(fake.left), fake.decoded))


def _run(
    shares: list[once.Share],
    patience: float = _LONG_S,
    victim: tuple[int, str, int] = (-1, "", 0),
    failing: bool = False,
) -> list[Any]:
    """Read by a process for each rank. Return the numbers of units left and decoded; None: of the victim.

    `failing`: they can't decode, apart from a first unit.
    """
    index, when, signals = victim
    context = ranks._context
    pipes = [context.Pipe(False) for _ in shares]
    processes = [
        context.Process(
            target=_use,
            args=(
                share,
                patience,
                when if share.index == index else "decode" if failing else "",
                signals,
                sender,
            ),
        )
        for share, (_, sender) in zip(shares, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    found: list[Any] = []
    try:
        for number, (receiver, sender) in enumerate(pipes):
            sender.close()
            assert number == index or receiver.poll(_LONG_S), f"rank {number} has not ended"
            found.append(None if number == index else receiver.recv())
    finally:
        for process in processes:
            process.kill()
            process.join()
    return found


def _needs(count: int) -> list[list[once.Need]]:
    """All read one tensor and arrays of a link, some read parts of others."""
    mib, made = 1 << 20, []
    for index in range(count):
        made.append(
            [
                once.Need(0, "all", 25 * mib - 100, 0, 25),
                once.Need(1, "part", 9 * mib, 2 * index, 2 * index + 4),
                *(once.Need(0, f"array {k}", 3 * mib + 4, 0, 4, 5) for k in range(3)),
            ]
        )
        if index != 1:
            made[-1].append(once.Need(1, "others", 30 * mib, 3, 30))
    return made


@pytest.mark.parametrize("count", [2, 3])
def test_each_unit_is_decoded_once(count: int) -> None:
    owner = once.Owner()
    shares = _shares(owner.memory, _needs(count))
    found = _run(shares)
    owner.close()
    assert [left for left, _ in found] == [0] * count
    assert sum(decoded for _, decoded in found) == len(once.units_of(shares[0]))


def test_what_no_rank_can_decode_each_reads_for_itself() -> None:
    owner = once.Owner()
    shares = _shares(owner.memory, _needs(3))
    found = _run(shares, 0.2, failing=True)
    owner.close()
    assert [left for left, _ in found] == [0, 0, 0]
    assert sum(decoded for _, decoded in found) > len(once.units_of(shares[0]))


@pytest.mark.parametrize("when", ["decode", "copy"])
@pytest.mark.parametrize("signals", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_stops_stops_no_other(when: str, signals: int, victim: int) -> None:
    owner = once.Owner()
    found = _run(_shares(owner.memory, _needs(3)), 0.2, (victim, when, signals))
    owner.close()
    assert [one[0] for index, one in enumerate(found) if index != victim] == [0, 0]


def test_a_rank_that_never_comes_stops_no_other() -> None:
    owner = once.Owner()
    found = _run(_shares(owner.memory, _needs(3))[:2], 0.2)
    owner.close()
    assert [left for left, _ in found] == [0, 0]


def test_wrong_states_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any bytes in the head of the memory: all units are read, without an error."""
    chance = random.Random(1)
    for _ in range(5):
        owner = once.Owner()
        shares = _shares(owner.memory, _needs(2))
        units = once.units_of(shares[0])
        once.Slots(shares[0], units, owner).close()
        os.pwrite(owner.descriptor, chance.randbytes(2 + 8 * 8 + len(units) * 2), 0)
        monkeypatch.setattr(once, "PATIENCE_S", 0.01)
        monkeypatch.setattr(
            _Fake,
            "copy",
            lambda self, unit, data: self.left.remove(unit),
        )
        for share in shares:
            fake = _Fake(share, units, "", 0)
            slots = once.Slots(share, units, owner)
            slots.read(fake)
            slots.close()
            assert not fake.left
        owner.close()


def test_a_memory_that_is_gone_or_another_is_refused() -> None:
    owner, other = once.Owner(), once.Owner()
    shares = _shares(owner.memory._replace(descriptor=other.descriptor), _needs(2))
    with pytest.raises(OSError):
        once.Slots(shares[0], once.units_of(shares[0]), None)
    owner.close()
    with pytest.raises(OSError):
        once.Slots(_shares(owner.memory, _needs(2))[0], once.units_of(shares[0]), None)
    shares = _shares(other.memory, _needs(2))
    once.Slots(shares[0], once.units_of(shares[0]), None).close()
    with pytest.raises(OSError):  # of another size
        once.Slots(shares[0], once.units_of(shares[0])[:3], None)
    with pytest.raises(OSError):  # no one can make it smaller
        os.ftruncate(other.descriptor, 0)
    other.close()


# Plans


def test_ranks_share_what_several_of_one_machine_need() -> None:
    needs = _needs(3)
    assert once.shares_of([*_offers(needs[:1]), None, *_offers(needs[1:2], place=(2,))]) == [None] * 3
    assert once.shares_of(_offers([[once.Need(0, "small", 3 << 20, 0, 3)]] * 2)) == [
        None,
        None,
    ]
    first, none, third = once.shares_of([*_offers(needs[:1]), None, *_offers(needs[2:])])
    assert first is not None and none is None and third is not None
    assert (first.index, third.index, first.ranks) == (
        0,
        1,
        2,
    ) and first.spans == third.spans
    shared = {(*span.names, span.first, span.last): span.readers for span in first.spans}
    assert shared == {
        ("all", 0, 25): (0, 1),
        ("others", 3, 30): (0, 1),
        ("array 0", "array 1", "array 2", 0, 4): (0, 1),
    }  # of "part" they need other blocks
    pieces = [piece for unit in once.units_of(first) for piece in unit.pieces]
    assert [piece.last for piece in pieces if piece.name == "all"][-1] == (25 << 20) - 100
    assert sum(piece.last - piece.first for piece in pieces) == (25 << 20) - 100 + (27 << 20) + 3 * ((3 << 20) + 4)


def test_units_are_larger_where_ranks_have_several_processors() -> None:
    (share, _) = once.shares_of(_offers(_needs(2), processors=8))
    assert share is not None and share.blocks == 4
    assert [unit.pieces[0].last - unit.pieces[0].first for unit in once.units_of(share)][:3] == [4 << 20] * 3


def test_arrays_of_a_link_are_one_unit() -> None:
    """Also if the ranks need others of them."""
    size = 10 << 20
    both = [once.Need(0, name, size, 0, 10, 7) for name in ("m", "w")]
    needs = [both, [once.Need(0, "v", size, 2, 10, 7)], [once.Need(0, "x", size, 0, 10, 8)], [both[1]]]
    share, *_, last = once.shares_of(_offers(needs))
    assert share is not None and last is not None and last.index == 3
    assert [(span.names, span.first, span.last, span.readers) for span in share.spans] == [
        (("m", "w"), 0, 2, (0, 3)),
        (("m", "w", "v"), 2, 10, (0, 1, 3)),
    ]
    units = once.units_of(share)
    assert [len(unit.pieces) for unit in units] == [2] * 2 + [3] * 8
    assert units[3].pieces == tuple(once.Piece(name, 3 << 20, 4 << 20) for name in ("m", "w", "v"))


def test_many_names_of_a_link_are_several_units() -> None:
    """Else a unit, and a slot, would have a block of each."""
    names = [f"w{number}" for number in range(150)]
    needs = [[once.Need(0, name, 2 << 20, 0, 2, 7) for name in some] for some in (names, names, names[:10])]
    share, *_ = once.shares_of(_offers(needs))
    assert share is not None
    assert [(len(span.names), span.readers) for span in share.spans] == [(64, (0, 1, 2)), (64, (0, 1)), (22, (0, 1))]
    units = once.units_of(share)
    assert sorted(piece.name for unit in units for piece in unit.pieces) == sorted(names * 2)
    assert max(len(unit.pieces) for unit in units) == 64


def test_units_of_a_url_have_several_tensors() -> None:
    sizes = [100, 1000, 30 << 20, 0, 5 << 20, 6 << 20, 7 << 20, 11 << 20, 1 << 20]
    needs = [
        need
        for number, size in enumerate(sizes)
        for need in once.need_of(int(number in (5, 6)), f"t{number}", size, [(0, size)], 0, True)
    ]
    share, _ = once.shares_of(_offers([needs] * 2, is_remote=True))
    assert share is not None
    mib = 1 << 20
    assert [[(one.name, one.first, one.last) for one in unit.pieces] for unit in once.units_of(share)] == [
        [("t0", 0, 100), ("t1", 0, 1000)],
        [("t2", 0, 16 * mib)],
        [("t2", 16 * mib, 30 * mib)],
        [("t4", 0, 5 * mib), ("t7", 0, 11 * mib)],
        [("t5", 0, 6 * mib), ("t6", 0, 7 * mib)],
        [("t8", 0, 1 * mib)],
    ]


def test_needs_are_whole_blocks() -> None:
    size = 9 * _BLOCK
    assert list(once.need_of(0, "a", 1000, [(0, 1000)])) == []
    assert list(once.need_of(0, "a", size, [(5, 6), (5, 5)])) == [once.Need(0, "a", size, 0, 1)]
    ranges = [(7 * _BLOCK, size), (_BLOCK, 2 * _BLOCK), (3 * _BLOCK - 1, 4 * _BLOCK)]
    assert [need[3:5] for need in once.need_of(0, "a", size, ranges)] == [(1, 4), (7, 9)]


def test_parts_fill_boxes() -> None:
    chance = random.Random(1)
    for _ in range(300):
        shape = tuple(chance.randint(1, 6) for _ in range(chance.randint(1, 4)))
        offsets = tuple(chance.randint(0, size - 1) for size in shape)
        lengths = tuple(chance.randint(1, size - offset) for size, offset in zip(shape, offsets, strict=True))
        count = math.prod(shape)
        source = torch.arange(count)
        cuts = sorted({0, count, *(chance.randint(0, count) for _ in range(chance.randint(0, 5)))})
        target = torch.full(lengths, -1)
        for first, last in itertools.pairwise(cuts):
            fills.copy_part(target, source[first:last], first, shape, offsets, lengths)
        box = tuple(slice(offset, offset + length) for offset, length in zip(offsets, lengths, strict=True))
        assert torch.equal(target, source.view(shape)[box]), (
            shape,
            offsets,
            lengths,
            cuts,
        )
