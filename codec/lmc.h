/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lmc.h - lossless compression of tensors and of their differences (liblmc).
 *
 * A *frame* contains the bytes of one tensor, alone or as a delta against base tensors of the same size, in blocks of
 * LMC_BLOCK_BYTES decoded bytes that are encoded, checked and decoded independently. Layout: codec/FORMAT.md. Method:
 * after LMC (arXiv 2505.09810).
 *
 * Conventions. Sizes are in bytes. Every function is thread safe; the only shared state is a pointer to a table of
 * kernels, set on first use. The library starts no threads, does no I/O, and allocates only where a function says so.
 * Inputs are never written. A function that can fail returns an lmc_status and stores a constant sentence in *message
 * (may be NULL; never freed).
 */
#ifndef LMC_H
#define LMC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LMC_VERSION_MAJOR 0
#define LMC_VERSION_MINOR 1
#define LMC_VERSION_PATCH 0

#define LMC_API           __attribute__((visibility("default")))
#define LMC_NODISCARD     __attribute__((warn_unused_result))

/* Decoded bytes of a block; the last one of a tensor may be shorter. Part of the format. */
#define LMC_BLOCK_BYTES ((size_t)1 << 20)
#define LMC_MAX_BASES   4
#define LMC_MAX_DIMS    32

enum lmc_status {
    LMC_OK = 0,
    LMC_INVALID,     /* an argument is out of range */
    LMC_DAMAGED,     /* no encoder wrote this frame, or the base is the wrong one */
    LMC_UNSUPPORTED, /* newer version, or a feature unknown to this library */
    LMC_NO_SPACE,    /* the destination is too small */
    LMC_NO_MEMORY
};

enum lmc_kind { LMC_KIND_BOOL = 1, LMC_KIND_UNSIGNED, LMC_KIND_SIGNED, LMC_KIND_FLOAT, LMC_KIND_COMPLEX };

/*
 * The element types: X(constant, value, name, kind, numbers, bits, exponent bits). The codec derives all properties of
 * a dtype from its line.
 *
 * Values are part of the format: they never change, and a new dtype takes the next one. `numbers` in an element: 2 if
 * it is complex, or if two share a byte (shapes then count bytes). `bits` and `exponent bits` are of one number.
 *
 * To add a dtype, add a line here and in FORMAT.md (3.5). store/README.md lists places outside of the codec.
 */
#define LMC_DTYPES(X)                                              \
    X(LMC_BOOL, 1, "bool", LMC_KIND_BOOL, 1, 8, 0)                 \
    X(LMC_U8, 2, "u8", LMC_KIND_UNSIGNED, 1, 8, 0)                 \
    X(LMC_U16, 3, "u16", LMC_KIND_UNSIGNED, 1, 16, 0)              \
    X(LMC_U32, 4, "u32", LMC_KIND_UNSIGNED, 1, 32, 0)              \
    X(LMC_U64, 5, "u64", LMC_KIND_UNSIGNED, 1, 64, 0)              \
    X(LMC_I8, 6, "i8", LMC_KIND_SIGNED, 1, 8, 0)                   \
    X(LMC_I16, 7, "i16", LMC_KIND_SIGNED, 1, 16, 0)                \
    X(LMC_I32, 8, "i32", LMC_KIND_SIGNED, 1, 32, 0)                \
    X(LMC_I64, 9, "i64", LMC_KIND_SIGNED, 1, 64, 0)                \
    X(LMC_F16, 10, "f16", LMC_KIND_FLOAT, 1, 16, 5)                \
    X(LMC_BF16, 11, "bf16", LMC_KIND_FLOAT, 1, 16, 8)              \
    X(LMC_F32, 12, "f32", LMC_KIND_FLOAT, 1, 32, 8)                \
    X(LMC_F64, 13, "f64", LMC_KIND_FLOAT, 1, 64, 11)               \
    X(LMC_C32, 14, "c32", LMC_KIND_COMPLEX, 2, 16, 5)              \
    X(LMC_C64, 15, "c64", LMC_KIND_COMPLEX, 2, 32, 8)              \
    X(LMC_C128, 16, "c128", LMC_KIND_COMPLEX, 2, 64, 11)           \
    X(LMC_F8_E4M3FN, 17, "f8_e4m3fn", LMC_KIND_FLOAT, 1, 8, 4)     \
    X(LMC_F8_E4M3FNUZ, 18, "f8_e4m3fnuz", LMC_KIND_FLOAT, 1, 8, 4) \
    X(LMC_F8_E5M2, 19, "f8_e5m2", LMC_KIND_FLOAT, 1, 8, 5)         \
    X(LMC_F8_E5M2FNUZ, 20, "f8_e5m2fnuz", LMC_KIND_FLOAT, 1, 8, 5) \
    X(LMC_F8_E8M0FNU, 21, "f8_e8m0fnu", LMC_KIND_FLOAT, 1, 8, 8)   \
    X(LMC_F4_E2M1FN_X2, 22, "f4_e2m1fn_x2", LMC_KIND_FLOAT, 2, 4, 2)

#define LMC_DTYPE_VALUE_(constant, value, ...) constant = value,
#define LMC_DTYPE_COUNT_(...)                  +1
enum lmc_dtype { LMC_DTYPES(LMC_DTYPE_VALUE_) };
enum { LMC_DTYPE_END = 1 LMC_DTYPES(LMC_DTYPE_COUNT_) }; /* the last value and 1 */

/* Bytes of one element. This and the next three: 0 or NULL for a value that is no dtype. */
LMC_API size_t lmc_dtype_size(uint32_t dtype);
/* Numbers in one element, 1 or 2. */
LMC_API unsigned lmc_dtype_numbers(uint32_t dtype);
/* An enum lmc_kind. */
LMC_API unsigned lmc_dtype_kind(uint32_t dtype);
/* "f32", "bf16", "f8_e4m3fn", ... */
LMC_API const char *lmc_dtype_name(uint32_t dtype);
/* 0 if there is none. */
LMC_API uint32_t lmc_dtype_from_name(const char *name);

/* ---- Checksums ------------------------------------------------------------------------------------------------ */

/* 128-bit XXH3, seed 0. On media: `low`, then `high`, little-endian. Detects accidents, not forgeries. */
struct lmc_hash {
    uint64_t low;
    uint64_t high;
};

/* The hash of decoded blocks. */
LMC_API struct lmc_hash lmc_hash128(const void *data, size_t bytes);
/* 64-bit XXH3 with a seed: the hash of coded blocks and small records. */
LMC_API uint64_t lmc_hash64(const void *data, size_t bytes, uint64_t seed);

/* lmc_hash128 of pieces: init, update..., final. The caller owns the state, aligned to 64 bytes. */
struct lmc_hasher {
    unsigned char opaque[640] __attribute__((aligned(64)));
};
LMC_API void lmc_hasher_init(struct lmc_hasher *hasher);
LMC_API void lmc_hasher_update(struct lmc_hasher *hasher, const void *data, size_t bytes);
LMC_API struct lmc_hash lmc_hasher_final(const struct lmc_hasher *hasher);

/* 0 for an empty tensor. */
LMC_API uint64_t lmc_block_count(uint64_t raw_bytes);

/* lmc_hash128 of "LMCD", dtype (u32), ndim (u32, at most LMC_MAX_DIMS), 0 (u32), shape (u64 each), all little-endian,
 * and the hashes of its blocks. Equal tensors have equal digests however they are stored. */
LMC_API struct lmc_hash lmc_digest(uint32_t dtype, uint32_t ndim, const uint64_t *shape,
                                   const struct lmc_hash *block_hashes, uint64_t block_count);

/* ---- Encoding ------------------------------------------------------------------------------------------------- */

/* Another frame follows in the file. Distinguishes truncated files from complete ones. */
#define LMC_FRAME_CONTINUES 1u

enum lmc_level {
    LMC_LEVEL_DEFAULT = 0,
    LMC_LEVEL_DENSE = 1 /* slower and smaller */
};

struct lmc_params {
    uint32_t dtype; /* enum lmc_dtype */
    enum lmc_level level;
    uint64_t raw_bytes;          /* a multiple of the dtype's size */
    const void *data;            /* raw_bytes, sampled for planning */
    const void *base;            /* raw_bytes, or NULL: no delta */
    struct lmc_hash base_digest; /* identifies the base in the frame; ignored without one */
    uint32_t flags;              /* LMC_FRAME_CONTINUES or 0 */
};

/* A plan to encode one tensor. Never changes: threads may encode its blocks concurrently. */
struct lmc_encoder;

/* Plans from a sample of data and base, which must outlive the plan. Allocates; lmc_encoder_free frees. */
LMC_API LMC_NODISCARD enum lmc_status lmc_encoder_new(const struct lmc_params *params, struct lmc_encoder **encoder,
                                                      const char **message);
/*
 * For small tensors (16 to 64 KiB) of one kind, such as parameters of one step: takes over the plan of `like`, and its
 * codes where they fit. `like`: an encoder that this function made for NULL, which plans for others, too, and so takes
 * longer; it outlives the new one. A tensor of another dtype, level or size (by more than four times), with a base
 * where `like` has or needs none, or without one where `like` needs it, is planned by itself. Every frame decodes
 * alone.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_encoder_new_like(const struct lmc_params *params,
                                                           const struct lmc_encoder *like, struct lmc_encoder **encoder,
                                                           const char **message);
LMC_API void lmc_encoder_free(struct lmc_encoder *encoder);
LMC_API uint64_t lmc_encoder_block_count(const struct lmc_encoder *encoder);
/* Bases that the frame requires: 0 without a base, or if the tensor is smaller alone. */
LMC_API uint32_t lmc_encoder_base_count(const struct lmc_encoder *encoder);

/* The header's entry of one block, from lmc_encode_block for lmc_encode_header. */
struct lmc_block {
    uint32_t coded_bytes;
    uint32_t mode;            /* 0 so far */
    uint64_t coded_hash;      /* lmc_hash64 of the coded bytes, seeded with the block's index */
    struct lmc_hash raw_hash; /* lmc_hash128 of the decoded bytes */
};

/* Largest coded size of a block of `raw_bytes` (at most LMC_BLOCK_BYTES). */
LMC_API size_t lmc_block_bound(size_t raw_bytes);
/* Encodes block `index`. dst_bytes: at least lmc_block_bound of its size. Allocates and frees temporary memory.
 * Concurrent calls for different blocks are safe. */
LMC_API LMC_NODISCARD enum lmc_status lmc_encode_block(const struct lmc_encoder *encoder, uint64_t index, void *dst,
                                                       size_t dst_bytes, struct lmc_block *block);
/* From other memory: `data` and `base` (NULL if the encoder needs none) contain only this block. They must not change
 * during the call, but may differ from the planned data. */
LMC_API LMC_NODISCARD enum lmc_status lmc_encode_block_of(const struct lmc_encoder *encoder, uint64_t index,
                                                          const void *data, const void *base, void *dst,
                                                          size_t dst_bytes, struct lmc_block *block);
/* The header begins the frame; the coded blocks follow in order without gaps. */
LMC_API size_t lmc_encoder_header_bytes(const struct lmc_encoder *encoder);
/* `blocks` has lmc_encoder_block_count entries. */
LMC_API LMC_NODISCARD enum lmc_status lmc_encode_header(const struct lmc_encoder *encoder,
                                                        const struct lmc_block *blocks, void *dst, size_t dst_bytes);

/* Encodes a whole frame in this thread. lmc_frame_bound(raw_bytes) bytes always suffice. */
LMC_API uint64_t lmc_frame_bound(uint64_t raw_bytes);
LMC_API LMC_NODISCARD enum lmc_status lmc_encode_frame(const struct lmc_encoder *encoder, void *dst, size_t dst_bytes,
                                                       size_t *frame_bytes, const char **message);
/* The same with a plan of its own. */
LMC_API LMC_NODISCARD enum lmc_status lmc_compress(const struct lmc_params *params, void *dst, size_t dst_bytes,
                                                   size_t *frame_bytes, const char **message);

/* ---- Decoding ------------------------------------------------------------------------------------------------- */

/* Bytes of a frame that lmc_frame_header_bytes requires. */
#define LMC_FRAME_PREFIX_BYTES 64

/* A checked header, read-only for the caller. `header` points to the caller's bytes, which must outlive this struct. */
struct lmc_frame {
    uint32_t version;
    uint32_t dtype;
    uint32_t base_count;
    uint32_t output_count; /* 1 unless it is a link */
    uint64_t raw_bytes;
    uint64_t block_count;
    uint64_t header_bytes;
    uint64_t frame_bytes; /* header and blocks */
    struct lmc_hash base_digest[LMC_MAX_BASES];
    const unsigned char *header;
    uint32_t predictor;
    uint32_t flags; /* LMC_FRAME_CONTINUES, and flags of later versions */
};

/* Size of the header, from the first LMC_FRAME_PREFIX_BYTES of a frame (a shorter one is damaged). At most the claimed
 * size of the frame, after checks; a caller that reads a stream still compares it with its own limit. */
LMC_API LMC_NODISCARD enum lmc_status lmc_frame_header_bytes(const void *prefix, size_t prefix_bytes,
                                                             uint64_t *header_bytes, const char **message);
/* Checks the header: its checksum, every field, the sum of the blocks. Needs no block. Never allocates. */
LMC_API LMC_NODISCARD enum lmc_status lmc_frame_parse(const void *header, size_t header_bytes, struct lmc_frame *frame,
                                                      const char **message);
/* The entry of block `index` (below block_count); *offset (may be NULL): its distance from the frame's start. */
LMC_API struct lmc_block lmc_frame_block(const struct lmc_frame *frame, uint64_t index, uint64_t *offset);
/*
 * Decodes one block. `coded`: exactly block.coded_bytes. `bases`: the same block of each of base_count bases, or NULL
 * without bases. `dst`: room for the decoded bytes; overlaps no input; undefined after an error. Checks the coded and
 * the decoded bytes. Accesses only these buffers for any input.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_decode_block(const struct lmc_frame *frame, uint64_t index, const void *coded,
                                                       size_t coded_bytes, const void *const *bases, void *dst,
                                                       size_t dst_bytes, const char **message);
/*
 * Decodes a block that is only the base of another one, which lmc_decode_block decodes next. Skips both checksums,
 * since those of the other block cover both, and keeps the output in the cache. If the other block fails, decode this
 * one with lmc_decode_block to find the damaged one.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_decode_base(const struct lmc_frame *frame, uint64_t index, const void *coded,
                                                      size_t coded_bytes, const void *const *bases, void *dst,
                                                      size_t dst_bytes, const char **message);
/* The digest of a frame's tensor, from the header alone. */
LMC_API LMC_NODISCARD enum lmc_status lmc_frame_digest(const struct lmc_frame *frame, uint32_t dtype, uint32_t ndim,
                                                       const uint64_t *shape, struct lmc_hash *digest);
/* Decodes a whole frame in this thread. `bases`: base_count pointers to raw_bytes each. */
LMC_API LMC_NODISCARD enum lmc_status lmc_decompress(const void *frame, size_t frame_bytes, const void *const *bases,
                                                     void *dst, size_t dst_bytes, const char **message);

/* ---- Links ---------------------------------------------------------------------------------------------------- */

/*
 * A *link* is a frame that leads from an optimizer's state before a step to its state after it. It contains the
 * gradient. The decoder repeats torch's arithmetic on a CPU, bit for bit, and adds the remaining differences. The
 * state's tensors are its *arrays*; their values before the step are the bases:
 *
 *   LMC_ADAM, Adam and AdamW: exp_avg, exp_avg_sq, the parameter, and with amsgrad max_exp_avg_sq
 *   LMC_SGD, with momentum: momentum_buffer, the parameter
 *
 * All arrays are f32 of the same size. A block depends only on the same block of the bases. Unexplained results become
 * ordinary deltas, block by block: for any rule and data, a link exceeds these by at most a few bytes a block. The
 * caller's floating-point environment (rounding, flushing of denormals) has no effect and is preserved.
 */
enum lmc_optimizer { LMC_ADAM = 1, LMC_SGD = 2 };

/* Flags. `maximize` needs none: it changes only the sign of the gradient. */
#define LMC_LINK_L2       1u /* Adam: adds weight decay to the gradient (torch's Adam, not AdamW) */
#define LMC_LINK_AMSGRAD  2u /* Adam */
#define LMC_LINK_NESTEROV 4u /* SGD */

/* 3 or 4 for Adam, 2 for SGD; 0: unknown optimizer or flag. */
LMC_API uint32_t lmc_link_arrays(uint32_t optimizer, uint32_t flags);

/* Hyperparameters of a parameter group, and the step's number (state["step"] after it). */
struct lmc_link_hints {
    uint32_t optimizer; /* enum lmc_optimizer */
    uint32_t flags;     /* LMC_LINK_* */
    double step;
    double lr;
    double weight_decay;
    double beta1, beta2, eps;   /* Adam */
    double momentum, dampening; /* SGD */
    double scale;               /* factor of bf16 gradients, applied in f32 before the step; 0: unknown */
};

/*
 * Finds the factor (`scale` of the hints) of bf16 gradients, or of sums of a few such, from at least about a hundred
 * gradients as the optimizer received them. *scale is 1 if they are short without a factor, 0 if no factor makes them
 * short (a model in f32). Fails only with LMC_NO_MEMORY.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_gradient_scale(const float *gradients, size_t elements, double *scale);

/* An optimizer's arithmetic and constants, as a link stores them. Unused constants are zero. */
struct lmc_link_rule {
    uint32_t optimizer;
    uint32_t flags;
    float gain;     /* Adam: 1 - beta1; SGD: 1 - dampening */
    float momentum; /* SGD */
    float beta2;    /* Adam */
    float gain2;    /* Adam: 1 - beta2 */
    float decay;    /* AdamW: 1 - lr * weight_decay; otherwise 1 */
    float l2;       /* SGD, and Adam with LMC_LINK_L2: weight_decay */
    float rate;     /* Adam: -lr / (1 - beta1^step); SGD: -lr */
    float root;     /* Adam: sqrt(1 - beta2^step) */
    float eps;      /* Adam */
    float scale;    /* gradients are short numbers times this; 1 without a factor */
};

/* From hints alone, without data. LMC_INVALID: a hint is out of range. */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_rule(const struct lmc_link_hints *hints, struct lmc_link_rule *rule);

/* The share (0 to 1) of exact elements of each array in a sample. */
struct lmc_link_fit {
    float exact[LMC_MAX_BASES];
    float bits; /* estimated bits of an element of all arrays in a link */
    uint32_t sampled;
};

/*
 * Finds the rule that leads from `before` to `after`, from a sample of a few thousand elements. `hints` may be wrong in
 * values that a scheduler changes (lr, AdamW's betas and weight_decay, step) and in `scale`; NULL: find everything, the
 * optimizer from the number of arrays. `rule` is always valid for encoding; `fit` (may be NULL) receives its quality.
 * LMC_UNSUPPORTED: no known arithmetic explains the step; use ordinary deltas. One fit, on the largest parameter,
 * serves a whole parameter group. Allocates temporary memory.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_fit(const struct lmc_link_hints *hints, uint32_t array_count,
                                                   const void *const *before, const void *const *after,
                                                   uint64_t raw_bytes, struct lmc_link_rule *rule,
                                                   struct lmc_link_fit *fit, const char **message);

struct lmc_link_params {
    struct lmc_link_rule rule;
    uint64_t raw_bytes;                /* of each array; a multiple of 4 */
    const void *before[LMC_MAX_BASES]; /* the rule's arrays */
    const void *after[LMC_MAX_BASES];
    struct lmc_hash before_digest[LMC_MAX_BASES]; /* identify the bases in the frame */
    uint32_t like; /* lmc_link_encoder_plan of another parameter of the step, which saves most of planning; 0: none */
};

/* A link's struct lmc_block. */
struct lmc_link_block {
    uint32_t coded_bytes;
    uint64_t coded_hash;                     /* as in struct lmc_block */
    struct lmc_hash raw_hash[LMC_MAX_BASES]; /* of each array's block after the step */
};

/* A plan to encode one link; used like an lmc_encoder. */
struct lmc_link_encoder;
LMC_API LMC_NODISCARD enum lmc_status lmc_link_encoder_new(const struct lmc_link_params *params,
                                                           struct lmc_link_encoder **encoder, const char **message);
LMC_API void lmc_link_encoder_free(struct lmc_link_encoder *encoder);
/* The plan, which suits other parameters with the same rule: they have gradients of the same kind. */
LMC_API uint32_t lmc_link_encoder_plan(const struct lmc_link_encoder *encoder);
LMC_API uint64_t lmc_link_encoder_block_count(const struct lmc_link_encoder *encoder);
/* Largest coded size of a block with `raw_bytes` (at most LMC_BLOCK_BYTES) of each array. */
LMC_API size_t lmc_link_block_bound(uint32_t array_count, size_t raw_bytes);
LMC_API LMC_NODISCARD enum lmc_status lmc_link_encode_block(const struct lmc_link_encoder *encoder, uint64_t index,
                                                            void *dst, size_t dst_bytes, struct lmc_link_block *block);
/* The same with known hashes (lmc_hash128) of each array's block after the step. The frame has `hashes` unchecked. */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_encode_block_hashed(const struct lmc_link_encoder *encoder,
                                                                   uint64_t index, const struct lmc_hash *hashes,
                                                                   void *dst, size_t dst_bytes,
                                                                   struct lmc_link_block *block);
LMC_API size_t lmc_link_encoder_header_bytes(const struct lmc_link_encoder *encoder);
LMC_API LMC_NODISCARD enum lmc_status lmc_link_encode_header(const struct lmc_link_encoder *encoder,
                                                             const struct lmc_link_block *blocks, void *dst,
                                                             size_t dst_bytes);
/* Encodes a whole frame in this thread. lmc_link_bound bytes always suffice. */
LMC_API uint64_t lmc_link_bound(uint32_t array_count, uint64_t raw_bytes);
LMC_API LMC_NODISCARD enum lmc_status lmc_link_compress(const struct lmc_link_params *params, void *dst,
                                                        size_t dst_bytes, size_t *frame_bytes, const char **message);

/*
 * lmc_frame_header_bytes, lmc_frame_parse and lmc_frame_block accept links, too: `predictor` is then the optimizer (not
 * 0), raw_bytes the size of each array, base_count and output_count the number of arrays, raw_hash the hash of the
 * first. lmc_decode_block and lmc_decompress reject links (LMC_UNSUPPORTED).
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_frame_rule(const struct lmc_frame *frame, struct lmc_link_rule *rule);
/* Digest of array `output` after the step. frame->base_digest identifies the arrays before it. */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_digest(const struct lmc_frame *frame, uint32_t output, uint32_t ndim,
                                                      const uint64_t *shape, struct lmc_hash *digest);

/* One link of a chain, for one block. */
struct lmc_link_step {
    const struct lmc_frame *frame;
    const void *coded;
    size_t coded_bytes;
};

/*
 * Applies a chain of links, the oldest first, to one block, in pieces that fit the caches. `state`: block `index` of
 * each array before the first step, and after the call after the last. All links have the same raw_bytes and number of
 * arrays. Checks each link's coded bytes and the last state. After an error the state is undefined and *failed (may be
 * NULL) is the index of the failed link. A wrong base is detected in the last link; decode links one by one to find the
 * first wrong state. Concurrent calls for other blocks are safe. Accesses only these buffers for any input.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_decode_block(const struct lmc_link_step *steps, size_t step_count,
                                                            uint64_t index, void *const *state, size_t state_bytes,
                                                            size_t *failed, const char **message);
/* Applies one whole frame in this thread. `state`: raw_bytes of each array, before the step and then after it. */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_decompress(const void *frame, size_t frame_bytes, void *const *state,
                                                          size_t state_bytes, const char **message);

/* The kernels in use, for reports: "portable", "avx2", "avx512" or "neon". The environment variable LMC_KERNELS, one of
 * these names, read once, excludes faster ones for tests. All produce the same bytes. */
LMC_API const char *lmc_kernels(void);

#ifdef __cplusplus
}
#endif

#endif
