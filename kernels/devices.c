#include "kernels/devices.h"

#include "base/log.h"
#include "kernels/team.h"
#include "kernels/tuner_cache.h"

#include <stdlib.h>
#include <string.h>

#define INDEX_MAX 999

bool device_choice_parse(const char *text, struct device_choice *out) {
    struct device_choice choice = { 0 };
    if (strcmp(text, "auto") == 0) {
        choice.automatic = true;
    } else if (strcmp(text, "cpu") == 0) {
        choice.kind = DEVICE_CPU;
    } else if (strcmp(text, "cuda") == 0) {
        choice.kind = DEVICE_CUDA;
    } else if (strncmp(text, "cuda:", 5) == 0 && text[5] >= '0' && text[5] <= '9') {
        char *end;
        long index = strtol(text + 5, &end, 10);
        if (*end || index > INDEX_MAX)
            return false;
        choice.kind = DEVICE_CUDA;
        choice.index = (int)index;
        choice.indexed = true;
    } else {
        return false;
    }
    *out = choice;
    return true;
}

bool dtype_choice_parse(const char *text, struct dtype_choice *out) {
    static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_F16, DTYPE_BF16 };
    if (strcmp(text, "auto") == 0) {
        *out = (struct dtype_choice){ .automatic = true };
        return true;
    }
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (strcmp(text, dtype_name(dtypes[i])) == 0) {
            *out = (struct dtype_choice){ .dtype = dtypes[i] };
            return true;
        }
    return false;
}

/* Applies the choices that were measured on this device before. */
static void use_tuned(const struct kernels *kernels) {
    char identity[TUNER_IDENTITY_BYTES], path[4096];
    struct tuner_cache cache;
    kernels->tuner->identity(identity);
    tuner_cache_init(&cache, identity);
    if (tuner_cache_path(identity, path, sizeof(path)))
        tuner_cache_load(&cache, path);
    if (tuner_cache_apply(&cache, kernels->tuner) > 0)
        log_info("%s: kernels for %d shapes are chosen by measurement (%s)", kernels->name,
            cache.count, path);
    else
        log_info("%s: kernels are chosen by rule; `latentd tune --model PATH` measures them",
            kernels->name);
    tuner_cache_finish(&cache);
}

static const struct kernels *open_device(const struct device_choice *choice, struct error *err) {
    if (!choice->automatic && choice->kind == DEVICE_CPU)
        return kernels_cpu();
    struct error why = { 0 };
    const struct kernels *kernels = kernels_cuda(choice->index, &why);
    if (kernels) {
        struct device_figures figures;
        if (!choice->untuned && kernels->figures(&figures, NULL))
            log_info("computing on %s, %s", kernels->name, figures.name);
        if (kernels->tuner && !choice->untuned)
            use_tuned(kernels);
        return kernels;
    }
    if (!choice->automatic) {
        if (err)
            *err = why;
        return NULL;
    }
    /* It is normal that there is no GPU, or none that this build supports. Any other failure to
     * open a GPU deserves a warning. */
    if (why.code == ERROR_NOT_FOUND || why.code == ERROR_UNSUPPORTED)
        log_info("computing on the CPU: %s", why.message);
    else
        log_warning("computing on the CPU, which is far slower: %s", why.message);
    return kernels_cpu();
}

const struct kernels *devices_open(const struct device_choice *choice, struct error *err) {
    const struct kernels *kernels = open_device(choice, err);
    /* A GPU needs the team too: several threads copy data to it. */
    return kernels && team_start(err) ? kernels : NULL;
}

bool devices_choose_dtype(const struct kernels *kernels, const struct dtype_choice *choice,
    enum dtype *out, struct error *err) {
    enum dtype dtype = choice->automatic ? kernels->default_dtype : choice->dtype;
    if (!(kernels->weight_dtypes >> dtype & 1))
        return error_set(err, ERROR_UNSUPPORTED, "dtype: weights are held as %s on %s, not as %s",
            kernels_dtype_names(kernels), kernels->name, dtype_name(dtype));
    *out = dtype;
    return true;
}
