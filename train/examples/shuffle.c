#include "train/examples/shuffle.h"

#include "base/list.h"
#include "train/data/python_random.h"

#include <stdlib.h>
#include <string.h>

/* A part of the caption. */
struct span {
    const char *text;
    size_t length;
};

struct tags {
    struct span *items; /* owned */
    size_t count;
};

uint64_t shuffle_key(uint64_t seed, int64_t epoch, int64_t item) {
    return (seed * 1000003 + (uint64_t)epoch) * 1000003 + (uint64_t)item;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct span trimmed(struct span s) {
    while (s.length > 0 && is_space(s.text[s.length - 1]))
        s.length--;
    while (s.length > 0 && is_space(*s.text)) {
        s.text++;
        s.length--;
    }
    return s;
}

/* Removes everything up to and with the first separator from *rest, and returns what stood before
 * it. Without a separator that is all, and *more is set to false. */
static struct span cut(struct span *rest, const char *separator, bool *more) {
    const char *at = memmem(rest->text, rest->length, separator, strlen(separator));
    struct span first = *rest;
    *more = at != NULL;
    if (!at)
        return first;
    first.length = (size_t)(at - rest->text);
    rest->text += first.length + strlen(separator);
    rest->length -= first.length + strlen(separator);
    return first;
}

static bool add_tags(struct tags *tags, struct span part, const char *separator, bool keep_empty,
    struct error *err) {
    bool more = true;
    while (more) {
        const struct span tag = trimmed(cut(&part, separator, &more));
        if (tag.length == 0 && !keep_empty)
            continue;
        if (!LIST_ROOM(tags->items, tags->count, "a caption's tags", err))
            return false;
        tags->items[tags->count++] = tag;
    }
    return true;
}

/* Splits the caption; tags from `first` to before `end` change places. */
static bool split(const struct shuffle_options *o, const char *caption, struct tags *tags,
    size_t *first, size_t *end, struct error *err) {
    const char *separator = o->separator ? o->separator : ",";
    struct span rest = { caption, strlen(caption) };
    bool more = false;
    const struct span fixed = o->keep_separator ? cut(&rest, o->keep_separator, &more) : rest;
    if (!more) {
        if (!add_tags(tags, trimmed(rest), separator, true, err))
            return false;
        *first = (size_t)o->keep_tokens < tags->count ? (size_t)o->keep_tokens : tags->count;
        *end = tags->count;
        return true;
    }
    if (!add_tags(tags, fixed, separator, false, err))
        return false;
    *first = tags->count;
    const struct span free = cut(&rest, o->keep_separator, &more);
    if (!add_tags(tags, free, separator, false, err))
        return false;
    *end = tags->count;
    return !more || add_tags(tags, rest, separator, false, err);
}

static char *join(const struct tags *tags) {
    size_t length = 1;
    for (size_t i = 0; i < tags->count; i++)
        length += tags->items[i].length + 2;
    char *text = malloc(length), *at = text;
    for (size_t i = 0; text && i < tags->count; i++) {
        if (i)
            at = mempcpy(at, ", ", 2);
        at = mempcpy(at, tags->items[i].text, tags->items[i].length);
    }
    if (text)
        *at = 0;
    return text;
}

bool shuffle_caption(const struct shuffle_options *options, const char *caption, uint64_t key,
    char **out, struct error *err) {
    struct tags tags = { 0 };
    size_t first, end;
    *out = NULL;
    const bool ok = split(options, caption, &tags, &first, &end, err);
    if (ok) {
        struct mt19937 mt;
        python_random_seed(&mt, key);
        struct span *free_tags = tags.items + first;
        for (size_t i = end - first; i > 1; i--) {
            const size_t j = (size_t)python_random_below(&mt, (int)i);
            const struct span moved = free_tags[i - 1];
            free_tags[i - 1] = free_tags[j];
            free_tags[j] = moved;
        }
        *out = join(&tags);
        if (!*out)
            error_set(err, ERROR_NO_MEMORY, "no memory for a caption");
    }
    free(tags.items);
    return *out != NULL;
}
