#include "train/report/records.h"

#include "base/file.h"
#include "base/list.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A line has about 300 bytes. */
#define FILE_MAX_BYTES ((size_t)1 << 30)

static const char file_name[] = "metrics.jsonl";

struct records {
    int fd;
    off_t end;
    double measured; /* see records_measured */
    char *path;      /* owned */
};

static const struct member {
    const char *name;
    size_t offset;
} members[] = {
    { "epoch", offsetof(struct train_record, epoch) },
    { "loss", offsetof(struct train_record, loss) },
    { "learning_rate", offsetof(struct train_record, learning_rate) },
    { "text_encoder_learning_rate", offsetof(struct train_record, text_encoder_learning_rate) },
    { "grad_norm", offsetof(struct train_record, grad_norm) },
    { "loss_scale", offsetof(struct train_record, loss_scale) },
    { "images_per_s", offsetof(struct train_record, images_per_s) },
    { "eta_s", offsetof(struct train_record, eta_s) },
    { "validation_loss", offsetof(struct train_record, validation_loss) },
};
#define MEMBERS (sizeof(members) / sizeof(members[0]))

static double *number(const struct train_record *record, const struct member *member) {
    return (double *)((char *)record + member->offset);
}

static bool add_rates(const struct train_record *record, json_t *json) {
    json_t *rates = json_object();
    bool ok = rates;
    for (size_t i = 0; ok && i < record->rate_count; i++)
        ok = json_object_set_new(
                 rates, record->rates[i].pattern, json_real(record->rates[i].value)) == 0;
    ok = ok && json_object_set(json, "group_learning_rates", rates) == 0;
    json_decref(rates);
    return ok;
}

json_t *train_record_to_json(const struct train_record *record) {
    json_t *json = json_pack("{s:I}", "step", (json_int_t)record->step);
    const bool of_a_step = !isfinite(record->validation_loss);
    bool ok = json && (!record->rate_count || add_rates(record, json));
    for (size_t i = 0; ok && i < MEMBERS; i++) {
        const double value = *number(record, &members[i]);
        if (isfinite(value))
            ok = json_object_set_new(json, members[i].name, json_real(value)) == 0;
        else if (of_a_step && strcmp(members[i].name, "loss") == 0)
            ok = json_object_set_new(json, members[i].name, json_null()) == 0;
    }
    if (ok)
        return json;
    json_decref(json);
    return NULL;
}

static bool from_line(const char *line, size_t size, struct train_record *out) {
    json_t *json = json_loadb(line, size, JSON_REJECT_DUPLICATES, NULL);
    const json_t *step = json_object_get(json, "step");
    const bool ok = json_is_integer(step) && json_integer_value(step) > 0;
    *out = (struct train_record){ .step = json_integer_value(step) };
    for (size_t i = 0; i < MEMBERS; i++) {
        const json_t *value = json_object_get(json, members[i].name);
        *number(out, &members[i]) = json_is_number(value) ? json_number_value(value) : NAN;
    }
    json_decref(json);
    return ok;
}

/* Calls `take` for each line, until a line cannot be read or `take` returns false. Returns the
 * number of bytes before that line. */
static size_t each_line(const char *text, size_t size,
    bool (*take)(const struct train_record *record, void *user), void *user) {
    size_t at = 0;
    while (at < size) {
        const char *end = memchr(text + at, '\n', size - at);
        struct train_record record;
        if (!end || !from_line(text + at, (size_t)(end - text) - at, &record) ||
            !take(&record, user))
            break;
        at = (size_t)(end - text) + 1;
    }
    return at;
}

static bool is_before(const struct train_record *record, void *user) {
    return record->step <= *(const int64_t *)user;
}

struct list {
    struct train_record *items;
    size_t count;
    bool failed;
};

static bool append(const struct train_record *record, void *user) {
    struct list *list = user;
    list->failed = !LIST_ROOM(list->items, list->count, "a record", NULL);
    if (list->failed)
        return false;
    list->items[list->count++] = *record;
    return true;
}

/* Reads the whole file. *text is NULL if there is no file yet. */
static bool read_file(const char *folder, char **text, size_t *size, struct error *err) {
    char *path = file_join(folder, file_name);
    *text = NULL;
    *size = 0;
    const bool ok = path ? !file_exists(path) || file_read(path, FILE_MAX_BYTES, text, size, err)
                         : error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    free(path);
    return ok;
}

bool records_read(const char *folder, struct train_record **out, size_t *count, struct error *err) {
    struct list list = { 0 };
    char *text;
    size_t size;
    *out = NULL;
    *count = 0;
    if (!read_file(folder, &text, &size, err))
        return false;
    (void)each_line(text, size, append, &list);
    free(text);
    if (list.failed) {
        free(list.items);
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu steps", list.count);
    }
    *out = list.items;
    *count = list.count;
    return true;
}

static bool is_any(const struct train_record *record, void *user) {
    (void)record, (void)user;
    return true;
}

bool records_lines(const char *folder, int64_t after, char **out, size_t *size, struct error *err) {
    if (!read_file(folder, out, size, err))
        return false;
    if (!*out && !(*out = strdup("")))
        return error_set(err, ERROR_NO_MEMORY, "no memory for an empty text");
    const size_t begin = each_line(*out, *size, is_before, &after);
    const size_t end = begin + each_line(*out + begin, *size - begin, is_any, NULL);
    memmove(*out, *out + begin, end - begin);
    *size = end - begin;
    return true;
}

/* What find_end looks for in the lines. */
struct lookup {
    int64_t resumed_step;
    double measured;
};

static bool is_kept(const struct train_record *record, void *user) {
    struct lookup *l = user;
    if (record->step == l->resumed_step && isfinite(record->validation_loss))
        l->measured = record->validation_loss;
    return record->step <= l->resumed_step;
}

/* Finds where the lines of steps up to `resumed_step` end, and the validation loss of that step. */
static bool find_end(struct records *r, int64_t resumed_step, struct error *err) {
    struct lookup lookup = { resumed_step, NAN };
    char *text;
    size_t size;
    if (!resumed_step || !file_exists(r->path))
        return true;
    if (!file_read(r->path, FILE_MAX_BYTES, &text, &size, err))
        return false;
    r->end = (off_t)each_line(text, size, is_kept, &lookup);
    r->measured = lookup.measured;
    free(text);
    return true;
}

bool records_open(
    const char *folder, int64_t resumed_step, struct records **out, struct error *err) {
    *out = NULL;
    struct records *r = calloc(1, sizeof(*r));
    if (!r || !(r->path = file_join(folder, file_name))) {
        free(r);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    }
    r->fd = -1;
    r->measured = NAN;
    if (!find_end(r, resumed_step, err)) {
        records_close(r);
        return false;
    }
    r->fd = open(r->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (r->fd < 0 || ftruncate(r->fd, r->end) < 0) {
        error_set(err, error_code_of_write(errno), "%s: %s", r->path, strerror(errno));
        records_close(r);
        return false;
    }
    *out = r;
    return true;
}

void records_close(struct records *records) {
    if (!records)
        return;
    if (records->fd >= 0)
        close(records->fd);
    free(records->path);
    free(records);
}

double records_measured(const struct records *records) {
    return records->measured;
}

bool records_add(struct records *records, const struct train_record *record, struct error *err) {
    json_t *json = train_record_to_json(record);
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    if (!text)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a line of %s", file_name);
    const size_t size = strlen(text) + 1;
    text[size - 1] = '\n';
    const ssize_t wrote = pwrite(records->fd, text, size, records->end);
    free(text);
    if (wrote == (ssize_t)size) {
        records->end += wrote;
        return true;
    }
    error_set(err, wrote < 0 ? error_code_of_write(errno) : ERROR_NO_SPACE, "%s: %s", records->path,
        wrote < 0 ? strerror(errno) : "no space left");
    if (ftruncate(records->fd, records->end) < 0)
        return false; /* half a line stays; readers skip it */
    return false;
}
