#include "train/data/dataset_internal.h"

#include "base/file_map.h"
#include "base/limits.h"

#include <stdlib.h>
#include <string.h>

/* --- Memory of decoders --- */

bool decode_budget_create(struct decode_budget **out, struct error *err) {
    struct decode_budget *budget = calloc(1, sizeof(*budget));
    *out = budget;
    if (!budget)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a data set");
    pthread_mutex_init(&budget->mutex, NULL);
    pthread_cond_init(&budget->freed, NULL);
    return true;
}

void decode_budget_destroy(struct decode_budget *budget) {
    if (!budget)
        return;
    pthread_cond_destroy(&budget->freed);
    pthread_mutex_destroy(&budget->mutex);
    free(budget);
}

static void budget_take(struct decode_budget *budget, size_t bytes) {
    pthread_mutex_lock(&budget->mutex);
    while (budget->used > 0 && budget->used + bytes > DATASET_DECODE_BYTES)
        pthread_cond_wait(&budget->freed, &budget->mutex);
    budget->used += bytes;
    pthread_mutex_unlock(&budget->mutex);
}

static void budget_give(struct decode_budget *budget, size_t bytes) {
    pthread_mutex_lock(&budget->mutex);
    budget->used -= bytes;
    pthread_cond_broadcast(&budget->freed);
    pthread_mutex_unlock(&budget->mutex);
}

/* --- Files --- */

/* A picture's file in memory, with the information from its header. */
struct source {
    struct file_map map;
    struct picture_info info;
};

static bool source_open(
    const struct dataset *d, const char *path, struct source *out, struct error *err) {
    uint64_t size;
    *out = (struct source){ .map.fd = -1 };
    const int fd = scan_open(&d->folder, path, &size, err);
    if (fd < 0 || !file_map_open_fd(fd, path, &out->map, err))
        return false;
    if (size > PICTURE_FILE_MAX_BYTES)
        return error_set(err, ERROR_TOO_LARGE, "a file of %llu MiB; at most %u",
            (unsigned long long)(size >> 20), PICTURE_FILE_MAX_BYTES >> 20);
    return picture_examine(out->map.bytes, out->map.size, &out->info, err);
}

static void source_close(struct source *source) {
    if (source->map.fd >= 0)
        file_map_close(&source->map);
}

static struct digest source_digest(const struct source *source) {
    return sha256_of(source->map.bytes, source->map.size);
}

static bool source_decode(const struct source *source, struct picture *out, struct error *err) {
    if (!picture_decode(source->map.bytes, source->map.size, out, err))
        return false;
    if (file_map_intact(&source->map, err))
        return true;
    picture_finish(out);
    return false;
}

/* --- Examining a picture --- */

/* Combines the digests of a picture and its mask. NULL: no mask. */
static struct digest join(const struct digest *picture, const struct digest *mask) {
    const struct digest both[2] = { *picture, mask ? *mask : *picture };
    return mask ? sha256_of(both, sizeof(both)) : *picture;
}

/* Examines a picture or a mask. */
static bool look(const struct dataset *d, const char *path, struct picture_info *info,
    struct digest *digest, uint64_t *bytes, struct error *err) {
    struct source source;
    struct picture picture = { 0 };
    bool ok = source_open(d, path, &source, err);
    if (ok && !d->heads_only) {
        *digest = source_digest(&source);
        budget_take(d->budget, source.info.decode_bytes);
        ok = source_decode(&source, &picture, err);
        picture_finish(&picture);
        budget_give(d->budget, source.info.decode_bytes);
    }
    *info = source.info;
    *bytes += source.map.size;
    source_close(&source);
    return ok;
}

bool dataset_examine(struct dataset *d, const struct scan_entry *entry,
    struct dataset_picture *picture, struct error *err) {
    struct picture_info info, mask;
    struct digest digest = { { 0 } }, mask_digest = { { 0 } };
    if (!look(d, entry->path, &info, &digest, &picture->bytes, err))
        return false;
    picture->item.width = info.width;
    picture->item.height = info.height;
    if (d->masks == DATASET_MASKS_FILES && !entry->mask)
        return error_set(err, ERROR_INVALID, "it has no mask (NAME.mask.png, or mask_file_name)");
    if (entry->mask && !look(d, entry->mask, &mask, &mask_digest, &picture->bytes, err))
        return error_prefix(err, "its mask %s", entry->mask);
    if (entry->mask && (mask.width != info.width || mask.height != info.height))
        return error_set(err, ERROR_INVALID, "its mask %s has %dx%d px, the picture %dx%d",
            entry->mask, mask.width, mask.height, info.width, info.height);
    picture->item.content = join(&digest, entry->mask ? &mask_digest : NULL);
    return bucket_place(&d->bucket_options, info.width, info.height, &picture->item.placement, err);
}

/* --- Reading a picture --- */

/* Writes [height][width][channels] of the crop; `value` converts each number. */
static void cut(const struct picture *from, const struct placement *place, const struct crop *crop,
    float (*value)(uint8_t level), float *out) {
    const struct bucket size = place->bucket;
    const int channels = from->channels;
    for (int y = 0; y < size.height; y++) {
        const uint8_t *row = from->pixels +
                             (size_t)(y + crop->top) * (size_t)from->width * (size_t)channels;
        for (int x = 0; x < size.width; x++) {
            const int column = crop->left + (crop->flip ? size.width - 1 - x : x);
            for (int c = 0; c < channels; c++)
                *out++ = value(row[column * channels + c]);
        }
    }
}

static float to_signed(uint8_t level) {
    return ((float)level / 255.0f - 0.5f) / 0.5f;
}

static float to_mask(uint8_t level) {
    return (float)level / 255.0f >= 0.5f ? 1.0f : 0.0f;
}

static bool read_from(const struct dataset *d, const struct source *source,
    const struct placement *place, const struct crop *crop, bool is_mask, float *out,
    struct error *err) {
    struct picture picture = { 0 }, resized = { 0 };
    budget_take(d->budget, source->info.decode_bytes);
    bool ok = source_decode(source, &picture, err) &&
              (!is_mask || picture_to_grey(&picture, err)) &&
              picture_resize(
                  &picture, place->resized_width, place->resized_height, d->filter, &resized, err);
    picture_finish(&picture);
    if (ok)
        cut(&resized, place, crop, is_mask ? to_mask : to_signed, out);
    picture_finish(&resized);
    budget_give(d->budget, source->info.decode_bytes);
    return ok;
}

static bool crop_is_right(
    const struct placement *place, const struct crop *crop, struct error *err) {
    return (crop->top >= 0 && crop->top < placement_tops(place) && crop->left >= 0 &&
               crop->left < placement_lefts(place)) ||
           error_set(err, ERROR_INTERNAL, "a crop at %d, %d of %dx%d px", crop->top, crop->left,
               place->resized_width, place->resized_height);
}

/* Returns whether a picture's files are unchanged since it was examined. `mask` NULL: no mask. */
static bool is_as_it_was(
    const struct dataset_item *item, const struct source *source, const struct source *mask) {
    const struct digest picture = source_digest(source);
    const struct digest of_mask = source_digest(mask ? mask : source);
    const struct digest now = join(&picture, mask ? &of_mask : NULL);
    return memcmp(&now, &item->content, sizeof(now)) == 0;
}

bool dataset_read(const struct dataset *d, size_t index, const struct crop *crop, float *pixels,
    float *mask, struct error *err) {
    if (index >= d->count || d->heads_only)
        return error_set(err, ERROR_INTERNAL, "picture %zu of %zu", index, d->count);
    const struct dataset_picture *picture = &d->pictures[index];
    const struct dataset_item *item = &picture->item;
    struct source source, mask_source = { .map.fd = -1 };
    const bool with_mask = picture->mask_path;
    bool ok = crop_is_right(&item->placement, crop, err) &&
              (!mask || with_mask || error_set(err, ERROR_INTERNAL, "it has no mask"));
    if (!ok)
        return error_prefix(err, "%s", item->path);
    ok = source_open(d, item->path, &source, err) &&
         (!with_mask || source_open(d, picture->mask_path, &mask_source, err));
    if (ok && !is_as_it_was(item, &source, with_mask ? &mask_source : NULL))
        ok = error_set(err, ERROR_IO, "the file has changed since the data set was opened");
    ok = ok && read_from(d, &source, &item->placement, crop, false, pixels, err) &&
         (!mask || read_from(d, &mask_source, &item->placement, crop, true, mask, err));
    source_close(&source);
    source_close(&mask_source);
    return ok || error_prefix(err, "%s", item->path);
}
