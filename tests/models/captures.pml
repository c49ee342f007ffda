/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * captures.pml - asynchronous captures of one shelf in flight, as a model for Spin (store/CAPTURES.md).
 *
 * A trainer takes snapshots: it begins (compares with the newest durable snapshot, its base), puts, and commits, now or
 * later. One committer commits those that wait, in order. A pruner removes snapshots. A dropper drops prepared ones, also
 * the newest, without the shelf (store/RUNS.md). Any capture may fail at its turn.
 * A crash keeps what is durable, so the invariants of the durable state are asserted at each commit.
 *
 * Checked: snapshot k is durable after k-1, unless that failed or was aborted; only a capture's own fault fails it; the
 * content that it shares exists at its turn; its parent is the newest durable one; at most BOUND are in flight; a wait
 * reports the capture's own result, and the next begin or close a failure that no wait reported, once; close leaves no
 * capture in flight; nothing waits for ever. Each macro BREAK_... leaves out one rule; run.sh expects an error for each.
 */
#define N     4
#define BOUND 2
#define NONE  0

mtype = { ABSENT, OPEN, QUEUED, DURABLE, FAILED, ABORTED };
mtype state[N + 1];
byte base[N + 1];    /* newest snapshot at the begin */
byte shares[N + 1];  /* the capture whose content it shares; NONE: its own */
byte content[N + 1]; /* of a durable snapshot: the capture that wrote it */
byte parent[N + 1];
bool there[N + 1];   /* durable and not removed */
bool doubtful[N + 1]; /* prepared, and not resolved */
bool faulty[N + 1];
byte told[N + 1];    /* reports of its failure outside of its wait */
bool waited[N + 1];
byte latest, begun; /* latest: the newest that is there, prepared or not */
byte dropping, drops;
bool looking; /* a begin, for its base: pruning waits for the shelf */
bool busy, committing, closed;
byte unreported;     /* set of failures */

#define BIT(n) (1 << (n))

/* Whether a snapshot that is there has the content. */
#define EXISTS(c) ((there[1] && content[1] == (c)) || (there[2] && content[2] == (c)) || \
                   (there[3] && content[3] == (c)) || (there[4] && content[4] == (c)))

/* The first capture from `i` on that is queued; NONE: none. Captures are numbered in the order of their begin. */
inline find_first(first, i)
{
    i = 1;
    do
    :: i > N -> first = NONE; break
    :: i <= N && state[i] == QUEUED -> first = i; break
    :: else -> i++
    od
}

#define IN_FLIGHT ((state[1] == QUEUED) + (state[2] == QUEUED) + (state[3] == QUEUED) + (state[4] == QUEUED))

/* A capture's turn: its transaction. */
inline enter(k, i)
{
    if
    :: faulty[k] -> d_step { state[k] = FAILED; unreported = unreported | BIT(k) }
    :: else ->
        d_step {
            i = 1;
            do
            :: i == k -> break
            :: else -> assert(state[i] != QUEUED && state[i] != OPEN); i++ /* order */
            od;
            assert(shares[k] == NONE || EXISTS(shares[k]));
            content[k] = (shares[k] == NONE -> k : shares[k]);
#ifdef BREAK_PARENT
            parent[k] = base[k];
#else
            parent[k] = latest;
#endif
            assert(parent[k] == latest);
            there[k] = true;
            doubtful[k] = (k % 2 == 0);
            state[k] = DURABLE;
            latest = k
        }
    fi
}

/* The committer ends when nothing is queued, in the same step that finds that; a commit starts it again. */
proctype committer()
{
    byte k, i;
    do
    :: atomic {
#ifdef BREAK_ORDER
        if
        :: state[1] == QUEUED -> k = 1
        :: state[2] == QUEUED -> k = 2
        :: state[3] == QUEUED -> k = 3
        :: state[4] == QUEUED -> k = 4
        :: else -> k = NONE
        fi;
#else
        find_first(k, i);
#endif
        if
        :: k == NONE -> committing = false; k = 0; i = 0; break
        :: else
        fi
       }
       enter(k, i);
#ifdef BREAK_INHERIT
       if
       :: state[k] == FAILED -> d_step { if :: k < N && state[k + 1] == QUEUED -> state[k + 1] = FAILED :: else fi }
       :: else
       fi
#endif
    od
}

proctype trainer()
{
    byte k, i, before, looked, seen;
    do
    :: begun < N ->
        /* begin */
        atomic {
#ifdef BREAK_BOUND
            !busy ->
#else
            !busy && IN_FLIGHT < BOUND ->
#endif
            i = 1;
            do
            :: i > N -> break
            :: else -> if :: (unreported & BIT(i)) != 0 -> told[i]++ :: else fi; i++
            od;
            unreported = 0;
            busy = true;
            begun++;
            k = begun;
            state[k] = OPEN;
            looking = true;
            before = k - 1;
            assert(IN_FLIGHT < BOUND)
        }
        do /* looks for the base in one transaction, and takes it if nothing was dropped since */
        :: atomic { dropping == NONE -> looked = drops }
           seen = latest;
           atomic {
            if
#ifdef BREAK_LOOK
            :: true -> base[k] = seen; break
#else
            :: looked == drops -> base[k] = seen; break
            :: looked != drops -> skip
#endif
            fi
           }
        od;
        atomic { looked = 0; seen = 0; looking = false }
        /* put: equal to the base, or not */
        if
        :: base[k] != NONE -> shares[k] = content[base[k]]
        :: shares[k] = NONE
#ifdef BREAK_SHARING
        :: before != NONE && state[before] == QUEUED -> shares[k] = before
#endif
        fi;
        if
        :: faulty[k] = true
        :: faulty[k] = false
        fi;
        if
        :: /* asynchronous: gives the shelf to the next capture */
            atomic {
                state[k] = QUEUED;
                busy = false;
                if
                :: !committing -> committing = true; run committer()
                :: else
                fi
            }
        :: /* synchronous: its turn in the caller's thread */
            atomic { !committing; state[k] = QUEUED }
            enter(k, i);
            atomic {
                if :: state[k] == FAILED -> unreported = unreported & ~BIT(k); waited[k] = true :: else fi;
                busy = false
            }
        :: atomic { state[k] = ABORTED; busy = false }
        fi
    :: begun == N -> break
    od;
    /* close */
#ifndef BREAK_CLOSE
    !committing && !busy;
#endif
    atomic {
        i = 1;
        do
        :: i > N -> break
        :: else ->
            assert(state[i] != QUEUED && state[i] != OPEN);
            assert(state[i] != FAILED || faulty[i]);
            if :: (unreported & BIT(i)) != 0 -> told[i]++ :: else fi;
            assert(state[i] == FAILED || told[i] == 0);
            assert(told[i] <= 1);
            assert(state[i] != FAILED || told[i] + waited[i] >= 1);
            i++
        od;
        unreported = 0;
        closed = true
    }
}

/* Waits for some asynchronous captures, in any order. */
proctype waiter()
{
    byte k;
    do
    :: k = 1 :: k = 2 :: k = 3 :: k = 4 :: break
    od;
    if
    :: k == NONE
    :: else ->
        atomic {
            state[k] == DURABLE || state[k] == FAILED || state[k] == ABORTED || closed;
            assert(state[k] != FAILED || faulty[k]);
            if
            :: state[k] == FAILED && !closed -> waited[k] = true; unreported = unreported & ~BIT(k)
            :: else
            fi
        }
    fi
}

/* Removes a snapshot that is neither the newest nor a base in flight; also while a full put holds the shelf. */
proctype pruner()
{
    byte s, i;
    bool is_base;
    do
    :: atomic {
        !closed && !looking;
        if
        :: s = 1 :: s = 2 :: s = 3 :: s = 4
        fi;
        i = 1;
        do
        :: i > N -> break
        :: else -> if :: (state[i] == OPEN || state[i] == QUEUED) && base[i] == s -> is_base = true :: else fi; i++
        od;
#ifdef BREAK_BASE
        is_base = false;
#endif
        if
        :: there[s] && s != latest && !is_base && !doubtful[s] -> there[s] = false
        :: else
        fi;
        s = 0; i = 0; is_base = false
       }
    :: closed -> break
    od
}

#define IS_BASE(i, s) ((state[i] == OPEN || state[i] == QUEUED) && base[i] == (s))

/* Drops prepared snapshots, or commits them, at any time. */
proctype dropper()
{
    byte s, i;
    do
    :: atomic {
        if
        :: there[2] && doubtful[2] -> s = 2
        :: there[4] && doubtful[4] -> s = 4
        :: closed -> break
        fi;
        if
        :: doubtful[s] = false; s = 0
        :: dropping = s; drops++
        fi
       }
       if
       :: s != 0 ->
        atomic {
#ifndef BREAK_DROP
            !(IS_BASE(1, s) || IS_BASE(2, s) || IS_BASE(3, s) || IS_BASE(4, s)) ->
#endif
            there[s] = false;
            doubtful[s] = false;
            if
            :: latest == s ->
                latest = NONE;
                i = 1;
                do
                :: i > N -> break
                :: else -> if :: there[i] -> latest = i :: else fi; i++
                od
            :: else
            fi;
            dropping = NONE;
            s = 0;
            i = 0
        }
       :: else
       fi
    od
}

init
{
    atomic {
        byte i = 1;
        do
        :: i > N -> break
        :: else -> state[i] = ABSENT; i++
        od;
        run trainer();
        run waiter();
        run pruner();
        run dropper()
    }
}
