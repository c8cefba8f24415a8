/* Accept headers as in RFC 9110: the examples of section 12.5.1, the grammar of quality values of
 * section 12.4.2, and the headers of browsers. */
#include "server/http/accept.h"
#include "tests/check.h"

static const struct {
    const char *header, *type;
    int quality;
} rows[] = {
    /* 12.5.1: "I prefer audio/basic, but send me any audio type if it is the best available after
     * an 80% markdown in quality." */
    { "audio/*; q=0.2, audio/basic", "audio/basic", 1000 },
    { "audio/*; q=0.2, audio/basic", "audio/mpeg", 200 },
    { "audio/*; q=0.2, audio/basic", "image/png", 0 },
    { "text/plain; q=0.5, text/html,\ttext/x-dvi; q=0.8, text/x-c", "text/html", 1000 },
    { "text/plain; q=0.5, text/html,\ttext/x-dvi; q=0.8, text/x-c", "text/x-dvi", 800 },
    { "text/plain; q=0.5, text/html,\ttext/x-dvi; q=0.8, text/x-c", "text/plain", 500 },
    /* 12.5.1: the table of precedence; our types have no parameters. */
    { "text/*;q=0.3, text/plain;q=0.7, text/plain;format=flowed, text/plain;format=fixed;q=0.4, "
      "*/*;q=0.5",
        "text/plain", 700 },
    { "text/plain;format=flowed, text/plain;q=0.7", "text/plain", 700 },
    { "text/plain;format=fixed;q=0.4, text/plain;q=0.7, */*;q=0.5", "text/plain", 700 },
    { "text/*;q=0.3, text/plain;q=0.7, */*;q=0.5", "text/html", 300 },
    { "text/*;q=0.3, text/plain;q=0.7, */*;q=0.5", "image/jpeg", 500 },
    /* Invalid by the RFC, but sent by clients that mean any type: */
    { "application/json; charset=utf-8", "application/json", 1000 },
    /* Without the header, any type is accepted. */
    { NULL, "image/png", 1000 },
    { "", "image/png", 1000 },
    { "*/*", "image/png", 1000 },
    /* Types and the name q are matched without regard to case (8.3.1, 5.6.6). */
    { "IMAGE/PNG;Q=0.5", "image/png", 500 },
    /* 12.4.2: qvalue = ( "0" [ "." 0*3DIGIT ] ) / ( "1" [ "." 0*3("0") ] ); 0 is not acceptable. */
    { "image/png;q=1", "image/png", 1000 },
    { "image/png;q=1.", "image/png", 1000 },
    { "image/png;q=1.000", "image/png", 1000 },
    { "image/png;q=0", "image/png", 0 },
    { "image/png;q=0.", "image/png", 0 },
    { "image/png;q=0.001", "image/png", 1 },
    { "image/png;q=0.999", "image/png", 999 },
    { "image/png;q=1.001", "image/png", 0 },
    { "image/png;q=2", "image/png", 0 },
    { "image/png;q=0.1234", "image/png", 0 },
    { "image/png;q=.5", "image/png", 0 },
    { "image/png;q=-1", "image/png", 0 },
    { "image/png;q=", "image/png", 0 },
    { "image/png;q=0.5x", "image/png", 0 },
    { "image/png;q=0, */*", "image/png", 0 },
    { "image/png;q=0, */*", "application/json", 1000 },
    /* Optional white space, empty elements of the list (5.6.1). */
    { ", ,image/png ; q=0.5 ,", "image/png", 500 },
    { "image/png\t;\tq=0.5\t,text/html", "image/png", 500 },
    /* 5.6.4: separators inside a quoted string do not count. */
    { "text/html;x=\"a,image/png;q=1\";q=0.5", "image/png", 0 },
    { "text/html;x=\"a,b;q=1\";q=0.5", "text/html", 500 },
    { "text/html;x=\"\\\"\";q=0.5", "text/html", 500 },
    { "text/html;x=\"", "text/html", 1000 },
    /* Not a media range at all. */
    { "image", "image/png", 0 },
    { "image/", "image/png", 0 },
    { "/png", "image/png", 0 },
    { "*/png", "image/png", 0 },
    { "image/pn", "image/png", 0 },
    { "image/pngx", "image/png", 0 },
    { ";q=1", "image/png", 0 },
    /* Firefox and Chrome, for a page and for an <img>. */
    { "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "application/json", 800 },
    { "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8", "image/png", 1000 },
    { "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8", "application/json", 800 },
};

int main(void) {
    const int count = sizeof(rows) / sizeof(rows[0]);
    for (int i = 0; i < count; i++) {
        const int quality = accept_quality(rows[i].header, rows[i].type);
        CHECK(quality == rows[i].quality, "%s in \"%s\": %d, not %d", rows[i].type,
            rows[i].header ? rows[i].header : "(none)", quality, rows[i].quality);
    }
    printf("%d headers\n", count);
    return check_done();
}
