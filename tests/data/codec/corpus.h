/* SPDX-License-Identifier: BSD-3-Clause */
/* corpus.h - shared by the files of make_corpus. */
#ifndef LMC_TEST_CORPUS_H
#define LMC_TEST_CORPUS_H

#include "lmc.h"
#include "seal.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- make_corpus.c --------------------------------------------------------------------------------------------- */

/* Writes NAME.SUFFIX to the corpus folder. */
void write_file(const char *name, const char *suffix, const void *bytes, size_t count);
/* Random, near 0 more often. */
float bell(void);

/* ---- corpus_made.c --------------------------------------------------------------------------------------------- */

/* A frame of one block, being assembled. */
struct made {
    unsigned char bytes[4096];
    size_t count;
    size_t header_bytes;
    uint64_t raw_bytes;
};
extern struct made made;

void begin(uint16_t dtype, uint64_t raw_bytes, unsigned bases, unsigned extensions);
void put(int count, ...);
void finish(const void *content);
void save(const char *name, const char *content, const char *base);
void save_changed(const char *name, size_t at, uint64_t value, size_t bytes);

void plain(void);
void put_two_symbols(void);
void two_symbols(uint64_t n);

void begin_pairs(int escapes);
void put_pairs(void);

extern uint32_t class_base[20], class_content[20];
void fill_classes(void);
void begin_classes(int bases);
void put_class_lists(void);
void put_outlier(void);

extern uint64_t keyed_base[20], keyed_content[20];
void begin_keyed(int low, int bases);
void put_keyed_planes(void);
void put_keyed_classes(void);
void save_keyed(const char *name);

extern char copied[6 * 64 + 10], copied_words[80];
void begin_copies(void);
void put_rest(int method);
void begin_copies_of_words(void);
void put_rest_of_words(int method);

void begin_contexts(int distance, int classes, int first);
void put_contexts(int of_class_0, int of_class_1);
void begin_values(void);

/* ---- corpus_good.c, corpus_bad.c, corpus_links.c --------------------------------------------------------------- */

void good_by_hand(void);
void bad_by_hand(void);
void unsupported_by_hand(void);
void good_links(void);
void bad_links(void);
void unsupported_links(void);

#endif
