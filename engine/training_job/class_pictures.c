#include "engine/training_job/class_pictures.h"

#include "base/file.h"
#include "base/log.h"
#include "pictures/png_encode.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

struct class_pictures {
    const char *folder;
    const struct train_config *config;
    char *prompt; /* borrowed from config */
    struct drawing drawing;
    int64_t wanted; /* number of pictures drawn-K.png */
    int64_t next;   /* the one that is drawn */
};

/* --- existing pictures --- */

static bool picture_path(const char *folder, int64_t number, char out[PATH_MAX]) {
    const int length = snprintf(out, PATH_MAX, "%s/drawn-%lld.png", folder, (long long)number);
    return length > 0 && length < PATH_MAX;
}

static bool is_picture(const char *name) {
    static const char *const endings[] = { "png", "jpg", "jpeg" };
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; *name != '.' && dot && i < sizeof(endings) / sizeof(endings[0]); i++)
        if (strcasecmp(dot + 1, endings[i]) == 0)
            return true;
    return false;
}

/* Counts the pictures that the user supplied: those whose names do not begin with "drawn-". */
static bool count_others(const char *folder, int64_t *count, struct error *err) {
    DIR *dir = opendir(folder);
    *count = 0;
    if (!dir && errno == ENOENT)
        return true;
    if (!dir)
        return error_set(err, ERROR_IO, "class_data_dir: %s", strerror(errno));
    for (const struct dirent *e; (e = readdir(dir));)
        *count += is_picture(e->d_name) && strncmp(e->d_name, "drawn-", 6) != 0;
    closedir(dir);
    return true;
}

static bool count_wanted(
    const char *folder, const struct train_config *config, int64_t *wanted, struct error *err) {
    int64_t others;
    if (!count_others(folder, &others, err))
        return false;
    *wanted = others < config->num_class_images ? config->num_class_images - others : 0;
    return true;
}

static bool is_there(const char *folder, int64_t number) {
    char path[PATH_MAX];
    return picture_path(folder, number, path) && file_exists(path);
}

bool class_pictures_missing(
    const char *folder, const struct train_config *config, int64_t *missing, struct error *err) {
    int64_t wanted;
    *missing = 0;
    if (!count_wanted(folder, config, &wanted, err))
        return false;
    for (int64_t i = 0; i < wanted; i++)
        *missing += !is_there(folder, i);
    return true;
}

/* --- one picture --- */

static bool resolve(struct class_pictures *c, int64_t number, struct error *err) {
    struct generate_request r;
    generate_request_init(&r);
    r.prompts = &c->prompt;
    r.prompt_count = 1;
    r.width = r.height = (int)c->config->resolution;
    r.seed = (uint64_t)(c->config->seed + number);
    r.seed_given = true;
    return drawing_resolve(&c->drawing, &r, err) || error_prefix(err, "class pictures");
}

static bool keep(struct class_pictures *c, struct error *err) {
    const struct generate_result *r = &c->drawing.result;
    char path[PATH_MAX];
    uint8_t *png;
    size_t size;
    if (c->drawing.error.code != ERROR_NONE) {
        *err = c->drawing.error;
        return error_prefix(err, "class picture %lld", (long long)c->next);
    }
    if (!picture_path(c->folder, c->next, path))
        return error_set(err, ERROR_INVALID, "class_data_dir: the path is too long");
    if (!png_encode(r->images[0], r->width, r->height, NULL, 0, &png, &size, err))
        return false;
    const struct file_part part = { png, size };
    const bool ok = file_write(path, &part, 1, err);
    free(png);
    return ok;
}

bool class_pictures_advance(struct class_pictures *c, bool *done, struct error *err) {
    bool ok = true;
    if (c->drawing.drawn) {
        ok = keep(c, err);
        drawing_forget(&c->drawing);
        c->next++;
    } else if (c->drawing.asked) {
        ok = studio_work(c->drawing.studio, err);
    } else {
        while (c->next < c->wanted && is_there(c->folder, c->next))
            c->next++;
        ok = c->next == c->wanted || (resolve(c, c->next, err) && drawing_admit(&c->drawing, err));
    }
    *done = ok && c->next == c->wanted && !c->drawing.asked;
    return ok;
}

/* --- creating and destroying --- */

/* Reserves the memory for one picture. Refuses a request that the models do not accept. */
static bool plan(struct class_pictures *c, struct error *err) {
    const bool ok = resolve(c, 0, err) &&
                    model_stages_plan(c->drawing.stages, &c->drawing.request, err);
    for (int i = 0; ok && i < c->drawing.request.warning_count; i++)
        log_warning("class_prompt: %s", c->drawing.request.warnings[i]);
    drawing_forget(&c->drawing);
    return ok;
}

bool class_pictures_create(const char *folder, const struct train_config *config,
    const struct drawing_models *models, struct class_pictures **out, struct error *err) {
    *out = NULL;
    struct class_pictures *c = calloc(1, sizeof(*c));
    if (!c)
        return error_set(err, ERROR_NO_MEMORY, "no memory for class pictures");
    c->folder = folder;
    c->config = config;
    c->prompt = config->class_prompt;
    const bool made = mkdir(folder, 0755) == 0 || errno == EEXIST ||
                      error_set(err, ERROR_IO, "class_data_dir: %s", strerror(errno));
    if (made && count_wanted(folder, config, &c->wanted, err) &&
        drawing_init(models, &c->drawing, err) && plan(c, err)) {
        *out = c;
        return true;
    }
    class_pictures_destroy(c);
    return false;
}

void class_pictures_destroy(struct class_pictures *c) {
    if (!c)
        return;
    drawing_finish(&c->drawing);
    free(c);
}
