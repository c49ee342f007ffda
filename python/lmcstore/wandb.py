# SPDX-License-Identifier: BSD-3-Clause
"""Weights & Biases keeps references to snapshots, not their bytes.

::

with wandb.init() as run:
    lmcstore.wandb.log_snapshot(run, shelf.latest, "model")

snapshot = lmcstore.wandb.find_snapshot(run.use_artifact("model:latest"))
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import wandb

from .errors import NotFoundError
from .reference import find, reference
from .snapshot import Snapshot

__all__ = ["artifact_of", "find_snapshot", "log_snapshot"]

_ENTRY = "snapshot"


def artifact_of(snapshot: Snapshot, name: str, *, type: str = "model") -> wandb.Artifact:
    """Return an artifact that refers to a snapshot, once that is durable, with its step and metrics as metadata."""
    uri = reference(snapshot)
    metadata = {"address": snapshot._address, "step": snapshot.step, "metrics": dict(snapshot.metrics)}
    artifact = wandb.Artifact(name, type, metadata=metadata)
    artifact.add_reference(uri, name=_ENTRY, checksum=False)
    return artifact


def log_snapshot(
    run: Any, snapshot: Snapshot, name: str, *, type: str = "model", aliases: Iterable[str] = ("latest",)
) -> wandb.Artifact:
    """Log an artifact that refers to a snapshot, once that is durable; return it.

    Parameters
    ----------
    run
        The run of ``wandb.init``.
    snapshot
        The snapshot.
    name, type, aliases
        As for ``run.log_artifact``. Each snapshot is a new version of the artifact `name`, of a few hundred bytes.
    """
    artifact = artifact_of(snapshot, name, type=type)
    return run.log_artifact(artifact, aliases=list(aliases))


def find_snapshot(artifact: wandb.Artifact, pool: str | os.PathLike[str] | None = None) -> Snapshot:
    """Return the snapshot that an artifact refers to, as `lmcstore.reference.find` does.

    NotFoundError: the artifact refers to none, or the snapshot is gone.
    """
    entry = artifact.manifest.entries.get(_ENTRY)
    if entry is None or entry.ref is None:
        raise NotFoundError(f"the artifact {artifact.name} refers to no snapshot")
    return find(str(entry.ref), pool)
