# SPDX-License-Identifier: BSD-3-Clause
"""`Channel`: messages between the coordinator, rank 0, and the other ranks. They are plain values, and not pickled.

It has a process group of its own, over gloo, so that its messages never meet those of the training. One thread at a
time uses it. If a rank ends or does not answer in time, gloo closes all connections: the channel is broken for good.
"""

from __future__ import annotations

import datetime
from typing import Any

from .._arrays.packages import loaded
from .._state.scalars import Reader, pack
from ..errors import InputOutputError, UnsupportedError

_MARGIN_S = 10.0


class ChannelError(InputOutputError):
    """A rank has ended, or does not answer."""


def ranks_of_process() -> int:
    """Return the number of ranks, if torch.distributed is initialized; else 1."""
    distributed: Any = loaded("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


class Channel:
    """`timeout`: most seconds that ranks may be apart. Collective: all ranks make it at the same place."""

    def __init__(self, timeout: float) -> None:
        self.failure: str | None = None
        torch: Any = loaded("torch")
        distributed: Any = loaded("torch.distributed")
        self._torch, self._dist = torch, distributed
        self.rank, self.world_size = 0, 1
        if ranks_of_process() == 1:
            return
        if not self._dist.is_gloo_available():
            raise UnsupportedError("this torch was built without gloo, by which the ranks of a run agree on a save")
        self.rank, self.world_size = self._dist.get_rank(), self._dist.get_world_size()
        # The other ranks wait for the coordinator while it waits for one of them.
        self._timeout = timeout if self.rank == 0 else 2 * timeout + _MARGIN_S
        longest = datetime.timedelta(seconds=2 * timeout + 2 * _MARGIN_S)
        self._group = self._dist.new_group(backend="gloo", timeout=longest)

    def gather(self, value: Any) -> list[Any] | None:
        """Send a value to the coordinator, which gets those of all ranks."""
        if self.rank > 0:
            self._send(value, 0)
            return None
        return [value, *(self._receive(rank) for rank in range(1, self.world_size))]

    def answer(self, value: Any = None) -> Any:
        """Send the coordinator's value to all ranks, and return it."""
        if self.rank > 0:
            return self._receive(0)
        for rank in range(1, self.world_size):
            self._send(value, rank)
        return value

    def exchange(self, value: Any) -> list[Any]:
        """Send each rank's value to all ranks, and return them."""
        everything: list[Any] = self.answer(self.gather(value))
        return everything

    def close(self) -> None:
        """Close the connections of this rank."""
        if self.failure is None and self.world_size > 1 and self._dist.is_initialized():
            self._dist.destroy_process_group(self._group)
        self.failure = self.failure or "the run is closed"

    def _send(self, value: Any, rank: int) -> None:
        data = bytearray(pack(_tuples(value)))
        size = self._torch.tensor([len(data)])
        for tensor in (size, self._torch.frombuffer(data, dtype=self._torch.uint8)):
            self._wait(lambda tensor=tensor: self._dist.isend(tensor, rank, group=self._group), rank)

    def _receive(self, rank: int) -> Any:
        size = self._torch.zeros(1, dtype=self._torch.int64)
        self._wait(lambda: self._dist.irecv(size, rank, group=self._group), rank)
        data = bytearray(int(size))
        tensor = self._torch.frombuffer(data, dtype=self._torch.uint8)
        self._wait(lambda: self._dist.irecv(tensor, rank, group=self._group), rank)
        return _values(Reader(bytes(data)).value())

    def _wait(self, begin: Any, rank: int) -> None:
        if self.failure is not None:
            raise ChannelError(self.failure)
        try:
            begin().wait(datetime.timedelta(seconds=self._timeout))
        except (RuntimeError, ValueError) as error:
            what = (
                f"rank {rank} has ended, or does not answer within {self._timeout:g} seconds"
                if self.rank == 0
                else "the coordinator, rank 0, has ended, or another rank does not answer it"
            )
            self.failure = f"{what} ({str(error).splitlines()[0][:200]})"
            raise ChannelError(self.failure) from None


def _tuples(value: Any) -> Any:
    """Return a value with tuples in place of dicts, lists and tuples, for `pack`."""
    if isinstance(value, dict):
        return (True, *((key, _tuples(item)) for key, item in value.items()))
    return (False, *map(_tuples, value)) if isinstance(value, list | tuple) else value


def _values(value: Any) -> Any:
    """Undo `_tuples`: tuples in place of lists."""
    if type(value) is not tuple:
        return value
    is_dict, *items = value
    return {key: _values(item) for key, item in items} if is_dict else tuple(map(_values, items))
