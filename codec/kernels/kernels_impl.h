/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels_impl.h - one table of kernels, compiled by each kernels_*.c, which names it. Loops for an instruction set are
 * next to plain C, under its macro. */
#include "base/bytes.h"
#include "kernels/class_lists.h"
#include "kernels/kernels.h"
#include "kernels/link_kernels.h"

#include "kernels/checksum_impl.h"
#include "kernels/count_impl.h"
#include "kernels/stream_impl.h"
#include "kernels/transform_impl.h"
#include "kernels/tree_impl.h"

#include "kernels/anchors_impl.h"
#include "kernels/bits_impl.h"
#include "kernels/classes_impl.h"
#include "kernels/context_impl.h"
#include "kernels/keyed_impl.h"

const struct lmci_kernels LMCI_KERNELS_TABLE = {
    .name = LMCI_KERNELS_NAME,
    .hash128 = hash128,
    .hash64 = hash64,
    .hash_update = hash_update,
    .stream = stream,
    .fence = fence,
    .split = split,
    .merge = merge,
    .count = count_symbols,
    .sum_logs = sum_logs,
    .rename = rename_bytes,
    .pack_nibbles = pack_nibbles,
    .unpack_nibbles = unpack_nibbles,
    .anchors = anchors,
    .bits_varying = bits_varying,
    .bits_pack = bits_pack,
    .bits_unpack = bits_unpack,
    .context_pick = context_pick,
    .context_join = context_join,
    .class_deal = class_deal,
    .class_join = class_join,
    .class_rotate = class_rotate,
    .keyed_base = keyed_base,
    .keyed_split = keyed_split,
    .keyed_join = keyed_join,
    .tree_bits = tree_bits,
    .tree_split = tree_split,
    .tree_keep = tree_keep,
    .tree_count = tree_count,
    .tree_merge = tree_merge,
    .link = &LMCI_LINK_TABLE,
};
