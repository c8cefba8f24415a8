#include "train/data/dataset_internal.h"

#include "base/text/json.h"

#include <string.h>

#define NAMES_MAX 16 /* names listed of each kind */

static const char *const layouts[] = { [SCAN_METADATA_JSONL] = "metadata.jsonl",
    [SCAN_METADATA_CSV] = "metadata.csv",
    [SCAN_REPEATS] = "repeats",
    [SCAN_FLAT] = "flat" };

static json_t *sizes_json(const struct dataset *d) {
    const struct dataset_item *least = NULL, *most = NULL;
    int64_t upscaled = 0;
    for (size_t i = 0; i < d->count; i++) {
        const struct dataset_item *item = &d->pictures[i].item;
        const int64_t area = (int64_t)item->width * item->height;
        if (!least || area < (int64_t)least->width * least->height)
            least = item;
        if (!most || area > (int64_t)most->width * most->height)
            most = item;
        upscaled += item->placement.resized_width > item->width;
    }
    return json_pack("{s:[i,i], s:[i,i], s:I}", "smallest", least->width, least->height, "largest",
        most->width, most->height, "made_larger", (json_int_t)upscaled);
}

static json_t *buckets_json(const struct dataset *d) {
    json_t *list = json_array();
    for (int b = 0; b < d->bucket_count; b++) {
        int64_t pictures = 0, samples = 0;
        for (size_t i = 0; i < d->count; i++)
            pictures += d->pictures[i].item.bucket == b;
        for (size_t i = 0; i < d->sample_count; i++)
            samples += d->pictures[d->samples[i]].item.bucket == b;
        json_array_append_new(list, json_pack("{s:i, s:i, s:I, s:I}", "width", d->buckets[b].width,
                                        "height", d->buckets[b].height, "pictures",
                                        (json_int_t)pictures, "samples", (json_int_t)samples));
    }
    return list;
}

static json_t *captions_json(const struct dataset *d) {
    json_t *names = json_array();
    int64_t missing = 0, empty = 0, several = 0;
    size_t longest = 0;
    for (size_t i = 0; i < d->count; i++) {
        const struct dataset_item *item = &d->pictures[i].item;
        if (item->caption_count == 0 && missing++ < NAMES_MAX)
            json_array_append_new(names, json_lenient_string(item->path));
        several += item->caption_count > 1;
        for (int c = 0; c < item->caption_count; c++) {
            const size_t bytes = strlen(item->captions[c]);
            empty += bytes == 0;
            longest = bytes > longest ? bytes : longest;
        }
    }
    return json_pack("{s:I, s:o, s:I, s:I, s:I}", "missing", (json_int_t)missing, "missing_names",
        names, "empty", (json_int_t)empty, "pictures_with_several", (json_int_t)several,
        "longest_bytes", (json_int_t)longest);
}

static json_t *broken_json(const struct dataset *d, size_t *count) {
    json_t *list = json_array();
    *count = 0;
    for (size_t i = 0; i < d->picture_count; i++) {
        const struct dataset_picture *p = &d->pictures[i];
        if (p->broken && (*count)++ < NAMES_MAX)
            json_array_append_new(
                list, json_pack("{s:o, s:o}", "path", json_lenient_string(p->item.path), "error",
                          json_lenient_string(p->broken)));
    }
    return list;
}

static json_t *passed_over_json(const struct scan *scan) {
    json_t *list = json_array();
    for (size_t i = 0; i < scan->passed_over_count && i < SCAN_NAMES_MAX; i++)
        json_array_append_new(list, json_lenient_string(scan->passed_over[i]));
    return list;
}

json_t *dataset_report(const struct dataset *d) {
    uint64_t bytes = 0;
    size_t broken;
    for (size_t i = 0; i < d->count; i++)
        bytes += d->pictures[i].bytes;
    json_t *broken_list = broken_json(d, &broken);
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:o, s:I, s:o}", "layout",
        layouts[d->scan.layout], "pictures", (json_int_t)d->count, "bytes", (json_int_t)bytes,
        "samples", (json_int_t)d->sample_count, "held_out", (json_int_t)d->held_out_count, "sizes",
        sizes_json(d), "buckets", buckets_json(d), "captions", captions_json(d), "broken",
        (json_int_t)broken, "broken_pictures", broken_list, "passed_over",
        (json_int_t)d->scan.passed_over_count, "passed_over_names", passed_over_json(&d->scan));
}
