#include "command/options/lora_flags.h"

#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALLOWED "NAME_OR_FILE[:WEIGHT[:TEXT_WEIGHT]]"

/* Cuts ":NUMBER" off the end of `text`. Returns false, and does not change *out, if the text does
 * not end with ":NUMBER". */
static bool cut_number(char *text, double *out) {
    char *colon = strrchr(text, ':'), *end;
    if (!colon || colon == text || !colon[1])
        return false;
    const double number = strtod(colon + 1, &end);
    if (*end || !isfinite(number))
        return false;
    *out = number;
    *colon = 0;
    return true;
}

void lora_flag_cut_weights(char *text, double *weight, double *text_encoder_weight) {
    *weight = *text_encoder_weight = 1;
    if (!cut_number(text, text_encoder_weight))
        return;
    if (!cut_number(text, weight))
        *weight = *text_encoder_weight;
}

/* Returns whether the text is a path. A text with folders that may be an adapter's name, such as
 * "style/snow", is a path only if that file or folder exists. */
static bool is_file(const char *text) {
    const char *ending = strrchr(text, '.');
    return (ending && strcmp(ending, ".safetensors") == 0) || file_is_folder(text) ||
           (strchr(text, '/') && (file_exists(text) || !adapter_name_check("name", text, NULL)));
}

/* Copies an adapter's name from a path: "some/folder/snow v2.safetensors" gives "snow v2". Returns
 * false if it is too long. */
static bool name_of_file(const char *path, char name[ADAPTER_NAME_MAX_BYTES + 1]) {
    const char *const ending = ".safetensors";
    size_t length = strlen(path), begin;
    while (length > 1 && path[length - 1] == '/')
        length--;
    for (begin = length; begin > 0 && path[begin - 1] != '/';)
        begin--;
    const size_t ending_length = strlen(ending);
    if (length - begin > ending_length &&
        strncmp(path + length - ending_length, ending, ending_length) == 0)
        length -= ending_length;
    return snprintf(name, ADAPTER_NAME_MAX_BYTES + 1, "%.*s", (int)(length - begin),
               path + begin) <= ADAPTER_NAME_MAX_BYTES;
}

static bool refuse(const char *given, struct error *err) {
    return options_refuse("lora", given, ALLOWED ", each adapter at most once", err);
}

/* Parses one --lora. `text` is a copy of `given`. */
static bool fill_one(
    const char *given, char *text, struct lora_choice *out, char **path, struct error *err) {
    *out = (struct lora_choice){ 0 };
    lora_flag_cut_weights(text, &out->weight, &out->text_encoder_weight);
    if (!is_file(text)) {
        snprintf(out->name, sizeof(out->name), "%s", text);
        return adapter_name_check("name", text, NULL) || refuse(given, err);
    }
    if (!name_of_file(text, out->name) || !adapter_name_check("lora", out->name, NULL))
        return options_refuse(
            "lora", given, "a file whose name is also valid as an adapter's name", err);
    *path = strdup(text);
    return *path || error_set(err, ERROR_NO_MEMORY, "no memory for a path");
}

bool lora_flags_fill(const struct options *options, struct generate_request *request,
    struct lora_flags *out, struct error *err) {
    const int count = options_count(options, "lora");
    *out = (struct lora_flags){ 0 };
    if (count == 0)
        return true;
    request->loras = calloc((size_t)count, sizeof(*request->loras));
    if (!request->loras)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the adapters");
    request->loras_given = true;
    for (; out->count < count; out->count++) {
        const char *given = options_get_nth(options, "lora", out->count);
        char *text = strdup(given);
        const bool ok = text ? fill_one(given, text, &request->loras[out->count],
                                   &out->paths[out->count], err)
                             : error_set(err, ERROR_NO_MEMORY, "no memory for the adapters");
        free(text);
        request->lora_count++;
        if (!ok)
            return false;
        for (int i = 0; i < out->count; i++)
            if (strcmp(request->loras[i].name, request->loras[out->count].name) == 0)
                return refuse(given, err);
    }
    return true;
}

void lora_flags_finish(struct lora_flags *flags) {
    for (int i = 0; i < OPTIONS_REPEATS_MAX; i++)
        free(flags->paths[i]);
    *flags = (struct lora_flags){ 0 };
}

static void warn(const char *path, const struct adapter_info *info) {
    if (info->unmatched_count > 0)
        fprintf(stderr, "warning: %s: %zu of its tensors change nothing here: %s%s\n", path,
            info->unmatched_count, info->unmatched[0], info->unmatched_count > 1 ? ", ..." : "");
}

bool lora_flags_load(const struct lora_flags *flags, const struct generate_request *request,
    struct adapters *adapters, struct error *err) {
    for (int i = 0; i < flags->count; i++) {
        struct adapter_info info;
        if (!flags->paths[i])
            continue;
        if (!adapters_load_file(adapters, request->loras[i].name, flags->paths[i], &info, err))
            return false;
        warn(flags->paths[i], &info);
        adapter_info_finish(&info);
    }
    return true;
}
