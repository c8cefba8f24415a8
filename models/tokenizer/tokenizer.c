#include "models/tokenizer/tokenizer.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/text/json.h"
#include "models/tokenizer/tokenizer_bpe.h"
#include "models/tokenizer/tokenizer_clip.h"
#include "models/tokenizer/tokenizer_special.h"
#include "models/tokenizer/tokenizer_text.h"
#include "models/tokenizer/tokenizer_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct tokenizer {
    struct vocab vocab;
    struct special_tokens special;
    struct piece_splitter *splitter;
    int32_t byte_ids[256], byte_end_ids[256];       /* a byte's symbol; the same at a word's end */
    int32_t byte_of_symbol[VOCAB_BYTE_SYMBOLS_END]; /* the byte of a symbol, or -1 */
};

static void fill_byte_symbols(struct tokenizer *t) {
    int32_t symbols[256];
    vocab_byte_symbols(symbols);
    memset(t->byte_of_symbol, 0xff, sizeof(t->byte_of_symbol));
    for (int byte = 0; byte < 256; byte++) {
        char text[16];
        size_t length = (size_t)utf8proc_encode_char(symbols[byte], (utf8proc_uint8_t *)text);
        t->byte_of_symbol[symbols[byte]] = byte;
        t->byte_ids[byte] = vocab_find(&t->vocab, text, length);
        memcpy(text + length, VOCAB_WORD_END, sizeof(VOCAB_WORD_END));
        t->byte_end_ids[byte] = vocab_find(&t->vocab, text, length + strlen(VOCAB_WORD_END));
    }
}

static bool load_tokenizer_json(struct tokenizer *t, const json_t *json, struct error *err) {
    const json_t *model = json_object_get(json, "model");
    const json_t *suffix = json_object_get(model, "end_of_word_suffix");
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!type || strcmp(type, "BPE") != 0 ||
        (json_is_string(suffix) && strcmp(json_string_value(suffix), VOCAB_WORD_END) != 0))
        return error_set(err, ERROR_UNSUPPORTED,
            "its model is not CLIP's: type BPE with the end_of_word_suffix " VOCAB_WORD_END
            " is supported");
    return vocab_init(&t->vocab, json_object_get(model, "vocab"), err) &&
           vocab_set_merges_json(&t->vocab, json_object_get(model, "merges"), err);
}

static bool load_vocab_and_merges(
    struct tokenizer *t, const char *vocab_path, const char *merges_path, struct error *err) {
    json_t *tokens = json_parse_file(vocab_path, CONFIG_MAX_BYTES, err);
    if (!tokens)
        return false;
    bool ok = vocab_init(&t->vocab, tokens, err) || error_prefix(err, "%s", vocab_path);
    json_decref(tokens);
    char *text = NULL;
    size_t size;
    ok = ok && file_read(merges_path, CONFIG_MAX_BYTES, &text, &size, err);
    if (ok && !vocab_set_merges_text(&t->vocab, text, err))
        ok = error_prefix(err, "%s", merges_path);
    free(text);
    return ok;
}

/* Loads tokenizer.json if it exists, as transformers does. Otherwise loads vocab.json and
 * merges.txt. */
static bool load_folder(struct tokenizer *t, const void *from, struct error *err) {
    const char *dir = from;
    char *whole = file_join(dir, "tokenizer.json"), *vocab = file_join(dir, "vocab.json");
    char *merges = file_join(dir, "merges.txt");
    json_t *json = NULL;
    bool ok = false;
    if (!whole || !vocab || !merges) {
        error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    } else if (file_exists(whole)) {
        json = json_parse_file(whole, CONFIG_MAX_BYTES, err);
        ok = json && (load_tokenizer_json(t, json, err) || error_prefix(err, "%s", whole));
    } else if (file_exists(vocab) && file_exists(merges)) {
        ok = load_vocab_and_merges(t, vocab, merges, err);
    } else {
        error_set(err, ERROR_NOT_FOUND,
            "%s holds no tokenizer: neither tokenizer.json nor vocab.json with merges.txt", dir);
    }
    ok = ok && special_tokens_read(
                   &t->special, dir, json_object_get(json, "added_tokens"), &t->vocab, err);
    json_decref(json);
    free(whole);
    free(vocab);
    free(merges);
    return ok;
}

static bool load_clip(struct tokenizer *t, const void *from, struct error *err) {
    const enum clip_padding *padding = from;
    /* The parts of SD-2's tokenizer_config.json and special_tokens_map.json that differ from
     * SD-1's. */
    static const char sd2[] =
        "{\"bos_token\":{\"content\":\"<|startoftext|>\",\"normalized\":true},"
        "\"eos_token\":{\"content\":\"<|endoftext|>\",\"normalized\":true},"
        "\"unk_token\":{\"content\":\"<|endoftext|>\",\"normalized\":true},\"pad_token\":\"!\"}";
    json_t *config = *padding == CLIP_PADS_WITH_END ? json_null() : json_loads(sd2, 0, NULL);
    if (!config)
        return error_set(err, ERROR_NO_MEMORY, "no memory for special tokens");
    const bool ok = clip_vocab_init(&t->vocab, err) &&
                    special_tokens_init(&t->special, config, NULL, NULL, &t->vocab, err);
    json_decref(config);
    return ok;
}

static bool create(bool (*load_from)(struct tokenizer *t, const void *from, struct error *err),
    const void *from, struct tokenizer **out, struct error *err) {
    struct tokenizer *t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the tokenizer");
    if (!load_from(t, from, err) || !piece_splitter_create(&t->splitter, err)) {
        tokenizer_destroy(t);
        return error_prefix(err, "tokenizer");
    }
    fill_byte_symbols(t);
    *out = t;
    return true;
}

bool tokenizer_create(const char *dir, struct tokenizer **out, struct error *err) {
    return create(load_folder, dir, out, err);
}

bool tokenizer_create_clip(enum clip_padding padding, struct tokenizer **out, struct error *err) {
    return create(load_clip, &padding, out, err);
}

void tokenizer_destroy(struct tokenizer *tokenizer) {
    if (!tokenizer)
        return;
    piece_splitter_destroy(tokenizer->splitter);
    special_tokens_finish(&tokenizer->special);
    vocab_finish(&tokenizer->vocab);
    free(tokenizer);
}

int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *entry) {
    return vocab_find(&tokenizer->vocab, entry, strlen(entry));
}

int32_t tokenizer_end_id(const struct tokenizer *tokenizer) {
    return tokenizer->special.end;
}

size_t tokenizer_vocab_size(const struct tokenizer *tokenizer) {
    return tokenizer->vocab.count;
}

struct tokenizer_words {
    struct special_tokens tokens; /* includes the tokenizer's own normalised tokens */
};

void tokenizer_words_destroy(struct tokenizer_words *words) {
    if (words)
        special_tokens_finish(&words->tokens);
    free(words);
}

static bool has_word(const struct special_tokens *tokens, const char *content, size_t length) {
    for (size_t i = 0; i < tokens->count; i++)
        if (tokens->items[i].length == length &&
            memcmp(tokens->items[i].content, content, length) == 0)
            return true;
    return false;
}

static bool add_word(
    struct special_tokens *tokens, const char *word, int32_t id, struct error *err) {
    struct special_token *token = &tokens->items[tokens->count];
    char *content;
    size_t length;
    if (!text_normalize(word, strlen(word), &content, &length, err))
        return false;
    if (length == 0 || has_word(tokens, content, length)) {
        free(content);
        return true;
    }
    *token = (struct special_token){ content, length, id, true };
    tokens->count++;
    return true;
}

bool tokenizer_words_create(const struct tokenizer *tokenizer, const char *const *words,
    const int32_t *ids, size_t count, struct tokenizer_words **out, struct error *err) {
    const struct special_tokens *own = &tokenizer->special;
    struct tokenizer_words *w = calloc(1, sizeof(*w));
    if (w)
        w->tokens.items = calloc(own->count + count + 1, sizeof(*w->tokens.items));
    bool ok = (w && w->tokens.items) || error_set(err, ERROR_NO_MEMORY, "no memory for words");
    for (size_t i = 0; ok && i < own->count; i++)
        if (own->items[i].normalized)
            ok = add_word(&w->tokens, own->items[i].content, own->items[i].id, err);
    for (size_t i = 0; ok && i < count; i++)
        ok = add_word(&w->tokens, words[i], ids[i], err);
    if (ok)
        *out = w;
    else
        tokenizer_words_destroy(w);
    return ok;
}

/* The ids so far, and memory for the current word. */
struct encoding {
    const struct tokenizer *tokenizer;
    const struct tokenizer_words *words; /* NULL: none */
    int32_t *ids;                        /* owned */
    size_t count, capacity;
    struct bpe_scratch scratch;
};

/* Every byte of normalised text makes at most one token, but normalising can turn one byte into up
 * to three. */
static bool reserve(struct encoding *e, size_t more, struct error *err) {
    if (more > e->capacity - e->count) {
        int32_t *ids = reallocarray(e->ids, e->count + more, sizeof(*ids));
        if (!ids)
            return error_set(err, ERROR_NO_MEMORY, "no memory for %zu tokens", e->count + more);
        e->ids = ids;
        e->capacity = e->count + more;
    }
    return true;
}

static void take_piece(const char *piece, size_t size, void *user) {
    struct encoding *e = user;
    const struct tokenizer *t = e->tokenizer;
    int32_t *word = e->ids + e->count;
    for (size_t i = 0; i < size; i++) {
        const int32_t *symbols = i + 1 == size ? t->byte_end_ids : t->byte_ids;
        word[i] = symbols[(unsigned char)piece[i]];
        if (word[i] < 0)
            word[i] = t->special.unknown;
    }
    e->count += bpe_merge(&t->vocab, &e->scratch, word, size);
}

static bool encode_pieces(struct encoding *e, const char *text, size_t size, struct error *err) {
    if (!reserve(e, size, err))
        return false;
    if (size > e->scratch.capacity) {
        bpe_scratch_finish(&e->scratch);
        if (!bpe_scratch_init(&e->scratch, size, err))
            return false;
    }
    return piece_splitter_run(e->tokenizer->splitter, text, size, take_piece, e, err);
}

/* Finds the special tokens in the text, and passes the parts between them to `rest`. */
static bool cut_specials(struct encoding *e, bool normalized, const char *text, size_t size,
    bool (*rest)(struct encoding *e, const char *text, size_t size, struct error *err),
    struct error *err) {
    const struct special_tokens *special = normalized && e->words ? &e->words->tokens
                                                                  : &e->tokenizer->special;
    while (size > 0) {
        size_t offset;
        const struct special_token *token = special_tokens_find(
            special, normalized, text, size, &offset);
        if (offset > 0 && !rest(e, text, offset, err))
            return false;
        if (!token)
            return true;
        if (!reserve(e, 1, err))
            return false;
        e->ids[e->count++] = token->id;
        text += offset + token->length;
        size -= offset + token->length;
    }
    return true;
}

static bool encode_raw(struct encoding *e, const char *text, size_t size, struct error *err) {
    char *normal;
    size_t normal_size;
    if (!text_normalize(text, size, &normal, &normal_size, err))
        return false;
    bool ok = cut_specials(e, true, normal, normal_size, encode_pieces, err);
    free(normal);
    return ok;
}

bool tokenizer_encode_words(const struct tokenizer *tokenizer, const struct tokenizer_words *words,
    const char *text, int32_t **ids, size_t *count, struct error *err) {
    struct encoding e = { .tokenizer = tokenizer, .words = words };
    size_t size = strlen(text);
    bool ok = text_check_utf8(text, size, err) && reserve(&e, size + 1, err) &&
              cut_specials(&e, false, text, size, encode_raw, err);
    bpe_scratch_finish(&e.scratch);
    if (!ok) {
        free(e.ids);
        return false;
    }
    *ids = e.ids;
    *count = e.count;
    return true;
}

bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, int32_t **ids,
    size_t *count, struct error *err) {
    return tokenizer_encode_words(tokenizer, NULL, text, ids, count, err);
}

/* Appends the bytes of a token's symbols. The mark of a word's end becomes a space. */
static size_t decode_token(const struct tokenizer *t, const char *token, char *out) {
    size_t used = 0, length = strlen(token);
    bool ends = length >= strlen(VOCAB_WORD_END) &&
                strcmp(token + length - strlen(VOCAB_WORD_END), VOCAB_WORD_END) == 0;
    if (ends)
        length -= strlen(VOCAB_WORD_END);
    for (size_t at = 0; at < length;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate(
            (const utf8proc_uint8_t *)token + at, (utf8proc_ssize_t)(length - at), &c);
        if (n < 1)
            break;
        if (c < VOCAB_BYTE_SYMBOLS_END && t->byte_of_symbol[c] >= 0) {
            out[used++] = (char)t->byte_of_symbol[c];
        } else { /* not a byte's symbol: an added token's plain text */
            memcpy(out + used, token + at, (size_t)n);
            used += (size_t)n;
        }
        at += (size_t)n;
    }
    if (ends)
        out[used++] = ' ';
    return used;
}

/* Returns a new string of valid UTF-8. A cut can be in the middle of a character; the bytes of that
 * character become U+FFFD. */
static char *repair_utf8(const char *bytes, size_t size) {
    char *out = malloc(size * 3 + 1);
    size_t used = 0;
    for (size_t at = 0; out && at < size;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate(
            (const utf8proc_uint8_t *)bytes + at, (utf8proc_ssize_t)(size - at), &c);
        memcpy(out + used, n > 0 ? bytes + at : "\xef\xbf\xbd", n > 0 ? (size_t)n : 3);
        used += n > 0 ? (size_t)n : 3;
        at += n > 0 ? (size_t)n : 1;
    }
    if (out)
        out[used] = 0;
    return out;
}

char *tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count) {
    const struct vocab *vocab = &tokenizer->vocab;
    size_t total = 1;
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= 0 && (size_t)ids[i] < vocab->count && vocab->tokens[ids[i]])
            total += strlen(vocab->tokens[ids[i]]);
    char *bytes = malloc(total);
    size_t used = 0;
    for (size_t i = 0; bytes && i < count; i++)
        if (ids[i] >= 0 && (size_t)ids[i] < vocab->count && vocab->tokens[ids[i]])
            used += decode_token(tokenizer, vocab->tokens[ids[i]], bytes + used);
    size_t first = 0;
    while (first < used && bytes[first] == ' ')
        first++;
    while (used > first && bytes[used - 1] == ' ')
        used--;
    char *text = bytes ? repair_utf8(bytes + first, used - first) : NULL;
    free(bytes);
    return text;
}

void tokenizer_mark(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
    size_t length, int32_t *ids) {
    ids[0] = tokenizer->special.begin;
    if (count > 0)
        memcpy(ids + 1, tokens, count * sizeof(*ids));
    ids[count + 1] = tokenizer->special.end;
    for (size_t i = count + 2; i < length; i++)
        ids[i] = tokenizer->special.pad;
}

bool tokenizer_chunk(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
    size_t length, int32_t **ids, size_t *chunks, struct error *err) {
    if (length < 3)
        return error_set(
            err, ERROR_INTERNAL, "%zu ids have no room for begin, a token and end", length);
    const size_t piece = length - 2, n = count ? (count + piece - 1) / piece : 1;
    int32_t *out = calloc(n, length * sizeof(*out));
    if (!out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the prompt's tokens");
    for (size_t i = 0; i < n; i++) {
        const size_t left = count - i * piece;
        tokenizer_mark(
            tokenizer, tokens + i * piece, left < piece ? left : piece, length, out + i * length);
    }
    *ids = out;
    *chunks = n;
    return true;
}

bool tokenizer_encode_padded(const struct tokenizer *tokenizer, const char *text, size_t length,
    int32_t *ids, char **cut_text, struct error *err) {
    int32_t *tokens;
    size_t count;
    *cut_text = NULL;
    if (length < 3)
        return error_set(
            err, ERROR_INTERNAL, "%zu ids have no room for begin, a token and end", length);
    if (!tokenizer_encode(tokenizer, text, &tokens, &count, err))
        return false;
    const size_t kept = count < length - 2 ? count : length - 2;
    tokenizer_mark(tokenizer, tokens, kept, length, ids);
    const bool ok = kept == count ||
                    (*cut_text = tokenizer_decode(tokenizer, tokens + kept, count - kept)) ||
                    error_set(
                        err, ERROR_NO_MEMORY, "no memory for the part of the prompt that was cut");
    free(tokens);
    return ok;
}
