/* The recorded files that the tests of pictures read. */
#ifndef TESTS_PICTURES_READ_WHOLE_H
#define TESTS_PICTURES_READ_WHOLE_H

#include "base/file.h"
#include "tests/check.h"

#include <stdlib.h>

static const char *folder; /* of them; main's to say */

/* The caller frees it. */
static char *read_whole(const char *name, size_t *size) {
    struct error err = { 0 };
    char *path = file_join(folder, name), *bytes = NULL;
    CHECK(file_read(path, 1 << 20, &bytes, size, &err), "%s", err.message);
    free(path);
    return bytes;
}

#endif
