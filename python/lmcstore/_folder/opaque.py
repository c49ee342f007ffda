# SPDX-License-Identifier: BSD-3-Clause
"""`Opaque`: an object of a run's snapshot that torch has pickled."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from .. import _core
from ..errors import UnsupportedError


class Opaque:
    """An object that was stored as a pickle of torch, as DCP stores objects that are no tensors or plain values.

    It is not unpickled unless `load` is called.
    """

    def __init__(self, name: str, part: Callable[[int, list[str]], _core.Snapshot], place: tuple[int, str]) -> None:
        self._name = name
        self._part = part
        self._place = place

    @property
    def name(self) -> str:
        """Its name: its path, joined by dots."""
        return self._name

    def read(self) -> bytes:
        """Read the bytes that ``torch.save`` wrote."""
        rank, name = self._place
        view = self._part(rank, [self._name]).view([name], _core.TENSOR, _core.VIEW_PRIVATE | _core.VIEW_VERIFY)
        (buffer,) = view.unpack()[4]
        return bytes(buffer)

    def load(self, weights_only: bool = True) -> Any:
        """Unpickle it by ``torch.load``. ``weights_only=False`` runs any code that the pickle has."""
        try:
            import torch
        except ImportError:
            raise UnsupportedError(f"{self._name} is a pickle of torch; install torch to read it") from None
        return torch.load(io.BytesIO(self.read()), weights_only=weights_only)

    def __repr__(self) -> str:
        return f"<lmcstore.Opaque {self._name!r}, a pickle of torch: its load() unpickles it>"
