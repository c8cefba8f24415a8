/* Requests that share UNet calls draw the same bits as each draws alone. They differ in prompts,
 * sizes, steps, schedulers, guidance, generators, adapters, priorities and starting pictures. They
 * arrive at random times; some are cancelled, late or not finite; several limits of a call's rows
 * are tried. As in the daemon, requests are submitted by one thread and drawn by another. Runs on
 * the CPU in f32 and bf16, with a small random checkpoint and an inpainting one.
 *
 * usage: drawn_together_test [REQUESTS]    (1,000 for scripts/soak) */
#include "models/checkpoint/safetensors.h"
#include "tests/check.h"
#include "tests/engine/adapters/adapter_rig.h"
#include "tests/engine/drawn_together.h"
#include "tests/models/small/small_folder.h"

#include <stdlib.h>
#include <sys/stat.h>

#define WIDTH 32 /* of small_folder's text encoder */

/* Makes a folder with one embedding, "style", of three vectors. */
static void write_embeddings(const char *folder) {
    float values[3 * WIDTH];
    char path[200];
    struct error err = { 0 };
    for (int i = 0; i < 3 * WIDTH; i++)
        values[i] = (float)(i * 37 % 101 - 50) / 25;
    const struct safetensors_item item = { "emb_params", tensor_2d(values, DTYPE_F32, 3, WIDTH) };
    snprintf(path, sizeof(path), "%s/style.safetensors", folder);
    CHECK(mkdir(folder, 0700) == 0 && safetensors_write(path, &item, 1, NULL, &err), "%s",
        err.message);
}

int main(int argc, char **argv) {
    static const struct small_folder small = {
        .latent_channels = 4, .vae_blocks = 4, .sample_size = 8
    };
    static const struct small_folder nine = {
        .latent_channels = 4, .in_channels = 9, .vae_blocks = 4, .sample_size = 8
    };
    static const int few[] = { 1, 2, 5, 8, 16, 0 }, many[] = { 5, 16, 0 };
    char path[128], embeddings[128];
    struct rig rig; /* only for its adapters: its checkpoint has the same UNet and text encoder */
    const int requests = argc > 1 ? atoi(argv[1]) : 24;
    if (requests < 1 || requests > DRAWN_TOGETHER_MAX)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    rig_make(&rig, kernels_cpu(), DTYPE_F32);
    rig_open(&rig, 0, false);
    rig_put(&rig, "a", RIG_LORA, 4, "", 1);
    rig_put(&rig, "b", RIG_LOCON, 8, "", 2);
    rig_put(&rig, "c", RIG_LOHA, 2, "attn", 3);
    rig_put(&rig, "spoils", RIG_OVERFLOW, 4, "", 4);
    snprintf(embeddings, sizeof(embeddings), "%s/embeddings", rig.root);
    write_embeddings(embeddings);
    for (int i = 0; i < 3; i++) {
        const bool inpaints = i == 2;
        snprintf(path, sizeof(path), "%s/%s", rig.root, inpaints ? "inpaints" : "small");
        if (i != 1)
            small_folder_write(path, inpaints ? &nine : &small);
        const struct drawn_together setup = { .model = path,
            .inpaints = inpaints,
            .loras = inpaints ? NULL : rig.loras,
            .embeddings = embeddings,
            .context_width = WIDTH,
            .device = DEVICE_CPU,
            .dtype = i == 1 ? DTYPE_BF16 : DTYPE_F32,
            .requests = requests,
            .fails = true,
            .seed = (uint64_t)(7 * i + 8) };
        CHECK(drawn_together_same_bits(&setup, argc > 1 ? many : few, 4),
            "some request is drawn differently together with others: see above");
    }
    rig_remove(&rig);
    return check_done();
}
