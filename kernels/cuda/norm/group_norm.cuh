/* Inside kernels/cuda/: the arguments of group_norm's kernels. */
#ifndef KERNELS_CUDA_NORM_GROUP_NORM_CUH
#define KERNELS_CUDA_NORM_GROUP_NORM_CUH

#include "kernels/cuda/norm/norm.cuh"

#include <stdint.h>

struct group_norm {
    /* [..][of_x] and [..][of_more]. `more` points of_x elements before its first element, so that
     * the same channel number indexes both. */
    const void *x, *more;
    const float *gamma, *beta;
    void *y, *joined;                    /* joined: NULL unless `more` is set */
    struct moments *parts;               /* [row][piece][group] */
    int pixels, channels, groups, width; /* width: channels per group */
    int of_x, of_more;                   /* channels */
    int piece, pieces; /* pixels of a piece (the last has fewer), and the pieces */
    int together;      /* groups per block */
    float eps;
    bool silu;
};

/* A channel of one pixel, in the tensor that has the channel. `apart`: elements from one pixel to
 * the next. */
template <class T> struct source {
    const T *from;
    int apart;

    __device__ __forceinline__ source(const struct group_norm &g, int pixel, int channel) {
        const bool is_more = channel >= g.of_x;
        apart = is_more ? g.of_more : g.of_x;
        from = (const T *)(is_more ? g.more : g.x) + (int64_t)pixel * apart + channel;
    }
};

struct error;

/* Computes `rows` rows of a 16-bit dtype in lines of whole pixels (group_norm_lines.cu); g->parts
 * has room for GROUP_NORM_LINE_PARTS of each group of each row. The channels of both sources are
 * multiples of 8, at most GROUP_NORM_LINE_CHANNELS together, and all tensors are aligned to 16
 * bytes. */
#define GROUP_NORM_LINE_CHANNELS 4096
#define GROUP_NORM_LINE_GROUPS 128
#define GROUP_NORM_LINE_PARTS 128
template <class T>
bool group_norm_lines(const struct group_norm *g, int64_t rows, struct error *err);

#endif
