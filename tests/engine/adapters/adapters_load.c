/* Measures how long an uploaded file takes from its last byte until it can be used (disk time shown
 * separately), and what working copies cost. It prints the figures and checks nothing.
 *
 * usage: adapters_load MODEL FILE [TIMES]: sends FILE again and again to a registry over MODEL. */
#include "base/monotonic.h"
#include "engine/adapters/adapters.h"
#include "engine/request/request.h"
#include "kernels/devices.h"
#include "models/text_encoder.h"
#include "models/unet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMES_MAX 1000

static void must(bool ok, const char *what) {
    if (!ok) {
        printf("cannot measure: %s\n", what);
        exit(1);
    }
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_ms(const char *what, double *seconds, int count) {
    qsort(seconds, (size_t)count, sizeof(*seconds), by_value);
    printf("%s: median %.2f ms, least %.2f, most %.2f\n", what, 1e3 * seconds[count / 2],
        1e3 * seconds[0], 1e3 * seconds[count - 1]);
}

static double resident_mib(void) {
    long pages = 0, ignored;
    FILE *f = fopen("/proc/self/statm", "r");
    must(f && fscanf(f, "%ld %ld", &ignored, &pages) == 2, "no /proc");
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void send(struct adapters *adapters, const char *bytes, size_t size, double *load_s,
    double *processor_s, double *sync_s, struct adapter_info *info) {
    struct error err = { 0 };
    struct adapter_upload *upload;
    must(adapter_upload_begin(adapters, "measured", size, &upload, &err) &&
             adapter_upload_write(upload, bytes, size, &err),
        err.message);
    const double begun = monotonic_seconds(), worked = processor_seconds();
    must(adapter_upload_end(upload, info, &err), err.message);
    *processor_s = processor_seconds() - worked;
    *load_s = monotonic_seconds() - begun - info->sync_s;
    *sync_s = info->sync_s;
}

static double resolve(struct adapters *adapters, double weight) {
    struct error err = { 0 };
    struct lora_choice choice = { "measured", weight, weight };
    struct adapter_set *set;
    const double begun = monotonic_seconds();
    must(adapters_resolve(adapters, &choice, 1, true, &set, &err), err.message);
    const double seconds = monotonic_seconds() - begun;
    adapter_set_release(set);
    return seconds;
}

static void measure(struct adapters *adapters, const char *file, int times) {
    static double load_s[TIMES_MAX], processor_s[TIMES_MAX], sync_s[TIMES_MAX];
    static double first_s[TIMES_MAX], again_s[TIMES_MAX];
    struct adapter_info info = { 0 };
    FILE *f = fopen(file, "rb");
    must(f && fseek(f, 0, SEEK_END) == 0, file);
    const size_t size = (size_t)ftell(f);
    char *bytes = malloc(size);
    rewind(f);
    must(bytes && fread(bytes, 1, size, f) == size, file);
    fclose(f);
    for (int i = 0; i < times; i++) {
        adapter_info_finish(&info);
        send(adapters, bytes, size, &load_s[i], &processor_s[i], &sync_s[i], &info);
        first_s[i] = resolve(adapters, 1);
        again_s[i] = resolve(adapters, 1);
    }
    printf("%.1f MB, %zu layers, %.1f MB in memory, %zu tensors without a place\n",
        (double)size / 1e6, info.matched, (double)info.resident_bytes / 1e6, info.unmatched_count);
    print_ms("last byte to usable", load_s, times);
    print_ms("of that the processor's work", processor_s, times);
    print_ms("kept by the disk", sync_s, times);
    print_ms("a set of it, the first time", first_s, times);
    print_ms("a set of it, again", again_s, times);
    printf("resident %.0f MiB\n", resident_mib());
    adapter_info_finish(&info);
    free(bytes);
}

int main(int argc, char **argv) {
    const int times = argc == 4 ? atoi(argv[3]) : 20;
    if ((argc != 3 && argc != 4) || times < 1 || times > TIMES_MAX) {
        fprintf(stderr, "usage: %s MODEL FILE [TIMES]\n", argv[0]);
        return 2;
    }
    struct error err = { 0 };
    struct checkpoint *checkpoint;
    struct text_encoder *text_encoder;
    struct unet *unet;
    struct adapters *adapters;
    char folder[] = "adapters_load-XXXXXX", file[64];
    const struct kernels *kernels = kernels_cpu();
    must(checkpoint_open(argv[1], NULL, &checkpoint, &err), err.message);
    const struct weights text_weights = weights_from_checkpoint(
        checkpoint, COMPONENT_TEXT_ENCODER, kernels, kernels->default_dtype);
    const struct weights unet_source = weights_from_checkpoint(
        checkpoint, COMPONENT_UNET, kernels, kernels->default_dtype);
    must(text_encoder_create(
             checkpoint_text_encoder_config(checkpoint), &text_weights, &text_encoder, &err) &&
             unet_create(checkpoint_unet_config(checkpoint), &unet_source, &unet, &err),
        err.message);
    must(mkdtemp(folder) != NULL, "no folder here");
    const struct adapters_options options = { .folder = folder };
    const struct adapters_base base = { checkpoint, kernels, kernels->default_dtype,
        unet_weights(unet), text_encoder_weights(text_encoder) };
    must(adapters_create(&options, &base, &adapters, &err), err.message);
    printf("%s as %s, resident %.0f MiB\n", argv[1], dtype_name(base.dtype), resident_mib());
    measure(adapters, argv[2], times);
    adapters_destroy(adapters);
    unet_destroy(unet);
    text_encoder_destroy(text_encoder);
    snprintf(file, sizeof(file), "%s/measured.safetensors", folder);
    unlink(file);
    rmdir(folder);
    return 0;
}
