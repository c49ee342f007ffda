/* SPDX-License-Identifier: BSD-3-Clause */
/* ctest: timeout=900 */
/* test_codec_link_damage.c - truncated, sealed and handmade links. */
#define _GNU_SOURCE
#include "data/codec/seal.h"
#include "test_codec_link_support.h"

/* Replace codec/base/memory.c's in a static library. */
void *lmci_allocate(size_t bytes);
void lmci_release(void *memory);

static long allocations, releases, fail_at = -1;

void *lmci_allocate(size_t bytes)
{
    if (allocations == fail_at)
        return NULL;
    allocations++;
    return malloc(bytes);
}

void lmci_release(void *memory)
{
    releases += memory != NULL;
    free(memory);
}

/* Fits, encodes and decodes. *finished: the failing allocation was not reached. */
static void fail_allocation(const struct lmc_link_params *params, const struct state *before, bool *finished)
{
    const size_t bytes = (size_t)params->raw_bytes, room = (size_t)lmc_link_bound(before->arrays, bytes);
    unsigned char *frame = malloc(room);
    struct state now = state_copy(before);
    struct lmc_link_rule rule;
    size_t frame_bytes = 0;
    const char *message = NULL;
    assert_non_null(frame);
    allocations = releases = 0;
    enum lmc_status status =
        lmc_link_fit(NULL, before->arrays, params->before, params->after, bytes, &rule, NULL, &message);
    if (status != LMC_NO_MEMORY)
        status = lmc_link_compress(params, frame, room, &frame_bytes, &message);
    if (status == LMC_OK)
        status = lmc_link_decompress(frame, frame_bytes, (void *const *)now.array, bytes, &message);
    assert_true(status == LMC_OK || (status == LMC_NO_MEMORY && message != NULL));
    assert_int_equal(allocations, releases);
    *finished = status == LMC_OK;
    state_free(&now);
    free(frame);
}

static void test_memory_runs_out(void **unused)
{
    (void)unused;
    for (unsigned kind = 0; kind < 3; kind++) {
        struct lmc_link_hints hints = adamw_hints();
        struct lmc_link_rule rule;
        struct state before = trained(&hints, 40000, ANY, 2), after = state_copy(&before);
        bool finished = false;
        optimizer_step(&after, &hints, ANY, 1, 5);
        for (unsigned k = 0; k < 3; k++)
            if (kind == 2 || (kind == 1 && k == 2))
                fill(FLOATS, k, (unsigned char *)after.array[k], 160000);
        assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
        const struct lmc_link_params params = params_of(&rule, &before, &after);
        for (fail_at = 0; fail_at < 100 && !finished; fail_at++)
            fail_allocation(&params, &before, &finished);
        assert_true(finished);
        fail_at = -1;
        state_free(&before);
        state_free(&after);
    }
}

struct subject {
    struct state before, after;
    struct link link;
};

static struct subject make_subject(enum gradients kind, const struct lmc_link_hints *asked, size_t elements)
{
    struct subject subject;
    struct lmc_link_hints hints = *asked;
    struct lmc_link_rule rule;
    subject.before = trained(&hints, elements, kind, 2);
    subject.after = state_copy(&subject.before);
    optimizer_step(&subject.after, &hints, kind, 1, 5);
    for (size_t i = 0; i < elements; i += 97) {
        subject.after.array[0][i] += 1e-6f;
        if (i % 2 != 0)
            subject.after.array[subject.after.arrays - 1][i] = 7;
    }
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
    subject.link = make_link(&rule, &subject.before, &subject.after);
    return subject;
}

static void free_subject(struct subject *subject)
{
    free(subject->link.frame);
    state_free(&subject->before);
    state_free(&subject->after);
}

static enum lmc_status try_frame(const struct subject *subject, const unsigned char *frame, size_t bytes)
{
    struct state now = state_copy(&subject->before);
    const char *message = NULL;
    unsigned char *copy = malloc(bytes != 0 ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, frame, bytes);
    enum lmc_status status = lmc_link_decompress(copy, bytes, (void *const *)now.array, 4 * now.elements, &message);
    if (status == LMC_OK)
        assert_true(state_equal(&now, &subject->after));
    else
        assert_non_null(message);
    free(copy);
    state_free(&now);
    return status;
}

static const struct lmc_link_hints *hints_of(unsigned i)
{
    static struct lmc_link_hints all[3];
    all[0] = all[1] = adamw_hints();
    all[1].flags = LMC_LINK_AMSGRAD | LMC_LINK_L2;
    all[2] = sgd_hints();
    return &all[i % 3];
}

static const enum gradients kinds[] = {BF16, SUMMED, ANY, SPARSE_ROWS};

static void test_every_truncation(void **unused)
{
    (void)unused;
    for (unsigned i = 0; i < 4; i++) {
        struct subject subject = make_subject(kinds[i], hints_of(i), 600);
        for (size_t bytes = 0; bytes < subject.link.frame_bytes; bytes++)
            assert_int_equal(try_frame(&subject, subject.link.frame, bytes), LMC_DAMAGED);
        assert_int_equal(try_frame(&subject, subject.link.frame, subject.link.frame_bytes), LMC_OK);
        free_subject(&subject);
    }
}

static void test_every_bit(void **unused)
{
    (void)unused;
    for (unsigned i = 0; i < 4; i++) {
        struct subject subject = make_subject(kinds[i], hints_of(i + 1), 200);
        for (size_t at = 0; at < subject.link.frame_bytes; at++)
            for (unsigned bit = 0; bit < 8; bit++) {
                subject.link.frame[at] ^= (unsigned char)(1u << bit);
                enum lmc_status status = try_frame(&subject, subject.link.frame, subject.link.frame_bytes);
                assert_true(status == LMC_DAMAGED || (status == LMC_UNSUPPORTED && at < 64));
                subject.link.frame[at] ^= (unsigned char)(1u << bit);
            }
        free_subject(&subject);
    }
}

static void test_every_byte_sealed(void **unused)
{
    (void)unused;
    uint64_t seed = 3;
    for (unsigned i = 0; i < 12; i++) {
        struct subject subject = make_subject(kinds[i % 4], hints_of(i / 4), 400 + 97 * i);
        unsigned char *frame = malloc(subject.link.frame_bytes);
        assert_non_null(frame);
        for (size_t at = 0; at < 2 * subject.link.frame_bytes; at++) {
            memcpy(frame, subject.link.frame, subject.link.frame_bytes);
            frame[at / 2] ^= (unsigned char)(1 + next_random(&seed) % 255);
            seal_frame(frame, subject.link.frame_bytes);
            (void)try_frame(&subject, frame, subject.link.frame_bytes);
        }
        free(frame);
        free_subject(&subject);
    }
}

static enum lmc_status try_block(const struct subject *subject, const unsigned char *block, size_t bytes,
                                 const char **message)
{
    struct lmc_frame parsed;
    struct state now = state_copy(&subject->before);
    assert_int_equal(lmc_frame_parse(subject->link.frame, subject->link.frame_bytes, &parsed, NULL), LMC_OK);
    const size_t frame_bytes = (size_t)parsed.header_bytes + bytes;
    unsigned char *frame = malloc(frame_bytes);
    assert_non_null(frame);
    memcpy(frame, subject->link.frame, (size_t)parsed.header_bytes);
    memcpy(frame + parsed.header_bytes, block, bytes);
    seal_put(frame + 24, frame_bytes, 8);
    seal_frame(frame, frame_bytes);
    *message = "";
    enum lmc_status status =
        lmc_link_decompress(frame, frame_bytes, (void *const *)now.array, 4 * now.elements, message);
    free(frame);
    state_free(&now);
    return status;
}

static void test_blocks_by_hand(void **unused)
{
    (void)unused;
    static const struct {
        const char *bytes;
        size_t count;
        enum lmc_status status;
        const char *says;
    } cases[] = {
#define CASE(bytes, status, says) {bytes, sizeof bytes - 1, status, says}
        CASE("\2", LMC_UNSUPPORTED, "method unknown to this version"),
        CASE("\0", LMC_DAMAGED, "ends inside its deltas"),
        CASE("\0\xff\xff\xff\xff", LMC_DAMAGED, "ends inside its deltas"),
        CASE("\1", LMC_DAMAGED, "ends inside its pieces"),
        CASE("\1\0\0\0", LMC_DAMAGED, "ends inside its head"),
        CASE("\1\2\0\0\0\0", LMC_UNSUPPORTED, "encodes gradients in a mode"),
        CASE("\1\2\0\0\4\0", LMC_UNSUPPORTED, "encodes gradients in a mode"),
        CASE("\1\2\0\0\1\x40", LMC_DAMAGED, "for a missing array"),
        CASE("\1\2\0\0\3\0", LMC_DAMAGED, "ends inside its head"),
        CASE("\1\3\0\0\3\0\x20", LMC_DAMAGED, "drops an impossible number of bits"),
        CASE("\1\2\0\0\1\0", LMC_DAMAGED, "ends before its last plane"),
        CASE("\1\4\0\0\1\0\1\x7f", LMC_DAMAGED, "ends before its last plane"),
        CASE("\1\4\0\0\1\0\1\xff", LMC_DAMAGED, "ends before its last plane"),
        CASE("\1\6\0\0\1\0\1\xff\1\1", LMC_DAMAGED, "ends inside its gradients"),
        CASE("\1\x8\0\0\2\0\0\1\1\1\1\1", LMC_DAMAGED, "ends inside a raw plane"),
        CASE("\1\x9\0\0\2\0\0\1\1\1\x18\1\1", LMC_DAMAGED, "longer than it can be"),
        CASE("\1\x9\0\0\2\0\0\1\1\1\1\1\1", LMC_DAMAGED, "ends inside its gradients"),
        CASE("\1\xa\0\0\2\0\0\1\1\1\1\1\1\xf0", LMC_DAMAGED, "bits past its end"),
        CASE("\1\4\0\0\1\1\1\0", LMC_DAMAGED, "ends inside a list"),
        CASE("\1\6\0\0\1\1\1\0\1\0", LMC_DAMAGED, "ends inside a list"),
        CASE("\1\x9\0\0\1\1\1\0\1\0\3\0\1", LMC_DAMAGED, "impossible indexes"),
        CASE("\1\xc\0\0\1\1\1\0\2\0\1\0\1\0\1\1", LMC_DAMAGED, "impossible indexes"),
        CASE("\1\x9\0\0\1\1\1\0\1\0\1\0\x80", LMC_DAMAGED, "ends inside a list"),
        CASE("\1\6\0\0\1\2\1\0\1\x80", LMC_DAMAGED, "ends inside its differences"),
        CASE("\1\4\0\0\1\3\1\0", LMC_DAMAGED, "ends inside a delta"),
        CASE("\1\7\0\0\1\3\1\0\1\0\0", LMC_DAMAGED, "ends inside a delta"),
        CASE("\1\5\0\0\1\0\1\0\0", LMC_DAMAGED, "bytes follow the end of a link's piece"),
        CASE("\1\4\0\0\1\0\1\0\0", LMC_DAMAGED, "bytes follow the last piece of a link's block"),
        CASE("\1\4\0\0\1\0\1\0", LMC_DAMAGED, "differs from the encoded one"),
#undef CASE
    };
    struct subject subject = make_subject(BF16, hints_of(0), 3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *message;
        enum lmc_status status = try_block(&subject, (const unsigned char *)cases[i].bytes, cases[i].count, &message);
        if (status != cases[i].status || strstr(message, cases[i].says) == NULL)
            fail_msg("case %zu: status %d, %s", i, status, message);
    }
    free_subject(&subject);
}

struct header_case {
    size_t at, bytes;
    uint64_t value;
    enum lmc_status status;
    const char *says;
};

static void test_headers(void **unused)
{
    (void)unused;
    const size_t rule = 64 + 48;
    const struct header_case cases[] = {
        {34, 2, 3, LMC_UNSUPPORTED, "predictor unknown to this version"},
        {32, 2, LMC_BF16, LMC_UNSUPPORTED, "of a dtype"},
        {36, 1, 2, LMC_DAMAGED, "unequal numbers of outputs and bases"},
        {37, 1, 5, LMC_DAMAGED, "unequal numbers of outputs and bases"},
        {36, 2, 0x0505, LMC_DAMAGED, "unequal numbers of outputs and bases"},
        {40, 4, 0, LMC_DAMAGED, "without its constants"},
        {40, 4, 64, LMC_DAMAGED, "without its constants"},
        {44, 4, 8, LMC_UNSUPPORTED, "shared tables"},
        {16, 8, (uint64_t)1 << 55, LMC_DAMAGED, "impossible size"},
        {16, 8, 2401, LMC_DAMAGED, "not a multiple"},
        {24, 8, 100, LMC_DAMAGED, "too short for its blocks"},
        {24, 8, 100000, LMC_DAMAGED, "longer than its blocks can be"},
        {rule, 4, 8, LMC_UNSUPPORTED, "variant of an optimizer unknown to this version"},
        {rule, 4, LMC_LINK_AMSGRAD, LMC_DAMAGED, "more or fewer arrays"},
        {rule + 4, 4, 1, LMC_DAMAGED, "reserved field"},
        {rule + 48, 4, 1, LMC_DAMAGED, "reserved field"},
        {rule + 8, 4, 0, LMC_DAMAGED, "impossible constants"},
        {rule + 8, 4, 0x7fc00000, LMC_DAMAGED, "impossible constants"},
        {rule + 44, 4, 0xbf800000, LMC_DAMAGED, "impossible constants"},
    };
    struct subject subject = make_subject(BF16, hints_of(0), 600);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct state now = state_copy(&subject.before);
        const char *message = "";
        unsigned char *frame = malloc(subject.link.frame_bytes);
        assert_non_null(frame);
        memcpy(frame, subject.link.frame, subject.link.frame_bytes);
        seal_put(frame + cases[i].at, cases[i].value, cases[i].bytes);
        seal_frame(frame, subject.link.frame_bytes);
        enum lmc_status status =
            lmc_link_decompress(frame, subject.link.frame_bytes, (void *const *)now.array, 2400, &message);
        if (status != cases[i].status || strstr(message, cases[i].says) == NULL)
            fail_msg("case %zu: status %d, %s", i, status, message);
        free(frame);
        state_free(&now);
    }
    free_subject(&subject);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_runs_out), cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_bit),       cmocka_unit_test(test_every_byte_sealed),
        cmocka_unit_test(test_blocks_by_hand),  cmocka_unit_test(test_headers),
    };
    return with_all_kernels(cmocka_run_group_tests(tests, NULL, NULL));
}
