/* A line of the log stays one line of text, whatever a message quotes. */
#include "base/log.h"

#include "tests/check.h"

#include <string.h>
#include <unistd.h>

int main(void) {
    char line[1024] = "";
    int pipe_ends[2];
    const int before = dup(STDERR_FILENO);
    CHECK(before >= 0 && pipe(pipe_ends) == 0 && dup2(pipe_ends[1], STDERR_FILENO) >= 0,
        "cannot make a pipe");
    log_warning("%s", "a\nb\r\033[2Jc\177 \xc2\x9b"
                      "1m \xc3\xa9t\xc3\xa9 \xe6\x97\xa5.safetensors");
    dup2(before, STDERR_FILENO);
    const ssize_t got = read(pipe_ends[0], line, sizeof(line) - 1);
    CHECK(got > 0, "nothing was written");
    printf("%s", line);
    const char *message = strstr(line, " warning ");
    CHECK_STRING(message ? message : "",
        " warning a?b??[2Jc? ??1m \xc3\xa9t\xc3\xa9 \xe6\x97\xa5.safetensors\n");
    return check_done();
}
