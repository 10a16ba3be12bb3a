/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Gives every file of the named directories (or files) to a fuzz target, so that the corpus runs as an ordinary test
 * where no fuzzer is linked. Each input sits in a block of exactly its size: a sanitizer sees a read past the end. */

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned n_inputs;

static int replay_file(const char *path) {
        FILE *f = fopen(path, "re");
        struct stat st;

        if (!f || fstat(fileno(f), &st) < 0) {
                perror(path);
                if (f)
                        fclose(f);
                return -1;
        }

        size_t size = (size_t) st.st_size;
        uint8_t *data = malloc(size ? size : 1);
        int r = data && fread(data, 1, size, f) == size ? 0 : -1;

        fclose(f);
        if (r < 0)
                fprintf(stderr, "%s: cannot read it whole\n", path);
        else {
                /* Named first: after a crash the last line says which input it was. */
                fprintf(stderr, "%s\n", path);
                (void) LLVMFuzzerTestOneInput(data, size);
                n_inputs++;
        }
        free(data);
        return r;
}

static int replay_directory(const char *path) {
        DIR *d = opendir(path);
        struct dirent *entry;
        int r = 0;

        if (!d) {
                perror(path);
                return -1;
        }
        while ((entry = readdir(d))) {
                char file[4096];

                if (entry->d_name[0] == '.')
                        continue;
                snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
                if (replay_file(file) < 0)
                        r = -1;
        }
        closedir(d);
        return r;
}

int main(int argc, char *argv[]) {
        int failed = 0;

        for (int i = 1; i < argc; i++) {
                struct stat st;
                int is_directory = stat(argv[i], &st) >= 0 && S_ISDIR(st.st_mode);

                if ((is_directory ? replay_directory(argv[i]) : replay_file(argv[i])) < 0)
                        failed = 1;
        }
        if (n_inputs == 0) {
                fprintf(stderr, "usage: %s CORPUS-DIRECTORY…, with at least one input\n", argv[0]);
                return 2;
        }
        fprintf(stderr, "%u inputs\n", n_inputs);
        return failed;
}
