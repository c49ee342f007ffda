/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lazy.pml - lazy captures of one shelf, as a model for Spin (store/CAPTURES.md).
 *
 * A trainer calls for snapshots of a tensor of two words and of a scheduler's number, and takes steps. The call copies
 * the number and promises the snapshot's. A copier copies the words later, compares the tensor's version counter, and
 * queues the capture or fails it. A committer makes queued captures durable in order. The step's hook waits for the
 * copier. A step changes the words one by one, and then the counter. With ROGUE the trainer also changes the tensor
 * without the hook.
 *
 * Checked: a durable snapshot has the words and the number of its call; without a rogue change none fails; one capture
 * at most is uncopied; captures become durable in order; a failure is reported once, by the next call or by close; close
 * leaves nothing to be copied or committed; nothing waits for ever. Each macro BREAK_... leaves out one rule; run.sh
 * expects an error for each.
 */
#define N    3
#define NONE 0

mtype = { ABSENT, PROMISED, QUEUED, DURABLE, FAILED };
mtype state[N + 1];
byte word[2];    /* of the tensor */
byte version;
byte number;     /* of the scheduler */
byte called_word[N + 1], called_number[N + 1], called_version[N + 1]; /* at the call */
byte kept[2 * (N + 1)], kept_number[N + 1];                           /* in the capture */
byte begun, durable;
bool busy;       /* the shelf is held, from the call to the end of the copy */
bool committing, is_rogue, closed;
byte copiers, unreported, reports, failures;

proctype committer()
{
    byte k;
    do
    :: atomic {
        k = durable + 1;
        do
        :: k <= begun && state[k] == FAILED -> k++
        :: else -> break
        od;
        if
        :: k <= begun && state[k] == QUEUED -> skip
        :: else -> committing = false; k = 0; break
        fi
       }
       d_step {
           assert(!closed);
           assert(kept[2 * k] == called_word[k] && kept[2 * k + 1] == called_word[k]);
           assert(kept_number[k] == called_number[k]);
           state[k] = DURABLE;
           durable = k
       }
    od
}

proctype copier(byte k)
{
    assert(!closed);
    kept[2 * k] = word[0];
    kept[2 * k + 1] = word[1];
#ifdef BREAK_NUMBER
    kept_number[k] = number;
#endif
    atomic {
        if
#ifndef BREAK_VERSION
        :: version != called_version[k] ->
            assert(is_rogue);
            state[k] = FAILED; failures++; unreported++
#endif
        :: else ->
            state[k] = QUEUED;
            if
            :: !committing -> committing = true; run committer()
            :: else
            fi
        fi;
        copiers--;
        busy = false
    }
}

inline call()
{
    atomic {
#ifndef BREAK_ONE
        !busy ->
#endif
        reports = reports + unreported; /* the next call raises them */
        unreported = 0;
        busy = true;
        begun++;
        assert(copiers == 0);
        copiers++;
        called_word[begun] = word[0];
        called_number[begun] = number;
        kept_number[begun] = number;
        state[begun] = PROMISED;
#ifdef BREAK_LATE
        skip
    }
    word[0]++; word[1]++; version++;
    atomic {
#endif
        called_version[begun] = version;
        run copier(begun)
    }
}

inline step()
{
#ifndef BREAK_HOOK
    copiers == 0; /* the hook */
#endif
    word[0]++;
    word[1]++;
    version++;
    number++ /* the scheduler */
}

proctype trainer()
{
    byte i;
    do
    :: i < N -> i++;
        call();
        if
#ifdef ROGUE
        :: atomic { is_rogue = true; word[0]++; word[1]++; version++ } /* see "Not seen" in CAPTURES.md */
#endif
        :: number++ /* a scheduler without a hook */
        :: skip
        fi;
        if
        :: step()
        :: skip /* GradScaler leaves the step out */
        fi
    :: i == N -> break
    od;
#ifndef BREAK_CLOSE
    copiers == 0;
    !committing;
#endif
    atomic {
        closed = true;
        reports = reports + unreported;
        unreported = 0;
        assert(reports == failures);
        for (i : 1 .. N) {
            assert(state[i] == DURABLE || state[i] == FAILED)
        }
    }
}

init
{
    atomic {
        byte i;
        for (i : 1 .. N) { state[i] = ABSENT }
        run trainer()
    }
}
