/* The calls of one step of Stable Diffusion 1.5 at 512x512 with guidance (two rows, bf16) and how
 * many kernels each launches, on the emulator as sm_90: every call is captured by itself and not
 * run, so that weights and activations need no numbers. They are compared with a table of lines
 *
 *   TIMES <tab> OPERATION <tab> KEY=VALUE ... <tab> LAUNCHES
 *
 * which wave_model.py reads, and all launches together with a ceiling. OPERATION begins with
 * "schedule_" where one call encodes the timesteps of LINES steps.
 *
 * usage: step_calls_test TABLE [--write] */
extern "C" {
#include "engine/drawing/sampler.h"
#include "models/unet.h"
}
#include "kernels/cuda/gemm/gemm.h"
#include "tests/check.h"
#include "tests/cuda-emulator/emulator.h"

#include <map>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

/* The number of launches of the present code; it may only fall. Two kernels of group_norm that
 * together are faster than one (measured on an H100) count as two. */
#define MOST_LAUNCHES 350

#define ROWS 2
#define SIDE 64   /* of the latents, for 512 px */
#define TOKENS 77 /* of the text */
#define LINES SAMPLER_TIME_LINES

static const struct unet_config *sd15(void) {
    static struct unet_config c;
    const int channels[] = { 320, 640, 1280, 1280 };
    c.sample_size = SIDE;
    c.in_channels = c.out_channels = 4;
    c.block_count = 4;
    for (int i = 0; i < 4; i++) {
        c.block_out_channels[i] = channels[i];
        c.down_has_attention[i] = i < 3;
        c.up_has_attention[i] = i > 0;
        c.heads[i] = 8;
    }
    c.layers_per_block = 2;
    c.cross_attention_dim = 768;
    c.norm_num_groups = 32;
    c.norm_eps = 1e-5f;
    c.flip_sin_to_cos = true;
    return &c;
}

/* ---- weights without numbers ---- */

static const struct kernels *cuda;
static void *nowhere; /* device memory that all weights share */

static bool is_given(
    void *user, const char *, int rank, const int64_t *shape, struct tensor *out, struct error *) {
    std::vector<float> *zeros = (std::vector<float> *)user;
    *out = {};
    out->dtype = DTYPE_F32;
    out->rank = rank;
    for (int i = 0; i < rank; i++)
        out->shape[i] = shape[i];
    if (zeros->size() < (size_t)tensor_elements(out))
        zeros->resize((size_t)tensor_elements(out));
    out->data = zeros->data();
    return true;
}

static struct packed *pretend(const struct tensor *weight, const struct tensor *bias) {
    struct cuda_packed *p = (struct cuda_packed *)calloc(1, sizeof(*p));
    if (!p)
        exit(1);
    p->base.n = weight->shape[0];
    p->base.k = weight->shape[1];
    p->dtype = DTYPE_BF16;
    p->weight = p->phases = nowhere;
    p->bias = bias ? (float *)nowhere : NULL;
    return &p->base;
}

static bool linear_pretend(const struct tensor *weight, const struct tensor *bias, bool geglu,
    enum dtype, struct packed **out, struct error *) {
    *out = pretend(weight, bias);
    (*out)->geglu = geglu;
    return true;
}

static bool conv2d_pretend(const struct tensor *weight, const struct tensor *bias,
    enum conv_kind kind, enum dtype, struct packed **out, struct error *) {
    *out = pretend(weight, bias);
    (*out)->is_conv = true;
    (*out)->kind = kind;
    return true;
}

static void forget(struct packed *packed) {
    free(packed);
}

/* ---- what is called ---- */

struct call {
    std::string line;
    int launches;
    bool every_step;
};
static std::vector<struct call> calls;
static bool encodes_schedule; /* whether the calls that follow encode a schedule */

static std::string text(const char *format, ...) {
    char buffer[256];
    va_list list;
    va_start(list, format);
    vsnprintf(buffer, sizeof(buffer), format, list);
    va_end(list);
    return buffer;
}

static long long at(const struct tensor *t, int i) {
    return (long long)t->shape[i];
}

static std::string describe(const struct linear_args *a) {
    const long long rows = at(a->x, 0), channels = at(a->x, a->x->rank - 1);
    return text("rows=%lld tokens=%lld n=%lld k=%lld geglu=%d residual=%d", rows,
        (long long)tensor_elements(a->x) / rows / channels, (long long)a->weight->n, channels,
        a->weight->geglu, a->residual != NULL);
}

static std::string describe(const struct conv2d_args *a) {
    const struct gemm_shape shape = gemm_shape_of_conv2d(a);
    return text(
        "rows=%lld h=%lld w=%lld n=%lld c_in=%lld taps=%d phases=%d residual=%d shortcut=%lld",
        at(a->x, 0), at(a->y, 1), at(a->y, 2), at(a->y, 3), at(a->x, 3), gemm_taps(&shape),
        gemm_is_phased(&shape) ? 4 : 1, a->residual != NULL, (long long)shape.k_shortcut);
}

static std::string describe(const struct group_norm_args *a) {
    return text("rows=%lld pixels=%lld channels=%lld groups=%d silu=%d joins=%d", at(a->y, 0),
        at(a->y, 1) * at(a->y, 2), at(a->y, 3), a->groups, a->silu, a->more != NULL);
}

static std::string describe(const struct layer_norm_args *a) {
    return text("rows=%lld tokens=%lld channels=%lld", at(a->x, 0), at(a->x, 1), at(a->x, 2));
}

static std::string describe(const struct attention_args *a) {
    return text("rows=%lld queries=%lld keys=%lld heads=%d head_dim=%d", at(a->q, 0), at(a->q, 1),
        at(a->k, 1), a->heads, a->head_dim);
}

static std::string describe(const struct timestep_embedding_args *a) {
    return text("rows=%lld elements=%lld", at(a->y, 0), (long long)tensor_elements(a->y));
}

/* Of small operations only the number of elements written matters. */
template <class ARGS> static std::string describe(const ARGS *a) {
    return text("elements=%lld", (long long)tensor_elements(a->y));
}

template <class ARGS>
static bool capture(const char *name, bool (*entry)(const ARGS *args, struct error *err),
    const ARGS *args, struct error *err) {
    struct recording *recording = NULL;
    if (!cuda->recorder->begin(err))
        return false;
    if (!entry(args, err)) {
        (void)cuda->recorder->end(NULL, NULL);
        return false;
    }
    if (!cuda->recorder->end(&recording, err))
        return false;
    calls.push_back(
        { (encodes_schedule ? "schedule_" : "") + std::string(name) + "\t" + describe(args),
            cuda->recorder->launches(recording), !encodes_schedule });
    cuda->recorder->destroy(recording);
    return true;
}

#define CAPTURED(name)                                                                             \
    static bool captured_##name(const struct name##_args *args, struct error *err) {               \
        return capture(#name, cuda->name, args, err);                                              \
    }
#define CALLED_BY_UNET(X)                                                                          \
    X(linear)                                                                                      \
    X(conv2d)                                                                                      \
    X(group_norm)                                                                                  \
    X(layer_norm)                                                                                  \
    X(attention)                                                                                   \
    X(timestep_embedding)                                                                          \
    X(embedding)                                                                                   \
    X(add)                                                                                         \
    X(concat)                                                                                      \
    X(convert)                                                                                     \
    X(geglu)
CALLED_BY_UNET(CAPTURED)

static void run_step(struct compute *c, void *user) {
    const struct unet *unet = (const struct unet *)user;
    struct tensor latents = compute_tensor_4d(c, DTYPE_F32, ROWS, SIDE, SIDE, 4);
    struct tensor y = compute_tensor_4d(c, DTYPE_F32, ROWS, SIDE, SIDE, 4);
    struct tensor timesteps = compute_tensor_1d(c, DTYPE_F32, LINES);
    struct tensor table = compute_tensor_2d(c, DTYPE_BF16, LINES, unet_time_channels(unet));
    struct tensor ids = compute_tensor_2d(c, DTYPE_I32, ROWS, unet_time_pieces(unet));
    struct tensor kv = compute_tensor_3d(c, DTYPE_BF16, ROWS, TOKENS, unet_context_channels(unet));
    encodes_schedule = true;
    unet_encode_timesteps(unet, c, &timesteps, &table);
    encodes_schedule = false;
    unet_forward_timed(unet, c, &latents, &table, &ids, &kv, NULL, &y);
}

/* Lists the calls of a step. */
static bool list_calls(struct error *err) {
    struct kernels pretending = *cuda;
    pretending.linear_pack = linear_pretend;
    pretending.conv2d_pack = conv2d_pretend;
    pretending.packed_destroy = forget;
#define SET(name) pretending.name = captured_##name;
    CALLED_BY_UNET(SET)
    std::vector<float> zeros;
    struct weights w = {};
    w.get = is_given;
    w.user = &zeros;
    w.kernels = &pretending;
    w.dtype = DTYPE_BF16;
    struct unet *unet = NULL;
    struct arena *arena = NULL;
    struct compute c = {};
    c.kernels = &pretending;
    bool ok = cuda->memory->alloc(MEMORY_WEIGHTS, 4096, &nowhere, err) &&
              unet_create(sd15(), &w, &unet, err) && arena_create(cuda->memory, &arena, err);
    c.arena = arena;
    ok = ok && compute_plan(&c, run_step, unet, err);
    if (ok)
        run_step(&c, unet);
    if (ok && !compute_ok(&c)) {
        *err = c.error;
        ok = false;
    }
    arena_destroy(arena);
    unet_destroy(unet);
    return ok;
}

/* Writes equal calls as one line, in the order of their first calls. */
static std::string table(int *launches) {
    std::vector<std::string> order;
    std::map<std::string, int> times;
    *launches = 0;
    for (const struct call &c : calls) {
        const std::string line = c.line + "\t" + std::to_string(c.launches);
        if (!times[line]++)
            order.push_back(line);
        *launches += c.every_step ? c.launches : 0;
    }
    std::string all;
    for (const std::string &line : order)
        all += std::to_string(times[line]) + "\t" + line + "\n";
    return all;
}

static std::string contents(const char *path) {
    std::string all;
    char buffer[4096];
    FILE *file = fopen(path, "r");
    for (size_t n; file && (n = fread(buffer, 1, sizeof(buffer), file)) > 0;)
        all.append(buffer, n);
    if (file)
        fclose(file);
    return all;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        printf("usage: step_calls_test TABLE [--write]\n");
        return 2;
    }
    struct error err = {};
    setenv("LATENTD_TUNER_CACHE", "/nonexistent/tuner.txt", 1);
    emulator_set_capability(90);
    emulator_set_multiprocessors(132);
    cuda = kernels_cuda(0, &err);
    if (!cuda || !list_calls(&err)) {
        CHECK(false, "%s", err.message);
        return check_done();
    }
    int launches;
    const std::string now = table(&launches);
    printf("%zu calls, %d launches\n", calls.size(), launches);
    CHECK(launches <= MOST_LAUNCHES, "%d are allowed", MOST_LAUNCHES);
    if (argc == 3) {
        FILE *file = fopen(argv[1], "w");
        CHECK(file && fputs(now.c_str(), file) >= 0 && fclose(file) == 0, "%s", argv[1]);
        return check_done();
    }
    CHECK(now == contents(argv[1]),
        "a step's calls are not those of %s any more; --write brings it up to date:\n%s", argv[1],
        now.c_str());
    return check_done();
}
