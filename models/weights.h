/* The source of a model's weights, and the list of the weights after loading.
 *
 * A model requests tensors from a `struct weights` by their diffusers names. The source is a
 * checkpoint (weights_from_checkpoint) or, in tests, anything else. The loaders of models/layers.h
 * pack the tensors, several into one weight where that is faster. Each loader records in the
 * model's `struct weight_list` which rows of which packed weight a tensor has become. So an
 * adapter, a training job or a listing can find a weight by its name. Weights that are not packed
 * are listed beside them.
 */
#ifndef MODELS_WEIGHTS_H
#define MODELS_WEIGHTS_H

#include "base/limits.h"
#include "kernels/kernels.h"

/* The weight matrix of one linear layer or convolution. A 1x1 convolution that the model computes
 * as a linear layer (such as SD-1.x's proj_in) is listed as linear. */
struct named_weight {
    char name[SAFETENSORS_MAX_NAME_BYTES]; /* layer name: "mid_block.attentions.0.proj_in" */
    const struct packed *packed;           /* borrowed from the model; NULL: only checked */
    int64_t first, n; /* the layer is outputs first .. first + n - 1 of `packed` */
    int64_t k;        /* number of inputs; c_in of a convolution */
    bool has_bias;
    bool is_conv;
    enum conv_kind kind; /* if is_conv */
};

/* A norm's scale and shift, or an embedding's table: weights that lie in the device's memory
 * unpacked. */
struct named_resident {
    char name[SAFETENSORS_MAX_NAME_BYTES]; /* layer name: "mid_block.resnets.0.norm1" */
    struct tensor weight, bias;            /* borrowed from the model; a table's bias has no data */
};

/* Every parameter of a model, in the order of loading. A zeroed list is empty. */
struct weight_list {
    struct named_weight *items; /* owned: the matrices, with their biases */
    size_t count;
    struct named_resident *residents; /* owned */
    size_t resident_count;
};

bool weight_list_add(struct weight_list *list, const struct named_weight *weight, struct error *err)
    __attribute__((warn_unused_result));
bool weight_list_add_resident(struct weight_list *list, const struct named_resident *resident,
    struct error *err) __attribute__((warn_unused_result));
void weight_list_finish(struct weight_list *list);

/* The source of a model's weights, and the form in which they are packed. */
struct weights {
    /* Does what checkpoint_tensor does: returns a view of exactly this shape, valid as long as the
     * source, or an error that names the tensor. */
    bool (*get)(void *user, const char *name, int rank, const int64_t *shape, struct tensor *out,
        struct error *err);
    /* Called when a model has taken all it needs. Returns false if the source has tensors left over
     * or has changed since it was opened. May be NULL. */
    bool (*end)(void *user, struct error *err);
    void *user;
    const struct kernels *kernels; /* borrowed */
    enum dtype dtype;              /* dtype of packed weights, which kernels can pack */
    /* Request every tensor, so that names and shapes are checked, but pack nothing: every struct
     * packed stays NULL. */
    bool check_only;
    /* The model's own list, which the model sets before it loads. Borrowed. NULL: nothing is
     * recorded. */
    struct weight_list *list;
};

#endif
