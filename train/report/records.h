/* What a training job says of each optimizer step, and metrics.jsonl, where it stays: a JSON object
 * a line, appended as the job goes on. */
#ifndef TRAIN_REPORT_RECORDS_H
#define TRAIN_REPORT_RECORDS_H

#include "base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* The learning rate of a group of parameters that has one of its own. */
struct train_rate {
    const char *pattern; /* borrowed */
    double value;
};

/* Numbers that are not there are NAN, and so is a loss that is not finite. */
struct train_record {
    int64_t step; /* optimizer steps done: 1 and up */
    double epoch; /* passes through the data set, with its fraction */
    double loss;  /* mean over the step's batches */
    double learning_rate, text_encoder_learning_rate;
    double grad_norm;  /* before clipping */
    double loss_scale; /* of fp16 */
    double images_per_s, eta_s;
    double validation_loss;         /* of the held-out pictures: in a record of its own */
    const struct train_rate *rates; /* borrowed for the call; are not read back */
    size_t rate_count;
};

/* Its members that are there; a step's loss that is not finite is null. A new reference or NULL. */
json_t *train_record_to_json(const struct train_record *record);

struct records;

/* FOLDER/metrics.jsonl, made or gone on with: lines of steps after `resumed_step`, and whatever is
 * behind the last whole line that can be read, are cut off. */
bool records_open(const char *folder, int64_t resumed_step, struct records **out, struct error *err)
    __attribute__((warn_unused_result));
void records_close(struct records *records); /* NULL is fine */
/* The validation_loss of `resumed_step`, where the file has it already; else NAN. */
double records_measured(const struct records *records);
/* Appends a line; after a failure the file ends as before. */
bool records_add(struct records *records, const struct train_record *record, struct error *err)
    __attribute__((warn_unused_result));

/* All whole lines of a file that may still be written. *out: malloc'd, *count of them; no file:
 * none.
 */
bool records_read(const char *folder, struct train_record **out, size_t *count, struct error *err)
    __attribute__((warn_unused_result));

/* The same as they stand there, of steps after `after`. *out: malloc'd, *size bytes; no file: none.
 */
bool records_lines(const char *folder, int64_t after, char **out, size_t *size, struct error *err)
    __attribute__((warn_unused_result));

#endif
