/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * runs.pml - snapshots of a run of many ranks, as a model for Spin (store/RUNS.md).
 *
 * Each rank has a pool, and prepares its part of a save there. A coordinator appends a record to the run's log when all
 * ranks have prepared. Each slot of the log is written once, by the first that does. A job (an attempt) begins with an
 * entry of its own, and appends only to the slot behind the last one that it knows. So an entry of a later attempt fences
 * the earlier ones: their coordinators may still live, and fail at their next entry. Attempts differ in their ranks. Any
 * process may die at any step. A process holds its rank's pool until its end. Ranks do not wait for a decision before
 * they prepare the next save. Whoever opens a pool settles its parts, by a copy of the log: its first n entries.
 *
 * Checked: all parts of a recorded snapshot are there until its removal is recorded; a part is visible only with a
 * record; what was dropped is never recorded; all copies of the log agree, apart from doubt; a reader finds all parts of
 * what its copy shows, or else a removal in the log; an attempt leaves nothing in doubt in its pools that earlier ones
 * prepared. Each macro BREAK_... leaves out one rule; run.sh expects an error for each.
 */
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef SAVES
#define SAVES 2 /* of an attempt */
#endif
#ifndef REMOVALS
#define REMOVALS 1
#endif
#define RANKS  2
#define GROUPS (ATTEMPTS * SAVES)
#define SLOTS  (ATTEMPTS + GROUPS + REMOVALS)
#define NONE   255

#define BIT(n)        (1 << (n))
#define GROUP(a, s)   ((a) * SAVES + (s))
#define ATTEMPT_OF(g) ((g) / SAVES)
#define PART(r, g)    part[(r) * GROUPS + (g)]
#define HAS(set, r)   (((set) & BIT(r)) != 0)

mtype = { BEGINS, COMMITS, REMOVES };      /* entries */
mtype = { ABSENT, PREPARED, COMMITTED };   /* parts */
mtype = { VISIBLE, GONE, DEAD, DOUBTFUL }; /* decisions */

/* Durable */
mtype kind[SLOTS];
byte about[SLOTS]; /* attempt, or group */
byte ranks[SLOTS]; /* set, of a BEGINS and a COMMITS */
byte slots;
mtype part[RANKS * GROUPS];

/* Not durable */
byte holder[RANKS];   /* of the pool: attempt, or NONE */
byte acks[GROUPS];    /* ranks that have told the coordinator that they have prepared */
bool given_up[GROUPS]; /* the coordinator has told the ranks that it will not record it */
byte removals;

/* Not of the model's state: of d_steps alone */
hidden byte i, n, w, g, r, whose, last;
hidden mtype decision, whole;

/* What the first `entries` say of a group. `without`: an entry that the copy lacks; NONE. */
inline decide(group, entries, without, result)
{
    result = DOUBTFUL;
    i = 0;
    do
    :: i >= entries -> break
    :: i < entries && i == without -> i++
    :: i < entries && i != without ->
        if
        :: kind[i] == COMMITS && about[i] == group -> result = VISIBLE
        :: kind[i] == REMOVES && about[i] == group -> result = GONE
        :: kind[i] == COMMITS && about[i] > group && ATTEMPT_OF(about[i]) == ATTEMPT_OF(group) && result == DOUBTFUL ->
            result = DEAD /* records are in the order of saves */
        :: kind[i] == BEGINS && about[i] > ATTEMPT_OF(group) && result == DOUBTFUL -> result = DEAD
        :: else
        fi;
        i++
    od
}

/* Settles one part in a pool. By an older copy of the log the result would be the same, or doubt. */
inline settle(rank, group)
{
    decide(group, slots, NONE, decision);
    if
    :: PART(rank, group) == ABSENT
    :: PART(rank, group) != ABSENT && decision == VISIBLE -> PART(rank, group) = COMMITTED
    :: PART(rank, group) != ABSENT && decision == GONE -> PART(rank, group) = ABSENT
    :: PART(rank, group) != ABSENT && decision == DEAD -> PART(rank, group) = ABSENT
#ifdef BREAK_DOUBT
    :: PART(rank, group) != ABSENT && decision == DOUBTFUL && holder[rank] != ATTEMPT_OF(group) ->
        PART(rank, group) = ABSENT
    :: PART(rank, group) != ABSENT && decision == DOUBTFUL && holder[rank] == ATTEMPT_OF(group)
#else
    :: PART(rank, group) != ABSENT && decision == DOUBTFUL
#endif
    fi
}

/* Appends an entry, if `next` is still the first free slot. */
inline append(what, subject, by, next, wins)
{
    d_step {
#ifdef BREAK_SLOT
        if
        :: what != BEGINS -> next = slots
        :: else
        fi;
#endif
        wins = (next == slots);
        if
        :: wins ->
            kind[slots] = what;
            about[slots] = subject;
            ranks[slots] = by;
            slots++;
            next = slots
        :: else -> next = 0
        fi
    }
}

proctype rank(byte a, me)
{
    byte s = 0;
    d_step { /* settles what earlier attempts left: all of it is decided */
        holder[me] == NONE -> holder[me] = a;
        g = 0;
        do
        :: g < GROUP(a, 0) ->
            settle(me, g);
            assert(PART(me, g) != PREPARED);
            g++
        :: else -> break
        od
    }
    do
    :: s < SAVES ->
        /* The coordinator looks for the message when it likes, so at any time after this, or never. */
#ifdef BREAK_ACK
        acks[GROUP(a, s)] = acks[GROUP(a, s)] | BIT(me);
        if
        :: PART(me, GROUP(a, s)) = PREPARED
        :: break
        fi;
#else
        d_step {
            PART(me, GROUP(a, s)) = PREPARED;
            acks[GROUP(a, s)] = acks[GROUP(a, s)] | BIT(me)
        }
#endif
        s++
    :: break /* the end, or its death */
    od;
    atomic { holder[me] = NONE; s = 0 }
}

/* A job with ranks `own`: its number is one more than that of the last attempt in the log. */
proctype coordinator(byte own)
{
    byte a = 0, s = 0, next = 0, gone = 0;
    bool wins = false;
    do
    :: wins -> break
    :: else ->
        d_step {
            next = slots;
            a = 0;
            i = 0;
            do
            :: i == slots -> break
            :: else -> if :: kind[i] == BEGINS -> a = about[i] + 1 :: else fi; i++
            od
        }
        append(BEGINS, a, own, next, wins)
    od;
    atomic {
        if :: HAS(own, 0) -> run rank(a, 0) :: else fi;
        if :: HAS(own, 1) -> run rank(a, 1) :: else fi
    }
    do
#ifdef BREAK_ALL
    :: wins && s < SAVES && acks[GROUP(a, s)] != 0 ->
#else
    :: wins && s < SAVES && acks[GROUP(a, s)] == own ->
#endif
        append(COMMITS, GROUP(a, s), own, next, wins);
        s++
    :: wins && s < SAVES -> /* a rank is slow or dead */
        given_up[GROUP(a, s)] = true;
#ifdef BREAK_GIVEN_UP
        if
        :: acks[GROUP(a, s)] == own -> append(COMMITS, GROUP(a, s), own, next, wins)
        :: true
        fi;
#endif
        s++
#ifdef BREAK_ORDER
    :: wins && s == 0 && acks[GROUP(a, 1)] == own -> /* records the second save, then the first */
        append(COMMITS, GROUP(a, 1), own, next, wins);
        if
        :: wins && acks[GROUP(a, 0)] == own -> append(COMMITS, GROUP(a, 0), own, next, wins)
        :: true
        fi;
        s = SAVES
#endif
    :: d_step { /* removes the newest snapshot of the run */
            wins && removals < REMOVALS ->
            removals++;
            gone = NONE;
            g = 0;
            do
            :: g == GROUPS -> break
            :: else -> decide(g, slots, NONE, decision); if :: decision == VISIBLE -> gone = g :: else fi; g++
            od
        }
        if
        :: gone != NONE ->
#ifdef BREAK_REMOVAL
            PART(0, gone) = ABSENT;
#endif
            append(REMOVES, gone, 0, next, wins)
        :: else
        fi;
        gone = 0
    :: break /* the end, its death, or it is fenced */
    od;
    atomic { a = 0; s = 0; next = 0; wins = false }
}

#define SETTLES(rank, group)                                                                                  \
    :: d_step { (group) < GROUPS && PART(rank, group) != ABSENT -> settle(rank, group) }                      \
    :: d_step {                                                                                               \
        (group) < GROUPS && PART(rank, group) == PREPARED && holder[rank] == ATTEMPT_OF(group) &&             \
            given_up[group] -> PART(rank, group) = ABSENT                                                     \
    }

/* Whoever has a pool open, at any time: a rank, or a program when none has it. */
proctype settler()
{
    do
    SETTLES(0, 0)
    SETTLES(0, 1)
    SETTLES(0, 2)
    SETTLES(0, 3)
    SETTLES(1, 0)
    SETTLES(1, 1)
    SETTLES(1, 2)
    SETTLES(1, 3)
    od
}

/* What a copy of the log says, a prefix: nothing else than the whole, apart from doubt and a later removal. */
inline check_copy(entries, without)
{
    decide(g, entries, without, decision);
    assert(decision != DEAD || whole == DEAD);
    assert(decision != VISIBLE || whole == VISIBLE || whole == GONE);
    assert(decision != GONE || whole == GONE)
}

/* The parts of a snapshot that a copy of the log shows. A reader looks at the log again when one is not there. */
inline check_parts(entries)
{
    decide(g, entries, NONE, decision);
    i = 0;
    whose = 0;
    last = 0;
    do
    :: i == entries -> break
    :: else ->
        if
        :: kind[i] == COMMITS && about[i] == g -> whose = ranks[i]
        :: kind[i] == BEGINS -> last = ranks[i]
        :: else
        fi;
        i++
    od;
#ifdef BREAK_RANKS
    whose = last;
#endif
    r = 0;
    do
    :: r == RANKS -> break
    :: else ->
#ifdef BREAK_REREAD
        assert(decision != VISIBLE || !HAS(whose, r) || PART(r, g) != ABSENT);
#else
        assert(decision != VISIBLE || !HAS(whose, r) || PART(r, g) != ABSENT || whole == GONE);
#endif
        assert(PART(r, g) != COMMITTED || whole == VISIBLE || whole == GONE);
        r++
    od
}

/* Readers with all possible copies, in each state. */
proctype readers()
{
    do
    :: d_step {
        g = 0;
        do
        :: g == GROUPS -> break
        :: else ->
            decide(g, slots, NONE, whole);
            n = 0;
            do
            :: n > slots -> break
            :: else ->
                check_copy(n, NONE);
                check_parts(n);
#ifdef BREAK_PREFIX
                w = 0;
                do
                :: w == n -> break
                :: else -> check_copy(n, w); w++
                od;
#endif
                n++
            od;
            g++
        od
       }
    od
}

init
{
    byte own, k;
    atomic {
        k = 0;
        do
        :: k == RANKS * GROUPS -> break
        :: else -> part[k] = ABSENT; k++
        od;
        holder[0] = NONE;
        holder[1] = NONE;
        run settler();
        run readers();
        k = 0;
        do
        :: k == ATTEMPTS -> break
        :: else ->
            if
            :: own = 3
            :: k > 0 -> own = 1
            fi;
            run coordinator(own);
            k++
        od;
        own = 0;
        k = 0
    }
}
