#include "models/tokenizer/tokenizer_text.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

bool text_check_utf8(const char *text, size_t size, struct error *err) {
    for (size_t at = 0; at < size;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate(
            (const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(size - at), &c);
        if (n < 1)
            return error_set(err, ERROR_INVALID, "the text is not UTF-8: byte %zu is 0x%02x", at,
                (unsigned char)text[at]);
        at += (size_t)n;
    }
    return true;
}

/* Returns whether a character has Unicode's White_Space property. */
static bool is_space(utf8proc_int32_t c) {
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* Lower-cases and folds white space. `out` has room for 4 bytes per character. */
static size_t fold(const utf8proc_int32_t *text, size_t count, utf8proc_uint8_t *out) {
    size_t used = 0;
    bool in_space = false;
    for (size_t i = 0; i < count; i++) {
        const utf8proc_int32_t c = text[i];
        bool space = is_space(c);
        if (space && in_space)
            continue;
        in_space = space;
        if (c == 0x130) { /* capital I with dot: its lower case is two characters */
            memcpy(out + used, "i\xcc\x87", 3);
            used += 3;
        } else {
            used += (size_t)utf8proc_encode_char(space ? ' ' : utf8proc_tolower(c), out + used);
        }
    }
    return used;
}

/* Writes NFD, except for the order of marks. Returns -1 if the text is not UTF-8. `out` has room
 * for 2 characters per byte; no decomposition gives more. */
static utf8proc_ssize_t decompose(const char *text, size_t size, utf8proc_int32_t *out) {
    size_t used = 0;
    for (size_t at = 0; at < size;) {
        utf8proc_int32_t c;
        int boundary = 0;
        const utf8proc_ssize_t bytes = utf8proc_iterate(
            (const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(size - at), &c);
        if (bytes < 1)
            return -1;
        const utf8proc_ssize_t room = (utf8proc_ssize_t)(2 * size - used);
        const utf8proc_ssize_t made = utf8proc_decompose_char(
            c, out + used, room, UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        if (made < 0 || made > room)
            return -1;
        used += (size_t)made;
        at += (size_t)bytes;
    }
    return (utf8proc_ssize_t)used;
}

static int class_of(utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class; /* 0 to 255 */
}

/* Sorts the marks after each letter by class, keeping the order within a class. The author of the
 * text chooses the number of marks, and utf8proc's own sort takes quadratic time in it. */
static void order_marks(utf8proc_int32_t *text, size_t count, utf8proc_int32_t *scratch) {
    size_t places[257] = { 0 };
    for (size_t i = 0; i < count; i++)
        places[class_of(text[i]) + 1]++;
    for (int k = 0; k < 256; k++)
        places[k + 1] += places[k];
    for (size_t i = 0; i < count; i++)
        scratch[places[class_of(text[i])]++] = text[i];
    memcpy(text, scratch, count * sizeof(*text));
}

static void order_all_marks(utf8proc_int32_t *text, size_t count, utf8proc_int32_t *scratch) {
    size_t end;
    for (size_t begin = 0; begin < count; begin = end + 1) {
        bool ordered = true;
        int before = 0, class = 0;
        for (end = begin; end < count && (class = class_of(text[end])) > 0; end++) {
            ordered = ordered && before <= class;
            before = class;
        }
        if (!ordered)
            order_marks(text + begin, end - begin, scratch);
    }
}

bool text_normalize(
    const char *text, size_t size, char **out, size_t *out_size, struct error *err) {
    utf8proc_int32_t *characters = reallocarray(NULL, 4 * size + 2, sizeof(*characters));
    if (!characters)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a text of %zu bytes", size);
    utf8proc_ssize_t count = decompose(text, size, characters);
    if (count >= 0) {
        order_all_marks(characters, (size_t)count, characters + 2 * size);
        count = utf8proc_normalize_utf32(characters, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    }
    char *folded = count < 0 ? NULL : malloc(4 * (size_t)count + 1);
    if (folded) {
        *out_size = fold(characters, (size_t)count, (utf8proc_uint8_t *)folded);
        folded[*out_size] = 0;
        *out = folded;
    }
    free(characters);
    if (count < 0)
        return error_set(err, ERROR_INVALID, "the text cannot be normalised: it is not UTF-8");
    return folded || error_set(err, ERROR_NO_MEMORY, "no memory for a text of %zu bytes", size);
}

struct piece_splitter {
    pcre2_code *code;
};

/* CLIP's pattern. At this point ' ' is the only white space. A text such as "<|ENDOFTEXT|>" becomes
 * a special token only by lower-casing. It is split in three here, because the next step in
 * transformers (byte level) would split it again by kind of character. */
static const char pattern[] = "(<\\|)(startoftext|endoftext)(\\|>)|'s|'t|'re|'ve|'m|'ll|'d"
                              "|\\p{L}+|\\p{N}|[^ \\p{L}\\p{N}]+";

bool piece_splitter_create(struct piece_splitter **out, struct error *err) {
    int number;
    PCRE2_SIZE offset;
    struct piece_splitter *splitter = calloc(1, sizeof(*splitter));
    if (!splitter)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the tokenizer");
    splitter->code = pcre2_compile(
        (PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &number, &offset, NULL);
    if (!splitter->code) {
        free(splitter);
        return error_set(err, ERROR_INTERNAL,
            "PCRE2 refuses the tokenizer's pattern at %zu (error %d); it needs Unicode support",
            (size_t)offset, number);
    }
    *out = splitter;
    return true;
}

void piece_splitter_destroy(struct piece_splitter *splitter) {
    if (!splitter)
        return;
    pcre2_code_free(splitter->code);
    free(splitter);
}

bool piece_splitter_run(const struct piece_splitter *splitter, const char *text, size_t size,
    void (*take)(const char *piece, size_t size, void *user), void *user, struct error *err) {
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(splitter->code, NULL);
    if (!match)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the tokenizer");
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(match);
    int found = 1;
    for (size_t at = 0; at < size; at = ends[1]) {
        found = pcre2_match(
            splitter->code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, match, NULL);
        if (found < 0)
            break;
        /* `found` is one more than the highest group that matched. */
        for (int group = found > 1 ? 1 : 0; group < found; group++)
            take(text + ends[2 * group], ends[2 * group + 1] - ends[2 * group], user);
    }
    pcre2_match_data_free(match);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
        return error_set(err, found == PCRE2_ERROR_NOMEMORY ? ERROR_NO_MEMORY : ERROR_INTERNAL,
            "PCRE2 failed on the text with error %d", found);
    return true;
}
