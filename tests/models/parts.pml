/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * parts.pml - a part of a run's snapshot that leaves a rank's pool (store/REMOTE.md, Tiers).
 *
 * A folder has the records and the pool. Programs remove the snapshot, restore it, take removals over to the URL, and
 * push; the pool's writer obeys. A program elsewhere prunes the run, one the sub-run of the rank. What holds: while the
 * folder has the record, a part that has left the pool is in the sub-run, and the record is there, too. The steps of one
 * pool are in tiers.pml.
 *
 * Left out, in turn, by a macro:
 *   BREAK_RECORD  the mark of the record, so that it is not removed
 *   BREAK_PART    the mark of the part
 *   BREAK_WHOLE   that the record must be there
 *   BREAK_OWN     that the folder must have it, before the mark
 *   BREAK_FENCE   the commit, where the record has the mark
 *   BREAK_EPOCH   the bound of the request
 *   BREAK_MIRROR  that removals look at the records again after a lost commit
 */

mtype = { ABSENT, LOCAL, REMOTE };

bool exists = true; /* the record in the folder */
mtype part = LOCAL; /* in the pool */
byte made = 1, epoch = 1;

bool shown = true, marked; /* the record at the URL */
byte commits = 1;          /* of the records there */
bool there = true, kept;   /* the part in the sub-run, and its mark */

byte ring, asked; /* requests: their epochs */

#define MOST 5
#define COMMIT_IF (commits == n && commits < MOST)

inline check()
{
    assert(!exists || part != REMOTE || (shown && there))
}

/* The parts go after the record (drop_parts). */
inline drop_parts()
{
    atomic { if :: !shown -> there = false; kept = false; check() :: else fi }
}

proctype pusher()
{
    byte n, bound, round;
    bool sound;
again:
    do
    :: round < 2 ->
        round++;
        atomic { bound = epoch; n = commits }
        if
#ifdef BREAK_OWN
        :: part == LOCAL
#else
        :: part == LOCAL && exists
#endif
        :: else -> goto again
        fi;
#ifndef BREAK_RECORD
mark:
        if
#ifdef BREAK_FENCE
        :: marked -> skip
#endif
        :: atomic { COMMIT_IF && shown -> marked = true; commits++; n = commits }
        :: atomic { commits != n && shown -> n = commits } goto mark
        :: !shown || commits == MOST ->
#ifdef BREAK_WHOLE
            skip
#else
            goto again
#endif
        fi;
#endif
#ifndef BREAK_PART
        atomic { if :: there -> kept = true :: else fi };
#endif
        atomic {
            sound = there && part == LOCAL;
#ifndef BREAK_WHOLE
            sound = sound && shown;
#endif
        };
        if
        :: sound && ring == 0 -> ring = bound
        :: true /* dies, or the ring is full */
        fi;
        d_step { n = 0; bound = 0; sound = false }
    :: else -> break
    od
}

proctype writer()
{
end:
    do
    :: atomic { ring != 0 -> asked = ring; ring = 0 }
    :: atomic { asked != 0 ->
        if
#ifdef BREAK_EPOCH
        :: part == LOCAL -> part = REMOTE; epoch++; check()
#else
        :: part == LOCAL && made <= asked -> part = REMOTE; epoch++; check()
#endif
        :: else
        fi;
        asked = 0
       }
    :: atomic { asked != 0 -> asked = 0 } /* dies */
    od
}

/* Removes the snapshot, and restores it: the parts first. A part is collected later, or never. */
proctype coordinator()
{
    byte i;
    do
    :: i < 2 && exists -> i++; exists = false
    :: i < 2 && !exists ->
        i++;
        atomic { part = LOCAL; epoch++; made = epoch };
        exists = true
    :: atomic { !exists && part != ABSENT -> part = ABSENT; epoch++ }
    :: true -> break
    od
}

/* Takes removals over. */
proctype mirror()
{
    byte n;
    n = commits;
look:
    if
    :: !exists
    :: else -> goto done
    fi;
removal:
    if
    :: atomic { COMMIT_IF -> shown = false; marked = false; commits++; check() }
#ifdef BREAK_MIRROR
    :: atomic { commits != n -> n = commits } goto removal
#else
    :: atomic { commits != n -> n = commits } goto look
#endif
    :: commits == MOST -> goto done
    fi;
    drop_parts();
done: skip
}

/* Removes what the run's rules do not keep: it knows nothing of the folders. */
proctype pruner()
{
    byte n;
    n = commits;
again:
    if
    :: atomic { COMMIT_IF && shown && !marked -> shown = false; commits++; check() }
    :: atomic { commits != n -> n = commits } goto again
    :: marked || !shown || commits == MOST -> goto done
    fi;
    drop_parts();
done: skip
}

/* Removes the snapshot of a sub-run. */
proctype stranger()
{
    atomic { if :: there && !kept -> there = false; check() :: true fi }
}

init
{
    atomic {
        run writer();
        run coordinator();
        run pruner();
        run stranger();
        run mirror();
        run pusher()
    }
}
