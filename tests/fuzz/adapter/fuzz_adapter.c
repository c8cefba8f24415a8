/* The adapter reader on arbitrary files, for a few small layers. An accepted file must give factors
 * and changes of the layers' own sizes; a refused file must give a reason. */
#include "tests/fuzz/fuzz.h"
#include "tests/models/small/small_targets.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void use_module(const struct adapter_module *m) {
    const int64_t columns = m->target->k * adapter_target_taps(m->target);
    struct error err = { 0 };
    float *weights = calloc((size_t)(m->target->n * columns), sizeof(*weights));
    float *pristine = calloc((size_t)(m->target->n * columns), sizeof(*pristine));
    float *bias = calloc((size_t)m->target->n, sizeof(*bias));
    promise(weights && pristine && bias && (m->has_weight || m->has_bias));
    if (m->has_weight)
        promise(adapter_module_add(m, pristine, 0.5f, weights, &err));
    if (m->has_bias)
        adapter_module_add_bias(m, 0.5f, bias);
    if (m->low_rank) {
        float *down = calloc((size_t)(m->rank * columns), sizeof(*down));
        float *up = calloc((size_t)(m->target->n * m->rank), sizeof(*up));
        promise(down && up && adapter_module_factors(m, down, up, &err));
        free(up);
        free(down);
    }
    free(bias);
    free(pristine);
    free(weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct adapter *adapter = NULL;
    struct error err = { 0 };
    size_t count, leftovers;
    const int fd = memfd_create("adapter", MFD_CLOEXEC);
    promise(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    if (!adapter_open_fd(fd, "adapter", &small_targets, &adapter, &err)) {
        promise(err.code != ERROR_NONE && err.message[0]);
        return 0;
    }
    const struct adapter_module *modules = adapter_modules(adapter, &count);
    const struct adapter_leftover *left = adapter_leftovers(adapter, &leftovers);
    promise(count > 0 && adapter_get_summary(adapter)->format);
    for (size_t i = 0; i < count; i++)
        use_module(&modules[i]);
    for (size_t i = 0; i < leftovers; i++)
        promise(left[i].name[0] && left[i].why[0]);
    adapter_close(adapter);
    return 0;
}
