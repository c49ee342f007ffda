/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * codes.h - codes shared by the blocks of a delta, or by small deltas that are alike.
 *
 * Counting symbols and making a code for each class and block takes a quarter of the time of a small delta. Blocks
 * whose symbols are distributed like those of a sample of the tensor use the sample's codes. Their tables are stored in
 * each block all the same: a block decodes alone.
 */
#ifndef LMC_CODES_H
#define LMC_CODES_H

#include "block/plane.h"
#include "block/scheme.h"

struct lmci_codes {
    unsigned count;
    uint8_t shift[LMCI_MAX_CLASSES]; /* blocks with other shifts have other symbols */
    struct lmci_shared shared[];     /* of each class */
};

/* Makes the codes of a scheme with classes against a base. *codes is NULL for other schemes, the dense level, and,
 * unless they are for small tensors (`model`), for words of 4 bytes and tensors too short to pay for them; lmci_release
 * frees it. Fails only with LMC_NO_MEMORY. */
enum lmc_status lmci_codes_make(const struct lmc_params *params, const struct lmci_scheme *scheme, bool model,
                                struct lmci_codes **codes);

#endif
