/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A root tree is hostile: its links must not lead what a bake writes out of it. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "tree.h"

struct fixture {
        char base[64]; /* has root/ and outside/ */
        int base_fd, root_fd;
};

static int setup(void **state) {
        struct fixture *f = calloc(1, sizeof(*f));

        strcpy(f->base, "/tmp/test-tree-XXXXXX");
        assert_non_null(mkdtemp(f->base));
        f->base_fd = open(f->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(mkdirat(f->base_fd, "root", 0755), 0);
        assert_int_equal(mkdirat(f->base_fd, "outside", 0755), 0);
        f->root_fd = openat(f->base_fd, "root", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(f->root_fd >= 0);
        *state = f;
        return 0;
}

static int teardown(void **state) {
        struct fixture *f = *state;
        char command[128];

        close(f->root_fd);
        close(f->base_fd);
        snprintf(command, sizeof(command), "rm -rf %s", f->base);
        assert_int_equal(system(command), 0);
        free(f);
        return 0;
}

static void has(struct fixture *f, const char *path, const char *want) {
        _cleanup_free_ char *text = NULL;

        assert_int_equal(read_file_at(f->base_fd, path, 4096, &text, NULL), 0);
        assert_string_equal(text, want);
}

static void is_empty(struct fixture *f, const char *path) {
        struct stat st;

        assert_int_equal(fstatat(f->base_fd, path, &st, 0), 0);
        assert_int_equal(st.st_nlink, 2);
        assert_int_equal(unlinkat(f->base_fd, path, AT_REMOVEDIR), 0);
        assert_int_equal(mkdirat(f->base_fd, path, 0755), 0);
}

static void test_write(void **state) {
        struct fixture *f = *state;
        struct stat st;

        assert_int_equal(tree_write(f->root_fd, "/a/b/c", "x", 1, 0640), 0);
        has(f, "root/a/b/c", "x");
        assert_int_equal(fstatat(f->base_fd, "root/a/b/c", &st, 0), 0);
        assert_int_equal(st.st_mode & 07777, 0640);
        assert_int_equal(tree_write(f->root_fd, "a/b/c", "longer", 6, 04755), 0);
        has(f, "root/a/b/c", "longer");
        assert_int_equal(tree_write(f->root_fd, "top", "y", 1, 0644), 0);
        has(f, "root/top", "y");
        assert_int_equal(tree_write(f->root_fd, "a/b/..", "y", 1, 0644), -EINVAL);
        assert_int_equal(tree_write(f->root_fd, "top/x", "y", 1, 0644), -ENOTDIR);
}

static void test_links(void **state) {
        struct fixture *f = *state;
        char absolute[128];

        snprintf(absolute, sizeof(absolute), "%s/outside", f->base);
        assert_int_equal(symlinkat("../outside", f->root_fd, "up"), 0);
        assert_int_equal(symlinkat(absolute, f->root_fd, "absolute"), 0);
        assert_int_equal(symlinkat("../outside/file", f->root_fd, "file"), 0);
        assert_int_equal(symlinkat("/usr/bin", f->root_fd, "bin"), 0);

        /* "..": of the root is the root; the folder isn't there, and is not made through a link. */
        assert_true(tree_write(f->root_fd, "up/x", "x", 1, 0644) < 0);
        assert_true(tree_write(f->root_fd, "absolute/x", "x", 1, 0644) < 0);
        is_empty(f, "outside");
        /* A link at the end is replaced and not followed. */
        assert_int_equal(tree_write(f->root_fd, "file", "x", 1, 0644), 0);
        has(f, "root/file", "x");
        is_empty(f, "outside");
        /* As the guest would follow it. */
        assert_int_equal(tree_mkdir(f->root_fd, "usr/bin", 0755), 0);
        assert_int_equal(tree_write(f->root_fd, "bin/tool", "x", 1, 0755), 0);
        has(f, "root/usr/bin/tool", "x");
        assert_int_equal(tree_remove(f->root_fd, "bin/tool"), 0);
        assert_int_equal(tree_remove(f->root_fd, "bin/tool"), 0);
        assert_int_equal(tree_remove(f->root_fd, "nothing/tool"), 0);
        assert_true(faccessat(f->base_fd, "root/usr/bin/tool", F_OK, 0) < 0);
}

static void test_copy(void **state) {
        struct fixture *f = *state;
        char from[128], target[16] = "";
        struct stat st;

        assert_int_equal(mkdirat(f->base_fd, "source", 0750), 0);
        assert_int_equal(mkdirat(f->base_fd, "source/sub", 0755), 0);
        assert_int_equal(write_file_atomic_at(f->base_fd, "source/sub/file", "data", 4, 0600), 0);
        assert_int_equal(symlinkat("sub/file", openat(f->base_fd, "source", O_RDONLY | O_CLOEXEC), "link"), 0);
        snprintf(from, sizeof(from), "%s/source", f->base);
        assert_int_equal(tree_copy(f->root_fd, "/srv/data", from, (mode_t) -1), 0);
        has(f, "root/srv/data/sub/file", "data");
        assert_int_equal(fstatat(f->base_fd, "root/srv/data", &st, 0), 0);
        assert_int_equal(st.st_mode & 07777, 0750);
        assert_int_equal(readlinkat(f->base_fd, "root/srv/data/link", target, sizeof(target) - 1), 8);
        assert_string_equal(target, "sub/file");
        /* Again, over what is there. */
        assert_int_equal(tree_copy(f->root_fd, "/srv/data", from, 0700), 0);
        assert_int_equal(fstatat(f->base_fd, "root/srv/data", &st, 0), 0);
        assert_int_equal(st.st_mode & 07777, 0700);

        /* A link of the tree in the place of a folder to be copied into. */
        assert_int_equal(symlinkat("../../outside", openat(f->root_fd, "srv", O_RDONLY | O_CLOEXEC), "trap"), 0);
        assert_true(tree_copy(f->root_fd, "/srv/trap", from, (mode_t) -1) < 0);
        is_empty(f, "outside");

        snprintf(from, sizeof(from), "%s/source/fifo", f->base);
        assert_int_equal(mkfifo(from, 0600), 0);
        assert_int_equal(tree_copy(f->root_fd, "/srv/fifo", from, (mode_t) -1), -EMEDIUMTYPE);
        assert_int_equal(tree_copy(f->root_fd, "/srv/none", "/nonexistent", (mode_t) -1), -ENOENT);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_write, setup, teardown),
                cmocka_unit_test_setup_teardown(test_links, setup, teardown),
                cmocka_unit_test_setup_teardown(test_copy, setup, teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
