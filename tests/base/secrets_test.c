/* Masking of API keys in text that is logged. */
#include "base/text/secrets.h"

#include "tests/check.h"

#include <string.h>

#define DIGITS "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef"

int main(void) {
    static const struct {
        const char *text, *masked;
    } rows[] = {
        { "", "" },
        { "GET /info: no key", "GET /info: no key" },
        { "/info?wait=3&limit=10", "/info?wait=3&limit=10" },
        { "latentd_" DIGITS, "latentd_*" },
        { "/info?wait=latentd_" DIGITS "&x=1", "/info?wait=latentd_*&x=1" },
        { "/jobs/latentd_" DIGITS "/events", "/jobs/latentd_*/events" },
        { "LATENTD%5f" DIGITS, "LATENTD%5f*" },
        { "two: latentd_" DIGITS ", Latentd_" DIGITS ".", "two: latentd_*, Latentd_*." },
        { "cut off: latentd_01234567", "cut off: latentd_*" },
        { "latentd_0123456", "latentd_0123456" },         /* too short for a key */
        { "/srv/latentd_data/x", "/srv/latentd_data/x" }, /* a folder */
        { "latentd_latentd_" DIGITS, "latentd_latentd_*" },
        { "/info?key=my+own+key", "/info?key=*" },
        { "/info?Api_Key=a&wait=3", "/info?Api_Key=*&wait=3" },
        { "/info?wait=3&access_token=x.y-z%20&a=b", "/info?wait=3&access_token=*&a=b" },
        { "/info?a=b;token=c;d=e", "/info?a=b;token=*;d=e" },
        { "401 to GET /info?password=b: wrong", "401 to GET /info?password=* wrong" },
        { "/info?monkey=b&keys=c&key", "/info?monkey=b&keys=c&key" },
        { "/info?key=&wait=3", "/info?key=&wait=3" },
        { "/info?key=latentd_" DIGITS "zz&b", "/info?key=*&b" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "%s", rows[i].text);
        secrets_mask(text);
        CHECK(strcmp(text, rows[i].masked) == 0, "%s: %s, not %s", rows[i].text, text,
            rows[i].masked);
    }
    return check_done();
}
