#include "train/data/metadata/metadata.h"

#include "base/limits.h"
#include "base/list.h"
#include "base/text/utf8.h"
#include "train/data/metadata/metadata_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool data_path_check(const char *path, size_t length, struct error *err) {
    char shown[128];
    snprintf(shown, sizeof(shown), "%.*s", (int)(length < 127 ? length : 127), path);
    utf8_drop_cut_character(shown);
    if (length == 0 || length > DATASET_PATH_MAX_BYTES)
        return error_set(err, ERROR_INVALID, "a file name of %zu bytes; 1 to %d are taken", length,
            DATASET_PATH_MAX_BYTES);
    if (utf8_valid_bytes(path, length) < length)
        return error_set(err, ERROR_INVALID, "a file name that is not UTF-8");
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)path[i] < 0x20 || path[i] == 0x7f)
            return error_set(err, ERROR_INVALID, "a file name with the control character %02x",
                (unsigned char)path[i]);
    if (path[0] == '/')
        return error_set(err, ERROR_INVALID,
            "the file name %s is absolute; it must be relative to its folder", shown);
    for (size_t i = 0; i <= length;) {
        const char *slash = memchr(path + i, '/', length - i);
        const size_t part = slash ? (size_t)(slash - path) - i : length - i;
        if (part == 2 && memcmp(path + i, "..", 2) == 0)
            return error_set(
                err, ERROR_INVALID, "the file name %s leads out of its folder (..)", shown);
        if (part == 0 || (part == 1 && path[i] == '.') || part > 255)
            return error_set(err, ERROR_INVALID,
                "the file name %s has an empty part, \".\" or one of more than 255 bytes", shown);
        i += part + 1;
    }
    return true;
}

/* Adds a path. Adjacent entries with the same path share one copy, because a path may have many
 * captions of as little as two bytes each. */
static bool add_path(struct metadata_rows *rows, const char *before, const char *path, size_t bytes,
    const char **out, struct error *err) {
    if (before && strlen(before) == bytes && memcmp(before, path, bytes) == 0) {
        *out = before;
        return true;
    }
    return data_path_check(path, bytes, err) && (*out = texts_add(&rows->texts, path, bytes, err));
}

bool metadata_rows_add(struct metadata_rows *rows, size_t line, const char *name, size_t name_bytes,
    const char *mask, size_t mask_bytes, const char *caption, size_t caption_bytes,
    struct error *err) {
    if (rows->count == DATASET_CAPTIONS_MAX)
        return error_set(err, ERROR_TOO_LARGE, "more than %d captions", DATASET_CAPTIONS_MAX);
    if (!LIST_ROOM(rows->entries, rows->count, "captions", err))
        return false;
    static const struct metadata_entry none;
    struct metadata_entry *entry = &rows->entries[rows->count];
    const struct metadata_entry *before = rows->count > 0 ? entry - 1 : &none;
    *entry = (struct metadata_entry){ .order = rows->count, .line = line };
    if (!add_path(rows, before->file_name, name, name_bytes, &entry->file_name, err) ||
        (mask &&
            !add_path(rows, before->mask_file_name, mask, mask_bytes, &entry->mask_file_name, err)))
        return false;
    if (caption && (!caption_check(caption, caption_bytes, err) ||
                       !(entry->caption = texts_add(&rows->texts, caption, caption_bytes, err))))
        return false;
    rows->count++;
    return true;
}

static int by_name(const void *a, const void *b) {
    const struct metadata_entry *x = a, *y = b;
    const int names = strcmp(x->file_name, y->file_name);
    return names ? names : x->order < y->order ? -1 : x->order > y->order;
}

/* Makes a row of the entries [begin, end), which all belong to one file. */
static bool fill_row(const struct metadata_entry *begin, const struct metadata_entry *end,
    struct metadata_row *row, const char **captions, struct error *err) {
    *row = (struct metadata_row){ begin->file_name, NULL, captions, 0, begin->line };
    for (const struct metadata_entry *e = begin; e < end; e++) {
        if (row->mask_file_name && e->mask_file_name &&
            strcmp(row->mask_file_name, e->mask_file_name) != 0)
            return error_set(err, ERROR_INVALID,
                "line %zu: %.100s has two masks, %.100s and %.100s", e->line, e->file_name,
                row->mask_file_name, e->mask_file_name);
        if (e->mask_file_name)
            row->mask_file_name = e->mask_file_name;
        if (e->caption && row->count == CAPTIONS_PER_PICTURE_MAX)
            return error_set(err, ERROR_INVALID, "line %zu: %.200s has more than %d captions",
                e->line, e->file_name, CAPTIONS_PER_PICTURE_MAX);
        if (e->caption)
            captions[row->count++] = e->caption;
    }
    return true;
}

bool metadata_rows_end(struct metadata_rows *rows, struct metadata *out, struct error *err) {
    *out = (struct metadata){ 0 };
    if (rows->count == 0)
        return error_set(err, ERROR_INVALID, "it has no rows");
    out->rows = calloc(rows->count, sizeof(*out->rows));
    out->captions = calloc(rows->count, sizeof(*out->captions));
    bool ok = (out->rows && out->captions) ||
              error_set(err, ERROR_NO_MEMORY, "no memory for %zu captions", rows->count);
    qsort(rows->entries, rows->count, sizeof(*rows->entries), by_name);
    const struct metadata_entry *entry = rows->entries, *end = entry + rows->count;
    const char **captions = out->captions;
    while (ok && entry < end) {
        const struct metadata_entry *next = entry + 1;
        while (next < end && strcmp(next->file_name, entry->file_name) == 0)
            next++;
        ok = fill_row(entry, next, &out->rows[out->count], captions, err);
        captions += out->rows[out->count++].count;
        entry = next;
    }
    out->texts = rows->texts;
    rows->texts = (struct texts){ 0 };
    if (!ok)
        metadata_finish(out);
    return ok;
}

void metadata_rows_finish(struct metadata_rows *rows) {
    texts_finish(&rows->texts);
    free(rows->entries);
    *rows = (struct metadata_rows){ 0 };
}

void metadata_finish(struct metadata *metadata) {
    free(metadata->rows);
    free(metadata->captions);
    texts_finish(&metadata->texts);
    *metadata = (struct metadata){ 0 };
}
