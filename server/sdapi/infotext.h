/* AUTOMATIC1111's infotext, the text that its pictures carry, back to the parameters in it:
 *
 *     a cat
 *     Negative prompt: a dog
 *     Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 512x512
 */
#ifndef SERVER_SDAPI_INFOTEXT_H
#define SERVER_SDAPI_INFOTEXT_H

#include <jansson.h>

/* An object of "Prompt", "Negative prompt", the parameters under their own names as strings, sizes
 * in two ("Size-1", "Size-2"), and AUTOMATIC1111's words for those that are missing: what its
 * parse_generation_parameters makes of any text. NULL when memory is short. */
json_t *sdapi_infotext_parse(const char *text);

#endif
