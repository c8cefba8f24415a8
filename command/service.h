/* The protocol with systemd, or whatever starts the daemon in the same way: sd_notify(3),
 * sd_watchdog_enabled(3) and sd_listen_fds(3). If the daemon was started in another way, these
 * functions do nothing. Call them from one thread. */
#ifndef COMMAND_SERVICE_H
#define COMMAND_SERVICE_H

#include "base/error.h"

#include <stdbool.h>

/* Reads the environment variables, and removes those that child processes must not see. Call it
 * before threads run. */
void service_begin(void);

/* Sets *fd to the socket that was handed over, or -1. More than one socket is an error. */
bool service_take_socket(int *fd, struct error *err) __attribute__((warn_unused_result));

/* Sends "READY=1", "STATUS=..." and so on; several assignments are separated by newlines. */
void service_notify(const char *state);

/* Returns the interval, in milliseconds, at which service_notify("WATCHDOG=1") must be called; 0:
 * never. */
int service_watchdog_ms(void);

#endif
