/* The parts of a form: pictures, and texts, which are parsed when all parts have arrived. */
#include "server/openai/image_order.h"

#include "base/text/json.h"
#include "server/openai/openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX_BYTES (64u << 10)

void image_form_finish(struct image_form *form) {
    json_decref(form->texts);
    free(form->image.bytes);
    free(form->mask.bytes);
    memset(form, 0, sizeof(*form));
}

void image_form_reader_finish(struct image_form_reader *reader) {
    free(reader->text);
    reader->text = NULL;
}

/* Adds the text that was being read to the form. */
static bool end_text(struct image_form_reader *reader, struct error *err) {
    struct image_form *form = reader->form;
    if (!reader->name[0])
        return true;
    json_t *text = json_stringn(reader->text ? reader->text : "", reader->size);
    if (!text || memchr(json_string_value(text), 0, reader->size)) {
        json_decref(text);
        return error_field(err, reader->name, "bytes", "a text in UTF-8");
    }
    if (!form->texts)
        form->texts = json_object();
    if (json_object_set_new(form->texts, reader->name, text) != 0)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a form");
    reader->name[0] = 0;
    reader->size = 0;
    return true;
}

static bool append(void **bytes, size_t *size, size_t *capacity, const void *more, size_t count) {
    if (count > *capacity - *size) {
        const size_t wanted = 2 * (*size + count) + 256;
        void *grown = realloc(*bytes, wanted);
        if (!grown)
            return false;
        *bytes = grown;
        *capacity = wanted;
    }
    memcpy((char *)*bytes + *size, more, count);
    *size += count;
    return true;
}

bool image_form_begin(void *user, const char *name, const char *file_name, struct error *err) {
    struct image_form_reader *reader = user;
    const bool is_mask = strcmp(name, "mask") == 0;
    const bool is_image = strcmp(name, "image") == 0 || strcmp(name, "image[]") == 0;
    (void)file_name;
    if (!end_text(reader, err))
        return false;
    reader->file = NULL;
    if (reader->route != IMAGE_GENERATION && (is_image || (is_mask && reader->route == IMAGE_EDIT)))
        reader->file = is_mask ? &reader->form->mask : &reader->form->image;
    if (reader->file) {
        if (reader->file->bytes)
            return error_field(err, is_mask ? "mask" : "image", "several pictures", "one picture");
        reader->file->bytes = malloc(1); /* not NULL: the picture is given, even if empty */
        reader->capacity = 1;
        return reader->file->bytes || error_set(err, ERROR_NO_MEMORY, "no memory for %s", name);
    }
    if (!name[0] || strlen(name) >= sizeof(reader->name)) {
        char shown[64];
        snprintf(shown, sizeof(shown), "%.60s", name);
        return error_field(err, shown, "a part", OPENAI_NO_SUCH_FIELD);
    }
    if (json_object_get(reader->form->texts, name))
        return error_field(err, name, "given twice", "at most one");
    snprintf(reader->name, sizeof(reader->name), "%s", name);
    return true;
}

bool image_form_write(void *user, const void *bytes, size_t size, struct error *err) {
    struct image_form_reader *reader = user;
    if (reader->file)
        return append(&reader->file->bytes, &reader->file->size, &reader->capacity, bytes, size) ||
               error_set(err, ERROR_NO_MEMORY, "no memory for a picture");
    if (size > TEXT_MAX_BYTES - reader->size)
        return error_field(err, reader->name, "a longer text", "at most %u bytes", TEXT_MAX_BYTES);
    char *grown = realloc(reader->text, reader->size + size + 1);
    if (!grown)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a form");
    reader->text = grown;
    memcpy(grown + reader->size, bytes, size);
    reader->size += size;
    return true;
}

bool image_form_end(struct image_form_reader *reader, struct error *err) {
    const bool ok = end_text(reader, err);
    image_form_reader_finish(reader);
    return ok;
}
