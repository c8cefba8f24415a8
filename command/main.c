/* latentd: one executable, a command each for serving, drawing and looking. */
#include "command/command.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Turns of a waiting loop, some microseconds in all. */
#define SPIN_COUNT "1000"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    { "serve", serve_main, "load a checkpoint once and draw over HTTP" },
    { "generate", generate_main, "draw from the command line, without a daemon" },
    { "inspect", inspect_main, "show what is in a checkpoint or a LoRA file" },
    { "lora", lora_main, "merge LoRAs into a checkpoint" },
    { "train", train_main, "train a LoRA on a folder of pictures" },
    { "key", key_main, "make an API key for a daemon" },
    { "bench", bench_main, "time the parts of a picture on this machine" },
    { "tune", tune_main, "measure which kernels are the fastest on this GPU" },
};

static void print_help(FILE *out) {
    fprintf(out, "latentd draws pictures from text with Stable Diffusion checkpoints.\n\n"
                 "usage: latentd COMMAND [options]\n\n"
                 "commands:\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(out, "  %-10s%s\n", commands[i].name, commands[i].summary);
    fprintf(out,
        "\n"
        "  latentd help COMMAND     every option of a command, with examples\n"
        "  latentd --version\n\n"
        "A first picture, with the checkpoint that comes with the source:\n"
        "  latentd generate --model share/tiny-sd --prompt 'a red house on green hills' \\\n"
        "      --guidance-scale 2.5 -o house.png\n");
}

/* Starts the program again with a short spin for OpenMP's threads, unless the user has chosen one.
 *
 * By default GNU OpenMP's threads spin for about a millisecond at every barrier. Where another
 * process wants the processors too, each barrier then waits for a thread that does not run, while
 * its siblings burn the time that it needs: a picture of one second was seen to take forty. The
 * library reads this setting before main, hence the second start. */
static void start_with_short_spin(char **argv) {
    char path[PATH_MAX];
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (length <= 0 || setenv("GOMP_SPINCOUNT", SPIN_COUNT, 1) != 0)
        return;
    path[length] = 0;
    execv(path, argv); /* if it fails, the long spin it is */
}

/* Without them, the next file or socket that is opened gets a number below 3, and what is printed
 * or logged goes into it. They are opened the wrong way round, so that using them still fails. */
static bool open_standard_descriptors(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            return false;
    return true;
}

/* The status, or 1 if what was printed did not all arrive. */
static int end_output(int status) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "latentd: standard output could not be written%s%s\n", errno ? ": " : "",
        errno ? strerror(errno) : "");
    return status ? status : 1;
}

static int run_command(int argc, char **argv) {
    char help_option[] = "--help", *help_argv[] = { NULL, help_option, NULL };
    const char *name = argc > 1 ? argv[1] : "";
    const bool asks_help = strcmp(name, "help") == 0;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (asks_help && argc == 2)) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(name, "--version") == 0) {
        printf("latentd %s\n", LATENTD_VERSION);
        return 0;
    }
    if (asks_help) {
        name = help_argv[0] = argv[2];
        argc = 2;
        argv = help_argv;
    } else {
        argc--;
        argv++;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc, argv);
    if (*name)
        fprintf(stderr, "latentd: there is no command %s\n\n", name);
    print_help(stderr);
    return 2;
}

int main(int argc, char **argv) {
    if (!open_standard_descriptors())
        return 1;
    start_with_short_spin(argv);
    /* Hashes of JSON keys are seeded once, before there are threads. */
    json_object_seed(0);
    return end_output(run_command(argc, argv));
}
