#include "base/log.h"

#include "base/monotonic.h"
#include "base/text/secrets.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *const names[] = { "debug", "info", "warning", "error" };
static enum log_level threshold = LOG_LEVEL_INFO;
static int own_rank;

void log_set_level(enum log_level level) {
    threshold = level;
}

void log_set_rank(int rank) {
    own_rank = rank;
}

bool log_level_from_name(const char *name, enum log_level *out) {
    for (int i = 0; i < (int)(sizeof(names) / sizeof(names[0])); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    return false;
}

bool log_limit_allows(struct log_limit *limit, int *dropped) {
    const int64_t second = monotonic_ms() / 1000;
    if (second != limit->second) {
        limit->second = second;
        limit->count = 0;
    }
    if (limit->count >= LOG_LIMIT_PER_S) {
        limit->dropped++;
        return false;
    }
    limit->count++;
    *dropped = limit->dropped;
    limit->dropped = 0;
    return true;
}

/* Replaces control characters by '?': a message may quote a client or a file's name, and must stay
 * one line that does nothing to a terminal. C1 controls are 0xc2 0x80 to 0x9f in UTF-8. */
static void replace_controls(char *line) {
    for (unsigned char *p = (unsigned char *)line; *p; p++) {
        if (*p < 0x20 || *p == 0x7f)
            *p = '?';
        else if (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0)
            p[0] = p[1] = '?';
    }
}

void log_line(enum log_level level, const char *format, ...) {
    if (level < threshold)
        return;
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    char line[1024];
    int used = snprintf(line, sizeof(line), "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s ",
        utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
        now.tv_nsec / 1000000, names[level]);
    if (own_rank > 0)
        used += snprintf(line + used, sizeof(line) - (size_t)used, "rank %d: ", own_rank);
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, sizeof(line) - (size_t)used, format, args);
    va_end(args);
    replace_controls(line);
    secrets_mask(line); /* any message may quote a client */
    /* One call per line, so that lines of different threads do not mix. */
    fprintf(stderr, "%s\n", line);
}
