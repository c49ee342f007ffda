/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Ranks of a machine that load the same units (python/lmcstore/_folder/once.py): four units, unit u for slot u % 2 of
 * the shared memory. Rank 0 reads the last two, the others all. At most DEATHS ranks end, at any step; the kernel drops
 * their locks. A rank loses patience at any step, but not without deaths: then it waits until it can do something.
 * With FAILURES, that many decodings fail: the rank leaves the slot as it is, and reads the unit alone. A slot has the
 * number of a unit, from 1, or RUBBISH. -DBREAK_... leaves out a rule.
 */
#ifndef N
#define N 3
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef FAILURES
#define FAILURES 0
#endif
#define UNITS   4
#define SLOTS   2
#define WINDOW  2
#define NOBODY  255
#define RUBBISH 255

byte bytes[SLOTS], holder[SLOTS]; /* holder: by the memory's head */
byte locked[SLOTS] = NOBODY;
byte taken[UNITS], gone; /* a bit for each rank */
byte decoded[UNITS];
byte deaths, failures;

#define BIT(r)      (1 << (r))
#define ALL         (BIT(N) - 1)
#define READERS(u)  (ALL - ((u) < 2))
#define WAITING(u)  (READERS(u) & ~taken[u] & ~gone)
#define NEEDS(u)    ((READERS(u) & ~taken[u] & BIT(rank)) != 0)
#define EARLIER(u)  (((u) > 0 && NEEDS(0)) + ((u) > 1 && NEEDS(1)) + ((u) > 2 && NEEDS(2)))
#define SLOT(u)     ((u) % SLOTS)

#if defined(BREAK_ORDER)
#define FREE(u) (holder[SLOT(u)] == 0 || WAITING(holder[SLOT(u)] - 1) == 0)
#elif defined(BREAK_TAKEN)
#define FREE(u) true
#else
#define FREE(u) ((u) < SLOTS || WAITING((u) - SLOTS) == 0)
#endif

#ifdef BREAK_LOCK
#define LOCK(u) true
#else
#define LOCK(u) (locked[SLOT(u)] == NOBODY)
#endif

/* A rank tries a unit of its window. A try that fails changes nothing, and is left out. */
#define TRY(u)                                                                                                 \
    atomic {                                                                                                   \
        NEEDS(u) && EARLIER(u) < WINDOW && LOCK(u) && (holder[SLOT(u)] == (u) + 1 || FREE(u)) -> unit = u;     \
        locked[SLOT(u)] = rank                                                                                 \
    }
#define UNLOCK locked[SLOT(unit)] = (locked[SLOT(unit)] == rank -> NOBODY : locked[SLOT(unit)])
#define TAKE   taken[unit] = taken[unit] | BIT(rank)
#define MAY_DIE                                                     \
    if                                                              \
    :: atomic { deaths < DEATHS -> deaths++; UNLOCK; goto over }    \
    :: true                                                         \
    fi

proctype node(byte rank)
{
    byte unit;
    bool last;
    do
    :: NEEDS(0) || NEEDS(1) || NEEDS(2) || NEEDS(3) ->
        if
        :: TRY(0)
        :: TRY(1)
        :: TRY(2)
        :: TRY(3)
#if DEATHS > 0 && !defined(BREAK_PATIENCE)
        :: atomic { /* alone */
            unit = (NEEDS(0) -> 0 : (NEEDS(1) -> 1 : (NEEDS(2) -> 2 : 3)));
            decoded[unit]++;
            TAKE;
            goto next
           }
#endif
        fi;
        MAY_DIE;
        if
        :: holder[SLOT(unit)] == unit + 1
        :: else ->
            last = (WAITING(unit) & ~BIT(rank)) == 0;
            if
            :: last -> UNLOCK; decoded[unit]++; TAKE; goto next
            :: else
            fi;
#ifdef BREAK_EARLY
            holder[SLOT(unit)] = unit + 1;
#endif
            bytes[SLOT(unit)] = RUBBISH;
            MAY_DIE;
#if FAILURES > 0
            if
            :: failures < FAILURES ->
                failures++;
#ifdef BREAK_FAILURE
                holder[SLOT(unit)] = unit + 1;
#endif
                UNLOCK;
                TAKE;
                goto next
            :: true
            fi;
#endif
            bytes[SLOT(unit)] = unit + 1;
            decoded[unit]++;
            MAY_DIE;
            holder[SLOT(unit)] = unit + 1
        fi;
        UNLOCK;
        MAY_DIE;
#ifdef BREAK_COPY
        TAKE;
#endif
        assert(bytes[SLOT(unit)] == unit + 1);
        MAY_DIE;
        TAKE;
next:
        skip
    :: else -> break
    od;
    atomic { gone = gone | BIT(rank) };
over:
    skip
}

init
{
    byte k = 0;
    atomic {
        do
        :: k == N -> break
        :: k < N -> run node(k); k++
        od
    };
    (_nr_pr == 1); /* none waits for ever: else this is an invalid end */
    k = 0;
    do
    :: k == UNITS -> break
    :: k < UNITS ->
#if DEATHS == 0 && FAILURES == 0
        assert(decoded[k] == 1);
#endif
#if DEATHS == 0
        assert(taken[k] == READERS(k));
#endif
        k++
    od
}
