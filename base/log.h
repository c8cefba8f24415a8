/* Writes one line per event to standard error: time, level, message. Any thread. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARNING, LOG_LEVEL_ERROR };

/* Sets the lowest level that is written; the default is LOG_LEVEL_INFO. Call before threads
 * start. */
void log_set_level(enum log_level level);
/* Puts "rank N: " before every message, if N is above 0: several processes write to one place. Call
 * before threads start. */
void log_set_rank(int rank);
/* Accepts "debug", "info", "warning" and "error". Returns false and leaves *out unchanged for any
 * other word. */
bool log_level_from_name(const char *name, enum log_level *out);

/* Limits the log lines that clients can cause: at most LOG_LIMIT_PER_S per second. Zero-initialise
 * it. Only one thread may use it at a time. */
#define LOG_LIMIT_PER_S 10
struct log_limit {
    int64_t second;
    int count, dropped;
};
/* Returns whether another line may be written. If so, *dropped is the number of lines suppressed
 * since the last one that was written. */
bool log_limit_allows(struct log_limit *limit, int *dropped);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)

#endif
