#include "train/save_model.h"

#include "base/file.h"
#include "models/checkpoint/checkpoint_save.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Converts a tensor, at its place in `room`, to a file's order and precision. */
static bool convert(const struct trained_tensor *t, const float *values, enum dtype dtype,
    float *room, struct checkpoint_change *out, struct error *err) {
    const int64_t count = t->n * t->taps * t->k;
    float *turned = malloc((size_t)count * sizeof(*turned));
    if (!turned)
        return error_set(err, ERROR_NO_MEMORY, "no memory to save %s", t->name);
    trained_tensor_turn(t, values + t->at, true, turned);
    convert_elements(room + t->at, dtype, turned, DTYPE_F32, count);
    free(turned);
    *out = (struct checkpoint_change){ t->component, t->name,
        tensor_1d(room + t->at, dtype, count) };
    return true;
}

/* Writes the folder under another name, and renames it when it is complete. Each file and folder in
 * it is synced when it is made, and the rename is synced here, so that a saved model survives a
 * power cut. */
static bool write_folder(struct checkpoint *checkpoint, const char *path,
    const struct checkpoint_changes *changes, const char *out, struct error *err) {
    char *fresh = NULL;
    if (asprintf(&fresh, "%s.writing", out) < 0)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    file_remove_tree(AT_FDCWD, fresh);
    const bool written = checkpoint_save(checkpoint, path, changes, fresh, err);
    if (written)
        file_remove_tree(AT_FDCWD, out);
    const bool ok = written &&
                    (rename(fresh, out) == 0 || error_set(err, error_code_of_write(errno),
                                                    "cannot make %s: %s", out, strerror(errno)));
    if (ok)
        file_sync_folder_of(out);
    else
        file_remove_tree(AT_FDCWD, fresh);
    free(fresh);
    return ok;
}

bool save_model(const struct parameters *p, const float *values, float *room,
    const struct train_config *config, struct checkpoint *checkpoint, const char *path,
    const char *out, struct error *err) {
    static const char *const types[] = {
        [TRAIN_PREDICTION_EPSILON] = "epsilon", [TRAIN_PREDICTION_V] = "v_prediction"
    };
    struct checkpoint_change *items = calloc(p->tensor_count + 1, sizeof(*items));
    const struct checkpoint_changes changes = { items, p->tensor_count,
        types[config->prediction_type] };
    bool ok = items || error_set(err, ERROR_NO_MEMORY, "no memory to save a model");
    for (size_t i = 0; ok && i < p->tensor_count; i++)
        ok = convert(&p->tensors[i], values, train_save_dtype(config), room, &items[i], err);
    ok = ok && (checkpoint_is_single_file(checkpoint)
                       ? checkpoint_save_file(checkpoint, &changes, out, err)
                       : write_folder(checkpoint, path, &changes, out, err));
    free(items);
    return ok;
}
