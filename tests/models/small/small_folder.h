/* Checkpoints of a few hundred kilobytes, as diffusers folders: the smallest that can draw, with
 * the weights of tests/models/small/small_models.h. Errors end the program. */
#ifndef TESTS_MODELS_SMALL_SMALL_FOLDER_H
#define TESTS_MODELS_SMALL_SMALL_FOLDER_H

struct small_folder {
    int latent_channels;
    int in_channels; /* of the UNet; 0: as latent_channels; 2 * latent_channels + 1 for an
    inpainting model */
    int vae_blocks;  /* one latent covers 2^(blocks - 1) px */
    int sample_size; /* side of the model's own pictures, in latents */
};

/* Makes the folder `path`. Its tokenizer is a link to BUNDLED_TOKENIZER. */
void small_folder_write(const char *path, const struct small_folder *checkpoint);
void small_folder_remove(const char *path);

#endif
