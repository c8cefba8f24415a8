/* The queue's rows in memory, for tests and for what need not outlive the process. */
#include "queue/store.h"

#include <stdlib.h>
#include <string.h>

struct kept_event {
    struct job_event event;
    char *type, *data; /* owned */
    struct kept_event *next;
};

/* In the order of their numbers. */
struct row {
    struct job job;
    struct kept_event *first, *last;
    int event_count;
    struct row *next;
};

struct memory {
    struct store store; /* the first member */
    struct row *first, **end;
    int64_t last_number;
};

static struct memory *memory_of(struct store *store) {
    return (struct memory *)store;
}

static void free_event(struct kept_event *kept) {
    if (!kept)
        return;
    free(kept->type);
    free(kept->data);
    free(kept);
}

static void free_row(struct row *row) {
    while (row->first) {
        struct kept_event *kept = row->first;
        row->first = kept->next;
        free_event(kept);
    }
    job_finish(&row->job);
    free(row);
}

static struct kept_event *copy_event(const struct job_event *event, struct error *err) {
    struct kept_event *kept = calloc(1, sizeof(*kept));
    if (kept) {
        kept->event = *event;
        kept->event.type = kept->type = strdup(event->type);
        kept->event.data = kept->data = strdup(event->data);
    }
    if (kept && kept->type && kept->data)
        return kept;
    free_event(kept);
    error_set(err, ERROR_NO_MEMORY, "no memory for an event");
    return NULL;
}

static void append(struct row *row, struct kept_event *kept) {
    if (row->last)
        row->last->next = kept;
    else
        row->first = kept;
    row->last = kept;
    if (++row->event_count <= JOB_EVENTS_KEPT)
        return;
    struct kept_event *oldest = row->first;
    row->first = oldest->next;
    row->event_count--;
    free_event(oldest);
}

static struct row *find_row(struct store *store, int64_t number) {
    struct row *row = memory_of(store)->first;
    while (row && row->job.number != number)
        row = row->next;
    return row;
}

static void memory_close(struct store *store) {
    struct memory *memory = memory_of(store);
    while (memory->first) {
        struct row *row = memory->first;
        memory->first = row->next;
        free_row(row);
    }
    free(memory);
}

static bool memory_insert(
    struct store *store, struct job *job, const struct job_event *event, struct error *err) {
    struct memory *memory = memory_of(store);
    struct row *row = calloc(1, sizeof(*row));
    struct kept_event *kept = copy_event(event, err);
    job->number = memory->last_number + 1;
    if (!row || !kept || !job_copy(job, &row->job, err)) {
        free(row);
        free_event(kept);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a job");
    }
    memory->last_number++;
    append(row, kept);
    *memory->end = row;
    memory->end = &row->next;
    return true;
}

static bool memory_save(
    struct store *store, const struct job *job, const struct job_event *event, struct error *err) {
    struct row *row = find_row(store, job->number);
    struct job copy;
    if (!row)
        return error_set(err, ERROR_INTERNAL, "job %s is not in the queue", job->id);
    if (!job_copy(job, &copy, err))
        return false;
    struct kept_event *kept = event ? copy_event(event, err) : NULL;
    if (event && !kept) {
        job_finish(&copy);
        return false;
    }
    job_finish(&row->job);
    row->job = copy;
    if (kept)
        append(row, kept);
    return true;
}

static bool memory_erase(struct store *store, int64_t number, struct error *err) {
    struct memory *memory = memory_of(store);
    struct row **at = &memory->first;
    while (*at && (*at)->job.number != number)
        at = &(*at)->next;
    struct row *row = *at;
    if (!row)
        return error_set(err, ERROR_INTERNAL, "there is no such job in the queue");
    *at = row->next;
    if (!row->next)
        memory->end = at;
    free_row(row);
    return true;
}

static bool found_row(const struct row *row, struct job *out, bool *found, struct error *err) {
    *found = row;
    return !row || job_copy(&row->job, out, err);
}

static bool memory_find(
    struct store *store, const char *id, struct job *out, bool *found, struct error *err) {
    const struct row *row = memory_of(store)->first;
    while (row && strcmp(row->job.id, id) != 0)
        row = row->next;
    return found_row(row, out, found, err);
}

static bool memory_find_key(
    struct store *store, const char *key, struct job *out, bool *found, struct error *err) {
    const struct row *row = memory_of(store)->first;
    while (row && !(row->job.key && strcmp(row->job.key, key) == 0))
        row = row->next;
    return found_row(row, out, found, err);
}

static bool is_queued(const struct job *job, const char *type) {
    return job->state == JOB_QUEUED && strcmp(job->type, type) == 0;
}

static bool is_before(const struct job *a, const struct job *b) {
    return a->priority != b->priority ? a->priority > b->priority : a->number < b->number;
}

static bool memory_find_next(
    struct store *store, const char *type, struct job *out, bool *found, struct error *err) {
    const struct row *best = NULL;
    for (const struct row *row = memory_of(store)->first; row; row = row->next)
        if (is_queued(&row->job, type) && (!best || is_before(&row->job, &best->job)))
            best = row;
    return found_row(best, out, found, err);
}

static bool memory_count_before(
    struct store *store, const struct job *job, int *out, struct error *err) {
    (void)err;
    *out = 0;
    for (const struct row *row = memory_of(store)->first; row; row = row->next)
        *out += is_queued(&row->job, job->type) && is_before(&row->job, job);
    return true;
}

static bool memory_count(
    struct store *store, const char *type, int counts[JOB_STATE_COUNT], struct error *err) {
    (void)err;
    memset(counts, 0, JOB_STATE_COUNT * sizeof(*counts));
    for (const struct row *row = memory_of(store)->first; row; row = row->next)
        counts[row->job.state] += !type || strcmp(row->job.type, type) == 0;
    return true;
}

static bool matches(const struct job *job, const struct job_filter *filter) {
    if (filter->states && !(filter->states & 1u << job->state))
        return false;
    if (filter->type && strcmp(filter->type, job->type) != 0)
        return false;
    if (!filter->after)
        return true;
    return filter->newest_first ? job->number < filter->after : job->number > filter->after;
}

/* The one after `number` in the filter's order. */
static const struct row *next_match(
    const struct memory *memory, const struct job_filter *filter, int64_t number) {
    struct job_filter rest = *filter;
    const struct row *best = NULL;
    if (number)
        rest.after = number;
    for (const struct row *row = memory->first; row; row = row->next)
        if (matches(&row->job, &rest)) {
            best = row;
            if (!filter->newest_first)
                break;
        }
    return best;
}

static bool memory_list(struct store *store, const struct job_filter *filter,
    bool (*visit)(void *user, const struct job *job, struct error *err), void *user,
    struct error *err) {
    int64_t number = 0;
    for (int shown = 0; !filter->limit || shown < filter->limit; shown++) {
        const struct row *row = next_match(memory_of(store), filter, number);
        if (!row)
            return true;
        if (!visit(user, &row->job, err))
            return false;
        number = row->job.number;
    }
    return true;
}

static bool memory_list_events(struct store *store, int64_t number, int64_t after, int limit,
    bool (*visit)(void *user, const struct job_event *event, struct error *err), void *user,
    struct error *err) {
    const struct row *row = find_row(store, number);
    int shown = 0;
    for (const struct kept_event *kept = row ? row->first : NULL; kept; kept = kept->next) {
        if (kept->event.number <= after)
            continue;
        if (shown++ == limit)
            break;
        if (!visit(user, &kept->event, err))
            return false;
    }
    return true;
}

bool store_create_memory(struct store **out, struct error *err) {
    static const struct store_ops ops = {
        .close = memory_close,
        .insert = memory_insert,
        .save = memory_save,
        .erase = memory_erase,
        .find = memory_find,
        .find_key = memory_find_key,
        .find_next = memory_find_next,
        .count_before = memory_count_before,
        .count = memory_count,
        .list = memory_list,
        .list_events = memory_list_events,
    };
    struct memory *memory = calloc(1, sizeof(*memory));
    if (!memory)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the queue");
    memory->store.ops = &ops;
    memory->end = &memory->first;
    *out = &memory->store;
    return true;
}
