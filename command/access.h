/* Who may reach the daemon, as its options say it. */
#ifndef COMMAND_ACCESS_H
#define COMMAND_ACCESS_H

#include "base/error.h"
#include "server/access/keys.h"

#include <stdbool.h>

/* The keys in the file, or, where `path` is NULL, in the credential api-keys that systemd hands
 * over; *out is NULL where there is neither, or the credential holds none. */
bool access_read_keys(const char *path, struct api_keys **out, struct error *err)
    __attribute__((warn_unused_result));

#endif
