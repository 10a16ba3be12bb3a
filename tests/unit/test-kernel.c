/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "kernel.h"
#include "memory.h"

static void test_payload(void **state) {
        uint8_t header[0x250] = {};
        struct kernel_payload payload;

        assert_int_equal(kernel_find_payload(header, sizeof(header), &payload), -ENOEXEC);
        memcpy(header + 0x202, "HdrS", 4);
        header[0x206] = 0x0f;
        header[0x207] = 0x02;
        header[0x1f1] = 27;
        header[0x249] = 0x01; /* 256 */
        header[0x24e] = 0x80; /* 8 MiB */
        assert_int_equal(kernel_find_payload(header, sizeof(header), &payload), 0);
        assert_int_equal(payload.offset, 28 * 512 + 256);
        assert_int_equal(payload.size, (8 << 20) - 4);
        assert_int_equal(kernel_find_payload(header, sizeof(header) - 1, &payload), -ENOEXEC);
        header[0x1f1] = 0; /* means 4, of old */
        assert_int_equal(kernel_find_payload(header, sizeof(header), &payload), 0);
        assert_int_equal(payload.offset, 5 * 512 + 256);
        header[0x206] = 0x07;
        assert_int_equal(kernel_find_payload(header, sizeof(header), &payload), -ENOEXEC);
}

struct image {
        Elf64_Ehdr header;
        Elf64_Phdr segment;
        Elf64_Nhdr first;
        char first_data[8];
        Elf64_Nhdr second;
        char name[4];
        uint64_t entry;
};

static struct image make_image(void) {
        struct image i = {
                .header = { .e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64 },
                            .e_phoff = offsetof(struct image, segment),
                            .e_phentsize = sizeof(Elf64_Phdr),
                            .e_phnum = 1 },
                .segment = { .p_type = PT_NOTE,
                             .p_offset = offsetof(struct image, first),
                             .p_filesz = sizeof(struct image) - offsetof(struct image, first) },
                .first = { .n_namesz = 4, .n_descsz = 3, .n_type = 18 },
                .first_data = "GNU",
                .second = { .n_namesz = 4, .n_descsz = 8, .n_type = 18 },
                .name = "Xen",
        };

        return i;
}

static void test_pvh(void **state) {
        struct image i = make_image();

        assert_true(kernel_has_pvh(&i, sizeof(i)));
        assert_false(kernel_has_pvh(&i, sizeof(i) - 1));
        assert_false(kernel_has_pvh(&i, 10));
        i.second.n_type = 17;
        assert_false(kernel_has_pvh(&i, sizeof(i)));
        i = make_image();
        i.first.n_descsz = UINT32_MAX;
        assert_false(kernel_has_pvh(&i, sizeof(i)));
        i = make_image();
        i.segment.p_offset = UINT64_MAX - 4;
        assert_false(kernel_has_pvh(&i, sizeof(i)));
        i = make_image();
        i.header.e_phoff = UINT64_MAX - 16;
        assert_false(kernel_has_pvh(&i, sizeof(i)));
        i = make_image();
        i.header.e_phnum = UINT16_MAX;
        i.segment.p_type = PT_LOAD;
        assert_false(kernel_has_pvh(&i, sizeof(i)));
        i = make_image();
        i.header.e_ident[EI_CLASS] = ELFCLASS32;
        assert_false(kernel_has_pvh(&i, sizeof(i)));
}

/* What isn't zero arrives, at its place; the rest are holes. */
static void test_memory(void **state) {
        uint64_t size = 8 << 20, written;
        _cleanup_close_ int from = -1, to = -1;
        uint8_t *a, *b;

        from = memory_new("test", size, getuid());
        to = memfd_create("to", MFD_CLOEXEC);
        assert_true(from >= 0 && to >= 0);
        a = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, from, 0);
        assert_ptr_not_equal(a, MAP_FAILED);
        a[0] = 1;
        a[4096 * 3 + 4095] = 2;
        a[4096 * 4] = 3;
        a[4096 * 9] = 0; /* touched, and zero */
        memset(a + (2 << 20), 4, 3 << 20);
        a[size - 1] = 5;
        assert_int_equal(memory_store(from, to, size, &written), 0);
        assert_int_equal(written, 4 * 4096 + (3 << 20));
        /* Before it is mapped: that makes pages of holes here. */
        assert_int_equal(lseek(to, 4096, SEEK_DATA), 3 * 4096);
        b = mmap(NULL, size, PROT_READ, MAP_SHARED, to, 0);
        assert_memory_equal(a, b, size);
        munmap(a, size);
        munmap(b, size);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_payload),
                cmocka_unit_test(test_pvh),
                cmocka_unit_test(test_memory),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
