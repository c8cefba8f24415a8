/* The contents of a LoRA file, recognised by its tensors' names, in the formats of kohya,
 * diffusers, PEFT and LyCORIS. */
#ifndef MODELS_ADAPTER_ADAPTER_NAMES_H
#define MODELS_ADAPTER_ADAPTER_NAMES_H

#include "models/checkpoint/safetensors.h"

#define ADAPTER_VALUES_MAX 16
#define ADAPTER_KINDS_MAX 8
#define ADAPTER_TARGETS_MAX 32

/* How the tensors of a module give its change of the weights. */
enum adapter_kind {
    ADAPTER_LORA, /* and LoCon */
    ADAPTER_LOHA,
    ADAPTER_LOKR,
    ADAPTER_FULL, /* the difference itself */
    ADAPTER_NORM, /* the difference of a norm's scale and shift */
    ADAPTER_IA3,
    ADAPTER_OFT,
    ADAPTER_GLORA,
    ADAPTER_ANY, /* a tensor that several kinds have: alpha, DoRA's magnitude */
};

/* A tensor's role in its module. LoHa's and LoKr's _a and _b are factors of a product; T1 and T2
 * are the cores of their Tucker form. */
enum adapter_part {
    ADAPTER_DOWN, /* its first dimension is the rank */
    ADAPTER_UP,
    ADAPTER_MID, /* LoCon's Tucker core, between up and down */
    ADAPTER_UP_BIAS,
    ADAPTER_W1_A,
    ADAPTER_W1_B,
    ADAPTER_T1,
    ADAPTER_W2_A,
    ADAPTER_W2_B,
    ADAPTER_T2,
    ADAPTER_W1,
    ADAPTER_W2,
    ADAPTER_DIFF,
    ADAPTER_DIFF_B,
    ADAPTER_DORA_SCALE, /* LyCORIS's: its shape shows if outputs or inputs are scaled */
    ADAPTER_MAGNITUDE,  /* peft's: outputs are scaled */
    ADAPTER_ALPHA,
    ADAPTER_OTHER, /* belongs to a kind that is listed but not supported */
    ADAPTER_PART_COUNT
};

/* A tensor's name, split into its parts. */
struct adapter_name {
    enum adapter_part part;
    enum adapter_kind kind;
    const char *suffix;   /* after the module's name: ".lora_down.weight" */
    size_t module_length; /* length of the module's name within the tensor's */
};

/* Returns "LyCORIS LoHa", "LyCORIS IA3", ...; "LoRA" for ADAPTER_LORA. Do not call it for
 * ADAPTER_ANY. */
const char *adapter_kind_name(enum adapter_kind kind);

/* Returns false if the tensor does not belong to an adapter. */
bool adapter_name_parse(const char *name, struct adapter_name *out);

/* A distinct value and how often it occurs. */
struct adapter_value {
    double value;
    size_t count;
};

/* A layer that adapters change ("to_q", "ff_net_2", ...) and the number of such modules. */
struct adapter_target {
    const char *name;
    size_t count;
};

#define ADAPTER_TRIGGER_MAX_BYTES 255

/* A summary of a file. Strings are static. A list that is full may be incomplete. */
struct adapter_summary {
    const char *format; /* "kohya", "peft (lora_A, lora_B)", ... */
    const char *kinds[ADAPTER_KINDS_MAX];
    struct adapter_value ranks[ADAPTER_VALUES_MAX], alphas[ADAPTER_VALUES_MAX];
    struct adapter_target targets[ADAPTER_TARGETS_MAX];
    size_t kind_count, rank_count, alpha_count, target_count;
    size_t unet_modules, text_encoder_modules;
    size_t other_tensors; /* belongs to no adapter */
    /* The words that call up what it was trained on, from its metadata; "": unknown. */
    char trigger[ADAPTER_TRIGGER_MAX_BYTES + 1];
};

/* Summarises a file from its header and, with `reads_alphas`, its alphas, which are tensors.
 * Returns false if the file holds no adapter. */
bool adapter_summarize(struct safetensors *file, bool reads_alphas, struct adapter_summary *out);

#endif
