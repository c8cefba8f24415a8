/* Decides when a job validates, and does it: first the held-out loss, then the pictures. Both use
 * the current factors, or the averaged factors if these will be saved. */
#include "base/file.h"
#include "base/log.h"
#include "engine/training_job/folder.h"
#include "engine/training_job/internal.h"

#include <math.h>
#include <stdlib.h>

bool training_job_validates(const struct training_job *t) {
    const struct train_config *c = t->options.config;
    return c->validation_prompts.count || c->validation_share > 0;
}

bool training_job_validation_is_due(const struct training_job *t) {
    const struct train_config *c = t->options.config;
    const int64_t step = trainer_step(t->trainer), epoch = trainer_epoch_steps(t->trainer);
    if (!training_job_validates(t) || !step)
        return false;
    return (c->validation_steps && step % c->validation_steps == 0) ||
           (c->validation_epochs && step % (c->validation_epochs * epoch) == 0) ||
           step == trainer_steps(t->trainer);
}

static bool is_complete(const struct training_job *t) {
    char *folder = job_folder_validation_step(t->options.folder, trainer_step(t->trainer));
    char *list = folder ? file_join(folder, VALIDATION_LIST) : NULL;
    const bool complete = list && file_exists(list);
    free(list);
    free(folder);
    return complete;
}

static bool begin_pictures(struct training_job *t, double loss, struct error *err) {
    struct error why = { 0 };
    if (validation_begin(t->validation, trainer_step(t->trainer), loss,
            trainer_parameters(t->trainer)->overlay, &why))
        return true;
    /* The job continues without the pictures, because the disk may have room again later. */
    log_warning("validation at step %lld: %s", (long long)trainer_step(t->trainer), why.message);
    return training_job_leave_validation(t, err);
}

/* `measured`: the loss of this step if it is already recorded; it is then not measured again. NAN:
 * not recorded. */
static bool begin(struct training_job *t, double measured, struct error *err) {
    if (!trainer_swap_average(t->trainer, err))
        return false;
    t->shows_average = true;
    t->measures = isnan(measured) && trainer_holds_out(t->trainer);
    return t->measures || begin_pictures(t, measured, err);
}

bool training_job_begin_validation(struct training_job *t, struct error *err) {
    return begin(t, NAN, err);
}

bool training_job_open_validation(struct training_job *t, struct error *err) {
    const struct train_config *c = t->options.config;
    const struct validation_options options = {
        .config = c,
        .models = training_job_drawing_models(t),
        .folder = t->options.folder,
        .events = t->events,
    };
    if (!training_job_validates(t) || !training_job_is_first(t))
        return true;
    if (!validation_create(&options, &t->validation, err))
        return false;
    return !training_job_validation_is_due(t) || is_complete(t) ||
           begin(t, records_measured(t->records), err);
}

bool training_job_is_validating(const struct training_job *t) {
    return t->measures || validation_is_busy(t->validation);
}

bool training_job_leave_validation(struct training_job *t, struct error *err) {
    const bool shown = t->shows_average;
    t->shows_average = false;
    return !shown || trainer_swap_average(t->trainer, err);
}

static bool measure(struct training_job *t, struct error *err) {
    bool done;
    double loss;
    if (!trainer_measure(t->trainer, &done, &loss, err))
        return false;
    if (!done)
        return true;
    t->measures = false;
    training_job_measured(t, loss);
    return begin_pictures(t, loss, err);
}

bool training_job_advance_validation(struct training_job *t, struct error *err) {
    if (t->measures)
        return measure(t, err);
    if (!validation_advance(t->validation, err))
        return false;
    if (validation_is_busy(t->validation))
        return true;
    if (!training_job_leave_validation(t, err))
        return false;
    trainer_restart_clock(t->trainer);
    if (t->options.validated)
        t->options.validated(t->options.user, trainer_step(t->trainer));
    return true;
}
