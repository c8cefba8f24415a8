#include "server/generation/results.h"

#include "base/file.h"
#include "base/log.h"
#include "engine/training_job/folder.h"
#include "pictures/encode.h"
#include "server/generation/orders.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LATENT_EXTENSION "f32" /* float32, little-endian, [channels][height][width] */

/* --- Writing --- */

static const char *extension_of(const struct resolved_request *request) {
    return request->asked.latent_output ? LATENT_EXTENSION
                                        : picture_format_name(request->asked.format);
}

/* Encodes one image; *bytes is malloc'd. */
static bool make(const struct generate_answer *answer, int index, uint8_t **bytes, size_t *size,
    struct error *err) {
    const struct generate_result *r = answer->result;
    if (r->images)
        return generate_answer_picture(answer, index, bytes, size, err);
    const size_t count = (size_t)r->latent_channels * (size_t)r->latent_height *
                         (size_t)r->latent_width;
    *size = count * sizeof(float);
    *bytes = malloc(*size);
    if (!*bytes)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the latents");
    memcpy(*bytes, r->latents + (size_t)index * count, *size);
    return true;
}

static bool write_one(const char *folder, const char *id, const struct generate_answer *answer,
    int index, json_t *images, struct error *err) {
    const struct generate_result *r = answer->result;
    const char *extension = extension_of(answer->request);
    uint8_t *bytes = NULL;
    size_t size = 0;
    char *path = NULL;
    if (asprintf(&path, "%s/images/%d.%s", folder, index, extension) < 0)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    bool ok = make(answer, index, &bytes, &size, err);
    if (ok)
        ok = file_write(path, &(struct file_part){ bytes, size }, 1, err);
    free(bytes);
    free(path);
    if (!ok)
        return false;
    json_t *item = json_pack("{s:o, s:s, s:I, s:I, s:i, s:i}", "url",
        json_sprintf("/jobs/%s/images/%d.%s", id, index, extension), "format",
        r->images ? extension : "latent", "bytes", (json_int_t)size, "seed",
        (json_int_t)r->seeds[index], "width", r->width, "height", r->height);
    if (item && r->images)
        json_object_set_new(item, "nsfw", r->nsfw ? json_boolean(r->nsfw[index]) : json_null());
    if (item && !r->images) {
        json_object_set_new(item, "dtype", json_string("float32"));
        json_object_set_new(item, "shape",
            json_pack("[iii]", r->latent_channels, r->latent_height, r->latent_width));
    }
    return json_array_append_new(images, item) == 0;
}

bool results_write(const char *folder, const char *id, const struct generate_answer *answer,
    json_t **out, struct error *err) {
    char *images_folder = file_join(folder, "images");
    json_t *images = json_array();
    bool ok = images_folder && images && job_folder_make(images_folder, err);
    for (int i = 0; ok && i < answer->result->image_count; i++)
        ok = write_one(folder, id, answer, i, images, err);
    free(images_folder);
    *out = ok ? generate_answer_about_json(answer, json_incref(images)) : NULL;
    json_decref(images);
    return *out;
}

char *results_picture(const char *folder, const char *name, const char **media_type) {
    const size_t digits = strspn(name, "0123456789");
    enum picture_format format;
    char *path;
    if (digits < 1 || digits > 2 || name[digits] != '.')
        return NULL;
    const char *extension = name + digits + 1;
    *media_type = "application/octet-stream";
    if (picture_format_from_name(extension, &format))
        *media_type = picture_media_type(format);
    else if (strcmp(extension, LATENT_EXTENSION) != 0)
        return NULL;
    return asprintf(&path, "%s/images/%s", folder, name) < 0 ? NULL : path;
}

/* --- Removing --- */

static int64_t clock_ms(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* When a job's pictures were made, in ms of CLOCK_BOOTTIME, which also counts while the machine
 * sleeps. */
struct results_born {
    char id[JOB_ID_BYTES];
    int64_t born_ms;
};

void results_ages_finish(struct results_ages *ages) {
    free(ages->items);
    *ages = (struct results_ages){ 0 };
}

static int by_id(const void *a, const void *b) {
    return strcmp(((const struct results_born *)a)->id, ((const struct results_born *)b)->id);
}

/* Returns when the job's pictures were made. Pictures that are seen for the first time are taken to
 * be no older than the last sweep, whatever the system clock says. */
static int64_t find_born_ms(
    const struct results_ages *ages, const struct job *job, int64_t boot_ms) {
    struct results_born key;
    snprintf(key.id, sizeof(key.id), "%s", job->id);
    const struct results_born *known = ages->count > 0
                                           ? bsearch(&key, ages->items, (size_t)ages->count,
                                                 sizeof(key), by_id)
                                           : NULL;
    if (known)
        return known->born_ms;
    int64_t age_ms = clock_ms(CLOCK_REALTIME) - job->finished_ms;
    if (ages->last_ms && age_ms > boot_ms - ages->last_ms)
        age_ms = boot_ms - ages->last_ms;
    return boot_ms - (age_ms > 0 ? age_ms : 0);
}

static uint64_t bytes_of(const struct job *job) {
    json_t *result = job->result ? json_loads(job->result, 0, NULL) : NULL, *image;
    uint64_t bytes = 0;
    size_t i;
    json_array_foreach(json_object_get(result, "images"), i, image)
        bytes += (uint64_t)json_integer_value(json_object_get(image, "bytes"));
    json_decref(result);
    return bytes;
}

struct sweep {
    const struct http_options *options;
    const struct results_ages *before;
    struct results_ages now; /* of the pictures that are kept */
    uint64_t kept;           /* total size of the kept pictures */
    int removed;
};

/* Removes what one job no longer needs. Call it for the newest job first, because pictures are kept
 * until the size limit is reached. */
static void sweep_one(const struct job *job, struct sweep *sweep) {
    const struct http_options *options = sweep->options;
    char *folder = job_folder_path(options->state_folder, job->id);
    char *images = folder ? file_join(folder, "images") : NULL;
    char *order = folder ? file_join(folder, "request.json") : NULL;
    if (order)
        unlink(order); /* succeeded or cancelled: it cannot begin again */
    if (images && file_is_folder(images)) {
        const uint64_t bytes = bytes_of(job);
        const int64_t born_ms = find_born_ms(sweep->before, job, sweep->now.last_ms);
        const int64_t age_s = (sweep->now.last_ms - born_ms) / 1000;
        if (job->state == JOB_CANCELLED || age_s >= options->results_max_age_s ||
            sweep->kept + bytes > options->results_max_bytes) {
            file_remove_tree(AT_FDCWD, images);
            sweep->removed++;
        } else {
            struct results_born *born = &sweep->now.items[sweep->now.count++];
            snprintf(born->id, sizeof(born->id), "%s", job->id);
            born->born_ms = born_ms;
            sweep->kept += bytes;
        }
    }
    free(order);
    free(images);
    free(folder);
}

void results_sweep(
    struct queue *queue, const struct http_options *options, struct results_ages *ages) {
    const struct job_filter done = {
        .states = 1u << JOB_SUCCEEDED | 1u << JOB_CANCELLED,
        .type = GENERATE_JOB_TYPE,
        .newest_first = true,
    };
    struct job_list list;
    struct error err;
    struct sweep sweep = {
        .options = options, .before = ages, .now = { .last_ms = clock_ms(CLOCK_BOOTTIME) }
    };
    if (!queue_list(queue, &done, &list, &err)) {
        log_warning("old pictures of jobs are not removed: %s", err.message);
        return;
    }
    sweep.now.items = calloc((size_t)list.count + 1, sizeof(*sweep.now.items));
    if (!sweep.now.items)
        log_warning("old pictures of jobs are not removed: no memory");
    for (int i = 0; sweep.now.items && i < list.count; i++)
        sweep_one(&list.jobs[i], &sweep);
    job_list_finish(&list);
    if (!sweep.now.items)
        return;
    qsort(sweep.now.items, (size_t)sweep.now.count, sizeof(*sweep.now.items), by_id);
    results_ages_finish(ages);
    *ages = sweep.now;
    if (sweep.removed > 0)
        log_info("the pictures of %d jobs have expired", sweep.removed);
}

/* Returns whether the folder `name` in `at` contains nothing but the files of an order. */
static bool is_of_an_order(int at, const char *name) {
    const int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool ours = true;
    for (struct dirent *e; ours && (e = readdir(dir));)
        ours = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
               strcmp(e->d_name, "images") == 0 || strncmp(e->d_name, "request.json", 12) == 0;
    closedir(dir);
    return ours;
}

void results_remove_orphans(struct queue *queue, const char *state_folder) {
    char *folder = file_join(state_folder, "jobs");
    DIR *dir = folder ? opendir(folder) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        struct job job;
        struct error err = { 0 };
        if (strlen(e->d_name) != JOB_ID_BYTES - 1 || !is_of_an_order(dirfd(dir), e->d_name))
            continue;
        if (queue_get(queue, e->d_name, &job, &err))
            job_finish(&job);
        else if (err.code == ERROR_NOT_FOUND)
            file_remove_tree(dirfd(dir), e->d_name);
    }
    if (dir)
        closedir(dir);
    free(folder);
}
