/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A run of two ranks in an object store (store/REMOTE.md, "Runs of many ranks"): two nodes, each with the pool of a rank
 * and the records; a program that removes and sweeps; a reader. A sub-run is one byte of parts here, and the top one
 * value: remote.pml has the commits of each. -DBREAK_... leaves out a rule. Snapshots are 1 to N.
 */
#ifndef N
#define N 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#define BIT(n) (1 << (n))
#define BELOW(n) (BIT(n) - 1)

byte parts[2];        /* the sub-runs: whose parts are there */
byte passed[2];       /* parts up to this number were sent, or never will be */
byte shown, next = 1; /* the top: the records, and the lowest number that none has or had */
byte removed, lost;   /* for the checks alone */
byte ended;

#ifdef BREAK_LOOK
#define THERE (wanted == rank -> parts[rank] : seen)
#define PASSED (wanted == rank -> passed[rank] : seen_passed)
#else
#define THERE parts[wanted]
#define PASSED passed[wanted]
#endif

proctype node(bit rank)
{
    byte sent, k, wanted;
    bool complete, gone;
#ifdef BREAK_LOOK
    byte seen, seen_passed;
#endif
send:
#ifdef BREAK_LOOK
    atomic { seen = parts[1 - rank]; seen_passed = passed[1 - rank] };
#endif
    if
    :: sent == N -> skip
    :: d_step { sent < N ->
        sent++;
        parts[rank] = parts[rank] | BIT(sent);
        passed[rank] = sent
       }
    :: d_step { sent < N -> /* it was removed, or the pool is lost */
        sent++;
        passed[rank] = sent;
        lost = lost | BIT(sent)
       }
    fi;
    if
    :: sent < N -> goto send /* several parts in one commit */
    :: true
    fi;
    k = next;
    do
    :: k > N -> break
    :: else ->
        wanted = 0;
        complete = true;
        gone = false;
        do
        :: wanted == 2 -> break
#ifdef BREAK_ALL
        :: wanted < 2 && wanted != rank -> wanted++
        :: wanted < 2 && wanted == rank ->
#else
        :: wanted < 2 ->
#endif
            d_step {
                if
                :: (THERE & BIT(k)) == 0 ->
                    complete = false;
#ifdef BREAK_WAIT
                    gone = true
#else
                    gone = gone || PASSED >= k
#endif
                :: else
                fi;
                wanted++
            }
        od;
        if
#ifdef BREAK_ORDER
        :: true ->
#else
        :: complete ->
#endif
            d_step { /* a conditional PUT, repeated on the newest state */
                if
#ifdef BREAK_NEXT
                :: true ->
#else
                :: k >= next ->
#endif
                    assert((parts[0] & parts[1] & BIT(k)) != 0);
                    shown = shown | BIT(k);
                    next = (k >= next -> k + 1 : next)
                :: else
                fi;
                k++
            }
#ifndef BREAK_ORDER
        :: !complete && gone -> k++
        :: !complete && !gone -> break
#endif
        fi
    od;
    if
    :: sent < N -> goto send
    :: else
    fi;
    ended++
}

/* What remains of the parts in a sub-run, by the top's state. */
#ifdef BREAK_DOUBT
#define KEPT(records, above) (records)
#else
#define KEPT(records, above) ((records) | ~BELOW(above))
#endif

proctype sweeper()
{
    byte rounds, victim, records, above;
    do
    :: rounds < ROUNDS ->
        rounds++;
        victim = 0;
        if
        :: victim = 0
        :: (shown & BIT(1)) != 0 -> victim = 1
        :: (shown & BIT(2)) != 0 -> victim = 2
        fi;
#ifdef BREAK_FIRST
        d_step { parts[0] = parts[0] & ~(victim -> BIT(victim) : 0) };
        d_step { parts[1] = parts[1] & ~(victim -> BIT(victim) : 0) };
#endif
        d_step {
            if
            :: victim != 0 && (shown & BIT(victim)) != 0 ->
                shown = shown & ~BIT(victim);
                removed = removed | BIT(victim)
            :: else
            fi
        };
        d_step { records = shown; above = next };
        d_step { parts[0] = parts[0] & KEPT(records, above) };
        d_step { parts[1] = parts[1] & KEPT(records, above) }
    :: rounds == ROUNDS -> break
    od
}

proctype reader()
{
    byte records, k, rank;
    records = shown;
    k = 1;
    do
    :: k > N -> break
    :: k <= N && (records & BIT(k)) == 0 -> k++
    :: k <= N && (records & BIT(k)) != 0 ->
        rank = 0;
        do
        :: rank == 2 -> k++; break
        :: rank < 2 && (parts[rank] & BIT(k)) != 0 -> rank++
        :: rank < 2 && (parts[rank] & BIT(k)) == 0 ->
#ifdef BREAK_REREAD
            assert(false);
#endif
            assert((shown & BIT(k)) == 0); /* the record is gone, too */
            rank++
        od
    od
}

/* Each snapshot whose parts were all sent is there, or was removed. */
proctype end()
{
    byte k = 1;
    ended == 2;
    do
    :: k > N -> break
    :: else -> assert(((shown | removed | lost) & BIT(k)) != 0); k++
    od
}

init
{
    atomic {
        run node(0);
        run node(1);
        run sweeper();
        run reader();
        run end()
    }
}
