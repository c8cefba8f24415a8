/* Hashes against the test vectors published by the algorithm's authors (draft-eastlake-fnv,
 * appendix C). */
#include "base/hash.h"
#include "tests/check.h"

#include <inttypes.h>

int main(void) {
    static const struct {
        const char *text;
        uint64_t hash;
    } rows[] = {
        { "", 0xcbf29ce484222325u },
        { "a", 0xaf63dc4c8601ec8cu },
        { "foobar", 0x85944171f73967e8u },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const uint64_t hash = hash_fnv1a(rows[i].text, strlen(rows[i].text));
        CHECK(hash == rows[i].hash, "\"%s\": %016" PRIx64, rows[i].text, hash);
    }
    return check_done();
}
