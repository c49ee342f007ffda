# SPDX-License-Identifier: BSD-3-Clause
"""`pytorch_tests.py`, which runs PyTorch's tests, finds the ones that pass with torch's classes only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytorch_tests

PROGRAM = Path(pytorch_tests.__file__)

TESTS = """
import tempfile, unittest
from pathlib import Path
import torch
import torch.distributed.checkpoint as dcp

class Test(unittest.TestCase):
    def save(self, check):
        with tempfile.TemporaryDirectory() as folder:
            state, into = {"w": torch.ones(3, device="cuda")}, {"w": torch.zeros(3).cuda()}
            dcp.save(state, checkpoint_id=folder)
            dcp.load(into, storage_reader=dcp.FileSystemReader(folder))
            self.assertTrue(torch.equal(into["w"], state["w"]))
            check(Path(folder))

    @skip_if_lt_x_gpu(2)
    def test_load(self):
        self.save(lambda folder: None)

    def test_file(self):
        self.save(lambda folder: self.assertTrue((folder / ".metadata").exists()))

    def test_failing(self):
        self.fail()
"""


def run(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(checkout), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_test_of_the_files_of_torch_is_lost(tmp_path: Path) -> None:
    file = tmp_path / pytorch_tests.TESTS / "part" / "test_one.py"
    file.parent.mkdir(parents=True)
    file.write_text(TESTS)
    done = run(tmp_path)
    assert done.stdout.splitlines() == [
        "part/test_one.py: 1 of 2 pass; 1 others",
        "    part.test_one.Test.test_file: failure",
    ], done
    assert done.returncode == 1
    done = run(tmp_path, "part/test_one.py", "-k", "load")
    assert (done.returncode, done.stdout) == (0, "part/test_one.py: 1 of 1 pass; 0 others\n")


def test_a_folder_without_tests_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 2 and "there are no tests in" in done.stderr
