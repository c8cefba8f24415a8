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
#include <stdio.h>

/* How the requests of one dialect ended, in the order of enum request_outcome. */
#define METRICS_OF_DIALECT(X, dialect, help)                                                       \
    X(requests_##dialect##_succeeded, COUNTER, "latentd_requests_total",                           \
        "dialect=\"" #dialect "\",outcome=\"succeeded\"", help)                                    \
    X(requests_##dialect##_cancelled, COUNTER, "latentd_requests_total",                           \
        "dialect=\"" #dialect "\",outcome=\"cancelled\"", "")                                      \
    X(requests_##dialect##_timed_out, COUNTER, "latentd_requests_total",                           \
        "dialect=\"" #dialect "\",outcome=\"timed_out\"", "")                                      \
    X(requests_##dialect##_failed, COUNTER, "latentd_requests_total",                              \
        "dialect=\"" #dialect "\",outcome=\"failed\"", "")

/* X(symbol, kind, family, label, help): one line per series. All series of a family are adjacent;
 * the first one's help is the family's. Names and units follow Prometheus: counters end in _total,
 * times are in seconds, sizes in bytes; our prefix is latentd_, the process's own figures have the
 * names that Prometheus' client libraries give them. SECONDS and MINUTES are histograms of times;
 * MINUTES has wider buckets, for what takes as long as a picture. The series of job states are in
 * the order of enum job_state. */
#define METRICS(X)                                                                                 \
    METRICS_OF_DIALECT(X, native, "Accepted requests, by how they ended.")                         \
    METRICS_OF_DIALECT(X, a1111, "")                                                               \
    METRICS_OF_DIALECT(X, openai, "")                                                              \
    METRICS_OF_DIALECT(X, huggingface, "")                                                         \
    METRICS_OF_DIALECT(X, job, "")                                                                 \
    X(rejected_total_invalid, COUNTER, "latentd_rejected_total", "reason=\"invalid\"",             \
        "HTTP requests that were refused, by reason.")                                             \
    X(rejected_total_unauthorized, COUNTER, "latentd_rejected_total", "reason=\"unauthorized\"",   \
        "")                                                                                        \
    X(rejected_total_forbidden, COUNTER, "latentd_rejected_total", "reason=\"forbidden\"", "")     \
    X(rejected_total_not_found, COUNTER, "latentd_rejected_total", "reason=\"not_found\"", "")     \
    X(rejected_total_conflict, COUNTER, "latentd_rejected_total", "reason=\"conflict\"", "")       \
    X(rejected_total_too_large, COUNTER, "latentd_rejected_total", "reason=\"too_large\"", "")     \
    X(rejected_total_queue_full, COUNTER, "latentd_rejected_total", "reason=\"queue_full\"", "")   \
    X(rejected_total_too_many_failures, COUNTER, "latentd_rejected_total",                         \
        "reason=\"too_many_failures\"", "")                                                        \
    X(rejected_total_unavailable, COUNTER, "latentd_rejected_total", "reason=\"unavailable\"", "") \
    X(rejected_total_no_memory, COUNTER, "latentd_rejected_total", "reason=\"no_memory\"", "")     \
    X(rejected_total_disk_full, COUNTER, "latentd_rejected_total", "reason=\"disk_full\"", "")     \
    X(rejected_total_other, COUNTER, "latentd_rejected_total", "reason=\"other\"", "")             \
    X(cancelled_total_waiting, COUNTER, "latentd_cancelled_total", "phase=\"waiting\"",            \
        "Requests whose client left or whose time ran out, by where they were.")                   \
    X(cancelled_total_drawing, COUNTER, "latentd_cancelled_total", "phase=\"drawing\"", "")        \
    X(requests_running, GAUGE, "latentd_requests_running", "", "Requests being drawn.")            \
    X(requests_waiting, GAUGE, "latentd_requests_waiting", "", "Requests waiting to be drawn.")    \
    X(queue_seconds, MINUTES, "latentd_queue_seconds", "", "From admission to the first work.")    \
    X(request_seconds, MINUTES, "latentd_request_seconds", "",                                     \
        "From admission to the last picture.")                                                     \
    X(step_seconds_1, SECONDS, "latentd_step_seconds", "rows=\"1\"",                               \
        "One call of the UNet, by its rows.")                                                      \
    X(step_seconds_2, SECONDS, "latentd_step_seconds", "rows=\"2\"", "")                           \
    X(step_seconds_4, SECONDS, "latentd_step_seconds", "rows=\"3-4\"", "")                         \
    X(step_seconds_8, SECONDS, "latentd_step_seconds", "rows=\"5-8\"", "")                         \
    X(step_seconds_16, SECONDS, "latentd_step_seconds", "rows=\"9-16\"", "")                       \
    X(step_seconds_more, SECONDS, "latentd_step_seconds", "rows=\"17-\"", "")                      \
    X(unet_calls_total, COUNTER, "latentd_unet_calls_total", "", "Calls of the UNet.")             \
    X(unet_rows_total, COUNTER, "latentd_unet_rows_total", "",                                     \
        "Rows of those calls: a picture has two, or one if it is not guided.")                     \
    X(batch_distinct_loras, COUNTS, "latentd_batch_distinct_loras", "",                            \
        "Different adapters in one call of the UNet.")                                             \
    X(steps_total, COUNTER, "latentd_steps_total", "", "Steps of single pictures.")                \
    X(images_total, COUNTER, "latentd_images_total", "", "Finished pictures.")                     \
    X(text_encoder_seconds, SECONDS, "latentd_text_encoder_seconds", "",                           \
        "The text encoder, a request at a time.")                                                  \
    X(text_cache_hits_total, COUNTER, "latentd_text_cache_hits_total", "",                         \
        "Texts that were found encoded.")                                                          \
    X(text_cache_misses_total, COUNTER, "latentd_text_cache_misses_total", "",                     \
        "Texts that had to be encoded.")                                                           \
    X(text_cache_bytes, GAUGE, "latentd_text_cache_bytes", "",                                     \
        "Memory of the encoded texts kept.")                                                       \
    X(vae_seconds, SECONDS, "latentd_vae_seconds", "", "Decoding one picture.")                    \
    X(png_seconds, SECONDS, "latentd_png_seconds", "", "Making one answer's PNGs and JSON.")       \
    X(lora_loaded, GAUGE, "latentd_lora_loaded", "", "Adapters in memory.")                        \
    X(lora_bytes, GAUGE, "latentd_lora_bytes", "",                                                 \
        "Memory of the adapters and what is made of them.")                                        \
    X(lora_load_seconds, MINUTES, "latentd_lora_load_seconds", "",                                 \
        "From an adapter's last byte until it can be used.")                                       \
    X(jobs_queued, GAUGE, "latentd_jobs", "state=\"queued\"", "Jobs, by their state.")             \
    X(jobs_running, GAUGE, "latentd_jobs", "state=\"running\"", "")                                \
    X(jobs_paused, GAUGE, "latentd_jobs", "state=\"paused\"", "")                                  \
    X(jobs_succeeded, GAUGE, "latentd_jobs", "state=\"succeeded\"", "")                            \
    X(jobs_failed, GAUGE, "latentd_jobs", "state=\"failed\"", "")                                  \
    X(jobs_cancelled, GAUGE, "latentd_jobs", "state=\"cancelled\"", "")                            \
    X(jobs_accepted_total, COUNTER, "latentd_jobs_accepted_total", "", "Jobs that were accepted.") \
    X(jobs_ended_total_succeeded, COUNTER, "latentd_jobs_ended_total", "state=\"succeeded\"",      \
        "Jobs that ended, by their last state.")                                                   \
    X(jobs_ended_total_failed, COUNTER, "latentd_jobs_ended_total", "state=\"failed\"", "")        \
    X(jobs_ended_total_cancelled, COUNTER, "latentd_jobs_ended_total", "state=\"cancelled\"", "")  \
    X(train_jobs_queued, GAUGE, "latentd_train_jobs", "state=\"queued\"",                          \
        "Training jobs, by their state.")                                                          \
    X(train_jobs_running, GAUGE, "latentd_train_jobs", "state=\"running\"", "")                    \
    X(train_jobs_paused, GAUGE, "latentd_train_jobs", "state=\"paused\"", "")                      \
    X(train_jobs_succeeded, GAUGE, "latentd_train_jobs", "state=\"succeeded\"", "")                \
    X(train_jobs_failed, GAUGE, "latentd_train_jobs", "state=\"failed\"", "")                      \
    X(train_jobs_cancelled, GAUGE, "latentd_train_jobs", "state=\"cancelled\"", "")                \
    X(train_steps_total, COUNTER, "latentd_train_steps_total", "", "Steps of training.")           \
    X(train_step_seconds, MINUTES, "latentd_train_step_seconds", "",                               \
        "One step of training, including the time it waited for requests.")                        \
    X(train_preempted_total, COUNTER, "latentd_train_preempted_total", "",                         \
        "Times that training stepped aside for requests.")                                         \
    X(train_loss, REAL, "latentd_train_loss", "", "The loss of the last step of training.")        \
    X(job_watchers, GAUGE, "latentd_job_watchers", "", "Clients that wait for news of jobs.")      \
    X(gpu_memory_bytes_total, GAUGE, "latentd_gpu_memory_bytes", "kind=\"total\"",                 \
        "Memory of the accelerator.")                                                              \
    X(gpu_memory_bytes_free, GAUGE, "latentd_gpu_memory_bytes", "kind=\"free\"", "")               \
    X(gpu_memory_bytes_weights, GAUGE, "latentd_gpu_memory_bytes", "kind=\"weights\"", "")         \
    X(gpu_memory_bytes_activations, GAUGE, "latentd_gpu_memory_bytes", "kind=\"activations\"", "") \
    X(process_start_time_seconds, REAL, "process_start_time_seconds", "",                          \
        "When this process began, in seconds since 1970.")                                         \
    X(process_cpu_seconds_total, REAL_COUNTER, "process_cpu_seconds_total", "",                    \
        "Time that the processors worked for this process.")                                       \
    X(process_resident_memory_bytes, GAUGE, "process_resident_memory_bytes", "",                   \
        "Memory of this process that is resident.")                                                \
    X(process_virtual_memory_bytes, GAUGE, "process_virtual_memory_bytes", "",                     \
        "Address space of this process.")                                                          \
    X(process_open_fds, GAUGE, "process_open_fds", "", "Files, sockets and pipes that are open.")  \
    X(process_max_fds, GAUGE, "process_max_fds", "", "How many of them may be open.")

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
/* Sets a metric of kind REAL or REAL_COUNTER. */
void metric_set_real(enum metric metric, double value);
/* Adds a value to a histogram: seconds, or a count. Negative values count as 0. */
void metric_observe(enum metric metric, double value);

/* Returns the step_seconds series for a call with this number of rows. */
enum metric metric_step_seconds(int rows);

/* Counts a request that used this adapter. The first METRICS_LORAS_MAX names get a series each. All
 * other names are counted together, in a family of their own, because any label could be a name. */
void metric_add_lora_request(const char *name);

/* Returns all metrics in text format 0.0.4, malloc'd; NULL if there is no memory. `put_more` writes
 * further families behind them; it may be NULL. */
char *metrics_render(void (*put_more)(FILE *out), size_t *size);
/* Writes the two lines that begin a family: its help and its type ("counter", "gauge"). */
void metrics_put_head(FILE *out, const char *family, const char *help, const char *type);
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

#endif
