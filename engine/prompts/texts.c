#include "engine/prompts/texts.h"

#include "base/limits.h"
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
    *text = (struct text){ 0 };
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

static void count_vectors(struct text *text) {
    for (int i = 0; i < text->tokens; i++)
        text->vectors += text->ids[i] >= EMBEDDING_ID_FIRST;
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
    struct text *out;
    int32_t *tokens; /* owned: [piece], of the chunk being filled */
    float *weights;  /* owned: [piece], of the chunk being filled */
    size_t piece, count;
    ptrdiff_t last_comma; /* index in this chunk; -1: no comma */
    int32_t comma;        /* token of the comma; -1: not in the vocabulary */
    struct error *err;
};

/* Ends the chunk: adds its begin and end marks and padding, all with weight 1. */
static bool end_chunk(struct chunker *c) {
    struct text *out = c->out;
    const size_t length = c->piece + 2, at = (size_t)out->chunks * length;
    if (out->chunks == TEXT_CHUNKS_MAX) {
        char value[48];
        snprintf(value, sizeof(value), "more than %d chunks", TEXT_CHUNKS_MAX);
        return error_field(
            c->err, c->param, value, "at most %d of %zu tokens each", TEXT_CHUNKS_MAX, c->piece);
    }
    tokenizer_mark(c->options->tokenizer, c->tokens, c->count, length, out->ids + at);
    for (size_t i = 0; i < length; i++)
        out->weights[at + i] = i > 0 && i <= c->count ? c->weights[i - 1] : 1;
    out->chunks++;
    out->counted += (int)c->count;
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
    return (c->count == 0 && c->out->chunks > 0) || end_chunk(c);
}

static bool fill_chunks(const struct text_options *o, const char *param,
    const struct attention *attention, struct text *out, struct error *err) {
    const size_t length = (size_t)o->context_length, most = length * TEXT_CHUNKS_MAX;
    struct chunker c = {
        .options = o,
        .param = param,
        .out = out,
        .piece = length - 2,
        .last_comma = -1,
        .comma = tokenizer_find(o->tokenizer, ",</w>"),
        .err = err,
    };
    out->ids = calloc(most, sizeof(*out->ids));
    out->weights = calloc(most, sizeof(*out->weights));
    c.tokens = calloc(c.piece, sizeof(*c.tokens));
    c.weights = calloc(c.piece, sizeof(*c.weights));
    const bool ok = out->ids && out->weights && c.tokens && c.weights
                        ? take_all(&c, attention)
                        : error_set(err, ERROR_NO_MEMORY, "no memory for a text's tokens");
    free(c.tokens);
    free(c.weights);
    return ok;
}

/* Drops the weights if all are 1, so that the encoded text is not touched. */
static void drop_idle_weights(const struct text_options *o, struct text *text) {
    for (int i = 0; i < text->chunks * o->context_length; i++)
        if (text->weights[i] != 1)
            return;
    free(text->weights);
    text->weights = NULL;
}

/* Warns about syntax that the user may not have intended: BREAK in brackets, a weight at the
 * end. */
static bool warn_of(const char *param, const struct attention *attention, double guidance,
    struct text_extras *extras, struct error *err) {
    char *text = NULL;
    for (size_t i = 0; i < attention->count; i++)
        if (attention_is_break_in_brackets(attention, i))
            return warn(extras,
                asprintf(&text,
                    "%s: a BREAK in brackets is a word, as in AUTOMATIC1111: close them before it",
                    param) < 0
                    ? NULL
                    : text,
                err);
    return guidance == 1 ||
           warn(extras,
               asprintf(&text,
                   "%s: \":%.6g\" at its end is the weight of all of it: guidance_scale is "
                   "multiplied with it",
                   param, guidance) < 0
                   ? NULL
                   : text,
               err);
}

static bool create_weighted(const struct text_options *o, const char *param, const char *string,
    bool negative, struct text *out, struct text_extras *extras, struct error *err) {
    struct prompt_parts parts;
    struct attention attention = { 0 };
    if (!prompt_parts_parse(param, string, negative, &parts, err))
        return false;
    bool ok = attention_parse(param, parts.text, &attention, err) &&
              fill_chunks(o, param, &attention, out, err) &&
              warn_of(param, &attention, parts.guidance, extras, err);
    if (ok) {
        drop_idle_weights(o, out);
        out->guidance = parts.guidance;
        extras->tags = parts.tags;
        extras->tag_count = parts.tag_count;
        parts.tags = NULL;
    }
    attention_finish(&attention);
    prompt_parts_finish(&parts);
    return ok;
}

bool text_create(const struct text_options *options, const char *param, const char *string,
    bool negative, struct text *out, struct text_extras *extras, struct error *err) {
    *out = (struct text){ .guidance = 1 };
    const bool ok = options->syntax == PROMPT_SYNTAX_A1111
                        ? create_weighted(options, param, string, negative, out, extras, err)
                        : create_plain(options, param, string, out, extras, err);
    out->tokens = out->chunks * options->context_length;
    if (ok)
        count_vectors(out);
    else
        text_finish(out);
    return ok;
}

/* --- counting --- */

void text_count_finish(struct text_count *count) {
    free(count->cut);
    *count = (struct text_count){ 0 };
}

bool text_count(const struct text_options *options, const char *param, const char *string,
    bool negative, struct text_count *out, struct error *err) {
    struct text text;
    struct text_extras extras = { 0 };
    const bool ok = text_create(options, param, string, negative, &text, &extras, err);
    if (ok) {
        *out = (struct text_count){ text.counted, text.chunks, options->context_length - 2,
            extras.cut };
        extras.cut = NULL;
        text_finish(&text);
    }
    text_extras_finish(&extras);
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
            "the prompt's weights leave a chunk with the mean %g, of which the mean %g that it had "
            "cannot be made",
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
