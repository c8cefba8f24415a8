#include "engine/prompts/attention.h"

#include "base/limits.h"
#include "base/list.h"
#include "engine/prompts/syntax.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_FACTOR 1.1
#define SQUARE_FACTOR (1 / 1.1)

/* The open brackets of one kind, as the index of the piece at which each begins. Round and square
 * brackets are counted separately. */
struct brackets {
    size_t open[PROMPT_NESTING_MAX];
    int count;
};

struct parser {
    const char *param;
    struct attention *out;
    size_t used; /* bytes used in out->text */
    struct brackets round, square;
    struct error *err;
};

void attention_finish(struct attention *attention) {
    free(attention->text);
    free(attention->pieces);
    *attention = (struct attention){ 0 };
}

static bool append(struct parser *p, const char *text, size_t size, double weight) {
    struct attention *out = p->out;
    if (!LIST_ROOM(out->pieces, out->count, "the pieces of a text", p->err))
        return false;
    memcpy(out->text + p->used, text, size);
    out->pieces[out->count++] = (struct attention_piece){ p->used, p->used + size, weight };
    p->used += size;
    return true;
}

static bool open_bracket(struct parser *p, struct brackets *brackets) {
    char value[32];
    if (brackets->count < PROMPT_NESTING_MAX) {
        brackets->open[brackets->count++] = p->out->count;
        return true;
    }
    snprintf(value, sizeof(value), "%d brackets", brackets->count + 1);
    return error_field(p->err, p->param, value,
        "at most %d of them open at a time; \\( and \\[ are brackets that are only text",
        PROMPT_NESTING_MAX);
}

/* Multiplies the weights of all pieces since the last open bracket. The limit on nesting bounds
 * this to PROMPT_NESTING_MAX times per piece. */
static void close_bracket(struct parser *p, struct brackets *brackets, double factor) {
    for (size_t i = brackets->open[--brackets->count]; i < p->out->count; i++)
        p->out->pieces[i].weight *= factor;
}

/* Matches ": NUMBER )"; text[0] is the colon. Returns the end of the match, or NULL. Writes the
 * position and length of the number. */
static const char *find_factor(const char *text, const char **number, size_t *length) {
    const char *at = text + 1;
    at += strspn(at, PROMPT_SPACES);
    *number = at;
    at += *at == '+' || *at == '-';
    const size_t digits = strspn(at, ".0123456789");
    at += digits;
    *length = (size_t)(at - *number);
    at += strspn(at, PROMPT_SPACES);
    return digits > 0 && *at == ')' ? at + 1 : NULL;
}

static bool read_factor(struct parser *p, const char *number, size_t length, double *out) {
    char value[64];
    snprintf(value, sizeof(value), ":%.*s", (int)(length < 48 ? length : 48), number);
    return prompt_number(number, length, out) ||
           error_field(p->err, p->param, value, "a number behind the colon, as in (text:1.2)");
}

/* Appends text that may contain the word BREAK. */
static bool append_words(struct parser *p, const char *text, size_t size) {
    for (;;) {
        const char *word = prompt_find_word(text, size, "BREAK");
        const size_t before = word ? (size_t)(word - text) : size;
        if (!append(p, text, before, 1) || (word && !append(p, word, strlen("BREAK"), -1)))
            return false;
        if (!word)
            return true;
        text += before + strlen("BREAK");
        size -= before + strlen("BREAK");
    }
}

/* Parses the element at `at`. Returns the end of the element, or NULL after an error. */
static const char *take(struct parser *p, const char *at) {
    const char *number = NULL, *end;
    size_t length = 0;
    double factor;
    end = *at == ':' ? find_factor(at, &number, &length) : NULL;
    if (*at == '\\') {
        const size_t escaped = at[1] && strchr("()[]\\", at[1]) ? 1 : 0;
        return append(p, at + 1, escaped, 1) ? at + 1 + escaped : NULL;
    }
    if (*at == '(' || *at == '[')
        return open_bracket(p, *at == '(' ? &p->round : &p->square) ? at + 1 : NULL;
    if (end && p->round.count > 0) {
        if (!read_factor(p, number, length, &factor))
            return NULL;
        close_bracket(p, &p->round, factor);
        return end;
    }
    if (*at == ')' && p->round.count > 0) {
        close_bracket(p, &p->round, ROUND_FACTOR);
        return at + 1;
    }
    if (*at == ']' && p->square.count > 0) {
        close_bracket(p, &p->square, SQUARE_FACTOR);
        return at + 1;
    }
    if (!end)
        end = at + (strchr(")]:", *at) ? 1 : strcspn(at, "\\()[]:"));
    return append_words(p, at, (size_t)(end - at)) ? end : NULL;
}

/* Merges consecutive pieces of equal weight. Their texts are already adjacent. */
static void merge(struct attention *out) {
    size_t kept = 0;
    for (size_t i = 1; i < out->count; i++) {
        if (out->pieces[i].weight == out->pieces[kept].weight)
            out->pieces[kept].end = out->pieces[i].end;
        else
            out->pieces[++kept] = out->pieces[i];
    }
    out->count = kept + 1;
}

static bool check_weights(const struct parser *p) {
    char value[48];
    for (size_t i = 0; i < p->out->count; i++) {
        const double weight = p->out->pieces[i].weight;
        if (fabs(weight) <= PROMPT_WEIGHT_MAX)
            continue;
        snprintf(value, sizeof(value), "a weight of %.6g", weight);
        return error_field(p->err, p->param, value, "weights from %g to %g", -PROMPT_WEIGHT_MAX,
            PROMPT_WEIGHT_MAX);
    }
    return true;
}

static bool parse(struct parser *p, const char *text) {
    for (const char *at = text; *at;)
        if (!(at = take(p, at)))
            return false;
    while (p->round.count > 0)
        close_bracket(p, &p->round, ROUND_FACTOR);
    while (p->square.count > 0)
        close_bracket(p, &p->square, SQUARE_FACTOR);
    if (p->out->count == 0 && !append(p, "", 0, 1))
        return false;
    merge(p->out);
    return check_weights(p);
}

bool attention_parse(
    const char *param, const char *text, struct attention *out, struct error *err) {
    struct parser p = { .param = param, .out = out, .err = err };
    *out = (struct attention){ .text = malloc(strlen(text) + 1) };
    if (!out->text)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a text");
    if (parse(&p, text)) {
        out->text[p.used] = 0;
        return true;
    }
    attention_finish(out);
    return false;
}

static bool is_break_word(const struct attention *attention, size_t piece) {
    const struct attention_piece *p = &attention->pieces[piece];
    return p->end - p->begin == strlen("BREAK") &&
           memcmp(attention->text + p->begin, "BREAK", strlen("BREAK")) == 0;
}

bool attention_is_break(const struct attention *attention, size_t piece) {
    return is_break_word(attention, piece) && attention->pieces[piece].weight == -1;
}

bool attention_is_break_in_brackets(const struct attention *attention, size_t piece) {
    return is_break_word(attention, piece) && attention->pieces[piece].weight < 0 &&
           attention->pieces[piece].weight != -1;
}
