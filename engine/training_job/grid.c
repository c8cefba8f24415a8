/* Draws the grid of validation pictures: one row per step, one column per picture. */
#include "base/file.h"
#include "base/limits.h"
#include "engine/training_job/folder.h"
#include "engine/training_job/validation.h"
#include "pictures/picture.h"
#include "pictures/png_encode.h"
#include "pictures/resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GRID_PIXELS (4 << 20) /* approximate limit for the grid's pixels */
#define CELL_MIN_PX 32
#define GAP_PX 4
#define DIGIT_WIDTH 5
#define DIGIT_HEIGHT 7

/* Bitmaps of the digits 0 to 9, five bits per row. */
static const uint8_t digits[10][DIGIT_HEIGHT] = {
    { 14, 17, 19, 21, 25, 17, 14 },
    { 4, 12, 4, 4, 4, 4, 14 },
    { 14, 17, 1, 2, 4, 8, 31 },
    { 31, 2, 4, 2, 1, 17, 14 },
    { 2, 6, 10, 18, 31, 2, 2 },
    { 31, 16, 30, 1, 1, 17, 14 },
    { 6, 8, 16, 30, 17, 17, 14 },
    { 31, 1, 2, 4, 8, 8, 8 },
    { 14, 17, 17, 14, 17, 17, 14 },
    { 14, 17, 17, 15, 1, 2, 12 },
};

struct grid {
    const char *folder;
    const json_t *validations; /* only validations with pictures */
    int rows, columns;
    int cell, zoom, margin; /* px; zoom: scale of the digits */
    struct picture canvas;
};

/* Returns the validation shown in a row. If there are fewer rows than validations, the rows are
 * spread from the first to the last. */
static const json_t *entry_of(const struct grid *g, int row) {
    const size_t count = json_array_size(g->validations);
    const size_t index = g->rows < 2 ? count - 1
                                     : (size_t)row * (count - 1) / (size_t)(g->rows - 1);
    return json_array_get(g->validations, index);
}

static uint8_t *pixel(const struct grid *g, int x, int y) {
    return g->canvas.pixels + ((size_t)y * (size_t)g->canvas.width + (size_t)x) * 3;
}

static void put_digit(struct grid *g, int digit, int left, int top) {
    for (int y = 0; y < DIGIT_HEIGHT * g->zoom; y++)
        for (int x = 0; x < DIGIT_WIDTH * g->zoom; x++)
            if (digits[digit][y / g->zoom] >> (DIGIT_WIDTH - 1 - x / g->zoom) & 1)
                memset(pixel(g, left + x, top + y), 0x33, 3);
}

static int top_of(const struct grid *g, int row) {
    return GAP_PX + row * (g->cell + GAP_PX);
}

/* Draws the step number in the margin, vertically centred in the row. */
static void put_step(struct grid *g, int row, int64_t step) {
    char text[24];
    const int length = snprintf(text, sizeof(text), "%lld", (long long)step);
    const int advance = (DIGIT_WIDTH + 1) * g->zoom;
    const int top = top_of(g, row) + (g->cell - DIGIT_HEIGHT * g->zoom) / 2;
    for (int i = 0; i < length; i++)
        put_digit(g, text[i] - '0', g->margin - (length - i) * advance, top);
}

/* Draws a picture into its cell. The cell stays empty if the picture cannot be read. */
static void put_picture(
    struct grid *g, int row, int column, const char *step_folder, const char *name) {
    struct picture whole = { 0 }, small = { 0 };
    char *path = file_join(step_folder, name), *bytes = NULL;
    size_t size;
    bool ok = path && file_read(path, PICTURE_FILE_MAX_BYTES, &bytes, &size, NULL) &&
              picture_decode(bytes, size, &whole, NULL) &&
              picture_resize(&whole, g->cell, g->cell, RESIZE_LANCZOS, &small, NULL);
    const int left = g->margin + GAP_PX + column * (g->cell + GAP_PX);
    for (int y = 0; ok && y < g->cell; y++)
        memcpy(pixel(g, left, top_of(g, row) + y), small.pixels + (size_t)(y * g->cell * 3),
            (size_t)g->cell * 3);
    picture_finish(&whole);
    picture_finish(&small);
    free(bytes);
    free(path);
}

static void put_row(struct grid *g, int row) {
    const json_t *entry = entry_of(g, row), *picture;
    const int64_t step = json_integer_value(json_object_get(entry, "step"));
    char *folder = job_folder_validation_step(g->folder, step);
    size_t i;
    put_step(g, row, step);
    json_array_foreach(json_object_get(entry, "pictures"), i, picture) {
        const char *name = json_string_value(json_object_get(picture, "file"));
        if (folder && name && (int)i < g->columns)
            put_picture(g, row, (int)i, folder, name);
    }
    free(folder);
}

/* Chooses cell size and number of rows so that the grid stays within GRID_PIXELS. */
static void choose_size(struct grid *g, int picture_px) {
    const double cells = (double)g->rows * g->columns;
    g->cell = (int)fmin(picture_px, sqrt(GRID_PIXELS / cells));
    if (g->cell < CELL_MIN_PX) {
        g->cell = CELL_MIN_PX;
        g->rows = (int)fmax(1, GRID_PIXELS / ((double)g->cell * g->cell * g->columns));
    }
    g->zoom = g->cell >= 96 ? 2 : 1;
    const json_t *last = entry_of(g, g->rows - 1);
    const int digits_max = snprintf(
        NULL, 0, "%lld", (long long)json_integer_value(json_object_get(last, "step")));
    g->margin = GAP_PX + digits_max * (DIGIT_WIDTH + 1) * g->zoom;
}

static bool has_no_pictures(const json_t *entry) {
    return json_array_size(json_object_get(entry, "pictures")) == 0;
}

/* Returns the side of the first picture; 0 if it cannot be read. */
static int picture_side(const struct grid *g) {
    const json_t *entry = json_array_get(g->validations, 0);
    const json_t *first = json_array_get(json_object_get(entry, "pictures"), 0);
    const char *name = json_string_value(json_object_get(first, "file"));
    char *folder = job_folder_validation_step(
             g->folder, json_integer_value(json_object_get(entry, "step"))),
         *path = folder && name ? file_join(folder, name) : NULL, *bytes = NULL;
    struct picture_info info = { 0 };
    size_t size;
    if (path && file_read(path, PICTURE_FILE_MAX_BYTES, &bytes, &size, NULL) &&
        !picture_examine(bytes, size, &info, NULL))
        info.width = 0;
    free(bytes);
    free(path);
    free(folder);
    return info.width;
}

static bool write_canvas(const struct grid *g, struct error *err) {
    uint8_t *png;
    size_t size;
    char *path = job_folder_validation_file(g->folder, "grid.png");
    bool ok = path || error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    ok = ok &&
         png_encode(g->canvas.pixels, g->canvas.width, g->canvas.height, NULL, 0, &png, &size, err);
    if (ok) {
        const struct file_part part = { png, size };
        ok = file_write(path, &part, 1, err);
        free(png);
    }
    free(path);
    return ok;
}

static bool draw(struct grid *g, struct error *err) {
    const int side = picture_side(g);
    if (!side)
        return true;
    choose_size(g, side);
    if (!picture_create(g->margin + GAP_PX + g->columns * (g->cell + GAP_PX),
            GAP_PX + g->rows * (g->cell + GAP_PX), 3, &g->canvas, err))
        return false;
    memset(g->canvas.pixels, 0xff, (size_t)g->canvas.width * (size_t)g->canvas.height * 3);
    for (int row = 0; row < g->rows; row++)
        put_row(g, row);
    const bool ok = write_canvas(g, err);
    picture_finish(&g->canvas);
    return ok;
}

bool validation_draw_grid(const char *folder, struct error *err) {
    json_t *validations;
    if (!job_folder_validations(folder, &validations, err))
        return false;
    struct grid g = { .folder = folder, .validations = validations };
    for (size_t i = json_array_size(validations); i-- > 0;) {
        const json_t *entry = json_array_get(validations, i);
        const int pictures = (int)json_array_size(json_object_get(entry, "pictures"));
        g.columns = pictures > g.columns ? pictures : g.columns;
        if (has_no_pictures(entry))
            json_array_remove(validations, i);
    }
    g.rows = (int)json_array_size(validations);
    const bool ok = !g.rows || draw(&g, err);
    json_decref(validations);
    return ok;
}
