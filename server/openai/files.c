/* OpenAI's /v1/files for data sets (docs/datasets.md). A file is a tar archive, plain or gzip. It
 * is unpacked into a data set, and its id is made from the data set's name. Only the archive's
 * contents are kept. */
#include "base/random.h"
#include "queue/queue.h"
#include "server/http/caller.h"
#include "server/http/multipart.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/later/task.h"
#include "server/openai/fine_tuning_json.h"
#include "server/training/dataset_routes.h"
#include "train/data/store.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX "/v1/files/"
#define PURPOSE "fine-tune"
#define NAME_BYTES (DATASET_NAME_MAX_BYTES + 1)
#define ID_BYTES (NAME_BYTES + 16)
#define STEM_BYTES 100 /* taken from the file name */
#define LIMIT_MAX 10000

static struct dataset_store *store_of(const struct exchange *exchange) {
    return exchange->server->options.datasets;
}

static json_t *file_json(struct dataset_store *store, const char *name, struct error *err) {
    int64_t created_s;
    uint64_t bytes;
    if (!dataset_store_measure(store, name, &created_s, &bytes, err))
        return NULL;
    return json_pack("{s:o, s:s, s:I, s:I, s:o, s:s, s:s}", "id", json_sprintf("file-%s", name),
        "object", "file", "bytes", (json_int_t)bytes, "created_at", (json_int_t)created_s,
        "filename", json_sprintf("%s.tar", name), "purpose", PURPOSE, "status", "processed");
}

/* --- An upload in progress: exchange->upload --- */

enum part { PART_NONE, PART_FILE, PART_PURPOSE };

struct file_upload {
    struct multipart *multipart; /* owned */
    struct dataset_store *store;
    struct dataset_upload *upload; /* owned; NULL: no file received yet */
    enum part part;
    char name[NAME_BYTES];
    char purpose[32];
    size_t purpose_bytes;
};

static void file_upload_destroy(struct file_upload *f) {
    multipart_abort(f->multipart);
    dataset_upload_abort(f->upload);
    free(f);
}

/* Makes the beginning of a data set's name from a file name: "my cats.tar.gz" becomes "my-cats". */
static void name_of_file(const char *file_name, char out[STEM_BYTES + 1]) {
    static const char *const endings[] = { ".tar", ".tar.gz", ".tgz" };
    size_t length = strlen(file_name);
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        const size_t ending = strlen(endings[i]);
        if (length > ending && strcmp(file_name + length - ending, endings[i]) == 0)
            length -= ending;
    }
    size_t used = 0;
    for (size_t i = 0; i < length && used < STEM_BYTES; i++) {
        const char c = file_name[i];
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                           (c >= '0' && c <= '9');
        if (plain)
            out[used++] = c;
        else if (used > 0) /* the first is a letter or a digit */
            out[used++] = c == '.' || c == '_' ? c : '-';
    }
    out[used] = 0;
    if (used == 0)
        snprintf(out, STEM_BYTES + 1, "file");
}

/* Begins a data set under the file's name, or with a random suffix if that name is taken. */
static bool begin_file(struct file_upload *f, const char *file_name, struct error *err) {
    char stem[STEM_BYTES + 1];
    char random[9];
    if (f->upload)
        return error_field(err, "file", "several files", "one file");
    name_of_file(file_name ? file_name : "", stem);
    snprintf(f->name, sizeof(f->name), "%s", stem);
    if (dataset_upload_begin(f->store, f->name, 0, &f->upload, err))
        return true;
    if (err->code != ERROR_CONFLICT)
        return false;
    if (!random_text(random, 4, err))
        return false;
    snprintf(f->name, sizeof(f->name), "%s-%s", stem, random);
    return dataset_upload_begin(f->store, f->name, 0, &f->upload, err);
}

static bool begin_part(void *user, const char *name, const char *file_name, struct error *err) {
    struct file_upload *f = user;
    f->part = PART_NONE;
    if (strcmp(name, "file") == 0) {
        f->part = PART_FILE;
        return begin_file(f, file_name, err);
    }
    if (strcmp(name, "purpose") == 0 && f->purpose_bytes == 0) {
        f->part = PART_PURPOSE;
        return true;
    }
    return error_field(err, name, "given",
        strncmp(name, "expires_after", strlen("expires_after")) == 0
            ? "nothing: files stay until they are deleted"
            : OPENAI_NO_SUCH_FIELD);
}

static bool write_part(void *user, const void *bytes, size_t size, struct error *err) {
    struct file_upload *f = user;
    if (f->part == PART_FILE)
        return dataset_upload_write(f->upload, bytes, size, err);
    if (size > sizeof(f->purpose) - 1 - f->purpose_bytes)
        return error_field(err, "purpose", "a longer text", "\"" PURPOSE "\"");
    memcpy(f->purpose + f->purpose_bytes, bytes, size);
    f->purpose_bytes += size;
    return true;
}

static uint64_t upload_max_bytes(const struct exchange *exchange) {
    return exchange->server->options.dataset_max_bytes;
}

static bool upload_begin(struct exchange *exchange, struct error *err) {
    struct file_upload *f = calloc(1, sizeof(*f));
    if (!f)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an upload");
    const struct multipart_receiver receiver = { begin_part, write_part, f };
    f->store = store_of(exchange);
    if (!multipart_create(exchange->http, &receiver, &f->multipart, err)) {
        file_upload_destroy(f);
        return false;
    }
    exchange->upload = f;
    return true;
}

static bool upload_write(
    struct exchange *exchange, const void *bytes, size_t size, struct error *err) {
    struct file_upload *f = exchange->upload;
    return multipart_write(f->multipart, bytes, size, err);
}

static void upload_give_up(struct exchange *exchange) {
    file_upload_destroy(exchange->upload);
    exchange->upload = NULL;
}

/* Checks the form when all of its parts have arrived. */
static bool check_form(struct file_upload *f, struct error *err) {
    struct multipart *multipart = f->multipart;
    f->multipart = NULL;
    if (!multipart_end(multipart, err))
        return false;
    if (!f->upload)
        return error_field(err, "file", "", "it is required: a tar archive");
    return strcmp(f->purpose, PURPOSE) == 0 ||
           error_field(err, "purpose", f->purpose, "\"" PURPOSE "\": files are data sets");
}

/* --- On the workers' threads --- */

struct file_task {
    struct task task; /* the first member */
    struct dataset_store *store;
    struct queue *queue;
    struct viewer viewer;
    struct file_upload *upload; /* owned */
    char name[NAME_BYTES];      /* data set's name; "": malformed id */
    char id[ID_BYTES], after[ID_BYTES];
    int limit;
    bool oldest_first, other_purpose;
};

static struct file_task *task_of(struct task *task) {
    return (struct file_task *)task;
}

static void destroy(struct task *task) {
    if (task_of(task)->upload)
        file_upload_destroy(task_of(task)->upload);
    free(task);
}

static bool no_such_file(const char *id, struct error *err) {
    return error_set(err, ERROR_NOT_FOUND, "there is no file %s", id);
}

static bool create(struct task *task, struct error *err) {
    struct file_task *t = task_of(task);
    struct dataset_upload *upload = t->upload->upload;
    json_t *report = NULL;
    t->upload->upload = NULL;
    const bool ok = dataset_upload_end(
        upload, (struct cancel){ task_is_cancelled, task }, &report, err);
    json_decref(report);
    if (!ok && err->code == ERROR_INVALID && !err->param[0]) {
        snprintf(err->param, sizeof(err->param), "file");
        snprintf(err->value, sizeof(err->value), "the archive"); /* it was not missing */
    }
    task->json = ok ? file_json(t->store, t->upload->name, err) : NULL;
    return task->json;
}

static bool describe(struct task *task, struct error *err) {
    struct file_task *t = task_of(task);
    task->json = t->name[0] ? file_json(t->store, t->name, err) : NULL;
    return task->json ||
           (err->code != ERROR_NONE && err->code != ERROR_NOT_FOUND ? false
                                                                    : no_such_file(t->id, err));
}

/* Refuses an existing file's content. */
static bool refuse_content(struct task *task, struct error *err) {
    if (!describe(task, err))
        return false;
    json_decref(task->json);
    task->json = NULL;
    return error_set(err, ERROR_UNSUPPORTED,
        "the archive cannot be downloaded: the daemon keeps its pictures, not the archive");
}

static bool delete_one(struct task *task, struct error *err) {
    struct file_task *t = task_of(task);
    if (!t->name[0])
        return no_such_file(t->id, err);
    if (!dataset_is_unused(t->queue, t->name, &t->viewer, err) ||
        !dataset_store_delete(t->store, t->name, err))
        return err->code == ERROR_NOT_FOUND ? no_such_file(t->id, err) : false;
    task->json = json_pack("{s:s, s:s, s:b}", "id", t->id, "object", "file", "deleted", 1);
    return task->json;
}

static int by_age(const void *a, const void *b) {
    const json_t *const *x = a, *const *y = b;
    const json_int_t at = json_integer_value(json_object_get(*x, "created_at"));
    const json_int_t other = json_integer_value(json_object_get(*y, "created_at"));
    return at != other ? (at < other ? -1 : 1)
                       : strcmp(json_string_value(json_object_get(*x, "id")),
                             json_string_value(json_object_get(*y, "id")));
}

/* Answers with one page of `files`, which are sorted by age. */
static bool tell_page(struct file_task *t, json_t **files, size_t count, struct error *err) {
    json_t *items = json_array();
    bool begun = !t->after[0], has_more = false;
    for (size_t i = 0; i < count; i++) {
        json_t *file = files[t->oldest_first ? i : count - 1 - i];
        if (!begun)
            begun = strcmp(json_string_value(json_object_get(file, "id")), t->after) == 0;
        else if (json_array_size(items) < (size_t)t->limit)
            json_array_append(items, file);
        else
            has_more = true;
    }
    const size_t told = json_array_size(items);
    json_t *first = json_object_get(json_array_get(items, 0), "id");
    json_t *last = told ? json_object_get(json_array_get(items, told - 1), "id") : NULL;
    if (begun)
        t->task.json = json_pack("{s:s, s:O, s:b, s:O?, s:O?}", "object", "list", "data", items,
            "has_more", has_more, "first_id", first, "last_id", last);
    else
        error_field(err, "after", t->after, "the id of a file");
    json_decref(items);
    return t->task.json;
}

static bool list(struct task *task, struct error *err) {
    struct file_task *t = task_of(task);
    json_t *names, *name;
    size_t i, count = 0;
    if (!dataset_store_list(t->store, &names, err))
        return false;
    json_t **files = calloc(json_array_size(names) + 1, sizeof(*files));
    bool ok = files;
    json_array_foreach(names, i, name) {
        struct error why = { 0 };
        json_t *file = ok && !t->other_purpose ? file_json(t->store, json_string_value(name), &why)
                                               : NULL;
        if (file) /* NULL: deleted since the listing */
            files[count++] = file;
    }
    if (ok && count > 0)
        qsort(files, count, sizeof(*files), by_age);
    ok = ok && tell_page(t, files, count, err);
    while (count > 0)
        json_decref(files[--count]);
    free(files);
    json_decref(names);
    return ok;
}

/* --- The methods --- */

static bool may_come(const struct exchange *exchange, struct error *err) {
    return store_of(exchange) ||
           error_set(err, ERROR_UNSUPPORTED,
               "this daemon has no folder of data sets; start it with --dataset-root FOLDER");
}

static struct file_task *new_task(const struct exchange *exchange) {
    struct file_task *t = calloc(1, sizeof(*t));
    size_t length;
    if (!t)
        return NULL;
    t->store = store_of(exchange);
    t->queue = exchange->server->options.queue;
    t->viewer = viewer_of(exchange);
    if (!exchange->route->is_prefix && !exchange->route->suffix)
        return t;
    const char *piece = route_piece(exchange->route, exchange->target, &length);
    snprintf(t->id, ID_BYTES, "%.*s", (int)(length < ID_BYTES ? length : ID_BYTES - 1), piece);
    const char *name = fine_tuning_file_of(t->id);
    if (name && strlen(name) < NAME_BYTES && dataset_name_check("id", name, NULL))
        snprintf(t->name, sizeof(t->name), "%s", name);
    return t;
}

static enum MHD_Result start(
    struct exchange *exchange, bool (*run)(struct task *task, struct error *err)) {
    struct error err = { 0 };
    if (!openai_query_none(exchange->target, &err))
        return respond_error(exchange, &err);
    return task_start(
        (struct task *)new_task(exchange), exchange, exchange->server->walkers, run, destroy);
}

static enum MHD_Result handle_create(struct exchange *exchange) {
    struct error err = { 0 };
    struct file_upload *upload = exchange->upload;
    exchange->upload = NULL;
    if (!check_form(upload, &err)) {
        file_upload_destroy(upload);
        return respond_error(exchange, &err);
    }
    struct file_task *t = new_task(exchange);
    if (t)
        t->upload = upload;
    else
        file_upload_destroy(upload);
    return task_start((struct task *)t, exchange, exchange->server->unpackers, create, destroy);
}

static enum MHD_Result handle_list(struct exchange *exchange) {
    struct query_field fields[] = { { "after" }, { "limit" }, { "order" }, { "purpose" },
        { OPENAI_API_VERSION } };
    struct error err = { 0 };
    long long limit = LIMIT_MAX;
    const char *order = fields[2].value;
    bool ok = query_parse(exchange->target, fields, 5, &err) &&
              query_integer(&fields[1], 1, LIMIT_MAX, &limit, &err);
    if (ok && fields[2].given && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        ok = error_field(&err, "order", order, "asc or desc");
    if (!ok)
        return respond_error(exchange, &err);
    struct file_task *t = new_task(exchange);
    if (t) {
        t->limit = (int)limit;
        t->oldest_first = strcmp(order, "asc") == 0;
        t->other_purpose = fields[3].given && strcmp(fields[3].value, PURPOSE) != 0;
        snprintf(t->after, sizeof(t->after), "%.*s", (int)sizeof(t->after) - 1, fields[0].value);
    }
    return task_start((struct task *)t, exchange, exchange->server->walkers, list, destroy);
}

static enum MHD_Result handle_get(struct exchange *exchange) {
    return start(exchange, describe);
}

static enum MHD_Result handle_delete(struct exchange *exchange) {
    return start(exchange, delete_one);
}

static enum MHD_Result handle_content(struct exchange *exchange) {
    return start(exchange, refuse_content);
}

static const struct body_sink upload = { upload_max_bytes, upload_begin, upload_write,
    upload_give_up };
static const char *const form_types[] = { content_type_form, NULL };

const struct route route_openai_files = { .path = "/v1/files",
    .dialect = &dialect_openai,
    .methods = { { "POST", form_types, may_come, handle_create, &upload,
                     .about = "uploads a tar archive of pictures as a data set",
                     .takes = "{file: binary, purpose: string}", .returns = "OpenaiFile" },
        { "GET", .may_come = may_come, .handle = handle_list,
            .about = "lists the data sets as files",
            .returns = "{object: 'list', data: [OpenaiFile], has_more: boolean, "
                       "first_id: string|null, last_id: string|null}",
            .query = "after limit:integer order:'asc'|'desc' purpose" } } };

const struct route route_openai_file_content = { .path = PREFIX,
    .suffix = "/content",
    .piece = "id",
    .dialect = &dialect_openai,
    .methods = { { "GET", .may_come = may_come, .handle = handle_content,
        .about = "always refused: the daemon keeps the archive's pictures, not the archive",
        .returns = "" } } };

const struct route route_openai_file = { .path = PREFIX,
    .is_prefix = true,
    .piece = "id",
    .dialect = &dialect_openai,
    .methods = { { "GET", .may_come = may_come, .handle = handle_get,
                     .about = "a data set, as a file", .returns = "OpenaiFile" },
        { "DELETE", .may_come = may_come, .handle = handle_delete,
            .about = "deletes a data set that no job needs",
            .returns = "{id: string, object: string, deleted: boolean}" } } };
