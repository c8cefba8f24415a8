#include "command/options/request_flags.h"

#include "command/options/field_row.h"

static struct option_spec make_row(
    const struct generate_field *f, size_t at, struct field_row_text *text) {
    char standard[64], ending[80] = "";
    field_default(&f->field, standard, sizeof(standard));
    if (f->standard || standard[0])
        snprintf(ending, sizeof(ending), " [%s]",
            f->standard             ? f->standard
            : f->kind == FIELD_WORD ? f->words[(int)f->value]
                                    : standard);
    struct option_spec row = field_row(&f->field, f->flag, ending, text);
    row.to =
        (struct option_target){ .type = OPTION_FIELD, .field = f->field, .given = at + f->given };
    row.to.field.offset += at;
    return row;
}

const struct option_spec *request_flags(size_t at) {
    static struct option_spec rows[REQUEST_FLAGS_MAX + 1];
    static struct field_row_text texts[REQUEST_FLAGS_MAX];
    if (rows[0].name)
        return rows;
    for (int id = 0, used = 0; id < GENERATE_FIELD_COUNT; id++)
        if (generate_fields[id].kind != FIELD_OTHER && !generate_fields[id].no_flag) {
            rows[used] = make_row(&generate_fields[id], at, &texts[used]);
            used++;
        }
    return rows;
}
