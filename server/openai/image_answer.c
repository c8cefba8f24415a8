#include "server/openai/image_answer.h"

#include "base/monotonic.h"
#include "base/text/base64.h"
#include "engine/prompts/embeddings.h"
#include "server/openai/picture_urls.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Returns false, without an error, when memory is short. */
static bool write_base64(const void *bytes, size_t size, FILE *out) {
    size_t length;
    char *text = base64_encode(bytes, size, &length);
    const bool ok = text && fwrite(text, 1, length, out) == length;
    free(text);
    return ok;
}

static bool write_json(json_t *json, FILE *out) {
    const bool ok = json && json_dumpf(json, out, JSON_COMPACT | JSON_ENCODE_ANY) == 0;
    json_decref(json);
    return ok;
}

/* Writes "url": keeps the picture's file under a new address. Takes over `file`. */
static bool write_url(const struct image_answer_urls *urls, enum picture_format format, void *file,
    size_t size, FILE *out, struct error *err) {
    char name[PICTURE_URL_NAME_BYTES];
    fputs("\"url\":", out);
    return picture_urls_add(
               urls->store, urls->account, format, file, size, monotonic_seconds(), name, err) &&
           (write_json(json_sprintf("%s" PICTURE_URLS_PATH "%s", urls->base, name), out) ||
               error_set(err, ERROR_NO_MEMORY, "no memory for the answer"));
}

/* Writes the members that hold the picture. `urls` may be NULL if the order asks for no url. */
static bool write_picture(const struct generate_answer *answer, int index, int as,
    const struct image_answer_urls *urls, FILE *out, struct error *err) {
    uint8_t *file = NULL;
    size_t size;
    bool ok = generate_answer_picture(answer, index, &file, &size, err);
    if (ok && as != IMAGE_AS_URL) {
        fputs("\"b64_json\":\"", out);
        ok = write_base64(file, size, out) ||
             error_set(err, ERROR_NO_MEMORY, "no memory for the answer");
        fputs(as == IMAGE_AS_BOTH ? "\"," : "\"", out);
    }
    if (!ok || as == IMAGE_AS_BASE64) {
        free(file);
        return ok;
    }
    return write_url(urls, answer->request->asked.format, file, size, out, err);
}

/* Writes the members after the picture's bytes; OpenAI has no names for them. */
static void write_picture_end(const struct generate_result *result, int index, FILE *out) {
    fprintf(out, ",\"seed\":%" PRIu64, result->seeds[index]);
    if (result->nsfw)
        fprintf(out, ",\"nsfw\":%s", result->nsfw[index] ? "true" : "false");
}

/* Counts a text's tokens, of its first variant. In each chunk the end token has the largest id of
 * the vocabulary, which is also how CLIP finds it. */
static int count_tokens(const struct text *text, int length) {
    int count = 0;
    for (int chunk = 0; chunk < text->chunks; chunk++) {
        const int32_t *ids = text->ids + chunk * length;
        int end = 0;
        for (int i = 1; i < length; i++)
            if (ids[i] < EMBEDDING_ID_FIRST && ids[i] > ids[end]) /* no embedding */
                end = i;
        count += end > 0 ? end - 1 : 0; /* without the start token */
    }
    return count;
}

static int count_prompt_tokens(const struct resolved_request *request) {
    const struct prompt_texts prompt = resolved_request_texts(request, 0);
    int count = 0;
    for (int i = 0; i < prompt.count; i++)
        count += count_tokens(&request->texts[prompt.first + i], request->tokens);
    return count;
}

static json_t *usage_json(const struct resolved_request *request) {
    const int tokens = count_prompt_tokens(request);
    return json_pack("{s:i, s:{s:i, s:i}, s:i, s:i}", "input_tokens", tokens,
        "input_tokens_details", "image_tokens", 0, "text_tokens", tokens, "output_tokens", 0,
        "total_tokens", tokens);
}

/* Writes the members that follow the pictures in every answer, from the comma on, without the last
 * brace. */
static bool write_rest(
    const struct generate_answer *answer, const struct image_order *order, FILE *out) {
    const struct generate_result *result = answer->result;
    fprintf(out,
        ",\"background\":\"opaque\",\"output_format\":\"%s\",\"quality\":\"%s\","
        "\"size\":\"%dx%d\",\"usage\":",
        picture_format_name(answer->request->asked.format), image_order_quality(order),
        result->width, result->height);
    bool ok = write_json(usage_json(answer->request), out);
    int count = 0;
    for (; ok && count < answer->request->warning_count; count++) {
        fputs(count ? "," : ",\"warnings\":[", out);
        ok = write_json(json_string(answer->request->warnings[count]), out);
    }
    if (order->leaves_true_cfg_scale)
        fprintf(out, "%s\"true_cfg_scale has no effect: guidance_scale is used\"",
            count++ ? "," : ",\"warnings\":[");
    if (count > 0)
        fputs("]", out);
    return ok;
}

bool image_answer_write(const struct generate_answer *answer, const struct image_order *order,
    const struct image_answer_urls *urls, FILE *out, struct error *err) {
    const struct generate_result *result = answer->result;
    fprintf(out, "{\"created\":%lld,\"data\":[", (long long)answer->created);
    for (int i = 0; i < result->image_count; i++) {
        fputs(i ? ",{" : "{", out);
        if (!write_picture(answer, i, order->response_format, urls, out, err))
            return false;
        write_picture_end(result, i, out);
        fputs("}", out);
    }
    fputs("]", out);
    if (!write_rest(answer, order, out))
        return error_set(err, ERROR_NO_MEMORY, "no memory for the answer");
    fputs("}", out);
    return true;
}

static const char *event_prefix(const struct image_order *order) {
    return order->route == IMAGE_EDIT ? "image_edit" : "image_generation";
}

/* Writes "event: TYPE\ndata: {"type": TYPE, "created_at", "; the caller writes the rest. */
static void begin_event(const struct image_order *order, const char *what, FILE *out) {
    const char *prefix = event_prefix(order);
    fprintf(out, "event: %s.%s\ndata: {\"type\":\"%s.%s\",\"created_at\":%lld,", prefix, what,
        prefix, what, (long long)time(NULL));
}

bool image_answer_write_completed(const struct generate_answer *answer,
    const struct image_order *order, FILE *out, struct error *err) {
    begin_event(order, "completed", out);
    if (!write_picture(answer, 0, IMAGE_AS_BASE64, NULL, out, err))
        return false;
    write_picture_end(answer->result, 0, out);
    if (!write_rest(answer, order, out))
        return error_set(err, ERROR_NO_MEMORY, "no memory for the answer");
    fputs("}\n\n", out);
    return true;
}

void image_answer_write_partial(const struct image_order *order, int index, const void *jpeg,
    size_t size, int width, int height, FILE *out) {
    size_t length;
    char *text = base64_encode(jpeg, size, &length);
    if (!text)
        return; /* partial images may be left out */
    begin_event(order, "partial_image", out);
    fputs("\"b64_json\":\"", out);
    fwrite(text, 1, length, out);
    fprintf(out,
        "\",\"partial_image_index\":%d,\"background\":\"opaque\",\"output_format\":\"jpeg\","
        "\"quality\":\"%s\",\"size\":\"%dx%d\"}\n\n",
        index, image_order_quality(order), width, height);
    free(text);
}
