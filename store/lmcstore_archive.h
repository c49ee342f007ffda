/* SPDX-License-Identifier: BSD-3-Clause */
/* lmcstore_archive.h - archives and safetensors files. Included by lmcstore.h, which has the conventions. */
#ifndef LMCSTORE_ARCHIVE_H
#define LMCSTORE_ARCHIVE_H

#ifndef LMCSTORE_H
#error "include lmcstore.h, which includes this header"
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct lmcs_transfer_report {
    uint64_t snapshots;         /* written, or added */
    uint64_t snapshots_skipped; /* already in the pool */
    uint64_t snapshots_lost;    /* dump: left out because of lost blocks */
    uint64_t contents;
    uint64_t contents_found;  /* restore: that the pool had; dump: that older archives have */
    uint64_t bytes;           /* of the archive or file */
    uint64_t left_out;        /* export: entries that the format can't hold */
    char left_out_names[512]; /* the first of them, comma-separated */
    char warnings[1024];      /* dump, restore: one in a line, each ending with a newline */
};

/*
 * Writes a shelf (NULL: all) as an archive (store/ARCHIVE.md) to a descriptor, which may be a pipe. Payloads keep their
 * stored form, bases first.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_dump(struct lmcs_pool *pool, const char *shelf, int fd,
                                                   const struct lmcs_progress *progress,
                                                   struct lmcs_transfer_report *report, struct lmcs_error *error);
/*
 * Reads an archive from a descriptor, which may be a pipe, into a pool. Verifies every checksum before the one commit
 * that shows all of it; a failure leaves the pool unchanged. Snapshots that an existing shelf has (same number, same
 * digest) are skipped, others added; one with some of the tensors is completed. LMCS_EXISTS: a number has other
 * contents, or the shelf of the name was begun apart from the archive's (store/ARCHIVE.md, 4.4).
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_restore(struct lmcs_pool *pool, int fd,
                                                      const struct lmcs_progress *progress,
                                                      struct lmcs_transfer_report *report, struct lmcs_error *error);

struct lmcs_dump_options {
    const char *const *addresses; /* only these: "run", "run@7", "run@best", "run@5..9". None: everything */
    size_t address_count;
    const int *since; /* older archives (files): their contents are left out, and needed to restore this one */
    size_t since_count;
    bool canonical; /* the same bytes for the same contents in any stored form: entries by name, payloads raw */
    bool resume;    /* the file may contain the beginning of this archive: check and continue it */
    bool skip_lost; /* leave out snapshots with lost blocks, instead of failing */
    bool as_stored; /* of a part: bases outside are included also where whole contents take less */
    bool alone;     /* each content is coded without bases */
};
LMCS_API void lmcs_dump_options_init(struct lmcs_dump_options *options);
/*
 * The same for a part, or since older archives. Bases outside of the part are included unless sending the contents that
 * rest on them whole takes less. `resume` keeps the file up to its last complete snapshot and sends the rest as the
 * pool is now; snapshots taken since then on a shelf that the file has begun are left for another archive. A complete
 * archive of the same part stays; bytes after its end are cut off. LMCS_INVALID: it is an archive of another part, or
 * lacks something that would precede its last record. LMCS_DAMAGED: it is complete and damaged, and stays as it is.
 * What damage takes from an incomplete one is in the report's warnings. LMCS_IN_USE: another dump continues the file,
 * which is locked (flock) until this returns. `options` NULL: everything.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_dump_with(struct lmcs_pool *pool, const struct lmcs_dump_options *options,
                                                        int fd, const struct lmcs_progress *progress,
                                                        struct lmcs_transfer_report *report, struct lmcs_error *error);

/* Receives the next bytes of an archive, in the calling thread; they are valid until it returns. False: stop. */
typedef bool (*lmcs_archive_write_fn)(void *context, const void *bytes, size_t count);
/*
 * The same to a function in place of a descriptor. LMCS_CANCELLED: it returned false. LMCS_INVALID: `resume`, which
 * needs a file. The function must not call the pool.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_dump_to(struct lmcs_pool *pool, const struct lmcs_dump_options *options,
                                                      lmcs_archive_write_fn write, void *context,
                                                      const struct lmcs_progress *progress,
                                                      struct lmcs_transfer_report *report, struct lmcs_error *error);

struct lmcs_restore_options {
    const char *const *addresses; /* only these: "run", "run@7", "run@best", "run@5..9". None: everything */
    size_t address_count;
    const char *const *only; /* only these tensors: names, or patterns with * and ?; no attachments. None: all */
    size_t only_count;
    const char *as; /* name of the restored shelf, which must be the only one. NULL: its own */
    bool move_tags; /* tags move to where the archive has them; else existing tags stay */
    bool resume;    /* after a failure or a crash, arrived snapshots stay hidden for the next restore
                       with resume; one without it removes them first */
};
LMCS_API void lmcs_restore_options_init(struct lmcs_restore_options *options);
/*
 * The same with several archives, in order, and one commit for all. The last archive that has a shelf decides on its
 * name and tags; a shelf whose name another one has in a later archive is left out, with a warning in the report. An
 * archive made since others needs their contents, from these archives or the pool; LMCS_NOT_FOUND names the missing
 * one. Contents of the pool are shared, not written again. If one is removed or replaced meanwhile, the restore starts
 * again, or fails with LMCS_NOT_FOUND if an archive is a pipe. A part (addresses, only) needs one archive, as a file,
 * of which the rest is not read. With `resume`, the archive is read again, but arrived snapshots are not written or
 * decoded again, except the last of a shelf. Nothing of a damaged archive is kept. A restore owns its shelves until it
 * ends; captures on them wait. LMCS_IN_USE: waiting for a shelf would be a deadlock. `options` NULL: everything, under
 * its own name.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_restore_with(struct lmcs_pool *pool, const int *fds, size_t count,
                                                           const struct lmcs_restore_options *options,
                                                           const struct lmcs_progress *progress,
                                                           struct lmcs_transfer_report *report,
                                                           struct lmcs_error *error);

/* Puts the next bytes of an archive, at most `most`, into `to`, in the calling thread. *got 0: its end. False: stop. */
typedef bool (*lmcs_archive_read_fn)(void *context, void *to, size_t most, size_t *got);
/* The same with one archive from a function, as from a pipe. LMCS_CANCELLED: it returned false. It must not call the
 * pool. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_restore_from(struct lmcs_pool *pool, lmcs_archive_read_fn read,
                                                           void *context, const struct lmcs_restore_options *options,
                                                           const struct lmcs_progress *progress,
                                                           struct lmcs_transfer_report *report,
                                                           struct lmcs_error *error);

#define LMCS_MAX_SINCE 8 /* older archives in lmcs_archive_info */

struct lmcs_archive_info {
    struct lmc_hash id; /* of this archive */
    uint64_t bytes;
    uint64_t shelves;
    uint64_t snapshots;
    uint64_t tags;
    uint64_t contents;
    uint64_t known_contents;   /* of them, in older archives */
    uint64_t decoded_contents; /* verify: of them, decoded */
    size_t since_count;        /* needed older archives */
    struct lmc_hash since[LMCS_MAX_SINCE];
};

/* Pointers are valid during the visit. */
struct lmcs_archived {
    const char *shelf;
    uint64_t number;
    int64_t step;
    uint64_t time_ns;
    uint64_t parent;
    uint64_t tensor_count;
    uint64_t raw_bytes;
    uint64_t new_contents; /* that arrive with it */
    uint64_t new_bytes;    /* their stored bytes in the archive */
    const char *const *tags;
    size_t tag_count;
    const struct lmcs_metric *metrics; /* none if the metadata is an attachment */
    size_t metric_count;
    unsigned char group[16]; /* all 0: none */
};
/*
 * Lists the snapshots of an archive, without a pool, after reading all of it (a file without its payloads). `visit`
 * returns false to stop. `visit` and `info` may be NULL.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_archive_list(
    int fd, bool (*visit)(void *context, const struct lmcs_archived *snapshot), void *context,
    const struct lmcs_progress *progress, struct lmcs_archive_info *info, struct lmcs_error *error);
/*
 * Verifies an archive, without a pool: every record and, of a file, every content, decoded and compared with its
 * digest. Of contents that rest on an older archive, only the frames' headers and the checksums of their blocks.
 * LMCS_DAMAGED: the message locates the first damage. `info` may be NULL.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_archive_verify(int fd, const struct lmcs_progress *progress,
                                                             struct lmcs_archive_info *info, struct lmcs_error *error);
/* Makes a snapshot of a file, whose metadata becomes {"safetensors": {...}}. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_import_safetensors(struct lmcs_pool *pool, const char *shelf,
                                                                 const char *path,
                                                                 const struct lmcs_commit_options *options,
                                                                 const struct lmcs_progress *progress, uint64_t *number,
                                                                 struct lmcs_error *error);
/*
 * Writes a snapshot as a safetensors file: mode 0600, complete or absent (rename after fsync); "-": standard output.
 * `part`: NULL, or only the tensors under this dotted prefix, which is stripped. The metadata has "format": "pt" and
 * the source. Attachments are left out.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_export_safetensors(struct lmcs_snapshot *snapshot, const char *part,
                                                                 const char *path, const struct lmcs_progress *progress,
                                                                 struct lmcs_transfer_report *report,
                                                                 struct lmcs_error *error);

#ifdef __cplusplus
}
#endif

#endif
