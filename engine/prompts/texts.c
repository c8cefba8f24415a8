#include "engine/prompts/texts.h"

#include "base/limits.h"
#include "base/list.h"
#include "engine/prompts/attention.h"
#include "engine/prompts/syntax.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A full chunk ends at its last comma if at most this many tokens follow the comma. */
#define COMMA_BACKTRACK 20

void text_finish(struct text *text) {
    free(text->ids);
    free(text->weights);
    free(text->spans);
    *text = (struct text){ 0 };
}

int text_variant_at(const struct text *text, int evaluation) {
    return text->spans ? prompt_spans_at(text->spans, text->span_count, evaluation) : 0;
}

static bool are_idle(const float *weights, int count) {
    for (int i = 0; i < count; i++)
        if (weights[i] != 1)
            return false;
    return true;
}

static int count_vectors(const int32_t *ids, int count) {
    int vectors = 0;
    for (int i = 0; i < count; i++)
        vectors += ids[i] >= EMBEDDING_ID_FIRST;
    return vectors;
}

struct text text_variant(const struct text *text, int variant) {
    struct text out = *text;
    const size_t at = (size_t)variant * (size_t)text->tokens;
    out.variants = 1;
    out.spans = NULL;
    out.span_count = 0;
    if (!text->ids)
        return out;
    out.ids = text->ids + at;
    out.weights = text->weights && !are_idle(text->weights + at, text->tokens) ? text->weights + at
                                                                               : NULL;
    out.vectors = count_vectors(out.ids, out.tokens);
    return out;
}

void text_extras_finish(struct text_extras *extras) {
    free(extras->tags);
    free(extras->warning);
    free(extras->cut);
    *extras = (struct text_extras){ 0 };
}

static bool warn(struct text_extras *extras, char *text, struct error *err) {
    extras->warning = text;
    return text || error_set(err, ERROR_NO_MEMORY, "no memory for a warning");
}

/* Returns `embedding` if it can be used. Otherwise returns NULL and refuses the field `param` with
 * the reason. */
static const struct embedding *usable_embedding(
    const struct embedding *embedding, const char *param, struct error *err) {
    if (embedding && embedding->error.code == ERROR_NONE)
        return embedding;
    if (!embedding)
        error_set(err, ERROR_INTERNAL, "%s: an id of no embedding", param);
    else
        error_field(err, param, embedding->name,
            "other words, or an embedding that can be used: %s: %s", embedding->file,
            embedding->error.message);
    return NULL;
}

/* --- plain --- */

/* Encodes `string` to token ids. Each embedding in it becomes the ids of all its vectors. */
static bool encode_plain(const struct text_options *o, const char *param, const char *string,
    int32_t **tokens, size_t *count, struct error *err) {
    int32_t *ids, *out;
    size_t found, all = 0;
    if (!tokenizer_encode_words(
            o->tokenizer, embedding_set_words(o->embeddings), string, &ids, &found, err))
        return error_prefix(err, "%s", param);
    for (size_t i = 0; i < found; i++) {
        const struct embedding *e = embedding_set_find(o->embeddings, ids[i]);
        all += e ? (size_t)e->vectors : 1;
        if (ids[i] >= EMBEDDING_ID_FIRST && !usable_embedding(e, param, err)) {
            free(ids);
            return false;
        }
    }
    out = reallocarray(NULL, all + 1, sizeof(*out));
    for (size_t i = 0, at = 0; out && i < found; i++) {
        const struct embedding *e = embedding_set_find(o->embeddings, ids[i]);
        for (int k = 0; k < (e ? e->vectors : 1); k++)
            out[at++] = ids[i] + k;
    }
    free(ids);
    *tokens = out;
    *count = all;
    return out || error_set(err, ERROR_NO_MEMORY, "no memory for the prompt's tokens");
}

/* Sets the error for a text that needs too many chunks. Returns false. */
static bool refuse_length(
    const struct text_options *o, const char *param, size_t tokens, struct error *err) {
    char value[32];
    const int piece = o->context_length - 2;
    snprintf(value, sizeof(value), "%zu tokens", tokens);
    return error_field(err, param, value, "at most %d tokens: %d chunks of %d",
        TEXT_CHUNKS_MAX * piece, TEXT_CHUNKS_MAX, piece);
}

static bool create_plain(const struct text_options *o, const char *param, const char *string,
    struct text *out, struct text_extras *extras, struct error *err) {
    const size_t piece = (size_t)o->context_length - 2;
    const bool chunk = o->long_prompt == LONG_PROMPT_CHUNK;
    const size_t most = piece * (chunk ? TEXT_CHUNKS_MAX : 1);
    int32_t *tokens = NULL;
    size_t count = 0, chunks;
    if (!encode_plain(o, param, string, &tokens, &count, err))
        return false;
    const size_t kept = count < most ? count : most;
    bool ok = count == kept || !chunk || refuse_length(o, param, count, err);
    ok = ok && tokenizer_chunk(
                   o->tokenizer, tokens, kept, (size_t)o->context_length, &out->ids, &chunks, err);
    if (ok) {
        out->chunks = (int)chunks;
        out->counted = (int)count;
    }
    if (ok && kept < count) {
        char *warning = NULL;
        extras->cut = tokenizer_decode(o->tokenizer, tokens + kept, count - kept);
        if (extras->cut &&
            asprintf(&warning, "%s: only the first %zu tokens were used; this was cut: \"%s\"",
                param, piece, extras->cut) < 0)
            warning = NULL;
        ok = warn(extras, warning, err);
    }
    free(tokens);
    return ok;
}

/* --- AUTOMATIC1111's syntax --- */

/* Collects the chunks of a text. The chunk being filled has no begin and end marks yet. */
struct chunker {
    const struct text_options *options;
    const char *param;
    int32_t *out_ids;   /* [TEXT_CHUNKS_MAX][piece + 2] */
    float *out_weights; /* shaped like out_ids */
    int chunks;         /* so far */
    int counted;        /* tokens in them, without marks and padding */
    int32_t *tokens;    /* owned: [piece], of the chunk being filled */
    float *weights;     /* owned: [piece], of the chunk being filled */
    size_t piece, count;
    ptrdiff_t last_comma; /* index in this chunk; -1: no comma */
    int32_t comma;        /* token of the comma; -1: not in the vocabulary */
    struct error *err;
};

/* Ends the chunk: adds its begin and end marks and padding, all with weight 1. */
static bool end_chunk(struct chunker *c) {
    const size_t length = c->piece + 2, at = (size_t)c->chunks * length;
    if (c->chunks == TEXT_CHUNKS_MAX) {
        char value[48];
        snprintf(value, sizeof(value), "more than %d chunks", TEXT_CHUNKS_MAX);
        return error_field(
            c->err, c->param, value, "at most %d of %zu tokens each", TEXT_CHUNKS_MAX, c->piece);
    }
    tokenizer_mark(c->options->tokenizer, c->tokens, c->count, length, c->out_ids + at);
    for (size_t i = 0; i < length; i++)
        c->out_weights[at + i] = i > 0 && i <= c->count ? c->weights[i - 1] : 1;
    c->chunks++;
    c->counted += (int)c->count;
    c->count = 0;
    c->last_comma = -1;
    return true;
}

static void add(struct chunker *c, int32_t token, double weight) {
    c->tokens[c->count] = token;
    c->weights[c->count++] = (float)weight;
}

/* Ends the full chunk after its last comma. The tokens behind the comma move to the next chunk. */
static bool break_at_comma(struct chunker *c) {
    const size_t kept = (size_t)(c->last_comma + 1), moved = c->count - kept;
    c->count = kept;
    if (!end_chunk(c))
        return false;
    memmove(c->tokens, c->tokens + kept, moved * sizeof(*c->tokens));
    memmove(c->weights, c->weights + kept, moved * sizeof(*c->weights));
    c->count = moved;
    return true;
}

/* Adds all vectors of an embedding to one chunk. Begins a new chunk if they do not fit into this
 * one. */
static bool take_vectors(struct chunker *c, const struct embedding *e, double weight) {
    if (!usable_embedding(e, c->param, c->err))
        return false;
    if ((size_t)e->vectors > c->piece) {
        char value[64];
        snprintf(value, sizeof(value), "%d vectors", e->vectors);
        return error_field(
            c->err, c->param, value, "embeddings of at most %zu, which fit a chunk", c->piece);
    }
    if (c->count + (size_t)e->vectors > c->piece && !end_chunk(c))
        return false;
    for (int k = 0; k < e->vectors; k++)
        add(c, e->first_id + k, weight);
    return true;
}

static bool take_tokens(struct chunker *c, const int32_t *tokens, size_t count, double weight) {
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] == c->comma)
            c->last_comma = (ptrdiff_t)c->count;
        else if (c->count == c->piece && c->last_comma >= 0 &&
                 c->count - (size_t)c->last_comma <= COMMA_BACKTRACK && !break_at_comma(c))
            return false;
        if (c->count == c->piece && !end_chunk(c))
            return false;
        size_t used = 1;
        const struct embedding *e = embedding_set_match(
            c->options->embeddings, tokens + i, count - i, &used);
        if (!e)
            add(c, tokens[i], weight);
        else if (!take_vectors(c, e, weight))
            return false;
        i += used - 1;
    }
    return true;
}

static bool take_piece(struct chunker *c, const struct attention *a, size_t index) {
    const struct attention_piece *piece = &a->pieces[index];
    if (attention_is_break(a, index))
        return end_chunk(c);
    char *string = strndup(a->text + piece->begin, piece->end - piece->begin);
    int32_t *tokens = NULL;
    size_t count;
    bool ok = string || error_set(c->err, ERROR_NO_MEMORY, "no memory for a text");
    if (ok && !tokenizer_encode(c->options->tokenizer, string, &tokens, &count, c->err))
        ok = error_prefix(c->err, "%s", c->param);
    ok = ok && take_tokens(c, tokens, count, piece->weight);
    free(tokens);
    free(string);
    return ok;
}

static bool take_all(struct chunker *c, const struct attention *a) {
    for (size_t i = 0; i < a->count; i++)
        if (!take_piece(c, a, i))
            return false;
    return (c->count == 0 && c->chunks > 0) || end_chunk(c);
}

/* Writes the chunks of one variant to ids and weights, [TEXT_CHUNKS_MAX][context_length]. The last
 * chunks are empty texts. *chunks is the number of the others, *counted that of their tokens. */
static bool fill_chunks(const struct text_options *o, const char *param,
    const struct attention *attention, int32_t *ids, float *weights, int *chunks, int *counted,
    struct error *err) {
    struct chunker c = {
        .options = o,
        .param = param,
        .out_ids = ids,
        .out_weights = weights,
        .piece = (size_t)o->context_length - 2,
        .last_comma = -1,
        .comma = tokenizer_find(o->tokenizer, ",</w>"),
        .err = err,
    };
    c.tokens = calloc(c.piece, sizeof(*c.tokens));
    c.weights = calloc(c.piece, sizeof(*c.weights));
    bool ok = c.tokens && c.weights
                  ? take_all(&c, attention)
                  : error_set(err, ERROR_NO_MEMORY, "no memory for a text's tokens");
    *chunks = c.chunks;
    *counted = c.counted;
    while (ok && c.chunks < TEXT_CHUNKS_MAX)
        ok = end_chunk(&c);
    free(c.tokens);
    free(c.weights);
    return ok;
}

/* Drops the weights if all are 1, so that the encoded text is not touched. */
static void drop_idle_weights(struct text *text) {
    if (!are_idle(text->weights, text->variants * text->tokens))
        return;
    free(text->weights);
    text->weights = NULL;
}

/* Warns about syntax that the user may not have intended: BREAK in brackets, a weight at the
 * end. */
static bool warn_of(const char *param, const struct attention *attention, double guidance,
    struct text_extras *extras, struct error *err) {
    char *text = NULL;
    if (extras->warning) /* by another variant or part of this prompt */
        return true;
    for (size_t i = 0; i < attention->count; i++)
        if (attention_is_break_in_brackets(attention, i))
            return warn(extras,
                asprintf(&text,
                    "%s: a BREAK in brackets is a word, as in AUTOMATIC1111: close them before it",
                    param) < 0
                    ? NULL
                    : text,
                err);
    return guidance == 1 || warn(extras,
                                asprintf(&text,
                                    "%s: \":%.6g\" at its end is the weight of the whole prompt: "
                                    "guidance_scale is multiplied by it",
                                    param, guidance) < 0
                                    ? NULL
                                    : text,
                                err);
}

/* Keeps the first `chunks` chunks of each variant. As in AUTOMATIC1111, a variant that is
 * shorter than another one of the same text ends with empty chunks. */
static void pack(struct text *text, int chunks, int length) {
    const size_t kept = (size_t)(chunks * length), all = (size_t)(TEXT_CHUNKS_MAX * length);
    for (size_t i = 1; i < (size_t)text->variants; i++) {
        memmove(text->ids + i * kept, text->ids + i * all, kept * sizeof(*text->ids));
        memmove(text->weights + i * kept, text->weights + i * all, kept * sizeof(*text->weights));
    }
    text->chunks = chunks;
    text->tokens = chunks * length;
    int32_t *ids = reallocarray(text->ids, kept, (size_t)text->variants * sizeof(*ids));
    float *weights = reallocarray(text->weights, kept, (size_t)text->variants * sizeof(*weights));
    text->ids = ids ? ids : text->ids;
    text->weights = weights ? weights : text->weights;
}

static bool fill_variants(const struct text_options *o, const char *param,
    const struct prompt_schedule *schedule, double guidance, struct text *out,
    struct text_extras *extras, struct error *err) {
    const size_t each = (size_t)(o->context_length * TEXT_CHUNKS_MAX);
    const size_t all = each * (size_t)schedule->variant_count;
    int longest = 0;
    out->ids = calloc(all, sizeof(*out->ids));
    out->weights = calloc(all, sizeof(*out->weights));
    if (!out->ids || !out->weights)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a text's tokens");
    for (int i = 0; i < schedule->variant_count; i++) {
        struct attention attention = { 0 };
        const size_t at = each * (size_t)i;
        int chunks = 0, counted = 0;
        const bool ok = attention_parse(param, schedule->variants[i], &attention, err) &&
                        fill_chunks(o, param, &attention, out->ids + at, out->weights + at, &chunks,
                            &counted, err) &&
                        warn_of(param, &attention, guidance, extras, err);
        attention_finish(&attention);
        if (!ok)
            return false;
        longest = chunks > longest ? chunks : longest;
        out->counted = counted > out->counted ? counted : out->counted;
    }
    out->variants = schedule->variant_count;
    pack(out, longest, o->context_length);
    drop_idle_weights(out);
    return true;
}

/* Makes the text of one part of a prompt. `alone`: it is the only part. `most`: variants that the
 * prompt may still have. */
static bool create_part(const struct text_options *o, const char *param,
    const struct prompt_part *part, bool alone, int most, struct text *out,
    struct text_extras *extras, struct error *err) {
    struct prompt_schedule schedule;
    if (!prompt_schedule_parse(param, part->text, o->evaluations, most, &schedule, err))
        return false;
    out->guidance = part->weight;
    const bool ok = fill_variants(o, param, &schedule, alone ? part->weight : 1, out, extras, err);
    if (ok && schedule.variant_count > 1) {
        out->spans = schedule.spans;
        out->span_count = schedule.span_count;
        schedule.spans = NULL;
    }
    prompt_schedule_finish(&schedule);
    return ok;
}

/* Appends an empty struct to the list; NULL if there is no memory. */
static struct text *append(struct text **texts, int *count, struct error *err) {
    if (!LIST_ROOM(*texts, *count, "a prompt's texts", err))
        return NULL;
    struct text *text = &(*texts)[(*count)++];
    *text = (struct text){ .guidance = 1, .variants = 1 };
    return text;
}

static bool append_weighted(const struct text_options *o, const char *param, const char *string,
    bool negative, struct text **texts, int *count, struct text_extras *extras, struct error *err) {
    struct prompt_parts parts;
    if (!prompt_parts_parse(param, string, negative, &parts, err))
        return false;
    bool ok = true;
    int most = PROMPT_VARIANTS_MAX;
    for (int i = 0; ok && i < parts.count; i++) {
        struct text *text = append(texts, count, err);
        ok = text &&
             create_part(o, param, &parts.parts[i], parts.count == 1, most, text, extras, err);
        most -= ok ? text->variants : 0;
    }
    if (ok) {
        extras->tags = parts.tags;
        extras->tag_count = parts.tag_count;
        parts.tags = NULL;
    }
    prompt_parts_finish(&parts);
    return ok;
}

static bool append_plain(const struct text_options *o, const char *param, const char *string,
    struct text **texts, int *count, struct text_extras *extras, struct error *err) {
    struct text *text = append(texts, count, err);
    if (!text || !create_plain(o, param, string, text, extras, err))
        return false;
    text->tokens = text->chunks * o->context_length;
    return true;
}

bool texts_append(const struct text_options *options, const char *param, const char *string,
    bool negative, struct text **texts, int *count, struct text_extras *extras, struct error *err) {
    const int first = *count;
    if (options->syntax == PROMPT_SYNTAX_A1111
            ? !append_weighted(options, param, string, negative, texts, count, extras, err)
            : !append_plain(options, param, string, texts, count, extras, err))
        return false;
    for (int i = first; i < *count; i++) {
        struct text *text = &(*texts)[i];
        text->vectors = count_vectors(text->ids, text->variants * text->tokens);
    }
    return true;
}

/* --- counting --- */

void text_count_finish(struct text_count *count) {
    free(count->cut);
    *count = (struct text_count){ 0 };
}

bool text_count(const struct text_options *options, const char *param, const char *string,
    bool negative, struct text_count *out, struct error *err) {
    struct text *texts = NULL;
    int count = 0;
    struct text_extras extras = { 0 };
    const bool ok = texts_append(options, param, string, negative, &texts, &count, &extras, err);
    if (ok)
        *out = (struct text_count){ .chunk_tokens = options->context_length - 2,
            .cut = extras.cut };
    for (int i = 0; i < count; i++) {
        if (ok && texts[i].counted >= out->tokens) {
            out->tokens = texts[i].counted;
            out->chunks = texts[i].chunks;
        }
        text_finish(&texts[i]);
    }
    if (ok)
        extras.cut = NULL;
    text_extras_finish(&extras);
    free(texts);
    return ok;
}

/* --- weights --- */

static double mean_of(const float *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i];
    return sum / (double)count;
}

/* Applies the weights to one chunk in place. x: [tokens][width]. */
static bool weigh_chunk(
    const float *weights, int64_t tokens, int64_t width, float *x, struct error *err) {
    const double before = mean_of(x, tokens * width);
    for (int64_t i = 0; i < tokens * width; i++)
        x[i] *= weights[i / width];
    const double after = mean_of(x, tokens * width);
    const float ratio = (float)(before / after);
    if (!isfinite(ratio))
        return error_set(err, ERROR_INVALID,
            "the prompt's weights give a chunk the mean %g, which cannot be scaled to the chunk's "
            "own mean %g",
            after, before);
    for (int64_t i = 0; i < tokens * width; i++)
        x[i] *= ratio;
    return true;
}

bool text_weigh(const float *weights, int64_t chunks, int64_t tokens, int64_t width,
    enum dtype dtype, const void *from, void *to, struct error *err) {
    const int64_t each = tokens * width;
    float *x = malloc((size_t)(chunks * each) * sizeof(*x));
    if (!x)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an encoded text");
    convert_elements(x, DTYPE_F32, from, dtype, chunks * each);
    bool ok = true;
    for (int64_t i = 0; ok && i < chunks; i++)
        ok = weigh_chunk(weights + i * tokens, tokens, width, x + i * each, err);
    if (ok)
        convert_elements(to, dtype, x, DTYPE_F32, chunks * each);
    free(x);
    return ok;
}
