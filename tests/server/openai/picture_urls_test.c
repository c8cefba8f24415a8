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
    char *bytes = malloc(size + 1);
    memset(bytes, fill, size);
    CHECK(picture_urls_add(urls, account, PICTURE_PNG, bytes, size, now_s, name.text, &err), "%s",
        err.message);
    return name;
}

/* Returns the size of the picture, all of whose bytes must be `fill`; -1 if it is not found. */
static int get(struct picture_urls *urls, const char *name, char fill, double now_s) {
    struct error err = { 0 };
    struct shared_picture *file;
    if (!picture_urls_get(urls, name, now_s, &file, &err)) {
        CHECK(err.code == ERROR_NOT_FOUND && !file, "%s", err.message);
        return -1;
    }
    const int size = (int)file->size;
    CHECK(file->format == PICTURE_PNG, "%d", file->format);
    for (int i = 0; i < size; i++)
        CHECK(((char *)file->bytes)[i] == fill, "%c", ((char *)file->bytes)[i]);
    shared_picture_release(file);
    return size;
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
    CHECK(!picture_urls_add(urls, 1, PICTURE_PNG, calloc(101, 1), 101, 12, large.text, &err) &&
              err.code == ERROR_TOO_LARGE,
        "%s", err.message);
    picture_urls_destroy(urls);
}

/* All who fetch a picture get the bytes that were given, not a copy, and keep them when the picture
 * leaves. */
static void a_picture_is_shared(void) {
    struct picture_urls *urls = create();
    struct named name;
    struct shared_picture *files[2];
    struct error err = { 0 };
    char *bytes = malloc(60);
    memset(bytes, 's', 60);
    CHECK(picture_urls_add(urls, 1, PICTURE_PNG, bytes, 60, 0, name.text, &err), "%s", err.message);
    for (int i = 0; i < 2; i++)
        CHECK(picture_urls_get(urls, name.text, 1, &files[i], &err), "%s", err.message);
    CHECK(files[0]->bytes == bytes && files[1]->bytes == bytes, "a copy");
    shared_picture_release(files[0]);
    add(urls, 1, 'o', 90, 2);
    CHECK(get(urls, name.text, 's', 3) == -1, "it has left");
    picture_urls_destroy(urls);
    for (int i = 0; i < 60; i++)
        CHECK(bytes[i] == 's', "still there");
    shared_picture_release(files[1]);
}

/* --- The rules of picture_urls.h, the slow way --- */

#define MODEL_MAX 7 /* one more than stay */

struct model_picture {
    struct named name;
    uint64_t account;
    int size;
};

/* Most recently used first. */
static struct model_picture model[MODEL_MAX];
static int model_count;

static void model_move_first(int from) {
    const struct model_picture moved = model[from];
    memmove(model + 1, model, (size_t)from * sizeof(*model));
    model[0] = moved;
}

static int model_bytes_of(uint64_t account) {
    int bytes = 0;
    for (int i = 0; i < model_count; i++)
        bytes += account == 0 || model[i].account == account ? model[i].size : 0;
    return bytes;
}

/* Returns the picture that must leave; -1: several callers hold as much as each other, so that the
 * rule does not tell. */
static int model_next(void) {
    int most = 0, last = 0;
    for (int i = 0; i < model_count; i++)
        most = model_bytes_of(model[i].account) > most ? model_bytes_of(model[i].account) : most;
    uint64_t account = 0;
    for (int i = 0; i < model_count; i++) {
        if (model_bytes_of(model[i].account) != most)
            continue;
        if (account && account != model[i].account)
            return -1;
        account = model[i].account;
        last = i;
    }
    return last == 0 ? model_count - 1 : last;
}

static unsigned drawn(unsigned *state, unsigned below) {
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 16) % below;
}

/* Adds and fetches pictures of four callers at random, and compares what stays with the rules.
 * Sizes are such that two callers seldom hold the same number of bytes; then the comparison ends.
 */
static void what_stays_is_what_the_rules_say(void) {
    int added = 0, left = 0;
    for (unsigned seed = 1; seed <= 200; seed++) {
        struct picture_urls *urls = create();
        unsigned state = seed;
        bool told = true;
        model_count = 0;
        for (int turn = 0; told && turn < 100; turn++) {
            if (model_count > 0 && drawn(&state, 3) == 0) {
                const int i = (int)drawn(&state, (unsigned)model_count);
                CHECK(get(urls, model[i].name.text, 'x', 1) == model[i].size, "it stays");
                model_move_first(i);
                continue;
            }
            const struct model_picture one = { .account = 1 + drawn(&state, 4),
                .size = 1 + (int)drawn(&state, 50) };
            model[model_count++] = one;
            model_move_first(model_count - 1);
            while (told && (model_count > limits.count || model_bytes_of(0) > (int)limits.bytes)) {
                const int leaves = model_next();
                told = leaves >= 0;
                if (!told)
                    break;
                model_count--;
                memmove(model + leaves, model + leaves + 1,
                    (size_t)(model_count - leaves) * sizeof(*model));
                left++;
            }
            if (told)
                model[0].name = add(urls, one.account, 'x', (size_t)one.size, 1);
            added++;
            /* From the least recently used on, so that the order stays. */
            for (int i = model_count - 1; told && i >= 0; i--)
                CHECK(get(urls, model[i].name.text, 'x', 1) == model[i].size,
                    "seed %u, turn %d: picture %d of %d is not there", seed, turn, i, model_count);
        }
        picture_urls_destroy(urls);
    }
    printf("%d pictures added, %d left, by the rules\n", added, left);
}

int main(void) {
    a_name_is_random_and_finds_one_picture();
    pictures_leave_by_age();
    the_least_recently_used_leave_first();
    who_draws_much_pushes_out_only_its_own();
    a_picture_is_shared();
    what_stays_is_what_the_rules_say();
    return check_done();
}
