/* Every option of a training job in one table, named as in diffusers' training scripts, so that a
 * command line can be carried over.
 *
 * POST /train, `latentd train --config` and the description stored with a job are JSON objects of
 * these fields. Parsing, refusing, echoing and explaining are driven by TRAIN_FIELDS. A new option
 * is one line of that table, and the code that uses its member of struct train_config. Nothing is
 * ignored. Each of the following is an error that names its cause: an unknown key, a field that has
 * no effect with the other fields, and an option of diffusers' scripts that is not supported here.
 * null stands for the default.
 *
 * A zeroed struct train_config can be finished. */
#ifndef TRAIN_CONFIG_H
#define TRAIN_CONFIG_H

#include "base/error.h"
#include "base/limits.h"
#include "kernels/tensor.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each enum is in the order of its field's words. */
enum train_method { TRAIN_LORA, TRAIN_FULL };
enum train_adapter { TRAIN_ADAPTER_LORA, TRAIN_ADAPTER_LOHA, TRAIN_ADAPTER_LOKR };
enum train_initialization { TRAIN_INIT_GAUSSIAN, TRAIN_INIT_KAIMING };
enum train_precision { TRAIN_PRECISION_NO, TRAIN_PRECISION_BF16, TRAIN_PRECISION_FP16 };
enum train_interpolation { TRAIN_LANCZOS, TRAIN_BILINEAR, TRAIN_BICUBIC };
enum train_prediction { TRAIN_PREDICTION_OF_MODEL, TRAIN_PREDICTION_EPSILON, TRAIN_PREDICTION_V };
enum train_save_dtype { TRAIN_SAVE_F32, TRAIN_SAVE_F16, TRAIN_SAVE_BF16 };
enum train_save_format { TRAIN_SAVE_DIFFUSERS, TRAIN_SAVE_KOHYA, TRAIN_SAVE_BOTH };
enum train_optimizer { TRAIN_ADAMW, TRAIN_LION, TRAIN_ADAFACTOR, TRAIN_PRODIGY };
enum train_masks { TRAIN_MASKS_RANDOM, TRAIN_MASKS_FILES };
enum train_data_parallel { TRAIN_PARALLEL_SHARE, TRAIN_PARALLEL_MULTIPLY };

struct train_texts {
    char **items; /* owned */
    size_t count;
};

/* Settings for the parameters of modules whose name contains `pattern`; '*' matches anything. The
 * first group that matches is used. NAN: the job's own setting. */
struct train_group {
    char *pattern; /* owned */
    double learning_rate, weight_decay;
};
struct train_groups {
    struct train_group *items; /* owned */
    size_t count;
};

/* X(kind, member, ...): the kind decides the form of the values and the member's type; the member's
 * name is the key. Further columns are min, max, value (the default), and ONLY_..., which lists the
 * values of another field that give this one an effect. TEXT and TEXTS are NULL or empty if not
 * given. For fields whose minimum and default are 0, 0 means "none". */
#define TRAIN_FIELDS(X)                                                                            \
    X(TEXT, name, .help = "the adapter's name")                                                    \
    X(TEXT, dataset, .help = "a folder under the dataset root, or an uploaded data set")           \
    X(TEXT, model,                                                                                 \
        .help = "the checkpoint to train, by its name at GET /models; else the daemon's")          \
    X(WORD, method, WORDS("lora", "full"), .help = "train an adapter, or the whole UNet")          \
    X(INTEGER, seed, .max = 9e15,                                                                  \
        .help = "seeds everything random; random itself if not given, and reported")               \
    /* the adapter */                                                                              \
    X(WORD, adapter_type, WORDS("lora", "loha", "lokr"), ONLY_LORA,                                \
        .help = "LoRA, or LyCORIS's LoHa or LoKr")                                                 \
    X(INTEGER, rank, .min = 1, .max = ADAPTER_MAX_RANK, .value = 16, ONLY_LORA,                    \
        .help = "rank of each layer's pair of factors")                                            \
    X(NUMBER, alpha, .max = 1e6, ONLY_LORA,                                                        \
        .help = "the factors' product is scaled by alpha / rank; 0: alpha is the rank")            \
    X(FLAG, use_rslora, ONLY_ADAPTER(LORA), ONLY_LORA,                                             \
        .help = "scale by alpha / sqrt(rank) instead")                                             \
    X(FLAG, use_dora, ONLY_ADAPTER(LORA), ONLY_LORA,                                               \
        .help = "also train a magnitude for each output of a layer (DoRA)")                        \
    X(INTEGER, lokr_factor, .min = -1, .max = 65536, .value = -1, ONLY_ADAPTER(LOKR), ONLY_LORA,   \
        .help = "the smaller factor of each dimension; -1: near its root")                         \
    X(FLAG, lokr_decompose_both, ONLY_ADAPTER(LOKR), ONLY_LORA,                                    \
        .help = "make a product of the smaller matrix too")                                        \
    X(NUMBER, dropout, .max = 1, .below_max = true, ONLY_ADAPTER(LORA), ONLY_LORA,                 \
        .help = "share of the adapter's inputs that is dropped")                                   \
    X(TEXTS, target_modules, .texts = "to_q to_k to_v to_out.0", ONLY_LORA,                        \
        .help = "layers of the UNet that get factors, by the ends of their names")                 \
    X(WORD, init_lora_weights, WORDS("gaussian", "kaiming"), ONLY_ADAPTER(LORA), ONLY_LORA,        \
        .help = "what the first factors are drawn from")                                           \
    X(FLAG, train_text_encoder, .help = "train the text encoder too")                              \
    X(TEXTS, text_encoder_target_modules, .texts = "q_proj k_proj v_proj out_proj",                \
        ONLY_WITH(train_text_encoder), ONLY_LORA,                                                  \
        .help = "layers of the text encoder that get factors")                                     \
    /* pictures and captions */                                                                    \
    X(INTEGER, resolution, .min = IMAGE_MIN_PX, .max = IMAGE_MAX_PX, .value = 512,                 \
        .help = "side of the pictures in px; with buckets, of a square of their area")             \
    X(TEXT, image_column, .help = "the metadata's column of file names; else file_name")           \
    X(TEXT, caption_column, .help = "the metadata's column of captions; else text or caption")     \
    X(FLAG, center_crop, .help = "crop the middle, not a part drawn each time")                    \
    X(FLAG, cache_latents, .help = "draw each picture's part once, so that it is encoded once")    \
    X(FLAG, random_flip, .help = "mirror half of the pictures at random")                          \
    X(WORD, image_interpolation_mode, WORDS("lanczos", "bilinear", "bicubic"),                     \
        .help = "filter for resizing pictures")                                                    \
    X(FLAG, enable_bucket,                                                                         \
        .help = "keep pictures' aspect ratios; a batch has pictures of one size")                  \
    X(INTEGER, min_bucket_reso, .min = IMAGE_MIN_PX, .max = IMAGE_MAX_PX, .value = 256,            \
        ONLY_WITH(enable_bucket), .help = "shortest side of a bucket in px")                       \
    X(INTEGER, max_bucket_reso, .min = IMAGE_MIN_PX, .max = IMAGE_MAX_PX, .value = 1024,           \
        ONLY_WITH(enable_bucket), .help = "longest side of a bucket in px")                        \
    X(INTEGER, bucket_reso_steps, .min = 8, .max = 512, .value = 64, ONLY_WITH(enable_bucket),     \
        .help = "buckets' sides are multiples of this many px")                                    \
    X(FLAG, bucket_no_upscale, ONLY_WITH(enable_bucket), .help = "never enlarge a picture")        \
    X(FLAG, skip_broken_images,                                                                    \
        .help = "leave unreadable pictures out instead of refusing the data set")                  \
    X(NUMBER, validation_share, .max = 0.9,                                                        \
        .help = "share of the pictures held out for a validation loss")                            \
    X(INTEGER, max_train_samples, .max = 1e9, .help = "use only this many pictures; 0: all")       \
    X(INTEGER, dataloader_num_workers, .min = 1, .max = 64, .value = 2,                            \
        .help = "threads that decode pictures ahead")                                              \
    X(NUMBER, caption_dropout, .max = 1,                                                           \
        .help = "share of the captions replaced by the empty one")                                 \
    X(FLAG, shuffle_caption, .help = "put a caption's tags into another order in each epoch")      \
    X(INTEGER, keep_tokens, .max = 1000, ONLY_WITH(shuffle_caption),                               \
        .help = "the first tags, so many, keep their places")                                      \
    X(TEXT, caption_separator, ONLY_WITH(shuffle_caption),                                         \
        .help = "stands between a caption's tags; else a comma")                                   \
    X(TEXT, keep_tokens_separator, ONLY_WITH(shuffle_caption),                                     \
        .help = "the tags before it keep their places, and those after a second one")              \
    X(WORD, masks, WORDS("random", "files"),                                                       \
        .help = "for inpainting models: random masks, or NAME.mask.png beside each picture")       \
    X(TEXT, instance_prompt, .help = "caption of every picture that has none")                     \
    X(FLAG, with_prior_preservation,                                                               \
        .help = "also train on pictures of the class, to preserve it")                             \
    X(TEXT, class_data_dir, ONLY_WITH(with_prior_preservation),                                    \
        .help = "folder of the class pictures, under the dataset root; else the job's own")        \
    X(TEXT, class_prompt, ONLY_WITH(with_prior_preservation),                                      \
        .help = "caption of the class pictures")                                                   \
    X(NUMBER, prior_loss_weight, .max = 1000, .value = 1, ONLY_WITH(with_prior_preservation),      \
        .help = "weight of the class pictures' loss")                                              \
    X(INTEGER, num_class_images, .min = 1, .max = 100000, .value = 100,                            \
        ONLY_WITH(with_prior_preservation),                                                        \
        .help = "missing class pictures are drawn, up to this many")                               \
    /* the loop */                                                                                 \
    X(INTEGER, train_batch_size, .min = 1, .max = TRAIN_BATCH_MAX, .value = 1,                     \
        .help = "pictures in a batch")                                                             \
    X(INTEGER, gradient_accumulation_steps, .min = 1, .max = 65536, .value = 1,                    \
        .help = "batches in an optimizer step")                                                    \
    X(WORD, data_parallel, WORDS("share", "multiply"),                                             \
        .help = "processes share the batches of a step, or each has its number of them")           \
    X(FLAG, gradient_checkpointing, .help = "use less memory for about an eighth more work")       \
    X(INTEGER, max_train_steps, .max = TRAIN_STEPS_MAX,                                            \
        .help = "number of optimizer steps; 0: num_train_epochs decides")                          \
    X(INTEGER, num_train_epochs, .max = TRAIN_STEPS_MAX, .help = "passes through the data set")    \
    X(WORD, mixed_precision, WORDS("no", "bf16", "fp16"),                                          \
        .help = "precision of the frozen weights and of the layers")                               \
    X(INTEGER, loss_scale, .max = 1 << 30, ONLY_FP16,                                              \
        .help = "fixed scale of the loss; 0: it adapts")                                           \
    X(INTEGER, initial_scale_power, .max = 30, .value = 16, ONLY_FP16,                             \
        .help = "the loss scale starts at 2 to this power")                                        \
    X(INTEGER, loss_scale_window, .min = 1, .max = 1000000, .value = 2000, ONLY_FP16,              \
        .help = "steps without overflow before the loss scale doubles")                            \
    X(INTEGER, hysteresis, .min = 1, .max = 1000, .value = 1, ONLY_FP16,                           \
        .help = "overflows before the loss scale falls")                                           \
    X(NUMBER, min_loss_scale, .max = 65536, ONLY_FP16, .help = "the loss scale's minimum")         \
    /* the optimizer */                                                                            \
    X(WORD, optimizer, WORDS("adamw", "lion", "adafactor", "prodigy"),                             \
        .help = "AdamW as torch has it, Lion, Adafactor or Prodigy")                               \
    X(FLAG, use_8bit_adam, ONLY_ADAMW, .help = "keep the optimizer's states in 8 bits")            \
    X(NUMBER, learning_rate, .max = 10, .value = 1e-4, .help = "the learning rate")                \
    X(NUMBER, text_encoder_learning_rate, .max = 10, ONLY_WITH(train_text_encoder),                \
        .help = "the text encoder's learning rate; 0: learning_rate")                              \
    X(FLAG, scale_lr, .help = "multiply the learning rates by accumulation steps and batch size")  \
    X(GROUPS, parameter_groups, .help = "learning rates and weight decays of parts of the model")  \
    X(NUMBER, adam_beta1, .max = 1, .below_max = true, .value = 0.9, ONLY_ADAM,                    \
        .help = "decay of the gradients' mean")                                                    \
    X(NUMBER, adam_beta2, .max = 1, .below_max = true, .value = 0.999, ONLY_ADAM,                  \
        .help = "decay of the gradients' squares")                                                 \
    X(NUMBER, adam_epsilon, .max = 1, .above_min = true, .value = 1e-8, ONLY_ADAM,                 \
        .help = "added to the divisor")                                                            \
    X(NUMBER, adam_weight_decay, .max = 10, .value = 1e-2,                                         \
        .help = "weight decay, of every optimizer")                                                \
    X(NUMBER, lion_beta1, .max = 1, .below_max = true, .value = 0.9, ONLY_LION,                    \
        .help = "share of the gradients' mean in the step's sign")                                 \
    X(NUMBER, lion_beta2, .max = 1, .below_max = true, .value = 0.99, ONLY_LION,                   \
        .help = "decay of the gradients' mean")                                                    \
    X(FLAG, adafactor_scale_parameter, ONLY_ADAFACTOR,                                             \
        .help = "multiply the rate by the root mean square of each weight")                        \
    X(FLAG, adafactor_relative_step, ONLY_ADAFACTOR,                                               \
        .help = "the rate is 1 / sqrt(step), at most 0.01, in place of learning_rate")             \
    X(FLAG, adafactor_warmup_init, ONLY_WITH(adafactor_relative_step),                             \
        .help = "the rate is at most step / 1000000 in place of 0.01")                             \
    X(NUMBER, adafactor_clip_threshold, .max = 1e9, .above_min = true, .value = 1, ONLY_ADAFACTOR, \
        .help = "root mean square to which each weight's step is clipped")                         \
    X(NUMBER, adafactor_decay_rate, .min = -10, .max = 0, .value = -0.8, ONLY_ADAFACTOR,           \
        .help = "the squares decay by 1 - step^adafactor_decay_rate")                              \
    X(NUMBER, prodigy_d0, .max = 1, .above_min = true, .value = 1e-6, ONLY_PRODIGY,                \
        .help = "the first estimate of the step size, d")                                          \
    X(NUMBER, prodigy_d_coef, .max = 1000, .above_min = true, .value = 1, ONLY_PRODIGY,            \
        .help = "factor of the estimates of d")                                                    \
    X(NUMBER, prodigy_growth_rate, .max = 1e9, ONLY_PRODIGY,                                       \
        .help = "the most by which d is multiplied in a step; 0: no limit")                        \
    X(NUMBER, prodigy_beta3, .max = 1, .below_max = true, ONLY_PRODIGY,                            \
        .help = "decay of the sums that give d; 0: the root of adam_beta2")                        \
    X(FLAG, prodigy_decouple, .value = true, ONLY_PRODIGY,                                         \
        .help = "weight decay as in AdamW, not added to the gradients")                            \
    X(FLAG, prodigy_use_bias_correction, .value = true, ONLY_PRODIGY,                              \
        .help = "Adam's bias correction")                                                          \
    X(FLAG, prodigy_safeguard_warmup, .value = true, ONLY_PRODIGY,                                 \
        .help = "leave the learning rate out of the estimates of d")                               \
    X(NUMBER, max_grad_norm, .max = 1e9, .value = 1,                                               \
        .help = "norm to which gradients are clipped; 0: no clipping")                             \
    X(NUMBER, max_grad_value, .max = 1e9,                                                          \
        .help = "value to which each gradient is clipped; 0: no clipping")                         \
    X(WORD, lr_scheduler, .words = learning_rate_names, .help = "how the learning rates change")   \
    X(INTEGER, lr_warmup_steps, .max = TRAIN_STEPS_MAX, ONLY_WARMUP, .help = "steps of warm-up")   \
    X(NUMBER, lr_warmup_ratio, .max = 1, ONLY_WARMUP, .help = "warm-up as a share of all steps")   \
    X(INTEGER, lr_num_cycles, .min = 1, .max = 100000, .value = 1,                                 \
        ONLY_SCHEDULE(COSINE_WITH_RESTARTS), .help = "number of cosine cycles")                    \
    X(NUMBER, lr_power, .max = 100, .value = 1, ONLY_SCHEDULE(POLYNOMIAL),                         \
        .help = "power of the polynomial")                                                         \
    X(NUMBER, lr_end, .max = 10, .value = 1e-7, ONLY_SCHEDULE(POLYNOMIAL),                         \
        .help = "learning rate at the end")                                                        \
    X(TEXT, lr_step_rules, ONLY_SCHEDULE(PIECEWISE_CONSTANT),                                      \
        .help = "\"1:10,0.1:20,0.01\": multiples of the rate, each up to a step")                  \
    X(NUMBER, lr_start_factor, .max = 1, .above_min = true, .value = 0.1,                          \
        ONLY_SCHEDULE(WARMUP_COSINE), .help = "share of the rate at which the warm-up starts")     \
    X(NUMBER, lr_eta_min, .max = 10, ONLY_SCHEDULE(WARMUP_COSINE),                                 \
        .help = "learning rate at the end")                                                        \
    /* the loss */                                                                                 \
    X(WORD, prediction_type, WORDS("model", "epsilon", "v_prediction"),                            \
        .help = "what the model predicts; model: what the checkpoint says")                        \
    X(NUMBER, snr_gamma, .max = 1000,                                                              \
        .help = "gamma of min-SNR loss weights, usually 5; 0: no weights")                         \
    X(NUMBER, noise_offset, .max = 10, .help = "amount of noise that is constant over a channel")  \
    X(NUMBER, input_perturbation, .max = 10, .help = "amount of extra noise in the model's input") \
    /* the average of the weights */                                                               \
    X(FLAG, use_ema, .help = "save a moving average of the weights")                               \
    X(NUMBER, ema_decay, .max = 1, .value = 0.9999, ONLY_WITH(use_ema),                            \
        .help = "the average's largest decay")                                                     \
    X(NUMBER, ema_min_decay, .max = 1, ONLY_WITH(use_ema), .help = "the average's smallest decay") \
    X(INTEGER, ema_update_after_step, .max = TRAIN_STEPS_MAX, ONLY_WITH(use_ema),                  \
        .help = "the average starts after this step")                                              \
    X(FLAG, use_ema_warmup, ONLY_WITH(use_ema),                                                    \
        .help = "let the decay rise as 1 - (1 + step / ema_inv_gamma)^-ema_power")                 \
    X(NUMBER, ema_inv_gamma, .max = 1e6, .above_min = true, .value = 1, ONLY_WITH(use_ema_warmup), \
        .help = "see use_ema_warmup")                                                              \
    X(NUMBER, ema_power, .max = 100, .value = 2.0 / 3, ONLY_WITH(use_ema_warmup),                  \
        .help = "see use_ema_warmup")                                                              \
    /* output */                                                                                   \
    X(INTEGER, checkpointing_steps, .max = TRAIN_STEPS_MAX, .value = 500,                          \
        .help = "steps between checkpoints; 0: one at the end")                                    \
    X(INTEGER, checkpointing_epochs, .max = TRAIN_STEPS_MAX,                                       \
        .help = "epochs between checkpoints, beside those of checkpointing_steps")                 \
    X(INTEGER, checkpoints_total_limit, .max = 100000,                                             \
        .help = "checkpoints that are kept; 0: all")                                               \
    X(TEXT, resume_from_checkpoint, .help = "\"latest\", or the name of a checkpoint's folder")    \
    X(WORD, save_format, WORDS("diffusers", "kohya", "both"), ONLY_ADAPTER(LORA), ONLY_LORA,       \
        .help = "format of the adapter's file")                                                    \
    X(WORD, save_precision, WORDS("fp32", "fp16", "bf16"),                                         \
        .help = "precision of the saved weights")                                                  \
    X(TEXTS, validation_prompts, .help = "prompts of validation pictures")                         \
    X(INTEGER, validation_steps, .max = TRAIN_STEPS_MAX, .help = "steps between validations")      \
    X(INTEGER, validation_epochs, .max = TRAIN_STEPS_MAX, .help = "epochs between validations")    \
    X(INTEGER, num_validation_images, .min = 1, .max = IMAGES_PER_REQUEST_MAX, .value = 1,         \
        ONLY_PROMPTS, .help = "validation pictures of each prompt")                                \
    X(TEXT, validation_negative_prompt, ONLY_PROMPTS,                                              \
        .help = "what validation pictures are to be without")                                      \
    X(INTEGER, validation_inference_steps, .max = STEPS_MAX, ONLY_PROMPTS,                         \
        .help = "steps of the scheduler for a validation picture; 0: as requests have it")         \
    X(NUMBER, validation_guidance_scale, .max = GUIDANCE_SCALE_MAX, ONLY_PROMPTS,                  \
        .help = "guidance of validation pictures; 0: as requests have it, 1: none")                \
    X(TEXT, validation_scheduler, ONLY_PROMPTS,                                                    \
        .help = "scheduler of validation pictures; else as requests have it")                      \
    X(INTEGER, validation_seed, .max = 9e15, ONLY_PROMPTS,                                         \
        .help = "seed of each prompt's first picture, the next one's is one more; 0: seed")        \
    X(WORD, report_to, WORDS("tensorboard", "none"), .help = "what is written beside metrics.jsonl")

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

/* Parses a job from a JSON object. A bad field is ERROR_INVALID with param, value and allowed. A
 * field that is known but not supported is ERROR_UNSUPPORTED. Missing fields get their defaults,
 * and a missing seed a random one. `name` and `dataset` are required. */
bool train_config_parse(const json_t *json, struct train_config *out, struct error *err)
    __attribute__((warn_unused_result));
void train_config_finish(struct train_config *config);

/* Returns the fields as a JSON object; parsing it gives the same job. Fields that have no effect or
 * no value are left out. A new reference; NULL when memory is short. */
json_t *train_config_to_json(const struct train_config *config);

/* Returns whether the job may resume from a checkpoint of a job with the configuration `then`
 * (train_config_to_json). Every field that influenced the training so far must be equal. The job's
 * length may differ, and so may what it saves and shows. ERROR_INVALID names the field with both
 * values. */
bool train_config_continues(const struct train_config *config, const json_t *then,
    struct error *err) __attribute__((warn_unused_result));

/* Makes data_parallel "multiply" a "share" that means the same: multiplies
 * gradient_accumulation_steps by `factor`, and lr_warmup_steps too if `warmup` is set.
 * ERROR_INVALID if a product is more than its field allows. */
bool train_config_multiply(struct train_config *config, int64_t factor, bool warmup,
    struct error *err) __attribute__((warn_unused_result));

/* Describes field `index` for a list: name, default, allowed values, the fields that give it an
 * effect ("": it always has one), and help. Returns false after the last field. */
struct train_config_line {
    const char *name, *help;
    char standard[128], allowed[ERROR_ALLOWED_BYTES], only[ERROR_ALLOWED_BYTES];
};
bool train_config_line(size_t index, struct train_config_line *out);

/* Returns the fields as a JSON schema (2020-12) of an object. A new reference; NULL when memory is
 * short. */
json_t *train_config_schema(void);

/* Returns whether the job trains the model to predict v instead of the noise. `model_does`: the
 * checkpoint predicts v, which is the default for a job without a prediction_type. */
bool train_config_predicts_v(const struct train_config *config, bool model_does);

/* Returns whether the job changes the weights of its models: a full fine-tune, and adapters other
 * than plain LoRAs (train/optimizer/products.h). */
bool train_config_changes_weights(const struct train_config *config);

/* Returns the dtype for save_precision. */
enum dtype train_save_dtype(const struct train_config *config);

/* Checks the fields that depend on the device. ERROR_INVALID if the device lacks the precision or
 * cannot step 8-bit states. `dtypes` has a bit 1 << DTYPE_x for each dtype in which the device
 * packs weights. `name` is the device's name for the message. */
bool train_config_fits_device(const struct train_config *config, unsigned dtypes,
    enum device_kind device, const char *name, struct error *err)
    __attribute__((warn_unused_result));

#endif
