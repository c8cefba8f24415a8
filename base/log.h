/* One line to standard error per event: time, level, message. Safe from any thread. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARNING, LOG_LEVEL_ERROR };

/* Lines below this level are dropped; the default is LOG_LEVEL_INFO. Set before threads start. */
void log_set_level(enum log_level level);
/* "debug", "info", "warning", "error"; false, with *out untouched, for any other word. */
bool log_level_from_name(const char *name, enum log_level *out);

/* A bound on lines that a client can cause: LOG_LIMIT_PER_S a second. Zeroed to begin; the caller
 * sees to it that one thread at a time uses it. */
#define LOG_LIMIT_PER_S 10
struct log_limit {
    int64_t second;
    int count, dropped;
};
/* Whether one more line may be written; *dropped is how many were not since the last that was. */
bool log_limit_allows(struct log_limit *limit, int *dropped);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)

#endif
