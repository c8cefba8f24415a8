/* The readers of captions; the first byte selects the reader. Accepted rows are sorted, each file
 * appears once, and every name and caption passes its check. A refusal gives a reason. */
#include "base/limits.h"
#include "tests/fuzz/fuzz.h"
#include "train/data/metadata/metadata.h"

#include <string.h>

static void use_row(const struct metadata *m, size_t i) {
    const struct metadata_row *row = &m->rows[i], *previous = i ? row - 1 : NULL;
    promise(data_path_check(row->file_name, strlen(row->file_name), NULL));
    promise(!row->mask_file_name ||
            data_path_check(row->mask_file_name, strlen(row->mask_file_name), NULL));
    promise(!previous || strcmp(previous->file_name, row->file_name) < 0);
    promise(row->count >= 0 && row->count <= CAPTIONS_PER_PICTURE_MAX && row->line > 0);
    for (int c = 0; c < row->count; c++)
        promise(caption_check(row->captions[c], strlen(row->captions[c]), NULL));
}

static void read_captions(const char *file, size_t size) {
    const char *captions[CAPTIONS_PER_PICTURE_MAX];
    struct texts texts = { 0 };
    struct error err = { 0 };
    int count;
    const bool ok = captions_parse(
        file, size, &texts, captions, CAPTIONS_PER_PICTURE_MAX, &count, &err);
    promise(ok || err.message[0]);
    for (int c = 0; ok && c < count; c++)
        promise(captions[c][0] && caption_check(captions[c], strlen(captions[c]), NULL));
    texts_finish(&texts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct metadata m;
    struct error err = { 0 };
    if (size == 0)
        return 0;
    const int drawn = data[0] + 2, kind = drawn % 5; /* the corpus begins with "0" to "4" */
    const char *file = (const char *)data + 1;
    const struct metadata_columns columns = { drawn / 5 % 2 ? "photo" : NULL,
        kind % 2 ? "long" : NULL };
    if (kind == 4) {
        read_captions(file, size - 1);
        return 0;
    }
    const bool ok = kind < 2 ? metadata_parse_jsonl(file, size - 1, &columns, &m, &err)
                             : metadata_parse_csv(file, size - 1, &columns, &m, &err);
    promise(ok || (err.code != ERROR_NONE && err.message[0] && !m.rows));
    for (size_t i = 0; i < m.count; i++)
        use_row(&m, i);
    promise(!ok || m.count > 0);
    metadata_finish(&m);
    return 0;
}
