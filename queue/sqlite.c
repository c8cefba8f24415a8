/* The queue's rows in a SQLite database: one connection, which the queue's mutex guards.
 *
 * A rollback journal and synchronous=FULL: once COMMIT has returned, its changes are on the disk.
 * We use no write-ahead log, so the defect of these logs in versions before 3.51.3 does not concern
 * us. The connection keeps the file locked, so that no other process reads or writes it.
 */
#include "queue/store.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCHEMA_VERSION 2
#define SQL_MAX_BYTES 2048

static const char schema[] =
    "CREATE TABLE job ("
    " number INTEGER PRIMARY KEY AUTOINCREMENT,"
    " id TEXT NOT NULL UNIQUE,"
    " type TEXT NOT NULL,"
    " priority INTEGER NOT NULL,"
    " request TEXT NOT NULL,"
    " idempotency_key TEXT,"
    " body TEXT,"
    " owner TEXT NOT NULL DEFAULT '',"
    " caller TEXT NOT NULL DEFAULT '',"
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
    "CREATE INDEX job_ready ON job (type, priority DESC, caller, number) WHERE state = 'queued';"
    "CREATE INDEX job_state ON job (state, number);"
    "CREATE INDEX job_turn ON job (type, caller, started_ms);"
    "CREATE UNIQUE INDEX job_key ON job (owner, type, idempotency_key);"
    "CREATE TABLE event ("
    " job INTEGER NOT NULL REFERENCES job (number) ON DELETE CASCADE,"
    " number INTEGER NOT NULL,"
    " at_ms INTEGER NOT NULL,"
    " type TEXT NOT NULL,"
    " data TEXT NOT NULL,"
    " PRIMARY KEY (job, number)"
    ") STRICT, WITHOUT ROWID;"
    "PRAGMA user_version = 2;";

/* Version 1 had no owners and callers, and its keys were unique by themselves. A training job's key
 * was plain. A picture job's was "generate OWNER KEY", with no other spaces in OWNER. Upgrading
 * renames the old tables, creates those of `schema`, and copies the rows. Job numbers stay, and no
 * number is used twice. */
static const char sets_version_1_aside[] = "ALTER TABLE job RENAME TO old_job;"
                                           "ALTER TABLE event RENAME TO old_event;"
                                           "DROP INDEX job_ready;"
                                           "DROP INDEX job_state;";
static const char takes_over_version_1[] =
    "INSERT INTO event SELECT * FROM old_event;"
    "DELETE FROM sqlite_sequence WHERE name = 'job';"
    "UPDATE sqlite_sequence SET name = 'job' WHERE name = 'old_job';"
    "DROP TABLE old_event;"
    "DROP TABLE old_job;"
    "UPDATE job SET"
    " owner = substr(idempotency_key, 10, instr(substr(idempotency_key, 10), ' ') - 1),"
    " idempotency_key ="
    "  substr(idempotency_key, 10 + instr(substr(idempotency_key, 10), ' '))"
    " WHERE idempotency_key GLOB 'generate * *';";

/* --- The columns of a job's row --- */

enum column_kind {
    COLUMN_CHARS, /* a char array of `size` bytes in struct job */
    COLUMN_TEXT,  /* a string that the job owns, or NULL */
    COLUMN_STATE,
    COLUMN_WISH,
    COLUMN_INT,
    COLUMN_INT64,
    COLUMN_REAL
};

/* The order is that of the SELECT and of the parameters, after `number`. */
static const struct column {
    const char *name;
    enum column_kind kind;
    size_t offset;
    bool is_fixed; /* never changes after insertion */
    size_t size;
    int since; /* schema version that added it; 0: in all versions */
} columns[] = {
#define CHARS(name, since)                                                                         \
    {                                                                                              \
#name, COLUMN_CHARS, offsetof(struct job, name), true, sizeof(((struct job *)0)->name),    \
            since                                                                                  \
    }
#define COLUMN(kind, name, is_fixed)                                                               \
    { #name, COLUMN_##kind, offsetof(struct job, name), is_fixed, 0, 0 }
    CHARS(id, 0),
    COLUMN(TEXT, type, true),
    COLUMN(INT, priority, true),
    COLUMN(TEXT, request, true),
    { "idempotency_key", COLUMN_TEXT, offsetof(struct job, key), true, 0, 0 },
    COLUMN(TEXT, body, true),
    CHARS(owner, 2),
    CHARS(caller, 2),
    COLUMN(STATE, state, false),
    COLUMN(WISH, wish, false),
    COLUMN(INT, attempts, false),
    COLUMN(INT, strikes, false),
    COLUMN(INT64, created_ms, true),
    COLUMN(INT64, started_ms, false),
    COLUMN(INT64, finished_ms, false),
    COLUMN(INT64, running_ms, false),
    COLUMN(INT64, since_ms, false),
    COLUMN(INT64, step, false),
    COLUMN(INT64, steps, false),
    COLUMN(INT64, furthest, false),
    COLUMN(REAL, eta_s, false),
    COLUMN(TEXT, metrics, false),
    COLUMN(TEXT, result, false),
    COLUMN(TEXT, error, false),
    COLUMN(INT64, events, false),
#undef COLUMN
#undef CHARS
};
#define COLUMN_COUNT ((int)(sizeof(columns) / sizeof(columns[0])))

enum statement {
    BEGIN,
    COMMIT,
    INSERT_JOB,
    UPDATE_JOB,
    DELETE_JOB,
    INSERT_EVENT,
    DROP_EVENTS,
    FIND,
    FIND_KEY,
    FIND_NEXT,
    COUNT_BEFORE,
    COUNT,
    LIST_EVENTS,
    STATEMENT_COUNT
};

struct sqlite {
    struct store store; /* must be the first member */
    char *path;
    bool is_file; /* false: in memory */
    int lock_fd;
    dev_t device; /* device and inode identify the database's file */
    ino_t inode;
    sqlite3 *db;
    sqlite3_stmt *statements[STATEMENT_COUNT];
};

static struct sqlite *sqlite_of(struct store *store) {
    return (struct sqlite *)store;
}

/* Sets the database's last error. Returns false. */
static bool refused(struct sqlite *s, struct error *err) {
    const int code = s->db ? sqlite3_extended_errcode(s->db) : SQLITE_NOMEM;
    switch (code & 0xff) {
    case SQLITE_NOMEM:
        return error_set(err, ERROR_NO_MEMORY, "%s: no memory", s->path);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return error_set(err, ERROR_IO,
            "%s is damaged (%s); move it away, and the daemon begins with an empty queue", s->path,
            sqlite3_errmsg(s->db));
    case SQLITE_FULL:
        return error_set(err, ERROR_NO_SPACE, "%s: the disk is full", s->path);
    default: {
        const int reason = sqlite3_system_errno(s->db);
        return error_set(err, error_code_of_write(reason), "%s: %s%s%s", s->path,
            sqlite3_errmsg(s->db), reason ? ": " : "", reason ? strerror(reason) : "");
    }
    }
}

static bool execute(struct sqlite *s, const char *sql, struct error *err) {
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK || refused(s, err);
}

/* --- Reading and writing rows --- */

static int bind_column(sqlite3_stmt *statement, int at, const struct job *job, int index) {
    const char *member = (const char *)job + columns[index].offset;
    switch (columns[index].kind) {
    case COLUMN_CHARS:
        return sqlite3_bind_text(statement, at, member, -1, SQLITE_STATIC);
    case COLUMN_TEXT:
        return sqlite3_bind_text(statement, at, *(char *const *)member, -1, SQLITE_STATIC);
    case COLUMN_STATE:
        return sqlite3_bind_text(statement, at, job_state_name(job->state), -1, SQLITE_STATIC);
    case COLUMN_WISH:
        return sqlite3_bind_int(statement, at, job->wish);
    case COLUMN_INT:
        return sqlite3_bind_int(statement, at, *(const int *)member);
    case COLUMN_INT64:
        return sqlite3_bind_int64(statement, at, *(const int64_t *)member);
    case COLUMN_REAL:
        return sqlite3_bind_double(statement, at, *(const double *)member);
    }
    return SQLITE_MISUSE;
}

/* Binds all columns for an INSERT. For an UPDATE (`all` false), binds the number, then the columns
 * that may change. */
static bool bind_job(
    struct sqlite *s, sqlite3_stmt *statement, const struct job *job, bool all, struct error *err) {
    int at = 1;
    bool ok = all || sqlite3_bind_int64(statement, at++, job->number) == SQLITE_OK;
    for (int i = 0; ok && i < COLUMN_COUNT; i++)
        if (all || !columns[i].is_fixed)
            ok = bind_column(statement, at++, job, i) == SQLITE_OK;
    return ok || refused(s, err);
}

/* Returns NULL if the value is NULL or there is no memory. Only for text columns: SQLite would
 * convert others. */
static const char *column_text(sqlite3_stmt *statement, int at) {
    return (const char *)sqlite3_column_text(statement, at);
}

/* Returns false if there is no memory. */
static bool read_column(sqlite3_stmt *statement, int at, struct job *job, int index) {
    char *member = (char *)job + columns[index].offset;
    const char *text;
    switch (columns[index].kind) {
    case COLUMN_CHARS:
        text = column_text(statement, at);
        snprintf(member, columns[index].size, "%s", text ? text : "");
        return text;
    case COLUMN_TEXT:
        if (sqlite3_column_type(statement, at) == SQLITE_NULL)
            return true;
        text = column_text(statement, at);
        *(char **)member = text ? strdup(text) : NULL;
        return *(char **)member;
    case COLUMN_STATE:
        text = column_text(statement, at);
        return text && job_state_from_name(text, &job->state);
    case COLUMN_WISH:
        job->wish = (enum job_wish)sqlite3_column_int(statement, at);
        return true;
    case COLUMN_INT:
        *(int *)member = sqlite3_column_int(statement, at);
        return true;
    case COLUMN_INT64:
        *(int64_t *)member = sqlite3_column_int64(statement, at);
        return true;
    case COLUMN_REAL:
        *(double *)member = sqlite3_column_double(statement, at);
        return true;
    }
    return false;
}

static bool read_job(sqlite3_stmt *statement, struct job *out, struct error *err) {
    memset(out, 0, sizeof(*out));
    out->number = sqlite3_column_int64(statement, 0);
    for (int i = 0; i < COLUMN_COUNT; i++)
        if (!read_column(statement, i + 1, out, i)) {
            job_finish(out);
            return error_set(err, ERROR_NO_MEMORY, "no memory for a job");
        }
    return true;
}

/* Runs a statement that returns no rows, and resets it for its next use. */
static bool run(struct sqlite *s, sqlite3_stmt *statement, struct error *err) {
    const bool ok = sqlite3_step(statement) == SQLITE_DONE || refused(s, err);
    sqlite3_reset(statement);
    return ok;
}

/* Reads the one job that a statement may find. */
static bool read_one(
    struct sqlite *s, sqlite3_stmt *statement, struct job *out, bool *found, struct error *err) {
    const int step = sqlite3_step(statement);
    *found = step == SQLITE_ROW;
    const bool ok = *found ? read_job(statement, out, err) : step == SQLITE_DONE || refused(s, err);
    sqlite3_reset(statement);
    return ok;
}

/* --- Changes --- */

/* Whether the database's file is still at its path. If it was removed, everything written to it
 * would be lost. */
static bool is_in_place(const struct sqlite *s, struct error *err) {
    struct stat now;
    if (!s->is_file ||
        (stat(s->path, &now) == 0 && now.st_dev == s->device && now.st_ino == s->inode))
        return true;
    return error_set(
        err, ERROR_IO, "%s was removed or replaced while the daemon ran; start it again", s->path);
}

static bool begin(struct sqlite *s, struct error *err) {
    return is_in_place(s, err) && run(s, s->statements[BEGIN], err);
}

/* Commits if `ok`. Rolls back if not, or if the commit fails. */
static bool end(struct sqlite *s, bool ok, struct error *err) {
    ok = ok && run(s, s->statements[COMMIT], err);
    if (!sqlite3_get_autocommit(s->db))
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return ok;
}

static bool insert_event(
    struct sqlite *s, int64_t job, const struct job_event *event, struct error *err) {
    sqlite3_stmt *statement = s->statements[INSERT_EVENT];
    if (sqlite3_bind_int64(statement, 1, job) != SQLITE_OK ||
        sqlite3_bind_int64(statement, 2, event->number) != SQLITE_OK ||
        sqlite3_bind_int64(statement, 3, event->at_ms) != SQLITE_OK ||
        sqlite3_bind_text(statement, 4, event->type, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_bind_text(statement, 5, event->data, -1, SQLITE_STATIC) != SQLITE_OK)
        return refused(s, err);
    return run(s, statement, err);
}

static bool drop_events(struct sqlite *s, const struct job *job, struct error *err) {
    sqlite3_stmt *statement = s->statements[DROP_EVENTS];
    if (job->events <= JOB_EVENTS_KEPT)
        return true;
    sqlite3_bind_int64(statement, 1, job->number);
    sqlite3_bind_int64(statement, 2, job->events - JOB_EVENTS_KEPT);
    return run(s, statement, err);
}

static bool sqlite_insert(
    struct store *store, struct job *job, const struct job_event *event, struct error *err) {
    struct sqlite *s = sqlite_of(store);
    sqlite3_stmt *statement = s->statements[INSERT_JOB];
    if (!begin(s, err))
        return false;
    bool ok = bind_job(s, statement, job, true, err) && run(s, statement, err);
    job->number = sqlite3_last_insert_rowid(s->db);
    ok = ok && insert_event(s, job->number, event, err);
    sqlite3_clear_bindings(statement);
    return end(s, ok, err);
}

static bool sqlite_save(
    struct store *store, const struct job *job, const struct job_event *event, struct error *err) {
    struct sqlite *s = sqlite_of(store);
    sqlite3_stmt *statement = s->statements[UPDATE_JOB];
    if (!begin(s, err))
        return false;
    bool ok = bind_job(s, statement, job, false, err) && run(s, statement, err);
    if (event)
        ok = ok && insert_event(s, job->number, event, err) && drop_events(s, job, err);
    sqlite3_clear_bindings(statement);
    return end(s, ok, err);
}

static bool sqlite_erase(struct store *store, int64_t number, struct error *err) {
    struct sqlite *s = sqlite_of(store);
    sqlite3_stmt *statement = s->statements[DELETE_JOB];
    if (!begin(s, err))
        return false;
    sqlite3_bind_int64(statement, 1, number);
    return end(s, run(s, statement, err), err);
}

/* --- Queries --- */

static bool find_by(struct store *store, enum statement which, const char *text, struct job *out,
    bool *found, struct error *err) {
    struct sqlite *s = sqlite_of(store);
    sqlite3_stmt *statement = s->statements[which];
    if (sqlite3_bind_text(statement, 1, text, -1, SQLITE_STATIC) != SQLITE_OK)
        return refused(s, err);
    return read_one(s, statement, out, found, err);
}

static bool sqlite_find(
    struct store *store, const char *id, struct job *out, bool *found, struct error *err) {
    return find_by(store, FIND, id, out, found, err);
}

static bool sqlite_find_key(struct store *store, const char *owner, const char *type,
    const char *key, struct job *out, bool *found, struct error *err) {
    struct sqlite *s = sqlite_of(store);
    sqlite3_stmt *statement = s->statements[FIND_KEY];
    if (sqlite3_bind_text(statement, 2, owner, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_bind_text(statement, 3, type, -1, SQLITE_STATIC) != SQLITE_OK)
        return refused(s, err);
    return find_by(store, FIND_KEY, key, out, found, err);
}

static bool sqlite_find_next(
    struct store *store, const char *type, struct job *out, bool *found, struct error *err) {
    return find_by(store, FIND_NEXT, type, out, found, err);
}

static bool sqlite_count_before(
    struct store *store, const struct job *job, int *out, struct error *err) {
    struct sqlite *s = sqlite_of(store);
    sqlite3_stmt *statement = s->statements[COUNT_BEFORE];
    if (sqlite3_bind_text(statement, 1, job->type, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_bind_int(statement, 2, job->priority) != SQLITE_OK ||
        sqlite3_bind_int64(statement, 3, job->number) != SQLITE_OK ||
        sqlite3_bind_text(statement, 4, job->caller, -1, SQLITE_STATIC) != SQLITE_OK)
        return refused(s, err);
    const bool ok = sqlite3_step(statement) == SQLITE_ROW || refused(s, err);
    *out = ok ? sqlite3_column_int(statement, 0) : 0;
    sqlite3_reset(statement);
    return ok;
}

static bool sqlite_count(
    struct store *store, const char *type, int counts[JOB_STATE_COUNT], struct error *err) {
    struct sqlite *s = sqlite_of(store);
    sqlite3_stmt *statement = s->statements[COUNT];
    int step;
    memset(counts, 0, JOB_STATE_COUNT * sizeof(*counts));
    if (sqlite3_bind_text(statement, 1, type, -1, SQLITE_STATIC) != SQLITE_OK)
        return refused(s, err);
    while ((step = sqlite3_step(statement)) == SQLITE_ROW) {
        enum job_state state;
        const char *name = column_text(statement, 0);
        if (name && job_state_from_name(name, &state))
            counts[state] = sqlite3_column_int(statement, 1);
    }
    const bool ok = step == SQLITE_DONE || refused(s, err);
    sqlite3_reset(statement);
    return ok;
}

static void append(char *sql, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(char *sql, const char *format, ...) {
    const size_t used = strlen(sql);
    va_list args;
    va_start(args, format);
    vsnprintf(sql + used, SQL_MAX_BYTES - used, format, args);
    va_end(args);
}

/* Writes "SELECT number, id, ... FROM job" followed by `rest`. */
static void select_jobs(char *sql, const char *rest) {
    sql[0] = 0;
    append(sql, "SELECT number");
    for (int i = 0; i < COLUMN_COUNT; i++)
        append(sql, ", %s", columns[i].name);
    append(sql, " FROM job %s", rest);
}

/* The rows (key, value, type) of the object of texts at ?3 in a job's body (struct
 * job_body_filter). */
#define TEXTS_OF_BODY                                                                              \
    "json_each(CASE WHEN json_valid(body) AND json_type(body, ?3) = 'object' THEN body END, ?3)"

/* ?4: the texts that it must have, or NULL; ?5: whether it must be empty. SQLite never
 * reorders a CROSS JOIN, so each body is walked once, and not once for each text. */
static const char filter_body[] =
    " AND (WITH wanted AS MATERIALIZED (SELECT key, value FROM json_each(?4))"
    "  SELECT count(DISTINCT wanted.key) FROM " TEXTS_OF_BODY " AS own CROSS JOIN wanted"
    "  WHERE own.type = 'text' AND own.key = wanted.key AND own.value = wanted.value)"
    "  = (SELECT count(*) FROM json_each(?4))"
    " AND NOT (?5 AND EXISTS (SELECT 1 FROM " TEXTS_OF_BODY "))";

static void write_list(char *sql, const struct job_filter *filter) {
    const char *comma = "";
    select_jobs(sql, "WHERE state IN (");
    for (int i = 0; i < JOB_STATE_COUNT; i++)
        if (!filter->states || filter->states & 1u << i) {
            append(sql, "%s'%s'", comma, job_state_name((enum job_state)i));
            comma = ", ";
        }
    append(sql, ") AND (?1 IS NULL OR type = ?1) AND (?2 IS NULL OR owner = ?2)");
    if (filter->body.has || filter->body.is_empty)
        append(sql, "%s", filter_body);
    if (filter->after)
        append(sql, " AND number %s %" PRId64, filter->newest_first ? "<" : ">", filter->after);
    append(sql, " ORDER BY number %s", filter->newest_first ? "DESC" : "ASC");
    if (filter->limit)
        append(sql, " LIMIT %d", filter->limit);
}

static bool bind_list(sqlite3_stmt *statement, const struct job_filter *filter) {
    const struct job_body_filter *body = &filter->body;
    return sqlite3_bind_text(statement, 1, filter->type, -1, SQLITE_STATIC) == SQLITE_OK &&
           sqlite3_bind_text(statement, 2, filter->owner, -1, SQLITE_STATIC) == SQLITE_OK &&
           ((!body->has && !body->is_empty) ||
               (sqlite3_bind_text(statement, 3, body->at, -1, SQLITE_STATIC) == SQLITE_OK &&
                   sqlite3_bind_text(statement, 4, body->has, -1, SQLITE_STATIC) == SQLITE_OK &&
                   sqlite3_bind_int(statement, 5, body->is_empty) == SQLITE_OK));
}

static bool sqlite_list(struct store *store, const struct job_filter *filter,
    bool (*visit)(void *user, const struct job *job, struct error *err), void *user,
    struct error *err) {
    struct sqlite *s = sqlite_of(store);
    char sql[SQL_MAX_BYTES];
    write_list(sql, filter);
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(s->db, sql, -1, &statement, NULL) != SQLITE_OK)
        return refused(s, err);
    int step = SQLITE_MISUSE;
    bool ok = bind_list(statement, filter);
    while (ok && (step = sqlite3_step(statement)) == SQLITE_ROW) {
        struct job job;
        ok = read_job(statement, &job, err);
        if (ok) {
            ok = visit(user, &job, err);
            job_finish(&job);
        }
    }
    if (ok && step != SQLITE_DONE)
        ok = refused(s, err);
    sqlite3_finalize(statement);
    return ok;
}

static bool sqlite_list_events(struct store *store, int64_t number, int64_t after, int limit,
    bool (*visit)(void *user, const struct job_event *event, struct error *err), void *user,
    struct error *err) {
    struct sqlite *s = sqlite_of(store);
    sqlite3_stmt *statement = s->statements[LIST_EVENTS];
    if (sqlite3_bind_int64(statement, 1, number) != SQLITE_OK ||
        sqlite3_bind_int64(statement, 2, after) != SQLITE_OK ||
        sqlite3_bind_int(statement, 3, limit) != SQLITE_OK)
        return refused(s, err);
    int step = SQLITE_DONE;
    bool ok = true;
    while (ok && (step = sqlite3_step(statement)) == SQLITE_ROW) {
        const struct job_event event = { sqlite3_column_int64(statement, 0),
            sqlite3_column_int64(statement, 1), column_text(statement, 2),
            column_text(statement, 3) };
        if (event.type && event.data)
            ok = visit(user, &event, err);
        else
            ok = error_set(err, ERROR_NO_MEMORY, "no memory for an event");
    }
    if (ok && step != SQLITE_DONE)
        ok = refused(s, err);
    sqlite3_reset(statement);
    return ok;
}

/* --- Opening --- */

static bool prepare(struct sqlite *s, enum statement which, const char *sql, struct error *err) {
    return sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &s->statements[which],
               NULL) == SQLITE_OK ||
           refused(s, err);
}

static bool prepare_select(
    struct sqlite *s, enum statement which, const char *rest, struct error *err) {
    char sql[SQL_MAX_BYTES];
    select_jobs(sql, rest);
    return prepare(s, which, sql, err);
}

static bool prepare_insert(struct sqlite *s, struct error *err) {
    char sql[SQL_MAX_BYTES] = "INSERT INTO job (";
    for (int i = 0; i < COLUMN_COUNT; i++)
        append(sql, "%s%s", i ? ", " : "", columns[i].name);
    append(sql, ") VALUES (");
    for (int i = 0; i < COLUMN_COUNT; i++)
        append(sql, "%s?", i ? ", " : "");
    append(sql, ")");
    return prepare(s, INSERT_JOB, sql, err);
}

static bool prepare_update(struct sqlite *s, struct error *err) {
    char sql[SQL_MAX_BYTES] = "UPDATE job SET ";
    const char *comma = "";
    int at = 2;
    for (int i = 0; i < COLUMN_COUNT; i++)
        if (!columns[i].is_fixed) {
            append(sql, "%s%s = ?%d", comma, columns[i].name, at++);
            comma = ", ";
        }
    append(sql, " WHERE number = ?1");
    return prepare(s, UPDATE_JOB, sql, err);
}

/* Finds the oldest job of each caller among those with the highest priority, and chooses one of
 * these. The plus signs make SQLite use the index by state, which finds the few running jobs at
 * once. */
static const char next_of_type[] =
    "WHERE number = (SELECT head.number FROM"
    " (SELECT caller, MIN(number) AS number FROM job WHERE state = 'queued' AND type = ?1"
    "  AND priority = (SELECT MAX(priority) FROM job WHERE state = 'queued' AND type = ?1)"
    "  GROUP BY caller) AS head ORDER BY"
    " (SELECT COUNT(*) FROM job AS r"
    "  WHERE r.state = 'running' AND +r.type = ?1 AND +r.caller = head.caller),"
    " (SELECT r.started_ms FROM job AS r WHERE r.type = ?1 AND r.caller = head.caller"
    "  ORDER BY r.started_ms DESC LIMIT 1),"
    " head.number LIMIT 1)";

/* Counts the jobs that next_of_type would choose before job ?3 of caller ?4, if no running job
 * ended meanwhile. These are all jobs of higher priority, and some jobs of the same priority ?2.
 * `lead` is the number of a caller's jobs that are running, or queued with a higher priority. At
 * priority ?2, a caller's k-th job (k from 0) begins when `lead` + k jobs of that caller are
 * running. The job with the lowest `lead` + k begins first. Between equal sums, the caller with the
 * larger `lead` is served first, because its last job began earlier. */
static const char count_before[] =
    "WITH standing AS MATERIALIZED (SELECT q.caller, COUNT(*) AS waiting, MIN(q.number) AS head,"
    " (SELECT COUNT(*) FROM job AS r"
    "  WHERE r.state = 'running' AND +r.type = ?1 AND +r.caller = q.caller) +"
    " (SELECT COUNT(*) FROM job AS r WHERE r.state = 'queued' AND r.type = ?1"
    "  AND r.priority > ?2 AND r.caller = q.caller) AS lead,"
    " (SELECT r.started_ms FROM job AS r WHERE r.type = ?1 AND r.caller = q.caller"
    "  ORDER BY r.started_ms DESC LIMIT 1) AS started_ms"
    " FROM job AS q WHERE q.state = 'queued' AND q.type = ?1 AND q.priority = ?2"
    " GROUP BY q.caller)"
    "SELECT"
    " (SELECT COUNT(*) FROM job WHERE state = 'queued' AND type = ?1 AND priority > ?2) +"
    " (SELECT COALESCE(SUM(MAX(0, MIN(their.waiting, my.lead - their.lead +"
    "   (SELECT COUNT(*) FROM job WHERE state = 'queued' AND type = ?1 AND priority = ?2"
    "    AND caller = ?4 AND number < ?3) +"
    "   ((-their.lead, their.started_ms, their.head) < (-my.lead, my.started_ms, my.head))"
    "  ))), 0) FROM standing AS my, standing AS their WHERE my.caller = ?4)";

static bool prepare_all(struct sqlite *s, struct error *err) {
    return prepare(s, BEGIN, "BEGIN IMMEDIATE", err) && prepare(s, COMMIT, "COMMIT", err) &&
           prepare_insert(s, err) && prepare_update(s, err) &&
           prepare(s, DELETE_JOB, "DELETE FROM job WHERE number = ?1", err) &&
           prepare(s, INSERT_EVENT, "INSERT INTO event VALUES (?1, ?2, ?3, ?4, ?5)", err) &&
           prepare(s, DROP_EVENTS, "DELETE FROM event WHERE job = ?1 AND number <= ?2", err) &&
           prepare_select(s, FIND, "WHERE id = ?1", err) &&
           prepare_select(
               s, FIND_KEY, "WHERE idempotency_key = ?1 AND owner = ?2 AND type = ?3", err) &&
           prepare_select(s, FIND_NEXT, next_of_type, err) &&
           prepare(s, COUNT_BEFORE, count_before, err) &&
           prepare(s, COUNT,
               "SELECT state, COUNT(*) FROM job WHERE ?1 IS NULL OR type = ?1 GROUP BY state",
               err) &&
           prepare(s, LIST_EVENTS,
               "SELECT number, at_ms, type, data FROM event WHERE job = ?1 AND number > ?2"
               " ORDER BY number LIMIT ?3",
               err);
}

/* Runs a PRAGMA, and copies the first column of its one row as text. */
static bool ask(struct sqlite *s, const char *sql, char *out, size_t size, struct error *err) {
    sqlite3_stmt *statement = NULL;
    bool ok = sqlite3_prepare_v2(s->db, sql, -1, &statement, NULL) == SQLITE_OK &&
              sqlite3_step(statement) == SQLITE_ROW;
    if (ok)
        snprintf(out, size, "%s", (const char *)sqlite3_column_text(statement, 0));
    else
        refused(s, err);
    sqlite3_finalize(statement);
    return ok;
}

/* Appends "number, id, ...", the columns of version 1. */
static void append_old_columns(char *sql) {
    append(sql, "number");
    for (int i = 0; i < COLUMN_COUNT; i++)
        if (!columns[i].since)
            append(sql, ", %s", columns[i].name);
}

/* Upgrades from version 1 in one transaction. After an error the database is closed, so that
 * nothing has changed. */
static bool upgrade(struct sqlite *s, struct error *err) {
    char sql[SQL_MAX_BYTES] = "INSERT INTO job (";
    append_old_columns(sql);
    append(sql, ") SELECT ");
    append_old_columns(sql);
    append(sql, " FROM old_job");
    return execute(s, "BEGIN IMMEDIATE", err) && execute(s, sets_version_1_aside, err) &&
           execute(s, schema, err) && execute(s, sql, err) &&
           execute(s, takes_over_version_1, err) && execute(s, "COMMIT", err);
}

static bool check_schema(struct sqlite *s, struct error *err) {
    char text[256];
    if (!ask(s, "PRAGMA user_version", text, sizeof(text), err))
        return false;
    const long version = strtol(text, NULL, 10);
    if (version > SCHEMA_VERSION)
        return error_set(err, ERROR_INVALID,
            "%s was written by a newer latentd (its version is %ld, ours %d)", s->path, version,
            SCHEMA_VERSION);
    if (version == 0)
        return execute(s, "BEGIN IMMEDIATE", err) && execute(s, schema, err) &&
               execute(s, "COMMIT", err);
    if (!ask(s, "PRAGMA integrity_check(1)", text, sizeof(text), err))
        return false;
    if (strcmp(text, "ok") != 0)
        return error_set(err, ERROR_IO,
            "%s is damaged (%s); move it away, and the daemon begins with an empty queue", s->path,
            text);
    return version == SCHEMA_VERSION || upgrade(s, err);
}

/* Creates the file, if it is missing, with access only for its owner. SQLite gives its journal the
 * same mode. */
static bool make_file(const char *path, struct error *err) {
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err,
            error_code_of_write(errno) == ERROR_NO_SPACE ? ERROR_NO_SPACE : ERROR_INVALID, "%s: %s",
            path, strerror(errno));
    close(fd);
    return true;
}

static bool open_database(struct sqlite *s, struct error *err) {
    struct stat file;
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX |
                      SQLITE_OPEN_EXRESCODE;
    if (sqlite3_open_v2(s->path, &s->db, flags, NULL) != SQLITE_OK)
        return refused(s, err);
    if (!execute(s,
            "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL;"
            "PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;"
            "PRAGMA journal_mode = TRUNCATE",
            err) ||
        !check_schema(s, err) || !prepare_all(s, err))
        return false;
    if (!s->is_file)
        return true;
    if (stat(s->path, &file) != 0)
        return error_set(err, ERROR_IO, "%s: %s", s->path, strerror(errno));
    s->device = file.st_dev;
    s->inode = file.st_ino;
    return true;
}

static bool make_folder(const char *folder, struct error *err) {
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return error_set(err, ERROR_INVALID, "%s: %s", folder, strerror(errno));
    if (!file_is_folder(folder))
        return error_set(err, ERROR_INVALID, "%s is not a folder", folder);
    file_sync_folder_of(folder); /* so that a power failure cannot remove it */
    return true;
}

/* Takes a lock that lasts until the process ends, in whatever way. The file contains the process's
 * id. */
static bool lock_folder(const char *folder, int *out, struct error *err) {
    char holder[32] = "", own[32];
    char *path = file_join(folder, "lock");
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the queue");
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        error_set(err, ERROR_INVALID, "%s: %s", path, strerror(errno));
        free(path);
        return false;
    }
    free(path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const ssize_t got = pread(fd, holder, sizeof(holder) - 1, 0);
        holder[got > 0 ? strspn(holder, "0123456789") : 0] = 0;
        close(fd);
        return error_set(err, ERROR_INVALID, "%s is in use by another daemon%s%s", folder,
            holder[0] ? ", process " : "", holder);
    }
    const int size = snprintf(own, sizeof(own), "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) == 0 && pwrite(fd, own, (size_t)size, 0) == size)
        *out = fd;
    else {
        error_set(err, error_code_of_write(errno), "%s/lock: %s", folder, strerror(errno));
        close(fd);
        return false;
    }
    return true;
}

static void sqlite_close(struct store *store) {
    struct sqlite *s = sqlite_of(store);
    for (int i = 0; i < STATEMENT_COUNT; i++)
        sqlite3_finalize(s->statements[i]);
    sqlite3_close(s->db);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s->path);
    free(s);
}

bool store_open_sqlite(const char *folder, struct store **out, struct error *err) {
    static const struct store_ops ops = {
        .close = sqlite_close,
        .insert = sqlite_insert,
        .save = sqlite_save,
        .erase = sqlite_erase,
        .find = sqlite_find,
        .find_key = sqlite_find_key,
        .find_next = sqlite_find_next,
        .count_before = sqlite_count_before,
        .count = sqlite_count,
        .list = sqlite_list,
        .list_events = sqlite_list_events,
    };
    struct sqlite *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the queue");
    s->store.ops = &ops;
    s->lock_fd = -1;
    s->is_file = folder;
    s->path = folder ? file_join(folder, "jobs.sqlite") : strdup(":memory:");
    if (!s->path)
        error_set(err, ERROR_NO_MEMORY, "no memory for the queue");
    else if ((!folder || (make_folder(folder, err) && lock_folder(folder, &s->lock_fd, err) &&
                             make_file(s->path, err))) &&
             open_database(s, err)) {
        *out = &s->store;
        return true;
    }
    sqlite_close(&s->store);
    return false;
}
