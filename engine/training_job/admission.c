/* Checks whether a job is possible with its checkpoint before the job is accepted. Otherwise a
 * misspelt layer would be reported an hour later, after the jobs ahead in the queue. */
#include "engine/training_job/internal.h"

#include "engine/request/defaults.h"

#include <stdio.h>
#include <string.h>

/* Checks that no class picture is missing: an inpainting checkpoint cannot draw them. */
static bool has_class(const struct train_config *c, const char *class_folder, struct error *err) {
    int64_t missing = c->num_class_images;
    char value[24];
    if (class_folder && !class_pictures_missing(class_folder, c, &missing, err))
        return false;
    snprintf(value, sizeof(value), "%lld", (long long)c->num_class_images);
    return !missing ||
           error_field(err, "num_class_images", value,
               "at most %lld, the pictures in class_data_dir: this checkpoint inpaints, "
               "and draws from no prompt alone",
               (long long)(c->num_class_images - missing));
}

/* Refuses a checkpoint that predicts the sample. diffusers' training scripts have no loss for it
 * either. */
static bool can_be_trained(
    const struct train_config *c, const struct checkpoint *checkpoint, struct error *err) {
    const struct scheduler_choice ddpm = { .has_kind = true, .kind = SCHEDULER_DDPM };
    struct scheduler_config config;
    if (!scheduler_config_resolve(checkpoint_scheduler_json(checkpoint), &ddpm, &config, err))
        return false;
    return c->prediction_type != TRAIN_PREDICTION_OF_MODEL ||
           config.values.prediction_type != PREDICTION_SAMPLE ||
           error_field(err, "prediction_type", "model",
               "\"epsilon\" or \"v_prediction\": this checkpoint predicts \"sample\", which cannot "
               "be trained");
}

/* Limits the total number of steps of all pictures in one validation. */
static bool validation_is_short(
    const struct train_config *c, const struct generate_request *defaults, struct error *err) {
    const int64_t pictures = (int64_t)c->validation_prompts.count * c->num_validation_images;
    const int64_t most = TRAIN_VALIDATION_STEPS_MAX / pictures;
    const int steps = validation_steps(c, defaults);
    char value[24];
    snprintf(value, sizeof(value), "%d", steps);
    return steps <= most ||
           error_field(err, "validation_inference_steps", value,
               "at most %lld for %lld pictures: all pictures of a validation together have at most "
               "%d steps",
               (long long)most, (long long)pictures, TRAIN_VALIDATION_STEPS_MAX);
}

/* Reports the scheduler's refusals under the names of the job's fields. */
static bool scheduler_can(const struct train_config *c, const struct generate_request *defaults,
    const struct checkpoint *checkpoint, struct error *err) {
    const struct scheduler_choice choice = validation_scheduler(c);
    struct scheduler_config config;
    struct scheduler_plan *plan = NULL;
    struct error why = { 0 };
    json_t *json = json_deep_copy(checkpoint_scheduler_json(checkpoint));
    const bool ok = (json || error_set(&why, ERROR_NO_MEMORY, "no memory for a scheduler")) &&
                    scheduler_config_replace(json, &defaults->scheduler, &why) &&
                    scheduler_config_resolve(json, &choice, &config, &why) &&
                    scheduler_plan_create(&config, validation_steps(c, defaults), &plan, &why);
    scheduler_plan_destroy(plan);
    json_decref(json);
    if (ok)
        return true;
    if (strcmp(why.param, "num_inference_steps") == 0)
        return error_field(err, "validation_inference_steps", why.value, "%s", why.allowed);
    if (why.code == ERROR_INVALID)
        return error_field(err, "validation_scheduler",
            c->validation_scheduler ? c->validation_scheduler : "(as requests have it)",
            "one that can draw: %s", why.message);
    *err = why;
    return error_prefix(err, "validation pictures");
}

static bool validation_is_possible(const struct train_config *c,
    const struct generate_request *defaults, const struct checkpoint *checkpoint,
    struct error *err) {
    const struct unet_config *unet = checkpoint_unet_config(checkpoint);
    enum scheduler_kind kind;
    if (c->validation_scheduler && !scheduler_kind_from_name(c->validation_scheduler, &kind))
        return error_field(err, "validation_scheduler", c->validation_scheduler,
            "the name of a scheduler: GET /schedulers lists them");
    if (!c->validation_prompts.count)
        return true;
    if (unet->in_channels != unet->out_channels)
        return error_field(err, "validation_prompts", c->validation_prompts.items[0],
            "none: this checkpoint inpaints, and draws from no prompt alone");
    return validation_is_short(c, defaults, err) && scheduler_can(c, defaults, checkpoint, err);
}

bool training_job_suits(const struct train_config *c, const struct generate_request *defaults,
    const struct checkpoint *checkpoint, const char *class_folder, struct error *err) {
    const struct unet_config *unet = checkpoint_unet_config(checkpoint);
    return can_be_trained(c, checkpoint, err) &&
           validation_is_possible(c, defaults, checkpoint, err) &&
           (!c->with_prior_preservation || unet->in_channels == unet->out_channels ||
               has_class(c, class_folder, err));
}

/* Checks the names and shapes of the tensors without loading them. */
static bool layers_are_there(
    const struct train_config *config, struct checkpoint *c, struct error *err) {
    struct weights unet_weights_of = weights_from_checkpoint(
        c, COMPONENT_UNET, kernels_reference(), DTYPE_F32);
    struct weights text_weights_of = weights_from_checkpoint(
        c, COMPONENT_TEXT_ENCODER, kernels_reference(), DTYPE_F32);
    struct unet *unet = NULL;
    struct text_encoder *text = NULL;
    unet_weights_of.check_only = text_weights_of.check_only = true;
    const bool ok = unet_create(checkpoint_unet_config(c), &unet_weights_of, &unet, err) &&
                    (!config->train_text_encoder ||
                        text_encoder_create(
                            checkpoint_text_encoder_config(c), &text_weights_of, &text, err)) &&
                    parameters_are_there(
                        config, unet_weights(unet), text ? text_encoder_weights(text) : NULL, err);
    text_encoder_destroy(text);
    unet_destroy(unet);
    return ok;
}

bool training_job_is_possible(const struct train_config *config,
    const struct generate_request *defaults, const char *model_path, const char *tokenizer_dir,
    const char *class_folder, const char *folder, struct error *err) {
    struct generate_request all = { 0 };
    struct checkpoint *c;
    if (!generate_defaults_join(defaults, model_path, &all, err))
        return false;
    bool ok = checkpoint_open(model_path, tokenizer_dir, &c, err);
    if (ok) {
        ok = training_job_suits(config, &all, c, class_folder, err) &&
             (config->method == TRAIN_FULL ? training_disk_would_fit(config, c, folder, err)
                                           : layers_are_there(config, c, err));
        checkpoint_close(c);
    }
    generate_request_finish(&all);
    return ok;
}
