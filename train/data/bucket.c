#include "train/data/bucket.h"

#include "base/limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static bool in_range(const char *name, int value, int min, int max, struct error *err) {
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    return (value >= min && value <= max && value % BUCKET_STEP_PX == 0) ||
           error_field(err, name, text, "a multiple of %d from %d to %d", BUCKET_STEP_PX, min, max);
}

bool bucket_options_check(const struct bucket_options *o, struct error *err) {
    if (!in_range("resolution", o->resolution, IMAGE_MIN_PX, IMAGE_MAX_PX, err))
        return false;
    if (!o->enabled)
        return true;
    return in_range("bucket_reso_steps", o->step_px, BUCKET_STEP_PX, o->resolution, err) &&
           in_range("min_bucket_reso", o->min_px, IMAGE_MIN_PX, o->resolution, err) &&
           in_range("max_bucket_reso", o->max_px, o->resolution, IMAGE_MAX_PX, err);
}

static int by_size(const void *a, const void *b) {
    const struct bucket *x = a, *y = b;
    return x->width != y->width ? x->width - y->width : x->height - y->height;
}

int bucket_list(const struct bucket_options *o, struct bucket *out) {
    const int64_t area = (int64_t)o->resolution * o->resolution;
    const int step = o->step_px, square = o->resolution / step * step;
    int count = 0, kept = 1;
    out[count++] = (struct bucket){ square, square };
    for (int width = o->min_px; width <= o->max_px && count + 2 <= DATASET_BUCKETS_MAX;
         width += step) {
        const int64_t fits = area / width / step * step;
        const int height = fits < o->max_px ? (int)fits : o->max_px;
        if (height < o->min_px)
            continue;
        out[count++] = (struct bucket){ width, height };
        out[count++] = (struct bucket){ height, width };
    }
    qsort(out, (size_t)count, sizeof(*out), by_size);
    for (int i = 1; i < count; i++)
        if (by_size(&out[i], &out[kept - 1]) != 0)
            out[kept++] = out[i];
    return kept;
}

/* Chooses the bucket with the nearest aspect ratio, or the picture's own size if that is in the
 * list. Resizes the picture so that it covers the bucket. */
static void place_in_list(
    const struct bucket_options *o, int width, int height, struct placement *out) {
    struct bucket buckets[DATASET_BUCKETS_MAX];
    const int count = bucket_list(o, buckets);
    const double aspect = (double)width / height;
    double least = INFINITY;
    for (int i = 0; i < count; i++) {
        const double error = fabs((double)buckets[i].width / buckets[i].height - aspect);
        const bool is_it = buckets[i].width == width && buckets[i].height == height;
        if (error < least || is_it) {
            out->bucket = buckets[i];
            least = is_it ? -1 : error;
        }
    }
    const struct bucket b = out->bucket;
    const double scale = aspect > (double)b.width / b.height ? (double)b.height / height
                                                             : (double)b.width / width;
    out->resized_width = (int)(width * scale + 0.5);
    out->resized_height = (int)(height * scale + 0.5);
}

static int to_steps(double length, int step) {
    const int whole = (int)(length + 0.5);
    return whole - whole % step;
}

/* Places a picture without enlarging it. A picture that is too large is shrunk so that its width or
 * its height is a multiple of the step, whichever changes the aspect ratio less. */
static bool place_shrunk(const struct bucket_options *o, int width, int height,
    struct placement *out, struct error *err) {
    const double area = (double)o->resolution * o->resolution, aspect = (double)width / height;
    const int step = o->step_px;
    out->resized_width = width;
    out->resized_height = height;
    if ((double)width * height > area) {
        const double exact_width = sqrt(area * aspect), exact_height = area / exact_width;
        const int w = to_steps(exact_width, step), h = to_steps(exact_height, step);
        const int h_of_w = to_steps(w / aspect, step), w_of_h = to_steps(h * aspect, step);
        const double error_w = h_of_w ? fabs((double)w / h_of_w - aspect) : INFINITY;
        const double error_h = h ? fabs((double)w_of_h / h - aspect) : INFINITY;
        const bool by_width = error_w < error_h;
        out->resized_width = by_width ? w : (int)(h * aspect + 0.5);
        out->resized_height = by_width ? (int)(w / aspect + 0.5) : h;
    }
    out->bucket.width = out->resized_width / step * step;
    out->bucket.height = out->resized_height / step * step;
    return (out->bucket.width > 0 && out->bucket.height > 0) ||
           error_set(err, ERROR_INVALID,
               "its %dx%d px are less than one bucket_reso_steps (%d) after resizing to %dx%d, and "
               "bucket_no_upscale is set",
               width, height, step, out->resized_width, out->resized_height);
}

bool bucket_place(const struct bucket_options *o, int width, int height, struct placement *out,
    struct error *err) {
    *out = (struct placement){ .floor_centre = o->enabled };
    if (width <= 0 || height <= 0)
        return error_set(err, ERROR_INVALID, "a picture of %dx%d px", width, height);
    if (o->enabled && o->no_upscale)
        return place_shrunk(o, width, height, out, err);
    if (o->enabled) {
        place_in_list(o, width, height, out);
    } else {
        const int64_t side = o->resolution;
        const bool tall = width <= height;
        out->resized_width = (int)(tall ? side : side * width / height);
        out->resized_height = (int)(tall ? side * height / width : side);
        out->bucket = (struct bucket){ o->resolution, o->resolution };
    }
    /* A picture that is one pixel high could become longer than any allowed picture. */
    return (int64_t)out->resized_width * out->resized_height <= PICTURE_MAX_PIXELS ||
           error_set(err, ERROR_INVALID,
               "its %dx%d px would become %dx%d; at most %d million pixels", width, height,
               out->resized_width, out->resized_height, PICTURE_MAX_PIXELS / 1000000);
}

int placement_tops(const struct placement *p) {
    return p->resized_height - p->bucket.height + 1;
}

int placement_lefts(const struct placement *p) {
    return p->resized_width - p->bucket.width + 1;
}

/* Returns half of the margin: kohya's // 2, or torchvision's round(rest / 2.0), which rounds half
 * to even. */
static int half(int rest, bool floored) {
    return floored ? rest / 2 : (int)nearbyint(rest / 2.0);
}

struct crop placement_centre(const struct placement *p) {
    return (struct crop){ half(p->resized_height - p->bucket.height, p->floor_centre),
        half(p->resized_width - p->bucket.width, p->floor_centre), false };
}
