/* Checkpoints of a few hundred kilobytes, as diffusers folders: the smallest that draw, with
 * the weights of tests/models/small/small_models.h. Errors end the program. */
#ifndef TESTS_MODELS_SMALL_SMALL_FOLDER_H
#define TESTS_MODELS_SMALL_SMALL_FOLDER_H

struct small_folder {
    int latent_channels;
    int in_channels; /* of the UNet; 0: the latents', 2 of these + 1: it inpaints */
    int vae_blocks;  /* 2^(blocks - 1) px a latent */
    int sample_size; /* latents in a side of the model's own pictures */
};

/* Makes the folder `path`. The tokenizer is the bundled one, by a link to BUNDLED_TOKENIZER. */
void small_folder_write(const char *path, const struct small_folder *checkpoint);
void small_folder_remove(const char *path);

#endif
