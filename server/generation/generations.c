#include "server/generation/generations.h"

#include <stdlib.h>
#include <string.h>

struct remembered {
    char caller[KEY_NAME_MAX_BYTES + 1];
    char id[REQUEST_ID_MAX_BYTES + 1];
    char task_id[GENERATION_TASK_ID_MAX_BYTES + 1];
};

/* The mutex guards everything; a generation's own mutex is locked after it. */
struct generations {
    pthread_mutex_t mutex;
    struct generation *first; /* in order of arrival */
    struct remembered ended[GENERATIONS_REMEMBERED];
    unsigned next_ended;
};

bool generations_create(struct generations **out, struct error *err) {
    struct generations *list = calloc(1, sizeof(*list));
    *out = list;
    if (!list)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a list of requests");
    pthread_mutex_init(&list->mutex, NULL);
    return true;
}

void generations_destroy(struct generations *list) {
    if (!list)
        return;
    pthread_mutex_destroy(&list->mutex);
    free(list);
}

void generations_add(struct generations *list, struct generation *g) {
    pthread_mutex_lock(&list->mutex);
    /* A paused job begins anew. */
    for (int i = 0; i < GENERATIONS_REMEMBERED; i++)
        if (strcmp(list->ended[i].id, g->id) == 0 && strcmp(list->ended[i].caller, g->caller) == 0)
            list->ended[i] = (struct remembered){ 0 };
    struct generation **at = &list->first;
    while (*at)
        at = &(*at)->next;
    g->next = NULL;
    *at = g;
    pthread_mutex_unlock(&list->mutex);
}

void generations_remove(struct generations *list, struct generation *g, bool has_ended) {
    pthread_mutex_lock(&list->mutex);
    struct generation **at = &list->first;
    while (*at && *at != g)
        at = &(*at)->next;
    if (*at)
        *at = g->next;
    if (has_ended) {
        struct remembered *slot = &list->ended[list->next_ended++ % GENERATIONS_REMEMBERED];
        memcpy(slot->caller, g->caller, sizeof(slot->caller));
        memcpy(slot->id, g->id, sizeof(slot->id));
        memcpy(slot->task_id, g->task_id, sizeof(slot->task_id));
    }
    pthread_mutex_unlock(&list->mutex);
}

/* --- Queries --- */

static bool is_called(const char *id, const char *own_id, const char *task_id) {
    return id[0] && (strcmp(id, own_id) == 0 || strcmp(id, task_id) == 0);
}

/* Call with the lock held. Returns NULL if there is none. */
static struct generation *find(
    struct generations *list, const struct viewer *viewer, const char *id) {
    struct generation *found = NULL;
    for (struct generation *g = list->first; g; g = g->next) {
        if (!viewer_sees(viewer, g->caller) || !is_called(id, g->id, g->task_id))
            continue;
        if (strcmp(g->caller, viewer->name) == 0)
            return g;
        if (!found)
            found = g;
    }
    return found;
}

static bool is_running(struct generation *g) {
    pthread_mutex_lock(&g->mutex);
    const bool running = g->begun_s > 0;
    pthread_mutex_unlock(&g->mutex);
    return running;
}

/* Returns the position among all that wait, in order of arrival. */
static int position_of(struct generations *list, const struct generation *wanted) {
    int position = 1;
    for (struct generation *g = list->first; g && g != wanted; g = g->next)
        position += !is_running(g);
    return position;
}

int generations_position(struct generations *list, struct generation *g) {
    pthread_mutex_lock(&list->mutex);
    const int position = is_running(g) ? 0 : position_of(list, g);
    pthread_mutex_unlock(&list->mutex);
    return position;
}

static void look_at(struct generations *list, struct generation *g, struct generation_look *look) {
    memset(look, 0, sizeof(*look));
    memcpy(look->id, g->id, sizeof(look->id));
    memcpy(look->task_id, g->task_id, sizeof(look->task_id));
    look->dialect = g->kind->dialect;
    generation_get_progress(g, &look->progress);
    if (!look->progress.running)
        look->progress.position = position_of(list, g);
    pthread_mutex_lock(&g->mutex);
    look->images = g->images;
    look->preview = g->latest;
    if (look->preview)
        preview_ref(look->preview);
    pthread_mutex_unlock(&g->mutex);
}

void generation_look_finish(struct generation_look *look) {
    preview_unref(look->preview);
    memset(look, 0, sizeof(*look));
}

bool generations_find(struct generations *list, const struct viewer *viewer, const char *id,
    struct generation_look *out) {
    pthread_mutex_lock(&list->mutex);
    struct generation *g = find(list, viewer, id);
    if (g && out)
        look_at(list, g, out);
    pthread_mutex_unlock(&list->mutex);
    return g;
}

int generations_list(struct generations *list, const char *caller, struct generation_look **out) {
    int count = 0;
    pthread_mutex_lock(&list->mutex);
    for (const struct generation *g = list->first; g; g = g->next)
        count += strcmp(g->caller, caller) == 0;
    struct generation_look *looks = calloc((size_t)count + 1, sizeof(*looks));
    int filled = 0;
    for (struct generation *g = list->first; looks && g; g = g->next)
        if (strcmp(g->caller, caller) == 0)
            look_at(list, g, &looks[filled++]);
    pthread_mutex_unlock(&list->mutex);
    *out = looks;
    return looks ? count : -1;
}

bool generations_has_ended(struct generations *list, const char *caller, const char *id) {
    bool found = false;
    pthread_mutex_lock(&list->mutex);
    for (int i = 0; i < GENERATIONS_REMEMBERED && !found; i++)
        found = strcmp(list->ended[i].caller, caller) == 0 &&
                is_called(id, list->ended[i].id, list->ended[i].task_id);
    pthread_mutex_unlock(&list->mutex);
    return found;
}

bool generations_cancel(struct generations *list, const struct viewer *viewer, const char *id) {
    pthread_mutex_lock(&list->mutex);
    struct generation *g = find(list, viewer, id);
    if (g)
        generation_ref(g);
    pthread_mutex_unlock(&list->mutex);
    if (!g)
        return false;
    if (g->owner->cancel)
        g->owner->cancel(g);
    else
        generation_cancel(g);
    generation_unref(g);
    return true;
}
