/* Tests the CPU's own report of its implementations, at the level that LATENTD_CPU asks for. The
 * report must equal this file's table for that level, and name for every layer the engine that
 * really packs the layer's weight. */
#include "kernels/cpu/layers.h"
#include "kernels/pack.h"
#include "tests/check.h"
#include "tests/kernels/cpu/level.h"

#define ONEDNN "oneDNN, bf16"
#define WINOGRAD "f32, Winograd's form"

/* What each level reports for bf16 weights. */
static const struct {
    const char *level, *linear, *conv3x3, *conv3x3_deep, *upsampling, *attention;
} known[] = {
    { "amx", ONEDNN, ONEDNN, ONEDNN, ONEDNN ", four phases", "AMX tiles" },
    { "avx512_bf16", ONEDNN, WINOGRAD, ONEDNN, ONEDNN ", four phases", "bf16 pairs" },
    { "avx512", "f32", WINOGRAD, WINOGRAD, WINOGRAD, "f32" },
    { "avx2", "f32", WINOGRAD, WINOGRAD, WINOGRAD, "f32" },
    { "portable", "f32", WINOGRAD, WINOGRAD, WINOGRAD, "f32" },
};

static const char *code_of(const struct implementation *list, const char *layer) {
    for (; list->layer; list++)
        if (strcmp(list->layer, layer) == 0)
            return list->code;
    return "(it is not in the list)";
}

static const char *engine_name(const struct layer_engine *engine) {
    return engine == &panels_engine ? "panels" : engine == &dnnl_engine ? "oneDNN" : "phases";
}

static const char *engine_named(const char *code) {
    return strcmp(code, ONEDNN) == 0               ? "oneDNN"
           : strcmp(code, "f32") == 0              ? "panels"
           : strcmp(code, WINOGRAD) == 0           ? "panels"
           : strstr(code, ", four phases") != NULL ? "phases"
                                                   : code;
}

/* Checks that the report names the engine that packs a weight of this layer. */
static void expect_engine(const struct implementation *list, const char *layer, int side,
    enum conv_kind kind, int64_t c_out, enum dtype dtype) {
    const struct kernels *cpu = kernels_cpu();
    const int64_t c_in = 16;
    const int64_t taps = side ? side * side : 1;
    float *zeros = calloc((size_t)(c_out * c_in * taps), sizeof(*zeros));
    struct tensor weight = tensor_4d(zeros, DTYPE_F32, c_out, c_in, side, side);
    struct packed *packed = NULL;
    struct error err = { 0 };
    if (!side)
        weight = tensor_2d(zeros, DTYPE_F32, c_out, c_in);
    bool ok = side ? cpu->conv2d_pack(&weight, NULL, kind, dtype, &packed, &err)
                   : cpu->linear_pack(&weight, NULL, false, dtype, &packed, &err);
    CHECK(ok, "%s: %s", layer, err.message);
    if (ok) {
        CHECK_STRING(
            engine_name(((struct layer *)packed)->engine), engine_named(code_of(list, layer)));
        cpu->packed_destroy(packed);
    }
    free(zeros);
}

static void expect_engines(const struct implementation *list, enum dtype dtype) {
    expect_engine(list, "linear", 0, CONV_1X1, 64, dtype);
    expect_engine(list, "conv 1x1 and stride 2", 1, CONV_1X1, 64, dtype);
    expect_engine(list, "conv 1x1 and stride 2", 3, CONV_3X3_DOWN, 64, dtype);
    expect_engine(list, "conv 1x1 and stride 2", 3, CONV_3X3_DOWN_RIGHT, 64, dtype);
    expect_engine(list, "conv 3x3", 3, CONV_3X3, 1264, dtype);
    expect_engine(list, "conv 3x3 to 1280 channels and more", 3, CONV_3X3, 1280, dtype);
    expect_engine(list, "upsampling", 3, CONV_3X3_UP, 64, dtype);
}

int main(void) {
    if (level_is_missing())
        return 77;
    const struct kernels *cpu = kernels_cpu();
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const enum dtype dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
        const struct implementation *list = cpu->implementations(dtype);
        size_t i = 0;
        while (i < sizeof(known) / sizeof(known[0]) &&
               strcmp(known[i].level, code_of(list, "level")) != 0)
            i++;
        CHECK(i < sizeof(known) / sizeof(known[0]), "%s", code_of(list, "level"));
        CHECK_STRING(code_of(list, "level"), cpu_level()->name);
        for (const struct implementation *line = list; line->layer; line++)
            printf("%s: %s: %s\n", dtype_name(dtype), line->layer, line->code);
        CHECK_STRING(code_of(list, "linear"), bf16 ? known[i].linear : "f32");
        CHECK_STRING(code_of(list, "conv 1x1 and stride 2"), bf16 ? known[i].linear : "f32");
        CHECK_STRING(code_of(list, "conv 3x3"), bf16 ? known[i].conv3x3 : WINOGRAD);
        CHECK_STRING(code_of(list, "conv 3x3 to 1280 channels and more"),
            bf16 ? known[i].conv3x3_deep : WINOGRAD);
        CHECK_STRING(code_of(list, "upsampling"), bf16 ? known[i].upsampling : WINOGRAD);
        CHECK_STRING(code_of(list, "attention"), bf16 ? known[i].attention : "f32");
        expect_engines(list, dtype);
    }
    return check_done();
}
