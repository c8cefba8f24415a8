#include "engine/prompts/embeddings.h"

#include "base/list.h"
#include "base/log.h"
#include "base/text/utf8.h"
#include "models/checkpoint/embedding_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The endings that embedding files have. */
static const char *const endings[] = { ".safetensors", ".pt", ".bin" };

/* One file as it was read. Sets share the entry until the file changes. */
struct entry {
    _Atomic int holders;
    struct embedding embedding;
    struct embedding_file file; /* owned */
    int32_t *tokens;            /* owned: the name's tokens, [token_count] */
    size_t token_count;
    struct stat identity;
};

struct embedding_set {
    _Atomic int holders;
    struct entry **entries; /* owned: a reference to each; sorted by name */
    size_t count;
    struct entry **by_tokens; /* owned: entries with tokens in their names, most tokens first */
    size_t by_tokens_count;
    struct tokenizer_words *words; /* owned; NULL: no words */
    char *folder;                  /* owned; NULL: no folder */
};

struct embeddings {
    char *folder; /* owned; NULL: no folder */
    const struct tokenizer *tokenizer;
    int width;
    pthread_mutex_t scanning; /* held during a scan */
    pthread_mutex_t lock;     /* guards `set` */
    struct embedding_set *set;
};

/* Id of the next vector. Shared by all registries. */
static _Atomic int32_t next_id = EMBEDDING_ID_FIRST;

static void entry_release(struct entry *entry) {
    if (atomic_fetch_sub(&entry->holders, 1) > 1)
        return;
    embedding_file_finish(&entry->file);
    free(entry->tokens);
    free(entry);
}

void embedding_set_release(struct embedding_set *set) {
    if (!set || atomic_fetch_sub(&set->holders, 1) > 1)
        return;
    for (size_t i = 0; i < set->count; i++)
        entry_release(set->entries[i]);
    free(set->entries);
    free(set->by_tokens);
    tokenizer_words_destroy(set->words);
    free(set->folder);
    free(set);
}

struct embedding_set *embedding_set_hold(struct embedding_set *set) {
    if (set)
        atomic_fetch_add(&set->holders, 1);
    return set;
}

const char *embedding_set_folder(const struct embedding_set *set) {
    return set ? set->folder : NULL;
}

size_t embedding_set_count(const struct embedding_set *set) {
    return set ? set->count : 0;
}

const struct embedding *embedding_set_at(const struct embedding_set *set, size_t index) {
    return &set->entries[index]->embedding;
}

const struct tokenizer_words *embedding_set_words(const struct embedding_set *set) {
    return set ? set->words : NULL;
}

const struct embedding *embedding_set_match(
    const struct embedding_set *set, const int32_t *tokens, size_t count, size_t *used) {
    for (size_t i = 0; set && i < set->by_tokens_count; i++) {
        const struct entry *entry = set->by_tokens[i];
        if (entry->token_count <= count &&
            memcmp(entry->tokens, tokens, entry->token_count * sizeof(*tokens)) == 0) {
            *used = entry->token_count;
            return &entry->embedding;
        }
    }
    return NULL;
}

const struct embedding *embedding_set_find(const struct embedding_set *set, int32_t id) {
    for (size_t i = 0; set && id >= EMBEDDING_ID_FIRST && i < set->count; i++) {
        const struct embedding *e = &set->entries[i]->embedding;
        if (id >= e->first_id && id < e->first_id + (e->vectors ? e->vectors : 1))
            return e;
    }
    return NULL;
}

/* --- one file --- */

/* Returns the length of the embedding's name, or 0 if the file is not an embedding file. */
static size_t name_length(const char *file) {
    const size_t length = strlen(file);
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        const size_t ending = strlen(endings[i]);
        if (length > ending && strcmp(file + length - ending, endings[i]) == 0)
            return file[0] == '.' ? 0 : length - ending;
    }
    return 0;
}

static bool is_name(const char *name) {
    const size_t length = strlen(name);
    bool printable = length > 0 && length <= EMBEDDING_NAME_MAX_BYTES &&
                     utf8_valid_bytes(name, length) == length;
    for (const char *c = name; printable && *c; c++)
        printable = (unsigned char)*c >= ' ' && *c != 0x7f;
    return printable;
}

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Opens a regular file in the folder, without following links. */
static int open_file(int folder, const char *file, struct stat *identity, struct error *err) {
    const int fd = openat(folder, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, identity) != 0) {
        error_set(err, ERROR_IO, "cannot open it: %s",
            errno == ELOOP ? "it is a symbolic link, and none is followed here" : strerror(errno));
    } else if (!S_ISREG(identity->st_mode)) {
        error_set(err, ERROR_INVALID, "it is not a regular file");
    } else if (identity->st_size > EMBEDDING_FILE_MAX_BYTES) {
        error_set(err, ERROR_TOO_LARGE, "%lld bytes; an embedding has at most %u",
            (long long)identity->st_size, EMBEDDING_FILE_MAX_BYTES);
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool read_file(
    const struct embeddings *e, int folder, struct entry *entry, struct error *err) {
    struct embedding *embedding = &entry->embedding;
    const int fd = open_file(folder, embedding->file, &entry->identity, err);
    if (fd < 0 || !embedding_file_read(fd, embedding->file, &entry->file, err))
        return false;
    if (entry->file.width != e->width)
        return error_set(err, ERROR_UNSUPPORTED,
            "its vectors have %d numbers, this model's text encoder takes %d", entry->file.width,
            e->width);
    return true;
}

/* Whether the word may name an embedding in a plain text: it must not be in the vocabulary. */
static bool is_new_word(const struct tokenizer *tokenizer, const char *word) {
    return tokenizer_find(tokenizer, word) < 0;
}

/* Fills in an entry. An embedding that cannot be used gets an error, and also an id, so that a text
 * that names it can be refused. */
static bool fill_entry(
    const struct embeddings *e, int folder, struct entry *entry, struct error *err) {
    struct embedding *out = &entry->embedding;
    if (!tokenizer_encode(e->tokenizer, out->name, &entry->tokens, &entry->token_count, err))
        return false;
    out->named_plainly = is_new_word(e->tokenizer, out->name);
    if (read_file(e, folder, entry, &out->error)) {
        out->format = entry->file.format;
        out->vectors = entry->file.vectors;
        out->width = entry->file.width;
        out->values = entry->file.values;
        if (entry->file.token && utf8_valid_bytes(entry->file.token, strlen(entry->file.token)) ==
                                     strlen(entry->file.token))
            out->token = entry->file.token;
    } else if (out->error.code == ERROR_NO_MEMORY) {
        *err = out->error;
        return false;
    }
    out->bytes = (uint64_t)entry->identity.st_size;
    out->first_id = atomic_fetch_add(&next_id, out->vectors ? out->vectors : 1);
    return true;
}

/* Returns the previous set's entry for this file; NULL if there is none, it has an error, or the
 * file has changed. */
static struct entry *find_same(const struct embedding_set *before, int folder, const char *file) {
    struct stat now;
    for (size_t i = 0; before && i < before->count; i++) {
        struct entry *old = before->entries[i];
        if (strcmp(old->embedding.file, file) == 0)
            return old->embedding.error.code == ERROR_NONE &&
                           fstatat(folder, file, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
                           same_file(&now, &old->identity)
                       ? old
                       : NULL;
    }
    return NULL;
}

/* --- the folder --- */

/* Adds the file to the set. A file whose name is not allowed is left out and counted in *passed. */
static bool add_file(const struct embeddings *e, const struct embedding_set *before, int folder,
    const char *file, struct embedding_set *out, int *passed, struct error *err) {
    const size_t length = name_length(file);
    struct entry *entry = length ? find_same(before, folder, file) : NULL;
    if (length == 0)
        return true;
    if (out->count == EMBEDDINGS_MAX)
        return error_set(err, ERROR_TOO_LARGE, "the folder of embeddings %s has more than %d",
            e->folder, EMBEDDINGS_MAX);
    if (!LIST_ROOM(out->entries, out->count, "a list of embeddings", err))
        return false;
    if (entry) {
        atomic_fetch_add(&entry->holders, 1);
        out->entries[out->count++] = entry;
        return true;
    }
    entry = calloc(1, sizeof(*entry));
    if (!entry)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an embedding");
    atomic_init(&entry->holders, 1);
    snprintf(entry->embedding.file, sizeof(entry->embedding.file), "%s", file);
    snprintf(entry->embedding.name, sizeof(entry->embedding.name), "%.*s", (int)length, file);
    if (length > EMBEDDING_NAME_MAX_BYTES || !is_name(entry->embedding.name)) {
        ++*passed;
        entry_release(entry);
        return true;
    }
    if (!fill_entry(e, folder, entry, err)) {
        entry_release(entry);
        return false;
    }
    out->entries[out->count++] = entry;
    return true;
}

static int by_name(const void *a, const void *b) {
    const struct entry *x = *(struct entry *const *)a, *y = *(struct entry *const *)b;
    const int order = strcmp(x->embedding.name, y->embedding.name);
    return order ? order : -strcmp(x->embedding.file, y->embedding.file);
}

static int by_token_count(const void *a, const void *b) {
    const struct entry *x = *(struct entry *const *)a, *y = *(struct entry *const *)b;
    if (x->token_count != y->token_count)
        return x->token_count > y->token_count ? -1 : 1;
    return by_name(a, b);
}

/* Drops NAME.pt if there is also NAME.safetensors. Entries are sorted so that the kept one is
 * first. */
static void drop_doubles(struct embedding_set *set) {
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (kept > 0 &&
            strcmp(set->entries[kept - 1]->embedding.name, set->entries[i]->embedding.name) == 0)
            entry_release(set->entries[i]);
        else
            set->entries[kept++] = set->entries[i];
    }
    set->count = kept;
}

/* Builds the set's indexes for lookups in texts. The set must be sorted by name. */
static bool index_set(const struct embeddings *e, struct embedding_set *set, struct error *err) {
    const char **words = calloc(2 * set->count + 1, sizeof(*words));
    int32_t *ids = calloc(2 * set->count + 1, sizeof(*ids));
    size_t count = 0;
    set->by_tokens = calloc(set->count + 1, sizeof(struct entry *));
    bool ok = (words && ids && set->by_tokens) ||
              error_set(err, ERROR_NO_MEMORY, "no memory for a list of embeddings");
    for (size_t i = 0; ok && i < set->count; i++) {
        const struct embedding *embedding = &set->entries[i]->embedding;
        if (set->entries[i]->token_count > 0)
            set->by_tokens[set->by_tokens_count++] = set->entries[i];
        if (embedding->token && is_new_word(e->tokenizer, embedding->token)) {
            words[count] = embedding->token;
            ids[count++] = embedding->first_id;
        }
    }
    for (size_t i = 0; ok && i < set->count; i++) {
        const struct embedding *embedding = &set->entries[i]->embedding;
        if (!embedding->named_plainly)
            continue;
        words[count] = embedding->name;
        ids[count++] = embedding->first_id;
    }
    if (ok)
        qsort(set->by_tokens, set->by_tokens_count, sizeof(struct entry *), by_token_count);
    ok = ok &&
         (count == 0 || tokenizer_words_create(e->tokenizer, words, ids, count, &set->words, err));
    free(words);
    free(ids);
    return ok;
}

static bool read_folder(const struct embeddings *e, const struct embedding_set *before,
    struct embedding_set *out, struct error *err) {
    const int folder = open(e->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int again = folder < 0 ? -1 : openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = again < 0 ? NULL : fdopendir(again);
    int passed = 0;
    bool ok = true;
    if (!stream) {
        ok = error_set(err, errno == ENOENT || errno == ENOTDIR ? ERROR_NOT_FOUND : ERROR_IO,
            "cannot open the folder of embeddings %s: %s", e->folder, strerror(errno));
        if (again >= 0)
            close(again);
    }
    for (struct dirent *file; ok && (file = readdir(stream));)
        ok = add_file(e, before, folder, file->d_name, out, &passed, err);
    if (stream)
        closedir(stream);
    if (folder >= 0)
        close(folder);
    if (passed > 0)
        log_warning("%s: %d files are passed over: a name has at most %d bytes of UTF-8 that print",
            e->folder, passed, EMBEDDING_NAME_MAX_BYTES);
    if (!ok)
        return false;
    if (out->count > 0)
        qsort(out->entries, out->count, sizeof(struct entry *), by_name);
    drop_doubles(out);
    for (size_t i = 0; i < out->count; i++)
        if (out->entries[i]->embedding.error.code != ERROR_NONE)
            log_warning("embedding %s: %s", out->entries[i]->embedding.file,
                out->entries[i]->embedding.error.message);
    return index_set(e, out, err);
}

bool embeddings_rescan(struct embeddings *e, struct error *err) {
    if (!e)
        return true;
    struct embedding_set *before, *set = calloc(1, sizeof(*set));
    bool ok = set || error_set(err, ERROR_NO_MEMORY, "no memory for embeddings");
    if (ok) {
        atomic_init(&set->holders, 1);
        set->folder = e->folder ? strdup(e->folder) : NULL;
        ok = !e->folder || set->folder || error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    }
    pthread_mutex_lock(&e->scanning);
    before = embeddings_take(e);
    ok = ok && (!e->folder || read_folder(e, before, set, err));
    embedding_set_release(before);
    if (ok) {
        pthread_mutex_lock(&e->lock);
        before = e->set;
        e->set = set;
        pthread_mutex_unlock(&e->lock);
        embedding_set_release(before);
    }
    pthread_mutex_unlock(&e->scanning);
    if (!ok)
        embedding_set_release(set);
    return ok;
}

struct embedding_set *embeddings_take(struct embeddings *e) {
    if (!e)
        return NULL;
    pthread_mutex_lock(&e->lock);
    struct embedding_set *set = embedding_set_hold(e->set);
    pthread_mutex_unlock(&e->lock);
    return set;
}

bool embeddings_create(const char *folder, const struct tokenizer *tokenizer, int width,
    struct embeddings **out, struct error *err) {
    struct embeddings *e = calloc(1, sizeof(*e));
    if (!e)
        return error_set(err, ERROR_NO_MEMORY, "no memory for embeddings");
    pthread_mutex_init(&e->scanning, NULL);
    pthread_mutex_init(&e->lock, NULL);
    e->tokenizer = tokenizer;
    e->width = width;
    e->folder = folder ? strdup(folder) : NULL;
    if ((folder && !e->folder && !error_set(err, ERROR_NO_MEMORY, "no memory for a path")) ||
        !embeddings_rescan(e, err)) {
        embeddings_destroy(e);
        return false;
    }
    *out = e;
    return true;
}

void embeddings_destroy(struct embeddings *e) {
    if (!e)
        return;
    embedding_set_release(e->set);
    pthread_mutex_destroy(&e->scanning);
    pthread_mutex_destroy(&e->lock);
    free(e->folder);
    free(e);
}
