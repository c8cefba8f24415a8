/* The record of each optimizer step, and metrics.jsonl, the file of all records: one JSON object
 * per line, appended while the job runs. */
#ifndef TRAIN_REPORT_RECORDS_H
#define TRAIN_REPORT_RECORDS_H

#include "base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* The learning rate of a parameter group with its own rate. */
struct train_rate {
    const char *pattern; /* borrowed */
    double value;
};

/* NAN means that a number is missing, or that a loss is not finite. */
struct train_record {
    int64_t step; /* optimizer steps done, from 1 */
    double epoch; /* passes through the data set, as a fraction */
    double loss;  /* mean over the step's batches */
    double learning_rate, text_encoder_learning_rate;
    double grad_norm;  /* before clipping */
    double loss_scale; /* with fp16 */
    double images_per_s, eta_s;
    double validation_loss;         /* of held-out pictures; in a record of its own */
    const struct train_rate *rates; /* borrowed for the call; not read back from files */
    size_t rate_count;
};

/* Returns the members that are not missing. In a step's record, a missing loss becomes null. A new
 * reference or NULL. */
json_t *train_record_to_json(const struct train_record *record);

struct records;

/* Opens FOLDER/metrics.jsonl, or creates it. Cuts off the lines of steps after `resumed_step`, and
 * everything from the first line on that cannot be read. */
bool records_open(const char *folder, int64_t resumed_step, struct records **out, struct error *err)
    __attribute__((warn_unused_result));
void records_close(struct records *records); /* NULL is fine */
/* Returns the validation_loss of `resumed_step` if the file has it, else NAN. */
double records_measured(const struct records *records);
/* Appends a line. After a failure the file ends where it did before. */
bool records_add(struct records *records, const struct train_record *record, struct error *err)
    __attribute__((warn_unused_result));

/* Reads all complete lines of a file that may still be written. *out is malloc'd and has *count
 * records; none if there is no file. */
bool records_read(const char *folder, struct train_record **out, size_t *count, struct error *err)
    __attribute__((warn_unused_result));

/* Reads the same lines as text, for steps after `after`. *out is malloc'd and has *size bytes; 0 if
 * there is no file. */
bool records_lines(const char *folder, int64_t after, char **out, size_t *size, struct error *err)
    __attribute__((warn_unused_result));

#endif
