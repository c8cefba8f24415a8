/* Stands in for server/command/tune_worker.c in fake_latentd: a device of two problems, some of
 * whose candidates are wrong, fault, hang up or end the process, so that `latentd tune` has to
 * cope. The model path says more: "fake,no_worker" ends at once. */
#include "server/command/tune.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What becomes of a candidate: its time, or how it fails. */
static const struct {
    const char *key, *name;
    double us;
    const char *fate; /* "right", a reason for wrong, "SIGNAL" or "STATUS" */
} candidates[] = {
    { "gemm linear bf16 n8 k8", "simt", 50, "right" },
    { "gemm linear bf16 n8 k8", "mma fast", 10, "error 0.5, allowed 0.01" },
    { "gemm linear bf16 n8 k8", "mma faults", 5, "SIGNAL" },
    { "gemm linear bf16 n8 k8", "mma good", 20, "right" },
    { "gemm linear bf16 n8 k8", "mma lost", 6, "STATUS" },
    { "attention bf16 d40", "flash", 0, "SIGNAL" },
    { "attention bf16 d40", "plain", 70, "right" },
};

int tune_work(const struct tune_options *options, int first) {
    if (strstr(options->pipeline.model_path, "no_worker"))
        return 1;
    printf("identity\tfake chip, build 1\n");
    for (int i = first; i < (int)(sizeof(candidates) / sizeof(candidates[0])); i++) {
        printf("trying\t%d\t%s\t%s\n", i, candidates[i].key, candidates[i].name);
        fflush(stdout);
        if (strcmp(candidates[i].fate, "SIGNAL") == 0)
            raise(SIGKILL);
        if (strcmp(candidates[i].fate, "STATUS") == 0)
            return 70;
        if (strcmp(candidates[i].fate, "right") == 0)
            printf("right\t%d\t%.3f\t0.001\t1e9\n", i, candidates[i].us);
        else
            printf("wrong\t%d\t%s\n", i, candidates[i].fate);
    }
    printf("end\n");
    return 0;
}
