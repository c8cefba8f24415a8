/* GET and POST /sdapi/v1/options. A new sd_model_checkpoint switches the model; the answer is sent
 * when the switch is done, as AUTOMATIC1111 does. */
#include "base/text/json.h"
#include "engine/loop/switch.h"
#include "server/http/respond.h"
#include "server/later/deferred.h"
#include "server/sdapi/sdapi.h"
#include "server/sdapi/settings.h"

#include <stdlib.h>
#include <string.h>

static enum MHD_Result get(struct exchange *exchange) {
    struct http_server *server = exchange->server;
    pthread_mutex_lock(&server->mutex);
    const struct sdapi_settings settings = *server->sdapi;
    pthread_mutex_unlock(&server->mutex);
    return respond_json(
        exchange, 200, sdapi_settings_json(&settings, sdapi_model_name(exchange->server)));
}

/* --- a switch, begun on a loader thread and ended on one of the engine's threads --- */

struct option_switch {
    struct deferred deferred; /* the first member */
    char name[MODEL_NAME_MAX_BYTES + 1];
    json_t *body; /* owned: its settings apply after the switch */
    struct error error;
};

static void on_switched(const struct error *err, void *user) {
    struct option_switch *s = user;
    struct http_server *server = s->deferred.server;
    if (err) {
        s->error = *err;
    } else {
        struct error ignored; /* cannot fail: it was checked before */
        pthread_mutex_lock(&server->mutex);
        (void)!sdapi_settings_read(server->sdapi, s->body, "", &ignored);
        pthread_mutex_unlock(&server->mutex);
    }
    deferred_done(&s->deferred);
}

/* Replaces the name that was asked for by the name of the checkpoint that it means. */
static bool find_model(struct option_switch *s, struct error *err) {
    struct engine_models models;
    const char *found = NULL;
    int best = 0;
    if (!engine_models(s->deferred.server->options.engine, &models, err))
        return false;
    for (size_t i = 0; i < models.count; i++) {
        const int fit = sdapi_model_fit(s->name, models.items[i].name);
        if (fit > best) {
            best = fit;
            found = models.items[i].name;
        }
    }
    if (found && strlen(found) <= MODEL_NAME_MAX_BYTES)
        snprintf(s->name, sizeof(s->name), "%s", found);
    engine_models_finish(&models);
    return true;
}

/* Begins the switch. If that succeeds, on_switched may already have freed `s`. */
static void begin_switch(struct deferred *deferred) {
    struct option_switch *s = (struct option_switch *)deferred;
    struct model_switch now;
    struct error err;
    if (!find_model(s, &err)) {
        on_switched(&err, s);
        return;
    }
    if (!engine_switch(s->deferred.server->options.engine, s->name, on_switched, s, &now, &err))
        on_switched(&err, s);
    else if (now.state == SWITCH_DONE)
        on_switched(NULL, s);
}

static enum MHD_Result answer(struct deferred *deferred, struct exchange *exchange) {
    const struct option_switch *s = (struct option_switch *)deferred;
    return s->error.code == ERROR_NONE ? sdapi_respond_null(exchange)
                                       : respond_error(exchange, &s->error);
}

static void destroy(struct deferred *deferred) {
    json_decref(((struct option_switch *)deferred)->body);
    free(deferred);
}

static const struct deferred_kind kind = { .answer = answer, .destroy = destroy };

/* Takes over `body`, also on failure. */
static enum MHD_Result start_switch(struct exchange *exchange, const char *name, json_t *body) {
    enum MHD_Result refused;
    struct option_switch *s = calloc(1, sizeof(*s));
    if (s) {
        s->body = body;
        snprintf(s->name, sizeof(s->name), "%s", name);
    } else {
        json_decref(body);
    }
    return deferred_begin((struct deferred *)s, &kind, exchange, &refused)
               ? deferred_give(&s->deferred, exchange, exchange->server->loaders, begin_switch)
               : refused;
}

/* --- POST --- */

/* Reads all options before any of them takes effect. *name is the name of the checkpoint to switch
 * to; "": no switch. */
static bool read_options(const json_t *body, const char *current, struct sdapi_settings *settings,
    char name[MODEL_NAME_MAX_BYTES + 1], struct error *err) {
    const json_t *checkpoint = json_object_get(body, "sd_model_checkpoint");
    const char *asked = json_string_value(checkpoint);
    name[0] = 0;
    if (!json_is_object(body))
        return json_bad_field("body", body, "a valid dictionary", err);
    if (checkpoint && !json_is_null(checkpoint) &&
        (!asked || !*asked || strlen(asked) > MODEL_NAME_MAX_BYTES))
        return json_bad_field(
            "sd_model_checkpoint", checkpoint, "a title of GET /sdapi/v1/sd-models", err);
    if (asked && strcmp(asked, current) != 0)
        snprintf(name, MODEL_NAME_MAX_BYTES + 1, "%s", asked);
    return sdapi_settings_read(settings, body, "", err);
}

static enum MHD_Result post(struct exchange *exchange) {
    struct http_server *server = exchange->server;
    struct error why = { 0 }, err = { 0 };
    char name[MODEL_NAME_MAX_BYTES + 1];
    const char *current = sdapi_model_name(server);
    json_t *body = json_parse_request(exchange->body, exchange->body_size, &why);
    pthread_mutex_lock(&server->mutex);
    struct sdapi_settings settings = *server->sdapi;
    const bool ok = body ? read_options(body, current, &settings, name, &err)
                         : error_field(&err, "body", "what came", "JSON; %.400s", why.message);
    if (ok && !name[0])
        *server->sdapi = settings;
    pthread_mutex_unlock(&server->mutex);
    if (ok && name[0])
        return start_switch(exchange, name, body);
    json_decref(body);
    return ok ? sdapi_respond_null(exchange) : respond_error(exchange, &err);
}

const struct route route_sdapi_options = { .path = "/sdapi/v1/options",
    .dialect = &dialect_sdapi,
    .methods = {
        { "GET", .handle = get, .about = "AUTOMATIC1111's options", .returns = "SdapiOptions" },
        { "POST", content_types_json, .handle = post,
            .about = "Sets some of AUTOMATIC1111's options", .takes = "SdapiOptions",
            .returns = "null" } } };
