# SPDX-License-Identifier: BSD-3-Clause
"""References to snapshots in MLflow and Weights & Biases."""

from __future__ import annotations

import doctest
import os
import re
from pathlib import Path

import lmcstore
import lmcstore.mlflow
import lmcstore.wandb
import mlflow
import pytest
import torch
import wandb
from lmcstore.reference import find, reference

PAGE = Path(__file__).resolve().parent.parent.parent / "python/trainers/TRACKERS.md"


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture
def store() -> lmcstore.Store:
    with lmcstore.open("run #1 ä.pool", "x") as opened:
        for step in range(3):
            opened["a ?&# b" if step == 2 else "run"].snapshot(
                {"weight": torch.full((2,), step)}, step=step, metrics={"loss": 1.0 - step / 4}
            )
        yield opened


def test_references(store: lmcstore.Store) -> None:
    for name in store:
        for snapshot in store[name]:
            uri = reference(snapshot)
            assert uri.isascii() and " " not in uri
            found = find(uri)
            assert (found.step, found.digest, found.shelf.name) == (snapshot.step, snapshot.digest, name)
            snapshot.metrics["later"] = 1.0
            assert find(uri).metrics["later"] == 1.0
    pending = store["run"].snapshot({"a": 1}, wait=False)
    assert find(reference(pending)).number == pending.number


def test_references_that_lead_nowhere(store: lmcstore.Store) -> None:
    uri = reference(store["run"][1])
    for wrong in ("", "run@1", uri.replace("lmcstore", "s3"), uri.partition("#")[0], uri.partition("?")[0] + "#run@1"):
        with pytest.raises(lmcstore.InvalidError, match="is no reference to a snapshot"):
            find(wrong)
    with pytest.raises(lmcstore.NotFoundError, match="another snapshot"):
        find(uri.replace("#run@1", "#run@2"))
    with pytest.raises(lmcstore.NotFoundError):
        find(uri.replace("#run@1", "#run@9"))
    store.close()
    os.rename(store.path, "moved.pool")
    with pytest.raises(lmcstore.NotFoundError):
        find(uri)
    assert find(uri, "moved.pool").step == 0
    with lmcstore.open("other.pool", "x") as other:
        other["run"].snapshot({"a": 1})
    with pytest.raises(lmcstore.NotFoundError, match="another pool"):
        find(uri, "other.pool")


def test_a_run_of_many_ranks(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from lmcstore.dcp import StoreWriter

    dcp.save({"weight": torch.ones(3)}, storage_writer=StoreWriter("folder", step=4), no_dist=True)
    StoreWriter("folder").close()
    with lmcstore.open("folder", "r") as run:
        uri = reference(run["run"].latest)
        digest = run["run"].latest.digest
    assert digest in uri
    assert find(uri).step == 4


def test_mlflow(store: lmcstore.Store) -> None:
    with mlflow.start_run() as run:
        for snapshot in store["run"]:
            uri = lmcstore.mlflow.log_snapshot(snapshot)
        lmcstore.mlflow.log_snapshot(store["run"][1], "best", metrics=False)
    run_id = run.info.run_id
    assert mlflow.get_run(run_id).data.tags["lmcstore.latest"] == uri
    history = mlflow.MlflowClient().get_metric_history(run_id, "loss")
    assert [(one.step, one.value) for one in history] == [(0, 1.0), (1, 0.75)]
    assert lmcstore.mlflow.find_snapshot(run_id).step == 1
    assert lmcstore.mlflow.find_snapshot(run_id, "best").step == 0
    with pytest.raises(lmcstore.NotFoundError, match=r"refers to no snapshot 'bset'\. Did you mean 'best'"):
        lmcstore.mlflow.find_snapshot(run_id, "bset")
    lmcstore.mlflow.log_snapshot(store["run"][1], "later", run_id=run_id)
    assert mlflow.active_run() is None


def test_wandb(store: lmcstore.Store) -> None:
    with wandb.init(project="test") as run:
        artifacts = [lmcstore.wandb.log_snapshot(run, snapshot, "model") for snapshot in store["run"]]
    assert artifacts[0].digest != artifacts[1].digest
    assert [lmcstore.wandb.find_snapshot(artifact).step for artifact in artifacts] == [0, 1]
    assert artifacts[1].metadata == {"address": "run@2", "step": 1, "metrics": {"loss": 0.75}}
    again = lmcstore.wandb.artifact_of(store["run"][1], "model", type="weights")
    assert (again.digest, again.type) == (artifacts[0].digest, "weights")
    assert again.size < 1000
    with pytest.raises(lmcstore.NotFoundError, match="refers to no snapshot"):
        lmcstore.wandb.find_snapshot(wandb.Artifact("other", "model"))


def test_the_page() -> None:
    typed = "".join(re.split(r"^```(?:pycon)?$", PAGE.read_text(), flags=re.MULTILINE)[1::2])
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(typed, {}, PAGE.name, str(PAGE), 0)
    assert not doctest.DocTestRunner().run(test, out=said.append).failed, "".join(said)
