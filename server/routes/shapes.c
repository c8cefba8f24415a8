#include "server/routes/shapes.h"

#include "base/text/shape.h"
#include "server/generation/generate_answer.h"

#include <stdbool.h>

static const struct {
    const char *name, *shape;
} shapes[] = {
    /* Errors, of each dialect. */
    { "Error", "{error: Failure}" },
    { "OpenaiError", "{error: {message: string, type: string, param: string|null, code: string}}" },
    { "SdapiError",
        "{detail: string|[{type: string, loc: [string], msg: string, input: string}]}" },
    { "HuggingfaceError", "{error: string}" },
    { "Failure",
        "{code: string, message: string, param?: string, value?: string, allowed?: string}" },
    /* The daemon, its models and schedulers. */
    { "Info", "{name: string, version: string, state: EngineState, model: LoadedModel|null, "
              "device: Device|null, implementations: {*: string}|null, loras: LorasSummary|null, "
              "queue: {depth: integer, max: integer}, limits: Limits}" },
    { "EngineState", "'loading'|'ready'|'failed'|'stopping'" },
    /* generate_defaults_json */
    { "Defaults", "{negative_prompt?: string, scheduler?: {name?: string, ...}, width?: integer, "
                  "height?: integer, "
                  "num_inference_steps: integer, guidance_scale: number, guidance_rescale: number, "
                  "clip_skip: integer, long_prompt: string, vae_tiling: string}" },
    { "LoadedModel", "{name: string, device: string, dtype: string, activation_dtype: string, "
                     "default_width: integer, default_height: integer, "
                     "defaults: Defaults, max_tokens: integer, "
                     "max_batch_rows: integer, default_scheduler: string|null, "
                     "default_scheduler_options: {*: Option}|null, prediction_type: string, "
                     "needs_mask_image: boolean, safety_checker: boolean, load_s: number, "
                     "weight_bytes: integer}" },
    { "Device",
        "{name: string, memory_total_bytes: integer, memory_free_bytes: integer, "
        "weight_bytes: integer, activation_bytes: integer, utilisation_percent: integer|null, "
        "memory_utilisation_percent: integer|null, driver_cuda_version: number, "
        "cuda_version: number, age_s: number}" },
    { "LorasSummary",
        "{folder: string|null, count: integer, resident_bytes: integer, limit_bytes: integer|"
        "null, merge: boolean}" },
    { "Limits", "{width_min: integer, width_max: integer, size_multiple: integer, "
                "num_inference_steps_max: integer, images_max: integer, prompt_max_bytes: integer, "
                "body_max_bytes: integer}" },
    { "Scheduler", "{name: string, class: string, display_name: string, description: string, "
                   "aliases: [string], options: {*: Option}}" },
    { "Option", "{type: string, description: string, enum?: [string], minimum?: number, "
                "maximum?: number, exclusiveMinimum?: number, exclusiveMaximum?: number, "
                "multipleOf?: integer, default?: string|number|boolean}" },
    { "ModelFile",
        "{name: string, path: string, layout: 'diffusers'|'single_file', bytes: integer, "
        "current: boolean, loading: boolean, error: string|null}" },
    { "ModelSwitch",
        "{name: string, state: 'checking'|'draining'|'loading'|'done'|'failed', "
        "unloads_first: boolean, waits_for_jobs: integer, needed_bytes: integer, "
        "available_bytes: integer, progress: number, took_s: number|null, error: Failure|null}" },
    { "SwitchOrder", "{name: string, switch: ModelSwitch|null}" },
    { "TokenCount", "{tokens: integer, chunks: integer, cut: string|null}" },
    /* Pictures. */
    { "Drawing",
        "{id: string, created: integer, model: string, images: [Image], parameters: Parameters, "
        "loras: [UsedLora], timings: Timings, vae_tiled: boolean, warnings: [string]}" },
    { "Image", "{b64_json?: string, b64_latent?: string, dtype?: string, shape?: [integer], "
               "seed: integer, nsfw: boolean|null, width: integer, height: integer}" },
    { "StoredDrawing",
        "{id: string, created: integer, model: string, images: [StoredImage], "
        "parameters: Parameters, loras: [UsedLora], timings: Timings, vae_tiled: boolean, "
        "warnings: [string]}" },
    { "StoredImage", "{url: string, format: string, bytes: integer, seed: integer, width: integer, "
                     "height: integer, nsfw?: boolean|null, dtype?: string, shape?: [integer]}" },
    { "UsedLora", "{name: string, weight: number, text_encoder_weight: number, version: integer}" },
    { "Timings", "{queue_s: number, text_encoder_s: number, unet_s: number, vae_s: number, "
                 "total_s: number, steps: integer, batch_rows_mean: number}" },
    /* Jobs. */
    { "Job",
        "{id: string, type: string, owner: string, state: JobState, asked_to: 'cancel'|'pause'|"
        "null, position: integer|null, priority: integer, step: integer, steps: integer, "
        "eta_s: number|null, seconds: number, held_up_s: number|null, metrics: TrainRecord|null, "
        "attempts: integer, created_at: number|null, started_at: number|null, "
        "finished_at: number|null, result: StoredDrawing|TrainedAdapter|TrainedModel|null, "
        "error: Failure|null, url: string, events_url: string, request?: object}" },
    { "JobState", "'queued'|'running'|'paused'|'succeeded'|'failed'|'cancelled'" },
    { "TrainRecord",
        "{step?: integer, epoch?: number, loss?: number|null, learning_rate?: number, "
        "text_encoder_learning_rate?: number, grad_norm?: number, loss_scale?: number, "
        "images_per_s?: number, eta_s?: number, validation_loss?: number, "
        "group_learning_rates?: {*: number}}" },
    { "TrainedAdapter", "{adapter: string, file: string, kohya_file?: string, warning?: string}" },
    { "TrainedModel", "{model: string}" },
    { "TrainCheckpoint",
        "{step: integer, name: string, adapter: string|null, bytes: integer, created_at: number}" },
    { "TrainValidation",
        "{step: integer, loss: number|null, pictures: [{file: string, prompt: string, "
        "seed: integer, url: string}]}" },
    { "Dataset",
        "{name: string, layout: string, pictures: integer, bytes: integer, samples: integer, "
        "held_out: integer, sizes: {smallest: [integer], largest: [integer], "
        "made_larger: integer}, buckets: [{width: integer, height: integer, pictures: integer, "
        "samples: integer}], captions: {missing: integer, missing_names: [string], "
        "empty: integer, pictures_with_several: integer, longest_bytes: integer}, "
        "broken: integer, broken_pictures: [{path: string, error: string}], "
        "passed_over: integer, passed_over_names: [string]}" },
    /* LoRAs and textual inversions. */
    { "Lora",
        "{name: string, state: 'on_disk'|'loaded'|'failed', version: integer, "
        "file_bytes: integer, resident_bytes: integer, users: integer, pinned: boolean, "
        "default_weight: number|null, text_encoder_weight: number|null, format?: string, "
        "kinds?: [string], ranks?: [LoraValue], alphas?: [LoraValue], targets?: {*: integer}, "
        "unet_modules?: integer, text_encoder_modules?: integer, trigger_words?: string|null, "
        "matched?: integer, "
        "unmatched_count?: integer, unmatched?: [string], load_s?: number, sync_s?: number, "
        "error: Failure|null}" },
    { "LoraValue", "{value: number, modules: integer}" },
    { "Embeddings",
        "{folder: string|null, embeddings: [{name: string, file: string, token: string|null, "
        "named_in_plain_texts: boolean, format: string, vectors: integer, width: integer, "
        "file_bytes: integer}], skipped: [{name: string, file: string, error: Failure}]}" },
    /* OpenAI's. */
    { "OpenaiModel",
        "{id: string, object: 'model', created: integer, owned_by: string, root?: string, "
        "parent?: string}" },
    { "OpenaiImages",
        "{created: integer, data: [{b64_json?: string, url?: string, seed: integer, "
        "nsfw?: boolean}], background: string, output_format: string, quality: string, "
        "size: string, usage: {input_tokens: integer, "
        "input_tokens_details: {image_tokens: integer, text_tokens: integer}, "
        "output_tokens: integer, total_tokens: integer}, warnings?: [string]}" },
    { "OpenaiFile",
        "{id: string, object: 'file', bytes: integer, created_at: integer, filename: string, "
        "purpose: string, status: string}" },
    { "FineTuningJob",
        "{id: string, object: 'fine_tuning.job', created_at: integer|null, finished_at: integer|"
        "null, estimated_finish: integer|null, model: string, fine_tuned_model: string|null, "
        "organization_id: string, status: JobState, hyperparameters: Hyperparameters, "
        "method: {type: string, supervised: {hyperparameters: Hyperparameters}}, "
        "training_file: string, validation_file: null, result_files: [string], seed: integer|"
        "null, trained_tokens: null, error: {code: string|null, message: string|null, "
        "param: string|null}|null, integrations: [object], metadata: {*: string}, config: object|"
        "null}" },
    { "Hyperparameters",
        "{n_epochs: integer|'auto', batch_size: integer|null, learning_rate_multiplier: number}" },
    { "FineTuningEvent",
        "{id: string, object: 'fine_tuning.job.event', created_at: integer, level: string, "
        "message: string, type: string, data: object|null}" },
    { "FineTuningCheckpoint",
        "{id: string, object: 'fine_tuning.job.checkpoint', created_at: integer, "
        "fine_tuned_model_checkpoint: string, fine_tuning_job_id: string, step_number: integer, "
        "metrics: {step: integer}}" },
    /* AUTOMATIC1111's. */
    { "SdapiImages", "{images: [string], parameters: object, info: string}" },
    { "SdapiOptions",
        "{sd_model_checkpoint?: string|null, CLIP_stop_at_last_layers?: integer, "
        "samples_format?: string, jpeg_quality?: integer, randn_source?: 'GPU'|'NV'|'CPU', "
        "live_previews_enable?: boolean, show_progress_every_n_steps?: integer, sd_vae?: string, "
        "eta_noise_seed_delta?: integer, emphasis?: string, "
        "use_old_emphasis_implementation?: boolean, use_old_karras_scheduler_sigmas?: boolean, "
        "always_discard_next_to_last_sigma?: boolean, img2img_fix_steps?: boolean, "
        "img2img_color_correction?: boolean, initial_noise_multiplier?: number, "
        "sd_hypernetwork?: string, ...}" },
    { "SdapiProgress",
        "{progress: number, eta_relative: number, state: {skipped: boolean, "
        "interrupted: boolean, stopping_generation: boolean, job: string, job_count: integer, "
        "job_timestamp: string, job_no: integer, sampling_step: integer, "
        "sampling_steps: integer}, current_image: string|null, textinfo: string|null, "
        "current_task: string|null}" },
    { "SdapiEmbedding",
        "{step: integer|null, sd_checkpoint: string|null, sd_checkpoint_name: string|null, "
        "shape: integer, vectors: integer}" },
};

const char *shapes_at(size_t index, const char **shape) {
    const bool is_one = index < sizeof(shapes) / sizeof(shapes[0]);
    *shape = is_one ? shapes[index].shape : NULL;
    return is_one ? shapes[index].name : NULL;
}

json_t *shapes_json(void) {
    json_t *json = json_pack("{s:o}", "Parameters", generate_parameters_schema());
    const char *name, *shape;
    for (size_t i = 0; (name = shapes_at(i, &shape)); i++)
        json_object_set_new(json, name, shape_read(&shape));
    return json;
}
