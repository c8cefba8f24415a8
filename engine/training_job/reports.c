/* Writes the reports of a job's steps: metrics.jsonl and TensorBoard's files. */
#include "base/log.h"
#include "base/text/utf8.h"
#include "engine/training_job/internal.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

#define TAG_BYTES 96
#define SCALARS_MAX (8 + TRAIN_TEXTS_MAX)

struct scalars {
    struct events_scalar items[SCALARS_MAX];
    char tags[TRAIN_TEXTS_MAX][TAG_BYTES]; /* tags of the parameter groups' learning rates */
    size_t count;
};

/* Adds a value unless it is NaN or infinite. TensorBoard then shows no point for this step, and no
 * curve if the value is never finite. */
static void add_scalar(struct scalars *s, const char *tag, double value) {
    if (isfinite(value))
        s->items[s->count++] = (struct events_scalar){ tag, (float)value };
}

static bool add_events(
    struct events *events, const struct train_record *record, struct error *err) {
    struct scalars s = { .count = 0 };
    add_scalar(&s, "loss", record->loss);
    add_scalar(&s, "learning_rate", record->learning_rate);
    add_scalar(&s, "text_encoder_learning_rate", record->text_encoder_learning_rate);
    add_scalar(&s, "grad_norm", record->grad_norm);
    add_scalar(&s, "loss_scale", record->loss_scale);
    add_scalar(&s, "images_per_s", record->images_per_s);
    add_scalar(&s, "validation_loss", record->validation_loss);
    for (size_t i = 0; i < record->rate_count; i++) {
        snprintf(s.tags[i], TAG_BYTES, "learning_rate/%s", record->rates[i].pattern);
        utf8_drop_cut_character(s.tags[i]);
        add_scalar(&s, s.tags[i], record->rates[i].value);
    }
    return events_add_scalars(events, (double)time(NULL), record->step, s.items, s.count, err);
}

/* Writes a line of the reports. The job continues if this fails, because the disk may have room
 * again later. */
static void write_down(struct training_job *t, const struct train_record *record) {
    struct error err = { 0 };
    const bool ok = records_add(t->records, record, &err) &&
                    (!t->events || add_events(t->events, record, &err));
    if (!ok && t->report_failed.code == ERROR_NONE) {
        t->report_failed = err;
        log_warning("step %lld: %s", (long long)record->step, err.message);
    }
}

void training_job_stepped(void *user, const struct train_record *record) {
    struct training_job *t = user;
    if (!training_job_is_first(t))
        return;
    write_down(t, record);
    if (t->options.stepped)
        t->options.stepped(t->options.user, record, trainer_steps(t->trainer));
}

void training_job_measured(struct training_job *t, double loss) {
    const struct train_record record = {
        .step = trainer_step(t->trainer),
        .epoch = NAN,
        .loss = NAN,
        .learning_rate = NAN,
        .text_encoder_learning_rate = NAN,
        .grad_norm = NAN,
        .loss_scale = NAN,
        .images_per_s = NAN,
        .eta_s = NAN,
        .validation_loss = loss,
    };
    write_down(t, &record);
}

bool training_job_open_reports(struct training_job *t, struct error *err) {
    const int64_t step = trainer_step(t->trainer);
    if (!training_job_is_first(t))
        return true;
    return records_open(t->options.folder, step, &t->records, err) &&
           (t->options.config->report_to != 0 ||
               events_create(t->options.folder, (double)time(NULL), step, &t->events, err));
}
