/* POST /sdapi/v1/extra-single-image and /extra-batch-images: upscales pictures with the upscalers
 * that need no model. The pictures are decoded, upscaled and encoded on a reader thread. */
#include "base/text/base64.h"
#include "base/text/json.h"
#include "engine/resolve/source.h"
#include "pictures/encode.h"
#include "pictures/texts.h"
#include "server/http/respond.h"
#include "server/http/route.h"
#include "server/later/reading.h"
#include "server/later/task.h"
#include "server/sdapi/request.h"
#include "server/sdapi/sdapi.h"
#include "server/sdapi/upscale.h"

#include <stdlib.h>
#include <string.h>

#define PICTURES_MAX 64
/* Of all pictures of a request together, those that come and those that are made of them before
 * they are cropped: as many as one picture of the largest size comes with and becomes. */
#define PIXELS_MAX (2 * (uint64_t)INIT_IMAGE_MAX_PX * INIT_IMAGE_MAX_PX)

/* A parsed request. */
struct extras {
    struct sdapi_upscale upscale;
    bool batch;
    struct picture_file files[PICTURES_MAX]; /* owned */
    int count;
};

struct extras_task {
    struct task task; /* the first member */
    struct extras extras;
    struct picture_encoding encoding; /* its texts are set for each picture */
    bool has_place;                   /* of take_place */
};

static void finish_extras(void *read) {
    struct extras *x = read;
    for (int i = 0; i < x->count; i++)
        free(x->files[i].bytes);
}

/* --- parsing --- */

/* A missing field or null leaves *out as it is. */
static bool read_number(
    const json_t *body, const char *name, double min, double max, double *out, struct error *err) {
    const json_t *value = json_object_get(body, name);
    if (!value || json_is_null(value))
        return true;
    *out = json_number_value(value);
    char allowed[64];
    snprintf(allowed, sizeof(allowed), "a number from %g to %g", min, max);
    return (json_is_number(value) && *out >= min && *out <= max) ||
           json_bad_field(name, value, allowed, err);
}

static bool read_integer(
    const json_t *body, const char *name, int min, int max, int *out, struct error *err) {
    double number = *out;
    if (!read_number(body, name, min, max, &number, err))
        return false;
    *out = (int)number;
    return *out == number ||
           json_bad_field(name, json_object_get(body, name), "a valid integer", err);
}

static bool read_upscaler(
    const json_t *body, const char *name, enum sdapi_upscaler *out, struct error *err) {
    const json_t *value = json_object_get(body, name);
    const char *text = json_string_value(value);
    if (!value || json_is_null(value))
        return true;
    for (int i = 0; text && i < SDAPI_UPSCALERS; i++)
        if (strcmp(text, sdapi_upscaler_names[i]) == 0) {
            *out = (enum sdapi_upscaler)i;
            return true;
        }
    return json_bad_field(name, value, "\"None\", \"Lanczos\" or \"Nearest\"", err);
}

/* Refuses the restoration of faces, which needs a model. */
static bool check_faces(const json_t *body, struct error *err) {
    static const char *const names[] = { "gfpgan_visibility", "codeformer_visibility" };
    for (int i = 0; i < 2; i++) {
        double visibility = 0;
        if (!read_number(body, names[i], 0, 1, &visibility, err))
            return false;
        if (visibility > 0)
            return json_bad_field(names[i], json_object_get(body, names[i]),
                "0: there is no restoration of faces here", err);
    }
    return true;
}

static bool read_upscale(const json_t *body, struct sdapi_upscale *out, struct error *err) {
    const json_t *crop = json_object_get(body, "upscaling_crop");
    int mode = 0;
    *out = (struct sdapi_upscale){ .factor = 2, .width = 512, .height = 512, .crop = true };
    if (crop && !json_is_null(crop) && !json_is_boolean(crop))
        return json_bad_field("upscaling_crop", crop, "a valid boolean", err);
    if (json_is_false(crop))
        out->crop = false;
    if (!read_integer(body, "resize_mode", 0, 1, &mode, err) ||
        !read_number(body, "upscaling_resize", 1.0 / INIT_IMAGE_MAX_PX, INIT_IMAGE_MAX_PX,
            &out->factor, err) ||
        !read_integer(body, "upscaling_resize_w", 1, INIT_IMAGE_MAX_PX, &out->width, err) ||
        !read_integer(body, "upscaling_resize_h", 1, INIT_IMAGE_MAX_PX, &out->height, err) ||
        !read_upscaler(body, "upscaler_1", &out->upscaler, err) ||
        !read_upscaler(body, "upscaler_2", &out->second, err) ||
        !read_number(body, "extras_upscaler_2_visibility", 0, 1, &out->visibility, err))
        return false;
    out->to_size = mode == 1;
    return check_faces(body, err);
}

static bool add_picture(
    struct extras *x, const char *param, const json_t *text, struct error *err) {
    if (!json_is_string(text))
        return json_bad_field(param, text, "a valid string", err);
    return sdapi_decode_picture(json_string_value(text), &x->files[x->count], err) && ++x->count;
}

static bool read_pictures(const json_t *body, struct extras *x, struct error *err) {
    const json_t *list = json_object_get(body, "imageList"), *item;
    char allowed[64];
    size_t i;
    if (!x->batch)
        return add_picture(x, "image", json_object_get(body, "image"), err);
    snprintf(allowed, sizeof(allowed), "a list of 1 to %d pictures", PICTURES_MAX);
    if (!json_is_array(list) || json_array_size(list) < 1 || json_array_size(list) > PICTURES_MAX)
        return json_bad_field("imageList", list, allowed, err);
    json_array_foreach((json_t *)list, i, item) {
        if (!add_picture(x, "imageList", json_object_get(item, "data"), err))
            return false;
    }
    return true;
}

static bool read_extras(
    const struct exchange *exchange, bool batch, struct extras *out, struct error *err) {
    struct error why;
    json_t *body = json_parse_request(exchange->body, exchange->body_size, &why);
    out->batch = batch;
    bool ok = body || error_field(err, "body", "what came", "JSON; %.400s", why.message);
    if (ok && !json_is_object(body))
        ok = error_field(err, "body", "no object", "a valid dictionary");
    ok = ok && read_upscale(body, &out->upscale, err) && read_pictures(body, out, err);
    json_decref(body);
    if (!ok)
        finish_extras(out);
    return ok;
}

/* --- on a reader thread --- */

/* Encodes the picture, with the texts of the file that it was made from. */
static json_t *encode(struct extras_task *t, const struct picture_file *file,
    const struct picture *picture, struct error *err) {
    struct picture_text_list texts = { 0 };
    struct picture_encoding encoding = t->encoding;
    uint8_t *bytes = NULL;
    size_t size, length;
    if (picture_read_texts(file->bytes, file->size, &texts, NULL))
        encoding.texts = (struct picture_texts){ picture_text_list_find(&texts, "parameters"),
            picture_text_list_find(&texts, "latentd") };
    const bool ok = picture_encode(
        picture->pixels, picture->width, picture->height, &encoding, &bytes, &size, err);
    char *text = ok ? base64_encode(bytes, size, &length) : NULL;
    json_t *json = text ? json_stringn_nocheck(text, length) : NULL;
    free(text);
    free(bytes);
    picture_text_list_finish(&texts);
    return json;
}

/* Adds to the pixels of all pictures of the request. */
static bool count_pixels(struct extras_task *t, uint64_t *pixels, int64_t more, struct error *err) {
    *pixels += (uint64_t)more;
    return *pixels <= PIXELS_MAX ||
           error_field(err, t->extras.batch ? "imageList" : "image",
               "pictures that are too large together",
               "at most %llu pixels in all, before and after they are upscaled",
               (unsigned long long)PIXELS_MAX);
}

/* Adds a picture, upscaled, to the list. *pixels counts those of all. */
static bool add_upscaled(struct extras_task *t, const struct picture_file *file, uint64_t *pixels,
    json_t *list, struct error *err) {
    const char *param = t->extras.batch ? "imageList" : "image";
    struct picture in = { 0 }, out = { 0 };
    int width, height;
    if (task_is_cancelled(t))
        return error_set(err, ERROR_CANCELLED, "nobody waits for the pictures");
    if (!source_examine(file, param, INIT_IMAGE_MAX_PX, &width, &height, err) ||
        !count_pixels(t, pixels, (int64_t)width * height, err) ||
        !source_read(file, param, &in, err))
        return false;
    bool ok = sdapi_upscale_size(&t->extras.upscale, &in, &width, &height, err) &&
              count_pixels(t, pixels, sdapi_upscale_pixels(&t->extras.upscale, &in), err) &&
              sdapi_upscale_picture(&t->extras.upscale, &in, &out, err) &&
              json_array_append_new(list, encode(t, file, &out, err)) == 0;
    picture_finish(&in);
    picture_finish(&out);
    return ok;
}

static bool upscale_all(struct extras_task *t, struct error *err) {
    struct task *task = &t->task;
    char *text = sdapi_upscale_text(&t->extras.upscale);
    json_t *list = json_array();
    uint64_t pixels = 0;
    bool ok = text && list;
    for (int i = 0; ok && i < t->extras.count; i++)
        ok = add_upscaled(t, &t->extras.files[i], &pixels, list, err);
    json_t *info = ok ? json_sprintf("<p>%s</p>", text) : NULL;
    if (info)
        task->json = t->extras.batch ? json_pack("{s:O, s:O}", "html_info", info, "images", list)
                                     : json_pack("{s:O, s:O}", "html_info", info, "image",
                                           json_array_get(list, 0));
    json_decref(info);
    json_decref(list);
    free(text);
    return task->json;
}

/* At most as many requests wait or are upscaled as may wait to be drawn. */
static bool take_place(struct http_server *server, struct error *err) {
    pthread_mutex_lock(&server->mutex);
    const bool fits = server->extras < server->options.queue_max;
    server->extras += fits;
    pthread_mutex_unlock(&server->mutex);
    return fits || error_set(err, ERROR_BUSY,
                       "%d requests with pictures to upscale are under way; try again later",
                       server->options.queue_max);
}

static void give_place(struct http_server *server) {
    pthread_mutex_lock(&server->mutex);
    server->extras--;
    pthread_mutex_unlock(&server->mutex);
}

/* Gives the place back before the answer is sent: a client may take minutes to read it. */
static bool run(struct task *task, struct error *err) {
    struct extras_task *t = (struct extras_task *)task;
    const bool ok = upscale_all(t, err);
    t->has_place = false;
    give_place(task->deferred.server);
    return ok;
}

static void destroy(struct task *task) {
    struct extras_task *t = (struct extras_task *)task;
    if (t->has_place) /* it never ran */
        give_place(task->deferred.server);
    finish_extras(&t->extras);
    free(t);
}

static enum MHD_Result start(struct exchange *exchange, void *read) {
    struct http_server *server = exchange->server;
    struct error err = { 0 };
    if (!take_place(server, &err)) {
        finish_extras(read);
        return respond_error(exchange, &err);
    }
    struct extras_task *t = calloc(1, sizeof(*t));
    if (t) {
        t->extras = *(struct extras *)read;
        t->has_place = true;
        pthread_mutex_lock(&server->mutex);
        t->encoding = (struct picture_encoding){ .format = server->sdapi->samples_format,
            .quality = server->sdapi->jpeg_quality };
        pthread_mutex_unlock(&server->mutex);
    } else {
        give_place(server);
        finish_extras(read);
    }
    return task_start(t ? &t->task : NULL, exchange, server->readers, run, destroy);
}

static bool read_single(const struct exchange *exchange, void *out, struct error *err) {
    return read_extras(exchange, false, out, err);
}

static bool read_batch(const struct exchange *exchange, void *out, struct error *err) {
    return read_extras(exchange, true, out, err);
}

#define HANDLER(name)                                                                              \
    static enum MHD_Result name(struct exchange *exchange) {                                       \
        static const struct reading_kind kind = {                                                  \
            .size = sizeof(struct extras),                                                         \
            .read = read_##name,                                                                   \
            .handle = start,                                                                       \
            .finish = finish_extras,                                                               \
        };                                                                                         \
        return reading_start(exchange, &kind);                                                     \
    }
HANDLER(single)
HANDLER(batch)

/* The fields that both bodies share. */
#define COMMON                                                                                     \
    "resize_mode?: integer, upscaling_resize?: number, upscaling_resize_w?: integer, "             \
    "upscaling_resize_h?: integer, upscaling_crop?: boolean, "                                     \
    "upscaler_1?: 'None'|'Lanczos'|'Nearest', upscaler_2?: 'None'|'Lanczos'|'Nearest', "           \
    "extras_upscaler_2_visibility?: number, ...}"

const struct route route_sdapi_extra_single = { .path = "/sdapi/v1/extra-single-image",
    .dialect = &dialect_sdapi,
    .methods = { { "POST", content_types_json, .handle = single, .large = true,
        .about = "Upscales a picture, as AUTOMATIC1111 without a model",
        .takes = "{image: string, " COMMON, .returns = "{html_info: string, image: string}" } } };

const struct route route_sdapi_extra_batch = { .path = "/sdapi/v1/extra-batch-images",
    .dialect = &dialect_sdapi,
    .methods = { { "POST", content_types_json, .handle = batch, .large = true,
        .about = "Upscales pictures, as AUTOMATIC1111 without a model",
        .takes = "{imageList: [{data: string, name: string}], " COMMON,
        .returns = "{html_info: string, images: [string]}" } } };
