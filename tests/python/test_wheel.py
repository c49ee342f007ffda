# SPDX-License-Identifier: BSD-3-Clause
"""tools/wheel/finish.py: the same contents give the same wheel, whose metadata states what is inside."""

import base64
import csv
import hashlib
import importlib.util
import io
import json
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

FINISH = Path(__file__).resolve().parents[2] / "tools/wheel/finish.py"
ABOUT = "lmcstore-1.2.3.dist-info"
MADE_BY_PIP = {
    "lmcstore/__init__.py": b"",
    "lmcstore-1.2.3.data/scripts/lmc-store": b"\x7fELF",
    f"{ABOUT}/METADATA": (
        b"Metadata-Version: 2.1\nName: lmcstore\nVersion: 1.2.3\nLicense-Expression: BSD-3-Clause\n\nRead me.\n"
    ),
    f"{ABOUT}/WHEEL": b"Wheel-Version: 1.0\nTag: cp311-abi3-linux_x86_64\n",
    f"{ABOUT}/RECORD": b"",
}


@pytest.fixture(scope="module")
def finish():
    spec = importlib.util.spec_from_file_location("finish", FINISH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sources_of(finish, folder):
    for source, (name, _, file) in finish.INSIDE.items():
        (folder / source).mkdir(parents=True)
        (folder / source / file).write_text(f"licence of {name}")
    return folder


def finished(finish, folder, order, year):
    folder.mkdir()
    wheel = folder / "lmcstore-1.2.3-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in order:
            entry = zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0))
            entry.external_attr = (0o775 if "/scripts/" in name else 0o664) << 16
            archive.writestr(entry, MADE_BY_PIP[name])
    return finish.finish(wheel, sources_of(finish, folder / "sources"), folder / "out", 1_700_000_000)


def test_wheels_of_the_same_contents_are_identical(finish, tmp_path):
    one = finished(finish, tmp_path / "one", sorted(MADE_BY_PIP), 2024)
    other = finished(finish, tmp_path / "other", sorted(MADE_BY_PIP, reverse=True), 2025)
    assert one.name == other.name == "lmcstore-1.2.3-cp311-abi3-manylinux_2_28_x86_64.whl"
    assert one.read_bytes() == other.read_bytes()


def test_record_lists_every_file_with_its_digest(finish, tmp_path):
    with zipfile.ZipFile(finished(finish, tmp_path / "one", MADE_BY_PIP, 2024)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(files[f"{ABOUT}/RECORD"].decode()))}
    assert set(rows) == set(files) and rows.pop(f"{ABOUT}/RECORD") == ["", ""]
    for name, (digest, size) in rows.items():
        right = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={right}", len(files[name])), name
    assert {name for name, mode in modes.items() if mode & 0o111} == {"lmcstore-1.2.3.data/scripts/lmc-store"}


def test_metadata_states_what_is_inside(finish, tmp_path):
    with zipfile.ZipFile(finished(finish, tmp_path / "one", MADE_BY_PIP, 2024)) as archive:
        files = {name: archive.read(name).decode(errors="replace") for name in archive.namelist()}
    assert files[f"{ABOUT}/WHEEL"].splitlines()[-1] == "Tag: cp311-abi3-manylinux_2_28_x86_64"
    metadata = files[f"{ABOUT}/METADATA"]
    assert metadata.count("License-Expression: ") == 1 and metadata.endswith("\n\nRead me.\n")
    assert "License-Expression: BSD-2-Clause AND BSD-3-Clause AND MIT\n" in metadata
    sbom = json.loads(files[f"{ABOUT}/sboms/lmcstore.cdx.json"])
    listed = finish.LIST.read_text()
    assert {component["name"] for component in sbom["components"]} == {"PMDK", "ISA-L", "jansson", "xxHash"}
    for component in sbom["components"]:
        assert files[f"{ABOUT}/licenses/{component['name']}/LICENSE"] == f"licence of {component['name']}"
        assert f"License-File: {component['name']}/LICENSE\n" in metadata
        assert all(file["hashes"][0]["content"] in listed for file in component["externalReferences"])


@pytest.mark.parametrize(
    "python, abi, platform, fits",
    [
        ("3.11", "abi3", "manylinux_2_28_x86_64", True),
        ("3.14", "abi3", "manylinux_2_28_x86_64", True),
        ("3.10", "abi3", "manylinux_2_28_x86_64", False),
        ("3.14", "cp314t", "manylinux_2_28_x86_64", False),
        ("3.14", "abi3", "manylinux_2_27_x86_64", False),
        ("3.14", "abi3", "musllinux_1_2_x86_64", False),
        ("3.14", "abi3", "manylinux_2_28_aarch64", False),
    ],
)
def test_pip_takes_the_wheel_where_it_runs(finish, tmp_path, python, abi, platform, fits):
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed")
    if abi.endswith("t") and tuple(map(int, version("pip").split(".")[:2])) < (24, 1):
        pytest.skip("this pip knows no free-threaded Python")
    wheel = finished(finish, tmp_path / "one", MADE_BY_PIP, 2024)
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-index", "--no-deps"]
    command += ["--implementation", "cp", "--python-version", python, "--abi", abi, "--platform", platform]
    done = subprocess.run([*command, "-d", tmp_path, wheel], capture_output=True, text=True, check=False)
    if fits:
        assert done.returncode == 0 and (tmp_path / wheel.name).exists(), done.stderr
    else:
        assert done.returncode == 1
        assert done.stderr == f"ERROR: {wheel.name} is not a supported wheel on this platform.\n"
