/* Copies a checkpoint's folder without its weights. */
#ifndef MODELS_CHECKPOINT_FOLDER_COPY_H
#define MODELS_CHECKPOINT_FOLDER_COPY_H

#include "base/error.h"

struct folder_copy {
    /* Called first for each file and folder. If it sets *taken, the file or folder is not
     * copied. */
    bool (*take)(
        void *user, const char *source, const char *target, bool *taken, struct error *err);
    void *user;
};

/* Copies the contents of the folder `from` to `to`, which must not exist yet but may be inside
 * `from`. Skips names that begin with a dot, and weights of any format. A file that is too large
 * for a configuration is an error. */
bool folder_copy(const struct folder_copy *copy, const char *from, const char *to,
    struct error *err) __attribute__((warn_unused_result));

#endif
