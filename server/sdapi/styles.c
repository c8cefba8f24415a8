#include "server/sdapi/styles.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the file --- */

/* A CSV file while it is read. */
struct csv {
    const char *at, *end;
    int line;
    char *cells[STYLE_COLUMNS_MAX]; /* owned: those of the latest row */
    int count;
};

static bool is_line_end(const struct csv *csv) {
    return csv->at == csv->end || *csv->at == '\n' || *csv->at == '\r';
}

/* Takes one character; counts lines. */
static char take(struct csv *csv) {
    const char c = *csv->at++;
    csv->line += c == '\n' || (c == '\r' && (csv->at == csv->end || *csv->at != '\n'));
    return c;
}

/* Reads a cell: quoted, or up to a comma or the line's end. Python's csv also takes text behind a
 * closing quote. */
static bool read_cell(struct csv *csv, char **out, struct error *err) {
    char *text = malloc((size_t)(csv->end - csv->at) + 1);
    size_t used = 0;
    *out = text;
    if (!text)
        return error_set(err, ERROR_NO_MEMORY, "no memory for styles");
    while (csv->at < csv->end && *csv->at == ' ')
        csv->at++;
    const int begun = csv->line;
    bool quoted = csv->at < csv->end && *csv->at == '"';
    csv->at += quoted;
    while (csv->at < csv->end && (quoted || (*csv->at != ',' && !is_line_end(csv)))) {
        const char c = take(csv);
        if (!quoted || c != '"')
            text[used++] = c;
        else if (csv->at < csv->end && *csv->at == '"')
            text[used++] = take(csv);
        else
            quoted = false;
    }
    text[used] = 0;
    if (quoted)
        return error_set(err, ERROR_INVALID, "line %d: a quote has no end", begun);
    if (memchr(text, 0, used) || utf8_valid_bytes(text, used) != used)
        return error_set(err, ERROR_INVALID, "line %d: this is no text in UTF-8", begun);
    char *fitting = realloc(text, used + 1);
    *out = fitting ? fitting : text;
    return true;
}

static void drop_row(struct csv *csv) {
    for (int i = 0; i < csv->count; i++)
        free(csv->cells[i]);
    csv->count = 0;
}

/* Reads the next row that is not empty, in place of the latest. Sets count to 0 at the end. */
static bool read_row(struct csv *csv, struct error *err) {
    drop_row(csv);
    while (csv->at < csv->end && is_line_end(csv))
        take(csv);
    while (csv->at < csv->end) {
        if (csv->count == STYLE_COLUMNS_MAX)
            return error_set(
                err, ERROR_INVALID, "line %d: more than %d columns", csv->line, STYLE_COLUMNS_MAX);
        csv->cells[csv->count] = NULL;
        if (!read_cell(csv, &csv->cells[csv->count++], err))
            return false;
        if (is_line_end(csv))
            return true;
        csv->at++; /* the comma */
    }
    return true;
}

static int find_column(const struct csv *csv, const char *name) {
    for (int i = 0; i < csv->count; i++)
        if (strcmp(csv->cells[i], name) == 0)
            return i;
    return -1;
}

/* Takes a cell out of the row. A missing one is "". */
static char *take_cell(struct csv *csv, int column) {
    if (column < 0 || column >= csv->count)
        return strdup("");
    char *text = csv->cells[column];
    csv->cells[column] = NULL;
    return text;
}

static void finish_style(struct sdapi_style *style) {
    free(style->name);
    free(style->prompt);
    free(style->negative_prompt);
}

/* Adds a style, or replaces the one of its name. Takes over the texts, also on failure. */
static bool add(struct sdapi_styles *styles, struct sdapi_style style, struct error *err) {
    const bool whole = style.name && style.prompt && style.negative_prompt;
    for (size_t i = 0; whole && i < styles->count; i++)
        if (strcmp(styles->items[i].name, style.name) == 0) {
            finish_style(&styles->items[i]);
            styles->items[i] = style;
            return true;
        }
    if (!whole || !LIST_ROOM(styles->items, styles->count, "styles", err)) {
        finish_style(&style);
        return error_set(err, ERROR_NO_MEMORY, "no memory for styles");
    }
    styles->items[styles->count++] = style;
    return true;
}

static bool read_all(struct csv *csv, struct sdapi_styles *styles, struct error *err) {
    if (!read_row(csv, err))
        return false;
    const int name = find_column(csv, "name"), negative = find_column(csv, "negative_prompt");
    int prompt = find_column(csv, "prompt");
    if (prompt < 0)
        prompt = find_column(csv, "text");
    if (name < 0 || prompt < 0)
        return error_set(err, ERROR_INVALID,
            "the first row has no columns \"name\" and \"prompt\", as AUTOMATIC1111's has");
    for (;;) {
        if (!read_row(csv, err))
            return false;
        if (csv->count == 0)
            return true;
        if (name < csv->count && csv->cells[name][0] == '#')
            continue; /* a comment, to AUTOMATIC1111 and Forge */
        if (styles->count == STYLES_MAX)
            return error_set(
                err, ERROR_INVALID, "line %d: more than %d styles", csv->line, STYLES_MAX);
        const struct sdapi_style style = { take_cell(csv, name), take_cell(csv, prompt),
            take_cell(csv, negative) };
        if (!add(styles, style, err))
            return false;
    }
}

bool sdapi_styles_parse(
    const char *text, size_t size, struct sdapi_styles **out, struct error *err) {
    static const char mark[] = "\xef\xbb\xbf"; /* AUTOMATIC1111 writes one */
    const bool marked = size >= 3 && memcmp(text, mark, 3) == 0;
    struct csv csv = { .at = text + (marked ? 3 : 0), .end = text + size, .line = 1 };
    struct sdapi_styles *styles = calloc(1, sizeof(*styles));
    if (!styles)
        return error_set(err, ERROR_NO_MEMORY, "no memory for styles");
    const bool ok = read_all(&csv, styles, err);
    drop_row(&csv);
    if (ok)
        *out = styles;
    else
        sdapi_styles_destroy(styles);
    return ok;
}

bool sdapi_styles_load(const char *path, struct sdapi_styles **out, struct error *err) {
    char *text;
    size_t size;
    if (!file_read(path, STYLES_FILE_MAX_BYTES, &text, &size, err))
        return false;
    const bool ok = sdapi_styles_parse(text, size, out, err) || error_prefix(err, "%s", path);
    free(text);
    return ok;
}

void sdapi_styles_destroy(struct sdapi_styles *styles) {
    for (size_t i = 0; styles && i < styles->count; i++)
        finish_style(&styles->items[i]);
    if (styles)
        free(styles->items);
    free(styles);
}

/* --- use --- */

const struct sdapi_style *sdapi_styles_find(const struct sdapi_styles *styles, const char *name) {
    for (size_t i = 0; styles && i < styles->count; i++)
        if (strcmp(styles->items[i].name, name) == 0)
            return &styles->items[i];
    return NULL;
}

/* Returns the text without white space at its ends. */
static const char *strip(const char *text, size_t *length) {
    static const char white[] = " \t\n\v\f\r";
    text += strspn(text, white);
    *length = strlen(text);
    while (*length > 0 && strchr(white, text[*length - 1]))
        --*length;
    return text;
}

/* Writes the style with the prompt in each of its places. */
static void write_inside(FILE *out, const char *style, const char *prompt) {
    static const char place[] = "{prompt}";
    for (const char *found; (found = strstr(style, place)); style = found + sizeof(place) - 1)
        fprintf(out, "%.*s%s", (int)(found - style), style, prompt);
    fputs(style, out);
}

static void write_behind(FILE *out, const char *style, const char *prompt) {
    size_t before, after;
    prompt = strip(prompt, &before);
    style = strip(style, &after);
    fprintf(out, "%.*s%s%.*s", (int)before, prompt, before && after ? ", " : "", (int)after, style);
}

/* Returns how long the prompt becomes. */
static size_t merged_bytes(const char *style, const char *prompt) {
    size_t places = 0, before, after;
    for (const char *at = style; (at = strstr(at, "{prompt}")); at++)
        places++;
    if (places > 0)
        return strlen(style) - places * strlen("{prompt}") + places * strlen(prompt);
    strip(prompt, &before);
    strip(style, &after);
    return before + (before && after ? strlen(", ") : 0) + after;
}

bool sdapi_style_merge(const char *style, char **prompt, struct error *err) {
    char *text = NULL;
    size_t size;
    if (merged_bytes(style, *prompt) > PROMPT_MAX_BYTES)
        return error_set(err, ERROR_INVALID, "the prompt grows too long");
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a style");
    if (strstr(style, "{prompt}"))
        write_inside(out, style, *prompt);
    else
        write_behind(out, style, *prompt);
    if (fclose(out) != 0) {
        free(text);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a style");
    }
    free(*prompt);
    *prompt = text;
    return true;
}

json_t *sdapi_styles_json(const struct sdapi_styles *styles) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && styles && i < styles->count; i++) {
        const struct sdapi_style *s = &styles->items[i];
        ok = json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "name", s->name, "prompt",
                                             s->prompt, "negative_prompt", s->negative_prompt)) ==
             0;
    }
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}
