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
    METRICS_OF_DIALECT(                                                                            \
        X, native, "Accepted requests for pictures that have ended, by API and outcome.")          \
    METRICS_OF_DIALECT(X, a1111, "")                                                               \
    METRICS_OF_DIALECT(X, openai, "")                                                              \
    METRICS_OF_DIALECT(X, huggingface, "")                                                         \
    METRICS_OF_DIALECT(X, job, "")                                                                 \
    X(rejected_total_invalid, COUNTER, "latentd_rejected_total", "reason=\"invalid\"",             \
        "Refused HTTP requests, by reason.")                                                       \
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
        "Requests that ended early by a cancel, a client that left or a time limit, by phase.")    \
    X(cancelled_total_drawing, COUNTER, "latentd_cancelled_total", "phase=\"drawing\"", "")        \
    X(requests_running, GAUGE, "latentd_requests_running", "",                                     \
        "Requests that are being drawn now.")                                                      \
    X(requests_waiting, GAUGE, "latentd_requests_waiting", "",                                     \
        "Accepted requests that have not been started yet.")                                       \
    X(queue_seconds, MINUTES, "latentd_queue_seconds", "",                                         \
        "Time a request waited, from its acceptance to its start.")                                \
    X(request_seconds, MINUTES, "latentd_request_seconds", "",                                     \
        "Time a request took, from its acceptance to its last picture.")                           \
    X(step_seconds_1, SECONDS, "latentd_step_seconds", "rows=\"1\"",                               \
        "Duration of one call of the UNet, by the number of rows in the call.")                    \
    X(step_seconds_2, SECONDS, "latentd_step_seconds", "rows=\"2\"", "")                           \
    X(step_seconds_4, SECONDS, "latentd_step_seconds", "rows=\"3-4\"", "")                         \
    X(step_seconds_8, SECONDS, "latentd_step_seconds", "rows=\"5-8\"", "")                         \
    X(step_seconds_16, SECONDS, "latentd_step_seconds", "rows=\"9-16\"", "")                       \
    X(step_seconds_more, SECONDS, "latentd_step_seconds", "rows=\"17-\"", "")                      \
    X(unet_calls_total, COUNTER, "latentd_unet_calls_total", "", "Calls of the UNet.")             \
    X(unet_rows_total, COUNTER, "latentd_unet_rows_total", "",                                     \
        "Rows in all calls of the UNet. A picture has one row, two with guidance, and one for "    \
        "each AND.")                                                                               \
    X(batch_distinct_loras, COUNTS, "latentd_batch_distinct_loras", "",                            \
        "Number of different adapters in one call of the UNet.")                                   \
    X(steps_total, COUNTER, "latentd_steps_total", "",                                             \
        "Denoising steps, counted for each picture separately.")                                   \
    X(images_total, COUNTER, "latentd_images_total", "", "Finished pictures.")                     \
    X(text_encoder_seconds, SECONDS, "latentd_text_encoder_seconds", "",                           \
        "Time to encode the texts of one picture, or its new texts before a step, or to find "     \
        "them in the cache.")                                                                      \
    X(text_cache_hits_total, COUNTER, "latentd_text_cache_hits_total", "",                         \
        "Texts whose encoding was in the cache.")                                                  \
    X(text_cache_misses_total, COUNTER, "latentd_text_cache_misses_total", "",                     \
        "Texts whose encoding was not in the cache and was computed.")                             \
    X(text_cache_bytes, GAUGE, "latentd_text_cache_bytes", "",                                     \
        "Memory of the encoded texts in the cache.")                                               \
    X(vae_seconds, SECONDS, "latentd_vae_seconds", "", "Time to decode one picture by the VAE.")   \
    X(png_seconds, SECONDS, "latentd_png_seconds", "",                                             \
        "Time to encode the picture files and the JSON of one answer.")                            \
    X(lora_loaded, GAUGE, "latentd_lora_loaded", "", "Adapters that are loaded into memory.")      \
    X(lora_bytes, GAUGE, "latentd_lora_bytes", "",                                                 \
        "Memory of the loaded adapters and of the weights computed from them.")                    \
    X(lora_load_seconds, MINUTES, "latentd_lora_load_seconds", "",                                 \
        "Time from the last byte of an adapter's file until the adapter can be used.")             \
    X(jobs_queued, GAUGE, "latentd_jobs", "state=\"queued\"", "Stored jobs, by state.")            \
    X(jobs_running, GAUGE, "latentd_jobs", "state=\"running\"", "")                                \
    X(jobs_paused, GAUGE, "latentd_jobs", "state=\"paused\"", "")                                  \
    X(jobs_succeeded, GAUGE, "latentd_jobs", "state=\"succeeded\"", "")                            \
    X(jobs_failed, GAUGE, "latentd_jobs", "state=\"failed\"", "")                                  \
    X(jobs_cancelled, GAUGE, "latentd_jobs", "state=\"cancelled\"", "")                            \
    X(jobs_accepted_total, COUNTER, "latentd_jobs_accepted_total", "", "Jobs that were accepted.") \
    X(jobs_ended_total_succeeded, COUNTER, "latentd_jobs_ended_total", "state=\"succeeded\"",      \
        "Jobs that have ended, by final state.")                                                   \
    X(jobs_ended_total_failed, COUNTER, "latentd_jobs_ended_total", "state=\"failed\"", "")        \
    X(jobs_ended_total_cancelled, COUNTER, "latentd_jobs_ended_total", "state=\"cancelled\"", "")  \
    X(train_jobs_queued, GAUGE, "latentd_train_jobs", "state=\"queued\"",                          \
        "Stored training jobs, by state.")                                                         \
    X(train_jobs_running, GAUGE, "latentd_train_jobs", "state=\"running\"", "")                    \
    X(train_jobs_paused, GAUGE, "latentd_train_jobs", "state=\"paused\"", "")                      \
    X(train_jobs_succeeded, GAUGE, "latentd_train_jobs", "state=\"succeeded\"", "")                \
    X(train_jobs_failed, GAUGE, "latentd_train_jobs", "state=\"failed\"", "")                      \
    X(train_jobs_cancelled, GAUGE, "latentd_train_jobs", "state=\"cancelled\"", "")                \
    X(train_steps_total, COUNTER, "latentd_train_steps_total", "",                                 \
        "Training steps that were completed.")                                                     \
    X(train_step_seconds, MINUTES, "latentd_train_step_seconds", "",                               \
        "Duration of one training step, including the time it waited for requests.")               \
    X(train_preempted_total, COUNTER, "latentd_train_preempted_total", "",                         \
        "How often training was interrupted to draw requests.")                                    \
    X(train_loss, REAL, "latentd_train_loss", "", "Loss of the latest training step.")             \
    X(job_watchers, GAUGE, "latentd_job_watchers", "",                                             \
        "Clients that wait for the end or the events of a job.")                                   \
    X(gpu_memory_bytes_total, GAUGE, "latentd_gpu_memory_bytes", "kind=\"total\"",                 \
        "Memory of the GPU, by kind.")                                                             \
    X(gpu_memory_bytes_free, GAUGE, "latentd_gpu_memory_bytes", "kind=\"free\"", "")               \
    X(gpu_memory_bytes_weights, GAUGE, "latentd_gpu_memory_bytes", "kind=\"weights\"", "")         \
    X(gpu_memory_bytes_activations, GAUGE, "latentd_gpu_memory_bytes", "kind=\"activations\"", "") \
    X(process_start_time_seconds, REAL, "process_start_time_seconds", "",                          \
        "Start time of the process, in seconds since 1970.")                                       \
    X(process_cpu_seconds_total, REAL_COUNTER, "process_cpu_seconds_total", "",                    \
        "Processor time used by the process, in user and system mode.")                            \
    X(process_resident_memory_bytes, GAUGE, "process_resident_memory_bytes", "",                   \
        "Resident memory of the process.")                                                         \
    X(process_virtual_memory_bytes, GAUGE, "process_virtual_memory_bytes", "",                     \
        "Virtual memory of the process.")                                                          \
    X(process_open_fds, GAUGE, "process_open_fds", "",                                             \
        "File descriptors that the process has open.")                                             \
    X(process_max_fds, GAUGE, "process_max_fds", "", "Limit of open file descriptors.")

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
