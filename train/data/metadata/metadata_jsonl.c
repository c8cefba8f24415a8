#include "train/data/metadata/metadata.h"

#include "base/limits.h"
#include "base/text/json.h"
#include "train/data/metadata/metadata_rows.h"

#include <string.h>

struct reader {
    struct metadata_rows rows;
    const struct metadata_columns *columns;
    bool image_seen, caption_seen;
    size_t line;
};

/* Finds the row's captions. *out is NULL if the row has none. */
static bool find_captions(struct reader *r, const json_t *row, json_t **out, struct error *err) {
    json_t *text = json_object_get(row, "text"), *caption = json_object_get(row, "caption");
    if (r->columns->caption) {
        *out = json_object_get(row, r->columns->caption);
        r->caption_seen = r->caption_seen || *out;
        return true;
    }
    if (text && caption)
        return error_set(err, ERROR_INVALID,
            "it has both \"text\" and \"caption\": say which with caption_column");
    *out = text ? text : caption;
    return true;
}

static bool add(struct reader *r, const json_t *name, const json_t *mask, const json_t *caption,
    struct error *err) {
    char shown[80];
    if (caption && !json_is_string(caption))
        return error_set(err, ERROR_INVALID,
            "its caption is %s; a text is wanted, or a list of them",
            json_describe(caption, shown, sizeof(shown)));
    return metadata_rows_add(&r->rows, r->line, json_string_value(name), json_string_length(name),
        json_string_value(mask), json_string_length(mask), json_string_value(caption),
        json_string_length(caption), err);
}

static bool read_row(struct reader *r, const json_t *row, struct error *err) {
    const char *image = r->columns->image ? r->columns->image : "file_name";
    char shown[80];
    json_t *captions = NULL, *caption;
    size_t index;
    if (!json_is_object(row))
        return error_set(err, ERROR_INVALID, "%s is no object with \"%.100s\" and \"text\"",
            json_describe(row, shown, sizeof(shown)), image);
    const json_t *name = json_object_get(row, image);
    const json_t *mask = json_object_get(row, "mask_file_name");
    if (!name && r->columns->image && !r->image_seen)
        return error_field(err, "image_column", image, "a key that its rows have");
    r->image_seen = true;
    if (!json_is_string(name))
        return error_set(err, ERROR_INVALID, "its %.100s is %s; a text is wanted", image,
            json_describe(name, shown, sizeof(shown)));
    if (json_is_null(mask))
        mask = NULL;
    if (mask && !json_is_string(mask))
        return error_set(err, ERROR_INVALID, "its mask_file_name is %s; a text is wanted",
            json_describe(mask, shown, sizeof(shown)));
    if (!find_captions(r, row, &captions, err))
        return false;
    if (!json_is_array(captions) || json_array_size(captions) == 0) {
        const bool none = !captions || json_is_null(captions) || json_is_array(captions);
        return add(r, name, mask, none ? NULL : captions, err);
    }
    json_array_foreach(captions, index, caption) {
        if (!json_is_string(caption))
            return error_set(err, ERROR_INVALID, "its caption %zu is %s; a text is wanted", index,
                json_describe(caption, shown, sizeof(shown)));
        if (!add(r, name, mask, caption, err))
            return false;
    }
    return true;
}

static bool is_blank(const char *line, size_t length) {
    while (length > 0 && strchr(" \t\r", line[length - 1]) && line[length - 1])
        length--;
    return length == 0;
}

static bool read_lines(struct reader *r, const char *file, size_t size, struct error *err) {
    for (size_t at = utf8_mark_bytes(file, size); at < size; r->line++) {
        const char *line = file + at, *newline = memchr(line, '\n', size - at);
        const size_t length = newline ? (size_t)(newline - line) : size - at;
        at += length + 1;
        if (is_blank(line, length))
            continue;
        json_t *row = json_parse(line, length, err);
        const bool ok = row && read_row(r, row, err);
        json_decref(row);
        if (!ok)
            return error_prefix(err, "line %zu", r->line);
    }
    const char *caption = r->columns->caption;
    return !caption || r->caption_seen || r->rows.count == 0 ||
           error_field(err, "caption_column", caption, "a key that its rows have");
}

bool metadata_parse_jsonl(const char *file, size_t size, const struct metadata_columns *columns,
    struct metadata *out, struct error *err) {
    struct reader r = { .columns = columns, .line = 1 };
    *out = (struct metadata){ 0 };
    const bool ok = read_lines(&r, file, size, err) && metadata_rows_end(&r.rows, out, err);
    metadata_rows_finish(&r.rows);
    return ok;
}
