/* Runs planted faults, each in a child process, and reads what the child prints to stderr. */
#ifndef TESTS_CUDA_EMULATOR_PLANTED_H
#define TESTS_CUDA_EMULATOR_PLANTED_H

#include "tests/check.h"
#include "tests/cuda-emulator/emulator.h"

#include <sys/wait.h>
#include <unistd.h>

/* Runs plant(fault) in a child process and stores at most `size` characters of what it printed
 * before it ended. */
static void planted_output(void (*plant)(int), int fault, char *text, size_t size) {
    int ends[2], status;
    size_t used = 0;
    CHECK(pipe(ends) == 0, "pipe");
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        emulator_set_seed((uint64_t)fault + 1);
        plant(fault);
        _exit(0);
    }
    close(ends[1]);
    ssize_t got;
    while (used < size - 1 && (got = read(ends[0], text + used, size - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    close(ends[0]);
    CHECK(waitpid(child, &status, 0) == child && status != 0, "fault %d was not noticed", fault);
}

#endif
