/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * remote.pml - a run in an object store, as a model for Spin.
 *
 * Pushers of one pool upload a snapshot's object, then put the whole new state at the next number of the log, if no
 * object is there yet. Whoever loses the number continues on the newest state. A pruner removes a snapshot from the
 * state; it deletes the objects a day later. It also deletes uploads without a record. A put may be lost, may land when
 * its client no longer waits, or may lose only its reply. A process may sleep at any step, for days or forever (so it
 * dies). The head is a hint: any old number, or none.
 *
 * The pusher looks at the newest state, then at the age of its upload, then puts. The pruner looks, then lists, then
 * puts a state even if it removes no snapshot, then deletes what it has listed. So its number is a fence: a pusher that
 * has seen its upload young before the pruner's list either has its record before the fence, or loses the number and
 * looks again.
 *
 * With KEYS, a thread of a pusher makes a key of snapshot 2, which has payloads of snapshot 1's object. It is committed
 * later, if that object is in the newest state. A removal keeps entries that have payloads of a key; a sweep looks at
 * entries alone.
 *
 * With REPAIR, the newest record of the log is damaged once. Processes that have read it before go on with it, the
 * others wait. A repairer overwrites it, perhaps much later: with the head, if that has its number, else with the state
 * before it. The pusher sends again the snapshots that only the lost state had.
 *
 * Checked: no number of the log and no snapshot is committed twice; an acknowledged snapshot is in all later states,
 * unless it is removed; all objects that a state needs are there, for a day after the removal of the snapshot, too; a
 * reader finds a state that is at least as new as its beginning. Each macro BREAK_... leaves out one rule; run.sh
 * expects an error for each.
 */
#ifndef PUSHERS
#define PUSHERS 2
#endif
#ifndef OBJECTS
#define OBJECTS 4 /* uploads of both pushers together */
#endif
#ifndef NUMBERS
#define NUMBERS 5
#endif
#ifndef TIME
#define TIME 3
#endif
#ifndef ROUNDS
#define ROUNDS 2 /* of the pruner */
#endif
#define SNAPSHOTS 2
#define HALF      1 /* of a day: the age at which a pusher uploads again */
#define DAY       2
#define PRUNED    255
#define KEYED     254
#define REPAIRED  253
#ifdef REPAIR
#define KEPT        2             /* newest numbers that never become stubs */
#define MENDED      (NUMBERS + 2) /* the state in place of the damaged one, which stays in the memory of processes */
#define STATES      (NUMBERS + 3)
#define STATE(n)    ((n) == damaged && is_mended -> MENDED : (n)) /* which is at a number of the log */
#define NUMBER(n)   ((n) == MENDED -> damaged : (n))
#define READABLE(n) ((n) == 0 || (n) != damaged || is_mended)
#else
#define KEPT        1
#define STATES      (NUMBERS + 2)
#define STATE(n)    (n)
#define NUMBER(n)   (n)
#define READABLE(n) true
#endif
#define NEXT        (NUMBER(n) + 1)

#define BIT(n)    (1 << (n))
#define OBJECT(s) object[((s) - 1) * STATES + at] /* of snapshot s in the state `at` */
#define SHOWN(s)  ((shown[at] & BIT(s)) != 0)
#define LINKED(s) ((linked[at] & BIT(s)) != 0) /* needs snapshot s - 1 */
#define OLD(time) ((time) + DAY <= now)

/* The log: the state of each number. States of stubs stay here, for the checks alone. */
bool taken[STATES], stub[STATES];
byte next[STATES], object[SNAPSHOTS * STATES], shown[STATES], linked[STATES];
byte removed[STATES]; /* set of objects that await their day */
byte writer[STATES];  /* the attempt: its object, KEYED, PRUNED or REPAIRED */
#ifdef KEYS
byte source[STATES];  /* the object that has payloads of the key; 0: there is no key */
#endif
byte made[STATES];    /* the time */
byte newest;
#ifdef REPAIR
byte damaged;         /* a number; 0: none is */
bool is_mended;
#endif

byte now;
byte uploads;              /* objects have the numbers from 1 */
byte there;                /* set of objects */
byte born[OBJECTS + 1];
byte owners;               /* set of objects of the second pusher */
byte acked;                /* set of snapshots */

/* A put whose client no longer waits for it */
byte late_at, late_snapshot, late_object;
bool late_link;
#ifdef REPAIR
byte late_from;
#define LATE_FROM   late_from
#define KEEP_FROM   late_from = n
#define FORGET_FROM late_from = 0
#else
#define LATE_FROM   (late_at - 1)
#define KEEP_FROM   skip
#define FORGET_FROM skip
#endif

/* Not of the model's state: of d_steps alone */
hidden byte at, to, s, m, v, w, needed, before;

/* The objects that the state `at` needs. */
inline collect(set)
{
    set = 0;
    s = SNAPSHOTS;
    m = 0; /* whether the snapshot above needs this one */
    do
    :: s == 0 -> break
    :: else ->
        if
        :: m || SHOWN(s) ->
            assert(OBJECT(s) != 0);
            set = set | BIT(OBJECT(s));
#ifdef KEYS
            if
            :: s == SNAPSHOTS && source[at] != 0 -> set = set | BIT(source[at]); m = 0
            :: else -> m = LINKED(s)
            fi
#else
            m = LINKED(s)
#endif
        :: else -> m = 0
        fi;
        s--
    od
}

/* What holds for each new state. */
inline check_state()
{
    collect(needed);
    assert((needed & ~there) == 0);
    s = 1;
    do
    :: s > SNAPSHOTS -> break
    :: else -> assert((acked & BIT(s)) == 0 || next[at] > s); s++
    od;
    s = 0
}

inline copy_state(number, from)
{
    at = from;
    next[number] = next[at];
    shown[number] = shown[at];
    linked[number] = linked[at];
    removed[number] = removed[at];
#ifdef KEYS
    source[number] = source[at];
#endif
    s = 1;
    do
    :: s > SNAPSHOTS -> break
    :: else -> m = OBJECT(s); at = number; OBJECT(s) = m; at = from; s++
    od;
    at = number;
    made[number] = now
}

/* Begins the state of a number, with what the one before says. */
inline begin_state(number, from)
{
    copy_state(number, from);
    assert(number == newest + 1 || taken[number]);
    taken[number] = true;
    if :: number > newest -> newest = number :: else fi
}

/* A pusher's state arrives at a number without an object. */
inline land(number, from, snapshot, o, link)
{
    begin_state(number, from);
    assert(next[at] == snapshot);
    next[at] = snapshot + 1;
    OBJECT(snapshot) = o;
    shown[at] = shown[at] | BIT(snapshot);
    if :: link -> linked[at] = linked[at] | BIT(snapshot) :: else fi;
    writer[at] = o;
    check_state()
}

/* Readers may hold any state that was ever the newest. */
inline delete(o)
{
    there = there & ~BIT(o);
    before = 0;
    do
    :: before > newest -> break
    :: else ->
        v = 1;
        do
        :: v > SNAPSHOTS -> break
        :: else ->
            at = STATE(before);
            s = (SHOWN(v) -> v : 0);
#ifdef KEYS
            if
            :: s == SNAPSHOTS && source[at] != 0 -> s = (o == source[at] || o == OBJECT(SNAPSHOTS) -> s : 0)
            :: else
            fi;
#endif
            do
#ifdef KEYS
            :: s == SNAPSHOTS && source[at] != 0 -> break
#endif
            :: s == 0 || OBJECT(s) == o -> break
            :: else -> s = (LINKED(s) -> s - 1 : 0)
            od;
            if
            :: s != 0 -> /* v was removed a day ago */
                w = before;
                do
                :: w > newest || !SHOWN(v) -> break
                :: else -> w++; at = STATE(w)
                od;
                assert(w <= newest && OLD(made[at]))
            :: else
            fi;
            v++
        od;
        before++
    od;
    before = 0
}

/* The newest state, from any hint. */
inline look(n)
{
    READABLE(newest);
    if
    :: n = 0
    :: newest >= 1 -> n = 1
    :: newest >= 2 -> n = 2
    fi;
    do
    :: taken[n + 1] -> n++
    :: else -> break
    od;
    assert(!stub[n]);
    n = STATE(n)
}

#define TAKEN            (taken[NEXT] && READABLE(NEXT))
#define TAKEN_BY_ANOTHER (TAKEN && !OWN)
#define WRITER           writer[STATE(NEXT)]
#if defined(BREAK_OWN)
#define OWN false
#elif defined(BREAK_ATTEMPT)
#define OWN (WRITER != PRUNED && ((owners & BIT(WRITER)) != 0) == me)
#elif defined(BREAK_STUB_WRITER)
#define OWN (WRITER == o && !stub[NEXT])
#else
#define OWN (WRITER == o)
#endif

#ifdef BREAK_CONDITION
#define FREE true
#else
#define FREE (!taken[NEXT])
#endif

#ifdef BREAK_ORDER
#define ARRIVES false
#else
#define ARRIVES true
#endif

#define UPLOAD                                              \
    uploads++;                                              \
    o = uploads;                                            \
    born[o] = now;                                          \
    if :: ARRIVES -> there = there | BIT(o) :: else fi;     \
    if :: me -> owners = owners | BIT(o) :: else fi

proctype pusher(bit me)
{
    byte n, k, o;
    bit link;
#ifdef KEYS
    bit whole; /* for instance because the snapshot before can't be used */
#define WHOLE whole
#else
#define WHOLE false
#endif
    atomic { look(n) }
prepare:
    atomic {
        uploads < OBJECTS && next[n] <= SNAPSHOTS && NEXT <= NUMBERS;
        k = next[n];
#ifdef KEYS
        if :: whole = false :: whole = true fi;
#endif
        d_step {
            at = n;
            if :: !WHOLE && k > 1 && OBJECT(k - 1) != 0 -> link = true :: else -> link = false fi;
            UPLOAD
        }
    }
    goto put;
check:
    atomic { /* the age by the server's clock */
#ifdef BREAK_AGE
        skip
#else
        if
        :: born[o] + HALF > now
        :: else -> uploads < OBJECTS; d_step { UPLOAD }
        fi
#endif
    }
put:
    if
    :: d_step { FREE -> to = NEXT; land(to, n, k, o, link) } /* and the reply is known, or lost */
    :: d_step { late_at == 0 && !taken[NEXT] ->
        late_at = NEXT; late_snapshot = k; late_object = o; late_link = link; KEEP_FROM
       }
    :: true /* lost, or refused */
    fi;
    /* Whatever the reply is, the object at the number says it. */
    if
    :: d_step { TAKEN && OWN ->
        at = STATE(NEXT);
        assert(OBJECT(k) == o); /* the pusher continues on what it believes to be there */
        acked = acked | BIT(k);
        there = there | BIT(o);
        n = at; k = 0; o = 0; link = 0
        }
        goto prepare
    :: !taken[NEXT] -> goto put
    :: !taken[NEXT] -> goto check
    :: atomic { TAKEN_BY_ANOTHER -> look(n) }
    fi;
    atomic {
        at = n;
        if
#ifndef BREAK_DROP
        :: next[n] > k -> /* the run has it */
#ifdef REPAIR
            d_step { o = 0; k = 0; link = 0 } /* a lost state may have its upload */
#else
            d_step { delete(o); o = 0; k = 0; link = 0 }
#endif
            goto prepare
#endif
#if defined(REPAIR) && !defined(BREAK_LATEST)
        :: next[n] < k -> /* it lacks snapshots that the lost state had */
            d_step { o = 0; k = 0; link = 0 }
            goto prepare
#endif
#ifndef BREAK_BASE
        :: next[n] == k && link && OBJECT(k - 1) == 0 ->
            uploads < OBJECTS;
            d_step { link = 0; UPLOAD }
#endif
        :: else
        fi;
        NEXT <= NUMBERS
    }
    goto check
}

/* What the pruner may delete: uploads without a record, and what was removed a day ago. */
inline list(set)
{
    set = 0;
    at = n;
    collect(needed);
#ifdef KEYS
    needed = BIT(OBJECT(1)) | BIT(OBJECT(2)); /* also of entries that only have payloads of a key */
#endif
    m = 1;
    do
    :: m > uploads -> break
    :: else ->
        if
        :: (there & ~needed & BIT(m)) == 0
#ifndef BREAK_GRACE
        :: (there & ~needed & removed[n] & BIT(m)) != 0 ->
            s = NUMBER(n); /* which removed it */
            do
            :: (removed[STATE(s - 1)] & BIT(m)) != 0 -> s--
            :: else -> break
            od;
            if :: OLD(made[STATE(s)]) -> set = set | BIT(m) :: else fi
#endif
        :: else ->
#ifdef BREAK_ORPHANS
            set = set | BIT(m)
#else
            if :: OLD(born[m]) -> set = set | BIT(m) :: else fi
#endif
        fi;
        m++
    od;
    m = 0
}

inline land_removal(snapshot, deleted)
{
    to = NEXT;
    begin_state(to, n);
    shown[at] = shown[at] & ~BIT(snapshot);
#ifdef BREAK_HIDDEN
    if :: snapshot != 0 -> removed[at] = removed[at] | BIT(OBJECT(snapshot)); OBJECT(snapshot) = 0 :: else fi;
#endif
    collect(needed);
#ifdef BREAK_SPARE
    if :: !SHOWN(1) -> needed = needed & ~BIT(source[at]) :: else fi;
#endif
    s = 1;
    do
    :: s > SNAPSHOTS -> break
    :: else ->
        if
        :: OBJECT(s) != 0 && (needed & BIT(OBJECT(s))) == 0 ->
            removed[at] = removed[at] | BIT(OBJECT(s));
            OBJECT(s) = 0;
            linked[at] = linked[at] & ~BIT(s)
        :: else
        fi;
        s++
    od;
    removed[at] = removed[at] & ~deleted;
    writer[at] = PRUNED;
    check_state()
}

proctype pruner()
{
    byte n, rounds, listed, victim;
    do
    :: rounds < ROUNDS ->
        atomic { look(n); rounds++ }
        atomic {
            if
            :: victim = 0
            :: (shown[n] & BIT(1)) != 0 -> victim = 1
            :: (shown[n] & BIT(2)) != 0 -> victim = 2
            fi;
#ifndef BREAK_LIST
            d_step { list(listed) }
#endif
        }
#ifdef BREAK_FENCE
        if
        :: victim == 0 -> goto fenced
        :: else
        fi;
#endif
#ifndef BREAK_LIST
        if
        :: victim == 0 && listed == 0 -> goto fenced
        :: else
        fi;
#endif
        if
        :: d_step { NEXT <= NUMBERS && FREE -> land_removal(victim, listed) }
        :: atomic { taken[NEXT] || NEXT > NUMBERS -> listed = 0 }
        fi;
#ifdef BREAK_LIST
        d_step { if :: WRITER == PRUNED -> n = NEXT; list(listed) :: else fi }
#endif
fenced:
        skip;
#if defined(REPAIR) && !defined(BREAK_OLD)
        d_step { /* the old state that the log has now also needs its objects */
            listed == 0 || READABLE(NUMBER(n)) ->
            at = STATE(NUMBER(n));
            collect(needed);
            listed = listed & ~needed
        }
#endif
        do
        :: listed == 0 -> break
        :: listed != 0 -> d_step {
            needed = 1;
            do
            :: (listed & BIT(needed)) != 0 -> break
            :: else -> needed++
            od;
            listed = listed & ~BIT(needed);
            delete(needed)
           }
        od;
        victim = 0;
        d_step { /* stubs */
            s = 1;
            do
            :: s + KEPT > newest || !OLD(made[STATE(s)]) -> break
#ifdef BREAK_STUBS
            :: else -> taken[s] = false; s++
#else
            :: else -> stub[s] = true; s++
#endif
            od;
            n = 0; s = 0
        }
    :: else -> break
    od
}

#ifdef KEYS
proctype keymaker()
{
    byte n, wanted;
    bit fits;
    next[newest] > SNAPSHOTS;
    atomic {
        look(n);
        d_step { at = n; wanted = (SHOWN(2) -> OBJECT(1) : 0) }
        if :: wanted == 0 -> goto given_up :: else fi
    }
commit:
    if
    :: d_step { NEXT <= NUMBERS && FREE ->
        to = NEXT;
        begin_state(to, n);
        source[at] = wanted;
        writer[at] = KEYED;
        check_state()
       }
    :: atomic { taken[NEXT] ->
        look(n);
#ifdef BREAK_KEY
        d_step { at = n; fits = (OBJECT(2) != 0) }
#else
        d_step { at = n; fits = (OBJECT(2) != 0 && OBJECT(1) == wanted) }
#endif
        if :: fits -> goto commit :: else fi
       }
    :: NEXT > NUMBERS
    fi;
given_up:
    skip
}
#endif

#ifdef READER
proctype reader()
{
    byte n, begun;
    bit found = true; /* the head has the state, and no number is an empty run */
    atomic {
        begun = newest;
        if
        :: n = 0
        :: newest >= 1 -> n = 1
        :: newest >= 2 -> n = 2
        fi
    }
#ifndef BREAK_HEAD
    do
    :: atomic { taken[n + 1] -> n++; found = !stub[n] }
    :: !taken[n + 1] -> break
    od;
#endif
    assert(found && n >= begun)
}
#endif

#ifdef REPAIR
#ifdef BREAK_NEAREST
#define BEFORE(n) 0
#else
#define BEFORE(n) (n) - 1
#endif
proctype repairer()
{
    byte n;
    bit has_copy;
    newest > 0;
    if
    :: d_step { damaged = newest; n = newest }
    :: atomic { /* a read that fails by itself */
        n = newest;
#ifndef BREAK_READS
        goto given_up
#endif
       }
    fi;
    if :: has_copy = true :: has_copy = false fi; /* the head */
    if
    :: d_step { has_copy || newest != n -> damaged = 0 } /* nobody begins with a state below the newest */
    :: d_step { !has_copy && newest == n ->
#ifndef BREAK_READS
        acked = acked & (BIT(next[n - 1]) - 1);
#endif
        damaged = n;
        copy_state(MENDED, BEFORE(n));
        taken[MENDED] = true;
#ifdef BREAK_WRITER
        writer[at] = writer[n];
#else
        writer[at] = REPAIRED;
#endif
        is_mended = true;
        check_state()
       }
    fi;
given_up:
    skip
}
#endif

/* Time passes, and puts arrive late. */
proctype world()
{
    do
    :: d_step { now < TIME -> now++ }
    :: d_step { late_at != 0 ->
        if
        :: !taken[late_at] -> land(late_at, LATE_FROM, late_snapshot, late_object, late_link)
        :: else
        fi;
        late_at = 0; late_snapshot = 0; late_object = 0; late_link = 0; FORGET_FROM
       }
    od
}

init
{
    atomic {
        taken[0] = true;
        next[0] = 1;
        run world();
#ifdef KEYS
        run keymaker();
#endif
#ifdef READER
        run reader();
#endif
#ifdef REPAIR
        run repairer();
#endif
        run pruner();
#if PUSHERS == 2
        run pusher(1);
#endif
        run pusher(0)
    }
}
