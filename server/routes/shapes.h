/* The named shapes (base/text/shape.h) that several routes speak of. They become
 * components/schemas of /openapi.json. A new one is a line of the table in shapes.c. */
#ifndef SERVER_ROUTES_SHAPES_H
#define SERVER_ROUTES_SHAPES_H

#include <jansson.h>
#include <stddef.h>

/* Returns the name of a shape, and sets *shape to its shorthand; NULL past the last. */
const char *shapes_at(size_t index, const char **shape);

/* Returns all of them by name, as JSON schemas: a new reference; NULL when memory is short. */
json_t *shapes_json(void);

#endif
