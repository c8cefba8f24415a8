/* The filter of a list of training jobs by metadata, in the form in which the openai package sends
 * it: metadata[KEY]=VALUE, escaped or not. */
#include "server/openai/metadata_filter.h"

#include "tests/check.h"

#include <stdlib.h>

static void filters_are_read(void) {
    static const struct {
        const char *target, *rest, *wanted;
        bool none;
    } rows[] = {
        { "/jobs", "/jobs", NULL, false },
        { "/jobs?", "/jobs?", NULL, false },
        { "/jobs?limit=2&after=a", "/jobs?limit=2&after=a", NULL, false },
        { "/jobs?metadata[owner]=me", "/jobs", "{\"owner\": \"me\"}", false },
        { "/jobs?limit=2&metadata%5Bowner%5D=a%20b+c&after=x&metadata[k%5B]=",
            "/jobs?limit=2&after=x", "{\"owner\": \"a b c\", \"k[\": \"\"}", false },
        { "/jobs?metadata=null&limit=3", "/jobs?limit=3", NULL, true },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct metadata_filter filter;
        struct error err = { 0 };
        char *rest;
        json_t *wanted = rows[i].wanted ? json_loads(rows[i].wanted, 0, NULL) : NULL;
        CHECK(metadata_filter_take(rows[i].target, &filter, &rest, &err), "%s: %s", rows[i].target,
            err.message);
        CHECK_STRING(rest, rows[i].rest);
        CHECK(wanted ? json_equal(wanted, filter.wanted) : !filter.wanted, "%s", rows[i].target);
        CHECK(filter.none == rows[i].none, "%s", rows[i].target);
        metadata_filter_finish(&filter);
        json_decref(wanted);
        free(rest);
    }
}

static void wrong_filters_are_refused(void) {
    char long_key[128] = "/jobs?metadata[", long_value[700] = "/jobs?metadata[a]=";
    memset(long_key + strlen(long_key), 'k', 90);
    strcat(long_key, "]=a");
    memset(long_value + strlen(long_value), 'v', 513);
    const char *const targets[] = { "/jobs?metadata", "/jobs?metadata=a", "/jobs?metadata[]x=a",
        "/jobs?metadatax=a", "/jobs?metadata[a]=1&metadata[a]=1",
        "/jobs?metadata[a]=1&metadata=null", "/jobs?metadata=null&metadata[a]=1",
        "/jobs?metadata=null&metadata=null", "/jobs?metadata[a]=%", "/jobs?metadata[a]=%ff",
        "/jobs?metadata[a%00]=1", long_key, long_value };
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        struct metadata_filter filter;
        struct error err = { 0 };
        char *rest;
        CHECK(
            !metadata_filter_take(targets[i], &filter, &rest, &err), "%s was accepted", targets[i]);
        CHECK(err.code == ERROR_INVALID && strncmp(err.param, "metadata", 8) == 0, "%s: %s",
            targets[i], err.message);
        metadata_filter_finish(&filter);
        free(rest);
    }
}

/* A job has at most 16 texts, so a list that asks for more would find none. */
static void a_filter_has_at_most_16_keys(void) {
    char target[1024] = "/jobs";
    for (int count = 1; count <= 17; count++) {
        struct metadata_filter filter;
        struct error err = { 0 };
        char *rest;
        snprintf(target + strlen(target), 32, "%cmetadata[k%d]=v", count == 1 ? '?' : '&', count);
        const bool ok = metadata_filter_take(target, &filter, &rest, &err);
        CHECK(ok == (count <= 16), "%d keys: %s", count, err.message);
        CHECK_STRING(err.value, ok ? "" : "k17");
        metadata_filter_finish(&filter);
        free(rest);
    }
}

int main(void) {
    filters_are_read();
    a_filter_has_at_most_16_keys();
    wrong_filters_are_refused();
    return check_done();
}
