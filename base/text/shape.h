/* A shorthand for JSON schemas (2020-12), in which the tables of routes say what bodies hold:
 *
 *   {id: string, seed?: integer, nsfw: boolean|null, images: [Image], targets: {*: integer}, ...}
 *
 * Types are string, integer, number, boolean, null, object, any, and binary for the bytes of a
 * file. [T] is a list. 'queued'|'running' are words. A key with ? may be missing. {*: T} has keys
 * of any name. Other keys are not allowed unless the object ends with "...". A name with a capital
 * letter is one of components/schemas in the same OpenAPI document. */
#ifndef BASE_TEXT_SHAPE_H
#define BASE_TEXT_SHAPE_H

#include <jansson.h>

/* Reads the shape at *text, and moves *text behind it and the spaces that follow. Returns a new
 * reference. Returns NULL for a wrong shape, with *text at what is wrong, and when memory is short.
 */
json_t *shape_read(const char **text);

#endif
