/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * refuse.h - interposes malloc, fallocate, pwrite and others, which fail on request. For programs of one source file.
 */
#ifndef LMCS_TEST_REFUSE_H
#define LMCS_TEST_REFUSE_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libpmemobj.h>
#include <malloc.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "support.h"

enum refusal {
    NOTHING,
    MEMORY,       /* malloc and the like, called by the store */
    THEIR_MEMORY, /* the same, called by a library: never refused, libpmemobj ends the process or crashes */
    FILE_SPACE,   /* fallocate: the disk is full */
    FILE_SPACE_2, /* no fallocate; posix_fallocate: the disk is full */
    PUNCHING,     /* fallocate for holes */
    SPACE_TO,     /* pwrite, write */
    WRITING,      /* pwrite, write: device error */
    SYNCING,      /* fsync, fdatasync */
    SIZING,       /* ftruncate */
    RESERVING,
    PUBLISHING, /* pmemobj_publish: no room for its log */
    MAPPING,
    MSYNCING, /* msync, called by the store */
    REFUSALS,
    MEMORY_BEYOND = REFUSALS /* a limit of bytes, for all callers */
};
static const char *const refusal_names[REFUSALS] = {
    "nothing", "memory", "a library\'s memory", "fallocate", "posix_fallocate", "holes", "space to write",
    "writing", "fsync",  "ftruncate",           "reserve",   "publish",         "mmap",  "msync",
};

static _Atomic int refused = NOTHING;
static _Atomic long calls_left; /* before the failure */
static _Atomic bool all_further;
static _Atomic long failures;
static _Atomic long blocks; /* the store's, in use */
static _Atomic long bytes_in_use;
static _Atomic long most_bytes;

static void (*on_failure)(void); /* called once, by the first failure */

static bool fails_now(enum refusal refusal)
{
    if (atomic_load(&refused) != (int)refusal)
        return false;
    long left = atomic_fetch_sub(&calls_left, 1);
    if (left > 0 || (left < 0 && !atomic_load(&all_further)))
        return false;
    atomic_fetch_add(&failures, 1);
    void (*call)(void) = on_failure;
    on_failure = NULL;
    if (call != NULL)
        call();
    return true;
}

static void refuse(enum refusal refusal, long n, bool all)
{
    atomic_store(&failures, 0);
    atomic_store(&calls_left, n);
    atomic_store(&all_further, all);
    atomic_store(&refused, (int)refusal);
}

static void refuse_no_more(void)
{
    atomic_store(&refused, NOTHING);
}

/* Visible to shared libraries. */
#pragma GCC visibility push(default)

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *block);

/* The store is in the program; libpmemobj, jansson and others are shared. */
extern const char __executable_start, etext;

static bool is_ours(const void *caller)
{
    return (const char *)caller >= &__executable_start && (const char *)caller < &etext;
}

/* The store's blocks, by address; libpmemobj keeps some memory at each opening of a pool. */
#define BLOCKS ((size_t)1 << 17)
static void *block_table[BLOCKS];
static atomic_flag block_lock = ATOMIC_FLAG_INIT;

static size_t place_of_block(const void *block)
{
    return (size_t)((uintptr_t)block / 16 * 0x9e3779b97f4a7c15u >> 40) % BLOCKS;
}

static void lock_blocks(void)
{
    while (atomic_flag_test_and_set(&block_lock))
        ;
}

static void enter_block(void *block)
{
    size_t i = place_of_block(block);
    lock_blocks();
    while (block_table[i] != NULL)
        i = (i + 1) % BLOCKS;
    block_table[i] = block;
    atomic_flag_clear(&block_lock);
    atomic_fetch_add(&blocks, 1);
}

static void leave_block(const void *block)
{
    size_t i = place_of_block(block);
    lock_blocks();
    while (block_table[i] != NULL && block_table[i] != block)
        i = (i + 1) % BLOCKS;
    if (block_table[i] != NULL)
        atomic_fetch_sub(&blocks, 1);
    for (size_t k = i; block_table[k] != NULL;) {
        k = (k + 1) % BLOCKS;
        size_t wanted = block_table[k] != NULL ? place_of_block(block_table[k]) : 0;
        if (block_table[k] == NULL || (k - wanted) % BLOCKS >= (k - i) % BLOCKS) {
            block_table[i] = block_table[k];
            i = k;
        }
    }
    block_table[i] = NULL;
    atomic_flag_clear(&block_lock);
}

static void *counted(const void *caller, void *block)
{
    if (block == NULL)
        return NULL;
    if (is_ours(caller))
        enter_block(block);
    atomic_fetch_add(&bytes_in_use, (long)malloc_usable_size(block));
    return block;
}

static bool no_memory(const void *caller, size_t bytes)
{
    if (atomic_load(&refused) == MEMORY_BEYOND) {
        if (atomic_load(&bytes_in_use) + (long)bytes <= atomic_load(&most_bytes))
            return false;
        atomic_fetch_add(&failures, 1);
        errno = ENOMEM;
        return true;
    }
    bool fails = fails_now(is_ours(caller) ? MEMORY : THEIR_MEMORY);
    if (fails)
        errno = ENOMEM;
    return fails;
}

void *malloc(size_t bytes)
{
    const void *caller = __builtin_return_address(0);
    return no_memory(caller, bytes) ? NULL : counted(caller, __libc_malloc(bytes));
}
void *calloc(size_t count, size_t bytes)
{
    const void *caller = __builtin_return_address(0);
    return no_memory(caller, count * bytes) ? NULL : counted(caller, __libc_calloc(count, bytes));
}
void *aligned_alloc(size_t alignment, size_t bytes)
{
    const void *caller = __builtin_return_address(0);
    return no_memory(caller, bytes) ? NULL : counted(caller, __libc_memalign(alignment, bytes));
}
int posix_memalign(void **block, size_t alignment, size_t bytes)
{
    const void *caller = __builtin_return_address(0);
    if (no_memory(caller, bytes))
        return ENOMEM;
    *block = counted(caller, __libc_memalign(alignment, bytes));
    return *block == NULL ? ENOMEM : 0;
}
void free(void *block)
{
    if (block != NULL) {
        leave_block(block);
        atomic_fetch_sub(&bytes_in_use, (long)malloc_usable_size(block));
    }
    __libc_free(block);
}
void *realloc(void *old, size_t bytes)
{
    const void *caller = __builtin_return_address(0);
    if (no_memory(caller, bytes))
        return NULL;
    long before = old == NULL ? 0 : (long)malloc_usable_size(old);
    if (old != NULL)
        leave_block(old);
    void *block = __libc_realloc(old, bytes);
    if (block == NULL && old != NULL && is_ours(caller))
        enter_block(old);
    atomic_fetch_sub(&bytes_in_use, block != NULL ? before : 0);
    return counted(caller, block);
}

static bool fails_with(enum refusal refusal, int error_number)
{
    bool fails = fails_now(refusal);
    if (fails)
        errno = error_number;
    return fails;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (atomic_load(&refused) == FILE_SPACE_2) {
        errno = EOPNOTSUPP;
        return -1;
    }
    if ((mode & FALLOC_FL_PUNCH_HOLE) != 0 && fails_with(PUNCHING, ENOSPC))
        return -1;
    return fails_with(FILE_SPACE, ENOSPC) ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}
int posix_fallocate(int fd, off_t offset, off_t bytes)
{
    if (fails_now(FILE_SPACE_2))
        return ENOSPC;
    return syscall(SYS_fallocate, fd, 0, offset, bytes) == 0 ? 0 : errno;
}
int ftruncate(int fd, off_t bytes)
{
    return fails_with(SIZING, ENOSPC) ? -1 : (int)syscall(SYS_ftruncate, fd, bytes);
}
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    if (fails_with(SPACE_TO, ENOSPC) || fails_with(WRITING, EIO))
        return -1;
    return syscall(SYS_pwrite64, fd, data, bytes, offset);
}
ssize_t write(int fd, const void *data, size_t bytes)
{
    if (fails_with(SPACE_TO, ENOSPC) || fails_with(WRITING, EIO))
        return -1;
    return syscall(SYS_write, fd, data, bytes);
}
ssize_t writev(int fd, const struct iovec *vectors, int count)
{
    if (fails_with(SPACE_TO, ENOSPC) || fails_with(WRITING, EIO))
        return -1;
    return syscall(SYS_writev, fd, vectors, count);
}
int fsync(int fd)
{
    return fails_with(SYNCING, EIO) ? -1 : (int)syscall(SYS_fsync, fd);
}
int fdatasync(int fd)
{
    return fails_with(SYNCING, EIO) ? -1 : (int)syscall(SYS_fdatasync, fd);
}
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (fails_with(MAPPING, ENOMEM))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

/* Never fails for libpmemobj, which would end the process. */
int msync(void *at, size_t bytes, int flags)
{
    if (is_ours(__builtin_return_address(0)) && fails_with(MSYNCING, EIO))
        return -1;
    return (int)syscall(SYS_msync, at, bytes, flags);
}

PMEMoid pmemobj_reserve(PMEMobjpool *pool, struct pobj_action *action, size_t bytes, uint64_t type)
{
    static PMEMoid (*real)(PMEMobjpool *, struct pobj_action *, size_t, uint64_t);
    if (fails_with(RESERVING, ENOMEM))
        return OID_NULL;
    if (real == NULL)
        real = (PMEMoid(*)(PMEMobjpool *, struct pobj_action *, size_t, uint64_t))dlsym(RTLD_NEXT, "pmemobj_reserve");
    return real(pool, action, bytes, type);
}
int pmemobj_publish(PMEMobjpool *pool, struct pobj_action *actions, size_t count)
{
    static int (*real)(PMEMobjpool *, struct pobj_action *, size_t);
    if (fails_with(PUBLISHING, ENOMEM))
        return -1;
    if (real == NULL)
        real = (int (*)(PMEMobjpool *, struct pobj_action *, size_t))dlsym(RTLD_NEXT, "pmemobj_publish");
    return real(pool, actions, count);
}

#pragma GCC visibility pop

static bool fits(enum refusal refusal, enum lmcs_status status)
{
    switch (refusal) {
    case MEMORY:
    case MAPPING:
        return status == LMCS_NO_MEMORY;
    case FILE_SPACE:
    case FILE_SPACE_2:
    case SPACE_TO:
    case SIZING:
        return status == LMCS_FULL;
    case PUNCHING:
        return false;
    case RESERVING:
    case PUBLISHING:
        return status == LMCS_FULL || status == LMCS_NO_MEMORY;
    default:
        return status == LMCS_IO;
    }
}

#endif
