/* Named values with a type, a range or words, a default and a help text: the fields of a request
 * and of a training job, a scheduler's options, a command's options. Each of these sets is a table
 * that describes the members of one struct. Its rows are of struct field, or of a struct that
 * begins with FIELD_COLUMNS and adds columns of its own. The table drives parsing, range checks,
 * refusals, answers, JSON schemas and the lists in help and docs. So a new field needs one line in
 * the table, and the code that uses the member.
 *
 * `base` below is the struct whose members the table describes. */
#ifndef BASE_FIELDS_H
#define BASE_FIELDS_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum field_kind {
    FIELD_FLAG,    /* bool */
    FIELD_INTEGER, /* int, int64_t or uint64_t */
    FIELD_NUMBER,  /* double */
    FIELD_WORD,    /* an enum or int: an index of `words` */
    FIELD_TEXT,    /* char *, owned; NULL: not given */
    FIELD_OTHER,   /* the table's owner reads, checks and writes it */
};

#define FIELD_MEMBERS                                                                              \
    const char *name; /* the key in JSON */                                                        \
    enum field_kind kind;                                                                          \
    size_t offset, size;      /* of the member, in bytes */                                        \
    const char *const *words; /* NULL-terminated */                                                \
    /* The range of an integer or a number. long double holds every 64-bit integer exactly. */     \
    long double min, max;                                                                          \
    bool above_min, below_max; /* min or max itself is not allowed */                              \
    const char *unit;          /* of a number: "seconds"; or NULL */                               \
    int multiple;              /* an integer must be a multiple of it; 0: any */                   \
    bool zero_is_unset;        /* 0 in the member means "not given"; a given 0 is refused */       \
    double value;              /* the default: a number, 0 or 1, or an index of `words` */         \
    const char *note;          /* an error adds it to what is allowed; or NULL */                  \
    const char *help;          /* one phrase; for lists, schemas and docs */

struct field {
    FIELD_MEMBERS
};

/* The first member of a row with further columns: `.name` and `.field.name` are the same. */
#define FIELD_COLUMNS                                                                              \
    union {                                                                                        \
        struct field field;                                                                        \
        struct {                                                                                   \
            FIELD_MEMBERS                                                                          \
        };                                                                                         \
    }

/* Initialisers for members of a row: FIELD_OF for `offset` and `size`, FIELD_WORDS for `words`. */
#define FIELD_OF(type, member) .offset = offsetof(type, member), .size = sizeof(((type *)0)->member)
#define FIELD_WORDS(...)                                                                           \
    .words = (const char *const[]) {                                                               \
        __VA_ARGS__, NULL                                                                          \
    }

/* A flag, integer, number or word as a double: 0 or 1, the value, or the index. Integers above 2^53
 * are rounded. */
double field_get(const struct field *f, const void *base);
void field_set(const struct field *f, void *base, double value);
/* Sets the default; a text becomes NULL. */
void field_reset(const struct field *f, void *base);

/* Returns whether the value is allowed: in range, and a whole number, a multiple or the index of a
 * word where the field demands it. */
bool field_allows(const struct field *f, double value);

/* Writes what is allowed, for an error: "an integer from 1 to 16", "\"cpu\" or \"cuda\"". Bit i of
 * `words` lists word i; `quote` is put before and after each word. Returns `out`. */
#define FIELD_ALL_WORDS (~0u)
const char *field_allowed(
    const struct field *f, unsigned words, const char *quote, char *out, size_t size);

/* Writes the default as JSON has it; "" for a text and for FIELD_OTHER. Returns `out`. */
const char *field_default(const struct field *f, char *out, size_t size);

/* Parse one value of a flag, integer, number or word. Return false, with *out untouched, for
 * anything that is not allowed. */
bool field_value_from_json(const struct field *f, const json_t *json, double *out);
bool field_value_from_text(const struct field *f, const char *text, double *out);
/* Return a new reference; NULL when memory is short. Whole numbers are written as integers: 7, not
 * 7.0. */
json_t *field_value_to_json(const struct field *f, double value);
json_t *field_number_to_json(double value);

/* Store a value in its member. ERROR_INVALID has the name, the value as given and what is allowed.
 * field_from_text parses a command-line argument; its error calls the field `param`, and a text is
 * copied. The previous text of the member is not freed. */
bool field_from_json(const struct field *f, const json_t *json, void *base, struct error *err)
    __attribute__((warn_unused_result));
bool field_from_text(const struct field *f, const char *param, const char *text, void *base,
    struct error *err) __attribute__((warn_unused_result));

/* Checks the member's range, for a struct that was not filled from JSON or text. A member that is 0
 * passes if the field has zero_is_unset. */
bool field_check(const struct field *f, const void *base, struct error *err)
    __attribute__((warn_unused_result));

/* Refuses a JSON value for this field: NAME, the value, what is allowed. Always returns false. */
bool field_refuse(const struct field *f, const json_t *value, struct error *err);

/* The member as JSON: null for a text that is not given. A new reference; NULL when memory is
 * short, and for FIELD_OTHER. */
json_t *field_to_json(const struct field *f, const void *base);

/* The JSON schema (2020-12) of the field: type, range or words, default and description. For
 * FIELD_OTHER the description only. A new reference; NULL when memory is short. */
json_t *field_schema(const struct field *f);

/* The schema of a field that may also be null, which stands for the default. Takes over `schema`. A
 * new reference; NULL when memory is short. */
json_t *field_schema_or_null(json_t *schema);

/* Renames "default" in a schema to "x-default", so that clients that send every default do not send
 * this one. For a field that, for example, may be given only beside others. */
void field_schema_hide_default(json_t *schema);

#endif
