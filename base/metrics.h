/* The daemon's metrics, in one table, in the text format of Prometheus.
 *
 * Any thread may record an event where it happens, without a lock:
 *     metric_add(METRIC_unet_rows_total, rows);
 *     metric_observe(METRIC_queue_seconds, seconds);
 *     metric_observe(metric_step_seconds(rows), seconds);
 * Values that must be asked for (memory, the queue) are set right before rendering.
 */
#ifndef BASE_METRICS_H
#define BASE_METRICS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the requests of one dialect ended, in the order of enum request_outcome. */
#define METRICS_OF_DIALECT(X, dialect, help)                                                       \
    X(requests_##dialect##_succeeded, COUNTER, "sd_requests_total",                                \
        "dialect=\"" #dialect "\",outcome=\"succeeded\"", help)                                    \
    X(requests_##dialect##_cancelled, COUNTER, "sd_requests_total",                                \
        "dialect=\"" #dialect "\",outcome=\"cancelled\"", "")                                      \
    X(requests_##dialect##_timed_out, COUNTER, "sd_requests_total",                                \
        "dialect=\"" #dialect "\",outcome=\"timed_out\"", "")                                      \
    X(requests_##dialect##_failed, COUNTER, "sd_requests_total",                                   \
        "dialect=\"" #dialect "\",outcome=\"failed\"", "")

/* X(symbol, kind, family, label, help): one line per series. All series of a family are adjacent;
 * the first one's help is the family's. Names and units follow Prometheus: counters end in _total,
 * times are in seconds, sizes in bytes. The series of job states are in the order of enum
 * job_state. */
#define METRICS(X)                                                                                 \
    METRICS_OF_DIALECT(X, native, "Accepted requests, by how they ended.")                         \
    METRICS_OF_DIALECT(X, a1111, "")                                                               \
    METRICS_OF_DIALECT(X, openai, "")                                                              \
    METRICS_OF_DIALECT(X, huggingface, "")                                                         \
    METRICS_OF_DIALECT(X, job, "")                                                                 \
    X(rejected_total_invalid, COUNTER, "sd_rejected_total", "reason=\"invalid\"",                  \
        "HTTP requests that were refused, by why.")                                                \
    X(rejected_total_unauthorized, COUNTER, "sd_rejected_total", "reason=\"unauthorized\"", "")    \
    X(rejected_total_forbidden, COUNTER, "sd_rejected_total", "reason=\"forbidden\"", "")          \
    X(rejected_total_not_found, COUNTER, "sd_rejected_total", "reason=\"not_found\"", "")          \
    X(rejected_total_conflict, COUNTER, "sd_rejected_total", "reason=\"conflict\"", "")            \
    X(rejected_total_too_large, COUNTER, "sd_rejected_total", "reason=\"too_large\"", "")          \
    X(rejected_total_queue_full, COUNTER, "sd_rejected_total", "reason=\"queue_full\"", "")        \
    X(rejected_total_too_many_failures, COUNTER, "sd_rejected_total",                              \
        "reason=\"too_many_failures\"", "")                                                        \
    X(rejected_total_unavailable, COUNTER, "sd_rejected_total", "reason=\"unavailable\"", "")      \
    X(rejected_total_no_memory, COUNTER, "sd_rejected_total", "reason=\"no_memory\"", "")          \
    X(rejected_total_disk_full, COUNTER, "sd_rejected_total", "reason=\"disk_full\"", "")          \
    X(rejected_total_other, COUNTER, "sd_rejected_total", "reason=\"other\"", "")                  \
    X(cancelled_total_waiting, COUNTER, "sd_cancelled_total", "phase=\"waiting\"",                 \
        "Requests whose client left or whose time ran out, by where they were.")                   \
    X(cancelled_total_drawing, COUNTER, "sd_cancelled_total", "phase=\"drawing\"", "")             \
    X(requests_running, GAUGE, "sd_requests_running", "", "Requests being drawn.")                 \
    X(requests_waiting, GAUGE, "sd_requests_waiting", "", "Requests waiting to be drawn.")         \
    X(queue_seconds, SECONDS, "sd_queue_seconds", "", "From admission to the first work.")         \
    X(request_seconds, SECONDS, "sd_request_seconds", "", "From admission to the last picture.")   \
    X(step_seconds_1, SECONDS, "sd_step_seconds", "rows=\"1\"",                                    \
        "One call of the UNet, by its rows.")                                                      \
    X(step_seconds_2, SECONDS, "sd_step_seconds", "rows=\"2\"", "")                                \
    X(step_seconds_4, SECONDS, "sd_step_seconds", "rows=\"3-4\"", "")                              \
    X(step_seconds_8, SECONDS, "sd_step_seconds", "rows=\"5-8\"", "")                              \
    X(step_seconds_16, SECONDS, "sd_step_seconds", "rows=\"9-16\"", "")                            \
    X(step_seconds_more, SECONDS, "sd_step_seconds", "rows=\"17-\"", "")                           \
    X(unet_calls_total, COUNTER, "sd_unet_calls_total", "", "Calls of the UNet.")                  \
    X(unet_rows_total, COUNTER, "sd_unet_rows_total", "",                                          \
        "Rows of those calls: a picture has two, one without guidance.")                           \
    X(batch_distinct_loras, COUNTS, "sd_batch_distinct_loras", "",                                 \
        "Different adapters in one call of the UNet.")                                             \
    X(steps_total, COUNTER, "sd_steps_total", "", "Steps of single pictures.")                     \
    X(images_total, COUNTER, "sd_images_total", "", "Finished pictures.")                          \
    X(text_encoder_seconds, SECONDS, "sd_text_encoder_seconds", "",                                \
        "The text encoder, a request at a time.")                                                  \
    X(text_cache_hits_total, COUNTER, "sd_text_cache_hits_total", "",                              \
        "Texts that were found encoded.")                                                          \
    X(text_cache_misses_total, COUNTER, "sd_text_cache_misses_total", "",                          \
        "Texts that had to be encoded.")                                                           \
    X(text_cache_bytes, GAUGE, "sd_text_cache_bytes", "", "Memory of the encoded texts kept.")     \
    X(vae_seconds, SECONDS, "sd_vae_seconds", "", "Decoding one picture.")                         \
    X(png_seconds, SECONDS, "sd_png_seconds", "", "Making one answer's PNGs and JSON.")            \
    X(lora_loaded, GAUGE, "sd_lora_loaded", "", "Adapters in memory.")                             \
    X(lora_bytes, GAUGE, "sd_lora_bytes", "", "Memory of the adapters and what is made of them.")  \
    X(lora_load_seconds, SECONDS, "sd_lora_load_seconds", "",                                      \
        "From an adapter's last byte until it can be used.")                                       \
    X(jobs_queued, GAUGE, "sd_jobs", "state=\"queued\"", "Jobs, by their state.")                  \
    X(jobs_running, GAUGE, "sd_jobs", "state=\"running\"", "")                                     \
    X(jobs_paused, GAUGE, "sd_jobs", "state=\"paused\"", "")                                       \
    X(jobs_succeeded, GAUGE, "sd_jobs", "state=\"succeeded\"", "")                                 \
    X(jobs_failed, GAUGE, "sd_jobs", "state=\"failed\"", "")                                       \
    X(jobs_cancelled, GAUGE, "sd_jobs", "state=\"cancelled\"", "")                                 \
    X(jobs_accepted_total, COUNTER, "sd_jobs_accepted_total", "", "Jobs that were accepted.")      \
    X(jobs_ended_total_succeeded, COUNTER, "sd_jobs_ended_total", "state=\"succeeded\"",           \
        "Jobs that ended, by how.")                                                                \
    X(jobs_ended_total_failed, COUNTER, "sd_jobs_ended_total", "state=\"failed\"", "")             \
    X(jobs_ended_total_cancelled, COUNTER, "sd_jobs_ended_total", "state=\"cancelled\"", "")       \
    X(train_jobs_queued, GAUGE, "sd_train_jobs", "status=\"queued\"",                              \
        "Training jobs, by their state.")                                                          \
    X(train_jobs_running, GAUGE, "sd_train_jobs", "status=\"running\"", "")                        \
    X(train_jobs_paused, GAUGE, "sd_train_jobs", "status=\"paused\"", "")                          \
    X(train_jobs_succeeded, GAUGE, "sd_train_jobs", "status=\"succeeded\"", "")                    \
    X(train_jobs_failed, GAUGE, "sd_train_jobs", "status=\"failed\"", "")                          \
    X(train_jobs_cancelled, GAUGE, "sd_train_jobs", "status=\"cancelled\"", "")                    \
    X(train_steps_total, COUNTER, "sd_train_steps_total", "", "Steps of training.")                \
    X(train_step_seconds, SECONDS, "sd_train_step_seconds", "",                                    \
        "One step of training, with what it stepped aside for.")                                   \
    X(train_preempted_total, COUNTER, "sd_train_preempted_total", "",                              \
        "Times that training stepped aside for requests.")                                         \
    X(train_loss, REAL, "sd_train_loss", "", "The loss of the last step of training.")             \
    X(job_watchers, GAUGE, "sd_job_watchers", "", "Clients that wait for news of jobs.")           \
    X(gpu_memory_bytes_total, GAUGE, "sd_gpu_memory_bytes", "kind=\"total\"",                      \
        "Memory of the accelerator.")                                                              \
    X(gpu_memory_bytes_free, GAUGE, "sd_gpu_memory_bytes", "kind=\"free\"", "")                    \
    X(gpu_memory_bytes_weights, GAUGE, "sd_gpu_memory_bytes", "kind=\"weights\"", "")              \
    X(gpu_memory_bytes_activations, GAUGE, "sd_gpu_memory_bytes", "kind=\"activations\"", "")      \
    X(process_resident_bytes, GAUGE, "sd_process_resident_bytes", "",                              \
        "Memory of this process that is resident.")

enum metric {
#define METRIC_ENUMERATOR(symbol, kind, family, label, help) METRIC_##symbol,
    METRICS(METRIC_ENUMERATOR)
#undef METRIC_ENUMERATOR
        METRIC_COUNT
};

enum request_outcome { REQUEST_SUCCEEDED, REQUEST_CANCELLED, REQUEST_TIMED_OUT, REQUEST_FAILED };

/* Counts an accepted request of this dialect with its outcome. `dialect` is the name in struct
 * generation_kind. */
void metric_add_request(const char *dialect, enum request_outcome outcome);

/* Adds to a counter. */
void metric_add(enum metric metric, uint64_t n);
/* Sets a gauge. A gauge that was never set is not rendered. */
void metric_set(enum metric metric, int64_t value);
/* Sets a metric of kind REAL. */
void metric_set_real(enum metric metric, double value);
/* Adds a value to a histogram: seconds, or a count. Negative values count as 0. */
void metric_observe(enum metric metric, double value);

/* Returns the step_seconds series for a call with this number of rows. */
enum metric metric_step_seconds(int rows);

/* Counts a request that used this adapter. The first METRICS_LORAS_MAX names get a series each. All
 * other names share the series with an empty name. */
void metric_add_lora_request(const char *name);

/* Returns all metrics in text format 0.0.4, malloc'd; NULL if there is no memory. */
char *metrics_render(size_t *size);
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

#endif
