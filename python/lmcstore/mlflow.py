# SPDX-License-Identifier: BSD-3-Clause
"""MLflow keeps references to snapshots, not their bytes.

::

with mlflow.start_run():
    lmcstore.mlflow.log_snapshot(shelf.latest, "best")

snapshot = lmcstore.mlflow.find_snapshot(run_id, "best")
"""

from __future__ import annotations

import os

import mlflow

from ._text.similar import hint, similar
from .errors import NotFoundError
from .reference import find, reference
from .snapshot import Snapshot

__all__ = ["find_snapshot", "log_snapshot"]

_TAG = "lmcstore."


def log_snapshot(snapshot: Snapshot, name: str = "latest", *, run_id: str | None = None, metrics: bool = True) -> str:
    """Set the tag ``lmcstore.NAME`` of a run to the reference of a snapshot, once it is durable; return that.

    Parameters
    ----------
    snapshot
        The snapshot.
    name
        The end of the tag. A tag that is there gets the new reference.
    run_id
        The run. Default: the active one, or a new one, as MLflow's functions do.
    metrics
        Whether to log the snapshot's metrics, too, at its step.
    """
    uri = reference(snapshot)
    client = mlflow.MlflowClient()
    run = run_id or (mlflow.active_run() or mlflow.start_run()).info.run_id
    if metrics:
        for metric, value in snapshot.metrics.items():
            client.log_metric(run, metric, value, timestamp=int(snapshot.time * 1000), step=snapshot.step or 0)
    client.set_tag(run, f"{_TAG}{name}", uri)
    return uri


def find_snapshot(run_id: str, name: str = "latest", pool: str | os.PathLike[str] | None = None) -> Snapshot:
    """Return the snapshot that a run refers to, as `lmcstore.reference.find` does.

    NotFoundError: the run has no such reference, or the snapshot is gone.
    """
    tags = mlflow.MlflowClient().get_run(run_id).data.tags
    if f"{_TAG}{name}" not in tags:
        names = [tag.removeprefix(_TAG) for tag in tags if tag.startswith(_TAG)]
        raise NotFoundError(f"run {run_id} refers to no snapshot {name!r}{hint(similar(name, names))}")
    return find(tags[f"{_TAG}{name}"], pool)
