#include "train/data/dataset.h"

#include "base/hash.h"
#include "base/limits.h"
#include "base/thread.h"
#include "train/data/dataset_internal.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* --- Examining all pictures, in threads --- */

struct survey {
    struct dataset *dataset;
    atomic_size_t next; /* index into scan.entries */
};

static void examine(struct dataset *d, size_t index) {
    struct dataset_picture *picture = &d->pictures[index];
    const struct scan_entry *entry = &d->scan.entries[index];
    struct error err = { 0 };
    picture->mask_path = entry->mask;
    picture->item = (struct dataset_item){ .path = entry->path,
        .captions = entry->captions,
        .caption_count = entry->count,
        .repeats = entry->repeats,
        .has_mask = entry->mask };
    if (dataset_examine(d, entry, picture, &err))
        return;
    picture->broken = strdup(err.message);
    if (!picture->broken)
        picture->broken = strdup("");
}

static void *examine_some(void *argument) {
    struct survey *survey = argument;
    for (;;) {
        const size_t index = atomic_fetch_add(&survey->next, 1);
        if (index >= survey->dataset->scan.count)
            return NULL;
        examine(survey->dataset, index);
    }
}

/* Starts the threads, fewer if not all can be started. This thread works too. */
static void examine_all(struct dataset *d, int threads) {
    pthread_t others[DATASET_THREADS_MAX];
    struct survey survey = { .dataset = d };
    int count = 0;
    while (count + 1 < threads && count < DATASET_THREADS_MAX &&
           thread_start(&others[count], "picture readers", examine_some, &survey) == 0)
        count++;
    examine_some(&survey);
    while (count > 0)
        pthread_join(others[--count], NULL);
}

/* --- Choosing pictures --- */

/* Moves broken pictures behind the others; both keep their order. */
static bool set_broken_apart(struct dataset *d, bool skip, struct error *err) {
    struct dataset_picture *sorted = calloc(d->picture_count, sizeof(*sorted));
    const struct dataset_picture *first = NULL;
    if (!sorted)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu pictures", d->picture_count);
    for (int pass = 0, at = 0; pass < 2; pass++) {
        for (size_t i = 0; i < d->picture_count; i++)
            if (!d->pictures[i].broken == !pass)
                sorted[at++] = d->pictures[i];
        d->count = pass ? d->count : (size_t)at;
    }
    free(d->pictures);
    d->pictures = sorted;
    const size_t broken = d->picture_count - d->count;
    first = broken ? &sorted[d->count] : NULL;
    if (broken && !skip)
        return error_set(err, ERROR_INVALID,
            "%zu of %zu pictures cannot be used; the first is %s: %s", broken, d->picture_count,
            first->item.path, first->broken);
    return d->count > 0 || error_set(err, ERROR_INVALID,
                               "none of the %zu pictures can be used; the first is %s: %s",
                               d->picture_count, first->item.path, first->broken);
}

static bool captions_are_there(const struct dataset *d, struct error *err) {
    size_t missing = 0;
    const char *first = NULL;
    for (size_t i = d->count; i-- > 0;)
        if (d->pictures[i].item.caption_count == 0) {
            first = d->pictures[i].item.path;
            missing++;
        }
    return missing == 0 ||
           error_set(err, ERROR_INVALID,
               "%zu of %zu pictures have no caption, the first is %s; give them one, "
               "or all an instance_prompt",
               missing, d->count, first);
}

/* Returns a number that depends only on the picture's name and the seed, so that sorting by it is
 * not affected by other pictures. The last steps are those of splitmix64. */
static uint64_t draw(const struct dataset_picture *picture, uint64_t seed) {
    uint64_t z = hash_fnv1a(picture->item.path, strlen(picture->item.path)) +
                 seed * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct drawn {
    uint64_t number;
    int32_t index;
};

static int by_number(const void *a, const void *b) {
    const struct drawn *x = a, *y = b;
    return x->number != y->number ? (x->number < y->number ? -1 : 1) : x->index - y->index;
}

static int by_index(const void *a, const void *b) {
    const struct drawn *x = a, *y = b;
    return x->index - y->index;
}

/* Sets *out to all pictures, sorted by the numbers that draw() returns. The caller frees it. */
static bool draw_all(
    const struct dataset *d, uint64_t seed, struct drawn **out, struct error *err) {
    *out = calloc(d->count, sizeof(**out));
    if (!*out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu pictures", d->count);
    for (size_t i = 0; i < d->count; i++)
        (*out)[i] = (struct drawn){ draw(&d->pictures[i], seed), (int32_t)i };
    qsort(*out, d->count, sizeof(**out), by_number);
    return true;
}

/* Applies max_pictures: drops the pictures with the highest numbers of draw(). The pictures with
 * the lowest numbers are held out, so the same ones are held out first, whatever max_pictures
 * is. */
static bool drop_some(struct dataset *d, int64_t max, uint64_t seed, struct error *err) {
    struct drawn *drawn;
    if (max <= 0 || (uint64_t)max >= d->count)
        return true;
    if (!draw_all(d, seed, &drawn, err))
        return false;
    struct dataset_picture *sorted = calloc(d->picture_count, sizeof(*sorted));
    bool ok = sorted || error_set(err, ERROR_NO_MEMORY, "no memory for %zu pictures", d->count);
    qsort(drawn, (size_t)max, sizeof(*drawn), by_index);
    for (size_t i = 0; ok && i < d->picture_count; i++)
        sorted[i] = d->pictures[i < d->count ? (size_t)drawn[i].index : i];
    free(drawn);
    if (!ok)
        return false;
    free(d->pictures);
    d->pictures = sorted;
    d->count = (size_t)max;
    return true;
}

static bool split(struct dataset *d, double share, uint64_t seed, struct error *err) {
    size_t held_out = (size_t)llround(share * (double)d->count), samples = 0;
    struct drawn *drawn;
    if (share > 0 && held_out == 0)
        held_out = 1;
    if (held_out >= d->count)
        held_out = d->count - 1;
    if (!draw_all(d, seed, &drawn, err))
        return false;
    qsort(drawn, held_out, sizeof(*drawn), by_index);
    qsort(drawn + held_out, d->count - held_out, sizeof(*drawn), by_index);
    for (size_t i = held_out; i < d->count; i++)
        samples += (size_t)d->pictures[drawn[i].index].item.repeats;
    bool ok = samples <= DATASET_SAMPLES_MAX ||
              error_set(err, ERROR_TOO_LARGE,
                  "an epoch of %zu pictures, repeats included; at most %d", samples,
                  DATASET_SAMPLES_MAX);
    d->samples = ok ? calloc(samples, sizeof(*d->samples)) : NULL;
    d->held_out = ok ? calloc(held_out + 1, sizeof(*d->held_out)) : NULL;
    if (ok && (!d->samples || !d->held_out))
        ok = error_set(err, ERROR_NO_MEMORY, "no memory for %zu samples", samples);
    for (size_t i = 0; ok && i < d->count; i++)
        if (i < held_out)
            d->held_out[d->held_out_count++] = drawn[i].index;
        else
            for (int r = 0; r < d->pictures[drawn[i].index].item.repeats; r++)
                d->samples[d->sample_count++] = drawn[i].index;
    free(drawn);
    return ok;
}

/* --- Buckets --- */

static int by_size(const void *a, const void *b) {
    const struct bucket *x = a, *y = b;
    return x->width != y->width ? x->width - y->width : x->height - y->height;
}

static bool collect_buckets(struct dataset *d, struct error *err) {
    d->buckets = calloc(d->count, sizeof(*d->buckets));
    if (!d->buckets)
        return error_set(err, ERROR_NO_MEMORY, "no memory for buckets");
    for (size_t i = 0; i < d->count; i++)
        d->buckets[i] = d->pictures[i].item.placement.bucket;
    qsort(d->buckets, d->count, sizeof(*d->buckets), by_size);
    for (size_t i = 0; i < d->count; i++)
        if (i == 0 || by_size(&d->buckets[i], &d->buckets[d->bucket_count - 1]) != 0)
            d->buckets[d->bucket_count++] = d->buckets[i];
    for (size_t i = 0; i < d->count; i++) {
        const struct bucket *found = bsearch(&d->pictures[i].item.placement.bucket, d->buckets,
            (size_t)d->bucket_count, sizeof(*d->buckets), by_size);
        d->pictures[i].item.bucket = (int)(found - d->buckets);
    }
    return true;
}

/* --- The whole data set --- */

static bool open_all(
    struct dataset *d, const char *path, const struct dataset_options *o, struct error *err) {
    const struct scan_options scan = { { o->image_column, o->caption_column }, o->prompt,
        o->masks == DATASET_MASKS_FILES };
    if (!bucket_options_check(&o->buckets, err))
        return false;
    if (!(o->held_out_share >= 0 && o->held_out_share < 1))
        return error_set(
            err, ERROR_INVALID, "a held-out share of %g; 0 to below 1", o->held_out_share);
    if (!scan_folder_init(&d->folder, path, o->root, err) ||
        !scan_read(&d->folder, &scan, &d->scan, err) || !decode_budget_create(&d->budget, err))
        return false;
    d->pictures = calloc(d->scan.count, sizeof(*d->pictures));
    if (!d->pictures)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu pictures", d->scan.count);
    d->picture_count = d->scan.count;
    examine_all(d, o->threads);
    return set_broken_apart(d, o->skip_broken || o->report_only, err) &&
           drop_some(d, o->max_pictures, o->seed, err) &&
           (o->report_only || captions_are_there(d, err)) && collect_buckets(d, err) &&
           split(d, o->held_out_share, o->seed, err);
}

bool dataset_open(const char *path, const struct dataset_options *options, struct dataset **out,
    struct error *err) {
    struct dataset *d = calloc(1, sizeof(*d));
    *out = NULL;
    if (!d)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a data set");
    d->masks = options->masks;
    d->filter = options->filter;
    d->bucket_options = options->buckets;
    d->heads_only = options->heads_only || options->report_only;
    if (!open_all(d, path, options, err)) {
        dataset_destroy(d);
        return false;
    }
    *out = d;
    return true;
}

void dataset_destroy(struct dataset *d) {
    if (!d)
        return;
    for (size_t i = 0; i < d->picture_count; i++)
        free(d->pictures[i].broken);
    free(d->pictures);
    free(d->buckets);
    free(d->samples);
    free(d->held_out);
    decode_budget_destroy(d->budget);
    scan_finish(&d->scan);
    scan_folder_finish(&d->folder);
    free(d);
}

size_t dataset_count(const struct dataset *d) {
    return d->count;
}

const struct dataset_item *dataset_item(const struct dataset *d, size_t index) {
    return &d->pictures[index].item;
}

uint64_t dataset_pixels(const struct dataset *d) {
    uint64_t pixels = 0;
    for (size_t i = 0; i < d->picture_count; i++) {
        const struct dataset_item *item = &d->pictures[i].item;
        pixels += (uint64_t)item->width * (uint64_t)item->height * (item->has_mask ? 2 : 1);
    }
    return pixels;
}

const int32_t *dataset_samples(const struct dataset *d, size_t *count) {
    *count = d->sample_count;
    return d->samples;
}

const int32_t *dataset_held_out(const struct dataset *d, size_t *count) {
    *count = d->held_out_count;
    return d->held_out;
}
