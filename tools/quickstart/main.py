# SPDX-License-Identifier: BSD-3-Clause
"""The quickstart. Run by tools/quickstart.sh."""

import argparse
import shutil
import sys
import time
import warnings
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(TOP / "tools/bench"))  # after this folder, which has a history.py too
warnings.filterwarnings("ignore")  # of other libraries; failures are checked

import text  # noqa: E402
from crash import train_and_crash  # noqa: E402
from history import show_history  # noqa: E402
from leave import leave  # noqa: E402
from report import STARTED, TRAIN, WITH_TORCH, mb, say, short  # noqa: E402

MARK = ".made-by-quickstart"


def _prepare(folder: Path) -> None:
    """Empty or make the work folder; leave foreign files alone."""
    if folder.exists():
        if not (folder / MARK).exists() and any(folder.iterdir()):
            raise SystemExit(f"quickstart: {folder} is there and is not mine; give another --dir")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    free = shutil.disk_usage(folder).free
    if free < 8 << 30:
        print(f"quickstart: only {mb(free)} MB free on the disk of {folder}; it wants up to 8,000 for a while")


def _what_next(pool: Path, text_file: Path, steps: int) -> None:
    print("\nWhat to type next:")
    tool = "build/release/bin/lmc-store"
    for words, why in (
        (f"{tool} info {short(pool)}", "the pool: medium, space, how many more snapshots fit"),
        (f"{tool} ls {short(pool)} gpt", "its history"),
        (f"{tool} ls {short(pool)} gpt@latest", "the tensors of the newest snapshot"),
        (f"{tool} verify {short(pool)}", "check every checksum"),
        (f"{tool} export {short(pool)} gpt@3 --part model -o model.safetensors", "any step, for other tools"),
    ):
        print(f"  {words}\n      {why}")
    train = f".venv/bin/python {short(TRAIN)} --text {short(text_file)} --pool {short(pool)}"
    print(f"  {train} --steps {steps + 8}\n      go on training: it resumes by itself; kill it when you like")
    print(f"  .venv/bin/python\n      and then, as in {short(TRAIN)}:")
    print(f'      >>> import lmcstore; store = lmcstore.open("{short(pool)}", mode="r")')
    weight = "model.h.0.qkv.weight" if WITH_TORCH else "model.hidden"
    print(f'      >>> snap = store["gpt"].at(step=3); snap.metrics, snap["{weight}"].std()')
    print("In a PyTorch trainer of your own, four lines:")
    print('      shelf = lmcstore.open("run.pool")["run"]')
    print("      start = shelf.latest.load_into(model=model, optimizer=optimizer).step + 1 if shelf.latest else 0")
    print('      print("resuming at step", start, "from" if start else "in new", shelf.store.path)')
    print('      shelf.snapshot({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=step)')


def main() -> None:
    """Run the five parts."""
    parser = argparse.ArgumentParser(prog="tools/quickstart.sh")
    parser.add_argument("--dir", type=Path, default=TOP / "quickstart", help="work here (default: quickstart/)")
    parser.add_argument("--steps", type=int, default=24, help="train so many steps (24)")
    parser.add_argument("--quick", action="store_true", help="8 steps, and fewer rounds of the comparison")
    parser.add_argument("--remove", action="store_true", help="leave nothing behind")
    options = parser.parse_args()
    steps = 8 if options.quick else options.steps
    if steps < 8:
        parser.error("at least 8 steps")
    folder = options.dir.resolve()
    _prepare(folder)
    pool, text_file, work = folder / "run.pool", folder / "text.txt", folder / "work"
    work.mkdir()

    model = "a small GPT" if WITH_TORCH else "a small model in NumPy, for PyTorch is not installed"
    print(f"quickstart: {model}; every step of its training is kept")
    size, files = text.gather(text_file)
    say(f"{mb(size)} MB of text from {files} files of this machine; everything happens in {short(folder)}/")
    expected = train_and_crash(text_file, pool, work, steps)
    show_history(pool, expected)
    leave(text_file, pool, work, expected)
    if WITH_TORCH:
        from costs import show_costs

        show_costs(pool, work, 3 if options.quick else 4)
    else:
        print("\n[5/5] left out: the comparison with other ways to save needs PyTorch (tools/setup.sh --help)")
    shutil.rmtree(work)
    print(f"\nquickstart: every check passed, in {time.monotonic() - STARTED:.0f} s.", flush=True)
    if options.remove:
        shutil.rmtree(folder)
        print(f"{short(folder)}/ is removed.")
    else:
        _what_next(pool, text_file, steps)


if __name__ == "__main__":
    main()
