/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lmc.h - lossless compression of tensors and of their differences (liblmc).
 *
 * A *frame* holds the bytes of one tensor, alone or as a delta against base tensors of the same size. It is cut
 * into blocks of LMC_BLOCK_BYTES decoded bytes; each block is coded, checked and decoded by itself, so that a slice
 * needs only its blocks and any number of threads may share the work. The library has no threads, does no I/O and
 * allocates only where a function says so. The layout of a frame is specified in codec/FORMAT.md.
 *
 * Method: byte grouping and Huffman coding of checkpoints and their deltas, after LMC (arXiv 2505.09810).
 *
 * Conventions. Every function is thread safe: no state is shared but a table of kernels that is filled on first use.
 * Inputs are never written to. Sizes are in bytes. A function that can fail returns an lmc_status and, where a
 * message pointer is given, stores a constant sentence there that says what was found (never to be freed).
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
    LMC_INVALID,     /* the caller's mistake: an argument is out of range */
    LMC_DAMAGED,     /* the frame is not what an encoder wrote, or the base is not the one that it was coded against */
    LMC_UNSUPPORTED, /* a frame of a newer version, or with a feature that this library does not have */
    LMC_NO_SPACE,    /* the destination is too small */
    LMC_NO_MEMORY
};

/* Kinds of numbers. */
enum lmc_kind { LMC_KIND_BOOL = 1, LMC_KIND_UNSIGNED, LMC_KIND_SIGNED, LMC_KIND_FLOAT, LMC_KIND_COMPLEX };

/*
 * The element types, one line each: X(constant, value, name, kind, numbers, bits, exponent bits).
 *
 * Values are part of the format: they never change, and a new dtype takes the next one. `numbers` is how many numbers an
 * element holds: 2 if it is complex, or if two share a byte (shapes then count bytes). `bits` and `exponent bits` are
 * those of one number. The codec derives everything it knows of a dtype from its line.
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

/* Bytes of one element; 0 for a value that is no dtype. */
LMC_API size_t lmc_dtype_size(uint32_t dtype);
/* Numbers in one element, 1 or 2; 0 for a value that is no dtype. */
LMC_API unsigned lmc_dtype_numbers(uint32_t dtype);
/* An enum lmc_kind; 0 for a value that is no dtype. */
LMC_API unsigned lmc_dtype_kind(uint32_t dtype);
/* "f32", "bf16", "f8_e4m3fn", ...; NULL for a value that is no dtype. */
LMC_API const char *lmc_dtype_name(uint32_t dtype);
/* The dtype with a name that lmc_dtype_name returns; 0 if there is none. */
LMC_API uint32_t lmc_dtype_from_name(const char *name);

/* ---- Checksums ------------------------------------------------------------------------------------------------ */

/* A 128-bit XXH3 hash, seed 0. On media: `low`, then `high`, little-endian. It finds accidents, not forgers. */
struct lmc_hash {
    uint64_t low;
    uint64_t high;
};

/* Hash of some bytes; what a block is checked by. */
LMC_API struct lmc_hash lmc_hash128(const void *data, size_t bytes);
/* 64-bit XXH3 with a seed; what coded blocks and small records are checked by. */
LMC_API uint64_t lmc_hash64(const void *data, size_t bytes, uint64_t seed);

/* lmc_hash128 of bytes that come in pieces: init, update..., final. The state is caller-owned and 64-byte aligned. */
struct lmc_hasher {
    unsigned char opaque[640] __attribute__((aligned(64)));
};
LMC_API void lmc_hasher_init(struct lmc_hasher *hasher);
LMC_API void lmc_hasher_update(struct lmc_hasher *hasher, const void *data, size_t bytes);
LMC_API struct lmc_hash lmc_hasher_final(const struct lmc_hasher *hasher);

/* Number of blocks that `raw_bytes` make: 0 for an empty tensor. */
LMC_API uint64_t lmc_block_count(uint64_t raw_bytes);

/*
 * The digest of a tensor: lmc_hash128 over "LMCD", dtype (u32), ndim (u32), 0 (u32), shape (u64 each), all
 * little-endian, then the hashes of its blocks. Equal tensors have equal digests however they are stored.
 * ndim is at most LMC_MAX_DIMS.
 */
LMC_API struct lmc_hash lmc_digest(uint32_t dtype, uint32_t ndim, const uint64_t *shape,
                                   const struct lmc_hash *block_hashes, uint64_t block_count);

/* ---- Encoding ------------------------------------------------------------------------------------------------- */

/* A flag of frames in a file of several: another one follows. It tells a file that was cut short from a whole one. */
#define LMC_FRAME_CONTINUES 1u

enum lmc_level {
    LMC_LEVEL_DEFAULT = 0,
    LMC_LEVEL_DENSE = 1 /* slower and smaller */
};

struct lmc_params {
    uint32_t dtype; /* enum lmc_dtype */
    enum lmc_level level;
    uint64_t raw_bytes;          /* a multiple of the dtype's size */
    const void *data;            /* raw_bytes; sampled, to plan with */
    const void *base;            /* raw_bytes of the base, or NULL: no delta */
    struct lmc_hash base_digest; /* names the base in the frame; ignored without one */
    uint32_t flags;              /* LMC_FRAME_CONTINUES or 0 */
};

/* A plan to encode one tensor; immutable once made, so that threads may encode its blocks at the same time. */
struct lmc_encoder;

/* Plans from a sample of data and base. Allocates; free with lmc_encoder_free. The tensors must outlive the plan. */
LMC_API LMC_NODISCARD enum lmc_status lmc_encoder_new(const struct lmc_params *params, struct lmc_encoder **encoder,
                                                      const char **message);
LMC_API void lmc_encoder_free(struct lmc_encoder *encoder);
LMC_API uint64_t lmc_encoder_block_count(const struct lmc_encoder *encoder);
/* Bases that the frame will need: 0 without a base, and when the plan found that the tensor is smaller alone. */
LMC_API uint32_t lmc_encoder_base_count(const struct lmc_encoder *encoder);

/* What the header says of one block: filled by lmc_encode_block, handed to lmc_encode_header. */
struct lmc_block {
    uint32_t coded_bytes;
    uint32_t mode;            /* 0 in version 1; later versions may use it */
    uint64_t coded_hash;      /* lmc_hash64 of the coded bytes, seed: the block's index */
    struct lmc_hash raw_hash; /* lmc_hash128 of the decoded bytes */
};

/* The most that lmc_encode_block can write for `raw_bytes` (at most LMC_BLOCK_BYTES) of input. */
LMC_API size_t lmc_block_bound(size_t raw_bytes);
/*
 * Encodes block `index` into dst (capacity at least lmc_block_bound of the block's size). Allocates nothing lasting;
 * LMC_NO_MEMORY is possible. Concurrent calls for different blocks are safe.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_encode_block(const struct lmc_encoder *encoder, uint64_t index, void *dst,
                                                       size_t dst_bytes, struct lmc_block *block);
/*
 * The same from other memory: `data` and `base` (may be NULL when the encoder needs none) are the bytes of the block
 * alone. For data that others may change meanwhile: what is encoded must stay as it is while this runs, but need not be
 * what the plan saw.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_encode_block_of(const struct lmc_encoder *encoder, uint64_t index,
                                                          const void *data, const void *base, void *dst,
                                                          size_t dst_bytes, struct lmc_block *block);
/* Bytes of the frame's header, which comes first; the coded blocks follow it in order without gaps. */
LMC_API size_t lmc_encoder_header_bytes(const struct lmc_encoder *encoder);
/* Writes the header. `blocks` has lmc_encoder_block_count entries. */
LMC_API LMC_NODISCARD enum lmc_status lmc_encode_header(const struct lmc_encoder *encoder,
                                                        const struct lmc_block *blocks, void *dst, size_t dst_bytes);

/* The whole frame in one call and one thread. lmc_frame_bound(raw_bytes) is always enough room. */
LMC_API uint64_t lmc_frame_bound(uint64_t raw_bytes);
LMC_API LMC_NODISCARD enum lmc_status lmc_compress(const struct lmc_params *params, void *dst, size_t dst_bytes,
                                                   size_t *frame_bytes, const char **message);

/* ---- Decoding ------------------------------------------------------------------------------------------------- */

/* Bytes from a frame's start that lmc_frame_header_bytes needs. */
#define LMC_FRAME_PREFIX_BYTES 64

/*
 * A parsed and checked header. `header` points to the caller's header bytes, which must outlive it. The caller may
 * read all fields and writes none.
 */
struct lmc_frame {
    uint32_t version;
    uint32_t dtype;
    uint32_t base_count;   /* 0: stands alone */
    uint32_t output_count; /* tensors that the frame decodes to; 1 in version 1 */
    uint64_t raw_bytes;
    uint64_t block_count;
    uint64_t header_bytes;
    uint64_t frame_bytes; /* header and blocks */
    struct lmc_hash base_digest[LMC_MAX_BASES];
    const unsigned char *header;
    uint32_t predictor;
    uint32_t flags; /* LMC_FRAME_CONTINUES, and what later versions add */
};

/*
 * Size of the header, from the first LMC_FRAME_PREFIX_BYTES of a frame (fewer only if the frame is shorter: then it
 * is damaged). The size is derived from checked fields and bounded by the frame's own claimed size; a caller that
 * reads a stream still compares it with what it is willing to hold.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_frame_header_bytes(const void *prefix, size_t prefix_bytes,
                                                             uint64_t *header_bytes, const char **message);
/* Parses and checks a header (its checksum, every field, the sum of the blocks). Needs no block. Never allocates. */
LMC_API LMC_NODISCARD enum lmc_status lmc_frame_parse(const void *header, size_t header_bytes, struct lmc_frame *frame,
                                                      const char **message);
/* Where block `index` (below block_count) lies: offset from the frame's start, and what the header says of it. */
LMC_API struct lmc_block lmc_frame_block(const struct lmc_frame *frame, uint64_t index, uint64_t *offset);
/*
 * Decodes one block. `coded`: the block's coded bytes, exactly block.coded_bytes. `bases`: base_count pointers to the
 * same block of each base (block's decoded bytes each); NULL without one. `dst`: room for the block's decoded bytes,
 * which must not overlap any input. Checks the coded bytes before and the decoded bytes after; on failure dst holds
 * nothing of value. Reads and writes nothing outside these buffers whatever the input.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_decode_block(const struct lmc_frame *frame, uint64_t index, const void *coded,
                                                       size_t coded_bytes, const void *const *bases, void *dst,
                                                       size_t dst_bytes, const char **message);
/*
 * The same for a block that is wanted as a base alone, of another that is decoded next by lmc_decode_block: no checksum
 * is looked at, for those of that other block tell whether both are right, and what is written stays in the cache.
 * When they are not, decode again by lmc_decode_block to learn which of them is damaged.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_decode_base(const struct lmc_frame *frame, uint64_t index, const void *coded,
                                                      size_t coded_bytes, const void *const *bases, void *dst,
                                                      size_t dst_bytes, const char **message);
/* The digest of the tensor that a frame holds, from its header alone. */
LMC_API LMC_NODISCARD enum lmc_status lmc_frame_digest(const struct lmc_frame *frame, uint32_t dtype, uint32_t ndim,
                                                       const uint64_t *shape, struct lmc_hash *digest);
/* The whole frame in one call and one thread. `bases`: base_count pointers to raw_bytes each. */
LMC_API LMC_NODISCARD enum lmc_status lmc_decompress(const void *frame, size_t frame_bytes, const void *const *bases,
                                                     void *dst, size_t dst_bytes, const char **message);

/* ---- Links ---------------------------------------------------------------------------------------------------- */

/*
 * A *link* is a frame that leads from an optimizer's state before a step to its state after it. It holds the
 * gradient, which is most of what is new in a step; the decoder does the optimizer's own arithmetic, bit for bit as
 * torch does it on a CPU, and adds what that missed. So it holds several tensors, its *arrays*, and needs the same
 * ones of the step before as its bases:
 *
 *   LMC_ADAM, Adam and AdamW: exp_avg, exp_avg_sq, the parameter, and with amsgrad max_exp_avg_sq
 *   LMC_SGD, with momentum: momentum_buffer, the parameter
 *
 * All are f32 and have the same number of elements, of which each is coded by itself: a block needs nothing but the
 * same block of the bases. What the arithmetic does not explain is coded as ordinary deltas, block by block, so that a
 * link is never larger than those by more than a few bytes a block, whatever the rule and the data.
 *
 * The caller's floating-point environment (rounding, flushing of denormals) has no influence, and is left as it was.
 */
enum lmc_optimizer { LMC_ADAM = 1, LMC_SGD = 2 };

/* Flags of an optimizer. Whether it maximizes is none: only the gradient's sign depends on that. */
#define LMC_LINK_L2       1u /* Adam: weight decay is added to the gradient (torch's Adam; AdamW is without) */
#define LMC_LINK_AMSGRAD  2u /* Adam */
#define LMC_LINK_NESTEROV 4u /* SGD */

/* Arrays of a rule's or a link's state: 3 or 4 for Adam, 2 for SGD; 0 where the optimizer or a flag is none. */
LMC_API uint32_t lmc_link_arrays(uint32_t optimizer, uint32_t flags);

/*
 * What a caller knows of an optimizer: its hyperparameters as the parameter group has them, and the number of the step
 * (state["step"] after it). A rate that a scheduler has moved meanwhile is found by lmc_link_fit.
 */
struct lmc_link_hints {
    uint32_t optimizer; /* enum lmc_optimizer */
    uint32_t flags;     /* LMC_LINK_* */
    double step;
    double lr;
    double weight_decay;
    double beta1, beta2, eps;   /* Adam */
    double momentum, dampening; /* SGD */
    double scale;               /* that bf16 gradients were multiplied by, in f32, before the step; 0: unknown */
};

/*
 * What gradients in bf16, or sums of a few such, were multiplied by before the step (the scale of hints), found in the
 * gradients themselves as the optimizer was given them: at least a hundred elements or so, such as a sample of all.
 *
 * scale     1: they are short as they are; 0: by no number do they become so (those of a model in f32 don't)
 * errors    LMC_NO_MEMORY
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_gradient_scale(const float *gradients, size_t elements, double *scale);

/* The optimizer's arithmetic with its constants, as a link stores them. Unused constants are zero. */
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
    float scale;    /* gradients are this times something short; 1 where there is no such scale */
};

/* The rule that follows from hints, without a look at any data; LMC_INVALID when they make none. */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_rule(const struct lmc_link_hints *hints, struct lmc_link_rule *rule);

/* How well a rule explains a sample: shares (0 to 1) of the elements of each array that come out exactly. */
struct lmc_link_fit {
    float exact[LMC_MAX_BASES];
    float bits; /* that a link will take for an element of all arrays together, about; ordinary deltas where smaller */
    uint32_t sampled;
};

/*
 * Finds the rule by which `after` came from `before`, from a sample of a few thousand elements. `hints` may be wrong
 * in what a scheduler moves (lr, weight_decay, step) and in `scale`; or NULL: then all is found from the data, the
 * optimizer by the number of arrays. `rule` is always one that can be encoded with; `fit`, which may be NULL, says how
 * good it is. LMC_UNSUPPORTED: no arithmetic that is known here made this; use ordinary deltas. Parameters of one
 * group have the same rule in the same step: one fit, on the largest, serves all.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_fit(const struct lmc_link_hints *hints, uint32_t array_count,
                                                   const void *const *before, const void *const *after,
                                                   uint64_t raw_bytes, struct lmc_link_rule *rule,
                                                   struct lmc_link_fit *fit, const char **message);

struct lmc_link_params {
    struct lmc_link_rule rule;
    uint64_t raw_bytes;                /* of each array; a multiple of 4 */
    const void *before[LMC_MAX_BASES]; /* as many as the rule has arrays */
    const void *after[LMC_MAX_BASES];
    struct lmc_hash before_digest[LMC_MAX_BASES]; /* names the bases in the frame */
};

/* What the header says of one block of a link: filled by lmc_link_encode_block, handed to lmc_link_encode_header. */
struct lmc_link_block {
    uint32_t coded_bytes;
    uint64_t coded_hash;                     /* lmc_hash64 of the coded bytes, seed: the block's index */
    struct lmc_hash raw_hash[LMC_MAX_BASES]; /* lmc_hash128 of the block of each array after the step */
};

/* A plan to encode one link, as lmc_encoder is one for a tensor: threads may encode its blocks at the same time. */
struct lmc_link_encoder;
LMC_API LMC_NODISCARD enum lmc_status lmc_link_encoder_new(const struct lmc_link_params *params,
                                                           struct lmc_link_encoder **encoder, const char **message);
LMC_API void lmc_link_encoder_free(struct lmc_link_encoder *encoder);
LMC_API uint64_t lmc_link_encoder_block_count(const struct lmc_link_encoder *encoder);
/* The most that a block can take; `raw_bytes` (at most LMC_BLOCK_BYTES) of each of the arrays. */
LMC_API size_t lmc_link_block_bound(uint32_t array_count, size_t raw_bytes);
LMC_API LMC_NODISCARD enum lmc_status lmc_link_encode_block(const struct lmc_link_encoder *encoder, uint64_t index,
                                                            void *dst, size_t dst_bytes, struct lmc_link_block *block);
LMC_API size_t lmc_link_encoder_header_bytes(const struct lmc_link_encoder *encoder);
LMC_API LMC_NODISCARD enum lmc_status lmc_link_encode_header(const struct lmc_link_encoder *encoder,
                                                             const struct lmc_link_block *blocks, void *dst,
                                                             size_t dst_bytes);
/* The whole frame in one call and one thread. lmc_link_bound is always enough room. */
LMC_API uint64_t lmc_link_bound(uint32_t array_count, uint64_t raw_bytes);
LMC_API LMC_NODISCARD enum lmc_status lmc_link_compress(const struct lmc_link_params *params, void *dst,
                                                        size_t dst_bytes, size_t *frame_bytes, const char **message);

/*
 * lmc_frame_header_bytes, lmc_frame_parse and lmc_frame_block read the header of a link, too: `predictor` is then its
 * optimizer (not 0), raw_bytes the size of each array, base_count and output_count the number of them, and raw_hash
 * that of the first. lmc_decode_block and lmc_decompress refuse a link (LMC_UNSUPPORTED).
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_frame_rule(const struct lmc_frame *frame, struct lmc_link_rule *rule);
/* Digest of array `output` after the step; the ones before it are named by frame->base_digest. */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_digest(const struct lmc_frame *frame, uint32_t output, uint32_t ndim,
                                                      const uint64_t *shape, struct lmc_hash *digest);

/* One link of a chain: its parsed header, and the coded bytes of the block that is decoded. */
struct lmc_link_step {
    const struct lmc_frame *frame;
    const void *coded;
    size_t coded_bytes;
};

/*
 * Undoes a chain of links, the oldest first, for one block: `state` has block `index` of each array before the first
 * step, and after the call as it was after the last one. All links have the same raw_bytes and number of arrays. The
 * work goes through the caches in small pieces, however long the chain. Checks the coded bytes of each link, and the
 * state after the last; on failure the state holds nothing of value, and *failed (may be NULL) is the number of the
 * link in which it was found. That of a wrong base is the last; decode the links one by one to find where it went
 * wrong. Concurrent calls for other blocks are safe; reads and writes nothing outside these buffers whatever the input.
 */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_decode_block(const struct lmc_link_step *steps, size_t step_count,
                                                            uint64_t index, void *const *state, size_t state_bytes,
                                                            size_t *failed, const char **message);
/* One whole frame in one call and one thread: `state` has raw_bytes of each array before the step, then after it. */
LMC_API LMC_NODISCARD enum lmc_status lmc_link_decompress(const void *frame, size_t frame_bytes, void *const *state,
                                                          size_t state_bytes, const char **message);

/*
 * Name of the kernels in use: "portable", "avx2", "avx512", "neon"; for reports. LMC_KERNELS in the environment, one
 * of these names, masks faster ones for tests; it is read once, and all kernels give the same bytes.
 */
LMC_API const char *lmc_kernels(void);

#ifdef __cplusplus
}
#endif

#endif
