#include "server/sdapi/infotext.h"

#include "base/text/json.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
/* A last line with fewer parameters is part of the prompt. */
#define PARAMETERS_MIN 3
#define LINE_MAX_BYTES 65536 /* longer lines are not parsed for parameters */

struct piece {
    const char *text;
    size_t length;
};

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct piece strip(struct piece p) {
    while (p.length > 0 && is_space(p.text[0])) {
        p.text++;
        p.length--;
    }
    while (p.length > 0 && is_space(p.text[p.length - 1]))
        p.length--;
    return p;
}

/* Returns whether a name may begin with the character. All non-ASCII letters may. */
static bool begins_name(char c) {
    return isalnum((unsigned char)c) || c == '_' || (c & 0x80);
}

static bool continues_name(char c) {
    return begins_name(c) || c == ' ' || c == '-' || c == '/';
}

/* Returns the length of the quoted text at the beginning of `p`, quotes included; 0 if there is
 * none or it is empty. */
static size_t quoted_length(struct piece p) {
    if (p.length == 0 || p.text[0] != '"')
        return 0;
    for (size_t i = 1; i < p.length; i++) {
        if (p.text[i] == '\\')
            i++;
        else if (p.text[i] == '"')
            return i > 1 ? i + 1 : 0;
    }
    return 0;
}

/* Parses one parameter at `at`: spaces, a name of at least two characters, a colon, spaces, and a
 * value. The value is a quoted text, or everything up to a comma or the end. Returns the position
 * after the parameter and its comma. Returns 0 if there is no parameter here; *next is then the
 * position of the next attempt. */
static size_t parameter_at(
    struct piece line, size_t at, struct piece *name, struct piece *value, size_t *next) {
    while (at < line.length && is_space(line.text[at]))
        at++;
    const size_t begin = at;
    int characters = 0;
    *next = begin + 1;
    if (at >= line.length || !begins_name(line.text[at]))
        return 0;
    for (; at < line.length && continues_name(line.text[at]); at++)
        characters += (line.text[at] & 0xc0) != 0x80;
    *next = at; /* an attempt that begins later in this name would end here and fail as well */
    if (characters < 2 || at >= line.length || line.text[at] != ':')
        return 0;
    *name = (struct piece){ line.text + begin, at - begin };
    for (at++; at < line.length && is_space(line.text[at]); at++)
        ;
    const struct piece rest = { line.text + at, line.length - at };
    size_t length = quoted_length(rest);
    if (length == 0 || (length < rest.length && rest.text[length] != ',')) {
        const char *comma = memchr(rest.text, ',', rest.length);
        length = comma ? (size_t)(comma - rest.text) : rest.length;
    }
    *value = (struct piece){ rest.text, length };
    return at + length + (length < rest.length);
}

/* Calls `each` for every parameter of the line. Returns the number of parameters. */
static int walk(struct piece line,
    bool (*each)(json_t *object, struct piece name, struct piece value), json_t *object, bool *ok) {
    int count = 0;
    for (size_t at = 0; at < line.length;) {
        struct piece name, value;
        size_t next;
        const size_t end = parameter_at(line, at, &name, &value, &next);
        if (end > 0) {
            count++;
            if (each && *ok)
                *ok = each(object, name, value);
        }
        at = end > 0 ? end : next;
    }
    return count;
}

/* --- building the object --- */

static bool set_text(json_t *object, const char *key, struct piece value) {
    char *copy = strndup(value.text, value.length);
    json_t *string = copy ? json_lenient_string(copy) : NULL;
    free(copy);
    return json_object_set_new(object, key, string) == 0;
}

/* Splits "512x768" into the digits before and after the x. */
static bool split_size(struct piece value, struct piece *first, struct piece *second) {
    size_t x = 0, end;
    while (x < value.length && isdigit((unsigned char)value.text[x]))
        x++;
    if (x == 0 || x + 1 >= value.length || value.text[x] != 'x')
        return false;
    for (end = x + 1; end < value.length && isdigit((unsigned char)value.text[end]); end++)
        ;
    *first = (struct piece){ value.text, x };
    *second = (struct piece){ value.text + x + 1, value.length - x - 1 };
    return end == value.length;
}

/* Returns a quoted value without its quotes; NULL if it is not quoted or not valid JSON. */
static json_t *unquote(struct piece value) {
    json_t *string = NULL;
    if (value.length >= 2 && value.text[0] == '"' && value.text[value.length - 1] == '"')
        string = json_loadb(value.text, value.length, JSON_DECODE_ANY, NULL);
    return string;
}

/* Sets the member NAME-1 or NAME-2. */
static bool set_side(json_t *object, const char *name, int side, struct piece value) {
    char *key;
    if (asprintf(&key, "%s-%d", name, side) < 0)
        return false;
    const bool ok = set_text(object, key, value);
    free(key);
    return ok;
}

/* Sets a parameter. A parameter without a value is left out, as AUTOMATIC1111 does. */
static bool set_parameter(json_t *object, struct piece name, struct piece value) {
    struct piece first, second;
    if (value.length == 0)
        return true;
    char *copy = strndup(name.text, name.length);
    json_t *clean = copy ? json_lenient_string(copy) : NULL;
    const char *key = json_string_value(clean);
    bool ok = key != NULL;
    if (ok && split_size(value, &first, &second)) {
        ok = set_side(object, key, 1, first) && set_side(object, key, 2, second);
    } else if (ok) {
        json_t *string = unquote(value);
        ok = string ? json_object_set_new(object, key, string) == 0 : set_text(object, key, value);
    }
    json_decref(clean);
    free(copy);
    return ok;
}

/* Splits the lines of `text`: the first ones are the prompt; the negative prompt begins at the line
 * with "Negative prompt:". */
static bool set_prompts(json_t *object, struct piece text) {
    static const char mark[] = "Negative prompt:";
    char *prompts[2] = { calloc(text.length + 2, 1), calloc(text.length + 2, 1) };
    size_t lengths[2] = { 0, 0 };
    int which = 0;
    bool ok = prompts[0] && prompts[1];
    for (size_t at = 0; ok && at <= text.length;) {
        const char *line_break = memchr(text.text + at, '\n', text.length - at);
        const size_t end = line_break ? (size_t)(line_break - text.text) : text.length;
        struct piece line = strip((struct piece){ text.text + at, end - at });
        if (line.length >= sizeof(mark) - 1 && memcmp(line.text, mark, sizeof(mark) - 1) == 0) {
            which = 1;
            line = strip(
                (struct piece){ line.text + sizeof(mark) - 1, line.length - (sizeof(mark) - 1) });
        }
        if (lengths[which] > 0)
            prompts[which][lengths[which]++] = '\n';
        memcpy(prompts[which] + lengths[which], line.text, line.length);
        lengths[which] += line.length;
        at = end + 1;
    }
    ok = ok && set_text(object, "Prompt", (struct piece){ prompts[0], lengths[0] }) &&
         set_text(object, "Negative prompt", (struct piece){ prompts[1], lengths[1] });
    free(prompts[0]);
    free(prompts[1]);
    return ok;
}

/* Sets AUTOMATIC1111's defaults of missing parameters. */
static bool set_missing(json_t *object) {
    static const struct {
        const char *unless, *name, *value; /* as JSON */
    } missing[] = {
        { "Clip skip", "Clip skip", "\"1\"" },
        { "Hires resize-1", "Hires resize-2", "0" },
        { "Hires resize-1", "Hires resize-1", "0" },
        { "Hires sampler", "Hires sampler", "\"Use same sampler\"" },
        { "Hires checkpoint", "Hires checkpoint", "\"Use same checkpoint\"" },
        { "Hires prompt", "Hires prompt", "\"\"" },
        { "Hires negative prompt", "Hires negative prompt", "\"\"" },
        { "Mask mode", "Mask mode", "\"Inpaint masked\"" },
        { "Masked content", "Masked content", "\"original\"" },
        { "Inpaint area", "Inpaint area", "\"Whole picture\"" },
        { "Masked area padding", "Masked area padding", "32" },
        { "RNG", "RNG", "\"GPU\"" },
        { "Schedule type", "Schedule type", "\"Automatic\"" },
        { "Schedule max sigma", "Schedule max sigma", "0" },
        { "Schedule min sigma", "Schedule min sigma", "0" },
        { "Schedule rho", "Schedule rho", "0" },
        { "VAE Encoder", "VAE Encoder", "\"Full\"" },
        { "VAE Decoder", "VAE Decoder", "\"Full\"" },
        { "FP8 weight", "FP8 weight", "\"Disable\"" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(missing); i++)
        if (!json_object_get(object, missing[i].unless) &&
            json_object_set_new(
                object, missing[i].name, json_loads(missing[i].value, JSON_DECODE_ANY, NULL)) != 0)
            return false;
    return true;
}

json_t *sdapi_infotext_parse(const char *text) {
    struct piece all = strip((struct piece){ text, strlen(text) }), last = all;
    const char *line_break = memrchr(all.text, '\n', all.length);
    if (line_break)
        last = (struct piece){ line_break + 1, all.length - (size_t)(line_break + 1 - all.text) };
    const bool has_parameters = last.length <= LINE_MAX_BYTES &&
                                walk(last, NULL, NULL, NULL) >= PARAMETERS_MIN;
    if (has_parameters)
        all.length = line_break ? (size_t)(line_break - all.text) : 0;
    json_t *object = json_object();
    bool ok = object && set_prompts(object, all);
    if (ok && has_parameters)
        walk(last, set_parameter, object, &ok);
    ok = ok && set_missing(object);
    if (ok)
        return object;
    json_decref(object);
    return NULL;
}
