/* What a job says of its steps: metrics.jsonl and TensorBoard's files. */
#include "base/log.h"
#include "engine/training_job/internal.h"

#include <time.h>

void training_job_stepped(void *user, const struct train_record *record) {
    struct training_job *t = user;
    struct error err = { 0 };
    const double now_s = (double)time(NULL);
    const struct events_scalar scalars[] = {
        { "loss", (float)record->loss },
        { "learning_rate", (float)record->learning_rate },
        { "grad_norm", (float)record->grad_norm },
        { "images_per_s", (float)record->images_per_s },
    };
    /* A job goes on without them: the disk may have room again later. */
    const bool ok = records_add(t->records, record, &err) &&
                    (!t->events ||
                        events_add_scalars(t->events, now_s, record->step, scalars, 4, &err));
    if (!ok && t->report_failed.code == ERROR_NONE) {
        t->report_failed = err;
        log_warning("step %lld: %s", (long long)record->step, err.message);
    }
    if (t->options.stepped)
        t->options.stepped(t->options.user, record, trainer_steps(t->trainer));
}

bool training_job_open_reports(struct training_job *t, struct error *err) {
    const int64_t step = trainer_step(t->trainer);
    return records_open(t->options.folder, step, &t->records, err) &&
           (t->options.config->report_to != 0 ||
               events_create(t->options.folder, (double)time(NULL), step, &t->events, err));
}
