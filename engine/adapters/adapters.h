/* The adapters (LoRAs and their kin) of one loaded checkpoint: names, the versions that stand
 * behind them, and what a request gets of them.
 *
 * A name is that of a file NAME.safetensors in one folder. Loading it makes an immutable version;
 * replacing or unloading the name beside running requests takes nothing from them: a request holds
 * the versions that it was admitted with until it ends. Versions that nobody uses give way, least
 * recently used first, when memory is short, and are loaded again when they are named. The base
 * weights are never written: what an adapter changes stands beside them, in overlays
 * (kernels/overlay.h) that say for each row of a call what is added or put in another's place.
 *
 * How a layer is changed follows from the adapter's file alone: a LoRA's product of two thin
 * matrices is added to the base's; what is no such product (LoHa, LoKr, DoRA, full differences)
 * becomes a working copy of the weight, made from the checkpoint's own tensors. A copy belongs to
 * adapters and their weights together, so it is made when such a set is first asked for.
 *
 * The checkpoint may change under the names (adapters_rebase): files are then matched to the layers
 * of the new one, while sets that were resolved before keep what they have of the old one.
 *
 * Every function may be called from any thread. Those that say so wait for files or for copies to
 * be made; the others hold one short lock. */
#ifndef ENGINE_ADAPTERS_ADAPTERS_H
#define ENGINE_ADAPTERS_ADAPTERS_H

#include "base/error.h"
#include "base/limits.h"
#include "kernels/kernels.h"
#include "models/checkpoint/adapter_names.h"
#include "models/checkpoint/checkpoint.h"

struct adapters;
struct adapter_set;
struct lora_choice; /* engine/request.h */
struct row_overlay; /* kernels/overlay.h */

struct adapters_options {
    const char *folder;  /* of the files; NULL: there is none, and no name to load */
    size_t memory_bytes; /* for all versions and copies together; 0: no limit of our own */
    /* Also LoRAs become working copies, one set of weights at a time. */
    bool merge;
    /* How long a name is kept for a file of which nothing comes; 0: ADAPTER_UPLOAD_PATIENCE_S. */
    double upload_patience_s;
};

/* What the adapters change. All but the checkpoint is borrowed. */
struct adapters_base {
    struct checkpoint *checkpoint; /* owned by the registry once it is created */
    const struct kernels *kernels;
    enum dtype dtype;
    const struct weight_list *unet, *text_encoder;
};

/* Reads the folder: the headers of its files, none of their numbers. ERROR_NOT_FOUND if there is no
 * such folder; a file in it that is no adapter is an entry that says so. */
bool adapters_create(const struct adapters_options *options, const struct adapters_base *base,
    struct adapters **out, struct error *err) __attribute__((warn_unused_result));
/* One more owner. Returns it. */
struct adapters *adapters_share(struct adapters *adapters);
/* One owner less; the last one's call destroys it, when no set may be left. NULL is fine. */
void adapters_destroy(struct adapters *adapters);

/* From now on adapters change another checkpoint, on the same device; `base->checkpoint` is taken
 * over, and the one before is closed. NULL: none, until the next call, and nothing can be loaded.
 * Versions of the old one go from their names, and what was loaded, pinned or a default is loaded
 * for the new one; one that does not fit it has an error. `switched` is called in the moment from
 * which adapters_resolve makes sets of the new one, under a lock of the registry's: it may not call
 * it. Waits. */
void adapters_rebase(struct adapters *adapters, const struct adapters_base *base,
    void (*switched)(uint64_t base_id, void *user), void *user);
/* The number of the checkpoint that sets are made for now; another after adapters_rebase. */
uint64_t adapters_base_id(struct adapters *adapters);

/* What a request runs with. */

/* The set that a request asks for with `choices` (`count` of them; `given` false: it names none and
 * gets the registry's defaults). At admission. *out is NULL where nothing applies. Loads what is
 * not loaded, and makes the copies that are not made, so it may wait: adapters_would_wait tells.
 * ERROR_INVALID names loras[i].name and the names there are; ERROR_NO_MEMORY if the set does not
 * fit beside those in use. */
bool adapters_resolve(struct adapters *adapters, const struct lora_choice *choices, int count,
    bool given, struct adapter_set **out, struct error *err) __attribute__((warn_unused_result));
/* Whether adapters_resolve would read a file or make a copy, as things are. */
bool adapters_would_wait(
    struct adapters *adapters, const struct lora_choice *choices, int count, bool given);

/* What to add to each row of the UNet and of the text encoder; NULL: the base alone. Valid as long
 * as the set; a NULL set is fine. unet_encode_context belongs to the UNet. */
const struct row_overlay *adapter_set_unet(const struct adapter_set *set);
const struct row_overlay *adapter_set_text_encoder(const struct adapter_set *set);
/* Equal only where the text encoder computes the same; 0: the base alone. */
uint64_t adapter_set_text_key(const struct adapter_set *set);

/* Of the checkpoint that its overlays belong to (adapters_base_id); 0: of any. */
uint64_t adapter_set_base_id(const struct adapter_set *set);

/* One adapter of a set as it is used. */
struct adapter_use {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    uint64_t version; /* 0: its weights are 0 and it is not loaded */
    double weight, text_encoder_weight;
};
/* By name; *out is borrowed from the set. A NULL set has none. */
int adapter_set_uses(const struct adapter_set *set, const struct adapter_use **out);

/* A set of changes that are in no registry, those of a training job. The overlays are borrowed as
 * long as it, and may be NULL; of two sets with one text_key the text encoder computes the same. */
bool adapter_set_create(const struct row_overlay *unet, const struct row_overlay *text_encoder,
    uint64_t text_key, struct adapter_set **out, struct error *err)
    __attribute__((warn_unused_result));
/* Its versions may go now. NULL is fine. */
void adapter_set_release(struct adapter_set *set);

/* What the names are. */

enum adapter_state {
    ADAPTER_ON_DISK, /* its header was read; it is loaded when it is first named */
    ADAPTER_LOADED,
    ADAPTER_FAILED, /* the file cannot be used: `error` says why */
};
const char *adapter_state_name(enum adapter_state state); /* "on_disk", "loaded", "failed" */

/* A copy of what is known of one name, finished by the caller. */
struct adapter_info {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    enum adapter_state state;
    uint64_t version; /* counted over all names: another number is another file, or the same for
                         another checkpoint; 0: it was not loaded for this one */
    uint64_t file_bytes, resident_bytes;
    int users; /* sets in use that hold the version */
    bool pinned, is_default;
    double default_weight, default_text_encoder_weight; /* if is_default */
    struct adapter_summary summary;
    bool has_summary;
    size_t matched;   /* layers that it changes, once loaded */
    char **unmatched; /* owned: tensors that are no part of it or have no layer here */
    size_t unmatched_count;
    double load_s, sync_s; /* to validate and place it; to have the disk keep it */
    struct error error;    /* of a failed load, also while an older version is still there */
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

/* Changing them. `info` may be NULL, and is filled on success. */

/* Letters, digits, '.', '_' and '-', the first a letter or digit, at most ADAPTER_NAME_MAX_BYTES;
 * not "rescan", whose path is taken (POST /loras/rescan). ERROR_INVALID names `param`. */
bool adapter_name_check(const char *param, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* The same, and what adapters_refer gives names of: NAME@STEP. */
bool adapter_reference_check(const char *param, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* Loads what the folder's file is now, also if an older version is loaded. Waits. */
bool adapters_load(struct adapters *adapters, const char *name, struct adapter_info *info,
    struct error *err) __attribute__((warn_unused_result));
/* Loads a file, or a folder that peft wrote, from anywhere under a name of its own: for the command
 * line. Waits. */
bool adapters_load_file(struct adapters *adapters, const char *name, const char *path,
    struct adapter_info *info, struct error *err) __attribute__((warn_unused_result));
/* Takes the version from the name: its memory is free when its last request ends. The file stays,
 * and naming it loads it again. ERROR_CONFLICT if it is pinned or a default. */
bool adapters_unload(struct adapters *adapters, const char *name, struct error *err)
    __attribute__((warn_unused_result));
/* The name and its file are gone; requests that run keep their version. */
bool adapters_delete(struct adapters *adapters, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* What POST /loras/{name} may say; what is not given stays. */
struct adapter_settings {
    bool has_default; /* the next three mean something */
    bool is_default;  /* false: it applies to requests that name it only */
    double weight, text_encoder_weight;
    bool has_pinned, pinned; /* a pinned version stays loaded */
};
/* A default or pinned adapter is loaded, and of a default the copies are made that it needs beside
 * the other defaults: ERROR_NO_MEMORY where they do not fit, and nothing changes. Waits. */
bool adapters_set(struct adapters *adapters, const char *name,
    const struct adapter_settings *settings, struct adapter_info *info, struct error *err)
    __attribute__((warn_unused_result));

struct adapters_scan {
    int added, replaced, removed, failed;
    int passed_over; /* files *.safetensors whose names nobody could ask for */
};
/* Reads the folder again. Files that are gone lose their names; of a file that changed the new
 * version is loaded if the old one was, and stays beside it as an error if it cannot. Waits. */
bool adapters_rescan(struct adapters *adapters, struct adapters_scan *out, struct error *err)
    __attribute__((warn_unused_result));

/* A file that arrives piece by piece, in a temporary file of the folder. One thread at a time. */
struct adapter_upload;
/* `bytes`: how many will come, if that is known, else 0. ERROR_TOO_LARGE past
 * ADAPTER_FILE_MAX_BYTES, ERROR_CONFLICT while another file for the name is on its way; but one
 * that stalls loses the name, and ERROR_CONFLICT is then what its sender hears. */
bool adapter_upload_begin(struct adapters *adapters, const char *name, uint64_t bytes,
    struct adapter_upload **out, struct error *err) __attribute__((warn_unused_result));
bool adapter_upload_write(struct adapter_upload *upload, const void *bytes, size_t size,
    struct error *err) __attribute__((warn_unused_result));
/* Validates and loads the file, has the disk keep it under its name, and puts it in the place of
 * the version that was there; on failure all is as it was. `upload` is gone either way. Waits. */
bool adapter_upload_end(struct adapter_upload *upload, struct adapter_info *info, struct error *err)
    __attribute__((warn_unused_result));
void adapter_upload_abort(struct adapter_upload *upload); /* NULL is fine */

/* A file from elsewhere as if it had been sent: copied into the folder, in the place of what the
 * name stood for. Without a folder it is loaded from where it is, and the name must be new. Waits.
 */
bool adapters_add_file(struct adapters *adapters, const char *name, const char *path,
    struct error *err) __attribute__((warn_unused_result));

/* A name NAME@STEP for a file that stays where it is, which need not be in the folder: its header
 * is read; it is loaded when it is first named, and may give way. What the name stood for before is
 * replaced. Waits. */
bool adapters_refer(struct adapters *adapters, const char *name, const char *path,
    struct error *err) __attribute__((warn_unused_result));
/* Takes the names that adapters_refer has given to files below a folder: to all, or to those that
 * are `gone`. Waits. */
void adapters_forget(struct adapters *adapters, const char *folder, bool gone);

/* On a device that only one thread at a time may use, both what loads and what draws takes it in
 * turns: the engine's thread around each unit of its work. Nothing happens on the CPU, and with
 * NULL. */
void adapters_device_take(struct adapters *adapters);
void adapters_device_give(struct adapters *adapters);

/* Reads every packed weight of the base by multiplying with it: equal numbers for equal weights.
 * For tests; not beside the engine's work. */
bool adapters_base_checksum(struct adapters *adapters, uint64_t *out, struct error *err)
    __attribute__((warn_unused_result));

#endif
