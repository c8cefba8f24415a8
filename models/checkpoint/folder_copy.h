/* A checkpoint's folder copied, without its weights. */
#ifndef MODELS_CHECKPOINT_FOLDER_COPY_H
#define MODELS_CHECKPOINT_FOLDER_COPY_H

#include "base/error.h"

struct folder_copy {
    /* Asked first about each file and folder: what it takes (*taken) is not copied. */
    bool (*take)(
        void *user, const char *source, const char *target, bool *taken, struct error *err);
    void *user;
};

/* Copies what is in the folder `from` to `to`, which must not be there yet but may lie in `from`.
 * Files that begin with a dot, weights of any format and files larger than a configuration may be
 * are not copied; the last are an error. */
bool folder_copy(const struct folder_copy *copy, const char *from, const char *to,
    struct error *err) __attribute__((warn_unused_result));

#endif
