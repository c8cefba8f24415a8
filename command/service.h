/* What systemd, or whatever starts the daemon in its way, is told and hands over: sd_notify(3),
 * sd_watchdog_enabled(3) and sd_listen_fds(3). Without it all of this does nothing. One thread. */
#ifndef COMMAND_SERVICE_H
#define COMMAND_SERVICE_H

#include "base/error.h"

#include <stdbool.h>

/* Reads the environment, and takes from it what is not for the processes that we start. Before
 * there are threads. */
void service_begin(void);

/* The socket that was handed over, or -1; more than one are an error. */
bool service_take_socket(int *fd, struct error *err) __attribute__((warn_unused_result));

/* "READY=1", "STATUS=..." and so on; lines with newlines between. */
void service_notify(const char *state);

/* How often service_notify("WATCHDOG=1") has to be said, in milliseconds; 0: never. */
int service_watchdog_ms(void);

#endif
