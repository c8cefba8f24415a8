/* The words by which a prompt calls up what an adapter was trained on, as its metadata tells them:
 * the phrase of the model specification (modelspec.trigger_phrase), our own `trigger`, or the tags
 * of kohya's captions (ss_tag_frequency). */
#include "base/text/json.h"
#include "base/text/utf8.h"
#include "models/adapter/adapter_internal.h"

#include <stdio.h>
#include <string.h>

#define TAGS_MAX 5                  /* more tags that are equally frequent tell nothing */
#define TAGS_MAX_BYTES (256u << 10) /* of ss_tag_frequency; longer ones are not read */

/* Copies a text on one line, without control characters, cut to the room of `out`. */
static void copy_line(const char *text, char out[ADAPTER_TRIGGER_MAX_BYTES + 1]) {
    size_t at = 0;
    for (text += strspn(text, " \t\r\n"); *text && at < ADAPTER_TRIGGER_MAX_BYTES; text++)
        out[at++] = (unsigned char)*text < ' ' || *text == 0x7f ? ' ' : *text;
    while (at > 0 && out[at - 1] == ' ')
        at--;
    out[at] = 0;
    utf8_drop_cut_character(out);
}

/* Adds up how often each tag stands in the captions of all folders of pictures, given as {FOLDER:
 * {TAG: COUNT}}. */
static json_t *sum_tags(const json_t *folders) {
    json_t *sums = json_object(), *tags, *count;
    const char *folder, *tag;
    json_object_foreach((json_t *)folders, folder, tags) {
        json_object_foreach(tags, tag, count) {
            const double before = json_number_value(json_object_get(sums, tag));
            json_object_set_new(sums, tag, json_real(before + json_number_value(count)));
        }
    }
    return sums;
}

/* Writes the tags that stand in most captions, separated by commas: a word that calls something up
 * stands in all of them. Writes nothing if there are more than TAGS_MAX, or if none occurs twice.
 */
static void write_most(const json_t *sums, char out[ADAPTER_TRIGGER_MAX_BYTES + 1]) {
    char tags[ADAPTER_TRIGGER_MAX_BYTES + 2] = "";
    double most = 2;
    size_t length = 0;
    int equal = 0;
    const char *tag;
    json_t *count;
    json_object_foreach((json_t *)sums, tag, count) {
        const double times = json_real_value(count);
        if (times > most) {
            most = times;
            length = 0;
            equal = 0;
        }
        if (times < most || ++equal > TAGS_MAX)
            continue;
        const int size = snprintf(
            tags + length, sizeof(tags) - length, "%s%s", length ? ", " : "", tag);
        length = length + (size_t)size < sizeof(tags) ? length + (size_t)size : sizeof(tags) - 1;
    }
    if (equal > 0 && equal <= TAGS_MAX)
        copy_line(tags, out);
}

static void read_tags(const char *text, char out[ADAPTER_TRIGGER_MAX_BYTES + 1]) {
    const size_t size = strlen(text);
    json_t *folders = size <= TAGS_MAX_BYTES ? json_parse(text, size, NULL) : NULL;
    json_t *sums = sum_tags(folders);
    write_most(sums, out);
    json_decref(sums);
    json_decref(folders);
}

void adapter_trigger_read(const json_t *metadata, char out[ADAPTER_TRIGGER_MAX_BYTES + 1]) {
    static const char *const keys[] = { "modelspec.trigger_phrase", "trigger" };
    const char *tags = json_string_value(json_object_get(metadata, "ss_tag_frequency"));
    out[0] = 0;
    for (size_t i = 0; !out[0] && i < sizeof(keys) / sizeof(keys[0]); i++) {
        const char *text = json_string_value(json_object_get(metadata, keys[i]));
        if (text)
            copy_line(text, out);
    }
    if (!out[0] && tags)
        read_tags(tags, out);
}
