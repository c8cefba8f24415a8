/* GET /health, /health/ready, /info and /schedulers: the state of the daemon. */
#include "base/text/json.h"
#include "engine/loop/implementations.h"
#include "engine/request/defaults.h"
#include "server/http/respond.h"
#include "server/http/route.h"
#include "server/schedulers/schedulers.h"

/* Answers that the process runs. Whether it can draw is answered by /health/ready. */
static enum MHD_Result health(struct exchange *exchange) {
    enum engine_state state = server_state(exchange->server);
    return respond_json(
        exchange, 200, json_pack("{s:s, s:s}", "status", "ok", "state", engine_state_name(state)));
}

static enum MHD_Result health_ready(struct exchange *exchange) {
    struct error err = { 0 };
    if (!server_takes(exchange->server, &err))
        return respond_error(exchange, &err);
    return respond_json(exchange, 200, json_pack("{s:s}", "status", "ready"));
}

static json_t *limits_json(void) {
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "width_min", IMAGE_MIN_PX, "width_max",
        IMAGE_MAX_PX, "size_multiple", IMAGE_MULTIPLE_PX, "num_inference_steps_max", STEPS_MAX,
        "images_max", IMAGES_PER_REQUEST_MAX, "prompt_max_bytes", PROMPT_MAX_BYTES,
        "body_max_bytes", (int)HTTP_BODY_MAX_BYTES);
}

static json_t *percent_json(int percent) {
    return percent < 0 ? json_null() : json_integer(percent);
}

/* Returns the options that a request may set without naming a scheduler; null if such a request
 * must name one. */
static json_t *default_options_json(const struct pipeline_info *p) {
    enum scheduler_kind kind;
    return scheduler_config_kind(p->scheduler_json, &kind) ? scheduler_options_json(kind, p)
                                                           : json_null();
}

/* Returns the device's latest figures; null for the CPU. */
static json_t *device_json(struct engine *engine) {
    struct device_figures f;
    double age_s;
    if (!engine_get_figures(engine, &f, &age_s))
        return json_null();
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:f, s:f, s:f}", "name", f.name,
        "memory_total_bytes", (json_int_t)f.memory_total, "memory_free_bytes",
        (json_int_t)f.memory_free, "weight_bytes", (json_int_t)f.weight_bytes, "activation_bytes",
        (json_int_t)f.activation_bytes, "utilisation_percent", percent_json(f.utilisation_percent),
        "memory_utilisation_percent", percent_json(f.memory_utilisation_percent),
        "driver_cuda_version", f.driver_version / 1000 + f.driver_version % 1000 / 10 / 10.0,
        "cuda_version", f.runtime_version / 1000 + f.runtime_version % 1000 / 10 / 10.0, "age_s",
        age_s);
}

/* Returns a summary of the adapters, which GET /loras lists; null before the checkpoint is
 * loaded. */
static json_t *loras_summary_json(struct engine *engine) {
    struct adapters *adapters = engine_get_adapters(engine);
    struct adapters_listing listing;
    if (!adapters || !adapters_list(adapters, &listing, NULL))
        return json_null();
    json_t *json = json_pack("{s:o, s:I, s:I, s:o, s:b}", "folder",
        listing.folder ? json_lenient_string(listing.folder) : json_null(), "count",
        (json_int_t)listing.count, "resident_bytes", (json_int_t)listing.resident_bytes,
        "limit_bytes",
        listing.limit_bytes ? json_integer((json_int_t)listing.limit_bytes) : json_null(), "merge",
        listing.merge);
    adapters_listing_finish(&listing);
    return json;
}

static enum MHD_Result info(struct exchange *exchange) {
    struct http_server *server = exchange->server;
    enum engine_state state = server_state(server);
    struct pipeline_info p;
    json_t *model = NULL, *device = json_null(), *implementations = json_null();
    int depth = 0;
    if (state == ENGINE_READY && engine_get_info(server->options.engine, &p)) {
        model = json_pack(
            "{s:o, s:s, s:s, s:s, s:i, s:i, s:o, s:i, s:i, s:s?, s:o, s:s, s:b, s:b, s:f, s:I}",
            "name", json_lenient_string(p.model_name ? p.model_name : ""), "device", p.device,
            "dtype", dtype_name(p.dtype), "activation_dtype", dtype_name(p.activation_dtype),
            "default_width", p.default_width, "default_height", p.default_height, "defaults",
            p.defaults ? json_deep_copy(p.defaults) : generate_defaults_json(NULL), "max_tokens",
            p.max_tokens, "max_batch_rows", p.max_batch_rows, "default_scheduler",
            p.default_scheduler, "default_scheduler_options", default_options_json(&p),
            "prediction_type", p.prediction_type, "needs_mask_image", p.inpaints, "safety_checker",
            p.checks_safety, "load_s", p.load_s, "weight_bytes", (json_int_t)p.weight_bytes);
        depth = engine_queue_depth(server->options.engine);
        device = device_json(server->options.engine);
        implementations = implementations_json(p.implementations);
    }
    json_t *queue = json_pack("{s:i, s:i}", "depth", depth, "max", server->options.queue_max);
    return respond_json(exchange, 200,
        json_pack("{s:s, s:s, s:s, s:o?, s:o, s:o, s:o, s:o, s:o}", "name", "latentd", "version",
            LATENTD_VERSION, "state", engine_state_name(state), "model", model, "device", device,
            "implementations", implementations, "loras", loras_summary_json(server->options.engine),
            "queue", queue, "limits", limits_json()));
}

static enum MHD_Result schedulers(struct exchange *exchange) {
    struct http_server *server = exchange->server;
    struct pipeline_info p;
    bool known = server_state(server) == ENGINE_READY &&
                 engine_get_info(server->options.engine, &p);
    return respond_json(exchange, 200, schedulers_json(known ? &p : NULL));
}

const struct route route_health = { .path = "/health",
    .methods = { { "GET", .handle = health, .about = "answers 200 while the daemon runs",
        .returns = "{status: string, state: EngineState}" } },
    .open = true };

const struct route route_health_ready = { .path = "/health/ready",
    .methods = { { "GET", .handle = health_ready, .about = "answers 200 while the daemon can draw",
        .returns = "{status: string}" } },
    .open = true };

const struct route route_info = { .path = "/info",
    .methods = { { "GET", .handle = info,
        .about = "the model, the device, the limits and the queue", .returns = "Info" } } };

const struct route route_schedulers = { .path = "/schedulers",
    .methods = { { "GET", .handle = schedulers, .about = "lists the schedulers and their options",
        .returns = "{schedulers: [Scheduler], default: string|null}" } } };
