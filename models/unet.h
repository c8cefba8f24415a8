/* UNet2DConditionModel: predicts the noise (or v) in a batch of latents.
 *
 * Row i has its own timestep and its own text context, and its result does not depend on the other
 * rows. The keys and values of every cross-attention depend on the prompt only. unet_encode_context
 * computes them once, and they are passed to every step.
 */
#ifndef MODELS_UNET_H
#define MODELS_UNET_H

#include "kernels/compute/compute.h"
#include "models/config.h"
#include "models/weights.h"

struct unet;

/* Copies the config and packs the weights; neither is needed afterwards. Errors begin with "unet:
 * ". */
bool unet_create(const struct unet_config *config, const struct weights *w, struct unet **out,
    struct error *err) __attribute__((warn_unused_result));
void unet_destroy(struct unet *unet); /* NULL is fine */

const struct unet_config *unet_get_config(const struct unet *unet);
/* Returns the dtype of activations, and of the keys and values of the context. */
enum dtype unet_activation_dtype(const struct unet *unet);

/* Returns the list that says which packed weight holds the tensors of each layer. Borrowed. */
const struct weight_list *unet_weights(const struct unet *unet);

/* Returns the channels of the encoded context: for every cross-attention in order, its keys and
 * then its values. */
int64_t unet_context_channels(const struct unet *unet);
/* context [n][t][cross_attention_dim], activation dtype; kv [n][t][unet_context_channels]. */
void unet_encode_context(
    const struct unet *unet, struct compute *c, const struct tensor *context, struct tensor *kv);

/* Computes what a timestep adds to the resnets. That depends on nothing else, so each step can read
 * it from a table that was made once for many steps. Line i of y [n][unet_time_channels],
 * activation dtype, belongs to element i of timesteps f32 [n] and to row i of an overlay. */
int64_t unet_time_channels(const struct unet *unet);
void unet_encode_timesteps(
    const struct unet *unet, struct compute *c, const struct tensor *timesteps, struct tensor *y);

/* A row of a call reads its line of a table in pieces. unet_time_ids writes the ids of a line's
 * pieces. There are unet_time_pieces of them, at most UNET_TIME_PIECES_MAX. */
#define UNET_TIME_PIECES_MAX 80
int unet_time_pieces(const struct unet *unet);
void unet_time_ids(const struct unet *unet, int line, int32_t *ids);

/* latents f32 [n][h][w][in_channels]; timesteps f32 [n] (may be fractional); kv [n][t][...] from
 * unet_encode_context; lengths i32 [n], the number of tokens in each row's text, or NULL if all
 * have t; y f32 [n][h][w][out_channels]. h and w may be any size, so the sides of the picture any
 * multiple of 8 px. */
void unet_forward(const struct unet *unet, struct compute *c, const struct tensor *latents,
    const struct tensor *timesteps, const struct tensor *kv, const struct tensor *lengths,
    struct tensor *y);
/* Computes the same bits as unet_forward, from a table [lines][unet_time_channels] made by
 * unet_encode_timesteps. Not possible with a tape. ids i32 [n][unet_time_pieces]. */
void unet_forward_timed(const struct unet *unet, struct compute *c, const struct tensor *latents,
    const struct tensor *table, const struct tensor *ids, const struct tensor *kv,
    const struct tensor *lengths, struct tensor *y);

#endif
