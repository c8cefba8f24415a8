#include "train/module_order.h"

#include <stdlib.h>
#include <string.h>

/* Names in the order in which the classes of diffusers and transformers construct them. If two
 * names never occur side by side, their order has no meaning. */
static const char *const order[] = { "conv_in", "time_embedding", "down_blocks", "up_blocks",
    "mid_block", "conv_out", "attentions", "resnets", "downsamplers", "upsamplers", "proj_in",
    "transformer_blocks", "attn1", "attn2", "ff", "proj_out", "conv1", "time_emb_proj", "conv2",
    "conv_shortcut", "to_q", "to_k", "to_v", "to_out", "linear_1", "linear_2", "self_attn", "mlp",
    "k_proj", "v_proj", "q_proj", "out_proj", "fc1", "fc2" };
#define ORDER_COUNT ((int)(sizeof(order) / sizeof(order[0])))

/* Returns the position of a part of a name; ORDER_COUNT if it is not in the list. */
static int place(const char *part, size_t length) {
    int i = 0;
    while (i < ORDER_COUNT && (strlen(order[i]) != length || memcmp(order[i], part, length) != 0))
        i++;
    return i;
}

static int compare_parts(const char *a, size_t a_length, const char *b, size_t b_length) {
    const int place_a = place(a, a_length), place_b = place(b, b_length);
    if (place_a != place_b)
        return place_a - place_b;
    if (place_a < ORDER_COUNT)
        return 0;
    /* Numbers of blocks and layers. */
    const long number_a = strtol(a, NULL, 10), number_b = strtol(b, NULL, 10);
    if (number_a != number_b)
        return number_a < number_b ? -1 : 1;
    const size_t shorter = a_length < b_length ? a_length : b_length;
    const int sign = memcmp(a, b, shorter);
    return sign ? sign : (a_length > b_length) - (a_length < b_length);
}

int module_order(const char *a, const char *b) {
    while (*a && *b) {
        const size_t a_length = strcspn(a, "."), b_length = strcspn(b, ".");
        const int sign = compare_parts(a, a_length, b, b_length);
        if (sign)
            return sign;
        a += a_length + (a[a_length] == '.');
        b += b_length + (b[b_length] == '.');
    }
    return (*a != 0) - (*b != 0);
}
