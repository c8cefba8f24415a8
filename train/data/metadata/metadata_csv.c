/* Reads metadata.csv with libcsv, which splits the bytes into rows and fields. */
#include "train/data/metadata/metadata.h"

#include "base/limits.h"
#include "train/data/metadata/metadata_rows.h"

#include <csv.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NO_COLUMN SIZE_MAX
#define COLUMNS_MAX 1024

enum { FILE_NAME, MASK, CAPTION, COLUMNS };

struct reader {
    struct metadata_rows rows;
    const struct metadata_columns *names; /* the columns that the caller asked for */
    const char *file;                     /* for counting lines */
    size_t size, counted, line;           /* `line` is the line of byte number `counted` */
    size_t at;                            /* approximate position of libcsv */
    size_t columns, field;
    size_t where[COLUMNS];
    char *value[COLUMNS]; /* owned; the current row's; NULL: none */
    size_t length[COLUMNS];
    bool has_header, failed;
    struct error *err;
};

static bool fail(struct reader *r) {
    r->failed = true;
    return error_prefix(r->err, "line %zu", r->line);
}

/* Counts lines in the bytes, because a quoted field may contain line breaks. */
static void count_lines(struct reader *r, size_t until) {
    for (; r->counted < until; r->counted++)
        r->line += r->file[r->counted] == '\n';
}

static bool is_text(const char *wanted, const void *field, size_t length) {
    return strlen(wanted) == length && memcmp(field, wanted, length) == 0;
}

static void read_header(struct reader *r, const void *field, size_t length) {
    const char *image = r->names->image, *caption = r->names->caption;
    int which = COLUMNS;
    if (is_text("mask_file_name", field, length))
        which = MASK;
    if (caption ? is_text(caption, field, length)
                : is_text("text", field, length) || is_text("caption", field, length))
        which = CAPTION;
    if (is_text(image ? image : "file_name", field, length))
        which = FILE_NAME;
    if (which == COLUMNS)
        return;
    if (r->where[which] != NO_COLUMN) {
        error_set(r->err, ERROR_INVALID, "the column %.*s comes again%s", (int)length,
            (const char *)field,
            which == CAPTION ? " (as \"text\" or \"caption\"): say which with caption_column" : "");
        fail(r);
    }
    r->where[which] = r->field;
}

static void end_header(struct reader *r) {
    r->has_header = true;
    r->columns = r->field;
    const struct metadata_columns *c = r->names;
    if (r->where[FILE_NAME] == NO_COLUMN && !c->image) {
        error_set(r->err, ERROR_INVALID, "its first line names no column file_name");
        fail(r);
    } else if (r->where[FILE_NAME] == NO_COLUMN) {
        error_field(r->err, "image_column", c->image, "a column that its first line names");
        r->failed = true;
    } else if (c->caption && r->where[CAPTION] == NO_COLUMN) {
        error_field(r->err, "caption_column", c->caption, "a column that its first line names");
        r->failed = true;
    }
}

static void keep(struct reader *r, int which, const void *field, size_t length) {
    char *copy = malloc(length + 1);
    if (!copy) {
        error_set(r->err, ERROR_NO_MEMORY, "no memory for a caption");
        fail(r);
        return;
    }
    memcpy(copy, field, length);
    free(r->value[which]);
    r->value[which] = copy;
    r->length[which] = length;
}

/* libcsv's callback for a field. `field` is NULL if it is empty and not quoted. */
static void on_field(void *field, size_t length, void *user) {
    struct reader *r = user;
    if (r->failed)
        return;
    if (!r->has_header && field)
        read_header(r, field, length);
    for (int i = 0; r->has_header && field && i < COLUMNS; i++)
        if (r->where[i] == r->field)
            keep(r, i, field, length);
    if (++r->field > COLUMNS_MAX) {
        error_set(r->err, ERROR_INVALID, "more than %d columns", COLUMNS_MAX);
        fail(r);
    }
}

static bool end_row(struct reader *r) {
    if (r->field != r->columns)
        return error_set(r->err, ERROR_INVALID, "%zu fields; the first line names %zu columns",
            r->field, r->columns);
    if (!r->value[FILE_NAME])
        return error_set(r->err, ERROR_INVALID, "it has no %.100s",
            r->names->image ? r->names->image : "file_name");
    return metadata_rows_add(&r->rows, r->line, r->value[FILE_NAME], r->length[FILE_NAME],
        r->value[MASK], r->length[MASK], r->value[CAPTION], r->length[CAPTION], r->err);
}

static void on_row(int end, void *user) {
    struct reader *r = user;
    (void)end;
    if (r->failed)
        return;
    if (!r->has_header)
        end_header(r);
    else if (!end_row(r))
        fail(r);
    for (int i = 0; i < COLUMNS; i++) {
        free(r->value[i]);
        r->value[i] = NULL;
    }
    r->field = 0;
}

/* Spaces are part of a field (RFC 4180). */
static int is_space(unsigned char c) {
    (void)c;
    return 0;
}

/* Parses in pieces that end at line ends, so that an error can name its line. */
static void parse(struct reader *r, struct csv_parser *csv) {
    while (!r->failed && r->at < r->size) {
        const char *bytes = r->file + r->at, *newline = memchr(bytes, '\n', r->size - r->at);
        const size_t length = newline ? (size_t)(newline - bytes) + 1 : r->size - r->at;
        count_lines(r, r->at);
        const size_t taken = csv_parse(csv, bytes, length, on_field, on_row, r);
        if (taken < length && !r->failed) {
            const bool memory = csv_error(csv) == CSV_ENOMEM;
            error_set(r->err, memory ? ERROR_NO_MEMORY : ERROR_INVALID,
                memory ? "no memory to read byte %zu"
                       : "a quote where none may be (RFC 4180), at its byte %zu",
                taken);
            fail(r);
        }
        r->at += length;
    }
    if (!r->failed && csv_fini(csv, on_field, on_row, r) != 0 && !r->failed) {
        error_set(r->err, ERROR_INVALID, "the quotes of its last field are not closed");
        fail(r);
    }
}

bool metadata_parse_csv(const char *file, size_t size, const struct metadata_columns *columns,
    struct metadata *out, struct error *err) {
    struct error own = { 0 };
    const size_t mark = utf8_mark_bytes(file, size);
    struct reader r = { .names = columns,
        .file = file + mark,
        .size = size - mark,
        .line = 1,
        .where = { NO_COLUMN, NO_COLUMN, NO_COLUMN },
        .err = err ? err : &own };
    struct csv_parser csv;
    *out = (struct metadata){ 0 };
    if (csv_init(&csv, CSV_STRICT | CSV_STRICT_FINI | CSV_EMPTY_IS_NULL) != 0)
        return error_set(err, ERROR_NO_MEMORY, "no memory to read CSV");
    csv_set_space_func(&csv, is_space);
    parse(&r, &csv);
    csv_free(&csv);
    for (int i = 0; i < COLUMNS; i++)
        free(r.value[i]);
    const bool ok = !r.failed && metadata_rows_end(&r.rows, out, err);
    metadata_rows_finish(&r.rows);
    return ok;
}
