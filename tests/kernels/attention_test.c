/* Compares every candidate of CUDA attention, above all Hopper's, with the reference. The cases
 * have few queries and keys, but more than one block of each. They cover real head sizes, q, k and
 * v as parts of one projection and as separate tensors, causal attention, rows of different
 * lengths, and NaN and infinite queries. Candidates that only some chips have are tried if the
 * device has them. The plain kernel is tried if it is the only one. */
#include "kernels/compute/compute.h"
#include "kernels/cuda/attention/attention_candidates.h"
#include "tests/kernels/device_tensors.h"

#include <math.h>

#define ROWS 2

struct attention_case {
    enum dtype dtype;
    int64_t tq, tk;
    int heads, d;
    bool causal, hopper_only;
    int32_t lengths[ROWS]; /* 0: tk; keys behind the length are NaN */
};

/* q, k, v, y and the rows' lengths. */
#define TENSORS 5

/* Arguments that point into `tensors`. */
static struct attention_args arguments(
    const struct attention_case *c, struct tensor tensors[TENSORS]) {
    return (struct attention_args){ &tensors[0], &tensors[1], &tensors[2], 0, 8, 16, c->heads, c->d,
        1.0f / sqrtf((float)c->d), c->causal, &tensors[3], c->lengths[0] ? &tensors[4] : NULL };
}

/* Runs one candidate on the rows from `first` on. `got` has room for all rows. If only the last row
 * runs, it gets exactly its own keys, and the call has no lengths. */
static void run(const struct attention_case *c, const struct attention_candidate *candidate,
    struct tensor device[TENSORS], int64_t first, struct tensor *got) {
    struct tensor rows[TENSORS];
    struct error err = { 0 };
    for (int i = 0; i < TENSORS; i++)
        rows[i] = tensor_rows(&device[i], first, ROWS - first);
    struct attention_args args = arguments(c, rows);
    if (first == ROWS - 1 && args.lengths) {
        rows[1].shape[1] = rows[2].shape[1] = c->lengths[first];
        args.lengths = NULL;
    }
    struct tensor to = tensor_rows(got, first, ROWS - first);
    memset(to.data, 0xff, tensor_bytes(&to));
    bool ok = cuda->memory->upload(rows[3].data, to.data, tensor_bytes(&to), &err) &&
              attention_with(candidate, &args, &err);
    const void *seen = ok ? cuda->memory->view(rows[3].data, tensor_bytes(&to), &err) : NULL;
    CHECK(seen, "%s", err.message);
    if (seen)
        memcpy(to.data, seen, tensor_bytes(&to));
}

/* Counts the numbers that are NaN in one tensor and not in the other. Sets all NaN to 0 in both. */
static int64_t stray_nans(struct tensor *want, struct tensor *got) {
    int64_t stray = 0;
    for (int64_t i = 0; i < tensor_elements(want); i++) {
        bool w = isnan(value(want, i)), g = isnan(value(got, i));
        stray += w != g;
        if (w || g)
            ((uint16_t *)want->data)[i] = ((uint16_t *)got->data)[i] = 0;
    }
    return stray;
}

/* Returns the lengths. Writes NaN behind them in k and v. */
static struct tensor put_lengths(const struct attention_case *c, struct tensor host[TENSORS]) {
    const struct tensor lengths = random_tensor(tensor_1d(NULL, DTYPE_I32, ROWS), 0);
    for (int64_t row = 0; row < ROWS && c->lengths[0]; row++) {
        ((int32_t *)lengths.data)[row] = c->lengths[row];
        for (int i = 1; i <= 2; i++)
            for (int64_t at = c->lengths[row] * host[i].shape[2];
                 at < host[i].shape[1] * host[i].shape[2]; at++)
                ((uint16_t *)tensor_rows(&host[i], row, 1).data)[at] = 0x7fff;
    }
    return lengths;
}

/* Makes all scores of one query -inf, in the first row and first head. */
static void see_nothing(
    const struct attention_case *c, struct tensor host[TENSORS], int64_t query) {
    const bool half = c->dtype == DTYPE_F16;
    ((uint16_t *)host[0].data)[query * host[0].shape[2]] = half ? 0xfc00 : 0xff80;
    for (int64_t key = 0; key < c->tk; key++) /* k starts at channel 8 of its tensor */
        ((uint16_t *)host[1].data)[key * host[1].shape[2] + 8] = half ? 0x3c00 : 0x3f80;
}

static void check_case(const struct attention_case *c) {
    const double allowed = c->dtype == DTYPE_F16 ? 5e-4 : 4e-3;
    const int64_t width = (int64_t)c->heads * c->d;
    struct tensor host[TENSORS], device[TENSORS], got, want, one;
    host[0] = random_tensor(tensor_3d(NULL, c->dtype, ROWS, c->tq, width + 8), 2);
    host[1] = random_tensor(tensor_3d(NULL, c->dtype, ROWS, c->tk, width + 24), 2);
    host[2] = random_tensor(tensor_3d(NULL, c->dtype, ROWS, c->tk, width + 16), 1);
    host[3] = random_tensor(tensor_3d(NULL, c->dtype, ROWS, c->tq, width), 1);
    ((uint16_t *)host[0].data)[c->tq / 2 * (width + 8)] = 0x7fff; /* NaN in f16 and bf16 */
    if (!c->lengths[0])
        see_nothing(c, host, 1);
    if (c->causal) /* a late value, hidden from earlier queries */
        ((uint16_t *)host[2].data)[(c->tk - 9) * (width + 16) + 16] = 0x7fff;
    got = random_tensor(host[3], 1);
    want = random_tensor(host[3], 1);
    one = random_tensor(host[3], 1);
    host[4] = put_lengths(c, host);
    for (int i = 0; i < TENSORS; i++)
        device[i] = on_device(&host[i]);
    struct compute reference = { .kernels = kernels_reference() };
    struct attention_args args = arguments(c, host);
    op_attention(&reference, &args);
    CHECK(compute_ok(&reference), "%s", reference.error.message);

    args = arguments(c, device);
    struct attention_shape shapes[2];
    const int shape_count = attention_shapes_of(&args, shapes);
    const struct attention_shape shape = shapes[c->lengths[0] > ATTENTION_FEW_KEYS];
    CHECK(shape_count == (args.lengths && c->tk > ATTENTION_FEW_KEYS ? 2 : 1), "%d", shape_count);
    struct attention_candidate all[ATTENTION_MAX_CANDIDATES];
    const int count = attention_candidates(&shape, all);
    CHECK(all[count - 1].path == ATTENTION_PLAIN, "static choice %d, plainest %d", all[0].path,
        all[count - 1].path);
    int tried = 0;
    double worst = 0;
    for (int i = 0; i < count; i++) {
        if (all[i].path == ATTENTION_PLAIN ? count > 1
                                           : c->hopper_only && all[i].path != ATTENTION_HOPPER)
            continue;
        char name[64];
        attention_candidate_name(&all[i], name, sizeof(name));
        run(c, &all[i], device, 0, &got);
        run(c, &all[i], device, 1, &one);
        struct tensor alone = tensor_rows(&one, 1, 1), among = tensor_rows(&got, 1, 1);
        CHECK(memcmp(alone.data, among.data, tensor_bytes(&alone)) == 0,
            "%s: other bits in a row that is computed alone", name);
        memcpy(want.data, host[3].data, tensor_bytes(&want));
        const int64_t stray = stray_nans(&want, &got);
        const double error = distance(&got, &want);
        CHECK(stray == 0 && error <= allowed, "%s: distance %.3g, allowed %.3g; %lld stray NaN",
            name, error, allowed, (long long)stray);
        worst = error > worst ? error : worst;
        tried++;
    }
    printf("%s %lld to %lld, %d of %d%s%s: %d candidates, worst distance %.3g, allowed %.3g\n",
        dtype_name(c->dtype), (long long)c->tq, (long long)c->tk, c->heads, c->d,
        c->causal ? " causal" : "", c->lengths[0] ? " with lengths" : "", tried, worst, allowed);
    for (int i = 0; i < TENSORS; i++) {
        device_release(&device[i]);
        free(host[i].data);
    }
    free(got.data);
    free(want.data);
    free(one.data);
}

int main(void) {
    static const struct attention_case cases[] = {
        { DTYPE_F16, 70, 150, 2, 40, false, false },
        { DTYPE_BF16, 129, 77, 1, 40, false, true },
        { DTYPE_F16, 300, 77, 1, 40, false, true },
        { DTYPE_F16, 200, 80, 1, 40, false, true, { 77, 31 } },
        { DTYPE_F16, 66, 131, 1, 64, false, true },
        { DTYPE_F16, 77, 77, 2, 64, true, false },
        { DTYPE_BF16, 33, 260, 1, 80, false, true },
        { DTYPE_F16, 70, 130, 2, 160, false, true },
        { DTYPE_F16, 70, 150, 2, 40, false, false, { 80, 33 } },
        { DTYPE_BF16, 40, 231, 1, 64, false, false, { 154, 81 } },
        { DTYPE_F16, 66, 160, 1, 80, false, false, { 77, 3 } },
        { DTYPE_F16, 20, 154, 1, 160, false, false, { 100, 154 } },
        { DTYPE_F16, 77, 77, 1, 64, true, false, { 77, 50 } },
    };
    const int missing = device_open();
    if (missing)
        return missing;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (cuda->weight_dtypes >> cases[i].dtype & 1)
            check_case(&cases[i]);
    return check_done();
}
