/* The texts in a picture's file: the input is a file with texts or, after a first byte of 0, an
 * infotext alone. The parameters parsed from any text are valid JSON. */
#include "pictures/texts.h"
#include "server/sdapi/infotext.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void parse(const char *text) {
    json_t *parameters = sdapi_infotext_parse(text);
    promise(parameters && json_object_get(parameters, "Prompt") &&
            json_object_get(parameters, "Negative prompt"));
    char *json = json_dumps(parameters, 0);
    promise(json != NULL);
    free(json);
    json_decref(parameters);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct picture_text_list texts;
    struct error err = { 0 };
    if (size > 0 && data[0] == 0) {
        char *text = strndup((const char *)data + 1, size - 1);
        if (text)
            parse(text);
        free(text);
        return 0;
    }
    if (!picture_read_texts(data, size, &texts, &err)) {
        promise(err.code != ERROR_NONE && err.message[0]);
        return 0;
    }
    for (size_t i = 0; i < texts.count; i++)
        parse(texts.items[i].text);
    picture_text_list_finish(&texts);
    return 0;
}
