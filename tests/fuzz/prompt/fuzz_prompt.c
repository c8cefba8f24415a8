/* Arbitrary prompts in both syntaxes, with a folder of embeddings. Each becomes chunks of ids, with
 * weights within their limits, or an error with a reason. The first byte selects the syntax, the
 * kind of prompt, and how long prompts are handled. */
#include "base/limits.h"
#include "base/text/utf8.h"
#include "engine/prompts/syntax.h"
#include "engine/prompts/texts.h"
#include "models/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LENGTH 77

/* Makes "style" with two vectors, "<toy>" with one, and "old", which cannot be used. */
static struct embedding_set *make_embeddings(const struct tokenizer *tokenizer) {
    char folder[] = "/tmp/latentd-fuzz-XXXXXX", path[100];
    static const char *const files[3][2] = { { "style", "emb_params" }, { "toy", "<toy>" },
        { "old", "emb_params" } };
    float values[4] = { 0 };
    struct embeddings *embeddings;
    struct error err;
    promise(mkdtemp(folder));
    for (int i = 0; i < 3; i++) {
        const struct safetensors_item item = { files[i][1],
            tensor_2d(values, DTYPE_F32, i == 0 ? 2 : 1, i == 2 ? 2 : 1) };
        snprintf(path, sizeof(path), "%s/%s.safetensors", folder, files[i][0]);
        promise(safetensors_write(path, &item, 1, NULL, &err));
    }
    promise(embeddings_create(folder, tokenizer, 1, &embeddings, &err));
    struct embedding_set *set = embeddings_take(embeddings);
    embeddings_destroy(embeddings);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s.safetensors", folder, files[i][0]);
        unlink(path);
    }
    rmdir(folder);
    return set;
}

static void check(const struct text *text, const struct text_extras *extras, bool negative) {
    int vectors = 0;
    promise(text->chunks >= 1 && text->chunks <= TEXT_CHUNKS_MAX);
    promise(text->tokens == text->chunks * LENGTH);
    promise(text->variants >= 1 && text->variants <= PROMPT_VARIANTS_MAX);
    promise((text->variants > 1) == (text->spans != NULL));
    for (int i = 0; i < text->span_count; i++)
        promise(text->spans[i].variant >= 0 && text->spans[i].variant < text->variants &&
                text->spans[i].last > (i > 0 ? text->spans[i - 1].last : 0));
    promise(fabs(text->guidance) <= PROMPT_WEIGHT_MAX && (!negative || text->guidance == 1));
    for (int i = 0; i < text->variants * text->tokens; i++) {
        const bool is_mark = i % LENGTH == 0 || i % LENGTH == LENGTH - 1;
        promise(text->ids[i] >= 0 && (!is_mark || text->ids[i] == text->ids[i % LENGTH]));
        vectors += text->ids[i] >= EMBEDDING_ID_FIRST;
        if (text->weights)
            promise(fabs((double)text->weights[i]) <= PROMPT_WEIGHT_MAX &&
                    (!is_mark || text->weights[i] == 1));
    }
    promise(vectors == text->vectors);
    promise(extras->tag_count >= 0 && extras->tag_count <= LORAS_PER_REQUEST_MAX &&
            (!negative || extras->tag_count == 0));
    for (int i = 0; i < extras->tag_count; i++)
        promise(extras->tags[i].name[0] && isfinite(extras->tags[i].weight) &&
                isfinite(extras->tags[i].text_encoder_weight));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *tokenizer; /* kept for the whole run */
    static struct embedding_set *embeddings;
    struct error err = { 0 };
    if (!tokenizer) {
        promise(tokenizer_create(BUNDLED_TOKENIZER, &tokenizer, &err));
        embeddings = make_embeddings(tokenizer);
    }
    if (size < 1 || size > PROMPT_MAX_BYTES || memchr(data + 1, 0, size - 1) ||
        utf8_valid_bytes((const char *)data + 1, size - 1) != size - 1)
        return 0;
    char *string = strndup((const char *)data + 1, size - 1);
    promise(string);
    const bool negative = data[0] & 1;
    const struct text_options options = { tokenizer, embeddings, LENGTH,
        data[0] & 2 ? PROMPT_SYNTAX_PLAIN : PROMPT_SYNTAX_A1111,
        data[0] & 4 ? LONG_PROMPT_TRUNCATE : LONG_PROMPT_CHUNK, 20 };
    struct text *texts = NULL;
    int count = 0;
    struct text_extras extras = { 0 };
    if (texts_append(&options, "prompt", string, negative, &texts, &count, &extras, &err)) {
        promise(count >= 1 && count <= (negative ? 1 : PROMPT_PARTS_MAX));
        for (int i = 0; i < count; i++)
            check(&texts[i], &extras, negative);
    } else {
        promise(err.code != ERROR_NONE && err.message[0]);
    }
    while (count > 0)
        text_finish(&texts[--count]);
    free(texts);
    text_extras_finish(&extras);
    free(string);
    return 0;
}
