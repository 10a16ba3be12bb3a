/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Files of a root tree that a package or an archive made, changed from outside. Its symbolic links are followed as the
 * guest would follow them: "/" is the tree's root, and nothing leads out of it. */

#include <sys/types.h>

#include "util.h"

/* Makes what is missing of the folders above it. What is at path is replaced. Owner is root. */
int tree_write(int root_fd, const char *path, const void *data, size_t size, mode_t mode);
/* A file, a symbolic link or a folder with all in it. mode (mode_t) -1: that of the source. */
int tree_copy(int root_fd, const char *path, const char *from, mode_t mode);
/* Makes a folder, unless it is there. */
int tree_mkdir(int root_fd, const char *path, mode_t mode);
/* Not an error when it isn't there, or in no folder. */
int tree_remove(int root_fd, const char *path);
/* Opens a folder for reading. */
int tree_open_folder(int root_fd, const char *path);
