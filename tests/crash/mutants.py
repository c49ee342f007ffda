#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Breaks the store on purpose, in many ways that lose data only when power fails, and sees that `crash` finds each.

    mutants.py [--quick] [--only NAME...] [--build build/release]

A mutant is a fragment of a source file and what stands there instead. It is applied to a copy in BUILD/mutants/, which
is compiled with the flags of the release build and linked into a `crash` of its own, before the library; the sources
and the library stay what they are. Fragments are short and must occur exactly once: an edit of the store elsewhere
does not matter, and one of the fragment itself makes the mutant fail here until it is brought up to date. The last few
mutants are of another kind: the recorder forgets some of the flushes, fences and syncs of libpmemobj itself.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BUDGET = ["--until-finding", "--images", "20000", "--of-a-seed", "400"]


@dataclass
class Mutant:
    name: str
    what: str
    file: str = ""
    edits: list[tuple[str, str]] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    quick: bool = False


PUBLISH = """    pmemobj_set_value(heap->pool, &all[count], lmcs_heap_at(heap, word_offset), word);
    if (pmemobj_publish(heap->pool, all, count + 1) != 0)
"""
# An action that does nothing, where one has been done already.
NOTHING = """    PMEMoid nowhere = pmemobj_root(heap->pool, LMCS_SUPERBLOCK_BYTES);
    pmemobj_set_value(heap->pool, (struct pobj_action *)action, lmcs_heap_at(heap, nowhere.off + 2048), 0);
"""
COMMIT = """    enum lmcs_status status = prepare_commit(txn, error);
    if (status == LMCS_OK) {
"""
WRITE_AND_SYNC = """    if (status == LMCS_OK)
        status = write_pages(txn, error);
    if (status == LMCS_OK)
        status = lmcs_heap_sync(txn->pool->heap, error);
"""

MUTANTS = [
    Mutant(
        "page-flush",
        "what is stored in place of a non-temporal copy is not flushed",
        "store/pool.c",
        [("PMEM_F_MEM_NONTEMPORAL | PMEM_F_MEM_NODRAIN", "PMEM_F_MEM_NOFLUSH")],
        ["--medium", "dax"],
        quick=True,
    ),
    Mutant(
        "reserve-flush",
        "a tensor that was filled in place is not flushed",
        "store/pool.c",
        [("pmem_flush(lmcs_heap_at(heap, offset), bytes);", "(void)offset;")],
        ["--medium", "dax"],
    ),
    Mutant(
        "worker-fence",
        "threads that copied do not drain before they are done",
        "store/copy.c",
        [("    lmcs_heap_drain(((struct copying *)context)->pool->heap);", "    (void)context;")],
        ["--medium", "dax", "--seed", "2"],
    ),
    Mutant(
        "put-fence",
        "put's own thread does not drain the hashes of blocks, which another thread commits",
        "store/copy.c",
        [("    lmcs_heap_drain(pool->heap); /* the commit may be", "    /* the commit may be")],
        ["--medium", "dax", "--seed", "6"],
    ),
    Mutant(
        "file-sync",
        "fdatasync is not called",
        "store/pool.c",
        [("result = fdatasync(heap->fd);", "result = 0;")],
        ["--medium", "file"],
        quick=True,
    ),
    Mutant(
        "commit-sync",
        "a transaction's pages are not synced before the root word is switched",
        "store/txn.c",
        [(WRITE_AND_SYNC, "    if (status == LMCS_OK)\n        status = write_pages(txn, error);\n")],
        ["--medium", "file"],
    ),
    Mutant(
        "pages-after-root",
        "a transaction's pages are written after the root word that refers to them",
        "store/txn.c",
        [
            (WRITE_AND_SYNC, ""),
            (
                "    pool->root = txn->root;\n    if (pages->avail_used > 0)",
                "    if (write_pages(txn, error) != LMCS_OK || lmcs_heap_sync(pool->heap, error) != LMCS_OK)\n"
                "        abort();\n    pool->root = txn->root;\n    if (pages->avail_used > 0)",
            ),
        ],
        quick=True,
    ),
    Mutant(
        "publish-split",
        "objects are claimed by one publish and the root word is switched by another",
        "store/pool.c",
        [
            (
                PUBLISH,
                "    if (count > 0 && pmemobj_publish(heap->pool, all, count) != 0)\n        abort();\n"
                "    pmemobj_set_value(heap->pool, &all[0], lmcs_heap_at(heap, word_offset), word);\n"
                "    if (pmemobj_publish(heap->pool, all, 1) != 0)\n",
            )
        ],
        quick=True,
    ),
    Mutant(
        "publish-reversed",
        "the root word is switched by one publish and the objects are claimed by another",
        "store/pool.c",
        [
            (
                PUBLISH,
                "    struct pobj_action switching;\n"
                "    pmemobj_set_value(heap->pool, &switching, lmcs_heap_at(heap, word_offset), word);\n"
                "    if (pmemobj_publish(heap->pool, &switching, 1) != 0)\n        abort();\n"
                "    if (count > 0 && pmemobj_publish(heap->pool, all, count) != 0)\n",
            )
        ],
    ),
    Mutant(
        "root-in-halves",
        "the root word is stored in two steps, outside of the publish",
        "store/pool.c",
        [
            (
                PUBLISH,
                "    unsigned char *at = lmcs_heap_at(heap, word_offset);\n"
                "    memcpy(at, &word, 2);\n    pmemobj_persist(heap->pool, at, 2);\n"
                "    memcpy(at + 2, (const char *)&word + 2, 6);\n    pmemobj_persist(heap->pool, at + 2, 6);\n"
                "    if (count > 0 && pmemobj_publish(heap->pool, all, count) != 0)\n",
            )
        ],
    ),
    Mutant(
        "root-unflushed",
        "the root word is stored outside of the publish, and not flushed (a missing add_range)",
        "store/pool.c",
        [
            (
                PUBLISH,
                "    memcpy(lmcs_heap_at(heap, word_offset), &word, sizeof word);\n"
                "    if (count > 0 && pmemobj_publish(heap->pool, all, count) != 0)\n",
            )
        ],
    ),
    Mutant(
        "free-now",
        "an object is freed before the commit that does without it",
        "store/pool.c",
        [
            (
                "    pmemobj_defer_free(heap->pool, object, (struct pobj_action *)action);\n",
                "    struct pobj_action now;\n    pmemobj_defer_free(heap->pool, object, &now);\n"
                "    if (pmemobj_publish(heap->pool, &now, 1) != 0)\n        abort();\n" + NOTHING,
            )
        ],
        ["--seed", "3"],
    ),
    Mutant(
        "claim-now",
        "an object is allocated before the commit that enters it",
        "store/pool.c",
        [
            (
                "    lmcs_heap_note(heap, object.off);\n    *offset = object.off;\n",
                "    if (pmemobj_publish(heap->pool, (struct pobj_action *)action, 1) != 0)\n        abort();\n"
                + NOTHING
                + "    lmcs_heap_note(heap, object.off);\n    *offset = object.off;\n",
            )
        ],
    ),
    Mutant(
        "root-in-place",
        "the root page is overwritten",
        "store/txn.c",
        [
            (
                "    enum lmcs_status status = take_page(txn, &new_root, error);\n"
                "    if (status == LMCS_OK && old_root != 0 && !push_freed(txn, old_root, 1))\n",
                "    enum lmcs_status status = LMCS_OK;\n    new_root = old_root;\n    if (old_root == 0)\n"
                "        status = take_page(txn, &new_root, error);\n    if (false)\n",
            )
        ],
    ),
    Mutant(
        "page-freed-too-soon",
        "a page that the last root reaches is used again by the transaction that replaces it",
        "store/txn.c",
        [
            (
                "return shared || push_freed(txn, offset, 1) ?",
                "return shared || push_recycled(txn->pages, offset) ?",
            )
        ],
        quick=True,
    ),
    Mutant(
        "payload-freed-too-soon",
        "a payload's file space is given back by the transaction that retires it, before its commit",
        "store/space.c",
        [
            (
                "    txn->root.live_bytes -= room;\n    enum lmcs_status status = lmcs_tree_delete(",
                "    txn->root.live_bytes -= room;\n    lmcs_heap_punch(txn->pool->heap, offset, room);\n"
                "    enum lmcs_status status = lmcs_tree_delete(",
            )
        ],
    ),
    Mutant(
        "punch-first",
        "file space is given back before the commit that ceases to count on it",
        "store/space.c",
        [
            (
                "    if (status == LMCS_OK && trim.extent_count > 0)\n        status = lmcs_txn_commit(&txn, error);\n",
                "    for (size_t i = 0; status == LMCS_OK && i < trim.hole_count; i++)\n"
                "        lmcs_heap_punch(pool->heap, trim.holes[i].offset, trim.holes[i].bytes);\n"
                "    if (status == LMCS_OK && trim.extent_count > 0)\n        status = lmcs_txn_commit(&txn, error);\n",
            )
        ],
    ),
    Mutant(
        "count-early",
        "the count of snapshots is committed before the snapshot",
        "store/capture.c",
        [
            ("        c->txn.root.snapshot_count++;\n", ""),
            (
                "    if (status == LMCS_OK)\n        status = lmcs_txn_write(pool, &c.txn, error);\n",
                "    struct lmcs_txn early;\n"
                "    if (status == LMCS_OK && !capture->options.prepare) {\n"
                "        status = lmcs_txn_write(pool, &early, error);\n        early.root.snapshot_count++;\n"
                "        if (status == LMCS_OK)\n            status = lmcs_txn_commit(&early, error);\n    }\n"
                "    if (status == LMCS_OK)\n        status = lmcs_txn_write(pool, &c.txn, error);\n",
            ),
        ],
    ),
    Mutant(
        "tag-split",
        "a tag is moved by two transactions",
        "store/snapshot.c",
        [
            (
                "    struct tagging tagging = {tag, number};\n    return change_shelf(",
                "    struct tagging tagging = {tag, number};\n    "
                "if (lmcs_tag_remove(pool, shelf, tag, NULL) != LMCS_OK)\n        tagging.tag = tag;\n"
                "    return change_shelf(",
            )
        ],
    ),
    Mutant(
        "resolve-split",
        "a group is forgotten by another transaction than the one that commits its snapshot",
        "store/capture.c",
        [
            (
                "    if (status == LMCS_OK)\n        status = lmcs_tree_delete(txn, LMCS_TREE_GROUPS, "
                "&txn->root.trees[LMCS_TREE_GROUPS], *key, NULL, error);\n    return status == LMCS_OK ? "
                "lmcs_shelf_save",
                "    return status == LMCS_OK ? lmcs_shelf_save",
            ),
            (
                "    status = resolve(&txn, &key, commit, error);\n    if (status == LMCS_OK)\n"
                "        return lmcs_txn_commit(&txn, error);\n",
                "    status = resolve(&txn, &key, commit, error);\n    if (status == LMCS_OK)\n"
                "        status = lmcs_txn_commit(&txn, error);\n"
                "    if (status == LMCS_OK)\n        status = lmcs_txn_write(pool, &txn, error);\n"
                "    if (status == LMCS_OK)\n        status = lmcs_tree_delete(&txn, LMCS_TREE_GROUPS, "
                "&txn.root.trees[LMCS_TREE_GROUPS], key, NULL, error);\n"
                "    if (status == LMCS_OK)\n        return lmcs_txn_commit(&txn, error);\n",
            ),
        ],
    ),
    Mutant(
        "restore-split",
        "a restore shows one shelf after the other",
        "store/archive_stage.c",
        [
            (
                "        status = show_shelf(stage, &txn, &stage->shelves[i], error);\n",
                "    {\n        status = show_shelf(stage, &txn, &stage->shelves[i], error);\n"
                "        if (status == LMCS_OK && i + 1 < stage->shelf_count)\n"
                "            status = lmcs_txn_commit(&txn, error);\n"
                "        if (status == LMCS_OK && i + 1 < stage->shelf_count)\n"
                "            status = lmcs_txn_write(stage->pool, &txn, error);\n    }\n",
            )
        ],
    ),
    Mutant(
        "staging-stays",
        "what a restore that was cut short has left is not removed",
        "store/store.c",
        [("        status = lmcs_archive_drop_staging(pool, error);\n", "        (void)0;\n")],
    ),
    Mutant(
        "lose-flushes", "libpmemobj's every 5th flush is forgotten", options=["--medium", "dax", "--lose", "flushes:5"]
    ),
    Mutant(
        "lose-fences", "libpmemobj's every 5th fence is forgotten", options=["--medium", "dax", "--lose", "fences:5"]
    ),
    Mutant(
        "lose-syncs", "every 5th msync or fdatasync is forgotten", options=["--medium", "file", "--lose", "syncs:5"]
    ),
]


def mutate(mutant: Mutant, folder: Path) -> Path:
    """Write the broken copy of the source."""
    text = (TOP / mutant.file).read_text()
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise SystemExit(
                f"mutant {mutant.name}: its fragment occurs {text.count(old)} times in {mutant.file}:\n{old}"
            )
        text = text.replace(old, new)
    path = folder / f"{mutant.name}.c"
    path.write_text(f'#line 1 "{mutant.file}"\n{text}')
    return path


def compile_command(build: Path, source: Path) -> list[str]:
    """Find how the static library's objects are compiled; without the flags for the output and for warnings."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        command = shlex.split(entry["command"])
        if Path(entry["file"]) == source and "lmcstore" in entry.get("output", " ".join(command)):
            flags = [word for word in command if not word.startswith("-W")]
            for option in ("-o", "-c"):
                at = flags.index(option)
                del flags[at : at + 2]
            return flags
    raise SystemExit(f"{source} is not compiled in {build}")


def link_command(build: Path) -> list[str]:
    """Find how `crash` is linked."""
    commands = subprocess.run(
        ["ninja", "-C", str(build), "-t", "commands", "bin/crash"], check=True, capture_output=True, text=True
    )
    line = commands.stdout.strip().splitlines()[-1]
    return [word for word in shlex.split(line) if word not in ("&&", ":")]


def make(mutant: Mutant, build: Path, folder: Path) -> Path:
    """Build the `crash` of a mutant."""
    if not mutant.file:
        return build / "bin" / "crash"
    source = mutate(mutant, folder)
    compiled, program = folder / f"{mutant.name}.o", folder / f"crash-{mutant.name}"
    flags = compile_command(build, TOP / mutant.file)
    subprocess.run([*flags, f"-I{TOP / 'store'}", "-c", str(source), "-o", str(compiled)], check=True, cwd=build)
    link = link_command(build)
    at = link.index("-o")
    link[at + 1] = str(program)
    link.insert(at, str(compiled))
    subprocess.run(link, check=True, cwd=build)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description="See that crash finds deliberate bugs.")
    parser.add_argument("--build", type=Path, default=TOP / "build" / "release")
    parser.add_argument("--quick", action="store_true", help="only those that are found at once")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = [
        m for m in MUTANTS if (not arguments.only or m.name in arguments.only) and (m.quick or not arguments.quick)
    ]
    folder = arguments.build.resolve() / "mutants"
    folder.mkdir(parents=True, exist_ok=True)
    missed = []
    for mutant in chosen:
        if arguments.list:
            print(f"{mutant.name}: {mutant.what}")
            continue
        program = make(mutant, arguments.build.resolve(), folder)
        start = time.monotonic()
        run = subprocess.run(
            [str(program), *BUDGET, "--keep", str(folder), *mutant.options], capture_output=True, text=True, cwd=TOP
        )
        lines = run.stdout.splitlines()
        finding = next((line for line in lines if line.startswith("FINDING")), None)
        images = lines[-1].split()[0] if lines else "0"
        caught = run.returncode == 1 and finding is not None
        print(f"{'caught' if caught else 'MISSED'} {mutant.name} ({mutant.what})", flush=True)
        print(f"    {images} images, {time.monotonic() - start:.0f} s: {(finding or run.stderr)[:200]}", flush=True)
        if not caught:
            missed.append(mutant.name)
    if not arguments.list:
        print(f"{len(chosen) - len(missed)} of {len(chosen)} mutants were caught")
    if missed:
        print(f"missed: {' '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
