/* Where a model's weights come from, and what they become.
 *
 * A model requests tensors from a `struct weights` by their diffusers names. Behind it is a
 * checkpoint (weights_from_checkpoint) or, in tests, anything else. The loaders of models/layers.h
 * pack the tensors, several into one weight where that is faster. Each records in the model's
 * `struct weight_list` which rows of which packed weight a tensor has become, so that an adapter, a
 * training job or a listing finds a weight by its name. Weights that are not packed are listed
 * beside them.
 */
#ifndef MODELS_WEIGHTS_H
#define MODELS_WEIGHTS_H

#include "base/limits.h"
#include "kernels/kernels.h"

/* The weight matrix of one linear layer or convolution. A 1x1 convolution that the model computes
 * as a linear layer (such as SD-1.x's proj_in) is listed as linear. */
struct named_weight {
    char name[SAFETENSORS_MAX_NAME_BYTES]; /* the layer's: "mid_block.attentions.0.proj_in" */
    const struct packed *packed; /* borrowed from the model; NULL if it was only checked */
    int64_t first, n;            /* the layer is outputs first .. first + n - 1 of `packed` */
    int64_t k;                   /* inputs; c_in of a convolution */
    bool has_bias;
    bool is_conv;
    enum conv_kind kind; /* if is_conv */
};

/* A norm's scale and shift, or an embedding's table: weights that lie in the device's memory
 * unpacked. */
struct named_resident {
    char name[SAFETENSORS_MAX_NAME_BYTES]; /* the layer's: "mid_block.resnets.0.norm1" */
    struct tensor weight, bias;            /* borrowed from the model; a table's bias has no data */
};

/* Every parameter of a model, in the order of loading. A zeroed one is empty. */
struct weight_list {
    struct named_weight *items; /* owned: the matrices and their biases */
    size_t count;
    struct named_resident *residents; /* owned */
    size_t resident_count;
};

bool weight_list_add(struct weight_list *list, const struct named_weight *weight, struct error *err)
    __attribute__((warn_unused_result));
bool weight_list_add_resident(struct weight_list *list, const struct named_resident *resident,
    struct error *err) __attribute__((warn_unused_result));
void weight_list_finish(struct weight_list *list);

/* The source of a model's weights and the form they get. */
struct weights {
    /* Like checkpoint_tensor: gives a view of exactly this shape, valid as long as the source, or
     * an error that names the tensor. */
    bool (*get)(void *user, const char *name, int rank, const int64_t *shape, struct tensor *out,
        struct error *err);
    /* Called when a model has taken all it needs. Returns false if the source has tensors left over
     * or has changed since it was opened. May be NULL. */
    bool (*end)(void *user, struct error *err);
    void *user;
    const struct kernels *kernels; /* borrowed */
    enum dtype dtype;              /* of the packed weights; one that kernels can pack */
    /* Request every tensor, so that names and shapes are checked, but pack nothing: every struct
     * packed stays NULL. */
    bool check_only;
    /* The model's own list, which it sets before it loads; NULL: nothing is recorded. Borrowed. */
    struct weight_list *list;
};

#endif
