/* Tests the fields of a training job: their defaults, a different error for every kind of wrong
 * field, and that a job written as JSON and parsed again is the same job. The expected defaults are
 * those of the argparse code in diffusers' scripts. */
#include "train/config.h"

#include "base/file.h"
#include "base/text/json.h"
#include "kernels/dtype.h"
#include "tests/check.h"
#include "tests/page.h"
#include "train/optimizer/learning_rate.h"

#include <stdlib.h>

#define LEAST "\"name\": \"cat\", \"dataset\": \"cats\", \"max_train_steps\": 10"

static bool parse(const char *text, struct train_config *config, struct error *err) {
    json_t *json = json_parse(text, strlen(text), err);
    CHECK(json, "%s: %s", text, err->message);
    const bool ok = train_config_parse(json, config, err);
    json_decref(json);
    return ok;
}

static void defaults_are_diffusers(void) {
    struct train_config c;
    struct error err = { 0 };
    CHECK(parse("{" LEAST ", \"seed\": null}", &c, &err), "%s", err.message);
    CHECK(c.method == TRAIN_LORA && c.rank == 16 && c.alpha == 16 && c.dropout == 0, "LoRA");
    CHECK(c.target_modules.count == 4 && strcmp(c.target_modules.items[3], "to_out.0") == 0,
        "targets");
    CHECK(c.resolution == 512 && !c.center_crop && !c.random_flip, "pictures");
    CHECK(c.train_batch_size == 1 && c.gradient_accumulation_steps == 1, "batches");
    CHECK(c.learning_rate == 1e-4 && c.adam_beta1 == 0.9 && c.adam_beta2 == 0.999 &&
              c.adam_weight_decay == 1e-2 && c.adam_epsilon == 1e-8 && c.max_grad_norm == 1,
        "optimizer");
    CHECK(c.lr_scheduler == LEARNING_RATE_CONSTANT && c.lr_warmup_steps == 0, "schedule");
    CHECK(c.snr_gamma == 0 && c.noise_offset == 0 && c.input_perturbation == 0, "loss");
    CHECK(c.checkpointing_steps == 500 && c.checkpoints_total_limit == 0, "checkpoints");
    CHECK(c.ema_decay == 0.9999 && !c.use_ema && c.ema_inv_gamma == 1, "average");
    const int64_t seed = c.seed;
    train_config_finish(&c);
    CHECK(parse("{" LEAST "}", &c, &err) && c.seed != seed, "two random seeds are %lld",
        (long long)seed);
    train_config_finish(&c);
}

/* lr_end of polynomial decay: diffusers compares it with lr_init, which is the scaled rate. */
static void the_end_may_be_below_the_scaled_rate_only(void) {
    struct train_config c;
    struct error err = { 0 };
    CHECK(parse("{" LEAST ", \"lr_scheduler\": \"polynomial\", \"lr_end\": 2e-4, "
                "\"scale_lr\": true, \"gradient_accumulation_steps\": 4}",
              &c, &err) &&
              c.lr_end > c.learning_rate,
        "%s", err.message);
    train_config_finish(&c);
}

/* All fields at once, parsed from JSON and written back. */
/* A stored job is parsed again: what the daemon writes must be what it takes. */
static void optimizers_come_back(void) {
    static const char *const more[] = { "\"optimizer\": \"lion\"", "\"optimizer\": \"adafactor\"",
        "\"optimizer\": \"adafactor\", \"adafactor_relative_step\": true, "
        "\"adafactor_warmup_init\": true",
        "\"optimizer\": \"prodigy\", \"learning_rate\": 1", "\"adapter_type\": \"lokr\"" };
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        char text[256];
        struct train_config c, again;
        struct error err = { 0 };
        snprintf(text, sizeof(text),
            "{\"name\": \"a\", \"dataset\": \"d\", \"max_train_steps\": 1, %s}", more[i]);
        CHECK(parse(text, &c, &err), "%s: %s", text, err.message);
        json_t *first = train_config_to_json(&c);
        CHECK(train_config_parse(first, &again, &err), "%s: %s", more[i], err.message);
        json_t *second = train_config_to_json(&again);
        CHECK(json_equal(first, second), "%s does not come back", more[i]);
        json_decref(first);
        json_decref(second);
        train_config_finish(&c);
        train_config_finish(&again);
    }
}

static void what_is_read_comes_back(void) {
    static const char text[] =
        "{\"name\": \"my-cat.v2\", \"dataset\": \"cats\", \"seed\": 7, \"rank\": 8, "
        "\"lora_alpha\": 4, \"lora_dropout\": 0.1, \"target_modules\": [\"to_q\", \"conv1\"], "
        "\"init_lora_weights\": \"kaiming\", \"train_text_encoder\": true, "
        "\"text_encoder_learning_rate\": 5e-6, \"batch_size\": 4, "
        "\"num_epochs\": 3, \"lr_scheduler\": \"polynomial\", \"lr_power\": 2, "
        "\"lr_warmup_steps\": 5, \"parameter_groups\": [{\"pattern\": \"attn1\", "
        "\"learning_rate\": 1e-5}, {\"pattern\": \"up_blocks.*.to_v\", \"weight_decay\": 0}], "
        "\"use_ema\": true, \"use_ema_warmup\": true, \"ema_power\": 0.75, \"snr_gamma\": 5, "
        "\"with_prior_preservation\": true, \"class_prompt\": \"a cat\", "
        "\"class_data_dir\": \"any-cats\", \"validation_prompts\": [\"a cat on a mat\"], "
        "\"validation_steps\": 100, \"save_format\": \"both\"}";
    struct train_config c;
    struct error err = { 0 };
    CHECK(parse(text, &c, &err), "%s", err.message);
    CHECK(c.rank == 8 && c.alpha == 4 && c.train_batch_size == 4 && c.num_train_epochs == 3,
        "other names of fields");
    CHECK(c.parameter_groups.count == 2 && c.parameter_groups.items[0].learning_rate == 1e-5 &&
              isnan(c.parameter_groups.items[0].weight_decay) &&
              c.parameter_groups.items[1].weight_decay == 0,
        "groups");
    json_t *first = train_config_to_json(&c);
    struct train_config again;
    CHECK(train_config_parse(first, &again, &err), "%s", err.message);
    json_t *second = train_config_to_json(&again);
    CHECK(json_equal(first, second), "a job's JSON does not give the job again");
    CHECK(!json_object_get(first, "lr_end") == false && !json_object_get(first, "lr_num_cycles"),
        "only what has an effect is listed");
    printf("%zu fields of a full job come back\n", json_object_size(first));
    json_decref(first);
    json_decref(second);
    train_config_finish(&c);
    train_config_finish(&again);
}

static const struct {
    const char *json, *param, *value, *allowed;
} wrong[] = {
    { "{\"dataset\": \"d\", \"max_train_steps\": 1}", "name", "(missing)", "a string" },
    { "{\"name\": \"n\", \"max_train_steps\": 1}", "dataset", "(missing)", "a string" },
    { "{\"name\": \"../x\", \"dataset\": \"d\", \"max_train_steps\": 1}", "name", "../x",
        "FOLDER/NAME" },
    { "{\"name\": \"n\", \"dataset\": \"d\"}", "max_train_steps", "(missing)", "num_train_epochs" },
    { "{" LEAST ", \"model\": 7}", "model", "7", "a string" },
    { "{" LEAST ", \"rank\": 0}", "rank", "0", "an integer from 1 to 4096" },
    { "{" LEAST ", \"rank\": 4.5}", "rank", "4.5", "an integer" },
    { "{" LEAST ", \"rank\": \"4\"}", "rank", "\"4\"", "an integer" },
    { "{" LEAST ", \"dropout\": 1}", "dropout", "1", "a number from 0 and below 1" },
    { "{" LEAST ", \"alpha\": -1}", "alpha", "-1", "a number from 0" },
    { "{" LEAST ", \"lora_alpha\": -2}", "alpha", "-2", "a number from 0" },
    { "{" LEAST ", \"rank\": 4, \"method\": \"full\"}", "rank", "4", "method \"lora\"" },
    { "{" LEAST ", \"method\": \"dora\"}", "method", "\"dora\"", "\"lora\" or \"full\"" },
    { "{" LEAST ", \"target_modules\": []}", "target_modules", "[]", "a list of 1 to" },
    { "{" LEAST ", \"target_modules\": \"to_q\"}", "target_modules", "\"to_q\"", "a list" },
    { "{" LEAST ", \"target_modules\": [\"to_q\", 3]}", "target_modules", "[\"to_q\",3]",
        "a list" },
    { "{" LEAST ", \"text_encoder_target_modules\": [\"fc1\"]}", "text_encoder_target_modules",
        "[\"fc1\"]", "train_text_encoder true" },
    { "{" LEAST ", \"text_encoder_target_modules\": [\"fc2\"], \"train_text_encoder\": true, "
      "\"method\": \"full\"}",
        "text_encoder_target_modules", "[\"fc2\"]", "method \"lora\"" },
    { "{" LEAST ", \"text_encoder_learning_rate\": 1e-5}", "text_encoder_learning_rate", "1e-5",
        "train_text_encoder true" },
    { "{" LEAST ", \"resolution\": 500}", "resolution", "500", "a multiple of 8" },
    { "{" LEAST ", \"resolution\": 8}", "resolution", "8", "from 64 to 2048" },
    { "{" LEAST ", \"center_crop\": 1}", "center_crop", "1", "true or false" },
    { "{" LEAST ", \"image_interpolation_mode\": \"area\"}", "image_interpolation_mode", "\"area\"",
        "\"lanczos\", \"bilinear\" or \"bicubic\"" },
    { "{" LEAST ", \"bucket_reso_steps\": 64}", "bucket_reso_steps", "64", "enable_bucket true" },
    { "{" LEAST ", \"enable_bucket\": true, \"bucket_reso_steps\": 20}", "bucket_reso_steps", "20",
        "a multiple of 8" },
    { "{" LEAST ", \"enable_bucket\": true, \"min_bucket_reso\": 1032}", "min_bucket_reso", "1032",
        "max_bucket_reso" },
    { "{" LEAST ", \"resume_from_checkpoint\": \"out/checkpoint-50\"}", "resume_from_checkpoint",
        "out/checkpoint-50", "\"latest\" or the name of a checkpoint's folder" },
    { "{" LEAST ", \"validation_share\": 0.95}", "validation_share", "0.95", "0.9" },
    { "{" LEAST ", \"caption_dropout\": 1.5}", "caption_dropout", "1.5", "from 0 to 1" },
    { "{" LEAST ", \"with_prior_preservation\": true}", "class_prompt", "(missing)", "a string" },
    { "{" LEAST ", \"with_prior_preservation\": true, \"class_prompt\": \"c\", "
      "\"enable_bucket\": true}",
        "enable_bucket", "true", "one size" },
    { "{" LEAST ", \"prior_loss_weight\": 1}", "prior_loss_weight", "1",
        "with_prior_preservation true" },
    { "{" LEAST ", \"train_batch_size\": 100000}", "train_batch_size", "100000", "from 1 to" },
    { "{" LEAST ", \"batch_size\": 2, \"train_batch_size\": 2}", "train_batch_size", "(given)",
        "only one of its names" },
    { "{" LEAST ", \"gradient_accumulation_steps\": 0}", "gradient_accumulation_steps", "0",
        "from 1" },
    { "{" LEAST ", \"mixed_precision\": \"fp8\"}", "mixed_precision", "fp8", "no operations" },
    { "{" LEAST ", \"mixed_precision\": \"f16\"}", "mixed_precision", "\"f16\"",
        "\"no\", \"bf16\" or \"fp16\"" },
    { "{" LEAST ", \"loss_scale\": 128}", "loss_scale", "128", "mixed_precision \"fp16\"" },
    { "{" LEAST ", \"keep_tokens\": 1}", "keep_tokens", "1", "shuffle_caption true" },
    { "{" LEAST ", \"shuffle_caption\": true, \"caption_separator\": \"\"}", "caption_separator",
        "\"\"", "a string" },
    { "{" LEAST ", \"method\": \"full\", \"use_rslora\": true}", "use_rslora", "true",
        "method \"lora\"" },
    { "{" LEAST ", \"adapter_type\": \"locon\"}", "adapter_type", "\"locon\"",
        "\"lora\", \"loha\" or \"lokr\"" },
    { "{" LEAST ", \"adapter_type\": \"loha\", \"use_dora\": true}", "use_dora", "true",
        "adapter_type \"lora\" and method \"lora\"" },
    { "{" LEAST ", \"adapter_type\": \"loha\", \"dropout\": 0.1}", "dropout", "0.1",
        "adapter_type \"lora\"" },
    { "{" LEAST ", \"use_dora\": true, \"dropout\": 0.1}", "dropout", "0.1", "beside use_dora" },
    { "{" LEAST ", \"adapter_type\": \"lokr\", \"lokr_factor\": 0}", "lokr_factor", "0", "from 1" },
    { "{" LEAST ", \"lokr_decompose_both\": true}", "lokr_decompose_both", "true",
        "adapter_type \"lokr\"" },
    { "{" LEAST ", \"adapter_type\": \"lokr\", \"optimizer\": \"adafactor\"}", "optimizer",
        "adafactor", "beside this adapter_type" },
    { "{" LEAST ", \"optimizer\": \"sgd\"}", "optimizer", "\"sgd\"", "\"adamw\", \"lion\"" },
    { "{" LEAST ", \"lion_beta1\": 0.9}", "lion_beta1", "0.9", "optimizer \"lion\"" },
    { "{" LEAST ", \"optimizer\": \"lion\", \"adam_beta1\": 0.9}", "adam_beta1", "0.9",
        "optimizer \"adamw\" or \"prodigy\"" },
    { "{" LEAST ", \"optimizer\": \"lion\", \"use_8bit_adam\": true}", "use_8bit_adam", "true",
        "optimizer \"adamw\"" },
    { "{" LEAST ", \"optimizer\": \"adafactor\", \"adafactor_warmup_init\": true}",
        "adafactor_warmup_init", "true", "adafactor_relative_step true" },
    { "{" LEAST ", \"optimizer\": \"adafactor\", \"adafactor_relative_step\": true, "
      "\"learning_rate\": 1e-3}",
        "learning_rate", "0.001", "adafactor_relative_step" },
    { "{" LEAST ", \"optimizer\": \"adafactor\", \"adafactor_relative_step\": true, "
      "\"scale_lr\": true}",
        "scale_lr", "true", "adafactor_relative_step" },
    { "{" LEAST ", \"optimizer\": \"adafactor\", \"adafactor_relative_step\": true, "
      "\"lr_scheduler\": \"cosine\"}",
        "lr_scheduler", "\"cosine\"", "adafactor_relative_step" },
    { "{" LEAST ", \"optimizer\": \"prodigy\"}", "learning_rate", "(missing)", "usually 1" },
    { "{" LEAST ", \"optimizer\": \"prodigy\", \"learning_rate\": 1, \"train_text_encoder\": true, "
      "\"text_encoder_learning_rate\": 0.5}",
        "text_encoder_learning_rate", "0.5", "Prodigy has one rate" },
    { "{" LEAST ", \"optimizer\": \"prodigy\", \"learning_rate\": 1, \"parameter_groups\": "
      "[{\"pattern\": \"x\", \"learning_rate\": 1}]}",
        "parameter_groups", "[{\"pattern\":\"x\",\"learning_rate\":1}]", "Prodigy has one rate" },
    { "{" LEAST ", \"learning_rate\": -1e-4}", "learning_rate", "-0.0001", "from 0 to 10" },
    { "{" LEAST ", \"adam_beta1\": 1}", "adam_beta1", "1", "below 1" },
    { "{" LEAST ", \"adam_epsilon\": 0}", "adam_epsilon", "0", "above 0" },
    { "{" LEAST ", \"parameter_groups\": [{\"pattern\": \"x\"}]}", "parameter_groups",
        "{\"pattern\":\"x\"}", "learning_rate" },
    { "{" LEAST ", \"parameter_groups\": [{\"learning_rate\": 1}]}", "parameter_groups",
        "{\"learning_rate\":1}", "pattern" },
    { "{" LEAST ", \"parameter_groups\": [{\"pattern\": \"x\", \"lr\": 1}]}", "parameter_groups",
        "{\"pattern\":\"x\",\"lr\":1}", "learning_rate" },
    { "{" LEAST ", \"parameter_groups\": 3}", "parameter_groups", "3", "a list" },
    { "{" LEAST ", \"lr_scheduler\": \"cosine_annealing\"}", "lr_scheduler", "\"cosine_annealing\"",
        "\"constant\"" },
    { "{" LEAST ", \"lr_warmup_steps\": 10}", "lr_warmup_steps", "10", "\"linear\"" },
    { "{" LEAST ", \"lr_scheduler\": \"linear\", \"lr_warmup_steps\": 10, "
      "\"lr_warmup_ratio\": 0.1}",
        "lr_warmup_ratio", "0.1", "lr_warmup_steps" },
    { "{" LEAST ", \"lr_power\": 2}", "lr_power", "2", "lr_scheduler \"polynomial\"" },
    { "{" LEAST ", \"lr_scheduler\": \"polynomial\", \"lr_end\": 1}", "lr_end", "1",
        "below the learning_rate, 0.0001" },
    { "{" LEAST ", \"lr_scheduler\": \"polynomial\", \"lr_end\": 4e-4, \"scale_lr\": true, "
      "\"gradient_accumulation_steps\": 2, \"train_batch_size\": 2}",
        "lr_end", "0.0004", "below the learning_rate, 0.0004 as scale_lr makes it" },
    { "{" LEAST ", \"lr_scheduler\": \"piecewise_constant\"}", "lr_step_rules", "(missing)",
        "MULTIPLE:STEP" },
    { "{" LEAST ", \"lr_scheduler\": \"piecewise_constant\", \"lr_step_rules\": \"1:10\"}",
        "lr_step_rules", "1:10", "MULTIPLE:STEP" },
    { "{" LEAST ", \"prediction_type\": \"sample\"}", "prediction_type", "\"sample\"",
        "\"v_prediction\"" },
    { "{" LEAST ", \"ema_decay\": 0.9}", "ema_decay", "0.9", "use_ema true" },
    { "{" LEAST ", \"use_ema\": true, \"ema_power\": 0.9}", "ema_power", "0.9",
        "use_ema_warmup true" },
    { "{" LEAST ", \"use_ema\": true, \"ema_decay\": 0.5, \"ema_min_decay\": 0.6}", "ema_min_decay",
        "0.6", "at most ema_decay" },
    { "{" LEAST ", \"validation_steps\": 5}", "validation_prompts", "(missing)", "prompts" },
    { "{" LEAST ", \"validation_prompts\": [\"x\"]}", "validation_steps", "0", "from 1" },
    { "{" LEAST ", \"validation_share\": 0.1}", "validation_steps", "0", "from 1" },
    { "{" LEAST ", \"num_validation_images\": 2}", "num_validation_images", "2",
        "nothing: it has an effect with validation_prompts only" },
    { "{" LEAST ", \"validation_seed\": 2}", "validation_seed", "2", "validation_prompts only" },
    { "{" LEAST ", \"validation_scheduler\": \"ddim\"}", "validation_scheduler", "\"ddim\"",
        "validation_prompts only" },
    { "{" LEAST ", \"validation_negative_prompt\": \"x\"}", "validation_negative_prompt", "\"x\"",
        "validation_prompts only" },
    { "{" LEAST ", \"validation_inference_steps\": -1}", "validation_inference_steps", "-1",
        "from 0 to 1000" },
    { "{" LEAST ", \"validation_guidance_scale\": 101}", "validation_guidance_scale", "101",
        "from 0 to 100" },
    { "{" LEAST ", \"save_precision\": \"fp64\"}", "save_precision", "\"fp64\"", "\"fp32\"" },
    { "{" LEAST ", \"report_to\": \"wandb\"}", "report_to", "wandb", "nothing is sent" },
    { "{" LEAST ", \"seed\": -1}", "seed", "-1", "from 0" },
    { "{" LEAST ", \"seed\": 1e17}", "seed", "1e17", "from 0" },
    { "{" LEAST ", \"instance_prompt\": \"\"}", "instance_prompt", "\"\"", "1 to" },
    { "{" LEAST ", \"push_to_hub\": true}", "push_to_hub", "(given)", "nothing is uploaded" },
    { "{" LEAST ", \"output_dir\": \"/tmp\"}", "output_dir", "(given)", "the daemon decides" },
    { "{" LEAST ", \"learing_rate\": 1}", "learing_rate", "1", "the nearest is learning_rate" },
    { "{" LEAST ", \"Rank\": 1}", "Rank", "1", "the nearest is rank" },
};
#define WRONG_COUNT (sizeof(wrong) / sizeof(wrong[0]))

static void wrong_fields_have_errors_of_their_own(void) {
    static char messages[WRONG_COUNT][sizeof(((struct error *)0)->message)];
    for (size_t i = 0; i < WRONG_COUNT; i++) {
        struct train_config c;
        struct error err = { 0 };
        const bool ok = parse(wrong[i].json, &c, &err);
        CHECK(!ok, "%s was taken", wrong[i].json);
        if (ok) {
            train_config_finish(&c);
            continue;
        }
        CHECK(strcmp(err.param, wrong[i].param) == 0 && strcmp(err.value, wrong[i].value) == 0 &&
                  strstr(err.allowed, wrong[i].allowed),
            "%s: param %s, value %s, allowed %s", wrong[i].json, err.param, err.value, err.allowed);
        CHECK(err.code == ERROR_INVALID || err.code == ERROR_UNSUPPORTED, "%d", err.code);
        snprintf(messages[i], sizeof(messages[i]), "%s", err.message);
        for (size_t k = 0; k < i; k++)
            CHECK(strcmp(messages[k], messages[i]) != 0, "the same message twice: %s", messages[i]);
    }
    printf("%zu wrong jobs, each with its own error\n", WRONG_COUNT);
    struct train_config c;
    struct error err = { 0 };
    CHECK(!parse("[]", &c, &err) && strstr(err.message, "JSON object"), "%s", err.message);
}

/* An unknown key of 16 MiB is refused at once, without a search for similar names. */
static void a_long_key_is_refused(void) {
    const size_t size = 16u << 20;
    struct train_config c;
    struct error err = { 0 };
    char *key = malloc(size);
    memset(key, 'a', size);
    key[size - 1] = 0;
    json_t *json = json_pack("{s:i}", key, 1);
    CHECK(!train_config_parse(json, &c, &err), "a key of 16 MiB");
    CHECK_STRING(err.allowed, "there is no such field");
    json_decref(json);
    free(key);
}

static void the_page_lists_every_field(const char *path, bool write) {
    char *table = NULL;
    size_t size, count = 0;
    struct train_config_line line;
    FILE *rows = open_memstream(&table, &size);
    fprintf(rows, "| field | default | allowed | |\n|---|---|---|---|\n");
    for (; train_config_line(count, &line); count++) {
        CHECK(line.help && line.help[0] && line.allowed[0], "%s", line.name);
        fprintf(rows, "| `%s` | %s | %s | %s%s%s |\n", line.name, line.standard, line.allowed,
            line.help, line.only[0] ? "; only with " : "", line.only);
    }
    fclose(rows);
    printf("%zu fields\n", count);
    CHECK(count > 60, "%zu", count);
    page_table(path, "<!-- written by config_test --write -->\n", table, write);
    free(table);
}

static void a_device_may_not_have_it(void) {
    const unsigned dtypes = 1 << DTYPE_F32 | 1 << DTYPE_BF16;
    struct train_config c;
    struct error err = { 0 };
    CHECK(parse("{" LEAST ", \"mixed_precision\": \"fp16\"}", &c, &err), "%s", err.message);
    CHECK(!train_config_fits_device(&c, dtypes, DEVICE_CPU, "this processor", &err),
        "fp16 was taken");
    CHECK(strcmp(err.param, "mixed_precision") == 0 &&
              strcmp(err.allowed, "\"no\" or \"bf16\" on this processor") == 0,
        "%s", err.message);
    CHECK(train_config_fits_device(&c, dtypes | 1 << DTYPE_F16, DEVICE_CUDA, "that", &err), "%s",
        err.message);
    train_config_finish(&c);
    CHECK(parse("{" LEAST ", \"use_8bit_adam\": true}", &c, &err), "%s", err.message);
    CHECK(train_config_fits_device(&c, dtypes, DEVICE_CPU, "this processor", &err), "%s",
        err.message);
    CHECK(!train_config_fits_device(&c, dtypes, DEVICE_CUDA, "that GPU", &err),
        "8-bit states were taken on a GPU");
    CHECK(err.code == ERROR_INVALID && strcmp(err.param, "use_8bit_adam") == 0 &&
              strcmp(err.value, "true") == 0 && strncmp(err.allowed, "false on that GPU", 17) == 0,
        "%s", err.message);
    train_config_finish(&c);
}

static void a_job_goes_on_as_it_was(void) {
    static const struct {
        const char *now, *param, *allowed;
    } jobs[] = {
        { "{" LEAST ", \"seed\": 1}", NULL, NULL },
        { "{" LEAST "0, \"seed\": 1, \"checkpointing_steps\": 7}", NULL, NULL },
        { "{" LEAST ", \"seed\": 1, \"data_parallel\": \"multiply\"}", NULL, NULL },
        { "{" LEAST ", \"seed\": 2}", "seed", "1, as in" },
        { "{" LEAST ", \"seed\": 1, \"learning_rate\": 0.5}", "learning_rate", "0.0001, as in" },
        { "{" LEAST ", \"seed\": 1, \"use_ema\": true}", "use_ema", "false, as in" },
        { "{" LEAST ", \"seed\": 1, \"target_modules\": [\"to_q\"]}", "target_modules",
            "\"to_k\"" },
        { "{" LEAST ", \"seed\": 1, \"instance_prompt\": \"x\"}", "instance_prompt",
            "(missing), as in" },
        { "{" LEAST ", \"seed\": 1, \"noise_offset\": 0.1}", "noise_offset", "(missing), as in" },
    };
    struct train_config c;
    struct error err = { 0 };
    CHECK(parse(jobs[0].now, &c, &err), "%s", err.message);
    json_t *then = train_config_to_json(&c);
    train_config_finish(&c);
    json_object_del(then, "noise_offset"); /* as if written before this field existed */
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        CHECK(parse(jobs[i].now, &c, &err), "%s", err.message);
        const bool ok = train_config_continues(&c, then, &err);
        CHECK(ok == !jobs[i].param, "%s: %d", jobs[i].now, ok);
        if (!ok && jobs[i].param)
            CHECK(strcmp(err.param, jobs[i].param) == 0 && strstr(err.allowed, jobs[i].allowed),
                "%s: %s", jobs[i].now, err.message);
        train_config_finish(&c);
    }
    json_decref(then);
}

/* Multiplied once, a job means what it meant with N processes, and goes on with any number. */
static void a_product_stays(void) {
    struct train_config c;
    struct error err = { 0 };
    static const char text[] =
        "{" LEAST ", \"seed\": 1, \"data_parallel\": \"multiply\", "
        "\"gradient_accumulation_steps\": 2, \"lr_scheduler\": \"linear\", \"lr_warmup_steps\": 5}";
    for (int warmup = 0; warmup < 2; warmup++) {
        CHECK(
            parse(text, &c, &err) && train_config_multiply(&c, 3, warmup, &err), "%s", err.message);
        CHECK(c.gradient_accumulation_steps == 6 && c.lr_warmup_steps == (warmup ? 15 : 5) &&
                  c.data_parallel == TRAIN_PARALLEL_SHARE,
            "%lld, %lld", (long long)c.gradient_accumulation_steps, (long long)c.lr_warmup_steps);
        train_config_finish(&c);
    }
    CHECK(parse(text, &c, &err) && !train_config_multiply(&c, 40000, false, &err) &&
              strcmp(err.param, "gradient_accumulation_steps") == 0 &&
              strcmp(err.value, "2") == 0 &&
              strcmp(err.allowed, "at most 1, because data_parallel multiplies it by 40000") == 0,
        "%s", err.message);
    train_config_finish(&c);
}

/* usage: config_test docs/training-fields.md [--write] */
int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    defaults_are_diffusers();
    the_end_may_be_below_the_scaled_rate_only();
    optimizers_come_back();
    what_is_read_comes_back();
    wrong_fields_have_errors_of_their_own();
    a_long_key_is_refused();
    the_page_lists_every_field(argv[1], argc == 3 && strcmp(argv[2], "--write") == 0);
    a_device_may_not_have_it();
    a_job_goes_on_as_it_was();
    a_product_stays();
    return check_done();
}
