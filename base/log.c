#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

static enum log_level threshold = LOG_LEVEL_INFO;

void log_set_level(enum log_level level) {
    threshold = level;
}

void log_line(enum log_level level, const char *format, ...) {
    static const char *const names[] = { "debug", "info", "warning", "error" };
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
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, sizeof(line) - (size_t)used, format, args);
    va_end(args);
    /* One call, so that lines of different threads do not mix. */
    fprintf(stderr, "%s\n", line);
}
