/* Private to engine/adapters/.
 *
 * There are two locks. `lock` guards every member here that can change, and is held only briefly.
 * `work` is held by a thread for as long as it reads files, packs weights or changes names. Take
 * `work` before `lock`. The holder of `work` may read the lists of names, versions and copies
 * without `lock`, because no other thread changes them. Reference counts and the clock are only
 * read with `lock` held. */
#ifndef ENGINE_ADAPTERS_INTERNAL_H
#define ENGINE_ADAPTERS_INTERNAL_H

#include "engine/adapters/adapters.h"
#include "engine/request/request.h"
#include "kernels/compute/overlay.h"
#include "models/adapter/adapter.h"

#include <limits.h>
#include <pthread.h>
#include <sys/stat.h>

#define ADAPTER_COMPONENTS                                                                         \
    2 /* COMPONENT_TEXT_ENCODER and COMPONENT_UNET, the enum's first values */
_Static_assert(COMPONENT_TEXT_ENCODER < ADAPTER_COMPONENTS && COMPONENT_UNET < ADAPTER_COMPONENTS,
    "an adapter changes these two");

/* ---- versions (version.c) ---- */

/* A low-rank product whose factors are in the device's memory. */
struct placed_pair {
    enum component component;
    const struct named_weight *target; /* borrowed from the base's list of weights */
    struct low_rank_pair *pair;        /* owned */
    float scale;
};

/* One loaded file: its pairs, and the modules from which copies are made. Immutable except for the
 * counts. */
struct adapter_version {
    struct adapter_version *next_dead; /* next in a graveyard */
    uint64_t id;
    int references;            /* held by its name, by sets, and by threads that use it */
    int users;                 /* sets in use */
    struct placed_pair *pairs; /* owned; in the order of the base's weights */
    size_t pair_count;
    struct adapter *file;                 /* owned: kept open to make copies from it, else NULL */
    const struct adapter_module **copied; /* owned; the modules belong to `file` */
    size_t copied_count;
    bool changes[ADAPTER_COMPONENTS]; /* whether it changes the component */
    struct adapter_summary summary;
    size_t matched;
    char **unmatched; /* owned */
    size_t unmatched_count;
    uint64_t file_bytes;
    size_t bytes; /* size of the pairs */
    double load_s, sync_s;
};

/* Takes over `fd` and checks the whole file. If fd is -1, opens `path`, which is otherwise only
 * used in messages. Copies nothing to the device. *bytes estimates the memory that version_place
 * will take. */
bool version_open(const struct adapters *adapters, int fd, const char *path,
    struct adapter_version **out, size_t *bytes, struct error *err)
    __attribute__((warn_unused_result));
/* Copies the pairs to the device's memory. */
bool version_place(struct adapters *adapters, struct adapter_version *version, struct error *err)
    __attribute__((warn_unused_result));
void version_destroy(struct adapter_version *version); /* NULL is fine */

/* ---- working copies (copies.c) ---- */

/* One adapter's share in copies that several adapters may change. */
struct adapter_source {
    uint64_t id; /* the id of its version */
    double weight;
    const struct adapter_version *version; /* valid only while the copies are being made */
};

/* The weights of one component with the changes of all `sources`. Copies without references are
 * kept until their memory is needed, or until a source is no longer the version of a name. */
struct adapter_copies {
    struct adapter_copies *next;
    enum component component;
    struct adapter_source *sources; /* owned; sorted by the adapters' names */
    int source_count;
    struct replaced {
        const struct packed *base;
        struct packed *copy; /* owned */
    } * replaced;            /* owned */
    size_t replaced_count;
    struct replaced_norm {
        const struct named_resident *base;
        void *memory; /* owned, device memory: scale, then shift */
        size_t bytes;
        struct tensor scale, shift;
    } * norms; /* owned */
    size_t norm_count;
    size_t bytes;
    int references; /* held by sets, and by threads that use them */
    uint64_t last_used;
};

/* Returns the number of bytes that the copies for `sources` would take. */
size_t copies_estimate(const struct adapters *adapters, enum component component,
    const struct adapter_source *sources, int count);
/* Makes the copies. Call with `work` held. *out has no reference yet. */
bool copies_create(struct adapters *adapters, enum component component,
    const struct adapter_source *sources, int count, struct adapter_copies **out, struct error *err)
    __attribute__((warn_unused_result));
/* NULL is fine. */
void copies_destroy(const struct adapters *adapters, struct adapter_copies *copies);

bool sources_equal(
    const struct adapter_source *a, int a_count, const struct adapter_source *b, int b_count);
/* Returns NULL if there is no memory. */
struct adapter_source *sources_copy(const struct adapter_source *sources, int count);

/* ---- names and memory (adapters.c) ---- */

/* Identifies a file and its content. Changes when the file is replaced or written to. */
struct file_identity {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec modified;
};
bool identity_equal(const struct file_identity *a, const struct file_identity *b);
bool identity_read(int fd, struct file_identity *out); /* `fd`: an open regular file */

struct adapter_entry {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    const char *stem; /* the last part of `name` */
    char *folded;     /* owned: adapter_name_fold of the name */
    char *path;       /* owned: a file outside the folder; NULL: NAME.safetensors in the folder */
    bool refers;      /* made by adapters_refer: the file stays at `path` */
    uint64_t id;      /* version number of the last loaded file; 0: never loaded */
    struct file_identity identity;   /* of the last loaded file */
    struct file_identity seen;       /* of the file that was read last */
    struct adapter_version *version; /* owns one reference; NULL: not loaded */
    struct adapter_summary summary;  /* of the file that was read last */
    bool has_summary;
    struct error error; /* of the file that was read last; ERROR_NONE: no known error */
    bool pinned, is_default;
    double default_weight, default_text_encoder_weight;
    uint64_t last_used;
    bool marked; /* found by the running scan, or to be loaded by adapters_rebase */
};

/* The key that identifies one combination of changes to the text encoder (set.c). */
struct text_key {
    uint64_t key;
    struct adapter_source *sources; /* owned */
    int source_count;
    uint64_t last_used;
};
#define TEXT_KEYS_MAX 256

/* A lock that is given to threads in the order of asking. Its holder may take it again
 * (device.c). */
struct device_turn {
    pthread_mutex_t lock;
    pthread_cond_t given;
    uint64_t next, now; /* tickets */
    pthread_t holder;
    int depth; /* times the holder took it; 0: the lock is free */
};

/* Versions and copies that lost their last reference while `lock` was held. They are destroyed
 * after `lock` is released. A zeroed graveyard is empty. */
struct graveyard {
    struct adapter_version *versions;
    struct adapter_copies *copies;
};

struct adapters {
    struct adapters_options options;
    char *folder_path;         /* owned; NULL: no folder */
    int folder;                /* the folder's descriptor, or -1 */
    struct adapters_base base; /* `unet` NULL: there is no checkpoint */
    uint64_t base_id;
    int owners;
    struct weights pristine[ADAPTER_COMPONENTS];
    pthread_mutex_t lock, work;
    struct device_turn turn;
    int team;                       /* from team_leave of the thread that holds `work` */
    struct adapter_entry **entries; /* owned, sorted by name */
    size_t entry_count;
    struct adapter_entry **stems; /* owned: those in subfolders, sorted by their last parts */
    size_t stem_count;
    struct adapter_copies *copies;  /* owned */
    struct adapter_upload *uploads; /* in progress; each is owned by its caller */
    struct text_key text_keys[TEXT_KEYS_MAX];
    size_t text_key_count;
    uint64_t last_text_key, last_id, clock;
    size_t resident_bytes; /* of all versions and copies, also of those held only by sets */
    struct graveyard left; /* for adapters_collect */
    void (*collector)(void *user);
    void *collector_user;
};

/* Whether any thread may use the device at any time. */
bool device_is_shared(const struct adapters *adapters);

const struct weight_list *component_list(const struct adapters *adapters, enum component component);

/* Lock and unlock `work`. */
void work_begin(struct adapters *adapters);
void work_end(struct adapters *adapters);

/* Destroys everything in the graveyard. Waits for the device. */
void graveyard_empty(struct adapters *adapters, struct graveyard *graveyard);
/* Does what graveyard_empty does, but never waits: if only one thread at a time may use the device,
 * leaves it to the collector (adapters_set_collector). */
void graveyard_leave(struct adapters *adapters, struct graveyard *graveyard);

/* Call the functions from here to copies_release with `lock` held. */

/* Returns the index of the name in the list of entries, or the index at which it would be
 * inserted. */
size_t entry_position(const struct adapters *adapters, const char *name);
struct adapter_entry *entry_find(const struct adapters *adapters, const char *name);
/* Returns the entry that a request means by `asked`: the name itself, or the only name with this
 * last part. Returns NULL if there is none; *several: more than one has this last part. */
struct adapter_entry *entry_asked(
    const struct adapters *adapters, const char *asked, bool *several);
void version_release(
    struct adapters *adapters, struct adapter_version *version, struct graveyard *dead);
void copies_release(
    struct adapters *adapters, struct adapter_copies *copies, struct graveyard *dead);

/* Call the following functions with `work` held. They take `lock` themselves. */

/* Returns the name's entry, and adds it if it is missing. Returns NULL and sets `err` if there is
 * no memory. */
struct adapter_entry *entry_add(struct adapters *adapters, const char *name, struct error *err);
void entry_remove(struct adapters *adapters, struct adapter_entry *entry);
/* Makes sure that `bytes` more fit below the limit and into memory, and counts them as used. If
 * needed, frees versions and copies without users, least recently used first. ERROR_NO_MEMORY says
 * how much is in use. */
bool memory_take(struct adapters *adapters, size_t bytes, const char *what, struct error *err)
    __attribute__((warn_unused_result));
void memory_give(struct adapters *adapters, size_t bytes);

/* Calls version_open, then version_place. The caller owns the one reference of *out. */
bool version_load(struct adapters *adapters, int fd, const char *path, struct adapter_version **out,
    struct error *err) __attribute__((warn_unused_result));
/* Makes `version` the version of the name. Takes over the caller's reference to it. */
void entry_publish(struct adapters *adapters, struct adapter_entry *entry,
    struct adapter_version *version, const struct file_identity *identity);
/* Loads the name's current file, unless that file is loaded already. */
bool entry_load(struct adapters *adapters, struct adapter_entry *entry, struct error *err)
    __attribute__((warn_unused_result));
/* Releases the name's version. */
void entry_unload(struct adapters *adapters, struct adapter_entry *entry);

/* ---- sets (set.c) ---- */

/* Loads and makes everything that a request without `loras` would need if `changed` were a default
 * with these weights, beside the other defaults. ERROR_NO_MEMORY if it does not fit. Call with
 * `work` held. */
bool defaults_prepare(struct adapters *adapters, const struct adapter_entry *changed, double weight,
    double text_encoder_weight, struct error *err) __attribute__((warn_unused_result));

/* ---- the folder (folder.c) ---- */

#define ADAPTER_SUFFIX ".safetensors"

/* Reads the header of a file that is not loaded. Takes over `fd`. Call with `work` held. */
bool entry_look(struct adapters *adapters, struct adapter_entry *entry, int fd, const char *shown,
    const struct file_identity *identity);

/* Opens the folder and removes the temporary files of interrupted uploads. */
bool folder_open(struct adapters *adapters, struct error *err) __attribute__((warn_unused_result));
/* Opens the name's file in the folder for reading, without following links. Returns -1 and sets
 * `err` on failure. `file` receives the file name alone, for messages: clients must not see our
 * paths. */
int folder_open_file(const struct adapters *adapters, const char *name, char file[NAME_MAX + 1],
    struct error *err) __attribute__((warn_unused_result));
/* Creates a file for reading and writing under a name that no adapter can have. Returns -1 and sets
 * `err` on failure. */
int folder_create_temporary(const struct adapters *adapters, char *name, size_t size,
    struct error *err) __attribute__((warn_unused_result));
/* Syncs the file `fd` to the disk, then renames it to NAME.safetensors. */
bool folder_keep(const struct adapters *adapters, int fd, const char *temporary, const char *name,
    struct error *err) __attribute__((warn_unused_result));
void folder_remove_temporary(const struct adapters *adapters, const char *temporary);
/* Removes the name's file. A missing file is fine. */
bool folder_remove(const struct adapters *adapters, const char *name, struct error *err)
    __attribute__((warn_unused_result));
/* Reads the folder. Call with `work` held. */
bool folder_scan(struct adapters *adapters, struct adapters_scan *out, struct error *err)
    __attribute__((warn_unused_result));

/* ---- listings (listing.c) ---- */

/* Describes an existing entry. Takes `lock`. */
bool entry_describe(struct adapters *adapters, const char *name, struct adapter_info *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
