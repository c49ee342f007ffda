# SPDX-License-Identifier: BSD-3-Clause
"""lmc-store completion: bash, zsh and fish complete commands, options and files, and the manual page has every help."""

import re
import shutil
import subprocess

import pytest
from command import NEEDS_BIN
from test_cli import COMMANDS, cli, text

pytestmark = NEEDS_BIN

BASH = """
source "$1"
compopt() { :; }
shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_lmc_store lmc-store "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def bash(script, *words):
    done = subprocess.run(["bash", "-c", BASH, "bash", script, "lmc-store", *words], capture_output=True, text=True)
    assert not done.stderr
    return done.stdout.split()


def fish(script, *words):
    line = " ".join(["lmc-store", *words])
    run = 'source $argv[1]; complete -C "$argv[2]"'
    done = subprocess.run(["fish", "--no-config", "-c", run, script, line], capture_output=True, text=True, check=True)
    assert not done.stderr
    return [row.split("\t")[0] for row in done.stdout.splitlines()]


@pytest.mark.parametrize("complete", [bash, fish])
def test_a_shell_completes(complete, tmp_path, monkeypatch):
    if shutil.which(complete.__name__) is None:
        pytest.skip(f"{complete.__name__} is not installed")
    script = tmp_path / "script"
    script.write_text(text("completion", complete.__name__))
    (tmp_path / "a.pool").touch()
    monkeypatch.chdir(tmp_path)
    assert complete(script, "sc") == ["scrub"] and complete(script, "repo") == ["report"]
    for command in COMMANDS:
        options = set(re.findall(r"^ .*?(--[\w-]+)", text(command, "--help"), re.MULTILINE))
        assert set(complete(script, command, "--")) == options, command
    assert complete(script, "dump", "a.p") == complete(script, "dump", "x", "--output", "a.p") == ["a.pool"]
    assert complete(script, "create", "--size", "a.p") == []
    assert set(complete(script, "completion", "")) - {"--help"} == {"bash", "fish", "man", "zsh"}


def test_zsh_accepts_the_completions(tmp_path):
    page = text("completion", "zsh")
    for command in COMMANDS:
        assert f"        '{command}:" in page
        assert f"        {command}) _arguments " in page
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    (tmp_path / "script").write_text(page)
    subprocess.run(["zsh", "-f", "-n", tmp_path / "script"], check=True)


def test_the_manual_page_has_every_help():
    page = text("completion", "man")
    plain = page.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")
    assert text("--help") in plain
    for command in COMMANDS:
        assert f".SS {command}\n.EX\n{text(command, '--help')}.EE\n" in plain
    # No line acts on roff by accident.
    assert {line.split()[0] for line in page.splitlines() if line[:1] in (".", "'")} <= {
        ".TH", ".SH", ".SS", ".B", ".I", ".EX", ".EE",
    }  # fmt: skip


def test_another_word_is_wrong_use():
    assert "tcsh" in cli("completion", "tcsh", code=2).stderr
