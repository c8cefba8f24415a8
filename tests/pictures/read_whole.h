/* Reads the recorded files for the tests of pictures. */
#ifndef TESTS_PICTURES_READ_WHOLE_H
#define TESTS_PICTURES_READ_WHOLE_H

#include "base/file.h"
#include "tests/check.h"

#include <stdlib.h>

static const char *folder; /* folder of the files; set by main */

/* Returns the file's bytes; the caller frees them. */
static char *read_whole(const char *name, size_t *size) {
    struct error err = { 0 };
    char *path = file_join(folder, name), *bytes = NULL;
    CHECK(file_read(path, 1 << 20, &bytes, size, &err), "%s", err.message);
    free(path);
    return bytes;
}

#endif
