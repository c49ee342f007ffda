/* SPDX-License-Identifier: BSD-3-Clause */
/* recorder.c - see recorder.h. One lock orders all events; it is not held during a call. */
#include "recorder.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libpmem.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define MAPPINGS   512u
#define MOST_BYTES ((uint64_t)8 << 30) /* reserved address space */
#define PAGE       4096u

struct mapping {
    const char *at;
    uint64_t bytes;
    uint64_t offset;
};

static struct recorder {
    pthread_mutex_t lock;
    atomic_bool on;
    enum record_medium medium;
    char path[4096];
    bool known;
    dev_t device;
    ino_t inode;
    int fd;
    const unsigned char *now;
    uint64_t bytes;
    unsigned char *before; /* as last compared */
    struct mapping mappings[MAPPINGS];
    struct record_event *events;
    size_t count;
    size_t capacity;
    unsigned char *data;
    uint64_t data_bytes;
    atomic_uint threads;
    uint64_t clock_ns;
    enum recorder_loss lost_kind;
    uint64_t lose_every;
    uint64_t lost_count;
} recorder = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local uint32_t thread_number;

/* After this library. */
static void *next_symbol(const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    if (symbol == NULL) {
        fprintf(stderr, "recorder: there is no %s\n", name);
        abort();
    }
    return symbol;
}

#define REAL(name)                                 \
    static _Atomic(void *) address;                \
    if (atomic_load(&address) == NULL)             \
        atomic_store(&address, next_symbol(name)); \
    void *found = atomic_load(&address);           \
    memcpy(&real, &found, sizeof real)

static void *reserve(uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        perror("recorder: mmap");
        abort();
    }
    return at;
}

/* ---- The record; all under the lock ---- */

static uint32_t this_thread(void)
{
    if (thread_number == 0)
        thread_number = atomic_fetch_add(&recorder.threads, 1) + 1;
    return thread_number;
}

static void add(enum record_kind kind, uint64_t offset, uint64_t bytes, uint64_t data)
{
    if (recorder.count == recorder.capacity) {
        recorder.capacity = recorder.capacity == 0 ? 4096 : recorder.capacity * 2;
        recorder.events = realloc(recorder.events, recorder.capacity * sizeof *recorder.events);
        if (recorder.events == NULL)
            abort();
    }
    recorder.events[recorder.count++] =
        (struct record_event){.kind = kind, .thread = this_thread(), .offset = offset, .bytes = bytes, .data = data};
}

static void add_store(uint64_t offset, uint64_t bytes)
{
    if (recorder.data_bytes + bytes > MOST_BYTES) {
        fprintf(stderr, "recorder: the record is too large\n");
        abort();
    }
    memcpy(recorder.data + recorder.data_bytes, recorder.now + offset, bytes);
    memcpy(recorder.before + offset, recorder.data + recorder.data_bytes, bytes);
    add(RECORD_STORE, offset, bytes, recorder.data_bytes);
    recorder.data_bytes += bytes;
}

/* By runs of lines. */
static void look(uint64_t offset, uint64_t bytes)
{
    uint64_t at = offset & ~(uint64_t)(RECORD_LINE - 1), end = offset + bytes;
    for (; at < end; at += RECORD_LINE) {
        if (at % PAGE == 0 && end - at >= PAGE && memcmp(recorder.now + at, recorder.before + at, PAGE) == 0) {
            at += PAGE - RECORD_LINE;
            continue;
        }
        uint64_t from = at;
        while (at < end && memcmp(recorder.now + at, recorder.before + at, RECORD_LINE) != 0)
            at += RECORD_LINE;
        if (at > from)
            add_store(from, at - from);
    }
}

static void look_everywhere(void)
{
    if (!recorder.known)
        return;
    for (off_t at = 0, end; (at = lseek(recorder.fd, at, SEEK_DATA)) >= 0; at = end) {
        end = lseek(recorder.fd, at, SEEK_HOLE);
        if (end <= at)
            return;
        look((uint64_t)at, (uint64_t)(end - at));
    }
}

static bool lost(enum recorder_loss kind)
{
    return recorder.lose_every != 0 && recorder.lost_kind == kind && ++recorder.lost_count % recorder.lose_every == 0;
}

static bool from_library(const void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) != 0 && info.dli_fname != NULL && strstr(info.dli_fname, "libpmemobj") != NULL;
}

/*
 * The next mapped piece of a range, as a range of the file; false: none. A live tensor in several parts has adjacent
 * mappings of separate places.
 */
static bool next_piece(const char **at, uint64_t *bytes, uint64_t *offset, uint64_t *piece_bytes)
{
    const struct mapping *found = NULL;
    const char *end = *at + *bytes;
    for (size_t i = 0; i<MAPPINGS && * bytes> 0; i++) {
        const struct mapping *mapping = &recorder.mappings[i];
        if (mapping->at != NULL && mapping->at < end && *at < mapping->at + mapping->bytes &&
            (found == NULL || mapping->at < found->at))
            found = mapping;
    }
    if (found == NULL)
        return false;
    const char *first = *at > found->at ? *at : found->at, *last = found->at + found->bytes;
    last = last < end ? last : end;
    *offset = found->offset + (uint64_t)(first - found->at);
    *piece_bytes = (uint64_t)(last - first);
    *at = last;
    *bytes = (uint64_t)(end - last);
    return true;
}

static void note_flush(const void *address, size_t bytes, const void *caller)
{
    const char *at = address;
    uint64_t left = bytes, offset, n;
    if (!atomic_load(&recorder.on) || bytes == 0)
        return;
    pthread_mutex_lock(&recorder.lock);
    bool any = next_piece(&at, &left, &offset, &n), dax = recorder.medium == RECORD_DAX;
    bool loses = any && dax && from_library(caller) && lost(RECORDER_LOSES_FLUSHES);
    for (; any; any = next_piece(&at, &left, &offset, &n)) {
        look(offset, n);
        if (dax && !loses)
            add(RECORD_FLUSH, offset, n, 0);
    }
    pthread_mutex_unlock(&recorder.lock);
}

static void note_fence(const void *caller)
{
    if (!atomic_load(&recorder.on))
        return;
    pthread_mutex_lock(&recorder.lock);
    look_everywhere();
    if (recorder.medium == RECORD_DAX && !(from_library(caller) && lost(RECORDER_LOSES_FENCES)))
        add(RECORD_FENCE, 0, 0, 0);
    pthread_mutex_unlock(&recorder.lock);
}

static void note_range(enum record_kind kind, uint64_t offset, uint64_t bytes, const void *caller)
{
    pthread_mutex_lock(&recorder.lock);
    look_everywhere();
    if (!(kind == RECORD_SYNC && caller != NULL && lost(RECORDER_LOSES_SYNCS)))
        add(kind, offset, bytes, 0);
    pthread_mutex_unlock(&recorder.lock);
}

/* ---- Which file ---- */

static bool is_recorded(int fd)
{
    struct stat st;
    return atomic_load(&recorder.on) && recorder.known && fstat(fd, &st) == 0 && st.st_dev == recorder.device &&
           st.st_ino == recorder.inode;
}

/* A mapping by libpmemobj's descriptor would keep its lock. */
static void learn(int fd)
{
    char link[64], path[4096];
    struct stat st;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0 || strncmp(path, recorder.path, strlen(recorder.path)) != 0 || fstat(fd, &st) != 0 ||
        (uint64_t)st.st_size > RECORD_SPAN)
        return;
    recorder.fd = open(link, O_RDONLY | O_CLOEXEC);
    void *(*real)(void *, size_t, int, int, int, off_t);
    REAL("mmap");
    void *at = real(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, recorder.fd, 0);
    if (recorder.fd < 0 || at == MAP_FAILED) {
        perror("recorder: the file");
        abort();
    }
    recorder.now = at;
    recorder.bytes = (uint64_t)st.st_size;
    recorder.before = reserve(recorder.bytes);
    recorder.device = st.st_dev;
    recorder.inode = st.st_ino;
    recorder.known = true;
}

static void take_as_it_is(void)
{
    for (off_t at = 0, end; recorder.known && (at = lseek(recorder.fd, at, SEEK_DATA)) >= 0; at = end) {
        end = lseek(recorder.fd, at, SEEK_HOLE);
        if (end <= at)
            return;
        for (off_t page = at; page < end; page += PAGE)
            if (memcmp(recorder.before + page, recorder.now + page, PAGE) != 0)
                memcpy(recorder.before + page, recorder.now + page, PAGE);
    }
}

void recorder_begin(const char *path, enum record_medium medium)
{
    pthread_mutex_lock(&recorder.lock);
    snprintf(recorder.path, sizeof recorder.path, "%s", path);
    recorder.medium = medium;
    recorder.count = 0;
    recorder.data_bytes = 0;
    recorder.lost_count = 0;
    recorder.clock_ns = (uint64_t)1700000000 * 1000000000;
    memset(recorder.mappings, 0, sizeof recorder.mappings);
    if (recorder.data == NULL)
        recorder.data = reserve(MOST_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        learn(fd);
        take_as_it_is();
        close(fd);
    }
    atomic_store(&recorder.on, true);
    pthread_mutex_unlock(&recorder.lock);
}

void recorder_mark(uint64_t what, uint64_t value)
{
    if (atomic_load(&recorder.on))
        note_range(RECORD_MARK, what, value, NULL);
}

struct record recorder_end(void)
{
    pthread_mutex_lock(&recorder.lock);
    atomic_store(&recorder.on, false);
    if (recorder.known) {
        munmap((void *)(uintptr_t)recorder.now, recorder.bytes);
        munmap(recorder.before, recorder.bytes);
        close(recorder.fd);
    }
    recorder.known = false;
    struct record record = {recorder.events, recorder.count, recorder.data};
    pthread_mutex_unlock(&recorder.lock);
    return record;
}

void recorder_lose(enum recorder_loss what, uint64_t every)
{
    recorder.lost_kind = what;
    recorder.lose_every = every;
}

/* ---- libpmem's calls ---- */

#define CALLER __builtin_return_address(0)

void pmem_flush(const void *at, size_t bytes)
{
    void (*real)(const void *, size_t);
    REAL("pmem_flush");
    real(at, bytes);
    note_flush(at, bytes, CALLER);
}

void pmem_deep_flush(const void *at, size_t bytes)
{
    void (*real)(const void *, size_t);
    REAL("pmem_deep_flush");
    real(at, bytes);
    note_flush(at, bytes, CALLER);
}

void pmem_drain(void)
{
    void (*real)(void);
    REAL("pmem_drain");
    real();
    note_fence(CALLER);
}

int pmem_deep_drain(const void *at, size_t bytes)
{
    int (*real)(const void *, size_t);
    REAL("pmem_deep_drain");
    int result = real(at, bytes);
    note_fence(CALLER);
    return result;
}

void pmem_persist(const void *at, size_t bytes)
{
    void (*real)(const void *, size_t);
    REAL("pmem_persist");
    real(at, bytes);
    note_flush(at, bytes, CALLER);
    note_fence(CALLER);
}

int pmem_deep_persist(const void *at, size_t bytes)
{
    int (*real)(const void *, size_t);
    REAL("pmem_deep_persist");
    int result = real(at, bytes);
    note_flush(at, bytes, CALLER);
    note_fence(CALLER);
    return result;
}

static void note_copy(const void *to, size_t bytes, unsigned flags, const void *caller)
{
    if (flags & PMEM_F_MEM_NOFLUSH)
        return; /* seen at the next fence */
    note_flush(to, bytes, caller);
    if (!(flags & PMEM_F_MEM_NODRAIN))
        note_fence(caller);
}

void *pmem_memcpy(void *to, const void *from, size_t bytes, unsigned flags)
{
    void *(*real)(void *, const void *, size_t, unsigned);
    REAL("pmem_memcpy");
    real(to, from, bytes, flags);
    note_copy(to, bytes, flags, CALLER);
    return to;
}

void *pmem_memmove(void *to, const void *from, size_t bytes, unsigned flags)
{
    void *(*real)(void *, const void *, size_t, unsigned);
    REAL("pmem_memmove");
    real(to, from, bytes, flags);
    note_copy(to, bytes, flags, CALLER);
    return to;
}

void *pmem_memset(void *to, int value, size_t bytes, unsigned flags)
{
    void *(*real)(void *, int, size_t, unsigned);
    REAL("pmem_memset");
    real(to, value, bytes, flags);
    note_copy(to, bytes, flags, CALLER);
    return to;
}

void *pmem_memcpy_persist(void *to, const void *from, size_t bytes)
{
    return pmem_memcpy(to, from, bytes, 0);
}
void *pmem_memmove_persist(void *to, const void *from, size_t bytes)
{
    return pmem_memmove(to, from, bytes, 0);
}
void *pmem_memset_persist(void *to, int value, size_t bytes)
{
    return pmem_memset(to, value, bytes, 0);
}
void *pmem_memcpy_nodrain(void *to, const void *from, size_t bytes)
{
    return pmem_memcpy(to, from, bytes, PMEM_F_MEM_NODRAIN);
}
void *pmem_memmove_nodrain(void *to, const void *from, size_t bytes)
{
    return pmem_memmove(to, from, bytes, PMEM_F_MEM_NODRAIN);
}
void *pmem_memset_nodrain(void *to, int value, size_t bytes)
{
    return pmem_memset(to, value, bytes, PMEM_F_MEM_NODRAIN);
}

/* ---- System calls: a sync is recorded before the call, because it need not cover later stores ---- */

static void enter(struct mapping mapping)
{
    size_t i = 0;
    while (i < MAPPINGS && recorder.mappings[i].at != NULL)
        i++;
    if (i == MAPPINGS) {
        fprintf(stderr, "recorder: there are too many mappings\n");
        abort();
    }
    recorder.mappings[i] = mapping;
}

static void forget(const void *at, size_t bytes)
{
    const char *first = at, *end = first + bytes;
    for (size_t i = 0; i < MAPPINGS; i++) {
        struct mapping *mapping = &recorder.mappings[i], all = *mapping;
        if (all.at == NULL || all.at >= end || first >= all.at + all.bytes)
            continue;
        look_everywhere();
        if (all.at < first)
            mapping->bytes = (uint64_t)(first - all.at);
        else
            mapping->at = NULL;
        if (all.at + all.bytes > end)
            enter((struct mapping){end, all.bytes - (uint64_t)(end - all.at), all.offset + (uint64_t)(end - all.at)});
    }
}

void *mmap(void *hint, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *(*real)(void *, size_t, int, int, int, off_t);
    REAL("mmap");
    void *at = real(hint, bytes, protection, flags, fd, offset);
    bool shared = (flags & MAP_TYPE) == MAP_SHARED || (flags & MAP_TYPE) == MAP_SHARED_VALIDATE;
    if (at == MAP_FAILED || fd < 0 || !shared || (protection & PROT_WRITE) == 0 || !atomic_load(&recorder.on))
        return at;
    pthread_mutex_lock(&recorder.lock);
    if (!recorder.known)
        learn(fd);
    /* Ignores an unchanged mapping. */
    bool is_there = false;
    for (size_t i = 0; i < MAPPINGS; i++)
        is_there = is_there || (recorder.mappings[i].at == at && recorder.mappings[i].bytes >= bytes &&
                                recorder.mappings[i].offset == (uint64_t)offset);
    if (!is_there && is_recorded(fd)) {
        forget(at, bytes);
        enter((struct mapping){at, bytes, (uint64_t)offset});
    }
    pthread_mutex_unlock(&recorder.lock);
    return at;
}

int munmap(void *at, size_t bytes)
{
    int (*real)(void *, size_t);
    REAL("munmap");
    if (atomic_load(&recorder.on)) {
        pthread_mutex_lock(&recorder.lock);
        forget(at, bytes);
        pthread_mutex_unlock(&recorder.lock);
    }
    return real(at, bytes);
}

static void note_msync(const void *address, size_t bytes)
{
    const char *at = address;
    uint64_t left = bytes, offset, n;
    pthread_mutex_lock(&recorder.lock);
    bool any = next_piece(&at, &left, &offset, &n), loses = any && lost(RECORDER_LOSES_SYNCS);
    if (any)
        look_everywhere();
    for (; any && !loses; any = next_piece(&at, &left, &offset, &n))
        add(RECORD_SYNC, offset, n, 0);
    pthread_mutex_unlock(&recorder.lock);
}

int msync(void *at, size_t bytes, int flags)
{
    int (*real)(void *, size_t, int);
    REAL("msync");
    if ((flags & MS_SYNC) != 0 && atomic_load(&recorder.on))
        note_msync(at, bytes);
    return real(at, bytes, flags);
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    ssize_t (*real)(int, const void *, size_t, off_t);
    REAL("pwrite");
    ssize_t n = real(fd, from, bytes, offset);
    if (n > 0 && is_recorded(fd)) {
        pthread_mutex_lock(&recorder.lock);
        look((uint64_t)offset, (uint64_t)n);
        pthread_mutex_unlock(&recorder.lock);
    }
    return n;
}

int fdatasync(int fd)
{
    int (*real)(int);
    REAL("fdatasync");
    if (is_recorded(fd))
        note_range(RECORD_SYNC, 0, RECORD_SPAN, CALLER);
    return real(fd);
}

int fsync(int fd)
{
    int (*real)(int);
    REAL("fsync");
    if (is_recorded(fd))
        note_range(RECORD_SYNC, 0, RECORD_SPAN, CALLER);
    return real(fd);
}

/* tmpfs reports unwritten pages as holes; writing makes them distinct. */
static void fill_holes(int fd, off_t offset, off_t bytes)
{
    static const unsigned char zeros[PAGE];
    struct statfs fs;
    int (*statfs_of)(int, struct statfs *);
    ssize_t (*write_at)(int, const void *, size_t, off_t);
    {
        int (*real)(int, struct statfs *);
        REAL("fstatfs");
        statfs_of = real;
    }
    {
        ssize_t (*real)(int, const void *, size_t, off_t);
        REAL("pwrite");
        write_at = real;
    }
    if (statfs_of(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC)
        return;
    off_t first = offset & ~(off_t)(PAGE - 1);
    for (off_t at = first; at < offset + bytes; at += PAGE) {
        off_t data = lseek(fd, at, SEEK_DATA);
        if ((data < 0 || data >= at + (off_t)PAGE) && write_at(fd, zeros, PAGE, at) != (ssize_t)PAGE)
            return;
    }
}

/*
 * Records the zeros as stores, of allocated space only: a range may reach to the end of the pool, and reading a page in
 * memory allocates it.
 */
static void note_punch(int fd, int mode, off_t offset, off_t bytes)
{
    int (*real)(int, int, off_t, off_t);
    REAL("fallocate");
    pthread_mutex_lock(&recorder.lock);
    for (off_t at = offset, next, end = offset + bytes; (at = lseek(recorder.fd, at, SEEK_DATA)) >= 0 && at < end;
         at = next) {
        next = lseek(recorder.fd, at, SEEK_HOLE);
        next = next > at && next < end ? next : end;
        if (real(fd, mode, at, next - at) == 0)
            look((uint64_t)at, (uint64_t)(next - at));
    }
    add(RECORD_PUNCHED, (uint64_t)offset, (uint64_t)bytes, 0);
    pthread_mutex_unlock(&recorder.lock);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    int (*real)(int, int, off_t, off_t);
    REAL("fallocate");
    bool punches = (mode & FALLOC_FL_PUNCH_HOLE) != 0, mine = is_recorded(fd);
    if (punches && mine) {
        note_range(RECORD_PUNCH, (uint64_t)offset, (uint64_t)bytes, NULL);
        note_punch(fd, mode, offset, bytes);
    }
    int result = real(fd, mode, offset, bytes);
    if (result == 0 && mode == 0)
        fill_holes(fd, offset, bytes);
    if (result != 0 || !mine || punches)
        return result;
    pthread_mutex_lock(&recorder.lock);
    add(RECORD_BACK, (uint64_t)offset, (uint64_t)bytes, 0);
    pthread_mutex_unlock(&recorder.lock);
    return result;
}

int fstatfs(int fd, struct statfs *fs)
{
    int (*real)(int, struct statfs *);
    REAL("fstatfs");
    int result = real(fd, fs);
    /* A pool in memory is written by stores, on a disk by pwrite. */
    if (result == 0 && fs->f_type == TMPFS_MAGIC && recorder.medium == RECORD_FILE)
        fs->f_type = EXT4_SUPER_MAGIC;
    return result;
}

static void note_name(const char *to)
{
    if (atomic_load(&recorder.on) && recorder.known && strcmp(to, recorder.path) == 0)
        note_range(RECORD_SHOWN, 0, 0, NULL);
}

int link(const char *from, const char *to)
{
    int (*real)(const char *, const char *);
    REAL("link");
    int result = real(from, to);
    if (result == 0)
        note_name(to);
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*real)(clockid_t, struct timespec *);
    REAL("clock_gettime");
    if (clock != CLOCK_REALTIME || !atomic_load(&recorder.on))
        return real(clock, now);
    pthread_mutex_lock(&recorder.lock);
    recorder.clock_ns += 1000000;
    *now = (struct timespec){(time_t)(recorder.clock_ns / 1000000000), (long)(recorder.clock_ns % 1000000000)};
    pthread_mutex_unlock(&recorder.lock);
    return 0;
}
