/* All generations that are under way, of every dialect, and those of jobs: for who wants to see how
 * far one is, or to cancel it. A caller is the name of an API key, "" where the daemon has none. An
 * id is the caller's own: others may use the same. Any thread; nothing waits. */
#ifndef SERVER_GENERATION_GENERATIONS_H
#define SERVER_GENERATION_GENERATIONS_H

#include "server/access/caller.h"
#include "server/generation/generation.h"

struct generations;

bool generations_create(struct generations **out, struct error *err)
    __attribute__((warn_unused_result));
/* None may be left. NULL is fine. */
void generations_destroy(struct generations *list);

/* One of them, as it was when it was looked at. */
struct generation_look {
    char id[REQUEST_ID_MAX_BYTES + 1];
    char task_id[GENERATION_TASK_ID_MAX_BYTES + 1];
    const char *dialect;
    int images;
    struct generation_progress progress;
    struct preview *preview; /* the latest, a reference; NULL: none */
};
void generation_look_finish(struct generation_look *look); /* zeroed is fine */

/* By its id or its task id: the viewer's own, else another that it sees. False: no such one is
 * under way. `out` may be NULL. */
bool generations_find(struct generations *list, const struct viewer *viewer, const char *id,
    struct generation_look *out);
/* All of the caller's, in the order in which they came; *out is malloc'd, each to be finished.
 * Returns how many, -1 when memory is short. */
int generations_list(struct generations *list, const char *caller, struct generation_look **out);
/* Whether one of this id or task id ended a short while ago (among the last GENERATIONS_REMEMBERED
 * of all callers). */
bool generations_has_ended(struct generations *list, const char *caller, const char *id);

/* Asks it to end: it stops before its next unit of work, and its client is told ERROR_CANCELLED. By
 * its id or its task id, as generations_find. False: there is none. */
bool generations_cancel(struct generations *list, const struct viewer *viewer, const char *id);

#define GENERATIONS_REMEMBERED 64

/* Of all that wait, in the order in which they came: 1 is the first; 0: it is running. */
int generations_position(struct generations *list, struct generation *g);

/* For server/generation: it is under way from here to generations_remove, which remembers it among
 * those that have ended, or not: one that the engine did not take never began. */
void generations_add(struct generations *list, struct generation *g);
void generations_remove(struct generations *list, struct generation *g, bool has_ended);

#endif
