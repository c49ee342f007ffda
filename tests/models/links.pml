/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * links.pml - link captures of one shelf with one array, as a model for Spin (store/CAPTURES.md, "Link captures").
 *
 * A trainer takes snapshots, one after the other: as a link from the memory state or, after a start, from raw bytes in
 * the pool; as a keyframe, at any time and always where the line is full; as a delta; or raw. It plans by a view of the
 * pool, encodes, and enters the capture in a transaction that checks the plan again. A refused plan is replaced by a raw
 * copy. Captures may fail or be raw by policy, and the newest snapshot may be removed. A pruner removes others. A
 * compactor works by a plan, a pause and a transaction, too: it cuts lines above contents that no snapshot has, makes
 * keyframes, deltas and links of raw contents, and lets links replace raw bytes. A repair encodes a content alone. The
 * process may be killed at each step. Moves of payloads change nothing here.
 *
 * Contents have the number of their capture. Values stand for bytes: a link has the value that it was encoded from.
 *
 * Checked after each transaction: a snapshot has the value of its call; everything that a content rests on exists; a
 * link was encoded from the value of its base; a line begins with a raw content or a keyframe; no delta rests on a
 * line; no line is longer than BOUND. Also: a line counts as full only if it is. Each macro BREAK_... leaves out one
 * rule; run.sh expects an error for each.
 */
#ifndef N
#define N 4
#endif
#ifndef BOUND
#define BOUND 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#define CHAIN 2
#define NONE  0

mtype = { RAW, KEYFRAME, DELTA, LINKED };        /* forms of a content; 0: there is none */
mtype = { CUT, ENCODE, LINK, REPLACE };          /* work of the compactor */
byte form[N + 1], value[N + 1];
byte base[N + 1];                                /* of the link that leads to a content, or of a delta */
bool linked[N + 1];                              /* a link leads to it; a raw content may have one, too */
byte from_value[N + 1];                          /* of the link that leads to a content: what it was encoded from */
byte content[N + 1], expected[N + 1];            /* of a snapshot; content 0: no snapshot */
byte latest, begun;
byte state;                                      /* of the trainer */
byte memory, memory_value;                       /* the memory state: a content and its bytes */
bit life;
byte deaths;
bool ended;

#ifdef BREAK_PLACE
byte recorded[N + 1];                            /* place of a link in its line, when it was made */
#define RECORD(at, place) recorded[at] = place
#else
#define RECORD(at, place) skip
#endif
#ifdef BREAK_COUNT
byte counted;                                    /* links since the line began or was cut, as a process counts */
#define COUNT(links) counted = links
#else
#define COUNT(links) skip
#endif

hidden byte i, j, c, n, x;                       /* of d_steps */

/* n: links behind a content. Those of raw contents count: a link may replace the bytes. */
inline measure(at)
{
    n = 0;
    c = at;
    do
#ifdef BREAK_RAW
    :: linked[c] && (form[c] == LINKED || n == 0) -> n++; c = base[c]
#else
    :: linked[c] -> n++; c = base[c]
#endif
    :: else -> break
    od
}

/* n: contents of which `at` is the base of a link, or with `which` false of a delta. */
inline count_dependents(at, which)
{
    n = 0;
    for (i : 1 .. N) {
        if
        :: form[i] != 0 && base[i] == at && linked[i] == which -> n++
        :: else
        fi
    }
}

inline untie(at)
{
    assert(linked[at]); /* or a link would be freed twice */
    linked[at] = false;
    base[at] = NONE;
    from_value[at] = 0;
    RECORD(at, 0)
}

/* Frees contents without snapshots and dependents. */
inline free_unused()
{
    for (j : 1 .. N) {
        for (c : 1 .. N) {
            n = 0;
            for (i : 1 .. N) {
                if
                :: content[i] == c || (form[i] != 0 && base[i] == c) -> n++
                :: else
                fi
            }
            if
            :: n == 0 ->
                form[c] = 0; value[c] = 0; base[c] = NONE; linked[c] = false; from_value[c] = 0; RECORD(c, 0)
            :: else
            fi
        }
    }
}

inline check_pool()
{
    for (x : 1 .. N) {
        assert(content[x] == NONE || (form[content[x]] != 0 && value[content[x]] == expected[x]));
        if
        :: form[x] == 0 -> assert(base[x] == NONE)
        :: else ->
            assert(form[x] != LINKED || linked[x]);
            assert((base[x] != NONE) == (linked[x] || form[x] == DELTA));
            assert(base[x] == NONE || form[base[x]] != 0);
            assert(!linked[x] || (form[x] != DELTA && from_value[x] == value[base[x]]));
            assert(!linked[x] || linked[base[x]] || form[base[x]] == RAW || form[base[x]] == KEYFRAME);
            assert(form[x] != DELTA || !linked[base[x]]);
            /* ends, and is short enough */
            n = 0;
            c = x;
            do
            :: linked[c] -> n++; assert(n <= BOUND); c = base[c]
            :: else -> break
            od;
            n = 0;
            do
            :: form[c] == DELTA -> n++; assert(n <= CHAIN); c = base[c]
            :: else -> break
            od
        fi
    }
}

/* ---- Captures ---- */

#define MAY_LINK(b)  ((b) != NONE && form[b] != 0 && form[b] != DELTA)
#define MAY_DELTA(b) ((b) != NONE && form[b] == RAW && !linked[b])

/* n: place of a link from b. */
inline measure_next(b)
{
#ifdef BREAK_PLACE
    n = recorded[b];
#else
#ifdef BREAK_COUNT
    n = counted;
#else
    measure(b);
#endif
#endif
    n++
}

/* Whether the memory state is the content b. */
#ifdef BREAK_STALE
#define IS_KNOWN(b) (memory != NONE)
#else
#define IS_KNOWN(b) (memory == (b))
#endif

#define MAY_DIE if :: deaths > 0 -> goto dead :: skip fi

/* What a plan writes. */
#define AS_RAW   1
#define AS_LINK  2
#define AS_DELTA 3
#define AS_SAME  4
#define AS_KEY   5

proctype trainer()
{
    byte k, b, plan, source, place;
    bool links;
again:
    do
    :: begun < N ->
        atomic {
            begun++;
            k = begun;
            b = content[latest];
            if
            :: state = k
            :: b != NONE && state != 0 -> skip /* the tensor stays as it is */
            fi;
            if
            :: links = true
            :: links = false /* policy */
            fi;
            /* plan, in a view */
            d_step { measure_next(b); place = n; n = 0; c = 0 }
            if
            :: b != NONE && value[b] == state -> plan = AS_SAME
            :: (b == NONE || value[b] != state) && links && MAY_LINK(b) && place <= BOUND && IS_KNOWN(b) ->
                plan = AS_LINK; source = memory_value
            :: (b == NONE || value[b] != state) && links && MAY_LINK(b) && place <= BOUND && !IS_KNOWN(b) &&
               form[b] == RAW -> plan = AS_LINK; source = value[b]
            :: (b == NONE || value[b] != state) && links && MAY_LINK(b) -> plan = AS_KEY
            :: (b == NONE || value[b] != state) && links && MAY_DELTA(b) -> plan = AS_DELTA
            :: (b == NONE || value[b] != state) && links && b != NONE && form[b] == DELTA && MAY_DELTA(base[b]) ->
                plan = AS_DELTA; b = base[b]
            :: b == NONE || value[b] != state -> plan = AS_RAW /* also where nothing else pays */
            fi;
            d_step {
#ifndef BREAK_COUNT
                if
                :: links && MAY_LINK(b) && place > BOUND -> measure(b); assert(n >= BOUND); n = 0; c = 0
                :: else
                fi;
#endif
                place = 0;
                if
                :: plan == AS_LINK || plan == AS_DELTA || plan == AS_SAME
                :: else -> b = 0
                fi
            }
        }
        /* encode, from memory to the pool */
        MAY_DIE;
        if
        :: /* fails */
            atomic {
                if
#ifdef BREAK_FAILED
                :: links -> memory_value = state
#else
                :: plan == AS_LINK -> memory = NONE; memory_value = 0 /* its verification has changed it */
#endif
                :: else
                fi;
                plan = 0; source = 0; place = 0; b = 0
            }
            goto again
        :: skip
        fi;
        /* enter */
        do
        :: atomic {
#ifndef BREAK_CHECK
            if
#ifdef BREAK_FORM
            :: plan == AS_LINK && form[b] != 0 -> d_step { measure_next(b); place = n; n = 0; c = 0 }
#else
            :: plan == AS_LINK && MAY_LINK(b) -> d_step { measure_next(b); place = n; n = 0; c = 0 }
#endif
#ifdef BREAK_DELTA
            :: plan == AS_DELTA -> skip
#else
            :: plan == AS_DELTA && MAY_DELTA(b) -> skip
#endif
            :: plan == AS_RAW || plan == AS_SAME || plan == AS_KEY -> skip
            :: else -> place = BOUND + 1 /* refused */
            fi;
            if
            :: place > BOUND -> plan = AS_RAW; place = 0; b = 0; source = 0; goto copied
            :: else
            fi;
#endif
            d_step {
                if
                :: plan == AS_SAME -> content[k] = b
                :: else ->
                    content[k] = k;
                    value[k] = state;
                    if
                    :: plan == AS_RAW -> form[k] = RAW; COUNT(0)
                    :: plan == AS_KEY -> form[k] = KEYFRAME; COUNT(0)
                    :: plan == AS_DELTA -> form[k] = DELTA; base[k] = b; COUNT(0)
                    :: plan == AS_LINK ->
                        form[k] = LINKED; base[k] = b; linked[k] = true; from_value[k] = source; RECORD(k, place);
                        COUNT(counted + 1)
                    fi
                fi;
                expected[k] = state;
                latest = k;
                if
                :: links -> memory = content[k]; memory_value = state
                :: else /* it stays; the next link capture finds that it is of another content */
                fi;
                check_pool();
                plan = 0; source = 0; place = 0; b = 0;
                i = 0; j = 0; c = 0; n = 0; x = 0
            }
            break
           }
copied:    /* to the pool; the transaction runs again */
           MAY_DIE
        od
    :: latest != NONE -> /* removal of the newest snapshot, between captures */
        d_step {
            content[latest] = NONE;
            expected[latest] = 0;
            do
            :: latest == NONE -> break
            :: latest != NONE && content[latest] != NONE -> break
            :: else -> latest--
            od;
            free_unused();
            check_pool();
            i = 0; j = 0; c = 0; n = 0; x = 0
        }
    :: begun == N -> break
    od;
    ended = true;
    goto end;
dead: /* and the next process */
    atomic {
        deaths--;
        life = 1 - life;
        memory = NONE; memory_value = 0; COUNT(0);
        plan = 0; source = 0; place = 0; b = 0;
        state = value[content[latest]]
    }
    goto again;
end:
}

/* Removes any but the newest snapshot, which captures are made from. */
proctype pruner()
{
    byte s;
    do
    :: atomic {
        select(s : 1 .. N);
        if
        :: content[s] != NONE && s != latest ->
            d_step {
                content[s] = NONE;
                expected[s] = 0;
                free_unused();
                check_pool();
                i = 0; j = 0; c = 0; n = 0; x = 0
            }
        :: else
        fi;
        s = 0
       }
    :: ended -> break
    od
}

/* ---- The compactor ---- */

/* n: 1 if the line may be cut at a: no snapshot has the content below. */
inline may_cut(a)
{
    d_step {
        n = (form[a] == LINKED);
        for (i : 1 .. N) {
            if
            :: content[i] != NONE && content[i] == base[a] -> n = 0
            :: else
            fi
        }
        i = 0
    }
}

/* n: 1 if raw content a may become a delta against b. */
inline may_encode_against(a, b)
{
    d_step {
        count_dependents(a, true);
        n = (n == 0 && form[a] == RAW && !linked[a] && form[b] != 0 && !linked[b] && a != b && form[b] != DELTA);
        if
        :: n == 1 -> /* the chain above a becomes longer: none, to be short */
            count_dependents(a, false);
            n = (n == 0)
        :: else
        fi;
        i = 0
    }
}

/* n: 1 if a link may lead from a to b, which both are raw. */
inline may_link_raw(a, b)
{
    d_step {
        count_dependents(b, true);
        x = n;
        count_dependents(b, false);
        x = x + n;
        measure(a);
        n = (x == 0 && n < BOUND && form[a] == RAW && form[b] == RAW && !linked[b] && a < b);
        i = 0; c = 0; x = 0
    }
}

inline is_done()
{
    free_unused();
    check_pool();
    i = 0; j = 0; c = 0; n = 0; x = 0
}

proctype compactor()
{
    byte a, b, work;
    bit born;
    do
    :: atomic { /* plan, in a view */
        select(a : 1 .. N);
        if
        :: form[a] == LINKED ->
            may_cut(a);
            if :: n == 1 -> work = CUT :: else -> a = 0 fi;
            n = 0
        :: form[a] == RAW && linked[a] -> work = REPLACE
        :: form[a] == RAW && !linked[a] -> work = ENCODE
        :: form[a] == RAW && !linked[a] ->
            select(b : 1 .. N);
            may_encode_against(a, b);
            if :: n == 1 -> work = ENCODE :: else -> b = 0; a = 0 fi;
            n = 0
        :: form[a] == RAW ->
            select(b : 2 .. N);
            may_link_raw(a, b);
            if :: n == 1 -> work = LINK :: else -> b = 0; a = 0 fi;
            n = 0
        :: else -> a = 0
        fi;
        born = life
       }
       if
       :: a == 0 -> skip
       :: else ->
          /* decode and encode; then the transaction */
          atomic {
            if
            :: born != life -> skip /* the process was killed */
            :: born == life && work == CUT ->
                d_step {
                    if
#ifdef BREAK_SWAP
                    :: true ->
#else
                    :: form[a] == LINKED ->
#endif
                        form[a] = KEYFRAME;
                        untie(a);
                        COUNT(0);
                        is_done()
                    :: else
                    fi
                }
            :: born == life && work == REPLACE ->
                d_step {
                    if
                    :: form[a] == RAW && linked[a] -> form[a] = LINKED; is_done()
                    :: else
                    fi
                }
            :: born == life && work == ENCODE && b == 0 ->
                d_step {
                    if
                    :: form[a] == RAW && !linked[a] -> form[a] = KEYFRAME; is_done()
                    :: else
                    fi
                }
            :: born == life && work == ENCODE && b != 0 ->
                may_encode_against(a, b);
                d_step {
                    if
                    :: n == 1 -> form[a] = DELTA; base[a] = b; is_done()
                    :: else -> n = 0
                    fi
                }
            :: born == life && work == LINK ->
                may_link_raw(a, b);
                d_step {
                    if
                    :: n == 1 ->
                        linked[b] = true; base[b] = a; from_value[b] = value[a];
                        RECORD(b, recorded[a] + 1);
                        is_done()
                    :: else -> n = 0
                    fi
                }
            fi;
            a = 0; b = 0; work = 0; born = 0
          }
       fi
    :: ended -> break
    od
}

/* Encodes a content alone, once, beside the compactor. */
proctype repair()
{
    byte a;
    atomic {
        select(a : 1 .. N);
        if
        :: form[a] == LINKED -> d_step { form[a] = KEYFRAME; untie(a); is_done() }
        :: form[a] == DELTA -> d_step { form[a] = KEYFRAME; base[a] = NONE; is_done() }
        :: ended
        fi;
        a = 0
    }
}

init
{
    atomic {
        deaths = DEATHS;
        run trainer();
        run pruner();
#ifdef REPAIR
        run repair();
#endif
        run compactor()
    }
}
