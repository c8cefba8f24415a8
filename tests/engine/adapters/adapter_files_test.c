/* Tests how the registry of adapters finds files by name: names as people give them, folders in the
 * folder of adapters, names that some file systems take for one, and what a start reads. */
#include "base/file.h"
#include "engine/adapters/internal.h"
#include "tests/check.h"
#include "tests/engine/adapters/adapter_rig.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static struct rig rig;
static struct error err;

/* Returns the second row's outputs with one adapter. To be freed. */
static float *with(const char *name) {
    struct adapter_set *set = rig_set(&rig, name, 1, NULL, 0);
    float *rows = rig_run(&rig, set);
    memmove(rows, rows + rig.outputs, (size_t)rig.outputs * sizeof(*rows));
    adapter_set_release(set);
    return rows;
}

static bool same_bits(const float *a, const float *b) {
    return memcmp(a, b, (size_t)rig.outputs * sizeof(*a)) == 0;
}

static struct adapter_info info_of(const char *name) {
    struct adapter_info info = { 0 };
    CHECK(adapters_describe(rig.adapters, name, &info, &err), "%s", err.message);
    return info;
}

static bool resolves(const char *name) {
    struct lora_choice choice = { .weight = 1, .text_encoder_weight = 1 };
    struct adapter_set *set = NULL;
    snprintf(choice.name, sizeof(choice.name), "%s", name);
    err = (struct error){ 0 };
    const bool ok = adapters_resolve(rig.adapters, &choice, 1, true, &set, &err);
    adapter_set_release(set);
    return ok;
}

static bool upload(const char *name, const char *path) {
    struct adapter_upload *sent;
    char *bytes;
    size_t size;
    err = (struct error){ 0 };
    if (!file_read(path, 1 << 30, &bytes, &size, &err))
        return false;
    const bool ok = adapter_upload_begin(rig.adapters, name, size, &sent, &err) &&
                    adapter_upload_write(sent, bytes, size, &err) &&
                    adapter_upload_end(sent, NULL, &err);
    free(bytes);
    return ok;
}

static void rescan(struct adapters_scan *scan) {
    CHECK(adapters_rescan(rig.adapters, scan, &err), "%s", err.message);
}

/* Opens a registry over a folder with the file a.safetensors alone. */
static void begin(void) {
    struct adapters_scan scan;
    file_remove_tree(AT_FDCWD, rig.loras);
    CHECK(mkdir(rig.loras, 0755) == 0, "cannot make the folder");
    rig_open(&rig, 0, false);
    rig_put(&rig, "a", RIG_LORA, 4, "to_", 1);
    rescan(&scan);
}

static const char *const ordinary_names[] = { "my lora", "add_detail(v1.0)", "a+b", "snow&x",
    "100%", "a,b", "comma:colon", "[style] x", "-dash", "\xc3\xa9t\xc3\xa9",
    "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e", "sub/insub", "GhostMix_V2.0-BakedVAE", "UPPER",
    "v1.2" };

static void make_folder(const char *name) {
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", rig.loras, name);
    CHECK(mkdir(path, 0755) == 0, "cannot make the folder %s", path);
}

static bool folder_exists(const char *name) {
    char path[160];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", rig.loras, name);
    return stat(path, &st) == 0;
}

static void ordinary_names_can_be_used(void) {
    const int count = sizeof(ordinary_names) / sizeof(ordinary_names[0]);
    char other[160];
    struct adapters_scan scan;
    begin();
    snprintf(other, sizeof(other), "%s/other.safetensors", rig.root);
    rig_write(&rig, other, RIG_LORA, 3, "", 9);
    make_folder("sub");
    for (int i = 0; i < count; i++)
        rig_put(&rig, ordinary_names[i], RIG_LORA, 2, "to_", 100 + i);
    rescan(&scan);
    CHECK(scan.added == count && scan.passed_over == 0, "%d of %d", scan.added, count);
    float *before = NULL;
    for (int i = 0; i < count; i++) {
        const char *name = ordinary_names[i];
        CHECK(resolves(name), "%s: %s", name, err.message);
        float *it = with(name);
        CHECK(!before || !same_bits(it, before), "%s computes the same as the adapter before it",
            name);
        free(before);
        before = it;
    }
    free(before);
    float *sent = NULL;
    for (int i = 0; i < count; i++) {
        const char *name = ordinary_names[i];
        CHECK(upload(name, other), "%s: %s", name, err.message);
        float *it = with(name);
        CHECK(!sent || same_bits(it, sent), "%s computes something else than the uploaded file",
            name);
        free(sent);
        sent = it;
        CHECK(adapters_delete(rig.adapters, name, &err), "%s: %s", name, err.message);
        CHECK(access(rig_path(&rig, name), F_OK) != 0, "the deleted file of %s still exists", name);
    }
    free(sent);
    CHECK(!folder_exists("sub"), "the subfolder is not removed with its last file");
    printf("%d names: scanned, used, replaced and deleted\n", count);
}

static void a_folder_may_be_called_like_a_file(void) {
    struct adapters_scan scan;
    begin();
    make_folder("odd.safetensors");
    rig_put(&rig, "odd.safetensors/in", RIG_LORA, 2, "to_", 54);
    rescan(&scan);
    CHECK(scan.added == 1 && scan.passed_over == 0, "%d added", scan.added);
    free(with("odd.safetensors/in"));
    CHECK(adapters_delete(rig.adapters, "odd.safetensors/in", &err), "%s", err.message);
}

static void a_last_part_is_enough_if_only_one_has_it(void) {
    struct adapters_scan scan;
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    const char *found = name;
    begin();
    make_folder("sub");
    rig_put(&rig, "sub/insub", RIG_LORA, 2, "to_", 51);
    rescan(&scan);
    float *whole = with("sub/insub"), *stem = with("insub");
    CHECK(same_bits(whole, stem), "the last part insub does not stand for sub/insub");
    struct adapter_info info = info_of("sub/insub");
    CHECK_STRING(info.name + info.short_name, "insub");
    adapter_info_finish(&info);
    CHECK(adapters_find(rig.adapters, "insub", name, &err), "%s", err.message);
    CHECK_STRING(found, "sub/insub");
    const struct lora_choice both[] = { { "insub", 1, 1 }, { "sub/insub", 1, 1 } };
    struct adapter_set *set = NULL;
    CHECK(!adapters_resolve(rig.adapters, both, 2, true, &set, &err),
        "one adapter under two of its names is accepted twice");
    CHECK_STRING(err.param, "loras[1].name");
    make_folder("other");
    rig_put(&rig, "other/insub", RIG_LORA, 2, "to_", 52);
    rescan(&scan);
    CHECK(!resolves("insub"), "a last part that two adapters share is accepted");
    CHECK_STRING(err.allowed, "one of other/insub, sub/insub");
    CHECK(!adapters_find(rig.adapters, "insub", name, &err),
        "a last part that two adapters share is found");
    CHECK_CONTAINS(err.message, "several");
    info = info_of("sub/insub");
    CHECK_STRING(info.name + info.short_name, "sub/insub");
    adapter_info_finish(&info);
    rig_put(&rig, "insub", RIG_LORA, 2, "to_", 53);
    rescan(&scan);
    float *alone = with("insub");
    CHECK(!same_bits(alone, whole),
        "a last part is used although an adapter has it as its whole name");
    static const char *const names[] = { "insub", "sub/insub", "other/insub" };
    for (int i = 0; i < 3; i++)
        CHECK(adapters_delete(rig.adapters, names[i], &err), "%s", err.message);
    free(whole);
    free(stem);
    free(alone);
}

/* Pairs of names that a file system may take for one, because of case or of Unicode's forms. */
static void alike_names_are_told_apart_or_refused(void) {
    static const struct {
        const char *there, *sent;
    } rows[] = { { "UPPER", "upper" }, { "\xc3\x89t\xc3\xa9", "e\xcc\x81te\xcc\x81" },
        { "Sub/x", "sub/X" },
        { "stra\xc3\x9f"
          "e",
            "STRASSE" } };
    char other[160];
    struct adapters_scan scan;
    begin();
    snprintf(other, sizeof(other), "%s/other.safetensors", rig.root);
    rig_write(&rig, other, RIG_LORA, 3, "", 9);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK(upload(rows[i].there, other), "%s", err.message);
        CHECK(!upload(rows[i].sent, other) && err.code == ERROR_CONFLICT, "%s beside %s",
            rows[i].sent, rows[i].there);
        CHECK_STRING(err.param, "name");
        CHECK_CONTAINS(err.allowed, rows[i].there);
        CHECK(!resolves(rows[i].sent), "%s is taken for %s", rows[i].sent, rows[i].there);
        CHECK(upload(rows[i].there, other), "%s replaced: %s", rows[i].there, err.message);
        CHECK(adapters_delete(rig.adapters, rows[i].there, &err), "%s", err.message);
        CHECK(upload(rows[i].sent, other), "%s alone: %s", rows[i].sent, err.message);
        CHECK(adapters_delete(rig.adapters, rows[i].sent, &err), "%s", err.message);
    }
    printf("%zu pairs of names that fold to one are refused\n", sizeof(rows) / sizeof(rows[0]));
    /* Two existing files with such names are two adapters, unless the file system folds names
     * itself. */
    rig_put(&rig, "both", RIG_LORA, 2, "to_", 61);
    rig_put(&rig, "BOTH", RIG_LORA, 2, "to_", 62);
    rescan(&scan);
    CHECK(scan.added == 1 || scan.added == 2, "%d added", scan.added);
    if (scan.added == 2) {
        float *small = with("both"), *large = with("BOTH");
        CHECK(!same_bits(small, large),
            "two files whose names differ only in case are taken for one");
        CHECK(upload("both", other), "cannot replace one of the two files: %s", err.message);
        float *same = with("BOTH");
        CHECK(same_bits(same, large), "replacing \"both\" changed \"BOTH\"");
        free(small);
        free(large);
        free(same);
    }
    unlink(rig_path(&rig, "both"));
    unlink(rig_path(&rig, "BOTH"));
}

static void folders_lead_nowhere_else(void) {
    char outside[128], link[160], deep[160];
    struct adapters_scan scan;
    begin();
    snprintf(outside, sizeof(outside), "%s/outside.safetensors", rig.root);
    rig_write(&rig, outside, RIG_LORA, 4, "to_", 31);
    make_folder("sub");
    snprintf(link, sizeof(link), "%s/sub/loop", rig.loras);
    CHECK(symlink(".", link) == 0, "cannot make a link");
    snprintf(link, sizeof(link), "%s/out", rig.loras);
    CHECK(symlink(rig.root, link) == 0, "cannot make a link");
    make_folder(".hidden");
    rig_put(&rig, ".hidden/x", RIG_LORA, 2, "to_", 41);
    rig_put(&rig, "sub/in", RIG_LORA, 2, "to_", 42);
    snprintf(deep, sizeof(deep), "%s", "1");
    make_folder(deep);
    for (int i = 2; i <= ADAPTER_NAME_PARTS_MAX; i++) {
        snprintf(deep + strlen(deep), sizeof(deep) - strlen(deep), "/%d", i);
        if (i == ADAPTER_NAME_PARTS_MAX)
            rig_put(&rig, deep, RIG_LORA, 2, "to_", 43);
        make_folder(deep);
    }
    rescan(&scan);
    CHECK(scan.added == 2 && scan.passed_over == 3, "%d added, %d passed over", scan.added,
        scan.passed_over);
    CHECK(resolves("sub/in") && resolves(deep), "%s", err.message);
    static const char *const names[] = { "out/outside", "out/loras/a", "sub/loop/in", ".hidden/x" };
    for (int i = 0; i < 4; i++) {
        CHECK(!resolves(names[i]), "%s resolves", names[i]);
        CHECK(!adapters_load(rig.adapters, names[i], NULL, &err), "%s loads", names[i]);
        CHECK(!upload(names[i], outside) && err.code == ERROR_INVALID,
            "an upload with the name %s is accepted", names[i]);
        CHECK(!adapters_delete(rig.adapters, names[i], &err), "%s is deleted", names[i]);
    }
    /* A folder is replaced by a link between the scan and the removal. */
    char aside[160], sub[160];
    snprintf(aside, sizeof(aside), "%s/aside", rig.root);
    snprintf(sub, sizeof(sub), "%s/sub", rig.loras);
    CHECK(
        rename(sub, aside) == 0 && symlink(aside, sub) == 0, "cannot replace the folder by a link");
    CHECK(adapters_delete(rig.adapters, "sub/in", &err), "%s", err.message);
    strcat(aside, "/in.safetensors");
    CHECK(access(aside, F_OK) == 0, "a file outside the folder was removed");
}

/* Takes over both references. */
static void set_new(json_t *object, json_t *key, json_t *value) {
    json_object_set_new(object, json_string_value(key), value);
    json_decref(key);
}

/* Writes a file with the header of a LoRA for 64 layers, and 64 MiB of nothing. An alpha lies
 * behind the factors of each layer, as kohya writes them: reading the alphas would touch all of the
 * file. */
static void write_large(const char *path) {
    enum { LAYERS = 64, BYTES = 1 << 19 };
    uint64_t at = 0;
    json_t *header = json_object();
    for (int i = 0; i < LAYERS; i++) {
        static const char *const parts[] = { "lora_down.weight", "lora_up.weight" };
        for (int k = 0; k < 2; k++, at += BYTES)
            set_new(header, json_sprintf("lora_unet_%d.%s", i, parts[k]),
                json_pack("{s:s, s:[i, i], s:[I, I]}", "dtype", "F32", "shape", k ? BYTES / 32 : 8,
                    k ? 8 : BYTES / 32, "data_offsets", (json_int_t)at, (json_int_t)(at + BYTES)));
        set_new(header, json_sprintf("lora_unet_%d.alpha", i),
            json_pack("{s:s, s:[], s:[I, I]}", "dtype", "F32", "shape", "data_offsets",
                (json_int_t)at, (json_int_t)(at + 4)));
        at += 4;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    const uint64_t length = strlen(text);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(&length, sizeof(length), 1, file) == 1 &&
              fwrite(text, length, 1, file) == 1 && fflush(file) == 0 &&
              ftruncate(fileno(file), (off_t)(sizeof(length) + length + at)) == 0,
        "cannot write %s", path);
    if (file)
        fclose(file);
    free(text);
    json_decref(header);
}

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

/* Bytes that this process has read by calls; 0 where the kernel does not count them. */
static long long bytes_read(void) {
    long long bytes = 0;
    FILE *file = fopen("/proc/self/io", "r");
    if (file && fscanf(file, "rchar: %lld", &bytes) != 1)
        bytes = 0;
    if (file)
        fclose(file);
    return bytes;
}

/* Scans 1,000 files of 64 MiB. Reading a tensor of each layer would fault in 64 more pages of each
 * map, reading all of them 1,024 (the kernel maps at most 64 KiB at a time). */
static void only_headers_are_read_at_the_start(void) {
    enum { FILES = 1000, FAULTS = 32, BYTES = 65536 };
    char name[32];
    begin();
    make_folder("many");
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof(name), "many/n%03d", i);
        write_large(rig_path(&rig, name));
    }
    struct adapters_scan scan;
    const long faults_before = faults();
    const long long bytes_before = bytes_read();
    rescan(&scan);
    const long faulted = faults() - faults_before;
    const long long read = bytes_read() - bytes_before;
    printf("%d files: %ld pages faulted in, %lld bytes read by calls\n", scan.added, faulted, read);
    CHECK(scan.added == FILES && scan.failed == 0, "%d added, %d failed", scan.added, scan.failed);
    CHECK(faulted < FILES * FAULTS && read < (long long)FILES * BYTES,
        "scanning the files reads their tensors");
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof(name), "many/n%03d", i);
        unlink(rig_path(&rig, name));
    }
    rescan(&scan);
    CHECK(scan.removed == FILES, "%d removed", scan.removed);
}

int main(void) {
    rig_make(&rig, kernels_cpu(), DTYPE_F32);
    ordinary_names_can_be_used();
    a_folder_may_be_called_like_a_file();
    a_last_part_is_enough_if_only_one_has_it();
    alike_names_are_told_apart_or_refused();
    folders_lead_nowhere_else();
    only_headers_are_read_at_the_start();
    rig_remove(&rig);
    return check_done();
}
