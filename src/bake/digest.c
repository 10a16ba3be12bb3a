/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "digest.h"

#include <fcntl.h>
#include <fts.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <sys/stat.h>

struct digest {
        EVP_MD_CTX *context;
};

int digest_new(struct digest **ret) {
        _cleanup_(digest_freep) struct digest *d = calloc(1, sizeof(*d));

        if (!d)
                return -ENOMEM;
        d->context = EVP_MD_CTX_new();
        if (!d->context || !EVP_DigestInit_ex(d->context, EVP_sha256(), NULL))
                return -ENOMEM;
        *ret = TAKE_PTR(d);
        return 0;
}

struct digest *digest_free(struct digest *d) {
        if (!d)
                return NULL;
        EVP_MD_CTX_free(d->context);
        free(d);
        return NULL;
}

static int update(struct digest *d, const void *data, size_t size) {
        return EVP_DigestUpdate(d->context, data, size) ? 0 : -EIO;
}

static int begin(struct digest *d, const char *name, uint64_t size) {
        char head[32];
        int r;

        snprintf(head, sizeof(head), "%llu", (unsigned long long) size);
        r = update(d, name, strlen(name) + 1);
        return r < 0 ? r : update(d, head, strlen(head) + 1);
}

int digest_add(struct digest *d, const char *name, const void *data, size_t size) {
        int r = begin(d, name, size);

        return r < 0 ? r : update(d, data, size);
}

int digest_add_string(struct digest *d, const char *name, const char *value) {
        return digest_add(d, name, value, strlen(value));
}

static int add_file(struct digest *d, const char *name, const char *path) {
        _cleanup_free_ char *buffer = NULL;
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        size_t size = 256U * 1024U;
        uint64_t rest;
        struct stat st;
        int r;

        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        buffer = malloc(size);
        if (!buffer)
                return -ENOMEM;
        rest = (uint64_t) st.st_size;
        r = begin(d, name, rest);
        while (r >= 0 && rest > 0) {
                ssize_t n = read(fd, buffer, MIN(size, rest));

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0) /* it shrinks while it is read */
                        return n < 0 ? -errno : -ESTALE;
                r = update(d, buffer, (size_t) n);
                rest -= (uint64_t) n;
        }
        return r;
}

static int compare(const FTSENT **a, const FTSENT **b) {
        return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int add_entry(struct digest *d, const FTSENT *entry, size_t root_length) {
        char name[64], target[4096];
        ssize_t n;
        int r;

        if (entry->fts_info == FTS_DP)
                return 0;
        if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS)
                return -entry->fts_errno;
        r = digest_add_string(d, "path", entry->fts_path + root_length);
        if (r < 0)
                return r;
        snprintf(name, sizeof(name), "mode %o", entry->fts_statp->st_mode);
        if (S_ISREG(entry->fts_statp->st_mode))
                return add_file(d, name, entry->fts_accpath);
        if (!S_ISLNK(entry->fts_statp->st_mode))
                return digest_add(d, name, NULL, 0);
        n = readlink(entry->fts_accpath, target, sizeof(target));
        return n < 0 ? -errno : digest_add(d, name, target, (size_t) n);
}

int digest_add_path(struct digest *d, const char *name, const char *path) {
        char *paths[] = { (char *) path, NULL };
        struct stat st;
        FTSENT *entry;
        FTS *fts;
        int r;

        if (stat(path, &st) < 0)
                return -errno;
        if (!S_ISDIR(st.st_mode))
                return add_file(d, name, path);
        fts = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR | FTS_COMFOLLOW, compare);
        if (!fts)
                return -errno;
        r = begin(d, name, 0);
        errno = 0;
        while (r >= 0 && (entry = fts_read(fts)))
                r = add_entry(d, entry, strlen(path));
        if (r >= 0 && errno != 0)
                r = -errno;
        fts_close(fts);
        return r;
}

int digest_end(struct digest *d, char ret[DIGEST_HEX_SIZE]) {
        uint8_t value[EVP_MAX_MD_SIZE];
        unsigned size = 0;

        if (!EVP_DigestFinal_ex(d->context, value, &size) || size * 2 + 1 != DIGEST_HEX_SIZE)
                return -EIO;
        hex_encode(value, size, ret);
        return 0;
}
