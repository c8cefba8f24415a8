/* Everything that can be said about a training job, in one table, under the names of diffusers'
 * training scripts, so that a command line can be carried over.
 *
 * POST /train, `latentd train --config` and what is stored beside a job are JSON objects of these
 * fields. Reading, refusing, echoing and explaining walk TRAIN_FIELDS: a new option is one line of
 * it and the code that uses its member of struct train_config. Nothing is ignored: an unknown key,
 * a field that has no effect beside the others, and what diffusers' scripts have but this does not
 * do, are each an error that says so. null stands for the default.
 *
 * A zeroed struct train_config can be finished. */
#ifndef TRAIN_CONFIG_H
#define TRAIN_CONFIG_H

#include "base/error.h"
#include "base/limits.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each enum in the order of its field's words. */
enum train_method { TRAIN_LORA, TRAIN_FULL };
enum train_initialization { TRAIN_INIT_GAUSSIAN, TRAIN_INIT_KAIMING };
enum train_precision { TRAIN_PRECISION_NO, TRAIN_PRECISION_BF16, TRAIN_PRECISION_FP16 };
enum train_interpolation { TRAIN_LANCZOS, TRAIN_BILINEAR, TRAIN_BICUBIC };
enum train_prediction { TRAIN_PREDICTION_OF_MODEL, TRAIN_PREDICTION_EPSILON, TRAIN_PREDICTION_V };
enum train_save_dtype { TRAIN_SAVE_F32, TRAIN_SAVE_F16, TRAIN_SAVE_BF16 };
enum train_save_format { TRAIN_SAVE_DIFFUSERS, TRAIN_SAVE_KOHYA, TRAIN_SAVE_BOTH };
enum train_masks { TRAIN_MASKS_RANDOM, TRAIN_MASKS_FILES };

struct train_texts {
    char **items; /* owned */
    size_t count;
};

/* What holds for the parameters of modules whose name contains `pattern` ('*': anything between;
 * the first group that fits counts). A NAN: the job's own. */
struct train_group {
    char *pattern; /* owned */
    double learning_rate, weight_decay;
};
struct train_groups {
    struct train_group *items; /* owned */
    size_t count;
};

/* X(kind, member, ...): the kind says what values look like and the member's type, the name is the
 * key. Beside min, max and value (the default): `needs` names another field, and `when` the values
 * of it (bits) beside which this one has an effect. TEXT and TEXTS are NULL or empty if not given.
 * 0 means "none" wherever it is the least allowed and the default. */
#define TRAIN_FIELDS(X)                                                                            \
    X(TEXT, name, .help = "what the adapter will be called")                                       \
    X(TEXT, dataset, .help = "a folder under the dataset root, or an uploaded data set")           \
    X(WORD, method, WORDS("lora", "full"), .help = "an adapter, or the whole UNet")                \
    X(INTEGER, seed, .max = 9e15, .help = "of everything random; drawn and reported if not given") \
    /* the adapter */                                                                              \
    X(INTEGER, rank, .min = 1, .max = ADAPTER_MAX_RANK, .value = 16, ONLY_LORA,                    \
        .help = "of each pair of factors")                                                         \
    X(NUMBER, alpha, .max = 1e6, ONLY_LORA, .help = "alpha / rank scales them; 0: the rank")       \
    X(NUMBER, dropout, .max = 1, .below_max = true, ONLY_LORA, .help = "of the adapter's input")   \
    X(TEXTS, target_modules, .texts = "to_q to_k to_v to_out.0", ONLY_LORA,                        \
        .help = "ends of the names of the UNet's layers that get factors")                         \
    X(WORD, init_lora_weights, WORDS("gaussian", "kaiming"), ONLY_LORA,                            \
        .help = "how the first factor begins")                                                     \
    X(FLAG, train_text_encoder, .help = "the text encoder too")                                    \
    X(TEXTS, text_encoder_target_modules, .texts = "q_proj k_proj v_proj out_proj",                \
        .needs = "train_text_encoder", .when = 1 << true,                                          \
        .help = "the same of the text encoder's layers")                                           \
    /* pictures and captions */                                                                    \
    X(INTEGER, resolution, .min = IMAGE_MIN_PX, .max = IMAGE_MAX_PX, .value = 512,                 \
        .help = "of the square, or of the square of a bucket's area, in px")                       \
    X(FLAG, center_crop, .help = "crop the middle, not anywhere")                                  \
    X(FLAG, random_flip, .help = "mirror half of the pictures")                                    \
    X(WORD, image_interpolation_mode, WORDS("lanczos", "bilinear", "bicubic"),                     \
        .help = "how pictures are made smaller")                                                   \
    X(FLAG, enable_bucket, .help = "keep the pictures' shapes: batches of one shape each")         \
    X(INTEGER, min_bucket_reso, .min = IMAGE_MIN_PX, .max = IMAGE_MAX_PX, .value = 256,            \
        ONLY_WITH(enable_bucket), .help = "shortest side of a bucket, in px")                      \
    X(INTEGER, max_bucket_reso, .min = IMAGE_MIN_PX, .max = IMAGE_MAX_PX, .value = 1024,           \
        ONLY_WITH(enable_bucket), .help = "longest side of a bucket, in px")                       \
    X(INTEGER, bucket_reso_steps, .min = 8, .max = 512, .value = 64, ONLY_WITH(enable_bucket),     \
        .help = "sides are multiples of this, in px")                                              \
    X(FLAG, bucket_no_upscale, ONLY_WITH(enable_bucket), .help = "never make a picture larger")    \
    X(FLAG, skip_broken_images, .help = "leave them out instead of refusing the data set")         \
    X(NUMBER, validation_share, .max = 0.9, .help = "of the pictures, held out for a loss")        \
    X(INTEGER, max_train_samples, .max = 1e9, .help = "use so many pictures; 0: all")              \
    X(INTEGER, dataloader_num_workers, .min = 1, .max = 64, .value = 2,                            \
        .help = "threads that decode pictures ahead")                                              \
    X(NUMBER, caption_dropout, .max = 1, .help = "of the captions, replaced by none")              \
    X(WORD, masks, WORDS("random", "files"),                                                       \
        .help = "what an inpainting model fills in: drawn, or NAME.mask.png beside each picture")  \
    X(TEXT, instance_prompt, .help = "every picture's caption, where it has no other")             \
    X(FLAG, with_prior_preservation, .help = "train on pictures of the class beside the data set") \
    X(TEXT, class_data_dir, ONLY_WITH(with_prior_preservation),                                    \
        .help = "their folder, under the dataset root")                                            \
    X(TEXT, class_prompt, ONLY_WITH(with_prior_preservation), .help = "their caption")             \
    X(NUMBER, prior_loss_weight, .max = 1000, .value = 1, ONLY_WITH(with_prior_preservation),      \
        .help = "what they count beside the others")                                               \
    X(INTEGER, num_class_images, .min = 1, .max = 100000, .value = 100,                            \
        ONLY_WITH(with_prior_preservation), .help = "drawn until there are so many")               \
    /* the loop */                                                                                 \
    X(INTEGER, train_batch_size, .min = 1, .max = TRAIN_BATCH_MAX, .value = 1,                     \
        .help = "pictures of one forward and backward")                                            \
    X(INTEGER, gradient_accumulation_steps, .min = 1, .max = 65536, .value = 1,                    \
        .help = "batches of one optimizer step")                                                   \
    X(FLAG, gradient_checkpointing, .help = "less memory, a third more work")                      \
    X(INTEGER, max_train_steps, .max = TRAIN_STEPS_MAX, .help = "optimizer steps; wins over")      \
    X(INTEGER, num_train_epochs, .max = TRAIN_STEPS_MAX, .help = "times through the data set")     \
    X(WORD, mixed_precision, WORDS("no", "bf16", "fp16"), .help = "of frozen weights and layers")  \
    X(INTEGER, loss_scale, .max = 1 << 30, ONLY_FP16, .help = "a fixed one; 0: it adapts")         \
    X(INTEGER, initial_scale_power, .max = 30, .value = 16, ONLY_FP16,                             \
        .help = "it begins at two to this")                                                        \
    X(INTEGER, loss_scale_window, .min = 1, .max = 1000000, .value = 2000, ONLY_FP16,              \
        .help = "good steps before it grows")                                                      \
    X(INTEGER, hysteresis, .min = 1, .max = 1000, .value = 1, ONLY_FP16,                           \
        .help = "overflows before it falls")                                                       \
    X(NUMBER, min_loss_scale, .max = 65536, ONLY_FP16, .help = "it falls no further")              \
    /* the optimizer */                                                                            \
    X(WORD, optimizer, WORDS("adamw"), .help = "AdamW, as torch has it")                           \
    X(FLAG, use_8bit_adam, .help = "its states in 8 bits each")                                    \
    X(NUMBER, learning_rate, .max = 10, .value = 1e-4, .help = "of the job")                       \
    X(NUMBER, text_encoder_learning_rate, .max = 10, .needs = "train_text_encoder",                \
        .when = 1 << true, .help = "of the text encoder; 0: the job's")                            \
    X(FLAG, scale_lr, .help = "times accumulation, batch size and processes")                      \
    X(GROUPS, parameter_groups, .help = "rates and weight decays by parts of layers' names")       \
    X(NUMBER, adam_beta1, .max = 1, .below_max = true, .value = 0.9, .help = "of the mean")        \
    X(NUMBER, adam_beta2, .max = 1, .below_max = true, .value = 0.999, .help = "of the variance")  \
    X(NUMBER, adam_epsilon, .max = 1, .above_min = true, .value = 1e-8, .help = "added below")     \
    X(NUMBER, adam_weight_decay, .max = 10, .value = 1e-2, .help = "pull towards 0")               \
    X(NUMBER, max_grad_norm, .max = 1e9, .value = 1, .help = "gradients are cut to it; 0: never")  \
    X(NUMBER, max_grad_value, .max = 1e9, .help = "each value is cut to it; 0: never")             \
    X(WORD, lr_scheduler, .words = learning_rate_names, .help = "how the rates change")            \
    X(INTEGER, lr_warmup_steps, .max = TRAIN_STEPS_MAX, ONLY_WARMUP, .help = "of rising rates")    \
    X(NUMBER, lr_warmup_ratio, .max = 1, ONLY_WARMUP, .help = "the same as a share of all steps")  \
    X(INTEGER, lr_num_cycles, .min = 1, .max = 100000, .value = 1,                                 \
        ONLY_SCHEDULE(COSINE_WITH_RESTARTS), .help = "restarts and one")                           \
    X(NUMBER, lr_power, .max = 100, .value = 1, ONLY_SCHEDULE(POLYNOMIAL), .help = "1: a line")    \
    X(NUMBER, lr_end, .max = 10, .value = 1e-7, ONLY_SCHEDULE(POLYNOMIAL), .help = "at the end")   \
    X(TEXT, lr_step_rules, ONLY_SCHEDULE(PIECEWISE_CONSTANT),                                      \
        .help = "\"1:10,0.1:20,0.01\": multiples, and the steps up to which they hold")            \
    X(NUMBER, lr_start_factor, .max = 1, .above_min = true, .value = 0.1,                          \
        ONLY_SCHEDULE(WARMUP_COSINE), .help = "of the rate, at the first step")                    \
    X(NUMBER, lr_eta_min, .max = 10, ONLY_SCHEDULE(WARMUP_COSINE), .help = "the last rate")        \
    /* the loss */                                                                                 \
    X(WORD, prediction_type, WORDS("model", "epsilon", "v_prediction"),                            \
        .help = "what is predicted; model: as the checkpoint says")                                \
    X(NUMBER, snr_gamma, .max = 1000, .help = "min-SNR weights, 5 say; 0: every timestep equal")   \
    X(NUMBER, noise_offset, .max = 10, .help = "noise of whole channels, so much of it")           \
    X(NUMBER, input_perturbation, .max = 10, .help = "more noise in the input alone, so much")     \
    /* the average of the weights */                                                               \
    X(FLAG, use_ema, .help = "save an average of the weights over the steps")                      \
    X(NUMBER, ema_decay, .max = 1, .value = 0.9999, ONLY_WITH(use_ema), .help = "at most")         \
    X(NUMBER, ema_min_decay, .max = 1, ONLY_WITH(use_ema), .help = "at least")                     \
    X(INTEGER, ema_update_after_step, .max = TRAIN_STEPS_MAX, ONLY_WITH(use_ema),                  \
        .help = "until then it is a copy")                                                         \
    X(FLAG, use_ema_warmup, ONLY_WITH(use_ema), .help = "rise by ema_inv_gamma and ema_power")     \
    X(NUMBER, ema_inv_gamma, .max = 1e6, .above_min = true, .value = 1, ONLY_WITH(use_ema_warmup), \
        .help = "1 - (1 + step / inv_gamma)^-power")                                               \
    X(NUMBER, ema_power, .max = 100, .value = 2.0 / 3, ONLY_WITH(use_ema_warmup), .help = "of it") \
    /* what is kept and shown */                                                                   \
    X(INTEGER, checkpointing_steps, .max = TRAIN_STEPS_MAX, .value = 500,                          \
        .help = "optimizer steps between checkpoints; 0: only at the end")                         \
    X(INTEGER, checkpoints_total_limit, .max = 100000, .help = "the oldest give way; 0: all stay") \
    X(TEXT, resume_from_checkpoint, .help = "\"latest\", or the folder of one")                    \
    X(WORD, save_format, WORDS("diffusers", "kohya", "both"), ONLY_LORA, .help = "of adapters")    \
    X(WORD, save_precision, WORDS("fp32", "fp16", "bf16"), .help = "of what is saved at the end")  \
    X(TEXTS, validation_prompts, .help = "pictures to draw on the way")                            \
    X(INTEGER, validation_steps, .max = TRAIN_STEPS_MAX, .help = "every so many optimizer steps")  \
    X(INTEGER, validation_epochs, .max = TRAIN_STEPS_MAX, .help = "every so many epochs")          \
    X(INTEGER, num_validation_images, .min = 1, .max = IMAGES_PER_REQUEST_MAX, .value = 1,         \
        .help = "of each prompt")                                                                  \
    X(WORD, report_to, WORDS("tensorboard", "none"), .help = "beside metrics.jsonl")

#define TRAIN_FLAG(name) bool name;
#define TRAIN_INTEGER(name) int64_t name;
#define TRAIN_NUMBER(name) double name;
#define TRAIN_WORD(name)                                                                           \
    int name;                        /* an index in its words: the enums above, learning_rate_kind \
                                      */
#define TRAIN_TEXT(name) char *name; /* owned */
#define TRAIN_TEXTS(name) struct train_texts name;
#define TRAIN_GROUPS(name) struct train_groups name;
struct train_config {
#define TRAIN_MEMBER(kind, name, ...) TRAIN_##kind(name)
    TRAIN_FIELDS(TRAIN_MEMBER)
#undef TRAIN_MEMBER
};

/* Reads a job from a JSON object: ERROR_INVALID with param, value and allowed for a bad field,
 * ERROR_UNSUPPORTED for one that is known and not done here. Missing fields get their defaults, a
 * missing seed a random one. `name` and `dataset` must be there. */
bool train_config_parse(const json_t *json, struct train_config *out, struct error *err)
    __attribute__((warn_unused_result));
void train_config_finish(struct train_config *config);

/* Every field, so that parsing it gives the same job. A field without effect, or without a value,
 * is left out. A new reference; NULL when memory is short. */
json_t *train_config_to_json(const struct train_config *config);

/* Field `index`, to be listed: what it is called, what is allowed, what it is for. False past the
 * last one. */
struct train_config_line {
    const char *name, *help;
    char allowed[ERROR_ALLOWED_BYTES];
};
bool train_config_line(size_t index, struct train_config_line *out);

/* What only the device decides: ERROR_INVALID where it has no such precision. `dtypes` are the bits
 * 1 << DTYPE_x of what the device packs weights as, `device` is its name for the message. */
bool train_config_fits_device(const struct train_config *config, unsigned dtypes,
    const char *device, struct error *err) __attribute__((warn_unused_result));

#endif
