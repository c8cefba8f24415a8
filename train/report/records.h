/* The record of each optimizer step, and metrics.jsonl, which keeps them: one JSON object per line,
 * appended as the job goes on. */
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

/* Missing numbers are NAN, and so is a loss that is not finite. */
struct train_record {
    int64_t step; /* optimizer steps done: 1 and up */
    double epoch; /* passes through the data set, with the fraction of the current one */
    double loss;  /* mean over the step's batches */
    double learning_rate, text_encoder_learning_rate;
    double grad_norm;  /* before clipping */
    double loss_scale; /* with fp16 */
    double images_per_s, eta_s;
    double validation_loss;         /* of the held-out pictures: has a record of its own */
    const struct train_rate *rates; /* borrowed for the call; not read back from files */
    size_t rate_count;
};

/* The members that are not missing; a step's loss that is not finite becomes null. A new reference
 * or NULL. */
json_t *train_record_to_json(const struct train_record *record);

struct records;

/* Opens FOLDER/metrics.jsonl, or creates it. Cuts off lines of steps after `resumed_step`, and
 * everything after the last whole line that can be read. */
bool records_open(const char *folder, int64_t resumed_step, struct records **out, struct error *err)
    __attribute__((warn_unused_result));
void records_close(struct records *records); /* NULL is fine */
/* The validation_loss of `resumed_step`, if the file has it already; else NAN. */
double records_measured(const struct records *records);
/* Appends a line. After a failure the file ends as before. */
bool records_add(struct records *records, const struct train_record *record, struct error *err)
    __attribute__((warn_unused_result));

/* Reads all whole lines of a file that may still be written. *out: malloc'd, *count of them; none
 * if there is no file. */
bool records_read(const char *folder, struct train_record **out, size_t *count, struct error *err)
    __attribute__((warn_unused_result));

/* The same lines as text, of steps after `after`. *out: malloc'd, *size bytes; 0 bytes if there is
 * no file. */
bool records_lines(const char *folder, int64_t after, char **out, size_t *size, struct error *err)
    __attribute__((warn_unused_result));

#endif
