/* A training job's reports: TensorBoard files with the same bytes as TensorBoard's own writer,
 * metrics.jsonl after a kill and a resume, and the plot as XML. */
#include "base/file.h"
#include "tests/check.h"
#include "train/report/events.h"
#include "train/report/plot.h"
#include "train/report/records.h"

#include <dirent.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/latentd-report-XXXXXX";

/* Four events written by tensorboard 2.21's RecordWriter, the first at 1700000000.25: the version;
 * SessionLog START at step 301; loss 0.125 and learning_rate 1e-4 at 301; a picture of 300x2 at
 * 301, whose "PNG" is "PNG!". START has the time of the first event. It makes TensorBoard drop what
 * earlier files say about step 301 and later steps. */
static const char recorded[] =
    "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9100000000000"
    "000095fbfe180900001040fc54d94110ad023a020801cb79b93b31000000000000009d8383e9090000a040fc54d9"
    "4110ad022a230a0b0a046c6f7373150000003e0a140a0d6c6561726e696e675f726174651517b7d1387f89a3d62d"
    "000000000000003c418afb090000e040fc54d94110ad022a1f0a1d0a0c76616c69646174696f6e2f30220d080210"
    "ac0218032204504e47213583c6ba";

static char *path_of(const char *prefix) {
    DIR *dir = opendir(folder);
    char *found = NULL;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0 && !found)
            found = file_join(folder, e->d_name);
    if (dir)
        closedir(dir);
    return found;
}

static void events_are_what_tensorboard_writes(void) {
    struct error err = { 0 };
    struct events *events;
    CHECK(events_create(folder, 1700000000.25, 300, &events, &err), "%s", err.message);
    const struct events_scalar scalars[] = { { "loss", 0.125f }, { "learning_rate", 1e-4f } };
    CHECK(events_add_scalars(events, 1700000002.5, 301, scalars, 2, &err), "%s", err.message);
    const struct events_picture picture = {
        .tag = "validation/0", .height = 2, .width = 300, .png = "PNG!", .size = 4
    };
    CHECK(events_add_picture(events, 1700000003.5, 301, &picture, &err), "%s", err.message);
    events_destroy(events);
    char *path = path_of("events.out.tfevents.1700000000.latentd."), *bytes = NULL;
    size_t size = 0;
    CHECK(path && file_read(path, 4096, &bytes, &size, &err), "%s", err.message);
    CHECK(size == (sizeof(recorded) - 1) / 2, "%zu bytes", size);
    int differ = 0;
    for (size_t i = 0; bytes && i < size && i < (sizeof(recorded) - 1) / 2; i++) {
        unsigned want;
        sscanf(recorded + 2 * i, "%2x", &want);
        differ += (unsigned char)bytes[i] != want;
    }
    CHECK(!differ, "%d bytes differ from tensorboard's", differ);
    printf("%zu bytes of events compared with tensorboard's, %d differ\n", size, differ);
    if (path)
        unlink(path);
    free(path);
    free(bytes);
}

/* A job paused and resumed within one second: both files must stay. */
static void one_second_has_two_files(void) {
    const char *prefix = "events.out.tfevents.1700000001.latentd.";
    struct error err = { 0 };
    struct events *first, *second;
    CHECK(events_create(folder, 1700000001, 0, &first, &err), "%s", err.message);
    CHECK(events_create(folder, 1700000001, 300, &second, &err), "%s", err.message);
    events_destroy(first);
    events_destroy(second);
    int files = 0;
    for (char *path; (path = path_of(prefix)); free(path), files++)
        unlink(path);
    CHECK(files == 2, "%d files", files);
}

static struct train_record record_at(int64_t step) {
    return (struct train_record){
        .step = step,
        .epoch = (double)step / 4,
        .loss = step == 3 ? NAN : 1.0 / (double)step,
        .learning_rate = 1e-4,
        .text_encoder_learning_rate = NAN,
        .grad_norm = 0.1,
        .loss_scale = NAN,
        .images_per_s = 2,
        .eta_s = 10,
        .validation_loss = step % 5 ? NAN : 0.3,
    };
}

static void lines_survive_a_kill_and_a_resume(void) {
    struct error err = { 0 };
    struct records *records;
    struct train_record *got;
    size_t count;
    CHECK(records_open(folder, 0, &records, &err), "%s", err.message);
    for (int step = 1; step <= 10; step++) {
        const struct train_record r = record_at(step);
        CHECK(records_add(records, &r, &err), "%s", err.message);
    }
    records_close(records);
    char *path = path_of("metrics.jsonl");
    FILE *f = fopen(path, "a");
    fputs("{\"step\":11,\"lo", f); /* the process is killed here */
    fclose(f);
    CHECK(records_read(folder, &got, &count, &err) && count == 10, "%zu lines", count);
    CHECK(isnan(got[2].loss) && got[4].validation_loss == 0.3 && isnan(got[5].validation_loss),
        "what is not there is NAN");
    CHECK_NEAR(got[6].loss, 1.0 / 7, 1e-9);
    free(got);
    CHECK(records_open(folder, 10, &records, &err) && records_measured(records) == 0.3,
        "what step 10 measured is there");
    records_close(records);
    CHECK(records_open(folder, 7, &records, &err), "%s", err.message); /* resumed at step 7 */
    CHECK(isnan(records_measured(records)), "step 7 measured nothing");
    const struct train_record again = record_at(8);
    CHECK(records_add(records, &again, &err), "%s", err.message);
    CHECK(records_read(folder, &got, &count, &err) && count == 8 && got[7].step == 8, "%zu lines",
        count);
    free(got);
    /* On a full disk the line is not written and the others stay. Writing goes on once there is
     * space. */
    struct rlimit before, small = { 0 };
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    struct stat before_it;
    CHECK(stat(path, &before_it) == 0, "no file");
    small.rlim_cur = (rlim_t)before_it.st_size + 20;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    CHECK(!records_add(records, &again, &err) && err.code == ERROR_NO_SPACE, "no error");
    printf("full: %s\n", err.message);
    setrlimit(RLIMIT_FSIZE, &before);
    const struct train_record ninth = record_at(9);
    CHECK(records_add(records, &ninth, &err), "%s", err.message);
    CHECK(records_read(folder, &got, &count, &err) && count == 9 && got[8].step == 9, "%zu lines",
        count);
    free(got);
    records_close(records);
    unlink(path);
    free(path);
    CHECK(!records_open("/no/such/folder", 0, &records, &err) && !records, "no error");
    CHECK_CONTAINS(err.message, "/no/such/folder/metrics.jsonl");
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (const char *p = text; (p = strstr(p, part)); p++)
        count++;
    return count;
}

static void a_plot_is_one_of_any_losses(void) {
    enum { STEPS = 5000 };
    static struct train_record records[STEPS];
    for (int i = 0; i < STEPS; i++)
        records[i] = record_at(i + 1);
    char *svg = plot_losses("a <b> & \"c\"\x01", records, STEPS);
    CHECK(svg && !strstr(svg, "<b>") && !strstr(svg, "\x01"), "the title is not XML");
    CHECK(count_of(svg, "<circle") == STEPS / 5, "%d dots", count_of(svg, "<circle"));
    CHECK(!strstr(svg, "nan") && !strstr(svg, "inf"), "NAN is drawn");
    free(svg);
    const struct train_record odd[] = { { .step = 1, .loss = NAN, .validation_loss = NAN },
        { .step = 2, .loss = 1e300, .validation_loss = NAN },
        { .step = 2, .loss = -1e300, .validation_loss = INFINITY } };
    for (size_t count = 0; count <= 3; count++) {
        svg = plot_losses("", odd, count);
        CHECK(svg && strstr(svg, "</svg>") && !strstr(svg, "nan") && strlen(svg) < 100000,
            "%zu odd records", count);
        free(svg);
    }
}

int main(void) {
    if (!mkdtemp(folder))
        return 1;
    events_are_what_tensorboard_writes();
    one_second_has_two_files();
    lines_survive_a_kill_and_a_resume();
    a_plot_is_one_of_any_losses();
    rmdir(folder);
    return check_done();
}
