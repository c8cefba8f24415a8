/* Private to engine/adapters/.
 *
 * Two locks. `lock` guards every member here that changes, and is held for moments only. `work` is
 * held by a thread that reads files, packs weights or changes what names mean, as long as that
 * takes, one thread at a time; `lock` is taken inside it. The holder of `work` may read names,
 * versions and copies without `lock`, as nobody else changes which there are. The reference counts
 * and the clock are read under `lock` only. */
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
    2 /* COMPONENT_TEXT_ENCODER and COMPONENT_UNET, the first of their enum */
_Static_assert(COMPONENT_TEXT_ENCODER < ADAPTER_COMPONENTS && COMPONENT_UNET < ADAPTER_COMPONENTS,
    "an adapter changes these two");

/* ---- versions (version.c) ---- */

/* A low-rank product in the device's memory. */
struct placed_pair {
    enum component component;
    const struct named_weight *target; /* borrowed from the base's list */
    struct low_rank_pair *pair;        /* owned */
    float scale;
};

/* One loaded file: what it adds, and what copies are made from. Immutable except for the counts. */
struct adapter_version {
    struct adapter_version *next_dead; /* in a graveyard */
    uint64_t id;
    int references;            /* by the name, by each set, and by threads at work with it */
    int users;                 /* sets in use */
    struct placed_pair *pairs; /* owned; in the order of the base's lists */
    size_t pair_count;
    struct adapter *file; /* owned: kept open if copies are made from it, else NULL */
    const struct adapter_module **copied; /* owned; the modules belong to `file` */
    size_t copied_count;
    bool changes[ADAPTER_COMPONENTS]; /* it has modules of the component */
    struct adapter_summary summary;
    size_t matched;
    char **unmatched; /* owned */
    size_t unmatched_count;
    uint64_t file_bytes;
    size_t bytes; /* of the pairs */
    double load_s, sync_s;
};

/* Opens `fd`, which is taken over, and checks the whole file. `path` is used in messages; if fd is
 * -1, it is opened. Places nothing: *bytes is about what the pairs will take. */
bool version_open(const struct adapters *adapters, int fd, const char *path,
    struct adapter_version **out, size_t *bytes, struct error *err)
    __attribute__((warn_unused_result));
/* Places the pairs in the device's memory. */
bool version_place(struct adapters *adapters, struct adapter_version *version, struct error *err)
    __attribute__((warn_unused_result));
void version_destroy(struct adapter_version *version); /* NULL is fine */

/* ---- working copies (copies.c) ---- */

/* One adapter's part in weights that several adapters may change. */
struct adapter_source {
    uint64_t id; /* of its version */
    double weight;
    const struct adapter_version *version; /* set while copies are being made */
};

/* Weights of one component as `sources` change them together. Copies without references are kept
 * until their memory is needed, or a name stops standing for one of the versions. */
struct adapter_copies {
    struct adapter_copies *next;
    enum component component;
    struct adapter_source *sources; /* owned; ordered by the adapters' names */
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
    int references; /* by sets, and by threads at work with them */
    uint64_t last_used;
};

/* Bytes that the copies for `sources` would take. */
size_t copies_estimate(const struct adapters *adapters, enum component component,
    const struct adapter_source *sources, int count);
/* Makes the copies. The caller holds `work`. *out has no reference yet. */
bool copies_create(struct adapters *adapters, enum component component,
    const struct adapter_source *sources, int count, struct adapter_copies **out, struct error *err)
    __attribute__((warn_unused_result));
/* NULL is fine. */
void copies_destroy(const struct adapters *adapters, struct adapter_copies *copies);

bool sources_equal(
    const struct adapter_source *a, int a_count, const struct adapter_source *b, int b_count);
/* NULL when memory ran out. */
struct adapter_source *sources_copy(const struct adapter_source *sources, int count);

/* ---- names and memory (adapters.c) ---- */

/* Identifies a file and its content: changes when the file is replaced or written to. */
struct file_identity {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec modified;
};
bool identity_equal(const struct file_identity *a, const struct file_identity *b);
bool identity_read(int fd, struct file_identity *out); /* of an open regular file */

struct adapter_entry {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    char *path;  /* owned: a file outside the folder; NULL: NAME.safetensors in the folder */
    bool refers; /* made by adapters_refer: the file at `path` stays as long as the name */
    uint64_t id; /* version number of the latest loaded file; 0: none was loaded */
    struct file_identity identity;   /* of that file */
    struct file_identity seen;       /* of the file that was read last */
    struct adapter_version *version; /* owns one reference; NULL: not loaded */
    struct adapter_summary summary;  /* of the file that was read last */
    bool has_summary;
    struct error error; /* of the file that was read last; ERROR_NONE: no error is known */
    bool pinned, is_default;
    double default_weight, default_text_encoder_weight;
    uint64_t last_used;
    bool marked; /* seen by the scan, or by the change of the checkpoint, under way */
};

/* The key of a text encoder's changed weights (set.c). */
struct text_key {
    uint64_t key;
    struct adapter_source *sources; /* owned */
    int source_count;
    uint64_t last_used;
};
#define TEXT_KEYS_MAX 256

/* A lock that is given in the order of asking; its holder may take it again (device.c). */
struct device_turn {
    pthread_mutex_t lock;
    pthread_cond_t given;
    uint64_t next, now; /* tickets */
    pthread_t holder;
    int depth; /* how often the holder has taken it; 0: it is free */
};

struct adapters {
    struct adapters_options options;
    char *folder_path;         /* owned; NULL: none */
    int folder;                /* its descriptor, or -1 */
    struct adapters_base base; /* no `unet`: there is no checkpoint */
    uint64_t base_id;
    int owners;
    struct weights pristine[ADAPTER_COMPONENTS];
    pthread_mutex_t lock, work;
    struct device_turn turn;
    int team; /* of the thread that holds `work`, which computes alone meanwhile */
    struct adapter_entry **entries; /* owned, by name */
    size_t entry_count;
    struct adapter_copies *copies;  /* owned */
    struct adapter_upload *uploads; /* in progress; each is owned by its sender */
    struct text_key text_keys[TEXT_KEYS_MAX];
    size_t text_key_count;
    uint64_t last_text_key, last_id, clock;
    size_t resident_bytes; /* of versions and copies, including those that only sets still hold */
};

const struct weight_list *component_list(const struct adapters *adapters, enum component component);

/* Take and give back `work`. */
void work_begin(struct adapters *adapters);
void work_end(struct adapters *adapters);

/* Versions and copies that lost their last reference under `lock`, to be destroyed after it is
 * released. Zeroed is empty. */
struct graveyard {
    struct adapter_version *versions;
    struct adapter_copies *copies;
};
void graveyard_empty(struct adapters *adapters, struct graveyard *graveyard);

/* These three are called with `lock` held. */
struct adapter_entry *entry_find(const struct adapters *adapters, const char *name);
void version_release(
    struct adapters *adapters, struct adapter_version *version, struct graveyard *dead);
void copies_release(
    struct adapters *adapters, struct adapter_copies *copies, struct graveyard *dead);

/* The following functions take `lock` themselves; the caller holds `work`. */

/* Returns the name's entry, which is made if there is none; NULL and an error when memory ran
 * out. */
struct adapter_entry *entry_add(struct adapters *adapters, const char *name, struct error *err);
void entry_remove(struct adapters *adapters, struct adapter_entry *entry);
/* Makes sure that `bytes` more fit below the limit and into memory, and counts them. Frees what
 * nobody uses for it, least recently used first. ERROR_NO_MEMORY says what is in use. */
bool memory_take(struct adapters *adapters, size_t bytes, const char *what, struct error *err)
    __attribute__((warn_unused_result));
void memory_give(struct adapters *adapters, size_t bytes);

/* version_open, then version_place; *out has one reference, the caller's. */
bool version_load(struct adapters *adapters, int fd, const char *path, struct adapter_version **out,
    struct error *err) __attribute__((warn_unused_result));
/* Makes `version`, whose reference it takes over, the version of the name. */
void entry_publish(struct adapters *adapters, struct adapter_entry *entry,
    struct adapter_version *version, const struct file_identity *identity);
/* Loads the file that currently has the name, unless it is loaded already. */
bool entry_load(struct adapters *adapters, struct adapter_entry *entry, struct error *err)
    __attribute__((warn_unused_result));
/* Takes the version from the name. */
void entry_unload(struct adapters *adapters, struct adapter_entry *entry);

/* ---- sets (set.c) ---- */

/* Loads and makes everything that a request without `loras` needs once `changed` is a default with
 * these weights, beside the other defaults. ERROR_NO_MEMORY if it does not fit. The caller holds
 * `work`. */
bool defaults_prepare(struct adapters *adapters, const struct adapter_entry *changed, double weight,
    double text_encoder_weight, struct error *err) __attribute__((warn_unused_result));

/* ---- the folder (folder.c) ---- */

#define ADAPTER_SUFFIX ".safetensors"

/* Reads the header of a file that is not loaded. `fd` is taken over. The caller holds `work`. */
bool entry_look(struct adapters *adapters, struct adapter_entry *entry, int fd, const char *shown,
    const struct file_identity *identity);

/* Opens the folder and removes what interrupted uploads left. */
bool folder_open(struct adapters *adapters, struct error *err) __attribute__((warn_unused_result));
/* Opens the name's file for reading, directly in the folder and without following links; -1 and an
 * error. `file` gets its file name, for messages: clients must not see our paths. */
int folder_open_file(const struct adapters *adapters, const char *name, char file[NAME_MAX + 1],
    struct error *err) __attribute__((warn_unused_result));
/* Creates a file for reading and writing, under a name that nobody can ask for; -1 and an error. */
int folder_create_temporary(const struct adapters *adapters, char *name, size_t size,
    struct error *err) __attribute__((warn_unused_result));
/* Syncs `fd`'s file to the disk and renames it to the name's file. */
bool folder_keep(const struct adapters *adapters, int fd, const char *temporary, const char *name,
    struct error *err) __attribute__((warn_unused_result));
void folder_remove_temporary(const struct adapters *adapters, const char *temporary);
/* Removes the name's file; fine if there is none. */
bool folder_remove(const struct adapters *adapters, const char *name, struct error *err)
    __attribute__((warn_unused_result));
/* Reads the folder; the caller holds `work`. */
bool folder_scan(struct adapters *adapters, struct adapters_scan *out, struct error *err)
    __attribute__((warn_unused_result));

/* ---- listings (listing.c) ---- */

/* Describes an existing entry; takes `lock`. */
bool entry_describe(struct adapters *adapters, const char *name, struct adapter_info *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
