/* The list of all generations under way, of every dialect and of jobs. It is used to find, list and
 * cancel them. A caller is the name of an API key, or "" if the daemon has no keys. An id belongs
 * to its caller: another caller may use the same id. Any thread may call; nothing here waits. */
#ifndef SERVER_GENERATION_GENERATIONS_H
#define SERVER_GENERATION_GENERATIONS_H

#include "server/generation/generation.h"
#include "server/http/caller.h"

struct generations;

bool generations_create(struct generations **out, struct error *err)
    __attribute__((warn_unused_result));
/* Call it only when the list is empty. NULL is fine. */
void generations_destroy(struct generations *list);

/* A copy of the state of one generation at one moment. */
struct generation_look {
    char id[REQUEST_ID_MAX_BYTES + 1];
    char task_id[GENERATION_TASK_ID_MAX_BYTES + 1];
    const char *dialect;
    int images;
    struct generation_progress progress;
    struct preview *preview; /* a reference to the latest one; NULL: none */
};
void generation_look_finish(struct generation_look *look); /* zeroed is fine */

/* Finds a generation by its id or task id. The viewer's own generations are preferred to others
 * that the viewer may see. Returns false if there is none. `out` may be NULL. */
bool generations_find(struct generations *list, const struct viewer *viewer, const char *id,
    struct generation_look *out);
/* Lists the caller's generations in order of arrival. *out is malloc'd; finish each entry. Returns
 * the count, -1 when memory is short. */
int generations_list(struct generations *list, const char *caller, struct generation_look **out);
/* Returns whether a generation with this id or task id ended recently: the last
 * GENERATIONS_REMEMBERED of all callers are remembered. */
bool generations_has_ended(struct generations *list, const char *caller, const char *id);

/* Cancels a generation: it stops before its next unit of work, and its client gets ERROR_CANCELLED.
 * Finds it as generations_find does. Returns false if there is none. */
bool generations_cancel(struct generations *list, const struct viewer *viewer, const char *id);

#define GENERATIONS_REMEMBERED 64

/* Returns the position among all waiting generations, in order of arrival, from 1. Returns 0 if `g`
 * is running. */
int generations_position(struct generations *list, struct generation *g);

/* For server/generation only. A generation is under way from generations_add to generations_remove.
 * `has_ended`: remember that it has ended; false if the engine did not take it. */
void generations_add(struct generations *list, struct generation *g);
void generations_remove(struct generations *list, struct generation *g, bool has_ended);

#endif
