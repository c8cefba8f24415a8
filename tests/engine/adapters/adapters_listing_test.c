/* A thousand adapters in subfolders: what a listing says of them, and how many names are compared
 * for it. Comparisons are counted by a stand-in for strcmp (tests/engine/meson.build). */
#include "engine/adapters/adapters.h"
#include "tests/check.h"
#include "tests/engine/adapters/adapter_rig.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDERS 20
#define PER_FOLDER 50
#define ALL (FOLDERS * PER_FOLDER)
/* A binary search among ALL names takes 10 comparisons. A name in a folder takes two searches, and
 * a few comparisons more. */
#define COMPARISONS_MAX (ALL * 40)

static long compared;

int __real_strcmp(const char *a, const char *b);
int __wrap_strcmp(const char *a, const char *b);

int __wrap_strcmp(const char *a, const char *b) {
    compared++;
    return __real_strcmp(a, b);
}

static struct rig rig;

static void name_of(char name[64], int folder, int index) {
    snprintf(name, 64, "folder %02d/name-%02d-%02d", folder, folder, index);
}

/* Makes ALL names for one file, and two with the same last part. */
static void make_files(void) {
    char first[256], path[256], name[64];
    rig_put(&rig, "first", RIG_LORA, 1, "to_q", 1);
    snprintf(first, sizeof(first), "%s", rig_path(&rig, "first"));
    for (int folder = 0; folder < FOLDERS; folder++) {
        snprintf(path, sizeof(path), "%s/folder %02d", rig.loras, folder);
        CHECK(mkdir(path, 0755) == 0, "%s", path);
        for (int i = 0; i < PER_FOLDER; i++) {
            name_of(name, folder, i);
            CHECK(link(first, rig_path(&rig, name)) == 0, "%s", name);
        }
    }
    CHECK(link(first, rig_path(&rig, "folder 03/twin")) == 0, "a twin");
    CHECK(link(first, rig_path(&rig, "folder 04/twin")) == 0, "a twin");
}

static const struct adapter_info *find(const struct adapters_listing *listing, const char *name) {
    for (size_t i = 0; i < listing->count; i++)
        if (__real_strcmp(listing->items[i].name, name) == 0)
            return &listing->items[i];
    CHECK(false, "%s is not in the list", name);
    return &listing->items[0];
}

static void a_list_compares_few_names(void) {
    struct adapters_listing listing;
    struct error err = { 0 };
    char name[64];
    compared = 0;
    CHECK(adapters_list(rig.adapters, &listing, &err), "%s", err.message);
    const long taken = compared;
    printf("%zu names listed with %ld comparisons, at most %d\n", listing.count, taken,
        COMPARISONS_MAX);
    CHECK(taken <= COMPARISONS_MAX, "%ld comparisons", taken);
    CHECK(listing.count == ALL + 3, "%zu names", listing.count);
    for (size_t i = 1; i < listing.count; i++)
        CHECK(__real_strcmp(listing.items[i - 1].name, listing.items[i].name) < 0, "%s before %s",
            listing.items[i - 1].name, listing.items[i].name);
    for (int folder = 0; folder < FOLDERS; folder++)
        for (int i = 0; i < PER_FOLDER; i++) {
            name_of(name, folder, i);
            const struct adapter_info *info = find(&listing, name);
            CHECK(info->short_name == strlen("folder 00/"), "%s by %s", name,
                info->name + info->short_name);
        }
    CHECK(find(&listing, "folder 03/twin")->short_name == 0, "two of one name");
    CHECK(find(&listing, "first")->short_name == 0, "a name without a folder");
    adapters_listing_finish(&listing);
}

static bool finds(const char *asked, const char *expected) {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    struct error err = { 0 };
    if (!adapters_find(rig.adapters, asked, name, &err))
        return !expected && err.code == ERROR_NOT_FOUND;
    return expected && __real_strcmp(name, expected) == 0;
}

/* The last part of a name finds it while it is the only one, whatever comes and goes. */
static void last_parts_find_names(void) {
    struct adapters_scan scan;
    struct error err = { 0 };
    CHECK(finds("name-07-49", "folder 07/name-07-49") && finds("name-07-50", NULL), "by last part");
    CHECK(finds("twin", NULL), "two of one name");
    CHECK(adapters_delete(rig.adapters, "folder 03/twin", &err), "%s", err.message);
    CHECK(finds("twin", "folder 04/twin"), "the other one is left");
    char first[256];
    snprintf(first, sizeof(first), "%s", rig_path(&rig, "first"));
    CHECK(link(first, rig_path(&rig, "twin")) == 0, "a file");
    CHECK(adapters_rescan(rig.adapters, &scan, &err) && scan.added == 1, "%d added", scan.added);
    CHECK(finds("twin", "twin"), "a whole name goes before a last part");
    CHECK(adapters_delete(rig.adapters, "folder 04/twin", &err), "%s", err.message);
    CHECK(adapters_delete(rig.adapters, "twin", &err), "%s", err.message);
    CHECK(finds("twin", NULL), "none is left");
}

int main(void) {
    rig_make(&rig, kernels_cpu(), DTYPE_F32);
    rig_open(&rig, 0, false); /* rig_put needs the models */
    make_files();
    rig_open(&rig, 0, false);
    a_list_compares_few_names();
    last_parts_find_names();
    rig_remove(&rig);
    return check_done();
}
