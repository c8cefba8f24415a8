/* Runs a fuzz target once on every file of a folder: its corpus, and every input that ever crashed
 * it. */
#include "base/file.h"
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    int files = 0;
    if (!dir) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        struct error err = { 0 };
        char *path = file_join(argv[1], e->d_name), *bytes;
        size_t size;
        if (e->d_name[0] != '.' && path) {
            if (!file_read(path, 1 << 20, &bytes, &size, &err)) {
                printf("%s\n", err.message);
                return 1;
            }
            LLVMFuzzerTestOneInput((const uint8_t *)bytes, size);
            free(bytes);
            files++;
        }
        free(path);
    }
    closedir(dir);
    printf("%d files replayed\n", files);
    return files > 0 ? 0 : 1;
}
