#include "command/access.h"

#include "base/file.h"

#include <stdlib.h>

#define CREDENTIAL "api-keys"

static bool read_credential(struct api_keys **out, struct error *err) {
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    char *path = folder ? file_join(folder, CREDENTIAL) : NULL;
    bool ok = path || !folder || error_set(err, ERROR_NO_MEMORY, "not enough memory for a path");
    if (path && file_exists(path))
        ok = api_keys_read(path, out, err);
    free(path);
    if (ok && *out && api_keys_count(*out) == 0) {
        api_keys_destroy(*out);
        *out = NULL;
    }
    return ok;
}

bool access_read_keys(const char *path, struct api_keys **out, struct error *err) {
    *out = NULL;
    if (!path)
        return read_credential(out, err);
    if (!api_keys_read(path, out, err))
        return false;
    if (api_keys_count(*out) > 0)
        return true;
    api_keys_destroy(*out);
    *out = NULL;
    return error_set(
        err, ERROR_INVALID, "%s: there is no key in it; latentd key NAME adds one", path);
}
