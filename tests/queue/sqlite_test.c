/* The queue's file under stress: killed processes, full disks, damaged and removed files, a second
 * daemon. */
#include "queue/queue.h"
#include "tests/check.h"
#include "tests/queue/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static struct queue *must_open(const char *folder) {
    struct error err = { 0 };
    struct queue *queue = NULL;
    CHECK(queue_open(folder, &queue, &err), "%s", err.message);
    return queue;
}

static void opens_not(const char *folder, enum error_code code, const char *words) {
    struct error err = { 0 };
    struct queue *queue = NULL;
    CHECK(!queue_open(folder, &queue, &err), "the queue was opened instead of refused with: %s",
        words);
    CHECK(err.code == code, "%s: %s", error_code_name(err.code), err.message);
    CHECK_CONTAINS(err.message, words);
    queue_destroy(queue);
}

static bool enqueue(
    struct queue *queue, const char *request, char id[JOB_ID_BYTES], struct error *err) {
    const struct job_order order = { .type = "train", .request = request };
    struct job job;
    bool known;
    if (!queue_enqueue(queue, &order, &job, &known, err))
        return false;
    memcpy(id, job.id, JOB_ID_BYTES);
    job_finish(&job);
    return true;
}

/* Whether another program can execute `sql` on the file. *out is the number in the first row. */
static bool ask_file(const char *folder, const char *sql, int *out) {
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    const int opened = sqlite3_open(folder_path(folder, "jobs.sqlite"), &db);
    bool ok = opened == SQLITE_OK && sqlite3_prepare_v2(db, sql, -1, &statement, NULL) == SQLITE_OK;
    const int step = ok ? sqlite3_step(statement) : SQLITE_ERROR;
    if (step == SQLITE_ROW)
        *out = sqlite3_column_int(statement, 0);
    ok = step == SQLITE_ROW || step == SQLITE_DONE;
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return ok;
}

static void a_deleted_job_leaves_no_events(void) {
    char folder[FOLDER_BYTES], id[JOB_ID_BYTES], other[JOB_ID_BYTES];
    struct error err = { 0 };
    int events = -1, orphans = -1;
    folder_make(folder);
    struct queue *queue = must_open(folder);
    CHECK(enqueue(queue, "{}", id, &err) && enqueue(queue, "{}", other, &err), "%s", err.message);
    CHECK(queue_delete(queue, id, &err), "%s", err.message);
    queue_destroy(queue);
    CHECK(ask_file(folder, "SELECT count(*) FROM event", &events) && events == 1,
        "%d events of one job", events);
    CHECK(ask_file(folder, "SELECT count(*) FROM event WHERE job NOT IN (SELECT number FROM job)",
              &orphans) &&
              orphans == 0,
        "%d events of no job", orphans);
    printf("%d event of one job, %d of none\n", events, orphans);
    folder_remove(folder);
}

/* The file has a lock of its own, besides the folder's. So while the daemon uses the file, even a
 * program that ignores the folder's lock can neither read nor write it. */
static void nobody_else_uses_the_file(void) {
    char folder[FOLDER_BYTES], id[JOB_ID_BYTES];
    struct error err = { 0 };
    int count = -1;
    folder_make(folder);
    struct queue *queue = must_open(folder);
    CHECK(enqueue(queue, "{}", id, &err), "%s", err.message);
    CHECK(!ask_file(folder, "SELECT count(*) FROM job", &count), "%d jobs were read", count);
    CHECK(!ask_file(folder, "DELETE FROM job", &count),
        "another process can delete the jobs of an open queue");
    queue_destroy(queue);
    CHECK(ask_file(folder, "SELECT count(*) FROM job", &count) && count == 1, "%d jobs", count);
    folder_remove(folder);
}

/* If the database refuses an event after the event's job was already changed, the change is undone
 * as well. */
static void a_change_happens_as_a_whole_or_not_at_all(void) {
    char folder[FOLDER_BYTES], id[JOB_ID_BYTES];
    struct error err = { 0 };
    struct job job, now = { 0 };
    bool found;
    int count;
    folder_make(folder);
    queue_destroy(must_open(folder));
    CHECK(ask_file(folder,
              "CREATE TRIGGER refuse BEFORE INSERT ON event WHEN NEW.type = 'refused'"
              " BEGIN SELECT RAISE(FAIL, 'no room'); END",
              &count),
        "a trigger");
    struct queue *queue = must_open(folder);
    CHECK(enqueue(queue, "{}", id, &err), "%s", err.message);
    CHECK(queue_claim(queue, "train", &job, &found, &err) && found, "%s", err.message);
    CHECK(!queue_add_event(queue, id, 1, "refused", "{}", &err), "the refused event was accepted");
    CHECK_CONTAINS(err.message, "no room");
    CHECK(queue_get(queue, id, &now, &err) && now.events == job.events, "event %d of %d",
        (int)now.events, (int)job.events);
    CHECK(queue_add_event(queue, id, 1, "taken", "{}", &err),
        "the event after a refused one fails: %s", err.message);
    job_finish(&job), job_finish(&now);
    queue_destroy(queue);
    CHECK(ask_file(folder, "SELECT events FROM job", &count) && count == 3, "event %d", count);
    printf("a refused event changed nothing, the next is number %d\n", count);
    folder_remove(folder);
}

static bool is_sound(const char *folder) {
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    bool sound = sqlite3_open(folder_path(folder, "jobs.sqlite"), &db) == SQLITE_OK &&
                 sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &statement, NULL) ==
                     SQLITE_OK &&
                 sqlite3_step(statement) == SQLITE_ROW &&
                 strcmp((const char *)sqlite3_column_text(statement, 0), "ok") == 0;
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return sound;
}

/* --- Files of format version 1 --- */

/* The file's schema, exactly as a daemon of format version 1 made it. */
static const char version_1[] =
    "CREATE TABLE job ("
    " number INTEGER PRIMARY KEY AUTOINCREMENT,"
    " id TEXT NOT NULL UNIQUE,"
    " type TEXT NOT NULL,"
    " priority INTEGER NOT NULL,"
    " request TEXT NOT NULL,"
    " idempotency_key TEXT UNIQUE,"
    " body TEXT,"
    " state TEXT NOT NULL CHECK (state IN"
    "  ('queued', 'running', 'paused', 'succeeded', 'failed', 'cancelled')),"
    " wish INTEGER NOT NULL,"
    " attempts INTEGER NOT NULL,"
    " strikes INTEGER NOT NULL,"
    " created_ms INTEGER NOT NULL,"
    " started_ms INTEGER NOT NULL,"
    " finished_ms INTEGER NOT NULL,"
    " running_ms INTEGER NOT NULL,"
    " since_ms INTEGER NOT NULL,"
    " step INTEGER NOT NULL,"
    " steps INTEGER NOT NULL,"
    " furthest INTEGER NOT NULL,"
    " eta_s REAL NOT NULL,"
    " metrics TEXT,"
    " result TEXT,"
    " error TEXT,"
    " events INTEGER NOT NULL"
    ") STRICT;"
    "CREATE INDEX job_ready ON job (type, priority DESC, number) WHERE state = 'queued';"
    "CREATE INDEX job_state ON job (state, number);"
    "CREATE TABLE event ("
    " job INTEGER NOT NULL REFERENCES job (number) ON DELETE CASCADE,"
    " number INTEGER NOT NULL,"
    " at_ms INTEGER NOT NULL,"
    " type TEXT NOT NULL,"
    " data TEXT NOT NULL,"
    " PRIMARY KEY (job, number)"
    ") STRICT, WITHOUT ROWID;"
    "PRAGMA user_version = 1;";

#define VERSION_1_JOB(number, type, key, state)                                                    \
    "INSERT INTO job VALUES (" number ", 'id" number "', '" type "', 0, '{}', " key                \
    ", 'the body', '" state "', 0, 1, 0, 1, 1, 0, 0, 0, 3, 9, 3, -1, NULL, NULL, NULL, 2);"        \
    "INSERT INTO event VALUES (" number ", 1, 1, 'state', '{}'), (" number ", 2, 1, 'a', '{}');"

/* In format version 1 a key had to be unique among all jobs, so the key of a generate job contains
 * the type and the name of the API key. Jobs 3, 5, 6 and 7 remain; 9 is deleted, so the next job
 * must be number 10. */
static const char *const rows_of_version_1[] = {
    VERSION_1_JOB("3", "train", "'monday'", "running"),
    VERSION_1_JOB("5", "generate", "'generate alice monday'", "succeeded"),
    VERSION_1_JOB("6", "generate", "'generate  monday'", "queued"),
    VERSION_1_JOB("7", "generate", "NULL", "paused"),
    VERSION_1_JOB("9", "train", "'tuesday'", "failed"),
    "DELETE FROM event WHERE job = 9; DELETE FROM job WHERE number = 9",
};

static void execute(const char *folder, const char *sql) {
    sqlite3 *db = NULL;
    char *message = NULL;
    CHECK(sqlite3_open(folder_path(folder, "jobs.sqlite"), &db) == SQLITE_OK &&
              sqlite3_exec(db, sql, NULL, NULL, &message) == SQLITE_OK,
        "%s", message ? message : "no file");
    sqlite3_free(message);
    sqlite3_close(db);
}

/* Checks which job is found for a request of this owner with the key "monday". `expected` is "" if
 * none must be found. */
static void check_known(
    struct queue *queue, const char *owner, const char *type, const char *expected) {
    struct error err = { 0 };
    struct job job = { 0 };
    bool known = false;
    const struct job_order order = {
        .type = type, .request = "{}", .owner = owner, .key = "monday", .body = "the body"
    };
    CHECK(queue_find_known(queue, &order, &job, &known, &err), "%s", err.message);
    CHECK(known ? strcmp(job.id, expected) == 0 : !expected[0], "%s's %s is \"%s\", not \"%s\"",
        owner, type, known ? job.id : "", expected);
    job_finish(&job);
}

static void a_file_of_version_1_is_taken_over(void) {
    static const struct {
        const char *id, *owner;
        enum job_state state;
        int events;
    } jobs[] = {
        { "id3", "", JOB_QUEUED, 3 }, /* it was running when the daemon ended */
        { "id5", "alice", JOB_SUCCEEDED, 2 },
        { "id6", "", JOB_QUEUED, 2 },
        { "id7", "", JOB_PAUSED, 2 },
    };
    char folder[FOLDER_BYTES], id[JOB_ID_BYTES];
    struct error err = { 0 };
    int count = 0, version = 0;
    folder_make(folder);
    execute(folder, version_1);
    for (size_t i = 0; i < sizeof(rows_of_version_1) / sizeof(rows_of_version_1[0]); i++)
        execute(folder, rows_of_version_1[i]);
    /* Makes one of the last steps of the conversion fail. The file must then be unchanged. */
    execute(folder, "CREATE INDEX job_key ON event (type)");
    opens_not(folder, ERROR_IO, "job_key already exists");
    CHECK(ask_file(folder, "PRAGMA user_version", &version) && version == 1, "%d", version);
    CHECK(ask_file(folder, "SELECT count(*) FROM event", &count) && count == 8, "%d", count);
    execute(folder, "DROP INDEX job_key");
    for (int round = 0; round < 2; round++) {
        struct queue *queue = must_open(folder);
        for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
            struct job job = { 0 };
            CHECK(queue_get(queue, jobs[i].id, &job, &err), "%s", err.message);
            CHECK(strcmp(job.owner, jobs[i].owner) == 0 && job.state == jobs[i].state &&
                      job.events == jobs[i].events && job.step == 3 && job.steps == 9,
                "%s of \"%s\" is %s, %d events", job.id, job.owner, job_state_name(job.state),
                (int)job.events);
            job_finish(&job);
        }
        check_known(queue, "", "train", "id3");
        check_known(queue, "alice", "train", "");
        check_known(queue, "alice", "generate", "id5");
        check_known(queue, "", "generate", "id6");
        check_known(queue, "bob", "generate", "");
        queue_destroy(queue);
    }
    struct queue *queue = must_open(folder);
    struct job job = { 0 };
    CHECK(enqueue(queue, "{}", id, &err) && queue_get(queue, id, &job, &err), "%s", err.message);
    CHECK(job.number == 10, "number %d, but 9 was the last", (int)job.number);
    job_finish(&job);
    queue_destroy(queue);
    CHECK(is_sound(folder), "SQLite's check finds an error in the file");
    CHECK(ask_file(folder, "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%old%'", &count) &&
              count == 0,
        "%d tables of the old version are left", count);
    CHECK(ask_file(folder, "SELECT count(*) FROM event", &count) && count == 10, "%d", count);
    printf("4 jobs of version 1 with %d events, and one more\n", count);
    folder_remove(folder);
}

/* --- A kill -9 --- */

/* Claims the next job, if there is one. Depending on `how`, it succeeds, is put back, or stays
 * claimed until the process ends. */
static void work_on_one(struct queue *queue, int how) {
    struct job job;
    bool found;
    if (!queue_claim(queue, "train", &job, &found, NULL))
        _exit(3);
    if (!found)
        return;
    if (how == 0 && !queue_succeed(queue, job.id, job.attempts, NULL, NULL))
        _exit(4);
    if (how == 1 && !queue_stopped(queue, job.id, job.attempts, NULL))
        _exit(5);
    job_finish(&job);
}

/* Enqueues jobs and works on them for ever. Writes each id to the pipe once the job is accepted. */
static void enqueue_for_ever(const char *folder, int fd) {
    struct queue *queue;
    char id[JOB_ID_BYTES];
    if (!queue_open(folder, &queue, NULL))
        _exit(1);
    for (int n = 0;; n++) {
        if (!enqueue(queue, "{}", id, NULL) || write(fd, id, sizeof(id)) != (ssize_t)sizeof(id))
            _exit(2);
        work_on_one(queue, n % 3);
        work_on_one(queue, 0);
    }
}

static void kill9_loses_no_acknowledged_job(int rounds) {
    static char ids[20000][JOB_ID_BYTES];
    int count = 0, lost = 0;
    char folder[FOLDER_BYTES];
    folder_make(folder);
    unsigned random = 20261122;
    for (int round = 0; round < rounds; round++) {
        int ends[2];
        CHECK(pipe(ends) == 0, "%s", strerror(errno));
        const pid_t child = fork();
        if (child == 0) {
            close(ends[0]);
            enqueue_for_ever(folder, ends[1]);
        }
        close(ends[1]);
        random = random * 1103515245u + 12345u;
        /* Every fourth child may be killed while it opens the file, the others while they work. */
        if (round % 4 && read(ends[0], ids[count], JOB_ID_BYTES) == JOB_ID_BYTES)
            count++;
        const struct timespec pause = { 0, 2000000 + random / 65536 % 20000 * 1000L };
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status), "the child ended by itself, status %d", WEXITSTATUS(status));
        while (count < 20000 && read(ends[0], ids[count], JOB_ID_BYTES) == JOB_ID_BYTES)
            count++;
        close(ends[0]);
        CHECK(is_sound(folder), "round %d: the file is damaged", round);
        struct queue *queue = must_open(folder);
        struct job_list list = { 0 };
        const struct job_filter running = { .states = 1u << JOB_RUNNING };
        CHECK(queue_list(queue, &running, &list, NULL) && list.count == 0,
            "%d jobs are running without a runner", list.count);
        job_list_finish(&list);
        /* If more than JOBS_ENDED_MAX jobs have ended, the oldest are dropped. */
        for (int i = count > 300 ? count - 300 : 0; i < count; i++) {
            struct job job;
            if (queue_get(queue, ids[i], &job, NULL))
                job_finish(&job);
            else
                lost++;
        }
        queue_destroy(queue);
    }
    CHECK(count > rounds / 4, "only %d were acknowledged", count);
    CHECK(lost == 0, "%d of %d acknowledged jobs are lost", lost, count);
    printf("%d kills, %d acknowledged jobs, %d lost\n", rounds, count, lost);
    folder_remove(folder);
}

/* Runs a process that claims the job, reports `step`, and exits without ending the job. */
static void crash_at(const char *folder, int step) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        struct queue *queue;
        struct job job;
        bool found;
        const struct job_report report = { step, 100, -1, NULL };
        if (!queue_open(folder, &queue, NULL) || !queue_claim(queue, "train", &job, &found, NULL) ||
            !found || (step && !queue_report(queue, job.id, job.attempts, &report, NULL)))
            _exit(1);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
}

static struct job only_job(const char *folder) {
    struct queue *queue = must_open(folder);
    struct job_list list = { 0 };
    struct job job = { 0 };
    CHECK(queue_list(queue, &(struct job_filter){ 0 }, &list, NULL) && list.count == 1,
        "the queue does not list exactly one job");
    CHECK(list.count == 1 && job_copy(&list.jobs[0], &job, NULL), "a copy");
    job_list_finish(&list);
    queue_destroy(queue);
    return job;
}

static void a_job_that_ends_the_daemon_fails_at_last(void) {
    char folder[FOLDER_BYTES], id[JOB_ID_BYTES];
    folder_make(folder);
    struct queue *queue = must_open(folder);
    CHECK(enqueue(queue, "{}", id, NULL), "enqueued");
    queue_destroy(queue);
    for (int i = 1; i <= 2 * JOB_STRIKES_MAX; i++) { /* each attempt makes progress */
        crash_at(folder, i);
        struct job job = only_job(folder);
        CHECK(job.state == JOB_QUEUED && job.attempts == i, "attempt %d: %s", job.attempts,
            job_state_name(job.state));
        job_finish(&job);
    }
    for (int i = 1; i <= JOB_STRIKES_MAX; i++) { /* none does */
        crash_at(folder, i % 2 ? 3 : 0);
        struct job job = only_job(folder);
        CHECK(job.state == (i < JOB_STRIKES_MAX ? JOB_QUEUED : JOB_FAILED), "strike %d: %s", i,
            job_state_name(job.state));
        if (job.error)
            CHECK_CONTAINS(job.error, "the daemon ended 5 times in a row");
        job_finish(&job);
    }
    folder_remove(folder);
}

static void a_wish_outlives_the_daemon(void) {
    static const struct {
        bool (*ask)(struct queue *queue, const char *id, struct job *out, struct error *err);
        enum job_state then;
    } wishes[] = { { queue_cancel, JOB_CANCELLED }, { queue_pause, JOB_PAUSED } };
    for (int i = 0; i < 2; i++) {
        char folder[FOLDER_BYTES], id[JOB_ID_BYTES];
        struct job job, claimed;
        bool found;
        folder_make(folder);
        struct queue *queue = must_open(folder);
        CHECK(enqueue(queue, "{}", id, NULL) &&
                  queue_claim(queue, "train", &claimed, &found, NULL) &&
                  wishes[i].ask(queue, id, &job, NULL),
            "asked");
        job_finish(&job);
        job_finish(&claimed);
        queue_destroy(queue);
        job = only_job(folder);
        CHECK(job.state == wishes[i].then, "%s", job_state_name(job.state));
        job_finish(&job);
        folder_remove(folder);
    }
}

/* --- Faults --- */

static void two_daemons_never_share_one(void) {
    char folder[FOLDER_BYTES], words[64];
    folder_make(folder);
    struct queue *queue = must_open(folder);
    snprintf(words, sizeof(words), "in use by another daemon, process %ld", (long)getpid());
    opens_not(folder, ERROR_INVALID, words);
    queue_destroy(queue);
    queue = must_open(folder);
    queue_destroy(queue);
    folder_remove(folder);
}

static void wrong_folders_are_refused(void) {
    char folder[FOLDER_BYTES];
    folder_make(folder);
    close(open(folder_path(folder, "lock"), O_CREAT | O_WRONLY, 0600));
    opens_not(folder_path(folder, "lock"), ERROR_INVALID, "/lock is not a folder");
    opens_not("/proc/self/no", ERROR_INVALID, "/proc/self/no: ");
    opens_not(folder_path(folder, "a/b"), ERROR_INVALID, "No such file");
    if (getuid() != 0) {
        unlink(folder_path(folder, "lock"));
        CHECK(chmod(folder, 0500) == 0, "chmod");
        opens_not(folder, ERROR_INVALID, "Permission denied");
        chmod(folder, 0700);
    }
    folder_remove(folder);
}

static void the_file_is_its_owner_s_alone(void) {
    char folder[FOLDER_BYTES];
    struct stat file;
    folder_make(folder);
    queue_destroy(must_open(folder));
    CHECK(stat(folder_path(folder, "jobs.sqlite"), &file) == 0 && (file.st_mode & 0777) == 0600,
        "mode %o", file.st_mode);
    unlink(folder_path(folder, "jobs.sqlite"));
    CHECK(mkdir(folder_path(folder, "jobs.sqlite"), 0700) == 0,
        "cannot make a folder in the file's place");
    opens_not(folder, ERROR_INVALID, "/jobs.sqlite: Is a directory");
    rmdir(folder_path(folder, "jobs.sqlite"));
    folder_remove(folder);
}

static void overwrite(const char *path, long at, const char *bytes, size_t size) {
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && pwrite(fd, bytes, size, at) == (ssize_t)size, "%s: %s", path, strerror(errno));
    close(fd);
}

static void damaged_files_are_said_to_be(void) {
    static char garbage[2000];
    memset(garbage, 0x5a, sizeof(garbage));
    char folder[FOLDER_BYTES], id[JOB_ID_BYTES];
    folder_make(folder);
    overwrite(folder_path(folder, "jobs.sqlite"), 0, garbage, sizeof(garbage));
    opens_not(folder, ERROR_IO, "is damaged (file is not a database); move it away");
    unlink(folder_path(folder, "jobs.sqlite"));
    struct queue *queue = must_open(folder);
    for (int i = 0; i < 200; i++)
        CHECK(
            enqueue(queue, "{\"a\": \"some text to fill its pages with\"}", id, NULL), "enqueued");
    queue_destroy(queue);
    overwrite(folder_path(folder, "jobs.sqlite"), 5 * 4096, garbage, sizeof(garbage));
    opens_not(folder, ERROR_IO, "is damaged (");
    CHECK(truncate(folder_path(folder, "jobs.sqlite"), 9000) == 0, "cannot cut the file");
    opens_not(folder, ERROR_IO, "is damaged (");
    unlink(folder_path(folder, "jobs.sqlite"));
    queue = must_open(folder);
    queue_destroy(queue);
    sqlite3 *db = NULL;
    CHECK(sqlite3_open(folder_path(folder, "jobs.sqlite"), &db) == SQLITE_OK &&
              sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL) == SQLITE_OK,
        "cannot write a later version into the file");
    sqlite3_close(db);
    opens_not(folder, ERROR_INVALID, "written by a newer latentd (its version is 99");
    folder_remove(folder);
}

/* A limit on the file size imitates a full disk. */
static void a_full_disk_is_an_error_and_no_more(void) {
    char folder[FOLDER_BYTES], id[JOB_ID_BYTES], last[JOB_ID_BYTES] = "";
    struct error err = { 0 };
    struct rlimit before, small = { 200 << 10, 0 };
    static char large[40 << 10];
    snprintf(large, sizeof(large), "{\"a\":\"%0*d\"}", (int)sizeof(large) - 20, 0);
    folder_make(folder);
    struct queue *queue = must_open(folder);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0, "%s", strerror(errno));
    small.rlim_max = before.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0, "%s", strerror(errno));
    int taken = 0;
    while (taken < 100 && enqueue(queue, large, id, &err)) {
        memcpy(last, id, sizeof(last));
        taken++;
    }
    CHECK(taken > 0 && taken < 100 && err.code == ERROR_IO, "%d taken: %s", taken, err.message);
    CHECK_CONTAINS(err.message, "/jobs.sqlite: ");
    printf("after %d jobs: %s\n", taken, err.message);
    for (int i = 0; i < 3; i++)
        CHECK(!enqueue(queue, large, id, &err), "a job is accepted while the disk is full");
    struct job job;
    CHECK(queue_get(queue, last, &job, &err), "an acknowledged job is missing: %s", err.message);
    job_finish(&job);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0, "%s", strerror(errno));
    CHECK(enqueue(queue, large, id, &err), "no job is accepted although there is space again: %s",
        err.message);
    queue_destroy(queue);
    CHECK(is_sound(folder), "SQLite's check finds an error in the file");
    queue = must_open(folder);
    struct job_list list = { 0 };
    CHECK(queue_list(queue, &(struct job_filter){ 0 }, &list, NULL) && list.count == taken + 1,
        "%d of %d", list.count, taken + 1);
    job_list_finish(&list);
    queue_destroy(queue);
    folder_remove(folder);
}

static void a_removed_file_is_noticed(void) {
    char folder[FOLDER_BYTES], id[JOB_ID_BYTES];
    struct error err = { 0 };
    folder_make(folder);
    struct queue *queue = must_open(folder);
    CHECK(enqueue(queue, "{}", id, &err), "%s", err.message);
    unlink(folder_path(folder, "jobs.sqlite"));
    CHECK(!enqueue(queue, "{}", id, &err) && err.code == ERROR_IO,
        "a job is accepted although its file was removed");
    CHECK_CONTAINS(err.message, "was removed or replaced");
    close(open(folder_path(folder, "jobs.sqlite"), O_CREAT | O_WRONLY, 0600));
    CHECK(!enqueue(queue, "{}", id, &err) && err.code == ERROR_IO,
        "a job is accepted although its file was replaced");
    queue_destroy(queue);
    folder_remove(folder);
}

int main(int argc, char **argv) {
    kill9_loses_no_acknowledged_job(argc > 1 ? (int)strtol(argv[1], NULL, 10) : 40);
    a_job_that_ends_the_daemon_fails_at_last();
    a_wish_outlives_the_daemon();
    two_daemons_never_share_one();
    wrong_folders_are_refused();
    the_file_is_its_owner_s_alone();
    damaged_files_are_said_to_be();
    a_full_disk_is_an_error_and_no_more();
    a_removed_file_is_noticed();
    a_file_of_version_1_is_taken_over();
    a_deleted_job_leaves_no_events();
    nobody_else_uses_the_file();
    a_change_happens_as_a_whole_or_not_at_all();
    return check_done();
}
