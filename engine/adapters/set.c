#include "engine/adapters/internal.h"

#include "base/text/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct adapter_set {
    struct adapters *adapters; /* borrowed; NULL: no registry, and borrowed overlays */
    struct adapter_use *uses;  /* owned: [count], sorted by name */
    /* owned: [count], one reference each. NULL: the weights of that use are 0. */
    struct adapter_version **versions;
    int count;
    struct adapter_copies *copies[ADAPTER_COMPONENTS]; /* owns one reference, or NULL */
    struct row_overlay *overlays[ADAPTER_COMPONENTS];  /* owned, or NULL */
    uint64_t text_key, base_id;
};

const struct row_overlay *adapter_set_unet(const struct adapter_set *set) {
    return set ? set->overlays[COMPONENT_UNET] : NULL;
}

const struct row_overlay *adapter_set_text_encoder(const struct adapter_set *set) {
    return set ? set->overlays[COMPONENT_TEXT_ENCODER] : NULL;
}

uint64_t adapter_set_text_key(const struct adapter_set *set) {
    return set ? set->text_key : 0;
}

uint64_t adapter_set_base_id(const struct adapter_set *set) {
    return set ? set->base_id : 0;
}

int adapter_set_uses(const struct adapter_set *set, const struct adapter_use **out) {
    *out = set ? set->uses : NULL;
    return set ? set->count : 0;
}

/* ---- the adapters of a set ---- */

static double weight_of(const struct adapter_use *use, enum component component) {
    return component == COMPONENT_UNET ? use->weight : use->text_encoder_weight;
}

static bool is_idle(const struct adapter_use *use) {
    return use->weight == 0 && use->text_encoder_weight == 0;
}

/* Writes the name of a request field such as "loras[2].name". */
static void name_param(char text[48], int index, const char *member) {
    snprintf(text, 48, "loras[%d].%s", index, member);
}

static bool weight_check(int index, const char *member, double weight, struct error *err) {
    char param[48], value[32];
    if (isfinite(weight) && fabs(weight) <= ADAPTER_WEIGHT_MAX)
        return true;
    name_param(param, index, member);
    snprintf(value, sizeof(value), "%g", weight);
    return error_field(
        err, param, value, "a number from %g to %g", -ADAPTER_WEIGHT_MAX, ADAPTER_WEIGHT_MAX);
}

/* Call with `lock` held. The error lists as many existing names as fit. `several`: it lists only
 * those whose last part is `name`. */
static bool refuse_name(
    const struct adapters *adapters, int index, const char *name, bool several, struct error *err) {
    static const char more[] = "...";
    char param[48], names[300] = "";
    size_t at = 0;
    for (size_t i = 0; i < adapters->entry_count; i++) {
        const char *one = adapters->entries[i]->name;
        if (several && strcmp(adapters->entries[i]->stem, name) != 0)
            continue;
        const bool fits = at + strlen(one) + strlen(", ") + sizeof(more) < sizeof(names);
        at += (size_t)snprintf(
            names + at, sizeof(names) - at, "%s%s", at ? ", " : "", fits ? one : more);
        if (!fits)
            break;
    }
    name_param(param, index, "name");
    if (adapters->entry_count == 0)
        return error_field(err, param, name, "there are no adapters here");
    return error_field(err, param, name, "one of %s", names);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct adapter_use *)a)->name, ((const struct adapter_use *)b)->name);
}

/* Call with `lock` held. Fills in the set's uses; each must name an existing adapter. */
static bool take_choices(
    struct adapter_set *set, const struct lora_choice *choices, int count, struct error *err) {
    char param[48];
    bool several;
    for (int i = 0; i < count; i++) {
        struct adapter_use *use = &set->uses[i];
        const struct adapter_entry *entry = entry_asked(set->adapters, choices[i].name, &several);
        if (!weight_check(i, "weight", choices[i].weight, err) ||
            !weight_check(i, "text_encoder_weight", choices[i].text_encoder_weight, err))
            return false;
        if (!entry)
            return refuse_name(set->adapters, i, choices[i].name, several, err);
        name_param(param, i, "name");
        for (int k = 0; k < i; k++)
            if (strcmp(set->uses[k].name, entry->name) == 0)
                return error_field(err, param, entry->name, "each adapter once");
        *use = (struct adapter_use){ .weight = choices[i].weight,
            .text_encoder_weight = choices[i].text_encoder_weight };
        memcpy(use->name, entry->name, sizeof(use->name));
    }
    set->count = count;
    qsort(set->uses, (size_t)count, sizeof(*set->uses), by_name);
    return true;
}

/* Call with `lock` held. */
static int count_defaults(const struct adapters *adapters) {
    int count = 0;
    for (size_t i = 0; i < adapters->entry_count; i++)
        count += adapters->entries[i]->is_default;
    return count;
}

static void take_defaults(struct adapter_set *set) {
    for (size_t i = 0; i < set->adapters->entry_count; i++) {
        const struct adapter_entry *entry = set->adapters->entries[i];
        if (!entry->is_default)
            continue;
        struct adapter_use *use = &set->uses[set->count++];
        *use = (struct adapter_use){ .weight = entry->default_weight,
            .text_encoder_weight = entry->default_text_encoder_weight };
        memcpy(use->name, entry->name, sizeof(use->name));
    }
}

static bool set_alloc(struct adapter_set *set, int count) {
    set->uses = calloc((size_t)count, sizeof(*set->uses));
    set->versions = calloc((size_t)count, sizeof(*set->versions));
    return set->uses && set->versions;
}

/* Call with `lock` held. Returns a set with only its uses filled in. Returns NULL if no adapter is
 * asked for, or on an error (*ok is false then). */
static struct adapter_set *set_begin(struct adapters *adapters, const struct lora_choice *choices,
    int count, bool given, bool *ok, struct error *err) {
    const int asked = given ? count : count_defaults(adapters);
    *ok = true;
    if (asked == 0)
        return NULL;
    struct adapter_set *set = calloc(1, sizeof(*set));
    if (set)
        set->adapters = adapters;
    if (!set || !set_alloc(set, asked))
        *ok = error_set(err, ERROR_NO_MEMORY, "no memory for %d adapters", asked);
    else if (given)
        *ok = take_choices(set, choices, count, err);
    else
        take_defaults(set);
    if (*ok)
        return set;
    if (set) {
        free(set->uses);
        free(set->versions);
        free(set);
    }
    return NULL;
}

/* ---- versions and copies ---- */

/* Call with `lock` held. Releases the versions and copies of the set; its uses stay. */
static void set_drop(struct adapter_set *set, struct graveyard *dead) {
    for (int i = 0; i < set->count; i++) {
        if (!set->versions[i])
            continue;
        set->versions[i]->users--;
        version_release(set->adapters, set->versions[i], dead);
        set->versions[i] = NULL;
    }
    for (int c = 0; c < ADAPTER_COMPONENTS; c++) {
        if (set->copies[c])
            copies_release(set->adapters, set->copies[c], dead);
        set->copies[c] = NULL;
    }
}

/* Call with `lock` held. Takes a reference to the current version of use i's name; false if none is
 * loaded. */
static bool take_version(struct adapter_set *set, int i) {
    struct adapter_use *use = &set->uses[i];
    struct adapter_entry *entry = entry_find(set->adapters, use->name);
    use->version = entry ? entry->id : 0;
    if (is_idle(use))
        return true;
    if (!entry || !entry->version)
        return false;
    entry->last_used = ++set->adapters->clock;
    set->versions[i] = entry->version;
    set->versions[i]->references++;
    set->versions[i]->users++;
    return true;
}

/* Lists the set's adapters that need copies in a component. `out` has room for set->count of
 * them. */
static int copied_sources(
    const struct adapter_set *set, enum component component, struct adapter_source *out) {
    int count = 0;
    for (int i = 0; i < set->count; i++) {
        const struct adapter_version *version = set->versions[i];
        const double weight = weight_of(&set->uses[i], component);
        bool copied = false;
        for (size_t k = 0; version && weight != 0 && k < version->copied_count && !copied; k++)
            copied = version->copied[k]->component == component;
        if (copied)
            out[count++] = (struct adapter_source){ version->id, weight, version };
    }
    return count;
}

/* Call with `lock` held. Takes a reference to the copies; false if they have not been made. */
static bool take_copies(struct adapter_set *set, enum component component,
    const struct adapter_source *sources, int count) {
    if (count == 0)
        return true;
    for (struct adapter_copies *c = set->adapters->copies; c; c = c->next) {
        if (c->component != component ||
            !sources_equal(c->sources, c->source_count, sources, count))
            continue;
        c->references++;
        c->last_used = ++set->adapters->clock;
        set->copies[component] = c;
        return true;
    }
    return false;
}

/* Call with `lock` held. Takes all versions and copies. Returns false if one must first be loaded
 * or made; the set then holds none. */
static bool take_all(
    struct adapter_set *set, struct adapter_source *sources, struct graveyard *dead) {
    bool ok = true;
    for (int i = 0; ok && i < set->count; i++)
        ok = take_version(set, i);
    for (int c = 0; ok && c < ADAPTER_COMPONENTS; c++) {
        const int count = copied_sources(set, (enum component)c, sources);
        ok = take_copies(set, (enum component)c, sources, count);
    }
    set->base_id = set->adapters->base_id;
    if (!ok)
        set_drop(set, dead);
    return ok;
}

/* The arguments of adapters_resolve. */
struct asked {
    const struct lora_choice *choices;
    int count;
    bool given;
};

/* Names the request field of the adapter in the error: "loras[2].name", or "loras" for a
 * default. */
static bool blame(const struct asked *asked, const char *name, struct error *err) {
    char param[48] = "loras";
    bool found = false; /* by its full name */
    for (int i = 0; asked->given && !found && i < asked->count; i++) {
        found = strcmp(asked->choices[i].name, name) == 0;
        if (found || strcmp(asked->choices[i].name, adapter_name_stem(name)) == 0)
            name_param(param, i, "name");
    }
    if (!err)
        return false;
    error_prefix(err, "%s: %s", param, name);
    if (err->code == ERROR_NOT_FOUND)
        err->code = ERROR_INVALID; /* the mistake is the name in the request */
    snprintf(err->param, sizeof(err->param), "%s", param);
    snprintf(err->value, sizeof(err->value), "%.*s", (int)sizeof(err->value) - 1, name);
    utf8_drop_cut_character(err->value);
    return false;
}

/* Call the functions from here to defaults_prepare with `work` held. */

static bool load_version(
    struct adapter_set *set, int i, const struct asked *asked, struct error *err) {
    struct adapters *adapters = set->adapters;
    const char *name = set->uses[i].name;
    struct adapter_entry *entry = entry_find(adapters, name);
    if (!entry)
        error_set(err, ERROR_INVALID, "the adapter was removed a moment ago");
    if (!entry || (!is_idle(&set->uses[i]) && !entry->version && !entry_load(adapters, entry, err)))
        return blame(asked, name, err);
    pthread_mutex_lock(&adapters->lock);
    const bool taken = take_version(set, i);
    pthread_mutex_unlock(&adapters->lock);
    return taken || error_set(err, ERROR_INTERNAL, "%s: loaded and gone", name);
}

static bool make_copies(struct adapter_set *set, enum component component,
    struct adapter_source *sources, struct error *err) {
    struct adapters *adapters = set->adapters;
    struct adapter_copies *made = NULL;
    const int count = copied_sources(set, component, sources);
    pthread_mutex_lock(&adapters->lock);
    const bool there = take_copies(set, component, sources, count);
    pthread_mutex_unlock(&adapters->lock);
    if (there)
        return true;
    const size_t bytes = copies_estimate(adapters, component, sources, count);
    if (!memory_take(adapters, bytes, "the working copies of this set of adapters", err))
        return false;
    if (!copies_create(adapters, component, sources, count, &made, err)) {
        memory_give(adapters, bytes);
        return false;
    }
    pthread_mutex_lock(&adapters->lock);
    adapters->resident_bytes += made->bytes - bytes;
    made->next = adapters->copies;
    made->references = 1;
    made->last_used = ++adapters->clock;
    adapters->copies = made;
    set->copies[component] = made;
    pthread_mutex_unlock(&adapters->lock);
    return true;
}

static bool load_all(struct adapter_set *set, const struct asked *asked,
    struct adapter_source *sources, struct error *err) {
    set->base_id = set->adapters->base_id;
    bool ok = true;
    for (int i = 0; ok && i < set->count; i++)
        ok = load_version(set, i, asked, err);
    for (int c = 0; ok && c < ADAPTER_COMPONENTS; c++)
        ok = make_copies(set, (enum component)c, sources, err);
    return ok;
}

/* Returns the choices that a request without `loras` would get if `changed` were a default with
 * these weights. The caller frees them. */
static struct lora_choice *defaults_with(const struct adapters *adapters,
    const struct adapter_entry *changed, double weight, double text_encoder_weight, int *count) {
    struct lora_choice *choices = calloc(adapters->entry_count, sizeof(*choices));
    *count = 0;
    for (size_t i = 0; choices && i < adapters->entry_count; i++) {
        const struct adapter_entry *entry = adapters->entries[i];
        if (entry != changed && !entry->is_default)
            continue;
        struct lora_choice *choice = &choices[(*count)++];
        memcpy(choice->name, entry->name, sizeof(entry->name));
        choice->weight = entry == changed ? weight : entry->default_weight;
        choice->text_encoder_weight = entry == changed ? text_encoder_weight
                                                       : entry->default_text_encoder_weight;
    }
    return choices;
}

bool defaults_prepare(struct adapters *adapters, const struct adapter_entry *changed, double weight,
    double text_encoder_weight, struct error *err) {
    int count;
    bool ok = true;
    const struct asked asked = { 0 };
    struct adapter_set *set = NULL;
    struct adapter_source *sources = NULL;
    struct lora_choice *choices = defaults_with(
        adapters, changed, weight, text_encoder_weight, &count);
    if (choices) {
        pthread_mutex_lock(&adapters->lock);
        set = set_begin(adapters, choices, count, true, &ok, err);
        pthread_mutex_unlock(&adapters->lock);
        sources = calloc((size_t)count, sizeof(*sources));
    }
    if (!sources)
        ok = error_set(err, ERROR_NO_MEMORY, "no memory for a list of adapters");
    ok = ok && load_all(set, &asked, sources, err);
    adapter_set_release(set); /* its copies are kept for the next request */
    free(sources);
    free(choices);
    return ok;
}

/* ---- overlays ---- */

static bool overlay_fill(struct adapter_set *set, enum component component,
    struct row_overlay *overlay, size_t *changes, struct error *err) {
    const struct adapter_copies *copies = set->copies[component];
    *changes = copies ? copies->replaced_count : 0;
    for (size_t i = 0; copies && i < copies->replaced_count; i++)
        if (!row_overlay_replace(overlay, copies->replaced[i].base, copies->replaced[i].copy, err))
            return false;
    for (size_t i = 0; copies && i < copies->norm_count; i++) {
        const struct replaced_norm *r = &copies->norms[i];
        if (!row_overlay_replace_norm(overlay, &r->base->weight, &r->scale, &r->shift, err))
            return false;
        *changes += 1;
    }
    for (int i = 0; i < set->count; i++) {
        const struct adapter_version *version = set->versions[i];
        const double weight = weight_of(&set->uses[i], component);
        for (size_t k = 0; version && weight != 0 && k < version->pair_count; k++) {
            const struct placed_pair *p = &version->pairs[k];
            if (p->component != component)
                continue;
            const float scale = (float)(weight * (double)p->scale);
            if (!row_overlay_add_low_rank(
                    overlay, p->target->packed, p->target->first, p->pair, scale, err))
                return false;
            *changes += 1;
        }
    }
    return true;
}

static bool make_overlay(struct adapter_set *set, enum component component, struct error *err) {
    size_t changes;
    struct row_overlay **overlay = &set->overlays[component];
    if (!row_overlay_create(overlay, err) || !overlay_fill(set, component, *overlay, &changes, err))
        return false;
    if (changes == 0) {
        row_overlay_destroy(*overlay);
        *overlay = NULL;
    }
    return true;
}

/* Call with `lock` held. Finds or makes the key for these weights of the text encoder. Different
 * weights never share a key. Equal weights get the same key, unless TEXT_KEYS_MAX other
 * combinations were used in between. */
static bool number_text(
    struct adapter_set *set, struct adapter_source *sources, struct error *err) {
    struct adapters *adapters = set->adapters;
    int count = 0;
    for (int i = 0; i < set->count; i++) {
        const double weight = set->uses[i].text_encoder_weight;
        if (set->versions[i] && weight != 0 && set->versions[i]->changes[COMPONENT_TEXT_ENCODER])
            sources[count++] = (struct adapter_source){ set->versions[i]->id, weight, NULL };
    }
    if (count == 0)
        return true;
    struct text_key *oldest = &adapters->text_keys[0];
    for (size_t i = 0; i < adapters->text_key_count; i++) {
        struct text_key *key = &adapters->text_keys[i];
        oldest = key->last_used < oldest->last_used ? key : oldest;
        if (!sources_equal(key->sources, key->source_count, sources, count))
            continue;
        key->last_used = ++adapters->clock;
        set->text_key = key->key;
        return true;
    }
    struct adapter_source *copy = sources_copy(sources, count);
    if (!copy)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a list of adapters");
    if (adapters->text_key_count < TEXT_KEYS_MAX)
        oldest = &adapters->text_keys[adapters->text_key_count++];
    free(oldest->sources);
    set->text_key = ++adapters->last_text_key;
    *oldest = (struct text_key){ set->text_key, copy, count, ++adapters->clock };
    return true;
}

bool adapters_resolve(struct adapters *adapters, const struct lora_choice *choices, int count,
    bool given, struct adapter_set **out, struct error *err) {
    struct graveyard dead = { 0 };
    bool ok, ready = false;
    *out = NULL;
    pthread_mutex_lock(&adapters->lock);
    struct adapter_set *set = set_begin(adapters, choices, count, given, &ok, err);
    struct adapter_source *sources = set ? calloc((size_t)set->count, sizeof(*sources)) : NULL;
    if (sources)
        ready = take_all(set, sources, &dead);
    pthread_mutex_unlock(&adapters->lock);
    graveyard_leave(adapters, &dead);
    if (!set)
        return ok;
    if (!sources)
        ok = error_set(err, ERROR_NO_MEMORY, "no memory for a list of adapters");
    const struct asked asked = { choices, count, given };
    if (ok && !ready) {
        work_begin(adapters);
        ok = load_all(set, &asked, sources, err);
        work_end(adapters);
    }
    for (int c = 0; ok && c < ADAPTER_COMPONENTS; c++)
        ok = make_overlay(set, (enum component)c, err);
    if (ok) {
        pthread_mutex_lock(&adapters->lock);
        ok = number_text(set, sources, err);
        pthread_mutex_unlock(&adapters->lock);
    }
    free(sources);
    if (ok)
        *out = set;
    else
        adapter_set_release(set);
    return ok;
}

bool adapters_would_wait(
    struct adapters *adapters, const struct lora_choice *choices, int count, bool given) {
    struct graveyard dead = { 0 };
    bool ok, waits = false;
    pthread_mutex_lock(&adapters->lock);
    struct adapter_set *set = set_begin(adapters, choices, count, given, &ok, NULL);
    struct adapter_source *sources = set ? calloc((size_t)set->count, sizeof(*sources)) : NULL;
    if (sources)
        waits = !take_all(set, sources, &dead);
    pthread_mutex_unlock(&adapters->lock);
    graveyard_leave(adapters, &dead);
    free(sources);
    adapter_set_release(set);
    return waits;
}

bool adapter_set_create(const struct row_overlay *unet, const struct row_overlay *text_encoder,
    uint64_t text_key, struct adapter_set **out, struct error *err) {
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an adapter");
    (*out)->overlays[COMPONENT_UNET] = (struct row_overlay *)unet; /* only read */
    (*out)->overlays[COMPONENT_TEXT_ENCODER] = (struct row_overlay *)text_encoder;
    (*out)->text_key = text_key;
    return true;
}

void adapter_set_release(struct adapter_set *set) {
    if (!set)
        return;
    if (!set->adapters) {
        free(set);
        return;
    }
    struct graveyard dead = { 0 };
    pthread_mutex_lock(&set->adapters->lock);
    set_drop(set, &dead);
    pthread_mutex_unlock(&set->adapters->lock);
    for (int c = 0; c < ADAPTER_COMPONENTS; c++)
        row_overlay_destroy(set->overlays[c]);
    graveyard_leave(set->adapters, &dead);
    free(set->uses);
    free(set->versions);
    free(set);
}
