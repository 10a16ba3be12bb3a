/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The fields are described in the kernel's Documentation/arch/x86/boot.rst; the note in Xen's elfnote.h. */

#include "kernel.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "process.h"

#define SETUP_SECTORS 0x1f1
#define SETUP_MAGIC 0x202
#define SETUP_VERSION 0x206
#define PAYLOAD_OFFSET 0x248
#define PAYLOAD_LENGTH 0x24c
#define HEADER_SIZE 0x250
#define NOTE_PHYS32_ENTRY 18U

static uint32_t read_le32(const uint8_t *p) {
        return p[0] | (uint32_t) p[1] << 8 | (uint32_t) p[2] << 16 | (uint32_t) p[3] << 24;
}

int kernel_find_payload(const void *header, size_t size, struct kernel_payload *ret) {
        const uint8_t *h = header;
        uint64_t sectors;

        /* From version 2.08 of the protocol on. */
        if (size < HEADER_SIZE || memcmp(h + SETUP_MAGIC, "HdrS", 4) != 0 ||
            (h[SETUP_VERSION] | h[SETUP_VERSION + 1] << 8) < 0x208)
                return -ENOEXEC;
        sectors = h[SETUP_SECTORS] ?: 4U;
        ret->offset = (sectors + 1) * 512 + read_le32(h + PAYLOAD_OFFSET);
        /* The size of the unpacked kernel is appended to the stream. */
        ret->size = read_le32(h + PAYLOAD_LENGTH);
        if (ret->size <= 4)
                return -ENOEXEC;
        ret->size -= 4;
        return 0;
}

/* Walks the notes of one segment. */
static bool find_note(const uint8_t *p, size_t size) {
        while (size >= sizeof(Elf64_Nhdr)) {
                Elf64_Nhdr note;
                uint64_t name, all;

                memcpy(&note, p, sizeof(note));
                name = ((uint64_t) note.n_namesz + 3) & ~3ULL;
                all = sizeof(note) + name + (((uint64_t) note.n_descsz + 3) & ~3ULL);
                if (all > size)
                        return false;
                if (note.n_type == NOTE_PHYS32_ENTRY && note.n_namesz == 4 && memcmp(p + sizeof(note), "Xen", 4) == 0)
                        return true;
                p += all;
                size -= all;
        }
        return false;
}

bool kernel_has_pvh(const void *image, size_t size) {
        Elf64_Ehdr header;

        if (size < sizeof(header))
                return false;
        memcpy(&header, image, sizeof(header));
        if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
            header.e_phentsize != sizeof(Elf64_Phdr))
                return false;
        for (unsigned i = 0; i < header.e_phnum; i++) {
                uint64_t offset = header.e_phoff + i * sizeof(Elf64_Phdr);
                Elf64_Phdr segment;

                if (header.e_phoff > size || offset > size - sizeof(segment))
                        return false;
                memcpy(&segment, (const uint8_t *) image + offset, sizeof(segment));
                if (segment.p_type != PT_NOTE || segment.p_offset > size || segment.p_filesz > size - segment.p_offset)
                        continue;
                if (find_note((const uint8_t *) image + segment.p_offset, segment.p_filesz))
                        return true;
        }
        return false;
}

/* Cuts the stream out into a file of its own. Returns 1, or 0 when it isn't zstd's. */
static int cut_payload(const char *path, const char *to) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC), to_fd = -1;
        struct kernel_payload payload;
        uint8_t header[HEADER_SIZE];
        const uint8_t *data;
        struct stat st;
        int r;

        if (fd < 0 || fstat(fd, &st) < 0 || pread(fd, header, sizeof(header), 0) < 0)
                return -errno;
        r = st.st_size < HEADER_SIZE ? -ENOEXEC : kernel_find_payload(header, sizeof(header), &payload);
        if (r < 0 || payload.offset > (uint64_t) st.st_size || payload.size > (uint64_t) st.st_size - payload.offset)
                return 0;
        data = mmap(NULL, (size_t) st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
                return -errno;
        r = payload.size > 4 && read_le32(data + payload.offset) == 0xfd2fb528U;
        if (r > 0) {
                to_fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
                r = to_fd < 0 ? -errno : write_all(to_fd, data + payload.offset, payload.size);
                r = r < 0 ? r : 1;
        }
        (void) munmap((void *) data, (size_t) st.st_size);
        return r;
}

static int check_pvh(const char *path) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        struct stat st;
        void *data;
        bool pvh;

        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (st.st_size == 0)
                return 0;
        data = mmap(NULL, (size_t) st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
                return -errno;
        pvh = kernel_has_pvh(data, (size_t) st.st_size);
        (void) munmap(data, (size_t) st.st_size);
        return pvh;
}

int kernel_unpack(int interrupt_fd, const char *path, const char *folder) {
        _cleanup_free_ char *packed = NULL, *unpacked = NULL, *tail = NULL;
        int r;

        if (asprintf(&packed, "%s/vmlinux.zst", folder) < 0 || asprintf(&unpacked, "%s/vmlinux", folder) < 0)
                return -ENOMEM;
        r = cut_payload(path, packed);
        if (r > 0) {
                char *argv[] = { (char *) "zstd", (char *) "-q", (char *) "-d", (char *) "-f",
                                 (char *) "--rm", packed,        NULL };

                r = process_run(interrupt_fd, argv, 60 * USEC_PER_SEC, &tail);
                r = r == -ENOENT || r == -EPROTO ? 0 : r < 0 ? r : 1;
        }
        return r > 0 ? check_pvh(unpacked) : r;
}
