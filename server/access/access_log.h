/* The access log: one line of JSON for every answered request. It says when the request came, who
 * sent it, what it asked for, how it ended and how long it took. No keys, no bodies, no prompts. */
#ifndef SERVER_ACCESS_ACCESS_LOG_H
#define SERVER_ACCESS_ACCESS_LOG_H

#include "base/error.h"

#include <stdbool.h>

struct access_log;
struct exchange;

/* Appends to the file, creating it if needed; "-" is standard output. */
bool access_log_open(const char *path, struct access_log **out, struct error *err)
    __attribute__((warn_unused_result));
void access_log_close(struct access_log *log); /* NULL is fine */

/* Any thread; never waits. A line that the file does not accept at once is lost; the daemon's log
 * reports the number of lost lines. */
void access_log_write(struct access_log *log, const struct exchange *exchange);

#endif
