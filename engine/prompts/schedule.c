#include "engine/prompts/schedule.h"

#include "base/limits.h"
#include "base/list.h"
#include "engine/prompts/syntax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An edit or an alternation in the text: text[begin .. end). */
struct construct {
    int begin, end;
    bool alternates;
    bool has_before; /* of an edit */
    int when;        /* of an edit: its first text holds up to this evaluation */
    int count;       /* of an alternation: its texts */
};

/* An open bracket, and what stands directly in it. */
struct open_bracket {
    int begin;
    int colons, bars;
    int last; /* its last : or |; before the first one, the bracket itself */
};

struct parser {
    const char *param, *text;
    int size, steps, most;
    struct construct *list; /* owned, [count] */
    int count;
    int *at;   /* owned, [size]: the construct that begins here, as an index + 1; or 0 */
    int *next; /* owned, [size]: from a bracket, : or | to the next : or | or the closing bracket */
    struct open_bracket open[PROMPT_NESTING_MAX];
    int depth;
    bool is_literal; /* the whole text */
    size_t bytes;    /* of all variants so far */
    struct error *err;
};

void prompt_schedule_finish(struct prompt_schedule *schedule) {
    for (int i = 0; i < schedule->variant_count; i++)
        free(schedule->variants[i]);
    free(schedule->variants);
    free(schedule->spans);
    *schedule = (struct prompt_schedule){ 0 };
}

int prompt_spans_at(const struct prompt_span *spans, int count, int evaluation) {
    int i = 0;
    while (i + 1 < count && spans[i].last < evaluation)
        i++;
    return spans[i].variant;
}

/* --- constructs --- */

/* Reads the number behind the last colon of an edit, with spaces around it, as the evaluation up to
 * which the first text holds. Returns false if there is no number. */
static bool read_when(const struct parser *p, int begin, int end, int *when) {
    const char *from = p->text + begin, *to = p->text + end;
    char number[64], *stop;
    size_t spaces;
    while ((spaces = prompt_space(from, to)) > 0)
        from += spaces;
    while ((spaces = prompt_space_before(from, to)) > 0)
        to -= spaces;
    const size_t length = (size_t)(to - from);
    if (length == 0 || length >= sizeof(number) || strspn(from, "+-.0123456789eE") < length)
        return false;
    memcpy(number, from, length);
    number[length] = 0;
    double value = strtod(number, &stop);
    if (*stop)
        return false;
    if (strchr(number, '.'))
        value *= p->steps;
    *when = value >= p->steps ? p->steps : value > -1 ? (int)value : -1;
    return true;
}

/* Ends the innermost bracket at its closing one, at `end`. Returns false if the bracket is only
 * text; then the brackets around it are only text, too. */
static bool close_bracket(struct parser *p, int end, bool *out_of_memory) {
    const struct open_bracket *b = &p->open[p->depth - 1];
    struct construct made = { .begin = b->begin, .end = end + 1 };
    p->next[b->last] = end;
    const bool square = p->text[b->begin] == '[';
    if (b->bars == 0 && b->colons == 0)
        return true;
    if (!square)
        return b->bars == 0 && b->colons == 1;
    if (b->bars > 0 && b->colons > 0)
        return false;
    made.alternates = b->bars > 0;
    made.count = b->bars + 1;
    made.has_before = b->colons == 2;
    if (b->colons > 2 || (b->colons > 0 && !read_when(p, b->last + 1, end, &made.when)))
        return false;
    if (!LIST_ROOM(p->list, p->count, "a prompt's edits", p->err)) {
        *out_of_memory = true;
        return false;
    }
    p->list[p->count++] = made;
    p->at[b->begin] = p->count;
    return true;
}

/* Takes all open brackets as text. A | in one of them then has no meaning. */
static void give_up_brackets(struct parser *p) {
    for (; p->depth > 0; p->depth--)
        p->is_literal = p->is_literal || p->open[p->depth - 1].bars > 0;
}

static bool open_bracket(struct parser *p, int at) {
    char value[32];
    if (p->depth < PROMPT_NESTING_MAX) {
        p->open[p->depth++] = (struct open_bracket){ .begin = at, .last = at };
        return true;
    }
    snprintf(value, sizeof(value), "%d brackets", p->depth + 1);
    return error_field(p->err, p->param, value,
        "at most %d of them open at a time; \\( and \\[ are brackets that are only text",
        PROMPT_NESTING_MAX);
}

static void take_separator(struct parser *p, int at) {
    struct open_bracket *b = p->depth > 0 ? &p->open[p->depth - 1] : NULL;
    const bool bar = p->text[at] == '|';
    if (!b) {
        p->is_literal = p->is_literal || bar;
        return;
    }
    b->bars += bar;
    b->colons += !bar;
    p->next[b->last] = at;
    b->last = at;
}

/* Finds the constructs of the text. */
static bool find_constructs(struct parser *p) {
    bool out_of_memory = false;
    for (int i = 0; i < p->size && !p->is_literal; i++) {
        const char c = p->text[i];
        const char opens = c == ')' ? '(' : c == ']' ? '[' : 0;
        if (c == '\\') {
            i++;
            p->is_literal = i == p->size || p->text[i] == '\n';
        } else if (c == '(' || c == '[') {
            if (!open_bracket(p, i))
                return false;
        } else if (opens && p->depth > 0 && p->text[p->open[p->depth - 1].begin] == opens &&
                   close_bracket(p, i, &out_of_memory)) {
            p->depth--;
        } else if (opens) {
            give_up_brackets(p);
        } else if (c == ':' || c == '|') {
            take_separator(p, i);
        }
        if (out_of_memory)
            return false;
    }
    give_up_brackets(p);
    return true;
}

/* --- the texts --- */

/* Writes text[from .. to) as it is in evaluation `step`, counted from 1 for alternations. Returns
 * the end of what it wrote. The depth is at most PROMPT_NESTING_MAX. */
static char *render(const struct parser *p, int from, int to, int step, char *out) {
    for (int i = from; i < to; i++) {
        if (!p->at[i]) {
            *out++ = p->text[i];
            continue;
        }
        const struct construct *c = &p->list[p->at[i] - 1];
        int begin = c->begin, skipped = 0;
        if (c->alternates)
            skipped = (step - 1) % c->count;
        else if (c->has_before)
            skipped = step > c->when;
        for (; skipped > 0; skipped--)
            begin = p->next[begin];
        if (c->alternates || c->has_before || step > c->when)
            out = render(p, begin + 1, p->next[begin], step, out);
        i = c->end - 1;
    }
    return out;
}

static bool refuse_variants(const struct parser *p) {
    char value[48];
    snprintf(value, sizeof(value), "more than %d texts", PROMPT_VARIANTS_MAX);
    return error_field(p->err, p->param, value,
        "at most %d different texts of a prompt, made by editing [a:b:0.5] and alternation [a|b]",
        PROMPT_VARIANTS_MAX);
}

/* The texts together are bounded too: each is parsed and tokenized. */
static bool refuse_bytes(const struct parser *p) {
    char value[64];
    snprintf(
        value, sizeof(value), "texts of more than %d bytes together", PROMPT_VARIANTS_BYTES_MAX);
    return error_field(p->err, p->param, value,
        "fewer or shorter texts, made by editing [a:b:0.5] and alternation [a|b]");
}

/* Appends the span that ends at `last`, with its text. `room` fits the text. */
static bool add_span(struct parser *p, int last, char *room, struct prompt_schedule *out) {
    int variant = 0;
    *render(p, 0, p->size, last, room) = 0;
    while (variant < out->variant_count && strcmp(out->variants[variant], room) != 0)
        variant++;
    if (variant == p->most)
        return refuse_variants(p);
    if (!LIST_ROOM(out->spans, out->span_count, "a prompt's schedule", p->err))
        return false;
    if (variant == out->variant_count) {
        p->bytes += strlen(room);
        if (variant > 0 && p->bytes > PROMPT_VARIANTS_BYTES_MAX)
            return refuse_bytes(p);
        char *text = strdup(room);
        if (!text || !LIST_ROOM(out->variants, variant, "a prompt's texts", p->err)) {
            free(text);
            return error_set(p->err, ERROR_NO_MEMORY, "no memory for a prompt's texts");
        }
        out->variants[out->variant_count++] = text;
    }
    out->spans[out->span_count++] = (struct prompt_span){ last, variant };
    return true;
}

/* `ends`, [steps + 1], are zero. */
static bool add_spans(struct parser *p, bool *ends, char *room, struct prompt_schedule *out) {
    bool ok = true;
    for (int i = 0; i < p->count; i++) {
        if (!p->list[i].alternates && p->list[i].when >= 1)
            ends[p->list[i].when] = true;
        if (p->list[i].alternates)
            memset(ends + 1, true, (size_t)p->steps);
    }
    ends[p->steps] = true;
    for (int last = 1; ok && last <= p->steps; last++)
        ok = !ends[last] || add_span(p, last, room, out);
    return ok;
}

bool prompt_schedule_parse(const char *param, const char *text, int steps, int most,
    struct prompt_schedule *out, struct error *err) {
    const size_t size = strlen(text);
    struct parser p = {
        .param = param, .text = text, .size = (int)size, .steps = steps, .most = most, .err = err
    };
    *out = (struct prompt_schedule){ 0 };
    p.at = calloc(size + 1, sizeof(*p.at));
    p.next = calloc(size + 1, sizeof(*p.next));
    bool *ends = calloc((size_t)steps + 1, sizeof(*ends));
    char *room = malloc(size + 1);
    bool ok = p.at && p.next && ends && room;
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for a prompt");
    ok = ok && find_constructs(&p);
    if (ok && p.is_literal) {
        memset(p.at, 0, size * sizeof(*p.at));
        p.count = 0;
    }
    ok = ok && add_spans(&p, ends, room, out);
    free(p.at);
    free(p.next);
    free(p.list);
    free(ends);
    free(room);
    if (!ok)
        prompt_schedule_finish(out);
    return ok;
}
