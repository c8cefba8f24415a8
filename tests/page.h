/* Tables in pages of docs/ that are made from tables in the program. */
#ifndef TESTS_PAGE_H
#define TESTS_PAGE_H

#include "base/file.h"
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Checks that the page ends with `table`, right behind `marker`. With `write`, replaces everything
 * behind `marker` by `table` instead. */
static void page_table(const char *path, const char *marker, const char *table, bool write) {
    char *page = NULL;
    size_t size;
    struct error err = { 0 };
    CHECK(file_read(path, 1 << 20, &page, &size, &err), "%s", err.message);
    char *at = page ? strstr(page, marker) : NULL;
    CHECK(at, "%s has no table", path);
    if (at && write) {
        FILE *file = fopen(path, "w");
        fprintf(file, "%.*s%s%s", (int)(at - page), page, marker, table);
        fclose(file);
    } else if (at) {
        CHECK(strcmp(at + strlen(marker), table) == 0,
            "the table of %s differs from the code's fields: run this test with %s --write", path,
            path);
    }
    free(page);
}

#endif
