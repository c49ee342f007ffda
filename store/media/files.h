/* SPDX-License-Identifier: BSD-3-Clause */
/* media/files.h - files that are, or are to become, pools: their kinds, their space, and the process that uses them. */
#ifndef LMCS_MEDIA_FILES_H
#define LMCS_MEDIA_FILES_H

#include "base/error.h"

#define LMCS_NEW_MARK ".lmc-store-new-" /* and six letters after a pool's name: a pool that is being created */

bool lmcs_path_is_device(const char *path);
bool lmcs_path_is_poolset(const char *path);
/* Whether a file is on DAX: the kernel grants a synchronous mapping of it. */
bool lmcs_file_is_dax(int fd);
bool lmcs_file_is_in_memory(int fd);
/* Allocates file space for a range, so that stores to it can't fail. On DAX the space is also filled with zeros. */
enum lmcs_status lmcs_file_back(int fd, const char *path, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
/* Makes the names in the folder of `path` durable, as far as the file system can. */
enum lmcs_status lmcs_sync_folder_of(const char *path, struct lmcs_error *error);
/* Removes files beside `path` that processes left when they were killed while they created a pool there. */
void lmcs_remove_forgotten(const char *path);
/* Returns LMCS_IN_USE, and names the process that has the flock of the file where the kernel reveals it. */
enum lmcs_status lmcs_fail_in_use(const char *path, struct lmcs_error *error);

#endif
