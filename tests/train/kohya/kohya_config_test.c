/* Converts files of kohya's sd-scripts to jobs, and compares them with what train_network.py would
 * run. The files have the keys and forms of the scripts' own documents. */
#include "train/kohya/kohya_config.h"

#include "base/file.h"
#include "base/text/toml.h"
#include "tests/check.h"
#include "tests/page.h"
#include "train/config.h"
#include "train/optimizer/learning_rate.h"

#define LEAST "train_data_dir = 'd'\noutput_name = 'n'\nnetwork_module = 'networks.lora'\n"

/* Converts and parses; the caller finishes *out if it returns true. */
static bool read_files(const char *config, const char *dataset, const char *prompts,
    struct train_config *out, json_t **notes, struct error *err) {
    json_t *files[2] = { toml_parse(config, strlen(config), err),
        dataset ? toml_parse(dataset, strlen(dataset), err) : NULL };
    json_t *job = NULL;
    *notes = NULL;
    CHECK(files[0] && (!dataset || files[1]), "%s", err->message);
    const struct kohya_files all = { files[0], files[1], prompts, NULL };
    const bool converted = kohya_config_read(&all, &job, notes, err);
    CHECK(converted == (job && *notes), "nothing is left of a failure");
    const bool ok = converted && train_config_parse(job, out, err);
    json_decref(job);
    json_decref(files[0]);
    json_decref(files[1]);
    return ok;
}

static bool is_noted(const json_t *notes, const char *begin) {
    json_t *note;
    size_t i;
    json_array_foreach(notes, i, note) {
        if (strncmp(json_string_value(note), begin, strlen(begin)) == 0)
            return true;
    }
    return false;
}

static bool has_targets(const struct train_texts *texts, const char *wanted) {
    char joined[400] = "";
    for (size_t i = 0; i < texts->count; i++) {
        strcat(joined, i ? " " : "");
        strcat(joined, texts->items[i]);
    }
    if (strcmp(joined, wanted) != 0)
        printf("the layers are %s\n", joined);
    return strcmp(joined, wanted) == 0;
}

/* What kohya_ss's page writes: every option flat, also those that are not set. */
static const char page[] =
    "adaptive_noise_scale = 0\nbucket_no_upscale = true\nbucket_reso_steps = 64\n"
    "cache_latents = true\ncaption_dropout_every_n_epochs = 0\ncaption_dropout_rate = 0.1\n"
    "caption_extension = \".txt\"\nclip_skip = 1\ndynamo_backend = \"no\"\nenable_bucket = true\n"
    "epoch = 10\ngradient_accumulation_steps = 2\nhuber_c = 0.1\nhuber_schedule = \"snr\"\n"
    "ip_noise_gamma = 0\nlearning_rate = 0.0002\nlogging_dir = \"/logs\"\nloss_type = \"l2\"\n"
    "lr_scheduler = \"cosine_with_restarts\"\nlr_scheduler_args = []\n"
    "lr_scheduler_num_cycles = 3\nlr_scheduler_power = 1\nlr_warmup_steps = 0.1\n"
    "max_bucket_reso = 2048\nmax_data_loader_n_workers = 0\nmax_grad_norm = 1\n"
    "max_timestep = 1000\nmax_token_length = 75\nmax_train_epochs = 10\nmax_train_steps = 1600\n"
    "min_bucket_reso = 128\nmin_snr_gamma = 5\nmixed_precision = \"bf16\"\n"
    "multires_noise_discount = 0.3\nnetwork_alpha = 16\nnetwork_args = []\nnetwork_dim = 32\n"
    "network_module = \"networks.lora\"\nnoise_offset = 0.05\nnoise_offset_type = \"Original\"\n"
    "optimizer_args = []\noptimizer_type = \"AdamW8bit\"\noutput_dir = \"/models\"\n"
    "output_name = \"my cat\"\npretrained_model_name_or_path = \"runwayml/stable-diffusion-v1-5\"\n"
    "prior_loss_weight = 1\nresolution = \"512,512\"\nsample_prompts = \"/models/prompt.txt\"\n"
    "sample_sampler = \"euler_a\"\nsample_every_n_epochs = 2\nsave_every_n_epochs = 1\n"
    "save_last_n_epochs = 4\nsave_model_as = \"safetensors\"\nsave_precision = \"fp16\"\n"
    "seed = 42\nshuffle_caption = true\nkeep_tokens = 1\ntext_encoder_lr = 0.00005\n"
    "train_batch_size = 2\ntrain_data_dir = \"img\"\nunet_lr = 0.0001\nxformers = true\n"
    "vae = \"\"\nwandb_run_name = \"my cat\"\n";

static void the_file_of_a_page(void) {
    struct train_config c;
    struct error err = { 0 };
    json_t *notes;
    const char *prompts =
        "# two prompts\na cat --n blurry, dark --w 512 --h 512 --d 7 --l 6.5 --s 28\n\n"
        "a cat on a mat --n blurry, dark --d 7 --l 6.5 --s 28\r\n";
    if (!read_files(page, NULL, prompts, &c, &notes, &err)) {
        CHECK(false, "%s", err.message);
        return;
    }
    CHECK(strcmp(c.name, "my cat") == 0 && strcmp(c.dataset, "img") == 0 && c.seed == 42, "names");
    CHECK(c.method == TRAIN_LORA && c.adapter_type == TRAIN_ADAPTER_LORA && c.rank == 32 &&
              c.alpha == 16 && c.init_lora_weights == TRAIN_INIT_KAIMING &&
              c.save_format == TRAIN_SAVE_KOHYA,
        "networks.lora");
    CHECK(has_targets(&c.target_modules,
              "to_q to_k to_v to_out.0 ff.net.0.proj ff.net.2 proj_in proj_out") &&
              has_targets(&c.text_encoder_target_modules, "q_proj k_proj v_proj out_proj fc1 fc2"),
        "layers");
    CHECK(c.train_text_encoder && c.learning_rate == 1e-4 && c.text_encoder_learning_rate == 5e-5,
        "unet_lr and text_encoder_lr come before learning_rate");
    CHECK(
        c.optimizer == TRAIN_ADAMW && c.use_8bit_adam && c.adam_weight_decay == 0.01, "AdamW8bit");
    CHECK(c.lr_scheduler == LEARNING_RATE_COSINE_WITH_RESTARTS && c.lr_num_cycles == 3 &&
              c.lr_warmup_ratio == 0.1 && c.lr_warmup_steps == 0,
        "a warm-up of 0.1 is a share");
    CHECK(c.num_train_epochs == 10 && c.max_train_steps == 0, "epochs come before steps");
    CHECK(c.resolution == 512 && c.enable_bucket && c.min_bucket_reso == 128 &&
              c.max_bucket_reso == 2048 && c.bucket_no_upscale && c.center_crop && c.cache_latents,
        "pictures");
    CHECK(c.shuffle_caption && c.keep_tokens == 1 && c.caption_dropout == 0.1, "captions");
    CHECK(c.noise_offset == 0.05 && c.snr_gamma == 5 && c.input_perturbation == 0, "noise");
    CHECK(c.train_batch_size == 2 && c.gradient_accumulation_steps == 2 &&
              c.mixed_precision == TRAIN_PRECISION_BF16 && c.save_precision == TRAIN_SAVE_F16 &&
              c.dataloader_num_workers == 2,
        "the loop");
    CHECK(
        c.checkpointing_epochs == 1 && c.checkpointing_steps == 0 && c.checkpoints_total_limit == 4,
        "checkpoints");
    CHECK(c.validation_prompts.count == 2 && c.validation_epochs == 2 && c.validation_seed == 7 &&
              c.validation_guidance_scale == 6.5 && c.validation_inference_steps == 28 &&
              strcmp(c.validation_scheduler, "euler_ancestral") == 0 &&
              strcmp(c.validation_negative_prompt, "blurry, dark") == 0 &&
              strcmp(c.validation_prompts.items[0], "a cat") == 0 &&
              strcmp(c.validation_prompts.items[1], "a cat on a mat") == 0,
        "sample pictures");
    json_t *note;
    size_t i;
    json_array_foreach(notes, i, note) printf("%s\n", json_string_value(note));
    CHECK(is_noted(notes, "max_train_steps has no effect: max_train_epochs") &&
              is_noted(notes, "xformers has no effect") &&
              is_noted(notes, "prior_loss_weight has no effect: with_prior") &&
              is_noted(notes, "sample_prompts --w has no effect") &&
              is_noted(notes, "lr_scheduler_power has no effect") &&
              is_noted(notes, "captions: each line of a picture's file is a caption") &&
              is_noted(notes, "resize_interpolation: pictures are resized by Lanczos"),
        "the notes");
    train_config_finish(&c);
    json_decref(notes);
}

/* With sections, whose names mean nothing, and defaults for everything else. */
static void missing_keys_have_the_scripts_defaults(void) {
    struct train_config c;
    struct error err = { 0 };
    json_t *notes;
    CHECK(read_files("[model]\nnetwork_module = 'networks.lora'\n[files]\ntrain_data_dir = 'd'\n"
                     "output_name = 'n'\n",
              NULL, NULL, &c, &notes, &err),
        "%s", err.message);
    CHECK(c.rank == 4 && c.alpha == 1 && c.learning_rate == 2e-6 && c.max_train_steps == 1600 &&
              c.train_text_encoder && c.text_encoder_learning_rate == 0 && c.center_crop &&
              c.optimizer == TRAIN_ADAMW && !c.use_8bit_adam && c.checkpointing_epochs == 0,
        "defaults: rank %lld, rate %g", (long long)c.rank, c.learning_rate);
    train_config_finish(&c);
    json_decref(notes);
}

static void optimizers_have_their_packages_defaults(void) {
    struct train_config c;
    struct error err = { 0 };
    json_t *notes;
    CHECK(read_files(LEAST "optimizer_type = 'Prodigy'\nlearning_rate = 1\noptimizer_args = "
                           "['decouple=True', 'weight_decay=0.01', 'd_coef=2', "
                           "'use_bias_correction=True', 'betas=0.9,0.99']",
              NULL, NULL, &c, &notes, &err),
        "%s", err.message);
    CHECK(c.optimizer == TRAIN_PRODIGY && c.learning_rate == 1 && c.adam_weight_decay == 0.01 &&
              c.prodigy_d_coef == 2 && c.prodigy_use_bias_correction &&
              !c.prodigy_safeguard_warmup && c.adam_beta2 == 0.99 && c.prodigy_d0 == 1e-6,
        "Prodigy");
    train_config_finish(&c);
    json_decref(notes);
    CHECK(read_files(LEAST "optimizer_type = 'adafactor'\nlearning_rate = 1e-3\n"
                           "lr_scheduler = 'adafactor'",
              NULL, NULL, &c, &notes, &err),
        "%s", err.message);
    CHECK(c.optimizer == TRAIN_ADAFACTOR && c.adafactor_relative_step &&
              c.adafactor_scale_parameter && c.adam_weight_decay == 0 &&
              is_noted(notes, "learning_rate has no effect: Adafactor"),
        "Adafactor");
    train_config_finish(&c);
    json_decref(notes);
    CHECK(read_files(LEAST "optimizer_type = 'Adafactor'\nlearning_rate = 1e-3\noptimizer_args = "
                           "['scale_parameter=False', 'relative_step=False', 'warmup_init=False']",
              NULL, NULL, &c, &notes, &err),
        "%s", err.message);
    CHECK(!c.adafactor_relative_step && !c.adafactor_scale_parameter && c.learning_rate == 1e-3,
        "Adafactor with a rate");
    train_config_finish(&c);
    json_decref(notes);
    CHECK(read_files(LEAST "use_lion_optimizer = true\nlearning_rate = 1e-5\n"
                           "optimizer_args = ['betas=.95,.98']",
              NULL, NULL, &c, &notes, &err),
        "%s", err.message);
    CHECK(c.optimizer == TRAIN_LION && c.lion_beta1 == 0.95 && c.lion_beta2 == 0.98 &&
              c.adam_weight_decay == 0,
        "Lion");
    train_config_finish(&c);
    json_decref(notes);
}

static void networks_train_the_layers_of_theirs(void) {
    struct train_config c;
    struct error err = { 0 };
    json_t *notes;
    CHECK(read_files(LEAST "network_dim = 8\nnetwork_alpha = 4\nnetwork_args = ['conv_dim=8', "
                           "'conv_alpha=4']\nnetwork_train_unet_only = true",
              NULL, NULL, &c, &notes, &err),
        "%s", err.message);
    CHECK(!c.train_text_encoder &&
              has_targets(&c.target_modules,
                  "to_q to_k to_v to_out.0 ff.net.0.proj ff.net.2 proj_in proj_out "
                  "time_emb_proj conv_shortcut conv1 conv2 conv"),
        "conv_dim");
    train_config_finish(&c);
    json_decref(notes);
    static const char lycoris[] =
        "train_data_dir = 'd'\noutput_name = 'n'\nnetwork_module = 'lycoris.kohya'\n"
        "network_dim = 8\nnetwork_alpha = 4\ntext_encoder_lr = 0\n";
    char text[600];
    snprintf(text, sizeof(text),
        "%snetwork_args = ['algo=lokr', 'factor=8', "
        "'decompose_both=True', 'preset=attn-mlp', 'use_tucker=False']",
        lycoris);
    CHECK(read_files(text, NULL, NULL, &c, &notes, &err), "%s", err.message);
    CHECK(c.adapter_type == TRAIN_ADAPTER_LOKR && c.lokr_factor == 8 && c.lokr_decompose_both &&
              c.rank == 8 && c.alpha == 4 && c.target_modules.count == 8 && !c.train_text_encoder,
        "LoKr");
    train_config_finish(&c);
    json_decref(notes);
    snprintf(text, sizeof(text), "%snetwork_args = ['algo=locon', 'dora_wd=True']", lycoris);
    CHECK(read_files(text, NULL, NULL, &c, &notes, &err), "%s", err.message);
    CHECK(c.adapter_type == TRAIN_ADAPTER_LORA && c.use_dora && c.target_modules.count == 17, "%zu",
        c.target_modules.count);
    train_config_finish(&c);
    json_decref(notes);
    snprintf(text, sizeof(text), "%snetwork_args = ['algo=loha']", lycoris);
    CHECK(read_files(text, NULL, NULL, &c, &notes, &err), "%s", err.message);
    CHECK(c.adapter_type == TRAIN_ADAPTER_LOHA, "LoHa");
    train_config_finish(&c);
    json_decref(notes);
}

/* The lower table comes first: subset, datasets, general, config. */
static void a_dataset_file_replaces_keys(void) {
    struct train_config c;
    struct error err = { 0 };
    json_t *notes;
    CHECK(read_files(LEAST "keep_tokens = 4\ntrain_batch_size = 1\nflip_aug = false\n"
                           "max_train_epochs = 5\nsave_every_n_epochs = 2\nresolution = 768",
              "[general]\nshuffle_caption = true\ncaption_extension = '.txt'\nkeep_tokens = 1\n"
              "flip_aug = true\n[[datasets]]\nresolution = [512, 512]\nbatch_size = 4\n"
              "keep_tokens = 2\n[[datasets.subsets]]\nimage_dir = 'hoge'\n"
              "class_tokens = 'hoge girl'\nkeep_tokens = 3\nnum_repeats = 10\n"
              "[[datasets.subsets]]\nis_reg = true\nimage_dir = 'reg'\nclass_tokens = 'human'\n",
              NULL, &c, &notes, &err),
        "%s", err.message);
    CHECK(strcmp(c.dataset, "hoge") == 0 && strcmp(c.instance_prompt, "hoge girl") == 0 &&
              c.keep_tokens == 3 && c.train_batch_size == 4 && c.resolution == 512 &&
              c.random_flip && c.shuffle_caption,
        "the subset's values");
    CHECK(c.num_train_epochs == 50 && c.checkpointing_epochs == 20, "10 repeats are 10 epochs");
    CHECK(c.with_prior_preservation && strcmp(c.class_data_dir, "reg") == 0 &&
              strcmp(c.class_prompt, "human") == 0 && c.num_class_images == 1,
        "is_reg");
    train_config_finish(&c);
    json_decref(notes);
}

static void others_are_refused_by_key(void) {
    static const char subset[] = "[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'a'\n";
    static const struct {
        const char *config, *dataset, *prompts, *param, *allowed;
    } wrong[] = {
        { "train_data_dir = 'd'\noutput_name = 'n'", NULL, NULL, "network_module",
            "lycoris.kohya" },
        { "network_module = 'networks.lora'", NULL, NULL, "output_name", "--name" },
        { LEAST "[a]\nseed = 1\n[b]\nseed = 2", NULL, NULL, "seed", "two sections" },
        { LEAST "learning_rat = 1", NULL, NULL, "learning_rat", "no key" },
        { LEAST "clip_skip = 2", NULL, NULL, "clip_skip", "1: captions" },
        { LEAST "max_token_length = 225", NULL, NULL, "max_token_length", "75" },
        { LEAST "vae = 'x'", NULL, NULL, "vae", "to be left out" },
        { LEAST "resolution = '512,768'", NULL, NULL, "resolution", "twice the same" },
        { LEAST "resolution = '512px'", NULL, NULL, "resolution", "a side" },
        { LEAST "caption_extension = '.json'", NULL, NULL, "caption_extension", ".txt" },
        { LEAST "optimizer_type = 'DAdaptAdam'", NULL, NULL, "optimizer_type", "Prodigy" },
        { LEAST "optimizer_type = 'AdamW'\nuse_8bit_adam = true", NULL, NULL, "use_8bit_adam",
            "false" },
        { LEAST "optimizer_args = ['amsgrad=True']", NULL, NULL, "optimizer_args.amsgrad",
            "AMSGrad" },
        { LEAST "optimizer_args = ['momentum=0.9']", NULL, NULL, "optimizer_args.momentum",
            "to be left out" },
        { LEAST "optimizer_args = ['betas=0.9']", NULL, NULL, "optimizer_args.betas",
            "two numbers" },
        { LEAST "optimizer_args = ['weight_decay']", NULL, NULL, "optimizer_args", "key=value" },
        { LEAST "optimizer_args = ['eps=1', 'eps=2']", NULL, NULL, "optimizer_args", "once" },
        { LEAST "optimizer_type = 'Prodigy'\nunet_lr = 1\ntext_encoder_lr = 0.5", NULL, NULL,
            "text_encoder_lr", "Prodigy has one" },
        { LEAST "unet_lr = 0", NULL, NULL, "unet_lr", "above 0" },
        { LEAST "lr_scheduler = 'inverse_sqrt'", NULL, NULL, "lr_scheduler", "polynomial" },
        { LEAST "network_args = ['conv_dim=8']", NULL, NULL, "network_args.conv_dim",
            "network_dim" },
        { LEAST "network_dim = 8\nnetwork_alpha = 8\nnetwork_args = ['conv_dim=8']", NULL, NULL,
            "network_args.conv_alpha", "network_alpha" },
        { LEAST "network_args = ['block_dims=1,2']", NULL, NULL, "network_args.block_dims",
            "not implemented" },
        { LEAST "network_dropout = 0.1", NULL, NULL, "network_dropout", "rank" },
        { LEAST "network_train_text_encoder_only = true", NULL, NULL,
            "network_train_text_encoder_only", "UNet" },
        { "network_module = 'networks.dylora'\noutput_name = 'n'", NULL, NULL, "network_module",
            "networks.lora" },
        { "network_module = 'lycoris.kohya'\noutput_name = 'n'\nnetwork_args = ['algo=boft']", NULL,
            NULL, "network_args.algo", "lokr" },
        { "network_module = 'lycoris.kohya'\noutput_name = 'n'\nnetwork_args = ['preset=x.toml']",
            NULL, NULL, "network_args.preset", "attn-mlp" },
        { LEAST "log_with = 'wandb'", NULL, NULL, "log_with", "tensorboard" },
        { LEAST "reg_data_dir = 'x'", NULL, NULL, "reg_data_dir", "is_reg" },
        { LEAST "color_aug = true", NULL, NULL, "color_aug", "false" },
        { LEAST "max_train_steps = 0", NULL, NULL, "max_train_steps", "from 1" },
        { LEAST "save_last_n_steps = 9\nsave_every_n_steps = 3\nsave_last_n_epochs = 2\n"
                "save_every_n_epochs = 1",
            NULL, NULL, "save_last_n_steps", "one number" },
        { LEAST "save_last_n_steps = 9\nsave_every_n_steps = 3\nsave_every_n_epochs = 1", NULL,
            NULL, "save_last_n_steps", "one number" },
        { LEAST "save_last_n_epochs = 2\nsave_every_n_steps = 3\nsave_every_n_epochs = 1", NULL,
            NULL, "save_last_n_epochs", "one number" },
        { LEAST "save_last_n_steps = 3\nsave_every_n_steps = 3\nsave_last_n_epochs = 2\n"
                "save_every_n_epochs = 1",
            NULL, NULL, "save_last_n_steps", "one number" },
        { LEAST, "x = 1", NULL, "x", "[general]" },
        { LEAST,
            "[general]\nlearning_rate = 1\n[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'a'",
            NULL, "learning_rate", "no key of" },
        { LEAST, "[[datasets]]\n[[datasets]]", NULL, "datasets", "one table" },
        { LEAST, "[[datasets]]\n[[datasets.subsets]]\n[[datasets.subsets]]", NULL, "subsets",
            "one table" },
        { LEAST, "[[datasets]]", NULL, "subsets", "is_reg" },
        { LEAST, "[[datasets]]\n[[datasets.subsets]]", NULL, "image_dir", "a folder" },
        { LEAST, "[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'a'\nmetadata_file = 'b'", NULL,
            "metadata_file", "metadata.jsonl" },
        { LEAST, "[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'a'\nresolution = 5", NULL,
            "resolution", "no key of [[datasets.subsets]]" },
        { LEAST,
            "[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'a'\n[[datasets.subsets]]\n"
            "is_reg = true\nimage_dir = 'b'",
            NULL, "class_tokens", "is_reg" },
        { LEAST,
            "[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'a'\n[[datasets.subsets]]\n"
            "is_reg = true\nimage_dir = 'b'\nclass_tokens = 'c'\nflip_aug = true",
            NULL, "flip_aug", "other pictures" },
        { LEAST "sample_every_n_steps = 5\nsample_prompts = 'p.txt'", NULL, "a cat --x 1",
            "sample_prompts", "--n" },
        { LEAST "sample_every_n_steps = 5\nsample_prompts = 'p.txt'", NULL, "a cat --s",
            "sample_prompts", "--n" },
        { LEAST "sample_every_n_steps = 5\nsample_prompts = 'p.txt'", NULL, "a --s 5\nb --s 6",
            "sample_prompts --s", "the same" },
        { LEAST "sample_every_n_steps = 5\nsample_prompts = 'p.txt'", NULL, "a --d 0",
            "sample_prompts --d", "from 1" },
        { LEAST "sample_every_n_steps = 5\nsample_prompts = 'p.txt'", NULL, "a --n sn\xf8 --s 5",
            "sample_prompts", "UTF-8" },
        { LEAST "sample_every_n_steps = 5\nsample_prompts = 'p.txt'", NULL, "# none\n",
            "sample_prompts", "a prompt" },
        { LEAST "sample_every_n_steps = 5\nsample_prompts = 'p.txt'\nsample_sampler = 'dpmsolver'",
            NULL, "a", "sample_sampler", "dpmsolver++" },
        { LEAST "sample_every_n_steps = 5\nsample_prompts = 'p.txt'\nvalidation_split = 0.1", NULL,
            "a", "validate_every_n_steps", "sample pictures" },
    };
    const size_t count = sizeof(wrong) / sizeof(wrong[0]);
    for (size_t i = 0; i < count; i++) {
        struct train_config c;
        struct error err = { 0 };
        json_t *notes;
        const bool ok = read_files(
            wrong[i].config, wrong[i].dataset, wrong[i].prompts, &c, &notes, &err);
        CHECK(!ok, "%s was taken", wrong[i].config);
        CHECK(strcmp(err.param, wrong[i].param) == 0 && strstr(err.allowed, wrong[i].allowed),
            "%s %s: %s", wrong[i].config, wrong[i].dataset ? wrong[i].dataset : "", err.message);
        if (ok)
            train_config_finish(&c);
        json_decref(notes);
    }
    struct train_config c;
    struct error err = { 0 };
    json_t *notes;
    CHECK(read_files(LEAST, subset, NULL, &c, &notes, &err), "%s", err.message);
    train_config_finish(&c);
    json_decref(notes);
    printf("%zu wrong files, each refused by its key\n", count);
}

/* Every option of train_network.py's parser is known: it is refused by its own name, or noted, or
 * taken, but never said to be unknown. */
static void every_option_of_the_script_is_known(const char *path) {
    char *text, *rest, *key;
    size_t size, known = 0;
    struct error err = { 0 };
    CHECK(file_read(path, 1 << 20, &text, &size, &err), "%s", err.message);
    for (rest = text; (key = strsep(&rest, "\n"));) {
        if (!*key || *key == '#')
            continue;
        json_t *config = json_pack("{s:s, s:s, s:s}", "train_data_dir", "d", "output_name", "n",
            "network_module", "networks.lora");
        json_object_set_new(config, key, json_integer(-7));
        const struct kohya_files files = { config, NULL, NULL, NULL };
        json_t *job, *notes;
        err = (struct error){ 0 };
        if (!kohya_config_read(&files, &job, &notes, &err))
            CHECK(strncmp(err.param, key, strlen(key)) == 0 && !strstr(err.allowed, "no key"),
                "%s: %s", key, err.message);
        json_decref(job);
        json_decref(notes);
        json_decref(config);
        known++;
    }
    free(text);
    printf("%zu options of train_network.py\n", known);
    CHECK(known == 193, "%zu", known);
}

static void the_page_lists_every_key(const char *path, bool write) {
    char *table = NULL;
    size_t size, count = 0;
    struct kohya_line line;
    FILE *rows = open_memstream(&table, &size);
    fprintf(rows, "| key | used? | as what, or why not | in |\n|---|---|---|---|\n");
    for (; kohya_config_line(count, &line); count++) {
        CHECK(line.about[0] && line.where[0], "%s", line.name);
        fprintf(rows, "| `%s` | %s | %s | %s |\n", line.name, line.does, line.about, line.where);
    }
    fclose(rows);
    printf("%zu keys\n", count);
    page_table(path, "<!-- written by kohya_config_test --write -->\n", table, write);
    free(table);
}

/* usage: kohya_config_test kohya_keys.txt docs/kohya.md [--write] */
int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    the_file_of_a_page();
    missing_keys_have_the_scripts_defaults();
    optimizers_have_their_packages_defaults();
    networks_train_the_layers_of_theirs();
    a_dataset_file_replaces_keys();
    others_are_refused_by_key();
    every_option_of_the_script_is_known(argv[1]);
    the_page_lists_every_key(argv[2], argc == 4 && strcmp(argv[3], "--write") == 0);
    return check_done();
}
