/* latentd: one executable with a command for each task: serving, drawing, training, inspecting and
 * so on. */
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

/* Iterations of OpenMP's waiting loop; some microseconds in total. */
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
    { "train", train_main, "train a LoRA or all of the UNet on a folder of pictures" },
    { "key", key_main, "make an API key for a daemon" },
    { "bench", bench_main, "measure how long each stage of drawing takes on this machine" },
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
        "  latentd man              the same as a page for man(1)\n"
        "  latentd completion bash|zsh\n"
        "  latentd --version\n\n"
        "A first picture, with the checkpoint that comes with the source:\n"
        "  latentd generate --model share/tiny-sd --prompt 'a red house on green hills' \\\n"
        "      --guidance-scale 2.5 -o house.png\n");
}

/* Starts the program again with a short spin for OpenMP's threads, unless the user has chosen one.
 *
 * By default GNU OpenMP's threads spin for about a millisecond at every barrier. If another process
 * uses the processors too, each barrier waits for a thread that is not scheduled, while the
 * spinning threads use up the processor time that it needs. In such a case, a picture that normally
 * takes one second took forty. The library reads this setting before main, so the program must be
 * started again. */
static void start_with_short_spin(char **argv) {
    char path[PATH_MAX];
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (length <= 0 || setenv("GOMP_SPINCOUNT", SPIN_COUNT, 1) != 0)
        return;
    path[length] = 0;
    execv(path, argv); /* if it fails, the spin stays long */
}

/* Opens descriptors 0 to 2 if they are closed. Otherwise the next file or socket would get such a
 * number, and printed or logged text would be written to it. They are opened with the wrong access
 * mode, so that using them still fails. */
static bool open_standard_descriptors(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            return false;
    return true;
}

/* Returns the status, or 1 if some of the output was not written. */
static int end_output(int status) {
    errno = 0;
    if (fflush(stdout) == 0) {
        if (!ferror(stdout))
            return status;
        /* An earlier write failed, but its reason is lost. One more write fails for the same
         * reason. */
        clearerr(stdout);
        if (putchar('\n') == '\n')
            (void)fflush(stdout);
    }
    fprintf(stderr, "latentd: standard output could not be written%s%s\n", errno ? ": " : "",
        errno ? strerror(errno) : "");
    return status ? status : 1;
}

/* Prints the help of every command in the given form. */
static int print_commands(const char *form) {
    int status = 0;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]) && status == 0; i++) {
        char name[16], option[16], *arguments[] = { name, option, NULL };
        snprintf(name, sizeof(name), "%s", commands[i].name);
        snprintf(option, sizeof(option), "--help=%s", form);
        status = commands[i].run(2, arguments);
    }
    return status;
}

static int print_manual(void) {
    printf(".TH LATENTD 1 \"\" \"latentd %s\" \"User Commands\"\n"
           ".SH NAME\nlatentd \\- draw pictures from text with Stable Diffusion\n"
           ".SH SYNOPSIS\n\\fBlatentd\\fR \\fICOMMAND\\fR [\\fIoptions\\fR]\n"
           ".SH DESCRIPTION\n"
           "latentd loads a Stable Diffusion 1.x or 2.x checkpoint once and draws over HTTP; its\n"
           "other commands draw, train, measure and inspect without a daemon.\n"
           ".SH COMMANDS\n",
        LATENTD_VERSION);
    const int status = print_commands("man");
    printf(
        ".SH EXIT STATUS\n0 for success, 1 for a failure, 2 for a wrong command line, 70 where a\n"
        "device was lost and a new start is worth a try.\n"
        ".SH FILES\n.TP\n\\fI/etc/latentd/latentd.json\\fR\noptions of the system's service\n"
        ".TP\n\\fI/etc/latentd/api\\-keys\\fR\nwho may call it\n");
    return status;
}

static int print_bash_completion(void) {
    printf("# bash completion for latentd\n_latentd() {\n"
           "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    local options='' words='' files='' commands='help man completion");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        printf(" %s", commands[i].name);
    printf("'\n    if [ \"$COMP_CWORD\" = 1 ]; then\n"
           "        mapfile -t COMPREPLY < <(compgen -W \"$commands --help --version\" -- "
           "\"$current\")\n"
           "        return\n    fi\n    case ${COMP_WORDS[1]} in\n"
           "    help) words=$commands ;;\n    completion) words='bash zsh' ;;\n");
    const int status = print_commands("bash");
    printf("    esac\n"
           "    if [ -n \"$words\" ]; then\n"
           "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
           "    elif [ -n \"$files\" ] || [[ $current != -* ]]; then\n"
           "        compopt -o filenames 2>/dev/null\n"
           "        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
           "    else\n"
           "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$current\")\n"
           "    fi\n}\ncomplete -F _latentd latentd\n");
    return status;
}

static int print_zsh_completion(void) {
    printf(
        "#compdef latentd\nif (( CURRENT == 2 )); then\n    local -a commands\n    commands=(\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        printf("        '%s:%s'\n", commands[i].name, commands[i].summary);
    printf("        'help:every option of a command'\n    )\n"
           "    _describe command commands\n    return\nfi\n"
           "shift words\n(( CURRENT-- ))\ncase $words[1] in\n");
    const int status = print_commands("zsh");
    printf("esac\n");
    return status;
}

static int print_forms(const char *name, const char *shell) {
    if (strcmp(name, "man") == 0)
        return print_manual();
    if (strcmp(shell, "bash") == 0)
        return print_bash_completion();
    if (strcmp(shell, "zsh") == 0)
        return print_zsh_completion();
    fprintf(stderr, "usage: latentd completion bash|zsh\n");
    return 2;
}

static int run_command(int argc, char **argv) {
    char help_option[] = "--help", *help_argv[] = { NULL, help_option, NULL };
    const char *name = argc > 1 ? argv[1] : "";
    const bool asks_help = strcmp(name, "help") == 0;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (asks_help && argc == 2)) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(name, "man") == 0 || strcmp(name, "completion") == 0)
        return print_forms(name, argc > 2 ? argv[2] : "");
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
    /* Seeds the hashes of JSON keys once, before threads run. */
    json_object_seed(0);
    return end_output(run_command(argc, argv));
}
