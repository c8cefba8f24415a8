#include "train/data/scan.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/list.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MASK_SUFFIX ".mask.png"

/* The contents of a folder, sorted: names and kinds. */
struct listing {
    struct listed {
        char *name; /* owned */
        bool is_folder;
    } * items; /* owned */
    size_t count;
};

struct scanner {
    struct scan_folder *folder;
    const struct scan_options *options;
    struct scan *scan;
    struct error *err;
};

static bool no_memory(struct error *err) {
    return error_set(err, ERROR_NO_MEMORY, "no memory to list a data set");
}

static void listing_finish(struct listing *listing) {
    for (size_t i = 0; i < listing->count; i++)
        free(listing->items[i].name);
    free(listing->items);
}

static int by_name(const void *a, const void *b) {
    const struct listed *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static bool listing_add(struct listing *l, const char *name, bool is_folder, struct error *err) {
    if (l->count == 4 * (size_t)DATASET_PICTURES_MAX)
        return error_set(
            err, ERROR_TOO_LARGE, "a folder of more than %d files", 4 * DATASET_PICTURES_MAX);
    if (!LIST_ROOM(l->items, l->count, "the list of a data set", err))
        return false;
    char *copy = strdup(name);
    if (!copy)
        return no_memory(err);
    l->items[l->count++] = (struct listed){ copy, is_folder };
    return true;
}

/* Lists a folder without its hidden files. `path` is relative to the data set's folder; "" is that
 * folder itself. */
static bool listing_read(
    const struct scanner *s, const char *path, struct listing *out, struct error *err) {
    char *whole = path[0] ? file_join(s->folder->path, path) : strdup(s->folder->path);
    DIR *dir = whole ? opendir(whole) : NULL;
    bool ok = dir || error_set(err, ERROR_IO, "cannot list %s: %s", path, strerror(errno));
    *out = (struct listing){ 0 };
    for (struct dirent *e; ok && (e = readdir(dir));) {
        char *file = e->d_name[0] == '.' ? NULL : file_join(whole, e->d_name);
        if (file)
            ok = listing_add(out, e->d_name, file_is_folder(file), err);
        free(file);
    }
    if (dir)
        closedir(dir);
    free(whole);
    if (ok && out->count)
        qsort(out->items, out->count, sizeof(*out->items), by_name);
    return ok;
}

static bool ends_with(const char *name, const char *suffix) {
    const size_t length = strlen(name), tail = strlen(suffix);
    return length > tail && strcasecmp(name + length - tail, suffix) == 0;
}

static bool is_mask(const char *name) {
    return ends_with(name, MASK_SUFFIX);
}

bool scan_is_picture(const char *name) {
    return (ends_with(name, ".png") || ends_with(name, ".jpg") || ends_with(name, ".jpeg") ||
               ends_with(name, ".webp")) &&
           !is_mask(name);
}

static const struct listed *find(const struct listing *listing, const char *name) {
    const struct listed key = { (char *)(uintptr_t)name, false }; /* only read */
    return listing->count ? bsearch(&key, listing->items, listing->count, sizeof(key), by_name)
                          : NULL;
}

/* --- Entries --- */

static bool pass_over(struct scanner *s, const char *folder, const char *name) {
    struct scan *scan = s->scan;
    char path[DATASET_PATH_MAX_BYTES + 1];
    if (scan->passed_over_count++ >= SCAN_NAMES_MAX)
        return true;
    snprintf(path, sizeof(path), "%s%s%s", folder, folder[0] ? "/" : "", name);
    const char *kept = texts_add(&scan->texts, path, strlen(path), s->err);
    scan->passed_over[scan->passed_over_count - 1] = kept;
    return kept;
}

static struct scan_entry *add_entry(struct scanner *s, const char *path) {
    struct scan *scan = s->scan;
    if (scan->count == DATASET_PICTURES_MAX) {
        error_set(s->err, ERROR_TOO_LARGE, "more than %d pictures", DATASET_PICTURES_MAX);
        return NULL;
    }
    if (!LIST_ROOM(scan->entries, scan->count, "the list of a data set", s->err))
        return NULL;
    scan->entries[scan->count] = (struct scan_entry){ .path = path, .repeats = 1 };
    return &scan->entries[scan->count++];
}

/* Allocates `count` captions, which live as long as the scan. */
static const char **caption_room(struct scanner *s, int count) {
    struct scan *scan = s->scan;
    if (!LIST_ROOM(scan->captions, scan->captions_count, "the list of a data set", s->err))
        return NULL;
    const char **room = calloc((size_t)count, sizeof(*room));
    if (!room)
        no_memory(s->err);
    else
        scan->captions[scan->captions_count++] = room;
    return room;
}

/* Returns one caption, to be shared by all pictures without their own; NULL stays NULL. */
static bool shared_caption(struct scanner *s, const char *text, const char *const **out) {
    *out = NULL;
    if (!text)
        return true;
    const char **room = caption_room(s, 1);
    if (!room || !(room[0] = texts_add(&s->scan->texts, text, strlen(text), s->err)))
        return false;
    *out = room;
    return true;
}

/* --- Captions in text files --- */

static bool read_small(struct scanner *s, const char *path, size_t max, char **out, size_t *size) {
    uint64_t bytes;
    const int fd = scan_open(s->folder, path, &bytes, s->err);
    *out = NULL;
    if (fd < 0)
        return error_prefix(s->err, "%s", path);
    bool ok = bytes <= max || error_set(s->err, ERROR_TOO_LARGE, "%s: %llu bytes; at most %zu",
                                  path, (unsigned long long)bytes, max);
    ok = ok && ((*out = malloc((size_t)bytes + 1)) || no_memory(s->err));
    for (*size = 0; ok && *size < bytes;) {
        const ssize_t n = read(fd, *out + *size, (size_t)bytes - *size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            ok = error_set(s->err, ERROR_IO, "cannot read %s: %s", path,
                n ? strerror(errno) : "it became shorter");
        else
            *size += (size_t)n;
    }
    close(fd);
    return ok;
}

/* Finds STEM.txt or STEM.caption beside a picture: its relative path, or "". */
static bool find_captions(struct scanner *s, const char *folder, const struct listing *listing,
    const char *picture, char path[DATASET_PATH_MAX_BYTES + 1]) {
    static const char *const endings[] = { "txt", "caption" };
    const int stem = (int)(strrchr(picture, '.') - picture);
    path[0] = 0;
    for (size_t i = 0; i < 2; i++) {
        char name[512];
        snprintf(name, sizeof(name), "%.*s.%s", stem, picture, endings[i]);
        const struct listed *found = find(listing, name);
        if (!found || found->is_folder)
            continue;
        if (path[0])
            return error_set(
                s->err, ERROR_INVALID, "%s and %s are there both: remove one", path, name);
        snprintf(path, DATASET_PATH_MAX_BYTES + 1, "%s%s%s", folder, folder[0] ? "/" : "", name);
    }
    return true;
}

static bool read_captions(struct scanner *s, const char *path, struct scan_entry *entry) {
    const char *captions[CAPTIONS_PER_PICTURE_MAX];
    char *file;
    size_t size;
    int count = 0;
    bool ok = read_small(s, path, CAPTION_FILE_MAX_BYTES, &file, &size);
    if (ok && !captions_parse(
                  file, size, &s->scan->texts, captions, CAPTIONS_PER_PICTURE_MAX, &count, s->err))
        ok = error_prefix(s->err, "%s", path);
    free(file);
    if (!ok || count == 0)
        return ok;
    const char **room = caption_room(s, count);
    if (!room)
        return false;
    memcpy(room, captions, (size_t)count * sizeof(*room));
    entry->captions = room;
    entry->count = count;
    return true;
}

/* --- Folders of pictures --- */

static bool find_mask(struct scanner *s, const char *folder, const struct listing *listing,
    const char *picture, struct scan_entry *entry) {
    char name[512], path[DATASET_PATH_MAX_BYTES + 1];
    const int stem = (int)(strrchr(picture, '.') - picture);
    snprintf(name, sizeof(name), "%.*s%s", stem, picture, MASK_SUFFIX);
    if (!s->options->masks || !find(listing, name))
        return true;
    snprintf(path, sizeof(path), "%s%s%s", folder, folder[0] ? "/" : "", name);
    entry->mask = texts_add(&s->scan->texts, path, strlen(path), s->err);
    return entry->mask;
}

static bool read_picture(struct scanner *s, const char *folder, const struct listing *listing,
    const char *name, const char *const *shared, int repeats) {
    char path[DATASET_PATH_MAX_BYTES + 1], captions[DATASET_PATH_MAX_BYTES + 1];
    const int length = snprintf(path, sizeof(path), "%s%s%s", folder, folder[0] ? "/" : "", name);
    if (!data_path_check(path, (size_t)length, s->err))
        return false;
    const char *kept = texts_add(&s->scan->texts, path, (size_t)length, s->err);
    struct scan_entry *entry = kept ? add_entry(s, kept) : NULL;
    if (!entry)
        return false;
    entry->repeats = repeats;
    if (!find_captions(s, folder, listing, name, captions) ||
        !find_mask(s, folder, listing, name, entry))
        return false;
    if (captions[0] && !read_captions(s, captions, entry))
        return false;
    if (entry->count == 0 && shared) {
        entry->captions = shared;
        entry->count = 1;
    }
    return true;
}

/* Returns whether a file that is not a picture belongs to a picture. */
static bool belongs(const struct scanner *s, const struct listing *listing, const char *name) {
    static const char *const pictures[] = { "png", "jpg", "jpeg", "webp", "PNG", "JPG", "JPEG",
        "WEBP" };
    const bool mask = is_mask(name);
    if (mask ? !s->options->masks : !ends_with(name, ".txt") && !ends_with(name, ".caption"))
        return false;
    const int stem = (int)(mask ? strlen(name) - strlen(MASK_SUFFIX)
                                : (size_t)(strrchr(name, '.') - name));
    for (size_t i = 0; i < sizeof(pictures) / sizeof(pictures[0]); i++) {
        char picture[512];
        snprintf(picture, sizeof(picture), "%.*s.%s", stem, name, pictures[i]);
        if (find(listing, picture))
            return true;
    }
    return false;
}

static bool read_flat(struct scanner *s, const char *folder, const struct listing *listing,
    const char *caption, int repeats) {
    const char *const *shared;
    if (!shared_caption(s, caption, &shared))
        return false;
    for (size_t i = 0; i < listing->count; i++) {
        const struct listed *item = &listing->items[i];
        const bool take = !item->is_folder && scan_is_picture(item->name);
        if (take ? !read_picture(s, folder, listing, item->name, shared, repeats)
                 : (item->is_folder || !belongs(s, listing, item->name)) &&
                       !pass_over(s, folder, item->name))
            return false;
    }
    return true;
}

/* Parses a folder name such as "10_a cat": returns the repeats, and where the caption begins.
 * Returns 0 if the name has another form. */
static long repeats_of(const char *name, const char **caption) {
    char *end;
    if (!isdigit((unsigned char)name[0]))
        return 0;
    errno = 0;
    const long repeats = strtol(name, &end, 10);
    if (*end != '_' || !end[1])
        return 0;
    *caption = end + 1;
    return errno || repeats > DATASET_REPEATS_MAX ? DATASET_REPEATS_MAX + 1
           : repeats                              ? repeats
                                                  : -1;
}

static bool read_repeated(struct scanner *s, const struct listing *listing) {
    for (size_t i = 0; i < listing->count; i++) {
        const struct listed *item = &listing->items[i];
        const char *caption = NULL;
        const long repeats = item->is_folder ? repeats_of(item->name, &caption) : 0;
        struct listing inner;
        if (repeats == 0) {
            if (!pass_over(s, "", item->name))
                return false;
            continue;
        }
        if (repeats < 0 || repeats > DATASET_REPEATS_MAX)
            return error_set(s->err, ERROR_INVALID,
                "the folder %s: its pictures can be repeated 1 to %d times", item->name,
                DATASET_REPEATS_MAX);
        if (!data_path_check(item->name, strlen(item->name), s->err) ||
            !caption_check(caption, strlen(caption), s->err))
            return false;
        const bool ok = listing_read(s, item->name, &inner, s->err) &&
                        read_flat(s, item->name, &inner, caption, (int)repeats);
        listing_finish(&inner);
        if (!ok)
            return false;
    }
    return true;
}

/* --- Metadata --- */

static bool take_rows(struct scanner *s, const struct listing *listing) {
    const struct metadata *m = &s->scan->metadata;
    const char *const *shared;
    if (!shared_caption(s, s->options->prompt, &shared))
        return false;
    for (size_t i = 0; i < m->count; i++) {
        const struct metadata_row *row = &m->rows[i];
        struct scan_entry *entry = add_entry(s, row->file_name);
        if (!entry)
            return false;
        if (is_mask(row->file_name) || !strrchr(row->file_name, '.'))
            return error_set(s->err, ERROR_INVALID, "line %zu: %s is no picture's name", row->line,
                row->file_name);
        entry->captions = row->count ? row->captions : shared;
        entry->count = row->count ? row->count : shared != NULL;
        entry->mask = s->options->masks ? row->mask_file_name : NULL;
        if (!entry->mask && !find_mask(s, "", listing, row->file_name, entry))
            return false;
    }
    return true;
}

static int entry_by_path(const void *a, const void *b) {
    const struct scan_entry *x = a, *y = b;
    return strcmp(x->path, y->path);
}

/* Skips pictures that are not in the metadata. */
static bool pass_over_the_rest(struct scanner *s, const struct listing *listing) {
    for (size_t i = 0; i < listing->count; i++) {
        const struct scan_entry key = { .path = listing->items[i].name };
        if (!listing->items[i].is_folder && scan_is_picture(key.path) &&
            !bsearch(&key, s->scan->entries, s->scan->count, sizeof(key), entry_by_path) &&
            !pass_over(s, "", key.path))
            return false;
    }
    return true;
}

static bool read_metadata(
    struct scanner *s, const struct listing *listing, const char *name, bool is_csv) {
    char *file;
    size_t size;
    bool ok = read_small(s, name, METADATA_FILE_MAX_BYTES, &file, &size);
    s->scan->layout = is_csv ? SCAN_METADATA_CSV : SCAN_METADATA_JSONL;
    if (ok && !((is_csv ? metadata_parse_csv : metadata_parse_jsonl)(
                  file, size, &s->options->columns, &s->scan->metadata, s->err)))
        ok = error_prefix(s->err, "%s", name);
    free(file);
    return ok && take_rows(s, listing) && pass_over_the_rest(s, listing);
}

/* --- Choosing the layout --- */

static bool has(const struct listing *listing, const char *name, bool is_folder) {
    const struct listed *found = find(listing, name);
    return found && found->is_folder == is_folder;
}

static bool has_pictures(const struct listing *listing) {
    for (size_t i = 0; i < listing->count; i++)
        if (!listing->items[i].is_folder && scan_is_picture(listing->items[i].name))
            return true;
    return false;
}

static bool has_repeats(const struct listing *listing) {
    const char *caption;
    for (size_t i = 0; i < listing->count; i++)
        if (listing->items[i].is_folder && repeats_of(listing->items[i].name, &caption) != 0)
            return true;
    return false;
}

/* Reports that the folder has no pictures. Suggests another folder that may have been meant. */
static bool nothing_here(const struct listing *listing, struct error *err) {
    for (size_t i = 0; i < listing->count; i++)
        if (listing->items[i].is_folder)
            return error_set(err, ERROR_INVALID,
                "the data set has no PNG, JPEG or WebP files and no metadata; for those in its "
                "folder %s "
                "name that, call it REPEATS_CAPTION, or write metadata.jsonl",
                listing->items[i].name);
    if (listing->count == 0)
        return error_set(
            err, ERROR_INVALID, "the data set has no PNG, JPEG or WebP files: its folder is empty");
    return error_set(err, ERROR_INVALID,
        "the data set has no PNG, JPEG or WebP files: %.150s is none of these, nor metadata",
        listing->items[0].name);
}

static bool read_layout(struct scanner *s, bool may_descend) {
    struct listing listing;
    bool ok = listing_read(s, "", &listing, s->err);
    const bool jsonl = has(&listing, "metadata.jsonl", false);
    const bool csv = has(&listing, "metadata.csv", false);
    if (ok && jsonl && csv)
        ok = error_set(s->err, ERROR_INVALID, "metadata.jsonl and metadata.csv are there both");
    else if (ok && (jsonl || csv))
        ok = read_metadata(s, &listing, jsonl ? "metadata.jsonl" : "metadata.csv", csv);
    else if (ok && has_repeats(&listing)) {
        s->scan->layout = SCAN_REPEATS;
        ok = read_repeated(s, &listing);
    } else if (ok && has_pictures(&listing)) {
        s->scan->layout = SCAN_FLAT;
        ok = read_flat(s, "", &listing, s->options->prompt, 1);
    } else if (ok && may_descend && has(&listing, "train", true)) {
        char *inner = file_join(s->folder->path, "train");
        ok = inner || no_memory(s->err);
        if (ok) {
            free(s->folder->path);
            s->folder->path = inner;
            ok = read_layout(s, false);
        }
    } else if (ok) {
        ok = nothing_here(&listing, s->err);
    }
    listing_finish(&listing);
    return ok;
}

bool scan_read(struct scan_folder *folder, const struct scan_options *options, struct scan *out,
    struct error *err) {
    struct error own;
    struct scanner s = {
        .folder = folder, .options = options, .scan = out, .err = err ? err : &own
    };
    *out = (struct scan){ 0 };
    if (options->prompt && !caption_check(options->prompt, strlen(options->prompt), s.err))
        return error_prefix(s.err, "instance_prompt");
    if (!read_layout(&s, true))
        return false;
    if (out->count == 0)
        return error_set(err, ERROR_INVALID, "the data set has no PNG, JPEG or WebP files");
    const char *const column = options->columns.image ? options->columns.image
                                                      : options->columns.caption;
    if (column && (out->layout == SCAN_FLAT || out->layout == SCAN_REPEATS))
        return error_field(err, options->columns.image ? "image_column" : "caption_column", column,
            "none: the data set has neither metadata.jsonl nor metadata.csv");
    qsort(out->entries, out->count, sizeof(*out->entries), entry_by_path);
    return true;
}

void scan_finish(struct scan *scan) {
    for (size_t i = 0; i < scan->captions_count; i++)
        free(scan->captions[i]);
    free(scan->captions);
    free(scan->entries);
    texts_finish(&scan->texts);
    metadata_finish(&scan->metadata);
    *scan = (struct scan){ 0 };
}
