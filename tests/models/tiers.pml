/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tiers.pml - one snapshot that leaves its pool for a run in an object store (store/REMOTE.md, Tiers).
 *
 * A pusher, another that takes removals over, a pruner at another machine, a pool whose owner removes, restores and
 * pulls, its writer with the ring of annotations and requests in memory, and deaths of pusher and writer at any step.
 * What holds: a snapshot that the pool lists as remote is in the run, whole, and the same.
 *
 * Left out, in turn, by a macro:
 *   BREAK_MARK    the commit that forbids its removal
 *   BREAK_VERIFY  the comparison with the pool's own
 *   BREAK_EPOCH   the bound of the request
 *   BREAK_FENCE   the commit, where the entry has the mark
 *   BREAK_UNMARK  that the mark stays while the pool has the snapshot
 *   BREAK_MIRROR  that removals look at the pool again after a lost commit
 */

mtype = { ABSENT, LOCAL, REMOTE };

#define NONE 0 /* of contents; 1 and 2 are two snapshots of one number, 3 is damaged */

mtype pool = LOCAL;
byte held = 1;   /* the snapshot that the pool lists */
byte made = 1;   /* the epoch of its record */
byte epoch = 1;  /* of the pool */

byte entry = 1;  /* the snapshot at the URL */
bool marked;
byte commits = 1;

byte ring;    /* a request waits: its epoch; 0: none */
byte asked;   /* the writer has it in memory */

inline check()
{
    assert(pool != REMOTE || entry == held)
}

/* A commit on the state that was read as number n; `won` says whether it came first. */
#define MOST 5
#define COMMIT_IF (commits == n && commits < MOST)

/* Confirms the snapshot, and asks the writer to let it go. */
proctype pusher()
{
    byte n, bound, round;
    bool same;
again:
    do
    :: round < 2 ->
        round++;
        atomic { bound = epoch; n = commits }
        if
        :: pool == LOCAL && entry != NONE
        :: else -> goto again
        fi;
#ifdef BREAK_UNMARK
        atomic { if :: COMMIT_IF && marked -> marked = false; commits++; n = commits :: else fi };
#endif
#ifndef BREAK_MARK
mark:
        if
#ifdef BREAK_FENCE
        :: marked -> skip
#endif
        :: atomic { COMMIT_IF && entry != NONE -> marked = true; commits++; n = commits }
        :: atomic { commits != n && entry != NONE -> n = commits } goto mark
        :: entry == NONE || commits == MOST -> goto again
        fi;
#endif
        atomic { same = (entry == held && pool == LOCAL) };
#ifdef BREAK_VERIFY
        same = true;
#endif
        if
        :: same && ring == 0 -> ring = bound
        :: true /* dies, or the ring is full */
        fi;
        d_step { n = 0; bound = 0; same = false }
    :: else -> break
    od
}

/* Another pusher takes removals over. */
proctype mirror()
{
    byte n;
    n = commits;
look:
    if
    :: pool == ABSENT
    :: else -> goto done
    fi;
removal:
    if
    :: atomic { COMMIT_IF -> entry = NONE; marked = false; commits++; check() }
#ifdef BREAK_MIRROR
    :: atomic { commits != n -> n = commits } goto removal
#else
    :: atomic { commits != n -> n = commits } goto look
#endif
    :: commits == MOST
    fi;
done: skip
}

/* Removes what the run's rules do not keep: it knows nothing of the pool. */
proctype pruner()
{
    byte n;
    n = commits;
again:
    if
    :: atomic { COMMIT_IF && entry != NONE && !marked -> entry = NONE; commits++; check() }
    :: atomic { commits != n -> n = commits } goto again
    :: marked || entry == NONE || commits == MOST
    fi
}

/* Objects may be damaged, until they are verified. */
proctype damage()
{
    atomic { if :: entry == 1 && !marked -> entry = 3 :: true fi }
}

proctype owner()
{
    byte i;
    do
    :: i < 3 ->
        i++;
        if
        :: atomic { pool != ABSENT -> pool = ABSENT; held = NONE; epoch++ }
        :: atomic { pool == ABSENT -> pool = LOCAL; epoch++; made = epoch; held = 1 }
        :: atomic { pool == ABSENT -> pool = LOCAL; epoch++; made = epoch; held = 2 }
        :: atomic { pool == REMOTE && entry == held -> pool = LOCAL; epoch++; made = epoch }
        fi
    :: true -> break
    od
}

proctype writer()
{
end:
    do
    :: atomic { ring != 0 -> asked = ring; ring = 0 }
    :: atomic { asked != 0 -> /* obeys */
        if
#ifdef BREAK_EPOCH
        :: pool == LOCAL -> pool = REMOTE; epoch++; check()
#else
        :: pool == LOCAL && made <= asked -> pool = REMOTE; epoch++; check()
#endif
        :: else
        fi;
        asked = 0
       }
    :: atomic { asked != 0 -> asked = 0 } /* dies */
    od
}

init
{
    atomic {
        run writer();
        run owner();
        run damage();
        run pruner();
        run mirror();
        run pusher()
    }
}
