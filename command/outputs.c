#include "command/outputs.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Makes "out-3.png" from "out.png", malloc'd. */
static char *numbered(const char *path, int index) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    int stem = dot && (!slash || dot > slash + 1) && dot > path ? (int)(dot - path)
                                                                : (int)strlen(path);
    char *out = NULL;
    return asprintf(&out, "%.*s-%d%s", stem, path, index, path + stem) < 0 ? NULL : out;
}

/* Returns the path with all links resolved, malloc'd. The last part may name a file that does not
 * exist yet; it then stays as it is. */
static char *resolved(const char *path) {
    char *whole = realpath(path, NULL);
    if (whole)
        return whole;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    char *real = folder ? realpath(folder, NULL) : NULL;
    char *joined = real ? file_join(real, slash ? slash + 1 : path) : strdup(path);
    free(real);
    free(folder);
    return joined;
}

/* Returns whether writing to one path would overwrite what was written to the other. */
static bool same_place(const char *a, const char *b) {
    struct stat x, y;
    if (file_is_standard_output(a) || file_is_standard_output(b))
        return file_is_standard_output(a) && file_is_standard_output(b);
    if (stat(a, &x) == 0 && stat(b, &y) == 0)
        return x.st_dev == y.st_dev && x.st_ino == y.st_ino && !S_ISCHR(x.st_mode);
    char *real_a = resolved(a), *real_b = resolved(b);
    bool same = real_a && real_b && strcmp(real_a, real_b) == 0;
    free(real_a);
    free(real_b);
    return same;
}

static bool name_pictures(struct outputs *out, const char *path, int count, struct error *err) {
    if (count > 1 && file_is_standard_output(path))
        return error_field(err, "-o", path, "a file's name for %d pictures", count);
    out->pictures = calloc((size_t)count, sizeof(*out->pictures));
    if (!out->pictures)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the pictures' names");
    out->picture_count = count;
    for (int i = 0; i < count; i++) {
        out->pictures[i] = count == 1 ? strdup(path) : numbered(path, i);
        if (!out->pictures[i])
            return error_set(err, ERROR_NO_MEMORY, "no memory for the pictures' names");
        if (out->latents && same_place(out->pictures[i], out->latents))
            return error_field(err, "--save-latents", out->latents,
                "another place than the picture's, %s", out->pictures[i]);
        if (!file_check_writable(out->pictures[i], err))
            return false;
    }
    return true;
}

bool outputs_init(
    struct outputs *out, const char *pictures, int count, const char *latents, struct error *err) {
    *out = (struct outputs){ .latents = latents, .report = stdout };
    const bool streams = (pictures && file_is_standard_output(pictures)) ||
                         (latents && file_is_standard_output(latents));
    if (streams)
        out->report = stderr;
    if (streams && isatty(STDOUT_FILENO))
        return error_set(err, ERROR_INVALID,
            "standard output is a terminal, which shows no files: "
            "redirect it");
    if (!pictures && !latents)
        return error_set(err, ERROR_INVALID, "nothing to write: give -o FILE.png");
    return (!pictures || name_pictures(out, pictures, count, err)) &&
           (!latents || file_check_writable(latents, err));
}

void outputs_finish(struct outputs *out) {
    for (int i = 0; i < out->picture_count; i++)
        free(out->pictures[i]);
    free(out->pictures);
}
