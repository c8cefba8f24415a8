/* A line of JSON for every request that was answered: when, who, what, how it ended and how long it
 * took. No keys, no bodies, no prompts. */
#ifndef SERVER_ACCESS_ACCESS_LOG_H
#define SERVER_ACCESS_ACCESS_LOG_H

#include "base/error.h"

#include <stdbool.h>

struct access_log;
struct exchange;

/* Appends to the file, which is made if it is not there; "-" is standard output. */
bool access_log_open(const char *path, struct access_log **out, struct error *err)
    __attribute__((warn_unused_result));
void access_log_close(struct access_log *log); /* NULL is fine */

/* Any thread; never waits: a line that the file does not take at once is lost, and the daemon's log
 * says how many were. */
void access_log_write(struct access_log *log, const struct exchange *exchange);

#endif
