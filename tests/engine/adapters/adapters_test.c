/* Tests the registry of adapters: which file a name means while files are added, changed and
 * removed, what a set of adapters computes, and how many adapters stay in memory. Results are
 * compared with each other only; tests/models/adapter_test.c tests the arithmetic of each
 * format. */
#include "engine/adapters/internal.h"
#include "tests/check.h"
#include "tests/engine/adapters/adapter_rig.h"
#include "tests/engine/base_checksum.h"
#include "tests/models/merged.h"
#include "tests/models/small/small_models.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct rig rig;
static struct error err;

/* Returns the second row's outputs with a set of one or two adapters. To be freed. */
static float *with(const char *a, double a_weight, const char *b, double b_weight) {
    struct adapter_set *set = rig_set(&rig, a, a_weight, b, b_weight);
    float *rows = rig_run(&rig, set);
    memmove(rows, rows + rig.outputs, (size_t)rig.outputs * sizeof(*rows));
    adapter_set_release(set);
    return rows;
}

static bool same_bits(const float *a, const float *b) {
    return memcmp(a, b, (size_t)rig.outputs * sizeof(*a)) == 0;
}

static double difference(const float *a, const float *b) {
    return relative_error(a, b, rig.outputs);
}

static struct adapter_info info_of(const char *name) {
    struct adapter_info info = { 0 };
    CHECK(adapters_describe(rig.adapters, name, &info, &err), "%s", err.message);
    return info;
}

static bool resolves(const char *name, double weight) {
    struct lora_choice choice = { .weight = weight, .text_encoder_weight = weight };
    struct adapter_set *set = NULL;
    snprintf(choice.name, sizeof(choice.name), "%s", name);
    err = (struct error){ 0 };
    const bool ok = adapters_resolve(rig.adapters, &choice, 1, true, &set, &err);
    adapter_set_release(set);
    return ok;
}

static bool would_wait(const char *name, double weight) {
    struct lora_choice choice = { .weight = weight, .text_encoder_weight = weight };
    snprintf(choice.name, sizeof(choice.name), "%s", name);
    return adapters_would_wait(rig.adapters, &choice, 1, true);
}

static uint64_t checksum(void) {
    uint64_t sum = 0;
    CHECK(adapters_base_checksum(rig.adapters, &sum, &err), "%s", err.message);
    return sum;
}

/* Opens a fresh registry over the files a (LoRA), b (LoRA), loha, full and others. */
static void begin(size_t memory_bytes, bool merge) {
    rig_open(&rig, memory_bytes, merge);
    rig_put(&rig, "a", RIG_LORA, 4, "to_", 1);
    rig_put(&rig, "b", RIG_LOCON, 3, "", 2);
    rig_put(&rig, "loha", RIG_LOHA, 2, "attn", 3);
    rig_put(&rig, "full", RIG_FULL, 0, "mid_block", 4);
    rig_put(&rig, "text", RIG_LORA, 4, "self_attn", 5);
    rig_put(&rig, "norms", RIG_NORM, 0, "", 6);
    struct adapters_scan scan;
    CHECK(adapters_rescan(rig.adapters, &scan, &err), "%s", err.message);
}

/* ---- what a set computes ---- */

/* Tests that drawing with a set of adapters does not affect later sets, and that the order of two
 * adapters does not matter: the bits stay the same. The row without adapters always has the base
 * model's bits. */
static void sets_leave_no_trace(void) {
    begin(0, false);
    const uint64_t before = checksum();
    float *base = rig_run(&rig, NULL);
    CHECK(same_bits(base, base + rig.outputs), "two rows without adapters differ");
    float *a = with("a", 0.7, NULL, 0), *ab = with("a", 0.7, "b", -0.3);
    static const char *const kinds[] = { "b", "loha", "full", "text", "norms" };
    for (int i = 0; i < 5; i++) {
        struct adapter_set *set = rig_set(&rig, kinds[i], 1, NULL, 0);
        float *rows = rig_run(&rig, set), *again = rig_run(&rig, set);
        CHECK(same_bits(rows, base), "%s: the row without adapters beside it differs from the base",
            kinds[i]);
        CHECK(same_bits(rows + rig.outputs, again + rig.outputs), "%s: twice", kinds[i]);
        CHECK(!same_bits(rows + rig.outputs, base), "%s changes nothing", kinds[i]);
        printf("%s at 1 changes the outputs by %.2g of their norm\n", kinds[i],
            difference(rows + rig.outputs, base));
        adapter_set_release(set);
        free(rows);
        free(again);
        float *a_again = with("a", 0.7, NULL, 0);
        CHECK(
            same_bits(a, a_again), "adapter a computes something else after %s was used", kinds[i]);
        free(a_again);
    }
    float *ba = with("b", -0.3, "a", 0.7), *off = with("a", 0, "loha", 0);
    CHECK(same_bits(ab, ba), "the order of adapters in a request changes bits");
    CHECK(same_bits(off, base), "adapters at weight 0 change the result");
    CHECK(!same_bits(ab, a), "b at -0.3 changes nothing");
    const uint64_t after = checksum();
    CHECK(before == after && before != 0, "checksum %llx, then %llx", (unsigned long long)before,
        (unsigned long long)after);
    printf("base checksum %016llx before and after 14 sets\n", (unsigned long long)before);
    free(base);
    free(a);
    free(ab);
    free(ba);
    free(off);
}

/* Compares norms changed by an overlay with the norms of a checkpoint into which they were
 * merged. */
static void norms_are_merged_as_well(void) {
    char checkpoint[128], merged[128], aside[128];
    begin(0, false);
    snprintf(checkpoint, sizeof(checkpoint), "%s/checkpoint", rig.root);
    snprintf(merged, sizeof(merged), "%s/merged", rig.root);
    snprintf(aside, sizeof(aside), "%s/aside", rig.root);
    json_t *loras = json_pack(
        "[{s:s, s:f, s:f}]", "name", "norms", "weight", -0.5, "text_encoder_weight", -0.5);
    float *apart = with("norms", -0.5, NULL, 0), *base = rig_run(&rig, NULL);
    make_merged(checkpoint, rig.loras, loras, merged);
    CHECK(rename(checkpoint, aside) == 0 && rename(merged, checkpoint) == 0, "no rename");
    rig_open(&rig, 0, false);
    float *rows = rig_run(&rig, NULL);
    const double error = difference(rows, apart);
    printf("norms -0.5: a merged checkpoint and an overlay differ by %.1e (of a change of %.2g)\n",
        error, difference(apart, base));
    CHECK(error <= 1e-6 && difference(apart, base) > 0.01, "%g", error);
    CHECK(rename(checkpoint, merged) == 0 && rename(aside, checkpoint) == 0, "no rename");
    rig_open(&rig, 0, false);
    json_decref(loras);
    free(apart);
    free(base);
    free(rows);
}

/* The checksum changes if one number changes. */
static void checksum_sees_a_change(void) {
    begin(0, false);
    const uint64_t before = checksum();
    char path[160];
    snprintf(
        path, sizeof(path), "%s/checkpoint/unet/diffusion_pytorch_model.safetensors", rig.root);
    FILE *f = fopen(path, "r+b");
    float last;
    fseek(f, -4, SEEK_END);
    CHECK(fread(&last, 4, 1, f) == 1, "cannot read");
    const float changed = last * 1.01f + 0.01f;
    fseek(f, -4, SEEK_END);
    fwrite(&changed, 4, 1, f);
    fclose(f);
    rig_open(&rig, 0, false);
    CHECK(checksum() != before, "the checksum does not change with a number of the base");
    f = fopen(path, "r+b");
    fseek(f, -4, SEEK_END);
    fwrite(&last, 4, 1, f);
    fclose(f);
    rig_open(&rig, 0, false);
    CHECK(checksum() == before, "the checksum of the same base has changed");
}

static void merged_agrees_with_unmerged(void) {
    static const struct {
        const char *a;
        double a_weight;
        const char *b;
        double b_weight;
    } sets[] = { { "a", 0.7, NULL, 0 }, { "b", 1, NULL, 0 }, { "a", 0.7, "b", -0.3 },
        { "a", 1.5, "loha", 0.4 } };
    float *apart[4];
    begin(0, false);
    for (int i = 0; i < 4; i++)
        apart[i] = with(sets[i].a, sets[i].a_weight, sets[i].b, sets[i].b_weight);
    begin(0, true);
    float *base = rig_run(&rig, NULL);
    for (int i = 0; i < 4; i++) {
        float *merged = with(sets[i].a, sets[i].a_weight, sets[i].b, sets[i].b_weight);
        const double error = difference(merged, apart[i]);
        printf("%s %g, %s %g: merged and unmerged differ by %.1e (of a change of %.2g)\n",
            sets[i].a, sets[i].a_weight, sets[i].b ? sets[i].b : "-", sets[i].b_weight, error,
            difference(apart[i], base));
        CHECK(error <= 1e-4, "merged and unmerged differ by %g", error);
        free(merged);
        free(apart[i]);
    }
    free(base);
}

static void text_keys_tell_sets_apart(void) {
    begin(0, false);
    struct adapter_set *sets[] = { rig_set(&rig, "a", 1, NULL, 0),
        rig_set(&rig, "text", 1, NULL, 0), rig_set(&rig, "text", 0.5, NULL, 0),
        rig_set(&rig, "text", 1, "a", 0.3), rig_set(&rig, "text", 0, NULL, 0),
        rig_set(&rig, "text", 1, "full", 1) };
    CHECK(adapter_set_text_key(NULL) == 0 && adapter_set_text_key(sets[0]) == 0 &&
              adapter_set_text_key(sets[4]) == 0,
        "a set that does not change the text encoder has a text key");
    const uint64_t key = adapter_set_text_key(sets[1]);
    CHECK(key != 0 && key != adapter_set_text_key(sets[2]),
        "weights 0.5 and 1 have the same text key");
    CHECK(key == adapter_set_text_key(sets[3]) && key == adapter_set_text_key(sets[5]),
        "the UNet's weight changes the text key");
    CHECK(adapter_set_text_encoder(sets[0]) == NULL && adapter_set_unet(sets[1]) == NULL,
        "a set has an overlay for a model that it does not change");
    for (int i = 0; i < 6; i++)
        adapter_set_release(sets[i]);
    for (int i = 0; i < 1000; i++) { /* more keys than are kept */
        struct adapter_set *set = rig_set(&rig, "text", 2 + i * 1e-3, NULL, 0);
        CHECK(adapter_set_text_key(set) > key, "key %d", i);
        adapter_set_release(set);
    }
}

/* ---- names ---- */

static void files_come_change_and_go(void) {
    begin(0, false);
    struct adapters_scan scan;
    struct adapter_info info = info_of("a");
    CHECK(info.state == ADAPTER_ON_DISK && info.has_summary && info.summary.unet_modules > 0,
        "a: state %s", adapter_state_name(info.state));
    adapter_info_finish(&info);
    CHECK(would_wait("a", 1) && !would_wait("a", 0), "adapter a is loaded before it is used");
    float *first = with("a", 1, NULL, 0);
    CHECK(!would_wait("a", 1) && !would_wait("a", 0.3),
        "a loaded LoRA has to wait for copies of weights");
    CHECK(would_wait("loha", 1) && resolves("loha", 1) && !would_wait("loha", 1) &&
              would_wait("loha", 0.5),
        "copies for a LoHa are not made when it is used, or are used at another weight");
    info = info_of("a");
    CHECK(info.state == ADAPTER_LOADED && info.resident_bytes > 0 && info.matched > 0 &&
              info.unmatched_count == 0 && info.users == 0,
        "a: %s, %zu matched, %zu not", adapter_state_name(info.state), info.matched,
        info.unmatched_count);
    const uint64_t version = info.version;
    adapter_info_finish(&info);

    struct adapter_set *held = rig_set(&rig, "a", 1, NULL, 0);
    rig_put(&rig, "a", RIG_LORA, 4, "to_", 11);
    rig_put(&rig, "new", RIG_LORA, 2, "to_q", 12);
    unlink(rig_path(&rig, "b"));
    CHECK(adapters_rescan(rig.adapters, &scan, &err), "%s", err.message);
    printf("rescan: %d added, %d replaced, %d removed, %d failed, %d passed over\n", scan.added,
        scan.replaced, scan.removed, scan.failed, scan.passed_over);
    CHECK(scan.added == 1 && scan.replaced == 1 && scan.removed == 1 && scan.failed == 0, "counts");
    info = info_of("a");
    CHECK(info.version > version && info.state == ADAPTER_LOADED, "version %llu after %llu",
        (unsigned long long)info.version, (unsigned long long)version);
    adapter_info_finish(&info);
    CHECK(!resolves("b", 1), "the removed adapter b can be used");
    CHECK(err.code == ERROR_INVALID, "code %d", (int)err.code);
    CHECK_STRING(err.param, "loras[0].name");
    CHECK_CONTAINS(err.allowed, "one of a, full, loha, new, norms, text");
    float *second = with("a", 1, NULL, 0), *old = rig_run(&rig, held);
    CHECK(same_bits(old + rig.outputs, first), "a request lost the version it was admitted with");
    CHECK(!same_bits(second, first), "the new file computes the same as the old one");
    adapter_set_release(held);
    CHECK(adapters_unload(rig.adapters, "a", &err), "%s", err.message);
    CHECK(would_wait("a", 1), "the unloaded adapter a is still loaded");
    float *third = with("a", 1, NULL, 0);
    CHECK(same_bits(second, third), "adapter a computes something else after it is loaded again");
    CHECK(adapters_delete(rig.adapters, "a", &err), "%s", err.message);
    CHECK(!resolves("a", 1) && access(rig_path(&rig, "a"), F_OK) != 0,
        "the deleted adapter a still exists");
    CHECK(!adapters_delete(rig.adapters, "a", &err) && err.code == ERROR_NOT_FOUND, "twice");
    free(first);
    free(second);
    free(third);
    free(old);
}

static void a_broken_file_changes_nothing(void) {
    begin(0, false);
    struct adapters_scan scan;
    float *before = with("a", 1, NULL, 0);
    struct adapter_info info = info_of("a");
    const uint64_t version = info.version;
    adapter_info_finish(&info);
    FILE *f = fopen(rig_path(&rig, "a"), "wb");
    fputs("no safetensors", f);
    fclose(f);
    CHECK(!adapters_load(rig.adapters, "a", NULL, &err), "a broken file is loaded");
    printf("broken: %s\n", err.message);
    CHECK(adapters_rescan(rig.adapters, &scan, &err), "%s", err.message);
    info = info_of("a");
    CHECK(info.state == ADAPTER_LOADED && info.version == version && info.error.code != ERROR_NONE,
        "a: state %s, version %llu", adapter_state_name(info.state),
        (unsigned long long)info.version);
    adapter_info_finish(&info);
    float *after = with("a", 1, NULL, 0);
    CHECK(same_bits(before, after), "a broken file changed the loaded version");
    CHECK(adapters_unload(rig.adapters, "a", &err), "%s", err.message);
    CHECK(!resolves("a", 1) && err.code == ERROR_INVALID, "%s", err.message);
    info = info_of("a");
    CHECK(info.state == ADAPTER_FAILED, "state %s", adapter_state_name(info.state));
    adapter_info_finish(&info);
    free(before);
    free(after);
}

/* ---- uploads ---- */

static size_t files_in_folder(void) {
    size_t count = 0;
    DIR *stream = opendir(rig.loras);
    for (struct dirent *file; (file = readdir(stream));)
        count += file->d_name[0] != '.' || strlen(file->d_name) > 2;
    closedir(stream);
    return count;
}

/* Uploads the file at `path` as `name`, without its last `cut` bytes, and announces `more` bytes
 * than it sends. */
static bool announce_and_upload(
    const char *name, const char *path, long cut, long more, struct adapter_info *info) {
    struct adapter_upload *upload;
    FILE *f = fopen(path, "rb");
    fseek(f, 0, SEEK_END);
    const long bytes = ftell(f) - cut;
    rewind(f);
    err = (struct error){ 0 };
    bool ok = adapter_upload_begin(rig.adapters, name, (uint64_t)(bytes + more), &upload, &err);
    const bool begun = ok;
    char piece[1000];
    for (long done = 0; ok && done < bytes;) {
        const size_t want = bytes - done < 1000 ? (size_t)(bytes - done) : 1000;
        const size_t n = fread(piece, 1, want, f);
        ok = adapter_upload_write(upload, piece, n, &err);
        done += (long)n;
    }
    fclose(f);
    if (begun && !ok)
        adapter_upload_abort(upload);
    return ok && adapter_upload_end(upload, info, &err);
}

static bool upload(const char *name, const char *path, long cut, struct adapter_info *info) {
    return announce_and_upload(name, path, cut, 0, info);
}

static void a_file_can_be_sent(void) {
    begin(0, false);
    char other[128];
    snprintf(other, sizeof(other), "%s/other", rig.root);
    rig_write(&rig, other, RIG_LORA, 4, "to_", 21);
    const size_t files = files_in_folder();
    struct adapter_info info = { 0 };
    CHECK(upload("sent", other, 0, &info), "%s", err.message);
    CHECK(info.state == ADAPTER_LOADED && strcmp(info.name, "sent") == 0,
        "the uploaded adapter is not loaded");
    printf("sent: loaded in %.2f ms, kept in %.2f ms\n", 1e3 * info.load_s, 1e3 * info.sync_s);
    adapter_info_finish(&info);
    CHECK(!would_wait("sent", 1) && files_in_folder() == files + 1,
        "the uploaded adapter is not loaded, or the upload left temporary files");
    float *sent = with("sent", 1, NULL, 0), *a = with("a", 1, NULL, 0);
    CHECK(upload("a", other, 0, NULL), "%s", err.message);
    float *replaced = with("a", 1, NULL, 0);
    CHECK(same_bits(replaced, sent) && !same_bits(replaced, a),
        "the replaced adapter computes something else than the uploaded file");
    CHECK(!upload("sent", other, 100, &info), "a file that was cut short is accepted");
    printf("cut: %s\n", err.message);
    CHECK(!upload("fresh", other, 100, &info), "a file that was cut short is accepted");
    CHECK(!announce_and_upload("fresh", other, 0, 1, &info) && err.code == ERROR_INVALID,
        "a file that is a byte shorter than announced is accepted");
    CHECK_CONTAINS(err.message, "of the announced");
    printf("a byte less than was announced: %s\n", err.message);
    float *still = with("sent", 1, NULL, 0);
    CHECK(same_bits(still, sent), "a failed upload changed the version");
    CHECK(files_in_folder() == files + 1, "%zu files, %zu before", files_in_folder(), files);
    CHECK(!resolves("fresh", 1), "a failed upload made an adapter");
    rig_open(&rig, 0, false); /* like a restarted daemon */
    float *reread = with("a", 1, NULL, 0);
    CHECK(same_bits(reread, sent), "the stored file computes something else than the uploaded one");
    free(sent);
    free(a);
    free(replaced);
    free(still);
    free(reread);
}

static void an_upload_may_stop_anywhere(void) {
    rig.upload_patience_s = 3600;
    begin(0, false);
    const size_t files = files_in_folder();
    struct adapter_upload *upload;
    CHECK(adapter_upload_begin(rig.adapters, "half", 100, &upload, &err), "%s", err.message);
    CHECK(adapter_upload_write(upload, "1234", 4, &err), "%s", err.message);
    CHECK(files_in_folder() == files + 1, "an upload has no temporary file");
    struct adapter_upload *second;
    CHECK(!adapter_upload_begin(rig.adapters, "half", 100, &second, &err) &&
              err.code == ERROR_CONFLICT,
        "a second upload of a name is accepted during the first: %s", err.message);
    CHECK(adapter_upload_begin(rig.adapters, "other", 100, &second, &err), "%s", err.message);
    adapter_upload_abort(second);
    adapter_upload_abort(upload);
    CHECK(files_in_folder() == files, "the temporary file of an aborted upload is not removed");
    CHECK(adapter_upload_begin(rig.adapters, "half", 3, &upload, &err), "%s", err.message);
    CHECK(!adapter_upload_write(upload, "1234", 4, &err), "more bytes than announced are accepted");
    adapter_upload_abort(upload);
    CHECK(!adapter_upload_begin(rig.adapters, "half", ADAPTER_FILE_MAX_BYTES + 1, &upload, &err) &&
              err.code == ERROR_TOO_LARGE,
        "%s", err.message);
    char left[128]; /* left by a daemon that was killed */
    snprintf(left, sizeof(left), "%s/.upload-0123456789abcdef", rig.loras);
    fclose(fopen(left, "w"));
    rig_open(&rig, 0, false);
    CHECK(access(left, F_OK) != 0, "the temporary file of a killed daemon is not removed");
    rig.upload_patience_s = 0;
}

static void one_that_stalls_loses_its_name(void) {
    struct adapter_upload *stalled, *next;
    struct adapter_info info;
    char other[160];
    begin(0, false);
    const size_t files = files_in_folder();
    rig.upload_patience_s = 0.01;
    rig_open(&rig, 0, false);
    snprintf(other, sizeof(other), "%s/other.safetensors", rig.root);
    rig_write(&rig, other, RIG_LORA, 3, "", 9);
    CHECK(adapter_upload_begin(rig.adapters, "name", 100, &stalled, &err), "%s", err.message);
    CHECK(adapter_upload_write(stalled, "1234", 4, &err), "%s", err.message);
    usleep(20000);
    CHECK(upload("name", other, 0, &info), "a stalled upload blocks another one of its name: %s",
        err.message);
    adapter_info_finish(&info);
    CHECK(!adapter_upload_write(stalled, "5", 1, &err) && err.code == ERROR_CONFLICT, "%s: %s",
        error_code_name(err.code), err.message);
    CHECK_CONTAINS(err.message, "this upload was silent for 0.01 s");
    adapter_upload_abort(stalled);
    /* An upload that another upload has replaced cannot be completed. */
    CHECK(adapter_upload_begin(rig.adapters, "name", 0, &stalled, &err), "%s", err.message);
    usleep(20000);
    CHECK(adapter_upload_begin(rig.adapters, "name", 0, &next, &err), "%s", err.message);
    CHECK(
        !adapter_upload_end(stalled, &info, &err) && err.code == ERROR_CONFLICT, "%s", err.message);
    adapter_upload_abort(next);
    CHECK(files_in_folder() == files + 1 && resolves("name", 1),
        "the finished upload is not the only file, or cannot be used");
    rig.upload_patience_s = 0;
}

/* Adds a file as a finished training does. The file is copied into the folder; without a folder it
 * is used in its own place. */
static void a_file_from_elsewhere_is_added(void) {
    char other[160], folder[sizeof(rig.loras)];
    begin(0, false);
    snprintf(other, sizeof(other), "%s/other.safetensors", rig.root);
    rig_write(&rig, other, RIG_LORA, 3, "", 9);
    const size_t files = files_in_folder();
    CHECK(adapters_add_file(rig.adapters, "added", other, &err), "%s", err.message);
    CHECK(files_in_folder() == files + 1 && resolves("added", 1),
        "the added file is not in the folder, or cannot be used");
    float *kept = with("added", 1, NULL, 0);
    memcpy(folder, rig.loras, sizeof(folder));
    rig.loras[0] = 0;
    rig_open(&rig, 0, false);
    memcpy(rig.loras, folder, sizeof(folder));
    CHECK(adapters_add_file(rig.adapters, "added", other, &err),
        "a file cannot be added without an adapter folder: %s", err.message);
    float *loaded = with("added", 1, NULL, 0);
    CHECK(same_bits(kept, loaded), "%g apart", difference(kept, loaded));
    free(kept);
    free(loaded);
}

/* ---- hostile names ---- */

static void names_stay_in_the_folder(void) {
    begin(0, false);
    static const char *const names[] = { "", ".", "..", "../loras/a", "/etc/passwd", "a\\b",
        ".hidden", "sub/.hidden", "sub/../a", "sub/..", "sub//a", "sub/", "./a", "a\n", "a\x7f",
        "\xc2\x9b"
        "1m",
        "a\xe2\x80\xae"
        "b",
        "\xc3", "\xed\xa0\x80", "rescan", "a@12", "a.safetensors/..", "1/2/3/4/5/6/7/8/9" };
    struct adapter_upload *upload;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        CHECK(!resolves(names[i], 1) && err.code == ERROR_INVALID, "\"%s\" resolves", names[i]);
        CHECK(!adapters_load(rig.adapters, names[i], NULL, &err), "\"%s\" loads", names[i]);
        CHECK(!adapter_upload_begin(rig.adapters, names[i], 0, &upload, &err) &&
                  err.code == ERROR_INVALID,
            "an upload with the name \"%s\" is accepted", names[i]);
        CHECK(!adapters_delete(rig.adapters, names[i], &err), "\"%s\" is deleted", names[i]);
    }
    char longest[ADAPTER_NAME_MAX_BYTES + 2];
    memset(longest, 'x', sizeof(longest));
    longest[ADAPTER_NAME_MAX_BYTES + 1] = 0;
    CHECK(!adapter_name_check("name", longest, &err), "a name that is too long is accepted");
    longest[ADAPTER_NAME_MAX_BYTES] = 0;
    CHECK(adapter_name_check("name", longest, &err), "%s", err.message);
}

static void only_regular_files_are_read(void) {
    begin(0, false);
    char outside[128];
    snprintf(outside, sizeof(outside), "%s/outside.safetensors", rig.root);
    rig_write(&rig, outside, RIG_LORA, 4, "to_", 31);
    CHECK(symlink(outside, rig_path(&rig, "link")) == 0, "cannot make a link");
    CHECK(mkdir(rig_path(&rig, "folder"), 0755) == 0, "cannot make a folder");
    CHECK(mkfifo(rig_path(&rig, "pipe"), 0644) == 0, "cannot make a pipe");
    rig_write(&rig, rig_path(&rig, "no name"), RIG_LORA, 4, "to_", 32);
    struct adapters_scan scan;
    CHECK(adapters_rescan(rig.adapters, &scan, &err), "%s", err.message);
    /* The link and the pipe are passed over; the folder is looked into, and is empty. */
    CHECK(scan.added == 1 && scan.passed_over == 2, "%d added, %d passed over", scan.added,
        scan.passed_over);
    static const char *const names[] = { "link", "folder", "pipe" };
    for (int i = 0; i < 3; i++) {
        CHECK(!resolves(names[i], 1), "%s resolves", names[i]);
        CHECK(!adapters_load(rig.adapters, names[i], NULL, &err), "%s loads", names[i]);
        printf("%s: %s\n", names[i], err.message);
    }
    /* A file is replaced by a link between the scan and the first use. */
    unlink(rig_path(&rig, "a"));
    CHECK(symlink(outside, rig_path(&rig, "a")) == 0, "cannot make a link");
    CHECK(!resolves("a", 1) && err.code == ERROR_INVALID, "a link is followed");
    CHECK_CONTAINS(err.message, "symbolic link");
    CHECK_STRING(err.param, "loras[0].name");
    CHECK_STRING(err.value, "a");
    /* An upload to the name of a link replaces the link, not the link's target. */
    struct stat before, after;
    stat(outside, &before);
    char other[128];
    snprintf(other, sizeof(other), "%s/other", rig.root);
    rig_write(&rig, other, RIG_LORA, 2, "to_", 33);
    CHECK(upload("link", other, 0, NULL), "%s", err.message);
    stat(outside, &after);
    CHECK(before.st_size == after.st_size && before.st_ino == after.st_ino &&
              before.st_mtim.tv_nsec == after.st_mtim.tv_nsec,
        "an upload went through a link");
    CHECK(resolves("link", 1), "%s", err.message);
    unlink(rig_path(&rig, "link"));
    rmdir(rig_path(&rig, "folder"));
    unlink(rig_path(&rig, "pipe"));
    unlink(rig_path(&rig, "no name"));
    unlink(rig_path(&rig, "a"));
}

/* ---- choices and defaults ---- */

static bool resolve_list(
    const struct lora_choice *choices, int count, bool given, struct adapter_set **out) {
    err = (struct error){ 0 };
    *out = NULL;
    return adapters_resolve(rig.adapters, choices, count, given, out, &err);
}

static void wrong_choices_are_refused(void) {
    begin(0, false);
    struct adapter_set *set;
    const struct lora_choice twice[] = { { "a", 1, 1 }, { "b", 1, 1 }, { "a", 0.5, 0.5 } };
    CHECK(!resolve_list(twice, 3, true, &set), "a request with one adapter twice is accepted");
    CHECK_STRING(err.param, "loras[2].name");
    const double wrong[] = { NAN, INFINITY, -INFINITY, 100.5, -101 };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const struct lora_choice unet[] = { { "b", 1, 1 }, { "a", wrong[i], 1 } };
        const struct lora_choice text[] = { { "a", 1, wrong[i] } };
        CHECK(!resolve_list(unet, 2, true, &set), "weight %g", wrong[i]);
        CHECK_STRING(err.param, "loras[1].weight");
        CHECK(!resolve_list(text, 1, true, &set), "a text encoder's weight of %g is accepted",
            wrong[i]);
        CHECK_STRING(err.param, "loras[0].text_encoder_weight");
    }
    CHECK(resolve_list(NULL, 0, true, &set) && !set, "an empty list makes a set");
}

static void defaults_apply_where_none_is_named(void) {
    begin(0, false);
    const struct adapter_use *uses;
    struct adapter_set *set;
    CHECK(resolve_list(NULL, 0, false, &set) && !set,
        "a request without a list gets a set, although there are no defaults");
    struct adapter_settings settings = { .has_default = true,
        .is_default = true,
        .weight = 0.6,
        .text_encoder_weight = 0.2,
        .has_pinned = true,
        .pinned = true };
    struct adapter_info info;
    CHECK(adapters_set(rig.adapters, "a", &settings, &info, &err), "%s", err.message);
    CHECK(info.is_default && info.pinned && info.default_weight == 0.6 &&
              info.default_text_encoder_weight == 0.2 && info.state == ADAPTER_LOADED,
        "the adapter's settings are not the ones that were set");
    adapter_info_finish(&info);
    CHECK(resolve_list(NULL, 0, false, &set) && adapter_set_uses(set, &uses) == 1,
        "a request without a list does not get the default adapter");
    CHECK(strcmp(uses[0].name, "a") == 0 && uses[0].weight == 0.6 &&
              uses[0].text_encoder_weight == 0.2,
        "%s at %g", uses[0].name, uses[0].weight);
    adapter_set_release(set);
    CHECK(resolve_list(NULL, 0, true, &set) && !set,
        "a request with an empty list gets the default adapter");
    CHECK(
        !adapters_unload(rig.adapters, "a", &err) && err.code == ERROR_CONFLICT, "%s", err.message);
    settings.weight = NAN;
    CHECK(!adapters_set(rig.adapters, "a", &settings, NULL, &err),
        "a default weight of NaN is accepted");
    settings = (struct adapter_settings){ .has_default = true };
    CHECK(adapters_set(rig.adapters, "a", &settings, NULL, &err), "%s", err.message);
    CHECK(resolve_list(NULL, 0, false, &set) && !set,
        "a request without a list still gets the former default");
    CHECK(
        !adapters_set(rig.adapters, "nobody", &settings, NULL, &err) && err.code == ERROR_NOT_FOUND,
        "%s", err.message);
}

/* ---- a device that serves one thread at a time ---- */

#define TAKERS 3

static struct adapters device; /* only its `turn` is used */
static int counted, order[2], arrived;

static void *count_alone(void *user) {
    (void)user;
    for (int i = 0; i < 2000; i++) {
        adapters_device_take(&device);
        adapters_device_take(&device); /* the holder may take it again */
        const int before = counted;
        adapters_device_give(&device);
        counted = before + 1;
        adapters_device_give(&device);
    }
    return NULL;
}

static void *arrive(void *user) {
    adapters_device_take(&device);
    order[arrived++] = *(int *)user;
    adapters_device_give(&device);
    return NULL;
}

static uint64_t tickets(void) {
    pthread_mutex_lock(&device.turn.lock);
    const uint64_t next = device.turn.next;
    pthread_mutex_unlock(&device.turn.lock);
    return next;
}

static void a_device_is_taken_in_turns(void) {
    struct kernels accelerator = *kernels_cpu();
    int numbers[2] = { 1, 2 };
    pthread_t threads[TAKERS];
    accelerator.device = DEVICE_CUDA;
    device.base.kernels = &accelerator;
    pthread_mutex_init(&device.turn.lock, NULL);
    pthread_cond_init(&device.turn.given, NULL);
    for (int i = 0; i < TAKERS; i++)
        pthread_create(&threads[i], NULL, count_alone, NULL);
    for (int i = 0; i < TAKERS; i++)
        pthread_join(threads[i], NULL);
    CHECK(counted == TAKERS * 2000, "%d of %d turns were alone", counted, TAKERS * 2000);
    adapters_device_take(&device);
    for (int i = 0; i < 2; i++) {
        const uint64_t before = tickets();
        pthread_create(&threads[i], NULL, arrive, &numbers[i]);
        while (tickets() == before)
            usleep(100);
    }
    CHECK(arrived == 0, "another thread entered although the lock was held");
    adapters_device_give(&device);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK(arrived == 2 && order[0] == 1 && order[1] == 2,
        "threads did not enter in the order in which they asked");
    adapters_device_take(NULL);
    adapters_device_give(NULL);
}

static int collections;

static void collector(void *user) {
    ++*(int *)user;
}

static atomic_bool released, asked;

/* Holds the device until the set is released, or until the releasing thread asks for the device,
 * which it must not. */
static void *hold_device(void *user) {
    struct device_turn *turn = &rig.adapters->turn;
    adapters_device_take(rig.adapters);
    pthread_barrier_wait(user);
    for (bool waits = false; !waits && !atomic_load(&released);) {
        pthread_mutex_lock(&turn->lock);
        waits = turn->next > 1;
        pthread_mutex_unlock(&turn->lock);
        atomic_store(&asked, waits);
        usleep(100);
    }
    adapters_device_give(rig.adapters);
    return NULL;
}

/* A thread that drops the last references to a version and its copies, while another one holds the
 * device, leaves their memory to the collector. */
static void a_busy_device_delays_no_release(void) {
    struct kernels accelerator = *kernels_cpu();
    pthread_barrier_t held;
    pthread_t thread;
    accelerator.device = DEVICE_CUDA;
    begin(0, false);
    adapters_set_collector(rig.adapters, collector, &collections);
    struct adapter_set *set = rig_set(&rig, "a", 1, "loha", 1);
    CHECK(adapters_unload(rig.adapters, "a", &err), "%s", err.message);
    CHECK(adapters_delete(rig.adapters, "loha", &err), "%s", err.message);
    CHECK(collections == 0, "%d collections while the set is in use", collections);
    const struct kernels *kernels = rig.adapters->base.kernels;
    rig.adapters->base.kernels = &accelerator;
    pthread_barrier_init(&held, NULL, 2);
    pthread_create(&thread, NULL, hold_device, &held);
    pthread_barrier_wait(&held);
    adapter_set_release(set);
    atomic_store(&released, true);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&held);
    CHECK(!atomic_load(&asked), "the release waited for the device");
    CHECK(collections == 1, "%d collections", collections);
    CHECK(rig.adapters->left.versions && rig.adapters->left.copies, "nothing was left");
    adapters_collect(rig.adapters);
    CHECK(!rig.adapters->left.versions && !rig.adapters->left.copies, "still there");
    rig.adapters->base.kernels = kernels;
    set = rig_set(&rig, "b", 1, NULL, 0);
    CHECK(adapters_unload(rig.adapters, "b", &err), "%s", err.message);
    adapter_set_release(set);
    CHECK(collections == 1 && !rig.adapters->left.versions, "the CPU needs no collector");
}

/* ---- memory ---- */

static bool is_loaded(const char *name) {
    struct adapter_info info = info_of(name);
    const bool loaded = info.state == ADAPTER_LOADED;
    adapter_info_finish(&info);
    return loaded;
}

static size_t resident(void) {
    struct adapters_listing listing;
    CHECK(adapters_list(rig.adapters, &listing, &err), "%s", err.message);
    const size_t bytes = (size_t)listing.resident_bytes;
    adapters_listing_finish(&listing);
    return bytes;
}

/* The memory has room for two of four adapters of equal size. */
static void who_was_used_longest_ago_gives_way(void) {
    static const char *const names[] = { "l1", "l2", "l3", "l4" };
    begin(0, false);
    for (int i = 0; i < 4; i++)
        rig_put(&rig, names[i], RIG_LORA, 8, "to_", 40 + i);
    rig_open(&rig, 0, false);
    CHECK(resolves("l1", 1), "%s", err.message);
    const size_t one = resident(), limit = 2 * one + one / 2;
    rig_open(&rig, limit, false);
    CHECK(resolves("l1", 1) && resolves("l2", 1) && resolves("l1", 1) && resolves("l3", 1), "%s",
        err.message);
    CHECK(is_loaded("l1") && !is_loaded("l2") && is_loaded("l3"),
        "the adapter unloaded to make room is not l2, the least recently used");
    CHECK(resident() <= limit, "%zu bytes of %zu", resident(), limit);
    struct adapter_set *held = rig_set(&rig, "l1", 1, "l3", 1);
    CHECK(!resolves("l2", 1) && err.code == ERROR_NO_MEMORY, "%s", err.message);
    printf("full: %s\n", err.message);
    CHECK(is_loaded("l1") && is_loaded("l3"), "an adapter in use was unloaded to make room");
    adapter_set_release(held);
    const struct adapter_settings pin = { .has_pinned = true, .pinned = true };
    CHECK(adapters_set(rig.adapters, "l1", &pin, NULL, &err), "%s", err.message);
    CHECK(resolves("l2", 1) && resolves("l4", 1) && is_loaded("l1"),
        "a pinned adapter was unloaded to make room");
    const struct lora_choice three[] = { { "l1", 1, 1 }, { "l2", 1, 1 }, { "l3", 1, 1 } };
    struct adapter_set *set;
    CHECK(!resolve_list(three, 3, true, &set) && err.code == ERROR_NO_MEMORY,
        "a request for three adapters is accepted, although only two fit: %s", err.message);
    CHECK(resident() <= limit, "%zu bytes of %zu", resident(), limit);
    for (int i = 0; i < 4; i++)
        unlink(rig_path(&rig, names[i]));
}

static void copies_count_and_give_way(void) {
    begin(0, false);
    CHECK(resolves("loha", 1), "%s", err.message);
    const size_t copies = resident();
    CHECK(copies > 0, "the copies are not counted as memory");
    rig_open(&rig, copies + copies / 2, false);
    for (int i = 0; i < 5; i++)
        CHECK(resolves("loha", 1 + i), "%s", err.message);
    CHECK(resident() <= copies + copies / 2, "%zu bytes", resident());
    struct adapter_set *held = rig_set(&rig, "loha", 1, NULL, 0);
    CHECK(!resolves("loha", 2) && err.code == ERROR_NO_MEMORY, "%s", err.message);
    printf("full: %s\n", err.message);
    CHECK(resolves("loha", 1), "%s", err.message);
    adapter_set_release(held);
    CHECK(resolves("loha", 2), "%s", err.message);
    CHECK(adapters_delete(rig.adapters, "loha", &err) && resident() == 0,
        "%zu bytes are counted for deleted adapters", resident());
}

int main(void) {
    rig_make(&rig, kernels_cpu(), DTYPE_F32);
    sets_leave_no_trace();
    norms_are_merged_as_well();
    checksum_sees_a_change();
    merged_agrees_with_unmerged();
    text_keys_tell_sets_apart();
    files_come_change_and_go();
    a_broken_file_changes_nothing();
    a_file_can_be_sent();
    an_upload_may_stop_anywhere();
    one_that_stalls_loses_its_name();
    a_file_from_elsewhere_is_added();
    names_stay_in_the_folder();
    only_regular_files_are_read();
    wrong_choices_are_refused();
    defaults_apply_where_none_is_named();
    who_was_used_longest_ago_gives_way();
    copies_count_and_give_way();
    a_device_is_taken_in_turns();
    a_busy_device_delays_no_release();
    rig_remove(&rig);
    return check_done();
}
