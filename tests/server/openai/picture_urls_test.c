/* Pictures that are fetched by address: which are kept, which are dropped, and that no other
 * address finds one. */
#include "server/openai/picture_urls.h"

#include "tests/check.h"

#include <stdlib.h>

static const struct picture_urls_limits limits = { .bytes = 100, .count = 6, .age_s = 60 };

struct named {
    char text[PICTURE_URL_NAME_BYTES];
};

static struct named add(
    struct picture_urls *urls, uint64_t account, char fill, size_t size, double now_s) {
    struct named name = { "" };
    struct error err = { 0 };
    char bytes[100];
    memset(bytes, fill, size);
    CHECK(picture_urls_add(urls, account, PICTURE_PNG, bytes, size, now_s, name.text, &err), "%s",
        err.message);
    return name;
}

/* Returns the size of the picture, all of whose bytes must be `fill`; -1 if it is not found. */
static int get(struct picture_urls *urls, const char *name, char fill, double now_s) {
    enum picture_format format;
    struct error err = { 0 };
    void *bytes;
    size_t size;
    if (!picture_urls_get(urls, name, now_s, &format, &bytes, &size, &err)) {
        CHECK(err.code == ERROR_NOT_FOUND && !bytes, "%s", err.message);
        return -1;
    }
    CHECK(format == PICTURE_PNG, "%d", format);
    for (size_t i = 0; i < size; i++)
        CHECK(((char *)bytes)[i] == fill, "%c", ((char *)bytes)[i]);
    free(bytes);
    return (int)size;
}

static struct picture_urls *create(void) {
    struct picture_urls *urls;
    struct error err = { 0 };
    CHECK(picture_urls_create(&limits, &urls, &err), "%s", err.message);
    return urls;
}

static void a_name_is_random_and_finds_one_picture(void) {
    struct picture_urls *urls = create();
    const struct named a = add(urls, 1, 'a', 10, 0), b = add(urls, 1, 'b', 0, 0);
    CHECK(
        strspn(a.text, "0123456789abcdef") == 32 && strcmp(a.text + 32, ".png") == 0, "%s", a.text);
    CHECK(strcmp(a.text, b.text) != 0, "%s", a.text);
    CHECK(get(urls, a.text, 'a', 1) == 10 && get(urls, b.text, 'b', 1) == 0, "both");
    CHECK(get(urls, a.text, 'a', 2) == 10, "again");
    char other[200];
    for (int i = 0; i < 36; i++) {
        snprintf(other, sizeof(other), "%s", a.text);
        other[i] ^= 1;
        CHECK(get(urls, other, 'a', 2) == -1, "%s finds %s", other, a.text);
    }
    snprintf(other, sizeof(other), "%s%0100d", a.text, 0);
    CHECK(get(urls, other, 'a', 2) == -1 && get(urls, "", 'a', 2) == -1,
        "a key of another length finds a picture");
    picture_urls_destroy(urls);
    picture_urls_destroy(NULL);
}

static void pictures_leave_by_age(void) {
    struct picture_urls *urls = create();
    const struct named a = add(urls, 1, 'a', 10, 0), b = add(urls, 1, 'b', 10, 30);
    CHECK(get(urls, a.text, 'a', 60) == 10, "a picture of the maximum age is not found");
    CHECK(get(urls, a.text, 'a', 60.5) == -1, "a picture over the maximum age is found");
    CHECK(get(urls, b.text, 'b', 60.5) == 10, "the younger picture is not found");
    picture_urls_destroy(urls);
}

static void the_least_recently_used_leave_first(void) {
    struct picture_urls *urls = create();
    const struct named a = add(urls, 1, 'a', 30, 0), b = add(urls, 1, 'b', 30, 1);
    const struct named c = add(urls, 1, 'c', 30, 2);
    CHECK(get(urls, a.text, 'a', 3) == 30, "picture a is not found");
    const struct named d = add(urls, 1, 'd', 40, 4);
    CHECK(get(urls, b.text, 'b', 5) == -1, "picture b, the least recently used, is not removed");
    CHECK(get(urls, a.text, 'a', 5) == 30 && get(urls, c.text, 'c', 5) == 30 &&
              get(urls, d.text, 'd', 5) == 40,
        "pictures of 100 bytes in all are not kept");
    struct named small[7];
    for (int i = 0; i < 7; i++)
        small[i] = add(urls, 1, 'e', 1, 6);
    CHECK(get(urls, small[0].text, 'e', 7) == -1 && get(urls, small[1].text, 'e', 7) == 1,
        "not exactly the latest six pictures are kept");
    picture_urls_destroy(urls);
}

static void who_draws_much_pushes_out_only_its_own(void) {
    struct picture_urls *urls = create();
    const struct named mine = add(urls, 1, 'm', 20, 0);
    struct named theirs[5], large;
    for (int i = 0; i < 5; i++) {
        theirs[i] = add(urls, 2, 't', 30, 1 + i);
        CHECK(get(urls, theirs[i].text, 't', 1 + i) == 30, "the newest picture is not found");
    }
    CHECK(get(urls, mine.text, 'm', 9) == 20, "a picture of another caller is removed");
    CHECK(get(urls, theirs[2].text, 't', 9) == -1 && get(urls, theirs[3].text, 't', 9) == 30,
        "not exactly two pictures of the busy caller are kept");
    large = add(urls, 3, 'l', 90, 10);
    CHECK(get(urls, large.text, 'l', 11) == 90,
        "a new picture is removed because its caller has the most");
    struct error err = { 0 };
    char bytes[101] = { 0 };
    CHECK(!picture_urls_add(urls, 1, PICTURE_PNG, bytes, 101, 12, large.text, &err) &&
              err.code == ERROR_TOO_LARGE,
        "%s", err.message);
    picture_urls_destroy(urls);
}

int main(void) {
    a_name_is_random_and_finds_one_picture();
    pictures_leave_by_age();
    the_least_recently_used_leave_first();
    who_draws_much_pushes_out_only_its_own();
    return check_done();
}
