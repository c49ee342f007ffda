#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Breaks the store in ways that show only under concurrent use; `stress` must find each.

    mutants.py [--quick] [--only NAME...] [--build build/release] [--seconds 60]

tests/mutation.py defines mutants. A finding, a signal or a hang counts.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mutation import TOP, WRONG_LINK, Mutant, make, try_edits

HANG_SECONDS = 240  # allowed delay
SECONDS_OF_A_POOL = 6

# Other threads run for milliseconds, as the race's window is short.
LINGER = "    for (volatile int linger = 0; linger < 3000000; linger++)\n        ;\n"
MUTANTS = [
    Mutant(
        "view-pin",
        "a view does not pin what it maps",
        [
            (
                "lmcs_chain_pin(txn->pool, &chain, error) : lmcs_payload_pin(view->lease, top, error);",
                "lmcs_chain_pin(txn->pool, &chain, error) : LMCS_OK;",
            )
        ],
        quick=True,
    ),
    Mutant(
        "view-chain-pin",
        "a view does not pin what it is decoding",
        [("status = decode ? lmcs_chain_pin(txn->pool, &chain, error) :", "status = decode ? LMCS_OK :")],
    ),
    Mutant(
        "read-pin",
        "a read does not pin the chain that it undoes",
        [
            ("        status = lmcs_chain_pin(snapshot->pool, &found->chain, error);\n", "        status = LMCS_OK;\n"),
            (
                "    lmcs_txn_end(&txn);\n    return status;\n}\n\nvoid lmcs_snapshot_set_verify(",
                "    lmcs_txn_end(&txn);\n" + LINGER + "    return status;\n}\n\nvoid lmcs_snapshot_set_verify(",
            ),
            ("LMCS_ALL_BLOCKS);\n    lmcs_chain_unpin(snapshot->pool, chain);\n", "LMCS_ALL_BLOCKS);\n"),
            ("close(r.reader);\n    lmcs_chain_unpin(snapshot->pool, &found.chain);\n", "close(r.reader);\n"),
        ],
    ),
    Mutant(
        "pin-count",
        "the first of two pins that ends takes the lease with it",
        [("if (pin != NULL && --pin->count == 0)", "if (pin != NULL && (pin->count = 0) == 0)")],
        quick=True,
    ),
    Mutant(
        "small-leases",
        "the writer does not ask who holds small payloads",
        [
            (
                "    return is_locked(lease, LMCS_LEASE_BLOCKS + first, last - first + 1, &start);",
                "    return is_locked(lease, LMCS_LEASE_BLOCKS + first, last - first + 1, &start) && start == 0;",
            )
        ],
    ),
    Mutant(
        "epoch-leases",
        "the writer does not ask who holds old roots",
        [("    while (current > 0 && is_locked(", "    while (current == 0 && is_locked(")],
    ),
    Mutant(
        "reader-lease",
        "a reader in another process does not lease the root that it walks",
        [("            status = lmcs_lease_epoch(pool->lease, txn->root.epoch, error);\n", "")],
    ),
    Mutant(
        "verify-lease",
        "verification does not lease the root that it walks",
        [
            (
                "    status = lmcs_lease_epoch(pool->lease, root.epoch, error);\n    lmcs_txn_end(txn);\n",
                "    lmcs_txn_end(txn);\n" + LINGER,
            )
        ],
    ),
    Mutant(
        "page-cache",
        "the cache of pages goes by the place alone",
        [("slot->offset == ref->offset && slot->check == ref->check;", "slot->offset == ref->offset;")],
        quick=True,
    ),
    Mutant(
        "meta-lock",
        "readers in the writing process take no lock",
        [
            (
                "        pthread_rwlock_rdlock(&pool->meta);\n        txn->root = pool->root;\n",
                "        txn->root = pool->root;\n" + LINGER,
            ),
            (
                "    } else if (pool->heap != NULL) {\n        pthread_rwlock_unlock(&pool->meta);\n",
                "    } else if (false) {\n",
            ),
        ],
    ),
    Mutant(
        "shelf-lock",
        "two captures may have a shelf at the same time",
        [
            (
                "    while (status == LMCS_OK && busy->busy) {",
                "    while (status == LMCS_OK && busy->busy && busy->failures != NULL) {",
            )
        ],
    ),
    Mutant(
        "wait-too-short",
        "waiting for an asynchronous capture does not wait until it is durable",
        [
            (
                "    while (!capture->done)\n        pthread_cond_wait(&pool->captures_changed, &pool->captures);\n    "
                "status = capture->result.status;\n",
                "    if (!capture->done) {\n        pthread_mutex_unlock(&pool->captures);\n"
                "        lmcs_capture_detach(capture);\n        return LMCS_OK;\n    }\n"
                "    status = capture->result.status;\n",
            )
        ],
    ),
    Mutant(
        "tag-split",
        "a tag is moved by two transactions",
        [
            (
                "    return lmcs_tags_change(pool, shelf, &change, 1, error);\n}\n\nenum lmcs_status lmcs_tag_remove(",
                "    if (lmcs_tag_remove(pool, shelf, tag, NULL) != LMCS_OK)\n        (void)0;\n"
                "    return lmcs_tags_change(pool, shelf, &change, 1, error);\n}\n\nenum lmcs_status lmcs_tag_remove(",
            )
        ],
    ),
    Mutant(
        "tags-stay",
        "a removed snapshot leaves one of its tags",
        [
            (
                "        ++*count;\n    }\n    lmcs_cursor_free(cursor);",
                "        ++*count;\n        break;\n    }\n    lmcs_cursor_free(cursor);",
            )
        ],
        quick=True,
    ),
    Mutant(
        "number-again",
        "the number of a removed newest snapshot is used again",
        [("    df->number = capture->ticket.number;", "    df->number = c->shelf.df.latest + 1;")],
    ),
    Mutant(
        "live-update-unlocked",
        "what is added to an integer is not added at once",
        [
            (
                "    update->chosen = update->choose(update, now, then);\n",
                "    pthread_mutex_unlock(&body->lock);\n"
                + LINGER
                + "    pthread_mutex_lock(&body->lock);\n    update->chosen = update->choose(update, now, then);\n",
            )
        ],
    ),
    Mutant(
        "live-snapshot-let-go",
        "a snapshot of live variables lets transactions begin while it copies",
        [
            (
                "    status = prepare(&putting, shelf, error);\n    pthread_mutex_unlock(&live->lock);\n",
                "    status = prepare(&putting, shelf, error);\n    if (shelf != NULL)\n"
                "        lmcs_live_shelf_release(putting.pool, shelf);\n    pthread_mutex_unlock(&live->lock);\n"
                + LINGER,
            ),
            (
                "        shelf->is_read = false;\n        lmcs_live_shelf_release(putting.pool, shelf);\n",
                "        shelf->is_read = false;\n",
            ),
        ],
    ),
    Mutant(
        "stale-answer",
        "now and then the answer of the call before is given to a question about a shelf",
        [
            (
                "    if (status == LMCS_OK)\n        *info = found;\n    return status;\n",
                "    if (status != LMCS_OK)\n        return status;\n"
                "    static _Thread_local struct lmcs_shelf_info last;\n"
                "    static _Thread_local unsigned asked;\n    *info = found;\n"
                "    if (++asked % 8 == 0 && strcmp(last.name, found.name) == 0)\n        *info = last;\n"
                "    last = found;\n    return LMCS_OK;\n",
            )
        ],
        quick=True,
    ),
    Mutant(
        "answer-of-two-moments",
        "how many snapshots there are is asked after which one is the newest",
        [
            (
                "    if (status == LMCS_OK)\n        *info = found;\n    return status;\n",
                "    if (status == LMCS_OK)\n        *info = found;\n"
                "    if (status == LMCS_OK && lmcs_txn_read(pool, &txn, error) == LMCS_OK) {\n"
                "        struct lmcs_shelf later;\n"
                "        if (lmcs_shelf_get(&txn, name, &later, error) == LMCS_OK)\n"
                "            info->snapshot_count = later.df.snapshot_count;\n        lmcs_txn_end(&txn);\n    }\n"
                "    return status;\n",
            )
        ],
    ),
    Mutant("link-wrong-byte", "a link has a wrong byte, and is not verified", WRONG_LINK, quick=True),
    Mutant(
        "memory-of-failed",
        "the copy of a capture that fails becomes the memory state of the snapshot before it",
        [
            ("        committed && capture->makes_links ? malloc(", "        capture->makes_links ? malloc("),
            (
                "        const uint64_t content = entry->shared != 0 ? entry->shared : entry->content.id;\n"
                "        void *data",
                "        const uint64_t content =\n            entry->shared != 0 ? entry->shared : committed ? "
                "entry->content.id : entry->previous;\n        void *data",
            ),
        ],
    ),
    Mutant(
        "delta-unchecked",
        "the transaction of a capture does not check whether its deltas still fit",
        [
            (
                "        if (status == LMCS_OK && !may) {\n            entry->form",
                "        if (false) {\n            entry->form",
            ),
            (
                "        status = finish_payloads(capture, error);\n",
                "        status = finish_payloads(capture, error);\n" + 5 * LINGER,
            ),
        ],
    ),
]


def run(program: Path, folder: str, seconds: int, seed: int) -> tuple[bool, str]:
    """Return whether it was caught, and the reason."""
    command = [str(program), "--seconds", str(seconds), "--in", folder, "--seed", str(seed), "--threads", "8"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + HANG_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return True, "it hangs"
    if done.returncode < 0:
        return True, f"{signal.Signals(-done.returncode).name}: {done.stderr.strip()}"
    return done.returncode != 0, done.stderr.strip()


def run_again(program: Path, folder: str, seconds: int) -> tuple[bool, str]:
    """Run on one new pool after another: some show only while little is free."""
    caught, how = False, ""
    for seed in range(1, 1 + max(1, seconds // SECONDS_OF_A_POOL)):
        caught, how = run(program, folder, min(seconds, SECONDS_OF_A_POOL), seed)
        if caught:
            break
    return caught, how


def main() -> int:
    parser = argparse.ArgumentParser(description="See that stress finds deliberate bugs.")
    parser.add_argument("--build", type=Path, default=TOP / "build" / "release")
    parser.add_argument("--quick", action="store_true", help="only those that are found at once")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seconds", type=int, default=60, help="for each, at most")
    parser.add_argument("--in", dest="base", default="/dev/shm", help="where the pools are made")
    arguments = parser.parse_args()
    chosen = [
        m for m in MUTANTS if (not arguments.only or m.name in arguments.only) and (m.quick or not arguments.quick)
    ]
    folder = arguments.build.resolve() / "mutants"
    folder.mkdir(parents=True, exist_ok=True)
    try_edits(MUTANTS, arguments.build.resolve())
    missed = []
    for mutant in chosen:
        if arguments.list:
            print(f"{mutant.name}: {mutant.what}")
            continue
        program = make(mutant, arguments.build.resolve(), folder, "stress")
        start = time.monotonic()
        pools = tempfile.mkdtemp(prefix="lmcs-mutant-", dir=arguments.base)
        try:
            caught, how = run_again(program, pools, arguments.seconds)
        finally:
            shutil.rmtree(pools)
        print(f"{'caught' if caught else 'MISSED'} {mutant.name} ({mutant.what})", flush=True)
        lines = how.splitlines()
        print(f"    {time.monotonic() - start:.0f} s: {(lines[0] if lines else '')[:200]}", flush=True)
        if not caught:
            missed.append(mutant.name)
    if not arguments.list:
        print(f"{len(chosen) - len(missed)} of {len(chosen)} mutants were caught")
    if missed:
        print(f"missed: {' '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
