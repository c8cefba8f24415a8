/* --scheduler and a flag for every option that a request may set, made from the schedulers' own
 * table (engine/scheduler/options.h): `timestep_spacing` there is `--timestep-spacing` here. */
#ifndef COMMAND_SCHEDULER_FLAGS_H
#define COMMAND_SCHEDULER_FLAGS_H

#include "command/options.h"
#include "engine/scheduler/scheduler.h"

#define SCHEDULER_FLAGS_MAX (1 + SCHEDULER_OPTION_COUNT)

/* Rows for a command's table, ended by a zeroed one. Static; made at the first call, which comes
 * before there are threads. */
const struct option_spec *scheduler_flags(void);

/* *out is zeroed first. ERROR_INVALID names the flag, its value and what is allowed. */
bool scheduler_flags_read(const struct options *options, struct scheduler_choice *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
