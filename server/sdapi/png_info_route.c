/* POST /sdapi/v1/png-info: the parameters that are stored in a picture. */
#include "base/text/json.h"
#include "engine/prompts/syntax.h"
#include "pictures/texts.h"
#include "server/http/route.h"
#include "server/later/reading.h"
#include "server/later/task.h"
#include "server/sdapi/infotext.h"
#include "server/sdapi/request.h"
#include "server/sdapi/samplers.h"
#include "server/sdapi/sdapi.h"

#include <stdlib.h>
#include <string.h>

struct png_info_task {
    struct task task; /* the first member */
    struct picture_file file;
};

/* Returns all texts of the picture except the infotext. */
static json_t *items_json(const struct picture_text_list *texts) {
    json_t *items = json_object();
    bool ok = items != NULL;
    for (size_t i = 0; ok && i < texts->count; i++) {
        json_t *keyword = json_lenient_string(texts->items[i].keyword);
        ok = keyword && (strcmp(texts->items[i].keyword, "parameters") == 0 ||
                            json_object_set_new(items, json_string_value(keyword),
                                json_lenient_string(texts->items[i].text)) == 0);
        json_decref(keyword);
    }
    if (ok)
        return items;
    json_decref(items);
    return NULL;
}

/* Returns the sampler and its schedule as the scheduler of POST /generate, or null if the daemon
 * has no such sampler. The key is our own; AUTOMATIC1111 has none. */
static json_t *scheduler_json(const json_t *parameters) {
    const char *sampler = json_string_value(json_object_get(parameters, "Sampler"));
    const char *schedule = json_string_value(json_object_get(parameters, "Schedule type"));
    const char *text = json_string_value(json_object_get(parameters, "Eta"));
    if (!text)
        text = json_string_value(json_object_get(parameters, "Eta DDIM"));
    double eta;
    const bool has_eta = text && prompt_number(text, strlen(text), &eta);
    struct sdapi_sampling sampling;
    struct scheduler_choice choice;
    struct error unknown;
    if (!sampler || !sdapi_sampling_find(sampler, schedule, &sampling, &unknown))
        return json_null();
    sdapi_sampling_choose(&sampling, has_eta ? &eta : NULL, &choice);
    return scheduler_choice_to_json(&choice);
}

static bool run(struct task *task, struct error *err) {
    struct png_info_task *t = (struct png_info_task *)task;
    struct picture_text_list texts;
    struct error why;
    if (!picture_read_texts(t->file.bytes, t->file.size, &texts, &why))
        return why.code == ERROR_INVALID ? error_set(err, ERROR_INVALID, "Invalid encoded image")
                                         : error_set(err, why.code, "%s", why.message);
    const char *infotext = picture_text_list_find(&texts, "parameters");
    if (!infotext)
        infotext = "";
    json_t *parameters = sdapi_infotext_parse(infotext);
    task->json = json_pack("{s:o, s:o, s:o, s:o}", "info", json_lenient_string(infotext), "items",
        items_json(&texts), "scheduler", scheduler_json(parameters), "parameters", parameters);
    picture_text_list_finish(&texts);
    return task->json;
}

static void destroy(struct task *task) {
    struct png_info_task *t = (struct png_info_task *)task;
    free(t->file.bytes);
    free(t);
}

static bool read_picture(const struct exchange *exchange, void *out, struct error *err) {
    struct error why;
    json_t *body = json_parse_request(exchange->body, exchange->body_size, &why);
    const json_t *image = json_object_get(body, "image");
    bool ok = body || error_field(err, "body", "what came", "JSON; %.400s", why.message);
    if (ok && !json_is_string(image))
        ok = json_bad_field("image", image, "a valid string", err);
    ok = ok && sdapi_decode_picture(json_string_value(image), out, err);
    json_decref(body);
    return ok;
}

static void finish_picture(void *read) {
    free(((struct picture_file *)read)->bytes);
}

static enum MHD_Result start(struct exchange *exchange, void *read) {
    struct png_info_task *t = calloc(1, sizeof(*t));
    if (t)
        t->file = *(struct picture_file *)read;
    else
        finish_picture(read);
    return task_start(t ? &t->task : NULL, exchange, exchange->server->readers, run, destroy);
}

static enum MHD_Result handle(struct exchange *exchange) {
    static const struct reading_kind kind = {
        .size = sizeof(struct picture_file),
        .read = read_picture,
        .handle = start,
        .finish = finish_picture,
    };
    return reading_start(exchange, &kind);
}

const struct route route_sdapi_png_info = { .path = "/sdapi/v1/png-info",
    .dialect = &dialect_sdapi,
    .methods = { { "POST", content_types_json, .handle = handle, .large = true,
        .about = "What a picture's file says of how it was drawn", .takes = "{image: string, ...}",
        .returns = "{info: string, items: {*: string}, parameters: object, "
                   "scheduler: object|null}" } } };
