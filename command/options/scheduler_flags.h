/* The option --scheduler, and one option for each scheduler option that a request may set. They are
 * made from the schedulers' own table (engine/scheduler/options.h): `timestep_spacing` becomes
 * `--timestep-spacing`. */
#ifndef COMMAND_OPTIONS_SCHEDULER_FLAGS_H
#define COMMAND_OPTIONS_SCHEDULER_FLAGS_H

#include "command/options/options.h"
#include "engine/scheduler/scheduler.h"

#define SCHEDULER_FLAGS_MAX (1 + SCHEDULER_OPTION_COUNT)

/* Returns rows for a command's table; the last row is zeroed. Static; they are made at the first
 * call, which must come before threads run. */
const struct option_spec *scheduler_flags(void);

/* Reads the given options into *out, which is zeroed first. ERROR_INVALID names the option, its
 * value and what is allowed. */
bool scheduler_flags_read(const struct options *options, struct scheduler_choice *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
