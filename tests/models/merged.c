#include "tests/models/merged.h"

#include "models/checkpoint/checkpoint_merge.h"
#include "models/text_encoder.h"
#include "models/unet.h"

#include <stdio.h>
#include <stdlib.h>

#define LORAS_MAX 4

static void must(bool ok, const struct error *err) {
    if (ok)
        return;
    printf("the test cannot run: %s\n", err->message);
    exit(1);
}

void make_merged(const char *model, const char *lora_folder, const json_t *loras, const char *out) {
    struct error err = { 0 };
    struct checkpoint *c;
    struct unet *unet;
    struct text_encoder *text_encoder;
    struct merge_adapter adapters[LORAS_MAX];
    struct adapter *opened[LORAS_MAX];
    const size_t count = json_array_size(loras);
    must(checkpoint_open(model, NULL, &c, &err), &err);
    struct weights w = weights_from_checkpoint(c, COMPONENT_UNET, kernels_cpu(), DTYPE_F32);
    w.check_only = true;
    must(unet_create(checkpoint_unet_config(c), &w, &unet, &err), &err);
    w = weights_from_checkpoint(c, COMPONENT_TEXT_ENCODER, kernels_cpu(), DTYPE_F32);
    w.check_only = true;
    must(text_encoder_create(checkpoint_text_encoder_config(c), &w, &text_encoder, &err), &err);
    const struct adapter_targets targets = { unet_weights(unet),
        text_encoder_weights(text_encoder) };
    for (size_t i = 0; i < count; i++) {
        const json_t *lora = json_array_get(loras, i);
        char path[512];
        snprintf(path, sizeof(path), "%s/%s.safetensors", lora_folder,
            json_string_value(json_object_get(lora, "name")));
        must(adapter_open(path, &targets, &opened[i], &err), &err);
        adapters[i] = (struct merge_adapter){ opened[i],
            json_number_value(json_object_get(lora, "weight")),
            json_number_value(json_object_get(lora, "text_encoder_weight")) };
    }
    must(checkpoint_merge(c, model, &targets, adapters, count, "a test", out, &err), &err);
    for (size_t i = 0; i < count; i++)
        adapter_close(opened[i]);
    text_encoder_destroy(text_encoder);
    unet_destroy(unet);
    checkpoint_close(c);
}
