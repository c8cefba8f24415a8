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
    free(parts->text);
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

/* Reads a tag as AUTOMATIC1111 does: its name ends at the first colon. Where the arguments behind
 * that are no weights, which AUTOMATIC1111 cannot read, the name goes on to the first colon behind
 * which they are: <lora:comma:colon:1> names "comma:colon". */
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

/* Copies `text` to out->text without its tags, and adds the tags to *out. */
static bool cut_tags(
    const char *param, const char *text, struct prompt_parts *out, struct error *err) {
    struct tag tag;
    char *to = out->text;
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

/* --- the weight of the whole prompt --- */

/* Cuts off the weight of the whole prompt at its end: "words :1.2". */
static bool cut_weight(const char *param, struct prompt_parts *parts, struct error *err) {
    char *text = parts->text, *end = text + strlen(text);
    while (end > text && strchr(PROMPT_SPACES, end[-1]))
        end--;
    char *number = end;
    while (number > text && strchr(".0123456789", number[-1]))
        number--;
    char *sign = number;
    if (sign > text && number < end && strchr("+-", sign[-1]))
        sign--;
    char *colon = sign;
    while (colon > text && strchr(PROMPT_SPACES, colon[-1]))
        colon--;
    if (number == end || colon == text || colon[-1] != ':' ||
        !prompt_number(sign, (size_t)(end - sign), &parts->guidance))
        return true;
    if (!(fabs(parts->guidance) <= PROMPT_WEIGHT_MAX)) {
        char value[48];
        snprintf(value, sizeof(value), "%.40s", colon - 1);
        return error_field(err, param, value, "a weight of the prompt from %g to %g",
            -PROMPT_WEIGHT_MAX, PROMPT_WEIGHT_MAX);
    }
    for (colon--; colon > text && strchr(PROMPT_SPACES, colon[-1]);)
        colon--;
    *colon = 0;
    return true;
}

/* --- prompt editing and alternation --- */

/* An open [ and what it contains so far, without the contents of nested brackets. */
struct open_square {
    const char *begin, *colon; /* colon: the last colon, or NULL */
    int round;                 /* number of round brackets open in it */
    bool has_bar;
};

static bool refuse_square(const char *param, const struct open_square *square, const char *end,
    const char *what, struct error *err) {
    char value[SHOWN_BYTES + 1];
    const size_t size = (size_t)(end + 1 - square->begin);
    snprintf(value, sizeof(value), "%.*s", (int)(size < SHOWN_BYTES ? size : SHOWN_BYTES),
        square->begin);
    return error_field(
        err, param, value, "%s, which is not supported; write \\[ for a bracket", what);
}

/* Whether only a number stands between the colon and `end`, the closing bracket. */
static bool is_editing(const char *colon, const char *end) {
    double number;
    return colon && read_number(colon + 1, (size_t)(end - colon - 1), &number);
}

/* Refuses prompt editing, [a:b:0.5], [a:0.5] and [a::0.5], and alternation, [a|b]. Ignores what is
 * inside round brackets. attention_parse refuses brackets nested deeper than PROMPT_NESTING_MAX. */
static bool check_steps(const char *param, const char *text, struct error *err) {
    struct open_square open[PROMPT_NESTING_MAX];
    int count = 0;
    for (const char *at = text; *at && count < PROMPT_NESTING_MAX; at++) {
        struct open_square *last = count > 0 ? &open[count - 1] : NULL;
        if (*at == '\\' && at[1]) {
            at++;
        } else if (*at == '[') {
            open[count++] = (struct open_square){ .begin = at };
        } else if (last && *at == '(') {
            last->round++;
        } else if (last && *at == ')') {
            last->round -= last->round > 0;
        } else if (*at == ']' && last) {
            if (last->has_bar)
                return refuse_square(param, last, at, "an alternation of texts", err);
            if (is_editing(last->colon, at))
                return refuse_square(param, last, at, "prompt editing", err);
            count--;
        } else if (last && last->round == 0) {
            last->has_bar = last->has_bar || *at == '|';
            last->colon = *at == ':' ? at : last->colon;
        }
    }
    return true;
}

static bool check_and(const char *param, const char *text, struct error *err) {
    return !prompt_find_word(text, strlen(text), "AND") ||
           error_field(err, param, "AND",
               "one prompt: several at a time (composable diffusion) are not supported; in small "
               "letters it is a word");
}

bool prompt_parts_parse(const char *param, const char *text, bool negative,
    struct prompt_parts *out, struct error *err) {
    *out = (struct prompt_parts){ .text = malloc(strlen(text) + 1), .guidance = 1 };
    if (!out->text)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a text");
    bool ok = true;
    if (negative)
        memcpy(out->text, text, strlen(text) + 1);
    else
        ok = cut_tags(param, text, out, err) && check_and(param, out->text, err) &&
             cut_weight(param, out, err);
    if (ok && check_steps(param, out->text, err))
        return true;
    prompt_parts_finish(out);
    return false;
}
