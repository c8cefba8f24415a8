#include "models/tokenizer/tokenizer_clip.h"

#include "models/tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

/* share/clip-tokenizer/merges.txt, converted to C by the build. */
extern const char clip_merges[];

/* Adds a token with the next id. */
static bool add_next(struct vocab *vocab, int32_t *id, const char *text, struct error *err) {
    return vocab_add(vocab, text, (*id)++, err);
}

/* Adds the symbols of the printable bytes, then those of the other bytes (U+0100 and up). `end` is
 * appended to each symbol. */
static bool add_byte_symbols(struct vocab *vocab, int32_t *id, const char *end, struct error *err) {
    int32_t symbols[256];
    vocab_byte_symbols(symbols);
    for (int others = 0; others < 2; others++)
        for (int byte = 0; byte < 256; byte++) {
            char text[16];
            if ((symbols[byte] >= 0x100) != (others == 1))
                continue;
            const size_t length = (size_t)utf8proc_encode_char(
                symbols[byte], (utf8proc_uint8_t *)text);
            snprintf(text + length, sizeof(text) - length, "%s", end);
            if (!add_next(vocab, id, text, err))
                return false;
        }
    return true;
}

/* Adds the token that results from each line "LEFT RIGHT". */
static bool add_merged(struct vocab *vocab, int32_t *id, struct error *err) {
    const char *line = strchr(clip_merges, '\n') + 1; /* skips the version line */
    for (; *line; line += strcspn(line, "\n") + 1) {
        char text[256];
        const int left = (int)strcspn(line, " "), both = (int)strcspn(line, "\n");
        snprintf(text, sizeof(text), "%.*s%.*s", left, line, both - left - 1, line + left + 1);
        if (!add_next(vocab, id, text, err))
            return false;
    }
    return true;
}

bool clip_vocab_init(struct vocab *vocab, struct error *err) {
    int32_t id = 0;
    if (vocab_alloc(vocab, CLIP_VOCAB_SIZE, err) && add_byte_symbols(vocab, &id, "", err) &&
        add_byte_symbols(vocab, &id, VOCAB_WORD_END, err) && add_merged(vocab, &id, err) &&
        add_next(vocab, &id, "<|startoftext|>", err) &&
        add_next(vocab, &id, "<|endoftext|>", err) &&
        vocab_set_merges_text(vocab, clip_merges, err))
        return true;
    vocab_finish(vocab);
    return false;
}
