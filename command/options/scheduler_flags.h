/* --scheduler and one flag for each option that a request may set, made from the schedulers' own
 * table (engine/scheduler/options.h): `timestep_spacing` there is `--timestep-spacing` here. */
#ifndef COMMAND_OPTIONS_SCHEDULER_FLAGS_H
#define COMMAND_OPTIONS_SCHEDULER_FLAGS_H

#include "command/options/options.h"
#include "engine/scheduler/scheduler.h"

#define SCHEDULER_FLAGS_MAX (1 + SCHEDULER_OPTION_COUNT)

/* Returns rows for a command's table; the last one is zeroed. Static; made at the first call, which
 * must come before threads start. */
const struct option_spec *scheduler_flags(void);

/* Zeroes *out first. ERROR_INVALID names the flag, its value and what is allowed. */
bool scheduler_flags_read(const struct options *options, struct scheduler_choice *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
