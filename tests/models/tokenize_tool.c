/* Reads a JSON list of strings from standard input and prints the ids of each string on one line.
 * Used by tests/reference/tokenizer.py. */
#include "base/text/json.h"
#include "models/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    struct tokenizer *tokenizer = NULL;
    struct error err = { 0 };
    if (argc != 2) {
        fprintf(stderr, "usage: %s TOKENIZER_FOLDER < strings.json\n", argv[0]);
        return 2;
    }
    json_error_t problem;
    json_t *texts = json_loadf(stdin, 0, &problem);
    if (!texts || !tokenizer_create(argv[1], &tokenizer, &err)) {
        fprintf(stderr, "%s\n", texts ? err.message : problem.text);
        return 1;
    }
    for (size_t i = 0; i < json_array_size(texts); i++) {
        int32_t *ids;
        size_t count;
        const char *text = json_string_value(json_array_get(texts, i));
        if (!tokenizer_encode(tokenizer, text, &ids, &count, &err)) {
            printf("error: %s\n", err.message);
            continue;
        }
        for (size_t k = 0; k < count; k++)
            printf("%s%d", k ? " " : "", (int)ids[k]);
        printf("\n");
        free(ids);
    }
    tokenizer_destroy(tokenizer);
    json_decref(texts);
    return 0;
}
