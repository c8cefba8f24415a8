/* The adapters (LoRAs and similar formats) of the current checkpoint: their names, the loaded
 * version of each name, and the set of adapters that a request uses.
 *
 * Each name belongs to a file NAME.safetensors below one folder
 * (models/adapter/adapter_file_name.h). Names are told apart byte by byte. A request may also name
 * a file in a subfolder by its last part alone, as AUTOMATIC1111 does, if only one has it. Loading
 * the file makes an immutable version. A request holds the versions it was admitted with until it
 * ends, so replacing or unloading a name does not affect running requests. When memory is short,
 * versions without users are freed, least recently used first; they are loaded again when a request
 * names them. The base weights are never written. The changes are kept in overlays
 * (kernels/compute/overlay.h): for each row of a call, an overlay tells what is added to a weight
 * or replaces it.
 *
 * The adapter's file alone decides how a layer is changed. A LoRA's product of two thin matrices is
 * added to the base product. Anything else (LoHa, LoKr, DoRA, full differences) becomes a working
 * copy of the weight, computed from the checkpoint's own tensors. A copy depends on the combination
 * of adapters and weights, so it is made when that combination is first asked for.
 *
 * The checkpoint may change (adapters_rebase). Files are then matched to the layers of the new
 * checkpoint; sets that were resolved earlier keep their versions for the old one.
 *
 * Every function may be called from any thread. Functions marked "Waits" may wait for files or for
 * copies to be made. The other functions only take a lock that is held briefly. */
#ifndef ENGINE_ADAPTERS_ADAPTERS_H
#define ENGINE_ADAPTERS_ADAPTERS_H

#include "base/error.h"
#include "base/limits.h"
#include "kernels/kernels.h"
#include "models/adapter/adapter_file_name.h"
#include "models/adapter/adapter_names.h"
#include "models/checkpoint/checkpoint.h"

struct adapters;
struct adapter_set;
struct lora_choice; /* engine/request/request.h */
struct row_overlay; /* kernels/compute/overlay.h */

struct adapters_options {
    const char *folder;  /* folder of the files; NULL: no name can be loaded */
    size_t memory_bytes; /* limit for all versions and copies together; 0: no limit */
    /* LoRAs become working copies too. Each combination of adapters and weights then needs copies
     * of its own. */
    bool merge;
    /* Seconds that an upload may be silent before a new upload can take its name; 0:
     * ADAPTER_UPLOAD_PATIENCE_S. */
    double upload_patience_s;
};

/* The model that the adapters change. Everything except the checkpoint is borrowed. */
struct adapters_base {
    struct checkpoint *checkpoint; /* owned by the registry after adapters_create */
    const struct kernels *kernels;
    enum dtype dtype;
    const struct weight_list *unet, *text_encoder;
};

/* Reads the headers of the files in the folder, not their tensors. ERROR_NOT_FOUND if the folder
 * does not exist. A file that is not an adapter becomes an entry with an error. */
bool adapters_create(const struct adapters_options *options, const struct adapters_base *base,
    struct adapters **out, struct error *err) __attribute__((warn_unused_result));
/* Adds an owner. Returns `adapters`. */
struct adapters *adapters_share(struct adapters *adapters);
/* Removes an owner. The last call destroys the registry; every set must be released before. NULL is
 * fine. */
void adapters_destroy(struct adapters *adapters);

/* Changes the checkpoint to another one on the same device. Takes over `base->checkpoint` and
 * closes the previous one. With `base` NULL there is no checkpoint until the next call, and nothing
 * can be loaded. Names lose their versions for the old checkpoint. Adapters that were loaded,
 * pinned or a default are loaded for the new one, and get an error if they do not fit it. Calls
 * `switched` at the moment from which adapters_resolve makes sets for the new checkpoint. That call
 * is made under a lock of the registry and must not call the registry. Waits. */
void adapters_rebase(struct adapters *adapters, const struct adapters_base *base,
    void (*switched)(uint64_t base_id, void *user), void *user);
/* Returns the id of the checkpoint that new sets are made for. adapters_rebase changes it. */
uint64_t adapters_base_id(struct adapters *adapters);

/* Sets: the adapters and weights that one request uses. */

/* Makes the set for the `count` `choices` of a request when it is admitted. `given` false: the
 * request names no adapters and gets the registry's defaults. *out is NULL if no adapter applies.
 * Loads missing versions and makes missing copies, so it may wait (adapters_would_wait).
 * ERROR_INVALID names loras[i].name and lists the existing names. ERROR_NO_MEMORY if the set does
 * not fit beside the sets in use. */
bool adapters_resolve(struct adapters *adapters, const struct lora_choice *choices, int count,
    bool given, struct adapter_set **out, struct error *err) __attribute__((warn_unused_result));
/* Whether adapters_resolve would read a file or make a copy now. */
bool adapters_would_wait(
    struct adapters *adapters, const struct lora_choice *choices, int count, bool given);

/* The overlay for each row of the UNet and of the text encoder; NULL: the base weights alone. Valid
 * as long as the set; a NULL set is fine. Use the UNet's overlay for unet_encode_context too. */
const struct row_overlay *adapter_set_unet(const struct adapter_set *set);
const struct row_overlay *adapter_set_text_encoder(const struct adapter_set *set);
/* Returns a key. Sets with equal keys give the same text encoder output; 0: the base weights
 * alone. */
uint64_t adapter_set_text_key(const struct adapter_set *set);

/* Returns the adapters_base_id of the checkpoint that the overlays were made for; 0: any
 * checkpoint. */
uint64_t adapter_set_base_id(const struct adapter_set *set);

/* One adapter of a set, with its weights. */
struct adapter_use {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    uint64_t version; /* 0: not loaded, because its weights are 0 */
    double weight, text_encoder_weight;
};
/* Returns the number of adapters in the set. *out lists them sorted by name and is borrowed from
 * the set. A NULL set has none. */
int adapter_set_uses(const struct adapter_set *set, const struct adapter_use **out);

/* Makes a set from overlays that belong to no registry, such as a training job's. The overlays may
 * be NULL and are borrowed until the set is released. Sets with equal text_key must give the same
 * text encoder output. */
bool adapter_set_create(const struct row_overlay *unet, const struct row_overlay *text_encoder,
    uint64_t text_key, struct adapter_set **out, struct error *err)
    __attribute__((warn_unused_result));
/* Releases the set and its versions. NULL is fine. */
void adapter_set_release(struct adapter_set *set);

/* Names. */

enum adapter_state {
    ADAPTER_ON_DISK, /* its header was read; loaded when it is named */
    ADAPTER_LOADED,
    ADAPTER_FAILED, /* the file cannot be used: `error` says why */
};
const char *adapter_state_name(enum adapter_state state); /* "on_disk", "loaded", "failed" */

/* A snapshot of one name. The caller finishes it. */
struct adapter_info {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    size_t short_name; /* name + short_name is the shortest name that a request may use for it */
    enum adapter_state state;
    uint64_t
        version; /* unique over all names; changes with the file or the checkpoint; 0: not loaded */
    uint64_t file_bytes, resident_bytes;
    int users; /* sets in use that hold the version */
    bool pinned, is_default;
    double default_weight, default_text_encoder_weight; /* if is_default */
    struct adapter_summary summary;
    bool has_summary;
    size_t matched; /* number of layers that it changes, if loaded */
    char *
        *unmatched; /* owned: names of tensors that belong to no adapter or no layer of the model */
    size_t unmatched_count;
    double load_s, sync_s; /* to validate and place the file; to sync it */
    struct error error;    /* of a failed load; an older version may still be loaded */
};
void adapter_info_finish(struct adapter_info *info);

struct adapters_listing {
    struct adapter_info *items; /* owned, sorted by name */
    size_t count;
    uint64_t resident_bytes, limit_bytes; /* limit 0: no limit */
    bool merge;
    const char *folder; /* borrowed from the registry; NULL: no folder */
};
/* Lists all names. Each item is a snapshot; names may come and go between two items. */
bool adapters_list(struct adapters *adapters, struct adapters_listing *out, struct error *err)
    __attribute__((warn_unused_result));
void adapters_listing_finish(struct adapters_listing *listing);

/* ERROR_NOT_FOUND if there is no such name. Here `name` must be the whole name: its last part alone
 * is not found. */
bool adapters_describe(struct adapters *adapters, const char *name, struct adapter_info *out,
    struct error *err) __attribute__((warn_unused_result));

/* Writes the whole name of the adapter that a request means by `asked`: this name, or the only name
 * with this last part. ERROR_NOT_FOUND if there is none, or there are several. */
bool adapters_find(struct adapters *adapters, const char *asked,
    char name[ADAPTER_NAME_MAX_BYTES + 1], struct error *err) __attribute__((warn_unused_result));
/* Refuses a new name that differs from an existing one only in case or in how accents are composed:
 * some file systems take the two for one, and the new file would replace the other. An existing
 * name passes. ERROR_CONFLICT names `param`. */
bool adapters_may_add(struct adapters *adapters, const char *param, const char *name,
    struct error *err) __attribute__((warn_unused_result));

/* Functions that change a name. `info` may be NULL, and is filled on success. */

/* Loads the file that is in the folder now, even if an older version is loaded. Waits. */
bool adapters_load(struct adapters *adapters, const char *name, struct adapter_info *info,
    struct error *err) __attribute__((warn_unused_result));
/* Loads a file, or a folder written by peft, under a new name. The path may be anywhere: this is
 * for the command line. Waits. */
bool adapters_load_file(struct adapters *adapters, const char *name, const char *path,
    struct adapter_info *info, struct error *err) __attribute__((warn_unused_result));
/* Unloads the name's version; its memory is freed when the last request that uses it ends. The file
 * stays, and the next request that names it loads it again. ERROR_CONFLICT if the name is pinned or
 * a default. */
bool adapters_unload(struct adapters *adapters, const char *name, struct error *err)
    __attribute__((warn_unused_result));
/* Removes the name and its file; running requests keep their version. */
bool adapters_delete(struct adapters *adapters, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* The settings of POST /loras/{name}. A setting that is not given stays unchanged. */
struct adapter_settings {
    bool has_default; /* the next three members are given */
    bool is_default;  /* true: it applies to requests without `loras` */
    double weight, text_encoder_weight;
    bool has_pinned, pinned; /* has_pinned: `pinned` given; pinned: stays loaded */
};
/* Applies settings. Loads an adapter that becomes pinned or a default. For a default, also makes
 * the copies that it needs beside the other defaults. ERROR_NO_MEMORY if they do not fit; nothing
 * changes then. Waits. */
bool adapters_set(struct adapters *adapters, const char *name,
    const struct adapter_settings *settings, struct adapter_info *info, struct error *err)
    __attribute__((warn_unused_result));

struct adapters_scan {
    int added, replaced, removed, failed;
    int passed_over; /* *.safetensors with an invalid name, or not a regular file */
};
/* Reads the folder again. Names whose files are gone are removed. If the file of a loaded version
 * has changed, its new version is loaded. If that fails, the old version stays, with an error.
 * Waits. */
bool adapters_rescan(struct adapters *adapters, struct adapters_scan *out, struct error *err)
    __attribute__((warn_unused_result));

/* An upload: a file that arrives in pieces and is written to a temporary file in the folder. Used
 * by one thread at a time. */
struct adapter_upload;
/* `bytes` is the announced size; 0: unknown. ERROR_TOO_LARGE above ADAPTER_FILE_MAX_BYTES.
 * ERROR_CONFLICT while another upload for the name is in progress, unless that upload has been
 * silent too long. The silent upload then loses the name, and its own calls fail with
 * ERROR_CONFLICT. */
bool adapter_upload_begin(struct adapters *adapters, const char *name, uint64_t bytes,
    struct adapter_upload **out, struct error *err) __attribute__((warn_unused_result));
bool adapter_upload_write(struct adapter_upload *upload, const void *bytes, size_t size,
    struct error *err) __attribute__((warn_unused_result));
/* Validates and loads the file, syncs it to the disk under its name, and replaces the name's
 * previous version. On failure nothing changes. Frees `upload` in any case. Waits. */
bool adapter_upload_end(struct adapter_upload *upload, struct adapter_info *info, struct error *err)
    __attribute__((warn_unused_result));
void adapter_upload_abort(struct adapter_upload *upload); /* NULL is fine */

/* Adds a file from anywhere as if it had been uploaded: copies it into the folder and replaces the
 * name's previous file. Without a folder the file is loaded from where it is, and the name must be
 * new. Waits. */
bool adapters_add_file(struct adapters *adapters, const char *name, const char *path,
    struct error *err) __attribute__((warn_unused_result));

/* Adds a name NAME@STEP for a file that stays where it is, which may be outside the folder. Reads
 * its header. The file is loaded when a request names it, and may be unloaded to free memory.
 * Replaces an earlier file of that name. Waits. */
bool adapters_refer(struct adapters *adapters, const char *name, const char *path,
    struct error *err) __attribute__((warn_unused_result));
/* Removes the names that adapters_refer gave to files below `folder`. If `gone` is true, removes
 * only those whose file no longer exists. Waits. */
void adapters_forget(struct adapters *adapters, const char *folder, bool gone);

/* Sets what frees the device's memory of versions and copies that nobody uses any more. A thread
 * that drops the last reference to one must not wait for a busy device, so on a device that only
 * one thread at a time may use it leaves the memory to the collector: `collector` is called under a
 * lock of the registry and must not call the registry or wait; it makes another thread call
 * adapters_collect soon. Without a collector (NULL), and on the CPU, the thread frees the memory
 * itself. */
void adapters_set_collector(struct adapters *adapters, void (*collector)(void *user), void *user);
/* Frees the memory that was left to the collector. Takes the device. Waits. */
void adapters_collect(struct adapters *adapters);

/* Take and give back a device that only one thread at a time may use. The loading threads call
 * these functions, and so does the engine thread around each unit of work. Threads get the device
 * in the order of asking. The functions do nothing on the CPU or with NULL. */
void adapters_device_take(struct adapters *adapters);
void adapters_device_give(struct adapters *adapters);

#endif
