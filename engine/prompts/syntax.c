#include "engine/prompts/syntax.h"

#include "base/list.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define SHOWN_BYTES 100 /* how much of the text an error shows */

bool prompt_number(const char *text, size_t length, double *out) {
    char copy[64];
    const size_t sign = length > 0 && (*text == '+' || *text == '-');
    size_t points = 0;
    for (size_t i = sign; i < length; i++) {
        points += text[i] == '.';
        if (text[i] != '.' && (text[i] < '0' || text[i] > '9'))
            return false;
    }
    if (points > 1 || length <= sign + points || length >= sizeof(copy))
        return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    *out = strtod(copy, NULL);
    return isfinite(*out);
}

static bool is_space(utf8proc_int32_t c) {
    const utf8proc_category_t kind = utf8proc_category(c);
    return (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f) || c == 0x85 ||
           (kind >= UTF8PROC_CATEGORY_ZS && kind <= UTF8PROC_CATEGORY_ZP);
}

size_t prompt_space(const char *at, const char *end) {
    utf8proc_int32_t c;
    const utf8proc_ssize_t size = utf8proc_iterate((const utf8proc_uint8_t *)at, end - at, &c);
    return size > 0 && is_space(c) ? (size_t)size : 0;
}

size_t prompt_space_before(const char *begin, const char *end) {
    const char *at = end;
    if (at == begin)
        return 0;
    do
        at--;
    while (at > begin && ((unsigned char)*at & 0xc0) == 0x80);
    return prompt_space(at, end) == (size_t)(end - at) ? (size_t)(end - at) : 0;
}

/* Returns the bytes of all white space that ends at `end`. */
static size_t spaces_before(const char *begin, const char *end) {
    const char *at = end;
    for (size_t size; (size = prompt_space_before(begin, at)) > 0;)
        at -= size;
    return (size_t)(end - at);
}

static bool is_word_byte(char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Whether the character at `at` is a letter, a digit or _. */
static bool is_word_character(const char *at, size_t left) {
    utf8proc_int32_t c;
    if ((unsigned char)*at < 0x80)
        return is_word_byte(*at);
    if (utf8proc_iterate((const utf8proc_uint8_t *)at, (utf8proc_ssize_t)left, &c) < 1)
        return false;
    const utf8proc_category_t kind = utf8proc_category(c);
    return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO) ||
           (kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO);
}

static bool follows_word(const char *text, const char *at) {
    const char *before = at;
    if (at == text)
        return false;
    do
        before--;
    while (before > text && ((unsigned char)*before & 0xc0) == 0x80);
    return is_word_character(before, (size_t)(at - before));
}

const char *prompt_find_word(const char *text, size_t size, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = text; (size_t)(at - text) + length <= size; at++) {
        const size_t left = size - (size_t)(at - text);
        at = memchr(at, word[0], left - length + 1);
        if (!at)
            return NULL;
        const char *end = at + length;
        const size_t rest = size - (size_t)(end - text);
        if (memcmp(at, word, length) == 0 && !follows_word(text, at) &&
            (rest == 0 || !is_word_character(end, rest)))
            return at;
    }
    return NULL;
}

void prompt_parts_finish(struct prompt_parts *parts) {
    free(parts->block);
    free(parts->tags);
    *parts = (struct prompt_parts){ 0 };
}

/* --- tags --- */

struct tag {
    const char *begin, *end; /* the whole tag */
    const char *kind, *arguments;
    size_t kind_bytes, arguments_bytes;
};

/* Finds the first <WORD:ARGUMENTS> in the text. */
static bool find_tag(const char *text, struct tag *out) {
    for (const char *at = text; (at = strchr(at, '<')); at++) {
        const char *kind = at + 1, *colon = kind;
        while (is_word_byte(*colon) || (unsigned char)*colon >= 0x80)
            colon++;
        if (colon == kind || *colon != ':' || colon[1] == '>')
            continue;
        const char *end = strchr(colon + 1, '>');
        if (!end)
            return false;
        *out = (struct tag){ at, end + 1, kind, colon + 1, (size_t)(colon - kind),
            (size_t)(end - colon - 1) };
        return true;
    }
    return false;
}

bool prompt_may_have_tags(const char *text) {
    struct tag tag;
    return find_tag(text, &tag);
}

static bool refuse_tag(
    const char *param, const struct tag *tag, const char *allowed, struct error *err) {
    char value[SHOWN_BYTES + 1];
    const size_t size = (size_t)(tag->end - tag->begin);
    snprintf(
        value, sizeof(value), "%.*s", (int)(size < SHOWN_BYTES ? size : SHOWN_BYTES), tag->begin);
    return error_field(err, param, value, "%s", allowed);
}

static bool is_text(const char *text, size_t size, const char *word) {
    return size == strlen(word) && memcmp(text, word, size) == 0;
}

/* Reads a number with optional spaces around it. */
static bool read_number(const char *text, size_t size, double *out) {
    while (size > 0 && strchr(PROMPT_SPACES, *text))
        text++, size--;
    while (size > 0 && strchr(PROMPT_SPACES, text[size - 1]))
        size--;
    return prompt_number(text, size, out);
}

/* The weights of te (text encoder) and unet. A missing weight is derived from the other. */
struct tag_weights {
    double values[2];
    bool given[2];
};

static bool take_name(const char *text, size_t size, struct lora_choice *out) {
    if (size == 0 || size > ADAPTER_NAME_MAX_BYTES)
        return false;
    memcpy(out->name, text, size);
    out->name[size] = 0;
    return true;
}

/* Reads one argument of a tag: NAME=VALUE, or an unnamed one, whose meaning depends on *place. */
static bool take_argument(const char *text, size_t size, int *place, struct lora_choice *out,
    struct tag_weights *weights) {
    static const char *const names[2] = { "te", "unet" };
    const char *sign = memchr(text, '=', size);
    int which = -1;
    if (sign) {
        const size_t name = (size_t)(sign - text);
        for (int i = 0; i < 2; i++)
            if (is_text(text, name, names[i]))
                which = i;
        text = sign + 1;
        size -= name + 1;
    } else if ((*place)++ == 0) {
        return take_name(text, size, out);
    } else if (*place <= 3) {
        which = *place - 2;
    }
    if (which < 0)
        return false;
    weights->given[which] = true;
    return read_number(text, size, &weights->values[which]);
}

/* Reads the arguments of a tag. The name ends at `name_end`; NULL: it is the first argument without
 * '='. */
static bool read_arguments(const struct tag *tag, const char *name_end, struct lora_choice *out) {
    struct tag_weights weights = { .values = { 1, 1 } };
    const char *at = tag->arguments, *end = at + tag->arguments_bytes;
    int place = 0;
    *out = (struct lora_choice){ 0 };
    if (name_end) {
        if (!take_name(at, (size_t)(name_end - at), out))
            return false;
        place = 1;
        at = name_end + 1;
    }
    for (const char *next = at; next <= end; at = next) {
        const char *colon = memchr(at, ':', (size_t)(end - at));
        next = (colon ? colon : end) + 1;
        if (!take_argument(at, (size_t)(next - 1 - at), &place, out, &weights))
            return false;
    }
    out->text_encoder_weight = weights.values[0];
    out->weight = weights.given[1] ? weights.values[1] : weights.values[0];
    return out->name[0];
}

/* Reads a tag as AUTOMATIC1111 does: its name ends at the first colon. If that colon is not
 * followed by weights, AUTOMATIC1111 cannot read the tag. Then the name ends here at the first
 * colon that is followed by weights: <lora:comma:colon:1> names "comma:colon". */
static bool read_tag(
    const char *param, const struct tag *tag, struct lora_choice *out, struct error *err) {
    const char *at = tag->arguments, *end = at + tag->arguments_bytes;
    if (!is_text(tag->kind, tag->kind_bytes, "lora") &&
        !is_text(tag->kind, tag->kind_bytes, "lyco"))
        return refuse_tag(param, tag, PROMPT_TAG_FORM, err);
    bool ok = read_arguments(tag, NULL, out);
    for (; !ok && *tag->arguments != ':' && at <= end; at++)
        ok = (at == end || *at == ':') && read_arguments(tag, at, out);
    return ok || refuse_tag(param, tag, PROMPT_TAG_FORM, err);
}

static bool add_tag(
    const char *param, const struct tag *tag, struct prompt_parts *out, struct error *err) {
    struct lora_choice choice;
    if (!read_tag(param, tag, &choice, err))
        return false;
    if (out->tag_count == LORAS_PER_REQUEST_MAX) {
        char allowed[32];
        snprintf(allowed, sizeof(allowed), "at most %d tags", LORAS_PER_REQUEST_MAX);
        return refuse_tag(param, tag, allowed, err);
    }
    for (int i = 0; i < out->tag_count; i++)
        if (strcmp(out->tags[i].name, choice.name) == 0)
            return refuse_tag(param, tag, "each adapter at most once", err);
    if (!LIST_ROOM(out->tags, out->tag_count, "a prompt's adapters", err))
        return false;
    out->tags[out->tag_count++] = choice;
    return true;
}

/* Copies `text` to out->block without its tags, and adds the tags to *out. */
static bool cut_tags(
    const char *param, const char *text, struct prompt_parts *out, struct error *err) {
    struct tag tag;
    char *to = out->block;
    while (find_tag(text, &tag)) {
        const size_t before = (size_t)(tag.begin - text);
        memcpy(to, text, before);
        to += before;
        text = tag.end;
        if (!add_tag(param, &tag, out, err))
            return false;
    }
    memcpy(to, text, strlen(text) + 1);
    return true;
}

/* --- the parts --- */

/* Cuts off the white space at the end of a part, and the part's weight before it: "words :1.2". */
static bool cut_weight(const char *param, char *text, struct prompt_part *out, struct error *err) {
    char *end = text + strlen(text);
    end -= spaces_before(text, end);
    *end = 0;
    *out = (struct prompt_part){ text, 1 };
    char *number = end;
    while (number > text && strchr(".0123456789", number[-1]))
        number--;
    char *sign = number;
    if (sign > text && number < end && strchr("+-", sign[-1]))
        sign--;
    char *colon = sign - spaces_before(text, sign);
    if (number == end || colon == text || colon[-1] != ':' ||
        !prompt_number(sign, (size_t)(end - sign), &out->weight))
        return true;
    if (!(fabs(out->weight) <= PROMPT_WEIGHT_MAX)) {
        char value[48];
        snprintf(value, sizeof(value), "%.40s", colon - 1);
        return error_field(err, param, value, "a weight of the prompt from %g to %g",
            -PROMPT_WEIGHT_MAX, PROMPT_WEIGHT_MAX);
    }
    colon--;
    colon -= spaces_before(text, colon);
    *colon = 0;
    return true;
}

/* Splits out->block at each AND. */
static bool split_parts(const char *param, struct prompt_parts *out, struct error *err) {
    char *text = out->block;
    for (bool more = true; more;) {
        const char *word = prompt_find_word(text, strlen(text), "AND");
        char *part = text;
        more = word;
        if (out->count == PROMPT_PARTS_MAX) {
            char value[32];
            snprintf(value, sizeof(value), "more than %d parts", PROMPT_PARTS_MAX);
            return error_field(err, param, value,
                "at most %d parts joined by AND; in small letters it is a word", PROMPT_PARTS_MAX);
        }
        if (more) {
            text += word - text;
            *text = 0;
            text += strlen("AND");
        }
        if (!cut_weight(param, part, &out->parts[out->count++], err))
            return false;
    }
    return true;
}

bool prompt_parts_parse(const char *param, const char *text, bool negative,
    struct prompt_parts *out, struct error *err) {
    *out = (struct prompt_parts){ .block = malloc(strlen(text) + 1) };
    if (!out->block)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a text");
    if (negative) {
        memcpy(out->block, text, strlen(text) + 1);
        out->parts[out->count++] = (struct prompt_part){ out->block, 1 };
        return true;
    }
    if (cut_tags(param, text, out, err) && split_parts(param, out, err))
        return true;
    prompt_parts_finish(out);
    return false;
}
