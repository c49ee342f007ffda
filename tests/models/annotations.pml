/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * annotations.pml - a ring of annotations in a pool, as a model for Spin.
 *
 * Other processes add tags, metrics and notes to snapshots beside a writer, which never waits for them. They append
 * records to a ring under a lock of their own; the writer's next commit applies them, and with the same root publishes
 * the sequence up to which slots are free. Readers add the pending records to what the root shows.
 *
 * A writer, two adders, a reader, and a power supply. Each process may die between any two of its steps; so may the
 * machine, which then keeps any part of the stores that were not flushed. All annotations are for one snapshot, which a
 * policy removes if no annotation keeps it. An annotation is a number; numbers ascend with the attempts.
 *
 * Checked: no acknowledged annotation is ever absent from the pool's state as a reader sees it, or pruned with its
 * snapshot; annotations are applied in order, each once. Each macro BREAK_... leaves out one step of the protocol;
 * tests/models/run.sh expects an error for each.
 */
#ifndef ATTEMPTS
#define ATTEMPTS 3 /* of both adders together */
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#define SLOTS 2
#define NONE  0 /* never written or torn: its checksum is wrong */

/* `before` models the checksum of the record before, which a record contains. */
typedef record { byte seq; byte what; byte before }
typedef root { byte applied; byte last; byte set; bool gone }

record seen[SLOTS], durable[SLOTS]; /* by all processes; after a power failure */
root now, safe;                     /* likewise */
byte adding;                        /* the lock of adders: its holder + 1; it ends with the holder */
bool pruning;                       /* the writer's, likewise */
byte attempts;
byte acked;                         /* the set of acknowledged annotations */
bool kill[4];

#define BIT(n)  (1 << (n))
#define AT(s)   seen[(s) % SLOTS]
#ifdef BREAK_CHAIN
#define FOLLOWS(s, last) (AT(s).seq == (s))
#else
#define FOLLOWS(s, last) (AT(s).seq == (s) && AT(s).before == (last))
#endif

inline copy_record(to, from)
{
    to.seq = from.seq; to.what = from.what; to.before = from.before
}

inline copy_root(to, from)
{
    to.applied = from.applied; to.last = from.last; to.set = from.set; to.gone = from.gone
}

inline sync()
{
    d_step {
        copy_record(durable[0], seen[0]);
        copy_record(durable[1], seen[1]);
        copy_root(safe, now)
    }
}

proctype adder(byte me)
{
    byte s, last, mine;
    do
    :: attempts < ATTEMPTS ->
        {
            atomic { /* no other process changes the slots that it reads */
                adding == 0 -> adding = me + 1; s = now.applied + 1; last = now.last;
                do
                :: FOLLOWS(s, last) -> last = AT(s).what; s++
                :: else -> break
                od
            }
            if
            :: s > now.applied + SLOTS || s <= now.applied || now.gone || attempts == ATTEMPTS -> skip /* full, or again */
            :: else ->
#ifndef BREAK_REUSE
                if
                :: s > SLOTS -> sync() /* the root that frees the slot */
                :: else
                fi;
#endif
                atomic { attempts++; mine = attempts; AT(s).seq = NONE }
                d_step { AT(s).seq = s; AT(s).what = mine; AT(s).before = last }
#ifndef BREAK_SYNC
                sync();
#endif
#ifndef BREAK_PRUNING
                !pruning;
#endif
                atomic { if :: !now.gone -> acked = acked | BIT(mine) :: else fi }
            fi;
            d_step { adding = 0; s = 0; last = 0; mine = 0 }
        } unless { d_step { kill[me] -> kill[me] = false; s = 0; last = 0; mine = 0 } }
    :: attempts == ATTEMPTS -> break
    od
}

proctype writer()
{
    byte s, last, set;
    bool keep;
    do
    :: true ->
        {
            if
            :: d_step {
                FOLLOWS(now.applied + 1, now.last) ->
                s = now.applied; last = now.last; set = now.set;
                do
                :: FOLLOWS(s + 1, last) ->
                    s++;
                    assert(AT(s).what > last);            /* in order */
                    assert((set & BIT(AT(s).what)) == 0); /* once */
                    last = AT(s).what;
                    set = set | BIT(last)
                :: else -> break
                od
                }
                d_step { now.applied = s; now.last = last; now.set = set } /* the publish is visible, ... */
                d_step { copy_root(safe, now) }                             /* then durable */
            :: !now.gone && now.set == 0 ->
                pruning = true;
                d_step { keep = FOLLOWS(now.applied + 1, now.last) }
                if
                :: !keep -> d_step { assert(acked == 0); now.gone = true } d_step { copy_root(safe, now) }
                :: keep
                fi;
                pruning = false
            fi;
            d_step { s = 0; last = 0; set = 0; keep = false }
        } unless { d_step { kill[2] -> kill[2] = false; s = 0; last = 0; set = 0; keep = false } }
    :: attempts == ATTEMPTS && adding == 0 -> break
    od
}

/* What it reads must hold everything that was acknowledged when it began. */
proctype reader()
{
    byte s, last, set, begun, applied;
    do
    :: true ->
        {
            d_step { begun = acked; s = now.applied; applied = s; last = now.last; set = now.set }
            do
            :: atomic { FOLLOWS(s + 1, last) -> s++; last = AT(s).what; set = set | BIT(last) }
            :: atomic { !FOLLOWS(s + 1, last) -> break }
            od;
            if
#ifndef BREAK_REREAD
            :: now.applied != applied -> skip /* again */
#endif
            :: atomic {
#ifndef BREAK_REREAD
                now.applied == applied ->
#endif
                assert((begun & ~set) == 0)
            }
            fi;
            d_step { s = 0; last = 0; set = 0; begun = 0; applied = 0 }
        } unless { d_step { kill[3] -> kill[3] = false; s = 0; last = 0; set = 0; begun = 0; applied = 0 } }
    :: attempts == ATTEMPTS -> break
    od
}

/* After the restart a slot is its old self, its new one, or torn; the root, changed by one word, the old or the new. */
inline lose(i)
{
    if
    :: copy_record(seen[i], durable[i])
    :: seen[i].seq != durable[i].seq || seen[i].what != durable[i].what -> seen[i].seq = NONE
    :: true
    fi;
    copy_record(durable[i], seen[i])
}

proctype failures()
{
    byte crashes, deaths;
    do
    :: deaths < DEATHS ->
        atomic {
            deaths++;
            if
            :: kill[0] = true; if :: adding == 1 -> adding = 0 :: else fi
            :: kill[1] = true; if :: adding == 2 -> adding = 0 :: else fi
            :: kill[2] = true; pruning = false
            fi
        }
    :: crashes < CRASHES ->
        atomic {
            crashes++;
            lose(0);
            lose(1);
            if
            :: copy_root(now, safe)
            :: copy_root(safe, now)
            fi;
            adding = 0;
            pruning = false;
            kill[0] = true; kill[1] = true; kill[2] = true; kill[3] = true
        }
    :: break
    od
}

init
{
    atomic {
        run adder(0);
        run adder(1);
        run writer();
#ifndef NO_READER
        run reader();
#endif
        run failures()
    }
}
