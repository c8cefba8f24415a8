/* The layers that every model is built of.
 *
 * Each *_load reads a layer's tensors, checks their shapes through their source, and stores them in
 * the device's own form, so that the source may be closed afterwards. The model's weight_list
 * records which tensors a packed weight was made of. A layer's name is `prefix`.`leaf`, or `leaf`
 * if the prefix is empty.
 *
 * Every struct here may be zeroed; finishing or destroying a zeroed one does nothing.
 */
#ifndef MODELS_LAYERS_H
#define MODELS_LAYERS_H

#include "kernels/compute/compute.h"
#include "kernels/pack.h"
#include "models/weights.h"

/* Ends the loading of a model. Call it when the model has taken all the tensors it needs. */
bool weights_end(const struct weights *w, struct error *err) __attribute__((warn_unused_result));

/* Device memory for weights that need no packing. */
struct resident {
    const struct device_memory *memory; /* borrowed */
    void *data;                         /* owned */
    size_t bytes;
};

/* Scale and shift of a group or layer norm, f32 [c]. */
struct norm {
    struct tensor gamma, beta;
    struct resident resident; /* owned: the memory of scale and shift */
};
bool norm_load(const struct weights *w, const char *prefix, const char *leaf, int64_t channels,
    struct norm *out, struct error *err) __attribute__((warn_unused_result));
void norm_finish(struct norm *norm);

/* A linear layer: weight [n][k], bias [n] if `bias`. */
struct linear_shape {
    int64_t n, k;
    bool bias;
    bool geglu; /* n counts both halves */
};
bool linear_load(const struct weights *w, const char *prefix, const char *leaf,
    struct linear_shape shape, struct packed **out, struct error *err)
    __attribute__((warn_unused_result));

/* Loads several linear layers with the same input as one layer. Their outputs follow each other in
 * order. */
struct linear_part {
    char name[SAFETENSORS_MAX_NAME_BYTES];
    int64_t n;
};
bool linear_load_stacked(const struct weights *w, const struct linear_part *parts, int count,
    int64_t k, bool bias, struct packed **out, struct error *err)
    __attribute__((warn_unused_result));

/* Loads query, key and value of self-attention over `channels` as one linear layer with 3*channels
 * outputs; `leaves` are "to_q", "to_k", "to_v" or the like. */
bool qkv_load(const struct weights *w, const char *prefix, const char *const leaves[3],
    int64_t channels, bool bias, struct packed **out, struct error *err)
    __attribute__((warn_unused_result));

/* A convolution with bias: weight [c_out][c_in][3][3], or [1][1] for CONV_1X1. */
bool conv_load(const struct weights *w, const char *prefix, const char *leaf, enum conv_kind kind,
    int64_t c_out, int64_t c_in, struct packed **out, struct error *err)
    __attribute__((warn_unused_result));

/* An embedding table [rows][c], copied in the weights' dtype. */
struct table {
    struct tensor tensor;
    struct resident resident; /* owned */
};
bool table_load(const struct weights *w, const char *prefix, const char *leaf, int64_t rows,
    int64_t channels, struct table *out, struct error *err) __attribute__((warn_unused_result));
void table_finish(struct table *table);

/* Writes `prefix`.`leaf`. ERROR_INVALID if it is longer than a tensor's name may be. */
bool layer_name(char name[SAFETENSORS_MAX_NAME_BYTES], const char *prefix, const char *leaf,
    struct error *err) __attribute__((warn_unused_result));

/* y = packed(x), without activation or residual. */
void layer_linear(
    struct compute *c, const struct tensor *x, const struct packed *weight, struct tensor *y);
/* y += packed(x). */
void layer_linear_add(
    struct compute *c, const struct tensor *x, const struct packed *weight, struct tensor *y);
/* y = conv(x). */
void layer_conv(
    struct compute *c, const struct tensor *x, const struct packed *weight, struct tensor *y);
/* y = layer_norm(x). */
void layer_layer_norm(struct compute *c, const struct tensor *x, const struct norm *norm, float eps,
    struct tensor *y);

/* y = attention(packed(y)), in place: self-attention of the tokens y [n][t][channels] through one
 * fused projection to [q | k | v]. The scale is 1 / sqrt(channels / heads). */
void layer_self_attention(
    struct compute *c, const struct packed *qkv_weight, int heads, bool causal, struct tensor *y);

/* For the beginning and the end of a model: its input and output are f32, and everything between is
 * in its activation dtype. layer_to_dtype returns `x` itself if it has the dtype, else a converted
 * copy from the arena. */
struct tensor layer_to_dtype(struct compute *c, const struct tensor *x, enum dtype dtype);
/* y = conv(x), with y's size and dtype. */
void layer_conv_to_dtype(
    struct compute *c, const struct tensor *x, const struct packed *weight, struct tensor *y);

#endif
