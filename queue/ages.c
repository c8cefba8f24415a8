#include "queue/ages.h"

#include "base/list.h"
#include "base/monotonic.h"

void job_ages_init(struct job_ages *ages, int64_t system_ms) {
    *ages = (struct job_ages){ .opened_ms = monotonic_ms(), .opened_system_ms = system_ms };
}

void job_ages_finish(struct job_ages *ages) {
    free(ages->items);
}

bool job_ages_room(struct job_ages *ages, struct error *err) {
    return LIST_ROOM(ages->items, ages->count, "a job", err);
}

void job_ages_add(struct job_ages *ages, int64_t number) {
    ages->items[ages->count++] = (struct job_accepted){ number, monotonic_ms() };
}

/* Returns the index of the job, or of the first one with a higher number. */
static size_t position(const struct job_ages *ages, int64_t number) {
    size_t low = 0, high = ages->count;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (ages->items[mid].number < number)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void job_ages_remove(struct job_ages *ages, int64_t number) {
    const size_t at = position(ages, number);
    if (at == ages->count || ages->items[at].number != number)
        return;
    ages->count--;
    memmove(
        ages->items + at, ages->items + at + 1, (ages->count - at) * sizeof(struct job_accepted));
}

int64_t job_ages_get_ms(const struct job_ages *ages, const struct job *job) {
    const int64_t now_ms = monotonic_ms();
    const size_t at = position(ages, job->number);
    if (at < ages->count && ages->items[at].number == job->number)
        return now_ms - ages->items[at].at_ms;
    const int64_t before_ms = ages->opened_system_ms - job->created_ms;
    return now_ms - ages->opened_ms + (before_ms > 0 ? before_ms : 0);
}
