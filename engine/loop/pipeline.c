#include "engine/loop/pipeline.h"

#include "base/log.h"
#include "base/monotonic.h"
#include "engine/drawing/model_stages.h"
#include "engine/loop/implementations.h"
#include "engine/request/defaults.h"

#include <stdlib.h>
#include <string.h>

struct pipeline {
    const struct kernels *kernels;
    struct tokenizer *tokenizer;
    struct text_encoder *text_encoder;
    struct unet *unet;
    struct vae *vae;
    struct safety_checker *safety_checker; /* NULL: not used */
    struct arena *arena;
    struct recordings *recordings;
    struct model_stages *stages;
    struct studio *studio;
    struct embeddings *embeddings;
    struct adapters *adapters; /* owns the checkpoint: adapters read its weights */
    struct adapters_base base; /* owns its checkpoint until the registry takes it */
    json_t *scheduler_json;
    char *model_path;
    struct generate_request defaults; /* those of the daemon, else of the checkpoint */
    json_t *defaults_json;            /* generate_defaults_json of them */
    struct resolve_figures figures;   /* arguments of resolve_request */
    struct pipeline_info info;
};

static const enum component all_components[] = { COMPONENT_TEXT_ENCODER, COMPONENT_UNET,
    COMPONENT_VAE, COMPONENT_SAFETY_CHECKER };
#define COMPONENTS (sizeof(all_components) / sizeof(all_components[0]))

/* Wraps the weights of a component to report how many tensors are loaded. */
struct watched {
    const struct pipeline_options *options;
    size_t *loaded, tensors;
    struct weights from;
};

static bool get_watched(void *user, const char *name, int rank, const int64_t *shape,
    struct tensor *out, struct error *err) {
    const struct watched *w = user;
    const double fraction = (double)++*w->loaded / (double)(w->tensors + 1);
    if (w->options->loading && !w->options->loading(fraction > 1 ? 1 : fraction, w->options->user))
        return error_set(err, ERROR_CANCELLED, "loading was cancelled");
    return w->from.get(w->from.user, name, rank, shape, out, err);
}

static bool end_watched(void *user, struct error *err) {
    const struct watched *w = user;
    return w->from.end(w->from.user, err);
}

/* Returns weights that report their progress. The caller owns `watched` and keeps it until loading
 * ends. */
static struct weights watch(struct watched *watched, struct checkpoint *checkpoint,
    enum component component, const struct kernels *kernels, enum dtype dtype) {
    watched->from = weights_from_checkpoint(checkpoint, component, kernels, dtype);
    struct weights weights = watched->from;
    weights.get = get_watched;
    weights.end = end_watched;
    weights.user = watched;
    return weights;
}

static bool load_models(struct pipeline *p, const struct pipeline_options *options,
    struct checkpoint *checkpoint, enum dtype dtype, bool check_only, struct error *err) {
    if (!tokenizer_from_checkpoint(checkpoint, &p->tokenizer, err))
        return false;
    const struct kernels *kernels = p->kernels;
    size_t loaded = 0, tensors = 0;
    for (size_t i = 0; i < COMPONENTS; i++) {
        struct checkpoint_stats stats;
        checkpoint_get_stats(checkpoint, all_components[i], &stats);
        tensors += stats.tensors;
    }
    struct watched of[COMPONENTS];
    for (size_t i = 0; i < COMPONENTS; i++)
        of[i] = (struct watched){ .options = options, .loaded = &loaded, .tensors = tensors };
    struct weights text = watch(&of[0], checkpoint, COMPONENT_TEXT_ENCODER, kernels, dtype);
    struct weights unet = watch(&of[1], checkpoint, COMPONENT_UNET, kernels, dtype);
    struct weights vae = watch(&of[2], checkpoint, COMPONENT_VAE, kernels, dtype);
    text.check_only = unet.check_only = vae.check_only = check_only;
    /* Always f32, so that a verdict near the threshold does not depend on the dtype of the
     * weights. */
    struct weights checker = watch(
        &of[3], checkpoint, COMPONENT_SAFETY_CHECKER, kernels, DTYPE_F32);
    checker.check_only = check_only;
    return text_encoder_create(
               checkpoint_text_encoder_config(checkpoint), &text, &p->text_encoder, err) &&
           unet_create(checkpoint_unet_config(checkpoint), &unet, &p->unet, err) &&
           vae_create(checkpoint_vae_config(checkpoint), &vae, VAE_BOTH, &p->vae, err) &&
           (!p->info.checks_safety ||
               safety_checker_create(checkpoint_safety_checker_config(checkpoint), &checker,
                   &p->safety_checker, err));
}

static bool open_checkpoint(
    struct pipeline *p, const struct pipeline_options *options, struct error *err) {
    struct checkpoint **c = &p->base.checkpoint;
    if (!checkpoint_open(options->model_path, options->tokenizer_dir, c, err))
        return false;
    const bool has = checkpoint_has_safety_checker(*c);
    if (options->safety_checker == CHOICE_ON && !has)
        return error_set(err, ERROR_NOT_FOUND,
            "%s: it has no safety checker, which --safety-checker on requires",
            options->model_path);
    p->info.checks_safety = has && options->safety_checker != CHOICE_OFF;
    return !p->info.checks_safety || checkpoint_open_safety_checker(*c, err) ||
           error_prefix(err, "%s (--safety-checker off draws without)", options->model_path);
}

/* Checks that the three models fit together. Each was already checked by itself. */
static bool check_match(const struct pipeline *p, struct error *err) {
    const struct text_encoder_config *text = text_encoder_get_config(p->text_encoder);
    const struct unet_config *unet = unet_get_config(p->unet);
    const struct vae_config *vae = vae_get_config(p->vae);
    const int latent = vae->latent_channels;
    if ((unet->in_channels != latent && unet->in_channels != 2 * latent + 1) ||
        unet->out_channels != latent)
        return error_set(err, ERROR_UNSUPPORTED,
            "unet: it has %d input and %d output channels, but the VAE's latents have %d: the "
            "input must have %d, or %d for inpainting",
            unet->in_channels, unet->out_channels, latent, latent, 2 * latent + 1);
    if (vae->in_channels != 3)
        return error_set(err, ERROR_UNSUPPORTED,
            "vae: it encodes pictures of %d channels; 3 (RGB) are supported", vae->in_channels);
    if (vae->out_channels != 3)
        return error_set(err, ERROR_UNSUPPORTED,
            "vae: pictures have %d channels; 3 (RGB) are supported", vae->out_channels);
    if (text->hidden_size != unet->cross_attention_dim)
        return error_set(err, ERROR_INVALID,
            "unet: cross_attention_dim is %d, but the text encoder's hidden_size is %d",
            unet->cross_attention_dim, text->hidden_size);
    if (tokenizer_vocab_size(p->tokenizer) > (size_t)text->vocab_size)
        return error_set(err, ERROR_INVALID,
            "tokenizer: it has %zu entries, but the text encoder's vocab_size is %d",
            tokenizer_vocab_size(p->tokenizer), text->vocab_size);
    return true;
}

/* Reads scheduler_config.json, and warns of values that Stable Diffusion pipelines replace. */
static bool read_scheduler(struct pipeline *p, struct error *err) {
    const struct scheduler_choice none = { 0 };
    struct scheduler_config config;
    enum scheduler_kind kind;
    if (!scheduler_config_kind(p->scheduler_json, &kind)) {
        /* Requests must then name a scheduler; scheduler_config_resolve refuses those that do
         * not. */
        const char *name = json_string_value(json_object_get(p->scheduler_json, "_class_name"));
        log_warning("scheduler_config.json: %s is not supported, requests must name a scheduler",
            name ? name : "a file without _class_name");
        const struct scheduler_choice named = { .has_kind = true, .kind = SCHEDULER_DDIM };
        if (!scheduler_config_resolve(p->scheduler_json, &named, &config, err))
            return false;
    } else {
        if (!scheduler_config_resolve(p->scheduler_json, &none, &config, err))
            return false;
        p->info.default_scheduler = scheduler_kind_name(kind);
        if (config.replaced_clip_sample)
            log_warning("scheduler_config.json: clip_sample is for pixels, taken as false");
        if (config.replaced_steps_offset)
            log_warning("scheduler_config.json: steps_offset taken as 1, as Stable Diffusion "
                        "pipelines do");
    }
    if (config.ignored_keys[0])
        log_warning("scheduler_config.json: unknown keys are ignored: %s", config.ignored_keys);
    const struct scheduler_option *prediction = &scheduler_options[OPTION_PREDICTION_TYPE];
    p->info.prediction_type = prediction->words[config.values.prediction_type];
    return true;
}

/* Reads the daemon's defaults. Fields for which the daemon has none get the checkpoint's
 * defaults. A default scheduler takes the place of the one in scheduler_config.json. */
static bool read_defaults(
    struct pipeline *p, const struct pipeline_options *options, struct error *err) {
    if (!generate_defaults_join(options->defaults, options->model_path, &p->defaults, err))
        return false;
    const bool ok = scheduler_config_replace(p->scheduler_json, &p->defaults.scheduler, err) ||
                    error_prefix(err, "the default scheduler, of --default or latentd.json");
    p->defaults_json = ok ? generate_defaults_json(&p->defaults) : NULL;
    return ok && (p->defaults_json || error_set(err, ERROR_NO_MEMORY, "no memory for defaults"));
}

static void fill_figures(struct pipeline *p) {
    const struct text_encoder_config *text = text_encoder_get_config(p->text_encoder);
    int scale = vae_scale(p->vae);
    p->figures = (struct resolve_figures){
        .tokenizer = p->tokenizer,
        .embeddings = p->embeddings,
        .scheduler_json = p->scheduler_json,
        .defaults = &p->defaults,
        .default_px = unet_get_config(p->unet)->sample_size * scale,
        .vae_scale = scale,
        .latent_channels = vae_get_config(p->vae)->latent_channels,
        .inpaints = unet_get_config(p->unet)->in_channels != unet_get_config(p->unet)->out_channels,
        .context_length = text->max_position_embeddings,
        .context_width = unet_get_config(p->unet)->cross_attention_dim,
        .text_layers = text->num_hidden_layers,
        .adapters = p->adapters,
        .adapters_base = p->base.checkpoint ? 0 : adapters_base_id(p->adapters),
    };
}

static bool create_adapters(struct pipeline *p, const struct pipeline_options *options,
    enum dtype dtype, struct error *err) {
    p->base.kernels = p->kernels;
    p->base.dtype = dtype;
    p->base.unet = unet_weights(p->unet);
    p->base.text_encoder = text_encoder_weights(p->text_encoder);
    checkpoint_drop_pages(p->base.checkpoint);
    if (options->registry) {
        p->adapters = adapters_share(options->registry);
        return true;
    }
    if (!adapters_create(&options->adapters, &p->base, &p->adapters, err))
        return false;
    p->base.checkpoint = NULL;
    return true;
}

static bool create_studio(
    struct pipeline *p, const struct pipeline_options *options, struct error *err) {
    const int max_rows = options->max_batch_rows;
    const struct stage_models models = {
        .kernels = p->kernels,
        .text_encoder = p->text_encoder,
        .unet = p->unet,
        .vae = p->vae,
        .safety_checker = p->safety_checker,
        .arena = p->arena,
        .recordings = p->recordings,
        .vae_tiling = options->vae_tiling,
        .max_rows = max_rows,
    };
    if (!model_stages_create(&models, &p->stages, err))
        return false;
    const struct stages table = model_stages_table(p->stages);
    const int images = p->kernels->batch_images;
    p->info.max_batch_rows =
        max_rows ? max_rows : 2 * (images < UNET_CALL_MAX_IMAGES ? images : UNET_CALL_MAX_IMAGES);
    if (!studio_create(&table, max_rows, &p->studio, err))
        return false;
    if (options->one_at_a_time)
        studio_set_one_at_a_time(p->studio);
    return true;
}

static void fill_info(struct pipeline *p, enum dtype dtype, double load_s, int64_t bytes) {
    p->info.model_path = p->model_path;
    p->info.kernels = p->kernels;
    p->info.unet = p->unet;
    p->info.device = p->kernels->name;
    p->info.dtype = dtype;
    p->info.activation_dtype = unet_activation_dtype(p->unet);
    p->info.implementations = implementations_of(p->kernels, dtype);
    p->info.default_width = p->info.default_height = p->figures.default_px;
    p->info.max_tokens = p->figures.context_length;
    p->info.inpaints = p->figures.inpaints;
    p->info.scheduler_json = p->scheduler_json;
    p->info.defaults = p->defaults_json;
    p->info.load_s = load_s;
    p->info.weight_bytes = bytes;
    p->info.activation_bytes = (int64_t)arena_reserved_bytes(p->arena);
}

/* Resolves a request whose pictures do not matter. If the checkpoint needs pictures, blank ones are
 * filled in. */
static bool resolve_blank(const struct pipeline *p, const struct generate_request *request,
    struct resolved_request *out, struct error *err) {
    struct generate_request complete;
    if (!p->figures.inpaints || request->init_image.bytes)
        return resolve_request(&p->figures, request, out, err);
    if (!generate_request_copy(request, &complete, err))
        return false;
    const int width = request->width ? request->width : p->figures.default_px;
    const int height = request->height ? request->height : p->figures.default_px;
    const bool ok = source_fill_blank(&complete, width, height, err) &&
                    resolve_request(&p->figures, &complete, out, err);
    generate_request_finish(&complete);
    return ok;
}

/* Reserves the memory for a picture of the default size. If the model does not fit into memory,
 * loading fails here instead of a request later. */
static bool plan_default(struct pipeline *p, struct error *err) {
    char empty[1] = "", *prompts[1] = { empty };
    struct generate_request request;
    generate_request_init(&request);
    request.prompts = prompts;
    request.prompt_count = 1;
    request.loras_given = true; /* none */
    if (!p->info.default_scheduler) {
        request.scheduler.has_kind = true;
        request.scheduler.kind = SCHEDULER_DDIM;
    }
    struct resolved_request resolved;
    if (!resolve_blank(p, &request, &resolved, err))
        return false;
    bool ok = model_stages_plan(p->stages, &resolved, err);
    resolved_request_finish(&resolved);
    return ok;
}

static bool load(struct pipeline *p, const struct pipeline_options *options, enum dtype dtype,
    struct error *err) {
    double begun = monotonic_seconds();
    const struct device_memory *memory = p->kernels->memory;
    size_t used_before = memory->used(MEMORY_WEIGHTS);
    if (!open_checkpoint(p, options, err))
        return false;
    if (options->opened)
        options->opened(options->user);
    if (!load_models(p, options, p->base.checkpoint, dtype, false, err) ||
        !memory->synchronize(err))
        return false;
    p->scheduler_json = json_deep_copy(checkpoint_scheduler_json(p->base.checkpoint));
    if (!create_adapters(p, options, dtype, err))
        return false;
    p->model_path = strdup(options->model_path);
    if (!p->scheduler_json || !p->model_path)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the checkpoint's description");
    int64_t weight_bytes = (int64_t)memory->used(MEMORY_WEIGHTS) - (int64_t)used_before;
    if (!check_match(p, err) || !read_defaults(p, options, err) || !read_scheduler(p, err) ||
        !arena_create(memory, &p->arena, err) ||
        (!options->no_recordings && !recordings_create(p->kernels, &p->recordings, err)))
        return false;
    if (!embeddings_create(options->embeddings_dir, p->tokenizer,
            text_encoder_get_config(p->text_encoder)->hidden_size, &p->embeddings, err))
        return false;
    fill_figures(p);
    if (!create_studio(p, options, err))
        return false;
    if (!plan_default(p, err))
        return error_prefix(err, "planning a picture of the model's own size");
    fill_info(p, dtype, monotonic_seconds() - begun, weight_bytes);
    log_info("%s: weights %lld MiB as %s on %s, activations %zu MiB for %dx%d, loaded in %.1f s",
        p->model_path, (long long)(weight_bytes >> 20), dtype_name(dtype), p->info.device,
        arena_reserved_bytes(p->arena) >> 20, p->info.default_width, p->info.default_height,
        p->info.load_s);
    return true;
}

/* Checks the models and computes their sizes without loading weights. */
static bool check_models(struct pipeline *p, const struct pipeline_options *options,
    const struct pipeline_info *like, enum dtype dtype, struct pipeline_size *out,
    struct error *err) {
    struct checkpoint **checkpoint = &p->base.checkpoint;
    p->kernels = kernels_reference(); /* the reference kernels, in host memory */
    if (!open_checkpoint(p, options, err) ||
        !load_models(p, options, *checkpoint, DTYPE_F32, true, err) || !check_match(p, err))
        return false;
    for (size_t i = 0; i < COMPONENTS; i++) {
        struct checkpoint_stats stats;
        checkpoint_get_stats(*checkpoint, all_components[i], &stats);
        out->weights += stats.parameters * dtype_size(all_components[i] == COMPONENT_SAFETY_CHECKER
                                                          ? DTYPE_F32
                                                          : dtype);
    }
    const double px = unet_get_config(p->unet)->sample_size * vae_scale(p->vae);
    const double side = px / like->default_width;
    out->activations = (size_t)((double)like->activation_bytes * side * side);
    return true;
}

bool pipeline_weigh(const struct pipeline_options *options, const struct pipeline_info *like,
    struct pipeline_size *out, struct error *err) {
    enum dtype dtype;
    *out = (struct pipeline_size){ 0 };
    if (!devices_choose_dtype(options->kernels, &options->dtype, &dtype, err))
        return false;
    struct pipeline *p = calloc(1, sizeof(*p));
    if (!p)
        return error_set(err, ERROR_NO_MEMORY, "no memory to look at a checkpoint");
    struct pipeline_options looks = *options;
    looks.loading = NULL;
    const bool ok = check_models(p, &looks, like, dtype, out, err);
    pipeline_destroy(p);
    return ok;
}

bool pipeline_create(
    const struct pipeline_options *options, struct pipeline **out, struct error *err) {
    *out = NULL;
    enum dtype dtype;
    const struct kernels *kernels = options->kernels ? options->kernels
                                                     : devices_open(&options->device, err);
    if (!kernels || !devices_choose_dtype(kernels, &options->dtype, &dtype, err))
        return false;
    struct pipeline *p = calloc(1, sizeof(*p));
    if (!p)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a pipeline");
    p->kernels = kernels;
    if (!load(p, options, dtype, err)) {
        pipeline_destroy(p);
        return false;
    }
    *out = p;
    return true;
}

void pipeline_destroy(struct pipeline *pipeline) {
    if (!pipeline)
        return;
    studio_destroy(pipeline->studio);
    model_stages_destroy(pipeline->stages);
    recordings_destroy(pipeline->recordings);
    arena_destroy(pipeline->arena);
    embeddings_destroy(pipeline->embeddings);
    adapters_destroy(pipeline->adapters);
    checkpoint_close(pipeline->base.checkpoint);
    safety_checker_destroy(pipeline->safety_checker);
    vae_destroy(pipeline->vae);
    unet_destroy(pipeline->unet);
    text_encoder_destroy(pipeline->text_encoder);
    tokenizer_destroy(pipeline->tokenizer);
    json_decref(pipeline->scheduler_json);
    json_decref(pipeline->defaults_json);
    generate_request_finish(&pipeline->defaults);
    free(pipeline->model_path);
    free(pipeline);
}

struct adapters *pipeline_get_adapters(const struct pipeline *pipeline) {
    return pipeline->adapters;
}

struct taking {
    struct pipeline *pipeline;
    void (*switched)(void *user);
    void *user;
};

static void on_taken(uint64_t base_id, void *user) {
    const struct taking *taking = user;
    taking->pipeline->figures.adapters_base = base_id;
    taking->pipeline->base.checkpoint = NULL;
    taking->switched(taking->user);
}

void pipeline_take_adapters(struct pipeline *pipeline, void (*switched)(void *user), void *user) {
    struct taking taking = { pipeline, switched, user };
    adapters_rebase(pipeline->adapters, &pipeline->base, on_taken, &taking);
}

struct embeddings *pipeline_get_embeddings(const struct pipeline *pipeline) {
    return pipeline->embeddings;
}

void pipeline_get_info(const struct pipeline *pipeline, struct pipeline_info *out) {
    *out = pipeline->info;
}

bool pipeline_get_figures(const struct pipeline *pipeline, struct device_figures *out) {
    const struct kernels *kernels = pipeline->kernels;
    return kernels->figures && kernels->figures(out, NULL);
}

bool pipeline_resolve(const struct pipeline *pipeline, const struct generate_request *request,
    struct resolved_request *out, struct error *err) {
    return resolve_request(&pipeline->figures, request, out, err);
}

bool pipeline_count_text(const struct pipeline *pipeline, const struct generate_request *request,
    bool negative, struct text_count *out, struct error *err) {
    return resolve_text_count(&pipeline->figures, request, negative, out, err);
}

struct studio *pipeline_studio(struct pipeline *pipeline) {
    return pipeline->studio;
}

bool pipeline_generate(struct pipeline *pipeline, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err) {
    return studio_generate(pipeline->studio, request, hooks, result, err);
}

bool pipeline_note(
    struct pipeline *pipeline, const struct generate_request *request, struct error *err) {
    struct resolved_request resolved;
    if (!resolve_blank(pipeline, request, &resolved, err))
        return false;
    bool ok = model_stages_note(pipeline->stages, &resolved, err);
    resolved_request_finish(&resolved);
    return ok;
}
