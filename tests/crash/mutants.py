#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Breaks the store in ways that lose data only when power fails; `crash` must find each.

    mutants.py [--quick] [--only NAME...] [--build build/release]

tests/mutation.py defines mutants; in the last ones the recorder omits flushes, fences and syncs of libpmemobj.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mutation import TOP, WRONG_LINK, Mutant, make, try_edits

# Many short histories find more than few long ones.
BUDGET = ["--until-finding", "--images", "30000", "--of-a-seed", "150"]


PUBLISH = """    pmemobj_set_value(heap->pool, &all[count], lmcs_heap_at(heap, word_offset), word);
    if (pmemobj_publish(heap->pool, all, count + 1) != 0)
"""
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
        [("way | PMEM_F_MEM_NODRAIN", "PMEM_F_MEM_NOFLUSH")],
        ["--medium", "dax"],
        quick=True,
    ),
    Mutant(
        "reserve-flush",
        "a tensor that was filled in place is not flushed",
        [("(void)guarded(heap, lmcs_heap_at(heap, offset), NULL, bytes, flush_bytes);", "(void)offset;")],
        ["--medium", "dax"],
    ),
    Mutant(
        "worker-fence",
        "threads that copied do not drain before they are done",
        [
            (
                "    lmcs_heap_drain(((struct copying *)context)->pool->heap);",
                "    (void)context;",
            )
        ],
        ["--medium", "dax", "--seed", "2"],
    ),
    Mutant(
        "put-fence",
        "put's own thread does not drain the hashes of blocks, which another thread commits",
        [
            (
                "    lmcs_heap_drain(pool->heap); /* another thread may commit",
                "    /* another thread may commit",
            )
        ],
        ["--medium", "dax", "--seed", "1"],
    ),
    Mutant(
        "arrival-fence",
        "the thread that writes what a restore reads does not drain, and another thread commits",
        [("            lmcs_heap_drain(a->pool->heap); /*", "            /*")],
        ["--medium", "dax", "--seed", "6"],
        quick=True,
    ),
    Mutant(
        "file-sync",
        "fdatasync is not called",
        [("result = fdatasync(heap->fd);", "result = 0;")],
        ["--medium", "file"],
        quick=True,
    ),
    Mutant(
        "commit-sync",
        "a transaction's pages are not synced before the root word is switched",
        [
            (
                WRITE_AND_SYNC,
                "    if (status == LMCS_OK)\n        status = write_pages(txn, error);\n",
            )
        ],
        ["--medium", "file"],
    ),
    Mutant(
        "pages-after-root",
        "a transaction's pages are written after the root word that refers to them",
        [
            (WRITE_AND_SYNC, ""),
            (
                "    pool->root = txn->root;\n    pool->epoch",
                "    if (write_pages(txn, error) != LMCS_OK || lmcs_heap_sync(pool->heap, error) != LMCS_OK)\n"
                "        abort();\n    pool->root = txn->root;\n    pool->epoch",
            ),
        ],
        quick=True,
    ),
    Mutant(
        "publish-split",
        "objects are claimed by one publish and the root word is switched by another",
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
        [
            (
                "    enum lmcs_status status = lmcs_page_take(txn, &new_root, error);\n"
                "    if (status == LMCS_OK && old_root != 0 && !lmcs_page_push_freed(txn, old_root, 1))\n",
                "    enum lmcs_status status = LMCS_OK;\n    new_root = old_root;\n    if (old_root == 0)\n"
                "        status = lmcs_page_take(txn, &new_root, error);\n    if (false)\n",
            )
        ],
    ),
    Mutant(
        "page-freed-too-soon",
        "a page that the last root reaches is used again by the transaction that replaces it",
        [
            (
                "return shared || lmcs_page_push_freed(txn, offset, 1) ?",
                "return shared || push_recycled(txn->pages, offset) ?",
            )
        ],
        quick=True,
    ),
    Mutant(
        "payload-freed-too-soon",
        "a payload's file space is given back by the transaction that retires it, before its commit",
        [
            (
                "    txn->root.live_bytes -= room;\n    enum lmcs_status status = lmcs_root_delete(",
                "    txn->root.live_bytes -= room;\n    lmcs_heap_punch(txn->pool->heap, offset, room);\n"
                "    enum lmcs_status status = lmcs_root_delete(",
            )
        ],
    ),
    Mutant(
        "punch-first",
        "file space is given back before the commit that ceases to count on it",
        [
            (
                "    if (status == LMCS_OK && trim.sound_count > 0)\n        status = lmcs_txn_commit(&txn, error);\n",
                "    for (size_t i = 0; status == LMCS_OK && i < trim.hole_count; i++)\n"
                "        lmcs_heap_punch(pool->heap, trim.holes[i].offset, trim.holes[i].bytes);\n"
                "    if (status == LMCS_OK && trim.sound_count > 0)\n        status = lmcs_txn_commit(&txn, error);\n",
            )
        ],
    ),
    Mutant(
        "count-early",
        "the count of snapshots is committed before the snapshot",
        [
            ("        c->txn.root.snapshot_count++;\n", ""),
            (
                "    bool again = false;\n    do\n        status = try_to_enter(",
                "    bool again = false;\n    struct lmcs_txn early;\n    if (!capture->options.prepare) {\n"
                "        status = lmcs_txn_write(capture->pool, &early, error);\n"
                "        early.root.snapshot_count++;\n"
                "        if (status != LMCS_OK || lmcs_txn_commit(&early, error) != LMCS_OK)\n            abort();\n"
                "    }\n    do\n        status = try_to_enter(",
            ),
        ],
    ),
    Mutant(
        "link-split",
        "the links of a capture are entered by another transaction than the arrays that they store",
        [
            (
                "            status = lmcs_content_add(&c->txn, &capture->links[i].made, error);\n    }\n",
                "            status = lmcs_content_add(&c->txn, &capture->links[i].made, error);\n    }\n"
                "    if (status == LMCS_OK && !c->refused && capture->link_count > 0) {\n"
                "        status = lmcs_txn_commit(&c->txn, error);\n        if (status == LMCS_OK)\n"
                "            status = lmcs_txn_write(capture->pool, &c->txn, error);\n"
                "        c->txn.only_allocates = true;\n    }\n",
            )
        ],
    ),
    Mutant(
        "encode-fence",
        "threads that encode a capture's deltas do not drain before another thread commits",
        [
            (
                "    lmcs_heap_drain(encoding->pool->heap);\n    chain->length = 1 + bases;",
                "    chain->length = 1 + bases;",
            )
        ],
        ["--medium", "dax"],
    ),
    Mutant("link-wrong-byte", "a link has a wrong byte, and is not verified", WRONG_LINK, quick=True),
    Mutant(
        "tag-split",
        "a tag is moved by two transactions",
        [
            (
                'numbers start at 1", pool->path);\n    return lmcs_tags_change(pool, shelf, &change, 1, error);',
                'numbers start at 1", pool->path);\n    if (lmcs_tag_remove(pool, shelf, tag, NULL) != LMCS_OK)\n'
                "        (void)0;\n    return lmcs_tags_change(pool, shelf, &change, 1, error);",
            )
        ],
    ),
    Mutant(
        "drop-visible",
        "a shelf is removed snapshot by snapshot without being hidden first",
        [
            (
                "    shelf.df.flags |= LMCS_SHELF_STAGING;\n    txn->root.snapshot_count -= shelf.df.snapshot_count;\n",
                "",
            )
        ],
    ),
    Mutant(
        "restore-split",
        "a restore shows one shelf after the other",
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
        [
            (
                "        status = lmcs_staging_drop_left(pool, error);\n",
                "        (void)0;\n",
            )
        ],
    ),
    Mutant(
        "value-in-place",
        "a live value is written over the one that it replaces",
        [
            (
                "slot_place(body->record, !body->slot)",
                "slot_place(body->record, body->slot)",
            ),
            ("    body->slot = !body->slot;\n", ""),
        ],
        ["--medium", "dax", "--seed", "200"],
    ),
    Mutant(
        "value-unsynced",
        "a live value is not made durable before it is acknowledged",
        [
            (
                "        status = lmcs_heap_sync(body->pool->heap, error);\n",
                "        (void)0;\n",
            )
        ],
    ),
    Mutant(
        "acknowledged-early",
        "a live value's sequence is noted as acknowledged before the value is durable",
        [
            (
                "    enum lmcs_status status = lmcs_heap_write(body->pool->heap, place, image, image_bytes, error);\n",
                "    uint64_t early = body->version + 1;\n"
                "    enum lmcs_status status = lmcs_heap_write(body->pool->heap, "
                "body->record->df.cell + offsetof(struct lmcs_cell_df, acknowledged), &early, 8, error);\n"
                "    if (status == LMCS_OK)\n        status = lmcs_heap_sync(body->pool->heap, error);\n"
                "    if (status == LMCS_OK)\n"
                "        status = lmcs_heap_write(body->pool->heap, place, image, image_bytes, error);\n",
            )
        ],
    ),
    Mutant(
        "persist-nothing",
        "what was stored to a live tensor is not flushed",
        [
            (
                "        bool whole = guarded(heap, (void *)(uintptr_t)at, NULL, bytes, flush_bytes);\n",
                "        bool whole = true;\n",
            )
        ],
        ["--medium", "dax"],
    ),
    Mutant(
        "persist-no-msync",
        "what was stored to a live tensor is not written back",
        [
            (
                "result = msync((void *)first, (uintptr_t)at - first + bytes, MS_SYNC);",
                "result = 0;",
            )
        ],
        ["--medium", "file"],
    ),
    Mutant(
        "journal-unsynced",
        "a journal is sealed before what it says is durable",
        [
            (
                "    if (status == LMCS_OK)\n        status = lmcs_heap_sync(pool->heap, error);\n"
                "    return status == LMCS_OK ? lmcs_journal_write_header(pool, LMCS_JOURNAL_REDO, "
                "&header, error) : status;",
                "    return status == LMCS_OK ? lmcs_journal_write_header(pool, LMCS_JOURNAL_REDO, "
                "&header, error) : status;",
            )
        ],
        ["--medium", "file", "--seed", "5"],
        quick=True,
    ),
    Mutant(
        "journal-unsealed",
        "what a journal is for is written without one",
        [
            (
                "    return status == LMCS_OK ? lmcs_journal_write_header(pool, LMCS_JOURNAL_REDO, "
                "&header, error) : status;",
                "    return status;",
            )
        ],
    ),
    Mutant(
        "journal-stays",
        "a journal is not cleared, and applied again over what was stored since",
        [
            (
                "    enum lmcs_status status = lmcs_journal_write_header(pool, kind, &header, error);\n",
                "    enum lmcs_status status = kind == LMCS_JOURNAL_REDO ? LMCS_OK : "
                "lmcs_journal_write_header(pool, kind, &header, "
                "error);\n",
            )
        ],
    ),
    Mutant(
        "home-unsynced",
        "a journal is cleared before what it says is durable where it belongs",
        [
            (
                "entries[i].data, entries[i].bytes, error);\n    if (status == LMCS_OK)\n"
                "        status = lmcs_heap_sync(pool->heap, error);\n"
                "    return status == LMCS_OK ? lmcs_journal_clear",
                "entries[i].data, entries[i].bytes, error);\n    return status == LMCS_OK ? lmcs_journal_clear",
            )
        ],
    ),
    Mutant(
        "journal-without-root",
        "a transaction's bytes are committed by their journal, and its records later",
        [
            (
                "gathering->entries, gathering->count, with_root, &sequence",
                "gathering->entries, gathering->count, false, &sequence",
            )
        ],
    ),
    Mutant(
        "undo-late",
        "what is about to be stored to is not durable in the undo journal before",
        [
            (
                "    if (status == LMCS_OK)\n        status = lmcs_heap_sync(pool->heap, error);\n"
                "    if (status == LMCS_OK)\n        *at += room;",
                "    if (status == LMCS_OK)\n        *at += room;",
            )
        ],
    ),
    Mutant(
        "undo-forgotten",
        "the undo journal is ended before what was declared is durable",
        [
            (
                "status == LMCS_OK && i < transaction->declared_count; i++",
                "status == LMCS_OK && i < 0 * transaction->declared_count; i++",
            )
        ],
    ),
    Mutant(
        "undo-not-rolled-back",
        "what a crash left of a declared transaction stays",
        [
            (
                "    if (sealed && kind == LMCS_JOURNAL_UNDO && !committed)\n"
                "        return lmcs_undo_roll_back(pool, header.sequence, error);\n",
                "",
            )
        ],
    ),
    Mutant(
        "made-unpersisted",
        "a tensor that a transaction made is not durable when its record is",
        [("if (body->changed && !body->erased && bytes > had)", "if (false)")],
    ),
    Mutant(
        "swap-split",
        "two live variables are swapped by two transactions",
        [
            (
                "        status = lmcs_live_commit_changes(bodies[0]->pool, changes, count, 0, error);",
                "        for (size_t i = 0; status == LMCS_OK && i < count; i++)\n"
                "            status = lmcs_live_commit_changes(bodies[0]->pool, &changes[i], 1, 0, error);",
            )
        ],
    ),
    Mutant(
        "group-split",
        "a group's snapshot is committed by one transaction, and taken off the list by another",
        [
            (
                "        status = lmcs_root_delete(txn, LMCS_TREE_GROUPS, r->group, NULL, error);\n"
                "    return status == LMCS_OK ? lmcs_shelf_save(txn, shelf, error) : status;\n",
                "        status = lmcs_shelf_save(txn, shelf, error);\n"
                "    if (status == LMCS_OK)\n"
                "        status = lmcs_txn_commit(txn, error);\n"
                "    if (status == LMCS_OK)\n"
                "        status = lmcs_txn_write(r->pool, txn, error);\n"
                "    return status == LMCS_OK ? "
                "lmcs_root_delete(txn, LMCS_TREE_GROUPS, r->group, NULL, error) : status;\n",
            )
        ],
    ),
    Mutant(
        "group-latest",
        "the snapshot of a group becomes the latest, also if a newer one is committed",
        [
            (
                "shelf->df.latest = r->record.df.number > shelf->df.latest ? r->record.df.number : shelf->df.latest;",
                "shelf->df.latest = r->record.df.number;",
            )
        ],
    ),
    Mutant(
        "live-freed-too-soon",
        "space of a live variable is given back before the commit that does without it",
        [
            (
                "    if (status == LMCS_OK && !later && any)\n",
                "    for (size_t i = 0; status == LMCS_OK && !later && i < count; i++)\n"
                "        if (bodies[i]->stored && records[i] != NULL)\n"
                "            lmcs_live_give_difference(bodies[i]->pool, bodies[i]->record, records[i]);\n"
                "    if (status == LMCS_OK && !later && any)\n",
            ),
            (
                "    lmcs_live_give_difference(body->pool, old, record); /* no handle writes there any more */\n",
                "",
            ),
        ],
        ["--seed", "1030"],
    ),
    Mutant(
        "live-unbacked",
        "a live tensor gets no file space",
        [("    status = lmcs_heap_back(pool->heap, offset, bytes, error);\n", "")],
    ),
    Mutant(
        "checkout-unsynced",
        "a tensor that was checked out is not durable when its record is",
        [
            (
                "        status = lmcs_live_persist_range(&body, 0, record->df.bytes, error);\n",
                "        (void)0;\n",
            )
        ],
        ["--medium", "dax"],
    ),
    Mutant(
        "lose-flushes",
        "libpmemobj's every 5th flush is forgotten",
        options=["--medium", "dax", "--lose", "flushes:5"],
    ),
    Mutant(
        "lose-fences",
        "libpmemobj's every 5th fence is forgotten",
        options=["--medium", "dax", "--lose", "fences:5"],
    ),
    Mutant(
        "lose-syncs",
        "every 5th msync or fdatasync is forgotten",
        options=["--medium", "file", "--lose", "syncs:5"],
    ),
]


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
    try_edits(MUTANTS, arguments.build.resolve())
    missed = []
    for mutant in chosen:
        if arguments.list:
            print(f"{mutant.name}: {mutant.what}")
            continue
        program = make(mutant, arguments.build.resolve(), folder, "crash")
        start = time.monotonic()
        run = subprocess.run(
            [str(program), *BUDGET, "--keep", str(folder), *mutant.options],
            capture_output=True,
            text=True,
            cwd=TOP,
        )
        lines = run.stdout.splitlines()
        finding = next((line for line in lines if line.startswith("FINDING")), None)
        images = lines[-1].split()[0] if lines else "0"
        caught = run.returncode == 1 and finding is not None
        print(
            f"{'caught' if caught else 'MISSED'} {mutant.name} ({mutant.what})",
            flush=True,
        )
        print(
            f"    {images} images, {time.monotonic() - start:.0f} s: {(finding or run.stderr)[:200]}",
            flush=True,
        )
        if not caught:
            missed.append(mutant.name)
    if not arguments.list:
        print(f"{len(chosen) - len(missed)} of {len(chosen)} mutants were caught")
    if missed:
        print(f"missed: {' '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
