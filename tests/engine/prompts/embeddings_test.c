/* Embeddings in a folder: both formats, unusable files and the reasons, names and words in texts,
 * and a folder whose files change. prompts_test checks what is drawn with them. */
#include "base/limits.h"
#include "engine/prompts/embeddings.h"
#include "engine/prompts/texts.h"
#include "models/checkpoint/safetensors.h"
#include "tests/check.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define WIDTH 8

static struct tokenizer *tokenizer;
static char folder[] = "/tmp/latentd-test-XXXXXX";

static const char *path_of(const char *file) {
    static char path[400];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    return path;
}

static void write_tensor(const char *file, const char *name, int64_t rows, int64_t width) {
    float values[80 * WIDTH];
    struct error err = { 0 };
    for (int i = 0; i < 80 * WIDTH; i++)
        values[i] = (float)i;
    const struct safetensors_item item = { name, tensor_2d(values, DTYPE_F32, rows, width) };
    CHECK(safetensors_write(path_of(file), &item, 1, NULL, &err), "%s", err.message);
}

static void write_text(const char *file, const char *text, size_t size) {
    FILE *out = fopen(path_of(file), "wb");
    CHECK(out && fwrite(text, 1, size, out) == size, "%s", file);
    if (out)
        fclose(out);
}

static const struct embedding *find(const struct embedding_set *set, const char *name) {
    for (size_t i = 0; i < embedding_set_count(set); i++)
        if (strcmp(embedding_set_at(set, i)->name, name) == 0)
            return embedding_set_at(set, i);
    CHECK(false, "there is no %s", name);
    return NULL;
}

static void unusable(const struct embedding_set *set, const char *name, const char *why) {
    const struct embedding *e = find(set, name);
    if (e) {
        CHECK(e->error.code != ERROR_NONE && !e->values, "%s can be used", name);
        CHECK_CONTAINS(e->error.message, why);
    }
}

static void make_folder(void) {
    static const char broken[] = "\x08\0\0\0\0\0\0\0{\"a\": 1}";
    static const char pickle[] = "PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0"
                                 "\0\0archive/data.pkl";
    float two[2] = { 0 };
    struct error err = { 0 };
    write_tensor("mystyle.safetensors", "emb_params", 3, WIDTH);
    write_tensor("toy.safetensors", "<toy>", 1, WIDTH);
    write_tensor(
        "z.safetensors", "emb_params", 2, WIDTH); /* "z" is in the tokenizer's vocabulary */
    write_tensor("wide.safetensors", "emb_params", 1, WIDTH + 1);
    write_tensor("many.safetensors", "emb_params", EMBEDDING_VECTORS_MAX + 1, WIDTH);
    write_text("old.pt", pickle, sizeof(pickle));
    write_text("both.pt", pickle, sizeof(pickle));
    write_tensor("both.safetensors", "emb_params", 1, WIDTH);
    write_text("broken.safetensors", broken, sizeof(broken) - 1);
    const struct safetensors_item items[2] = { { "clip_l", tensor_2d(two, DTYPE_F32, 1, 1) },
        { "clip_g", tensor_2d(two + 1, DTYPE_F32, 1, 1) } };
    CHECK(safetensors_write(path_of("xl.safetensors"), items, 2, NULL, &err), "%s", err.message);
    two[0] = NAN;
    const struct safetensors_item bad = { "emb_params", tensor_2d(two, DTYPE_F32, 1, 2) };
    CHECK(safetensors_write(path_of("nan.safetensors"), &bad, 1, NULL, &err), "%s", err.message);
    CHECK(symlink("/etc/passwd", path_of("link.safetensors")) == 0, "link");
    write_text("readme.txt", "no", 2);
    write_text(".hidden.safetensors", "no", 2);
    write_text("new\nline.safetensors", "no", 2);
}

static void what_is_there_is_listed(const struct embedding_set *set) {
    const struct embedding *style = find(set, "mystyle"), *toy = find(set, "toy");
    const struct embedding *z = find(set, "z");
    CHECK(embedding_set_count(set) == 11, "%zu", embedding_set_count(set));
    if (!style || !toy || !z)
        return;
    CHECK(style->vectors == 3 && !style->token && style->values[WIDTH] == WIDTH, "mystyle");
    CHECK_STRING(style->format, "a1111");
    CHECK_STRING(toy->token, "<toy>");
    CHECK_STRING(toy->format, "diffusers");
    CHECK(style->named_plainly && !z->named_plainly,
        "a file named like a word of the vocabulary is used by that name");
    CHECK_STRING(find(set, "both")->file, "both.safetensors");
    unusable(set, "wide", "its vectors have 9 numbers, this model's text encoder takes 8");
    unusable(set, "many", "1 to 75 vectors");
    unusable(set, "old", "a pickle");
    unusable(set, "broken", "");
    unusable(set, "xl", "Stable Diffusion XL");
    unusable(set, "nan", "not finite");
    unusable(set, "link", "symbolic link");
}

/* Checks that the text has this many vectors, and that their ids are those of the embedding
 * `name`. */
static void text_has(struct embedding_set *set, enum prompt_syntax syntax, const char *string,
    const char *name, int vectors) {
    const struct text_options options = { tokenizer, set, 77, syntax, LONG_PROMPT_CHUNK, 20 };
    struct text *text = NULL;
    int count = 0;
    struct text_extras extras = { 0 };
    struct error err = { 0 };
    const struct embedding *e = find(set, name);
    if (!texts_append(&options, "prompt", string, false, &text, &count, &extras, &err)) {
        CHECK(false, "%s: %s", string, err.message);
        return;
    }
    CHECK(count == 1 && text->vectors == vectors, "%s: %d vectors", string, text->vectors);
    for (int i = 0, seen = 0; e && i < text->variants * text->tokens; i++)
        if (text->ids[i] >= EMBEDDING_ID_FIRST) {
            CHECK(text->ids[i] == e->first_id + seen % e->vectors, "%s: id %d", string, i);
            seen++;
        }
    text_finish(text);
    free(text);
    text_extras_finish(&extras);
}

static void texts_name_them(struct embedding_set *set) {
    const enum prompt_syntax plain = PROMPT_SYNTAX_PLAIN, weighted = PROMPT_SYNTAX_A1111;
    text_has(set, plain, "a house in mystyle", "mystyle", 3);
    text_has(set, plain, "MyStyles, mystyle", "mystyle", 6); /* in any case, also inside of words */
    text_has(set, plain, "a <toy> house", "toy", 1);
    text_has(set, plain, "a toy", "toy", 1);
    text_has(set, plain, "a z", "z", 0);
    text_has(set, weighted, "a (mystyle:1.2) house", "mystyle", 3);
    text_has(set, weighted, "a z", "z", 2);
    text_has(set, weighted, "mystyles", "mystyle", 0); /* it has different tokens */
    text_has(set, weighted, "a [mystyle|house] [by mystyle::5]", "mystyle", 12); /* in 4 texts */
    for (int syntax = 0; syntax < 2; syntax++) {
        const struct text_options options = { tokenizer, set, 77, (enum prompt_syntax)syntax,
            LONG_PROMPT_TRUNCATE, 20 };
        struct text *texts = NULL;
        int count = 0;
        struct text_extras extras = { 0 };
        struct error err = { 0 };
        CHECK(
            !texts_append(&options, "prompt", "a house, old", false, &texts, &count, &extras, &err),
            "an embedding in a pickle is used");
        while (count > 0)
            text_finish(&texts[--count]);
        free(texts);
        CHECK_STRING(err.param, "prompt");
        CHECK_STRING(err.value, "old");
        CHECK_CONTAINS(err.message, "old.pt: a pickle");
        text_extras_finish(&extras);
    }
}

static void a_folder_changes(struct embeddings *embeddings, const struct embedding_set *before) {
    struct error err = { 0 };
    write_tensor("mystyle.safetensors", "emb_params", 2, WIDTH);
    write_tensor("later.safetensors", "emb_params", 1, WIDTH);
    CHECK(unlink(path_of("old.pt")) == 0, "old.pt");
    CHECK(embeddings_rescan(embeddings, &err), "%s", err.message);
    struct embedding_set *set = embeddings_take(embeddings);
    CHECK(embedding_set_count(set) == 11 && embedding_set_count(before) == 11,
        "after the rescan not exactly one of 11 embeddings is replaced by another");
    CHECK(find(set, "toy")->first_id == find(before, "toy")->first_id,
        "an unchanged file has got other ids");
    CHECK(find(set, "mystyle")->first_id != find(before, "mystyle")->first_id,
        "a changed file has kept its ids");
    CHECK(find(before, "mystyle")->vectors == 3 && find(set, "mystyle")->vectors == 2, "vectors");
    embedding_set_release(set);
}

int main(void) {
    struct embeddings *embeddings = NULL;
    struct error err = { 0 };
    char command[100];
    if (!tokenizer_create(BUNDLED_TOKENIZER, &tokenizer, &err) || !mkdtemp(folder)) {
        printf("%s\n", err.message);
        return 1;
    }
    CHECK(!embeddings_create("/nonexistent", tokenizer, WIDTH, &embeddings, &err) &&
              err.code == ERROR_NOT_FOUND,
        "%s", err.message);
    make_folder();
    CHECK(embeddings_create(folder, tokenizer, WIDTH, &embeddings, &err), "%s", err.message);
    struct embedding_set *set = embeddings_take(embeddings);
    what_is_there_is_listed(set);
    texts_name_them(set);
    a_folder_changes(embeddings, set);
    embeddings_destroy(embeddings);
    CHECK(
        find(set, "toy")->values[1] == 1, "a set cannot be read after its registry was destroyed");
    embedding_set_release(set);
    CHECK(embeddings_create(NULL, tokenizer, WIDTH, &embeddings, &err), "%s", err.message);
    set = embeddings_take(embeddings);
    CHECK(set && embedding_set_count(set) == 0 && !embedding_set_words(set), "none");
    embedding_set_release(set);
    embeddings_destroy(embeddings);
    tokenizer_destroy(tokenizer);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK(system(command) == 0, "%s", command);
    return check_done();
}
