/* SPDX-License-Identifier: BSD-3-Clause */
/* sample.c - see sample.h. */
#include "sample.h"

#include <dirent.h>
#include <inttypes.h>
#include <malloc.h>
#include <unistd.h>

struct process {
    uint64_t rss_kib; /* with the mapped pool */
    uint64_t anon_kib;
    uint64_t threads;
    uint64_t fds;
    uint64_t maps;
};

struct sampler {
    FILE *file;
    uint64_t start_ns;
};

static uint64_t count_lines(const char *path)
{
    FILE *file = fopen(path, "re");
    uint64_t lines = 0;
    if (file == NULL)
        return 0;
    for (int c; (c = getc(file)) != EOF;)
        lines += c == '\n';
    fclose(file);
    return lines;
}

/* Without its own descriptor. */
static uint64_t count_entries(const char *path)
{
    DIR *folder = opendir(path);
    uint64_t entries = 0;
    if (folder == NULL)
        return 0;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        entries += entry->d_name[0] != '.';
    closedir(folder);
    return entries;
}

static void read_status(const char *path, struct process *process)
{
    FILE *file = fopen(path, "re");
    char line[256];
    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "VmRSS: %" SCNu64, &process->rss_kib);
        sscanf(line, "RssAnon: %" SCNu64, &process->anon_kib);
        sscanf(line, "Threads: %" SCNu64, &process->threads);
    }
    fclose(file);
}

static struct process look_at(pid_t pid)
{
    struct process process = {0};
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    read_status(path, &process);
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    process.maps = count_lines(path);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    process.fds = count_entries(path) - (pid == getpid());
    return process;
}

static void write_head(FILE *file)
{
    static const char *const who[] = {"writer", "reader"};
    fprintf(file, "seconds,rounds,calls");
    for (int i = 0; i < 2; i++)
        fprintf(file, ",%s_rss_kib,%s_anon_kib,%s_threads,%s_fds,%s_maps", who[i], who[i], who[i], who[i], who[i]);
    fprintf(file, ",heap_kib,used_kib,live_kib,metadata_kib,metadata_free_kib,file_kib,snapshots,contents,backlog");
    for (enum span span = 0; span < SPANS; span++)
        fprintf(file, ",%s_p50_us,%s_p90_us,%s_p99_us", span_name(span), span_name(span), span_name(span));
    fprintf(file, "\n");
}

struct sampler *sampler_new(const char *path)
{
    struct sampler *sampler = calloc(1, sizeof *sampler);
    EXPECT(sampler != NULL);
    sampler->start_ns = monotonic_ns();
    sampler->file = path == NULL ? NULL : fopen(path, "we");
    EXPECT(path == NULL || sampler->file != NULL);
    if (sampler->file != NULL)
        write_head(sampler->file);
    return sampler;
}

static void write_process(FILE *file, const struct process *p)
{
    fprintf(file, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, p->rss_kib, p->anon_kib, p->threads,
            p->fds, p->maps);
}

/* Allocated bytes, without malloc's reserves. */
static void write_heap(FILE *file)
{
    struct mallinfo2 info = mallinfo2();
    fprintf(file, ",%zu", (info.uordblks + info.hblkhd) >> 10);
}

static void write_pool(FILE *file, struct lmcs_pool *pool)
{
    struct lmcs_pool_info info;
    OK(lmcs_pool_info(pool, &info, &err));
    fprintf(file, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64,
            info.used_bytes >> 10, info.live_bytes >> 10, info.metadata_bytes >> 10, info.metadata_free_bytes >> 10,
            disk_bytes(info.path) >> 10, info.snapshot_count, info.content_count, info.compaction_backlog);
}

/* Empty if no call was made. */
static void write_span(FILE *file, const struct spans *spans, enum span span)
{
    static const double shares[] = {0.5, 0.9, 0.99};
    for (int i = 0; i < 3; i++) {
        uint64_t ns = spans_quantile(spans, span, shares[i]);
        if (ns == 0)
            fprintf(file, ",");
        else
            fprintf(file, ",%.1f", (double)ns / 1000);
    }
}

void sampler_take(struct sampler *sampler, struct crew *crew, struct lmcs_pool *pool, uint64_t rounds, uint64_t calls)
{
    if (sampler->file == NULL)
        return;
    struct spans *spans = calloc(1, sizeof *spans);
    EXPECT(spans != NULL);
    crew_take_spans(crew, spans);
    fprintf(sampler->file, "%.1f,%" PRIu64 ",%" PRIu64, (double)(monotonic_ns() - sampler->start_ns) / 1e9, rounds,
            calls);
    struct process writer = look_at(getpid()), reader = {0};
    if (crew_reader(crew) != 0)
        reader = look_at(crew_reader(crew));
    write_process(sampler->file, &writer);
    write_process(sampler->file, &reader);
    write_heap(sampler->file);
    write_pool(sampler->file, pool);
    for (enum span span = 0; span < SPANS; span++)
        write_span(sampler->file, spans, span);
    fprintf(sampler->file, "\n");
    fflush(sampler->file);
    free(spans);
}

void sampler_end(struct sampler *sampler)
{
    if (sampler->file != NULL)
        fclose(sampler->file);
    free(sampler);
}
