/* Replaces command/tune/tune_worker.c in fake_latentd. Its devices have candidates that are wrong,
 * fault, run out of memory or end the process, so that `latentd tune` must handle this. The model
 * path selects the device: "fake", "fake,faults", "fake,many", "fake,slow", "fake,late",
 * "fake,no_worker" (which ends at once) or "fake,cpu" (which has nothing to try). The file
 * FAKE_TUNE_LOG gets the process's id, then what was tried. */
#include "command/tune/tune.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The result of a candidate: its time, or how it fails. */
struct candidate {
    const char *device, *key, *name;
    double us;
    const char *fate; /* "right", "SIGNAL", "STATUS", "HANG", "skipped ..." or why it is wrong */
};

static const struct candidate table[] = {
    { "fake", "gemm linear bf16 n8 k8", "simt", 50, "right" },
    { "fake", "gemm linear bf16 n8 k8", "mma fast", 10, "error 0.5, allowed 0.01" },
    { "fake", "gemm linear bf16 n8 k8", "mma faults", 5, "SIGNAL" },
    { "fake", "gemm linear bf16 n8 k8", "mma good", 20, "right" },
    { "fake", "gemm linear bf16 n8 k8", "mma lost", 6, "STATUS" },
    { "fake", "attention bf16 d40", "flash", 0, "SIGNAL" },
    { "fake", "attention bf16 d40", "plain", 70, "right" },
    { "fake,faults", "one", "mma bad split 1", 1, "SIGNAL" },
    { "fake,faults", "one", "mma full split 1", 1, "skipped cudaMalloc of 9 MiB: full" },
    { "fake,faults", "one", "mma bad split 2", 1, "SIGNAL" },
    { "fake,faults", "one", "mma bad split 4", 1, "SIGNAL" },
    { "fake,faults", "one", "simt split 1", 9, "right" },
    { "fake,faults", "two", "mma bad split 1", 1, "SIGNAL" },
    { "fake,faults", "two", "mma full split 1", 5, "right" },
    { "fake,faults", "two", "simt split 1", 9, "right" },
    { "fake,faults", "three", "x 1", 1, "SIGNAL" },
    { "fake,faults", "three", "x 2", 1, "SIGNAL" },
    { "fake,faults", "three", "x 3", 1, "STATUS" },
    { "fake,faults", "three", "x 4", 1, "right" },
    { "fake,late", "one", "flash", 9, "right" },
    { "fake,late", "one", "plain", 1, "HANG" },
};

#define MANY 28

static struct candidate all[3 * MANY];
static int count;

/* "many" and "slow": three problems, in which each candidate is faster than the one before. The
 * first candidates of problem 1 are wrong. */
static void list(const char *device) {
    static char keys[3][8], names[MANY][8];
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].device, device) == 0)
            all[count++] = table[i];
    if (count)
        return;
    for (int p = 0; p < 3; p++)
        for (int c = 0; c < MANY; c++) {
            snprintf(keys[p], sizeof(keys[p]), "p%d", p);
            snprintf(names[c], sizeof(names[c]), "c%d", c);
            all[count++] = (struct candidate){ device, keys[p], names[c], 100 - c,
                p == 1 && c < 22 ? "error 2" : "right" };
        }
}

static void note(const char *what, int number) {
    const char *path = getenv("FAKE_TUNE_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (log) {
        fprintf(log, "%s %d\n", what, number);
        fclose(log);
    }
}

static const struct candidate *find(int problem, int candidate) {
    int p = -1;
    for (int i = 0, c = 0; i < count; i++, c++) {
        if (i == 0 || strcmp(all[i].key, all[i - 1].key) != 0) {
            p++;
            c = 0;
        }
        if (p == problem && c == candidate)
            return &all[i];
    }
    exit(9);
}

int tune_work(const struct tune_options *options, bool everything) {
    const char *device = options->pipeline.model_path;
    char line[64];
    int problem, candidate;
    if (strstr(device, "no_worker") || everything)
        return 1;
    if (strstr(device, "cpu")) {
        printf("nothing\tcpu\n");
        return 0;
    }
    note("worker", (int)getpid());
    list(device);
    printf("identity\tfake chip, build 1\n");
    for (int i = 0; i < count; i++) {
        if (i == 0 || strcmp(all[i].key, all[i - 1].key) != 0)
            printf("problem\t%s\n", all[i].key);
        printf("candidate\t%s\n", all[i].name);
    }
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) && sscanf(line, "%d\t%d", &problem, &candidate) == 2) {
        const struct candidate *c = find(problem, candidate);
        note(c->key, candidate);
        if (strstr(device, "slow"))
            usleep(30000);
        if (strcmp(c->fate, "SIGNAL") == 0)
            raise(SIGKILL);
        if (strcmp(c->fate, "STATUS") == 0)
            return 70;
        if (strcmp(c->fate, "HANG") == 0)
            pause();
        if (strcmp(c->fate, "right") == 0)
            printf("right\t%.3f\t0.001\t1e9\n", c->us);
        else if (strncmp(c->fate, "skipped ", 8) == 0)
            printf("skipped\t%s\n", c->fate + 8);
        else
            printf("wrong\t%s\n", c->fate);
        fflush(stdout);
    }
    return 0;
}
