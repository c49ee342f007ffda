/* SPDX-License-Identifier: BSD-3-Clause */
/* media/files.h - files that are, or are to become, pools: their kinds, space, and users. */
#ifndef LMCS_MEDIA_FILES_H
#define LMCS_MEDIA_FILES_H

#include "base/error.h"

#define LMCS_NEW_MARK ".lmc-store-new-" /* and six letters after a pool's name: one being created */

bool lmcs_path_is_device(const char *path);
bool lmcs_path_is_poolset(const char *path);
/* The kernel grants a synchronous mapping. */
bool lmcs_file_is_dax(int fd);
bool lmcs_file_is_in_memory(int fd);
/* Allocates file space, so that stores can't fail; fills it with zeros on DAX. */
enum lmcs_status lmcs_file_back(int fd, const char *path, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
/* Makes the names in its folder durable, as far as the file system can. */
enum lmcs_status lmcs_sync_folder_of(const char *path, struct lmcs_error *error);
/* Removes files beside `path` of processes killed while creating a pool there. */
void lmcs_remove_forgotten(const char *path);
/* LMCS_IN_USE, with the process that has the file's flock, if known. */
enum lmcs_status lmcs_fail_in_use(const char *path, struct lmcs_error *error);

#endif
