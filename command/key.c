/* latentd key: makes an API key. The key itself is printed once and kept nowhere. */
#include "base/random.h"
#include "command/command.h"

#include "base/file.h"
#include "base/text/secrets.h"
#include "command/options/option_forms.h"
#include "command/options/options.h"
#include "server/keys/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET_BYTES 32

struct settings {
    const char *file, *may;
};

static const struct option_spec table[] = {
    { "api-keys", 0, "FILE", "file to add the key's digest to; created if missing", true,
        OPTION_TO_TEXT(struct settings, file) },
    { "may", 0, "RIGHTS",
        "extra rights of the key: priority (request priorities above 0),\n"
        "all-jobs (see and control the jobs of every key), or both with a\n"
        "comma between them [none]",
        .to = OPTION_TO_TEXT(struct settings, may) },
    { 0 },
};

static const struct command_help help = {
    "latentd key NAME --api-keys FILE",
    "Makes an API key of 256 random bits and prints it once. Only its SHA-256 is stored, in a\n"
    "line `NAME SHA256 RIGHTS` of the file. The daemon reads the file when it starts. Logs show\n"
    "NAME for the key's holder. To revoke a key, delete its line and restart the daemon.",
    "  latentd key alice --api-keys /etc/latentd/api-keys\n"
    "  latentd key operator --may priority,all-jobs --api-keys /etc/latentd/api-keys\n"
    "  curl -s localhost:8188/info -H 'Authorization: Bearer KEY'\n"
    "  curl -s localhost:8188/info -u anybody:KEY",
};

/* Makes a key: KEY_PREFIX and 64 hexadecimal digits. */
static bool make_secret(char out[sizeof(KEY_PREFIX) + 2 * SECRET_BYTES], struct error *err) {
    memcpy(out, KEY_PREFIX, sizeof(KEY_PREFIX));
    return random_text(out + strlen(KEY_PREFIX), SECRET_BYTES, err);
}

/* Checks that an existing file is valid and has no key of this name. *needs_newline: its last line
 * has no line end. */
static bool check_file(const char *path, const char *name, bool *needs_newline, struct error *err) {
    struct error why;
    char *text;
    size_t size;
    struct api_keys *keys = NULL;
    *needs_newline = false;
    if (!file_read(path, KEYS_FILE_MAX_BYTES, &text, &size, &why)) {
        if (why.code == ERROR_NOT_FOUND)
            return true;
        *err = why;
        return false;
    }
    *needs_newline = size > 0 && text[size - 1] != '\n';
    bool ok = api_keys_parse(text, size, &keys, err) || error_prefix(err, "%s", path);
    if (ok && api_keys_has_name(keys, name))
        ok = error_set(err, ERROR_CONFLICT, "%s: there is a key %s already", path, name);
    else if (ok && api_keys_count(keys) == KEYS_MAX)
        ok = error_set(err, ERROR_TOO_LARGE, "%s: there are %d keys already", path, KEYS_MAX);
    api_keys_destroy(keys);
    free(text);
    return ok;
}

/* Appends the key with a single write, so that two keys that are added at the same time get a line
 * each. */
static bool append(const struct settings *settings, const char *name, const char *secret,
    bool newline, struct error *err) {
    const char *path = settings->file;
    char digest[DIGEST_TEXT_BYTES], line[KEY_NAME_MAX_BYTES + DIGEST_TEXT_BYTES + 40];
    const struct digest of = sha256_of(secret, strlen(secret));
    digest_to_text(&of, digest);
    const int length = snprintf(line, sizeof(line), "%s%s %s%s%s\n", newline ? "\n" : "", name,
        digest, settings->may ? " " : "", settings->may ? settings->may : "");
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, ERROR_IO, "%s: %s", path, strerror(errno));
    const bool ok = write(fd, line, (size_t)length) == length && fsync(fd) == 0;
    if (!ok)
        error_set(err, ERROR_IO, "%s: %s", path, strerror(errno));
    close(fd);
    if (ok)
        file_sync_folder_of(path); /* the file may be new */
    return ok;
}

int key_main(int argc, char **argv) {
    struct options given;
    struct error err = { 0 };
    struct settings settings = { 0 };
    char secret[sizeof(KEY_PREFIX) + 2 * SECRET_BYTES];
    bool newline;
    if (!options_parse(table, true, argc, argv, &given, &err))
        return options_usage_error("key", &err);
    if (given.help) {
        option_forms_print(stdout, given.help, &help, table);
        return 0;
    }
    const char *name = given.argument;
    if (!name || !api_key_name_is_valid(name, strlen(name))) {
        error_field(&err, "NAME", name ? name : "(missing)",
            "1 to %d letters, digits, '.', '_' and '-'", KEY_NAME_MAX_BYTES);
        return options_usage_error("key", &err);
    }
    unsigned rights;
    if (!options_fill(&given, &settings, &err))
        return options_usage_error("key", &err);
    if (settings.may && !key_rights_parse(settings.may, strlen(settings.may), &rights)) {
        options_refuse("may", settings.may, KEY_RIGHTS_ALLOWED, &err);
        return options_usage_error("key", &err);
    }
    if (!check_file(settings.file, name, &newline, &err) || !make_secret(secret, &err) ||
        !append(&settings, name, secret, newline, &err)) {
        fprintf(stderr, "latentd key: %s\n", err.message);
        return 1;
    }
    printf("%s\n", secret);
    explicit_bzero(secret, sizeof(secret));
    return 0;
}
