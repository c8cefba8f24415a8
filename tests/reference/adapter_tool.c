/* Writes an adapter as a training job saves it, for load_adapter.py.
 *
 *   adapter_tool CHECKPOINT diffusers|kohya OUT.safetensors JOB.json
 *
 * The lora_down factors are those that the job begins with. The lora_up factors would be zeros
 * then. They are made random too, so that the adapter has an effect. */
#include "models/text_encoder.h"
#include "models/unet.h"
#include "train/examples/draws.h"
#include "train/save_adapter.h"

#include <stdio.h>
#include <string.h>

/* Fills the lora_up factors with random numbers, except the padding. */
static void fill_up(struct parameters *p, struct noise_generator *generator) {
    for (size_t i = 0; i < p->count; i++) {
        const struct trained_module *m = &p->modules[i];
        float *up = p->values + m->at + m->down_floats;
        for (int64_t k = 0; k < m->up_floats; k++)
            if (k / LOW_RANK_PANEL / p->rank * LOW_RANK_PANEL + k % LOW_RANK_PANEL < m->target->n)
                up[k] = 0.2f * (draws_uniform(&generator->mt) - 0.5f);
    }
}

static bool run(char **argv, struct error *err) {
    const struct kernels *kernels = kernels_reference();
    struct checkpoint *checkpoint;
    struct train_config config;
    struct unet *unet;
    struct text_encoder *text_encoder;
    struct parameters *parameters;
    struct noise_generator generator;
    json_error_t why;
    json_t *job = json_load_file(argv[4], 0, &why);
    if (!job)
        return error_set(err, ERROR_INVALID, "%s: %s", argv[4], why.text);
    if (!train_config_parse(job, &config, err) || !checkpoint_open(argv[1], NULL, &checkpoint, err))
        return false;
    struct weights w = weights_from_checkpoint(checkpoint, COMPONENT_UNET, kernels, DTYPE_F32);
    if (!unet_create(checkpoint_unet_config(checkpoint), &w, &unet, err))
        return false;
    w = weights_from_checkpoint(checkpoint, COMPONENT_TEXT_ENCODER, kernels, DTYPE_F32);
    if (!text_encoder_create(checkpoint_text_encoder_config(checkpoint), &w, &text_encoder, err))
        return false;
    noise_init(&generator, RNG_CPU, (uint64_t)config.seed);
    if (!parameters_create(kernels, &config, unet_weights(unet),
            config.train_text_encoder ? text_encoder_weights(text_encoder) : NULL, &generator, NULL,
            NULL, &parameters, err))
        return false;
    fill_up(parameters, &generator);
    const struct adapter_facts facts = { .model = argv[1],
        .linear_projection = checkpoint_unet_config(checkpoint)->use_linear_projection };
    const bool ok = save_adapter(argv[3],
        strcmp(argv[2], "kohya") == 0 ? TRAIN_SAVE_KOHYA : TRAIN_SAVE_DIFFUSERS, parameters,
        parameters->values, &config, &facts, err);
    parameters_destroy(parameters);
    text_encoder_destroy(text_encoder);
    unet_destroy(unet);
    checkpoint_close(checkpoint);
    train_config_finish(&config);
    json_decref(job);
    return ok;
}

int main(int argc, char **argv) {
    struct error err = { 0 };
    if (argc == 5 && run(argv, &err))
        return 0;
    fprintf(stderr, "adapter_tool: %s\n", argc == 5 ? err.message : "four arguments are wanted");
    return 1;
}
