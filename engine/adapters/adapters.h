/* The adapters (LoRAs and similar formats) of the current checkpoint: their names, the loaded
 * versions behind the names, and the set of adapters that a request runs with.
 *
 * A name is that of a file NAME.safetensors in one folder. Loading the file makes an immutable
 * version. A request holds the versions it was admitted with until it ends, so replacing or
 * unloading a name does not affect running requests. When memory is short, versions that nobody
 * uses are freed, least recently used first; they are loaded again when they are named. The base
 * weights are never written: the changes stand beside them in overlays (kernels/compute/overlay.h),
 * which say for each row of a call what is added to a weight or replaces it.
 *
 * The adapter's file alone decides how a layer is changed. A LoRA's product of two thin matrices is
 * added to the base product. Anything else (LoHa, LoKr, DoRA, full differences) becomes a working
 * copy of the weight, computed from the checkpoint's own tensors. A copy depends on the combination
 * of adapters and weights, so it is made when that combination is first asked for.
 *
 * The checkpoint may change (adapters_rebase): files are then matched to the layers of the new one,
 * while sets resolved before keep their part of the old one.
 *
 * Every function may be called from any thread. Those marked "Waits" may wait for files or for
 * copies to be made; the others only hold one short lock. */
#ifndef ENGINE_ADAPTERS_ADAPTERS_H
#define ENGINE_ADAPTERS_ADAPTERS_H

#include "base/error.h"
#include "base/limits.h"
#include "kernels/kernels.h"
#include "models/adapter/adapter_names.h"
#include "models/checkpoint/checkpoint.h"

struct adapters;
struct adapter_set;
struct lora_choice; /* engine/request/request.h */
struct row_overlay; /* kernels/compute/overlay.h */

struct adapters_options {
    const char *folder;  /* folder of the files; NULL: none, and no name can be loaded */
    size_t memory_bytes; /* limit for all versions and copies together; 0: no limit */
    /* LoRAs become working copies too, one set of weights at a time. */
    bool merge;
    /* How long an upload may be silent before it loses its name; 0: ADAPTER_UPLOAD_PATIENCE_S. */
    double upload_patience_s;
};

/* What the adapters change. Everything except the checkpoint is borrowed. */
struct adapters_base {
    struct checkpoint *checkpoint; /* owned by the registry once it is created */
    const struct kernels *kernels;
    enum dtype dtype;
    const struct weight_list *unet, *text_encoder;
};

/* Reads the folder: the headers of its files, not their tensors. ERROR_NOT_FOUND if the folder does
 * not exist. A file that is not an adapter becomes an entry with an error. */
bool adapters_create(const struct adapters_options *options, const struct adapters_base *base,
    struct adapters **out, struct error *err) __attribute__((warn_unused_result));
/* Adds an owner. Returns `adapters`. */
struct adapters *adapters_share(struct adapters *adapters);
/* Removes an owner; the last call destroys the registry, and no set may be left then. NULL is
 * fine. */
void adapters_destroy(struct adapters *adapters);

/* Changes the checkpoint to another one on the same device. Takes over `base->checkpoint` and
 * closes the one before. NULL: no checkpoint until the next call, and nothing can be loaded. Names
 * lose their versions of the old checkpoint; adapters that were loaded, pinned or a default are
 * loaded for the new one, and get an error if they do not fit it. `switched` is called at the
 * moment from which adapters_resolve makes sets for the new one. It is called under a lock of the
 * registry and must not call the registry. Waits. */
void adapters_rebase(struct adapters *adapters, const struct adapters_base *base,
    void (*switched)(uint64_t base_id, void *user), void *user);
/* The id of the checkpoint that new sets are made for; adapters_rebase changes it. */
uint64_t adapters_base_id(struct adapters *adapters);

/* Sets: what a request runs with. */

/* Makes the set for a request's `choices` (`count` of them; `given` false: it names none and gets
 * the registry's defaults), at admission. *out is NULL if no adapter applies. Loads missing
 * versions and makes missing copies, so it may wait (adapters_would_wait). ERROR_INVALID names
 * loras[i].name and the names there are; ERROR_NO_MEMORY if the set does not fit beside those in
 * use. */
bool adapters_resolve(struct adapters *adapters, const struct lora_choice *choices, int count,
    bool given, struct adapter_set **out, struct error *err) __attribute__((warn_unused_result));
/* Whether adapters_resolve would read a file or make a copy now. */
bool adapters_would_wait(
    struct adapters *adapters, const struct lora_choice *choices, int count, bool given);

/* The overlay for each row of the UNet and of the text encoder; NULL: the base alone. Valid as long
 * as the set; a NULL set is fine. unet_encode_context belongs to the UNet. */
const struct row_overlay *adapter_set_unet(const struct adapter_set *set);
const struct row_overlay *adapter_set_text_encoder(const struct adapter_set *set);
/* Sets with equal keys give the same text encoder output; 0: the base alone. */
uint64_t adapter_set_text_key(const struct adapter_set *set);

/* adapters_base_id of the checkpoint that the overlays belong to; 0: any. */
uint64_t adapter_set_base_id(const struct adapter_set *set);

/* One adapter of a set, as it is used. */
struct adapter_use {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    uint64_t version; /* 0: its weights are 0, and it is not loaded */
    double weight, text_encoder_weight;
};
/* Returns the number of the set's adapters, sorted by name; *out is borrowed from the set. A NULL
 * set has none. */
int adapter_set_uses(const struct adapter_set *set, const struct adapter_use **out);

/* Makes a set of changes that are not in a registry: those of a training job. The overlays may be
 * NULL and are borrowed until the set is released. Sets with equal text_key must give the same text
 * encoder output. */
bool adapter_set_create(const struct row_overlay *unet, const struct row_overlay *text_encoder,
    uint64_t text_key, struct adapter_set **out, struct error *err)
    __attribute__((warn_unused_result));
/* Releases the set and its versions. NULL is fine. */
void adapter_set_release(struct adapter_set *set);

/* Names. */

enum adapter_state {
    ADAPTER_ON_DISK, /* its header was read; it is loaded when it is named */
    ADAPTER_LOADED,
    ADAPTER_FAILED, /* the file cannot be used: `error` says why */
};
const char *adapter_state_name(enum adapter_state state); /* "on_disk", "loaded", "failed" */

/* A copy of what is known of one name. The caller finishes it. */
struct adapter_info {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    enum adapter_state state;
    uint64_t version; /* unique over all names; changes with the file or the checkpoint; 0: not
                         loaded for this checkpoint */
    uint64_t file_bytes, resident_bytes;
    int users; /* sets in use that hold the version */
    bool pinned, is_default;
    double default_weight, default_text_encoder_weight; /* if is_default */
    struct adapter_summary summary;
    bool has_summary;
    size_t matched;   /* number of layers that it changes, once loaded */
    char **unmatched; /* owned: names of tensors that are not part of an adapter or have no layer
                         here */
    size_t unmatched_count;
    double load_s, sync_s; /* to validate and place it; to sync it to the disk */
    struct error error;    /* of a failed load, also while an older version is still in use */
};
void adapter_info_finish(struct adapter_info *info);

struct adapters_listing {
    struct adapter_info *items; /* owned, by name */
    size_t count;
    uint64_t resident_bytes, limit_bytes; /* limit 0: none */
    bool merge;
    const char *folder; /* borrowed from the registry; NULL: none */
};
bool adapters_list(struct adapters *adapters, struct adapters_listing *out, struct error *err)
    __attribute__((warn_unused_result));
void adapters_listing_finish(struct adapters_listing *listing);

/* ERROR_NOT_FOUND if there is no such name. */
bool adapters_describe(struct adapters *adapters, const char *name, struct adapter_info *out,
    struct error *err) __attribute__((warn_unused_result));

/* Changing names. `info` may be NULL, and is filled on success. */

/* Checks a name: letters, digits, '.', '_' and '-', the first a letter or digit, at most
 * ADAPTER_NAME_MAX_BYTES; not "rescan", whose path is taken (POST /loras/rescan). ERROR_INVALID
 * names `param`. */
bool adapter_name_check(const char *param, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* The same, but also accepts the names that adapters_refer gives: NAME@STEP. */
bool adapter_reference_check(const char *param, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* Loads the file that is in the folder now, even if an older version is loaded. Waits. */
bool adapters_load(struct adapters *adapters, const char *name, struct adapter_info *info,
    struct error *err) __attribute__((warn_unused_result));
/* Loads a file, or a folder written by peft, from anywhere under a new name: for the command line.
 * Waits. */
bool adapters_load_file(struct adapters *adapters, const char *name, const char *path,
    struct adapter_info *info, struct error *err) __attribute__((warn_unused_result));
/* Takes the version from the name; its memory is freed when its last request ends. The file stays,
 * and naming it loads it again. ERROR_CONFLICT if it is pinned or a default. */
bool adapters_unload(struct adapters *adapters, const char *name, struct error *err)
    __attribute__((warn_unused_result));
/* Removes the name and its file; running requests keep their version. */
bool adapters_delete(struct adapters *adapters, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* What POST /loras/{name} may set. Settings that are not given stay as they are. */
struct adapter_settings {
    bool has_default; /* the next three are given */
    bool is_default;  /* false: it applies only to requests that name it */
    double weight, text_encoder_weight;
    bool has_pinned, pinned; /* has_pinned: `pinned` is given; a pinned version stays loaded */
};
/* Applies settings. Loads a default or pinned adapter; for a default, also makes the copies that it
 * needs beside the other defaults. ERROR_NO_MEMORY if they do not fit, and nothing changes.
 * Waits. */
bool adapters_set(struct adapters *adapters, const char *name,
    const struct adapter_settings *settings, struct adapter_info *info, struct error *err)
    __attribute__((warn_unused_result));

struct adapters_scan {
    int added, replaced, removed, failed;
    int passed_over; /* *.safetensors with a name that cannot be asked for, or not a regular file */
};
/* Reads the folder again. Names whose files are gone are removed. If a file has changed and its old
 * version was loaded, the new version is loaded; if that fails, the old version stays, with an
 * error. Waits. */
bool adapters_rescan(struct adapters *adapters, struct adapters_scan *out, struct error *err)
    __attribute__((warn_unused_result));

/* A file that arrives piece by piece, in a temporary file of the folder. Used by one thread at a
 * time. */
struct adapter_upload;
/* `bytes`: the announced size, or 0. ERROR_TOO_LARGE above ADAPTER_FILE_MAX_BYTES, ERROR_CONFLICT
 * while another upload for the name is in progress. But an upload that has been silent too long
 * loses the name to the new one; its own calls then fail with ERROR_CONFLICT. */
bool adapter_upload_begin(struct adapters *adapters, const char *name, uint64_t bytes,
    struct adapter_upload **out, struct error *err) __attribute__((warn_unused_result));
bool adapter_upload_write(struct adapter_upload *upload, const void *bytes, size_t size,
    struct error *err) __attribute__((warn_unused_result));
/* Validates and loads the file, syncs it to the disk under its name, and replaces the version that
 * was there. On failure nothing changes. `upload` is freed either way. Waits. */
bool adapter_upload_end(struct adapter_upload *upload, struct adapter_info *info, struct error *err)
    __attribute__((warn_unused_result));
void adapter_upload_abort(struct adapter_upload *upload); /* NULL is fine */

/* Adds a file from elsewhere as if it had been uploaded: copies it into the folder and replaces
 * what the name stood for. Without a folder it is loaded from its place, and the name must be new.
 * Waits. */
bool adapters_add_file(struct adapters *adapters, const char *name, const char *path,
    struct error *err) __attribute__((warn_unused_result));

/* Adds a name NAME@STEP for a file that stays where it is, which may be outside the folder. Reads
 * its header; the file is loaded when it is named, and may be unloaded to make room. Replaces
 * another file of that name. Waits. */
bool adapters_refer(struct adapters *adapters, const char *name, const char *path,
    struct error *err) __attribute__((warn_unused_result));
/* Removes the names that adapters_refer gave to files below `folder`: all of them, or with `gone`
 * only those whose file no longer exists. Waits. */
void adapters_forget(struct adapters *adapters, const char *folder, bool gone);

/* Take and give back the device, in turns, if only one thread at a time may use it: loading threads
 * and the engine thread, around each unit of its work. Do nothing on the CPU, and for NULL. */
void adapters_device_take(struct adapters *adapters);
void adapters_device_give(struct adapters *adapters);

#endif
