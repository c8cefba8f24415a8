/* The name of an adapter. It stands for the file NAME.safetensors below a folder of adapters, so it
 * may have folders in it: "snow", "my lora", "style/snow". Names are UTF-8 and are compared byte by
 * byte. */
#ifndef MODELS_ADAPTER_ADAPTER_FILE_NAME_H
#define MODELS_ADAPTER_ADAPTER_FILE_NAME_H

#include "base/error.h"

#include <stdbool.h>

/* Checks a name: 1 to ADAPTER_NAME_MAX_BYTES of UTF-8 without control characters, bidirectional
 * controls and '\'; at most ADAPTER_NAME_PARTS_MAX parts, separated by '/', none of them empty or
 * beginning with '.'. So no name leads out of the folder, and temporary files, which begin with
 * '.', have none. Refuses "rescan", because POST /loras/rescan is a route, and an end like "@12",
 * which marks a training job's checkpoint. ERROR_INVALID names `param`. */
bool adapter_name_check(const char *param, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* Checks a name like adapter_name_check, but also accepts NAME@STEP, the name of a training job's
 * checkpoint. */
bool adapter_reference_check(const char *param, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the last part of the name, which AUTOMATIC1111 calls an adapter by; borrowed from
 * `name`. */
const char *adapter_name_stem(const char *name);

/* Returns the name as a file system sees it that ignores case and how accents are composed:
 * Unicode's canonical composition (UAX #15, form C) of the folded text. malloc'd; NULL if there is
 * no memory. `name` must be UTF-8. */
char *adapter_name_fold(const char *name);

#endif
