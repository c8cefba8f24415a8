/* Which bodies are dropped when the room for bodies is full. The test has its own clock; the
 * clients' bytes come from `piece`. */
#include "server/http/bodies.h"

#include "base/limits.h"
#include "tests/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define ROOM (8 * MIB)
#define RESERVE (2 * MIB)

static const struct caller alice = { "key alice" }, bob = { "key bob" };
static char piece[4 * MIB];

static struct bodies *make(void) {
    struct bodies *bodies = NULL;
    struct error err = { 0 };
    CHECK(bodies_create(ROOM, RESERVE, &bodies, &err), "%s", err.message);
    return bodies;
}

/* Appends in pieces, as the library delivers them. */
static bool send_some(struct bodies *bodies, struct body *body, size_t bytes, int64_t now_ms) {
    struct error err = { 0 };
    bool taken = true;
    for (size_t sent = 0; sent < bytes && taken; sent += 30000)
        taken = bodies_append(
            bodies, body, piece + sent, bytes - sent < 30000 ? bytes - sent : 30000, now_ms, &err);
    CHECK(taken || err.code == ERROR_UNAVAILABLE, "%d %s", (int)err.code, err.message);
    return taken;
}

static bool is_whole(struct bodies *bodies, struct body *body, size_t wanted) {
    const char *bytes;
    size_t size;
    struct error err = { 0 };
    const bool whole = bodies_complete(bodies, body, &bytes, &size, &err);
    CHECK(!whole || (size == wanted && memcmp(bytes, piece, size / 2) == 0), "%zu bytes, not %zu",
        wanted, size);
    return whole;
}

/* A body takes room for the bytes received plus up to 1 MiB, but never for more than its announced
 * size. */
static void what_has_come_is_counted(void) {
    static const size_t sizes[] = { 1, 100, 4096, 70000, 3 * MIB / 2, 3 * MIB };
    struct bodies *bodies = make();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct body *body = bodies_add(bodies, sizes[i], &alice, 0);
        CHECK(bodies_held_bytes(bodies) == 0, "a body that was only announced counts bytes");
        CHECK(
            send_some(bodies, body, (sizes[i] + 1) / 2, 0), "the first half of a body is refused");
        const size_t half = bodies_held_bytes(bodies);
        CHECK(half >= sizes[i] / 2 && half <= sizes[i] && half <= sizes[i] / 2 + MIB + 30000,
            "half of a body of %zu bytes counts as %zu", sizes[i], half);
        CHECK(send_some(bodies, body, sizes[i] / 2, 0), "the second half of a body is refused");
        printf("%zu bytes, %zu after the half of them\n", bodies_held_bytes(bodies), half);
        CHECK(bodies_held_bytes(bodies) == sizes[i], "%zu for %zu", bodies_held_bytes(bodies),
            sizes[i]);
        CHECK(is_whole(bodies, body, sizes[i]), "the body is not complete");
        bodies_drop(bodies, body);
    }
    CHECK(bodies_held_bytes(bodies) == 0, "the finished body still counts bytes");
    bodies_destroy(bodies);
}

/* Large bodies that never end can fill only their part of the room. Small bodies have a part of
 * their own and are still received. */
static void small_ones_come_through(void) {
    struct bodies *bodies = make();
    struct body *large[4], *small[64];
    for (int i = 0; i < 4; i++) {
        large[i] = bodies_add(bodies, 2 * MIB, &bob, 0);
        CHECK(send_some(bodies, large[i], 2 * MIB - 1, 0), "large %d", i);
    }
    for (int64_t now = 0; now < 10; now++) {
        struct body *body = bodies_add(bodies, MIB, &bob, now);
        CHECK(send_some(bodies, body, MIB, now) && is_whole(bodies, body, MIB),
            "a small body beside large ones is refused");
        bodies_drop(bodies, body);
    }
    /* Small bodies of the same caller that never end fill their part, too. Then the body that has
     * been silent for longest is dropped. */
    for (int i = 0; i < 64; i++) {
        small[i] = bodies_add(bodies, MIB, &bob, 100 + i);
        CHECK(send_some(bodies, small[i], MIB - 1, 100 + i), "small %d", i);
    }
    CHECK(bodies_held_bytes(bodies) <= ROOM + RESERVE, "%zu", bodies_held_bytes(bodies));
    CHECK(
        !is_whole(bodies, small[0], MIB - 1), "the oldest small body was not dropped to make room");
    CHECK(is_whole(bodies, small[63], MIB - 1), "the youngest small body was dropped");
    struct body *body = bodies_add(bodies, 300, &bob, 1000);
    CHECK(send_some(bodies, body, 300, 1000) && is_whole(bodies, body, 300),
        "a new small body is refused");
    bodies_drop(bodies, body);
    for (int i = 0; i < 4; i++) {
        CHECK(is_whole(bodies, large[i], 2 * MIB - 1), "a large body was dropped for small ones");
        bodies_drop(bodies, large[i]);
    }
    for (int i = 0; i < 64; i++)
        bodies_drop(bodies, small[i]);
    CHECK(bodies_held_bytes(bodies) == 0, "ended bodies still count bytes");
    bodies_destroy(bodies);
}

/* A small body has been silent for longest, and large ones fill their part of the room. A new large
 * body replaces a large one, not the small one. */
static void small_ones_keep_what_is_theirs(void) {
    struct bodies *bodies = make();
    struct body *small = bodies_add(bodies, MIB, &alice, 0), *large[4];
    CHECK(send_some(bodies, small, MIB - 1, 0), "the small body is refused");
    for (int i = 0; i < 4; i++) {
        large[i] = bodies_add(bodies, 2 * MIB, &bob, 10 + i);
        CHECK(send_some(bodies, large[i], 2 * MIB - 1, 10 + i), "large %d", i);
    }
    struct body *late = bodies_add(bodies, 2 * MIB, &bob, 5000);
    CHECK(send_some(bodies, late, 2 * MIB, 5000), "no room is made for the new body");
    const bool first = is_whole(bodies, large[0], 2 * MIB - 1);
    const bool kept = is_whole(bodies, small, MIB - 1);
    printf("to a large one gave way: the large one silent for longest %s, the small one silent for "
           "longer %s\n",
        first ? "not" : "did", kept ? "did not" : "too");
    CHECK(!first && kept, "a small body was dropped instead of the large one that is silent");
    bodies_drop(bodies, small);
    bodies_drop(bodies, late);
    for (int i = 0; i < 4; i++)
        bodies_drop(bodies, large[i]);
    bodies_destroy(bodies);
}

/* Four large bodies of one caller fill the room. Sending a byte now and then does not count as
 * progress; sending 64 KiB does. */
static void the_slowest_large_one_gives_way(void) {
    struct bodies *bodies = make();
    struct body *large[4];
    for (int i = 0; i < 4; i++) {
        large[i] = bodies_add(bodies, 2 * MIB, &alice, 0);
        CHECK(send_some(bodies, large[i], MIB, 0), "large %d", i);
        CHECK(send_some(bodies, large[i], MIB / 2, 1000), "large %d", i);
    }
    for (int64_t now = 1000; now < 5000; now += 10) { /* three trickle, the fourth makes progress */
        for (int i = 0; i < 3; i++)
            if (now % 1000 == 0 && !send_some(bodies, large[i], 1, now))
                CHECK(false, "a body was dropped before room was needed");
        if (now % 1000 == 0 && now > 1000)
            CHECK(send_some(bodies, large[3], HTTP_BODY_STEP_BYTES, now),
                "body %d, which goes on, is refused", 3);
    }
    struct body *late = bodies_add(bodies, 3 * MIB, &alice, 2500);
    CHECK(!send_some(bodies, late, 3 * MIB, 2500),
        "room is made although all bodies received bytes within two seconds");
    CHECK(!is_whole(bodies, late, 3 * MIB), "a refused body is complete");
    bodies_drop(bodies, late);
    late = bodies_add(bodies, 3 * MIB, &alice, 5000);
    CHECK(send_some(bodies, late, 3 * MIB, 5000), "no trickling body is dropped to make room");
    CHECK(is_whole(bodies, late, 3 * MIB), "the new body is not complete");
    int gave_way = 0;
    for (int i = 0; i < 3; i++)
        gave_way += !send_some(bodies, large[i], 1, 5000);
    printf("%d of 3 that trickle gave way to 3 MiB\n", gave_way);
    CHECK(gave_way == 1 || gave_way == 2, "%d trickling bodies were dropped, instead of one or two",
        gave_way);
    CHECK(send_some(bodies, large[3], 1, 5000), "the body that goes on was dropped");
    bodies_drop(bodies, late);
    for (int i = 0; i < 4; i++)
        bodies_drop(bodies, large[i]);
    bodies_destroy(bodies);
}

/* All bodies are fast. A lone caller gets all the room and no more; a second caller gets a fair
 * share of it. */
static void callers_share_the_room(void) {
    struct bodies *bodies = make();
    struct body *of_alice[5], *of_bob[5];
    int alices = 0, bobs = 0;
    for (int i = 0; i < 5; i++) {
        of_alice[i] = bodies_add(bodies, 2 * MIB, &alice, i);
        alices += send_some(bodies, of_alice[i], 2 * MIB, i);
    }
    CHECK(alices == 4, "a lone caller keeps %d bodies, not all 4", alices);
    for (int i = 0; i < 5; i++) {
        of_bob[i] = bodies_add(bodies, 2 * MIB, &bob, 10 + i);
        bobs += send_some(bodies, of_bob[i], 2 * MIB, 10 + i);
    }
    alices = 0;
    for (int i = 0; i < 5; i++)
        alices += is_whole(bodies, of_alice[i], 2 * MIB);
    printf("8 MiB in bodies of 2 MiB: alice keeps %d, bob gets %d\n", alices, bobs);
    CHECK(
        alices == 2 && bobs == 2, "two callers keep %d and %d bodies, not two each", alices, bobs);
    for (int i = 0; i < 5; i++) {
        bodies_drop(bodies, of_alice[i]);
        bodies_drop(bodies, of_bob[i]);
    }
    CHECK(bodies_held_bytes(bodies) == 0, "ended bodies still count bytes");
    bodies_destroy(bodies);
}

/* A complete body is never dropped while a handler reads it. */
static void complete_ones_do_not_give_way(void) {
    struct bodies *bodies = make();
    struct body *large[4];
    for (int i = 0; i < 4; i++) {
        large[i] = bodies_add(bodies, 2 * MIB, &alice, 0);
        CHECK(send_some(bodies, large[i], 2 * MIB, 0) && is_whole(bodies, large[i], 2 * MIB), "%d",
            i);
    }
    struct body *late = bodies_add(bodies, 2 * MIB, &bob, 100000);
    CHECK(
        !send_some(bodies, late, 2 * MIB, 100000), "a body is accepted although there is no room");
    bodies_drop(bodies, late);
    for (int i = 0; i < 4; i++)
        bodies_drop(bodies, large[i]);
    bodies_destroy(bodies);
}

static void *come_and_go(void *argument) {
    struct bodies *bodies = argument;
    int whole = 0;
    for (int i = 0; i < 100; i++) {
        const size_t bytes = i % 2 ? 3 * MIB : 300;
        struct body *body = bodies_add(bodies, bytes, i % 3 ? &alice : &bob, i);
        whole += send_some(bodies, body, bytes, i * 100) && is_whole(bodies, body, bytes);
        bodies_drop(bodies, body);
    }
    CHECK(whole >= 50, "only %d of 100 bodies are complete, fewer than the small ones", whole);
    return NULL;
}

/* Bodies of one thread are dropped in favour of other threads' bodies, so that ThreadSanitizer and
 * AddressSanitizer can find faults. */
static void threads_take_it_from_each_other(void) {
    struct bodies *bodies = make();
    pthread_t threads[6];
    for (int i = 0; i < 6; i++)
        CHECK(pthread_create(&threads[i], NULL, come_and_go, bodies) == 0, "thread %d", i);
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    CHECK(bodies_held_bytes(bodies) == 0, "ended bodies still count bytes");
    bodies_destroy(bodies);
}

int main(void) {
    for (size_t i = 0; i < sizeof(piece); i++)
        piece[i] = (char)(i * 31 % 251);
    what_has_come_is_counted();
    small_ones_come_through();
    small_ones_keep_what_is_theirs();
    the_slowest_large_one_gives_way();
    callers_share_the_room();
    complete_ones_do_not_give_way();
    threads_take_it_from_each_other();
    return check_done();
}
