/* The protocol with systemd, or whatever starts the daemon in the same way: sd_notify(3),
 * sd_watchdog_enabled(3) and sd_listen_fds(3). Without it these functions do nothing. Call them
 * from one thread. */
#ifndef COMMAND_SERVICE_H
#define COMMAND_SERVICE_H

#include "base/error.h"

#include <stdbool.h>

/* Reads the environment, and removes the variables that child processes must not see. Call it
 * before threads start. */
void service_begin(void);

/* Sets *fd to the socket handed over, or -1; more than one is an error. */
bool service_take_socket(int *fd, struct error *err) __attribute__((warn_unused_result));

/* Sends "READY=1", "STATUS=..." and so on; several are separated by newlines. */
void service_notify(const char *state);

/* Returns how often service_notify("WATCHDOG=1") must be called, in milliseconds; 0: never. */
int service_watchdog_ms(void);

#endif
