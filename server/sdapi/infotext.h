/* Parses AUTOMATIC1111's infotext, the text in its pictures, back into parameters:
 *
 *     a cat
 *     Negative prompt: a dog
 *     Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 512x512
 */
#ifndef SERVER_SDAPI_INFOTEXT_H
#define SERVER_SDAPI_INFOTEXT_H

#include <jansson.h>

/* Returns an object with "Prompt", "Negative prompt" and the parameters as strings under their own
 * names. A size is split in two ("Size-1", "Size-2"). Missing parameters get AUTOMATIC1111's
 * defaults. Accepts any text, as AUTOMATIC1111's parse_generation_parameters does. NULL when memory
 * is short. */
json_t *sdapi_infotext_parse(const char *text);

#endif
