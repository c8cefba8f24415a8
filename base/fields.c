#include "base/fields.h"

#include "base/limits.h"
#include "base/text/json.h"
#include "base/text/words.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 32 /* one bit each in a mask of words */

/* --- members --- */

static int64_t get_integer(const struct field *f, const void *base) {
    const void *member = (const char *)base + f->offset;
    return f->size == sizeof(int64_t) ? *(const int64_t *)member : *(const int *)member;
}

static void set_integer(const struct field *f, void *base, int64_t value) {
    void *member = (char *)base + f->offset;
    if (f->size == sizeof(int64_t))
        *(int64_t *)member = value;
    else
        *(int *)member = (int)value;
}

double field_get(const struct field *f, const void *base) {
    const void *member = (const char *)base + f->offset;
    switch (f->kind) {
    case FIELD_FLAG:
        return *(const bool *)member;
    case FIELD_NUMBER:
        return *(const double *)member;
    case FIELD_INTEGER:
    case FIELD_WORD:
        return (double)get_integer(f, base);
    default:
        return 0;
    }
}

void field_set(const struct field *f, void *base, double value) {
    void *member = (char *)base + f->offset;
    if (f->kind == FIELD_FLAG)
        *(bool *)member = value != 0;
    else if (f->kind == FIELD_NUMBER)
        *(double *)member = value;
    else if (f->kind == FIELD_INTEGER || f->kind == FIELD_WORD)
        set_integer(f, base, (int64_t)value);
}

void field_reset(const struct field *f, void *base) {
    if (f->kind == FIELD_TEXT)
        *(char **)((char *)base + f->offset) = NULL;
    else
        field_set(f, base, f->value);
}

/* --- ranges --- */

static int word_count(const struct field *f) {
    int count = 0;
    while (f->words[count])
        count++;
    return count;
}

/* False for a NaN. */
static bool in_range(const struct field *f, long double value) {
    return value >= f->min && value <= f->max && !(f->above_min && value == f->min) &&
           !(f->below_max && value == f->max);
}

static bool integer_allowed(const struct field *f, int64_t value) {
    return in_range(f, value) && (f->multiple == 0 || value % f->multiple == 0) &&
           (value != 0 || !f->zero_is_unset);
}

bool field_allows(const struct field *f, double value) {
    const bool whole = value == floor(value) && fabs(value) < 0x1p63;
    switch (f->kind) {
    case FIELD_FLAG:
        return value == 0 || value == 1;
    case FIELD_INTEGER:
        return whole && integer_allowed(f, (int64_t)value);
    case FIELD_WORD:
        return whole && value >= 0 && value < word_count(f);
    default:
        return in_range(f, value) && (value != 0 || !f->zero_is_unset);
    }
}

/* Returns whether the minimum itself is refused: because the range begins above it, or because it
 * is 0 and 0 means "not given". */
static bool begins_above(const struct field *f) {
    return f->above_min || (f->zero_is_unset && f->min == 0);
}

static void describe_range(const struct field *f, char *out, size_t size) {
    const char *what = f->unit ? f->unit : f->kind == FIELD_INTEGER ? "an integer" : "a number";
    char first[64];
    if (f->multiple)
        snprintf(first, sizeof(first), "%s that is a multiple of %d", what, f->multiple);
    else
        snprintf(first, sizeof(first), "%s", what);
    if (f->kind == FIELD_INTEGER)
        snprintf(out, size, "%s from %.0Lf to %.0Lf", first, f->min, f->max);
    else if (begins_above(f))
        snprintf(out, size, "%s above %Lg%s %Lg", first, f->min,
            f->below_max ? " and below" : ", at most", f->max);
    else
        snprintf(out, size, "%s from %Lg %s %Lg", first, f->min, f->below_max ? "and below" : "to",
            f->max);
}

const char *field_allowed(
    const struct field *f, unsigned words, const char *quote, char *out, size_t size) {
    const char *listed[WORDS_MAX];
    size_t count = 0;
    switch (f->kind) {
    case FIELD_FLAG:
        snprintf(out, size, "true or false");
        break;
    case FIELD_WORD:
        for (unsigned i = 0; i < WORDS_MAX && f->words[i]; i++)
            if (words >> i & 1)
                listed[count++] = f->words[i];
        words_list(out, size, listed, count, quote, " or ");
        break;
    case FIELD_TEXT:
        snprintf(out, size, "a string of %s%d bytes", f->min > 0 ? "1 to " : "at most ",
            PROMPT_MAX_BYTES);
        break;
    case FIELD_OTHER:
        out[0] = 0;
        break;
    default:
        describe_range(f, out, size);
    }
    const size_t used = strlen(out);
    if (f->note)
        snprintf(out + used, size - used, "%s%s", used ? "; " : "", f->note);
    return out;
}

const char *field_default(const struct field *f, char *out, size_t size) {
    out[0] = 0;
    if (f->kind == FIELD_FLAG)
        snprintf(out, size, "%s", f->value != 0 ? "true" : "false");
    else if (f->kind == FIELD_WORD)
        snprintf(out, size, "\"%s\"", f->words[(int)f->value]);
    else if ((f->kind == FIELD_INTEGER || f->kind == FIELD_NUMBER) && !f->zero_is_unset)
        snprintf(out, size, "%.4g", f->value);
    return out;
}

/* --- from JSON and from text --- */

bool field_refuse(const struct field *f, const json_t *value, struct error *err) {
    char allowed[ERROR_ALLOWED_BYTES];
    return json_bad_field(
        f->name, value, field_allowed(f, FIELD_ALL_WORDS, "\"", allowed, sizeof(allowed)), err);
}

static bool find_word(const struct field *f, const char *text, double *out) {
    for (int i = 0; f->words[i]; i++)
        if (strcmp(f->words[i], text) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static bool take(const struct field *f, double value, double *out) {
    if (!field_allows(f, value))
        return false;
    *out = value;
    return true;
}

bool field_value_from_json(const struct field *f, const json_t *json, double *out) {
    int64_t integer;
    switch (f->kind) {
    case FIELD_FLAG:
        return json_is_boolean(json) && take(f, json_is_true(json), out);
    case FIELD_INTEGER:
        return json_exact_integer(json, &integer) && take(f, (double)integer, out);
    case FIELD_WORD:
        return json_is_string(json) && find_word(f, json_string_value(json), out);
    default:
        return json_is_number(json) && take(f, json_number_value(json), out);
    }
}

/* Parses a text that is a finite number and nothing else, not even spaces. */
static bool number_from_text(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && !isspace((unsigned char)*text) && isfinite(*out);
}

static bool integer_from_text(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return !errno && end != text && !*end && !isspace((unsigned char)*text);
}

bool field_value_from_text(const struct field *f, const char *text, double *out) {
    const bool yes = strcmp(text, "true") == 0;
    double value;
    if (f->kind == FIELD_WORD)
        return find_word(f, text, out);
    if (f->kind == FIELD_FLAG)
        return (yes || strcmp(text, "false") == 0) && take(f, yes, out);
    return number_from_text(text, &value) && take(f, value, out);
}

static bool copy_text(const struct field *f, const char *text, void *base, struct error *err) {
    char **member = (char **)((char *)base + f->offset);
    *member = strdup(text);
    return *member || error_set(err, ERROR_NO_MEMORY, "no memory for %s", f->name);
}

static bool text_allowed(const struct field *f, const json_t *json) {
    return json_is_string(json) && (f->min <= 0 || json_string_length(json) > 0) &&
           json_string_length(json) <= PROMPT_MAX_BYTES;
}

bool field_from_json(const struct field *f, const json_t *json, void *base, struct error *err) {
    int64_t integer;
    double value;
    if (f->kind == FIELD_TEXT)
        return text_allowed(f, json) ? copy_text(f, json_string_value(json), base, err)
                                     : field_refuse(f, json, err);
    if (f->kind == FIELD_INTEGER) {
        if (!json_exact_integer(json, &integer) || !integer_allowed(f, integer))
            return field_refuse(f, json, err);
        set_integer(f, base, integer);
        return true;
    }
    if (f->kind == FIELD_OTHER || !field_value_from_json(f, json, &value))
        return field_refuse(f, json, err);
    field_set(f, base, value);
    return true;
}

bool field_from_text(
    const struct field *f, const char *param, const char *text, void *base, struct error *err) {
    char allowed[ERROR_ALLOWED_BYTES];
    int64_t integer;
    double value;
    if (f->kind == FIELD_TEXT)
        return copy_text(f, text, base, err);
    if (f->kind == FIELD_INTEGER && integer_from_text(text, &integer) &&
        integer_allowed(f, integer)) {
        set_integer(f, base, integer);
        return true;
    }
    if (f->kind != FIELD_INTEGER && field_value_from_text(f, text, &value)) {
        field_set(f, base, value);
        return true;
    }
    return error_field(
        err, param, text, "%s", field_allowed(f, FIELD_ALL_WORDS, "", allowed, sizeof(allowed)));
}

bool field_check(const struct field *f, const void *base, struct error *err) {
    char allowed[ERROR_ALLOWED_BYTES], text[48];
    if (f->kind == FIELD_TEXT || f->kind == FIELD_OTHER)
        return true;
    const double value = field_get(f, base);
    if ((f->zero_is_unset && value == 0) ||
        (f->kind == FIELD_INTEGER ? integer_allowed(f, get_integer(f, base))
                                  : field_allows(f, value)))
        return true;
    if (f->kind == FIELD_NUMBER)
        snprintf(text, sizeof(text), "%.15g", value);
    else
        snprintf(text, sizeof(text), "%" PRId64, get_integer(f, base));
    return error_field(err, f->name, text, "%s",
        field_allowed(f, FIELD_ALL_WORDS, "\"", allowed, sizeof(allowed)));
}

/* --- to JSON --- */

json_t *field_number_to_json(double value) {
    return value == floor(value) && fabs(value) < 1e15 ? json_integer((json_int_t)value)
                                                       : json_real(value);
}

json_t *field_value_to_json(const struct field *f, double value) {
    if (f->kind == FIELD_FLAG)
        return json_boolean(value != 0);
    if (f->kind == FIELD_WORD && field_allows(f, value))
        return json_string(f->words[(int)value]);
    return field_number_to_json(value);
}

json_t *field_to_json(const struct field *f, const void *base) {
    if (f->kind == FIELD_INTEGER)
        return json_integer(get_integer(f, base));
    if (f->kind == FIELD_TEXT) {
        const char *text = *(char *const *)((const char *)base + f->offset);
        return text ? json_string(text) : json_null();
    }
    return f->kind == FIELD_OTHER ? NULL : field_value_to_json(f, field_get(f, base));
}

static json_t *bound_json(const struct field *f, long double bound) {
    return f->kind == FIELD_INTEGER ? json_integer((json_int_t)bound)
                                    : field_number_to_json((double)bound);
}

static bool add_range(const struct field *f, json_t *schema) {
    return json_object_set_new(schema, begins_above(f) ? "exclusiveMinimum" : "minimum",
               bound_json(f, f->min)) == 0 &&
           json_object_set_new(
               schema, f->below_max ? "exclusiveMaximum" : "maximum", bound_json(f, f->max)) == 0 &&
           (!f->multiple ||
               json_object_set_new(schema, "multipleOf", json_integer(f->multiple)) == 0);
}

static bool add_words(const struct field *f, json_t *schema) {
    json_t *list = json_array();
    for (int i = 0; list && f->words[i]; i++)
        if (json_array_append_new(list, json_string(f->words[i])) != 0) {
            json_decref(list);
            return false;
        }
    return json_object_set_new(schema, "enum", list) == 0;
}

json_t *field_schema(const struct field *f) {
    static const char *const types[] = { [FIELD_FLAG] = "boolean",
        [FIELD_INTEGER] = "integer",
        [FIELD_NUMBER] = "number",
        [FIELD_WORD] = "string",
        [FIELD_TEXT] = "string" };
    json_t *schema = json_object();
    bool ok = schema != NULL;
    if (f->kind != FIELD_OTHER)
        ok = ok && json_object_set_new(schema, "type", json_string(types[f->kind])) == 0;
    if (f->kind == FIELD_INTEGER || f->kind == FIELD_NUMBER)
        ok = ok && add_range(f, schema);
    if (f->kind == FIELD_WORD)
        ok = ok && add_words(f, schema);
    if (f->kind < FIELD_TEXT && !f->zero_is_unset)
        ok = ok && json_object_set_new(schema, "default", field_value_to_json(f, f->value)) == 0;
    if (f->help)
        ok = ok && json_object_set_new(schema, "description", json_string(f->help)) == 0;
    if (ok)
        return schema;
    json_decref(schema);
    return NULL;
}

json_t *field_schema_or_null(json_t *schema) {
    static const char *const outside[] = { "default", "description" };
    json_t *choices = json_object_get(schema, "anyOf");
    if (choices) {
        json_array_append_new(choices, json_pack("{s:s}", "type", "null"));
        return schema;
    }
    json_t *json = json_pack("{s:[O, {s:s}]}", "anyOf", schema, "type", "null");
    for (size_t i = 0; json && i < sizeof(outside) / sizeof(outside[0]); i++) {
        json_t *value = json_object_get(schema, outside[i]);
        if (value)
            json_object_set(json, outside[i], value);
        json_object_del(schema, outside[i]);
    }
    json_decref(schema);
    return json;
}

void field_schema_hide_default(json_t *schema) {
    json_t *value = json_object_get(schema, "default");
    if (value)
        json_object_set(schema, "x-default", value);
    json_object_del(schema, "default");
}
