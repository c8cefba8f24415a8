/* Places in the queue, checked by hand: how many a caller may have alone and beside others, who is
 * refused during a flood, and the estimated waiting time. */
#include "engine/loop/queue_share.h"
#include "tests/check.h"

#include <stddef.h>

#define MAX 12

static struct queue_share share;

static void enter(uint64_t caller, int count) {
    struct error err = { 0 };
    for (int i = 0; i < count; i++)
        CHECK(queue_share_takes(&share, caller, MAX, &err) &&
                  queue_share_enter(&share, caller, true, &err),
            "caller %d, request %d: %s", (int)caller, i, err.message);
}

static void check_refused(uint64_t caller, const char *words) {
    struct error err = { 0 };
    CHECK(!queue_share_takes(&share, caller, MAX, &err) && err.code == ERROR_BUSY, "caller %d",
        (int)caller);
    CHECK_CONTAINS(err.message, words);
}

static void begin(uint64_t caller, int count) {
    for (int i = 0; i < count; i++)
        queue_share_begin(&share, caller);
}

static void places(void) {
    enter(1, MAX); /* alone it may have every place */
    check_refused(1, "12 requests wait, 12 may");
    enter(2, MAX / 3); /* a full queue still lets it have its share */
    check_refused(2, "4 of your requests wait, 4 may");
    enter(3, MAX / 4);
    check_refused(3, "3 of your requests wait, 3 may");
    begin(1, 8); /* the flooding caller has 4: still too many */
    check_refused(1, "4 of your requests wait, 3 may");
    begin(1, 2);
    enter(1, 1); /* below its share it may add requests again */
    check_refused(1, "3 of your requests wait, 3 may");
    begin(2, 4);
    begin(3, 3);
    enter(1, MAX - 3); /* alone again */
    check_refused(1, "12 requests wait, 12 may");
    queue_share_leave(&share, 1, true);
    CHECK(share.waiting == MAX - 1, "%d wait", share.waiting);
    enter(1, 1);
    queue_share_finish(&share);
}

/* Every caller may have one place, even in a full queue. But at most twice as many requests wait as
 * there are places. */
static void a_crowd(void) {
    enter(1, MAX);
    for (uint64_t caller = 2; caller < MAX + 2; caller++)
        enter(caller, 1);
    check_refused(99, "24 requests wait, 12 may");
    queue_share_leave(&share, 1, true);
    enter(99, 1);
    queue_share_leave(&share, 1, true);
    check_refused(1, "10 of your requests wait, 1 may"); /* caller 1 may not take the free place */
    queue_share_finish(&share);
    struct error err = { 0 };
    CHECK(queue_share_enter(&share, 1, true, &err), "%s", err.message);
    CHECK(!queue_share_takes(&share, 1, 1, &err) && queue_share_takes(&share, 2, 1, &err),
        "with a queue of one place a second caller cannot wait, or the first can wait twice");
    queue_share_finish(&share);
}

/* Requests that do not wait in the queue take no place in it. Callers without requests in the queue
 * are not counted. */
static void others(void) {
    struct error err = { 0 };
    for (int i = 0; i < 3 * MAX; i++)
        CHECK(queue_share_enter(&share, 5, false, &err), "%s", err.message);
    enter(1, MAX);
    CHECK(share.waiting == MAX && share.count == 2, "%d wait, %d callers", share.waiting,
        share.count);
    for (int i = 0; i < 3 * MAX; i++)
        queue_share_leave(&share, 5, false);
    begin(1, 1);
    queue_share_leave(&share, 1, false);
    CHECK(share.waiting == MAX - 1 && share.count == 1, "%d wait, %d callers", share.waiting,
        share.count);
    for (int i = 0; i < MAX - 1; i++)
        queue_share_leave(&share, 1, true);
    CHECK(
        share.waiting == 0 && share.count == 0, "%d wait, %d callers", share.waiting, share.count);
    queue_share_finish(&share);
}

static void check_wait(const char *what, uint64_t caller, double want_s) {
    const double got_s = queue_share_wait_s(&share, caller);
    CHECK(got_s == want_s, "%s: %g s, not %g", what, got_s, want_s);
}

static void waits(void) {
    check_wait("nobody is there", 1, 0);
    enter(1, 10);
    enter(2, 1);
    enter(3, 2);
    check_wait("nothing is known", 1, 0);
    share.request_s = 2;
    check_wait("as others, before anybody has looked", 2, 2 + 2 + 2);
    for (int look = 0; look < 2; look++) {
        queue_share_begin_look(&share);
        for (int i = 0; i < 10; i++)
            queue_share_look(&share, 1, 3);
        queue_share_look(&share, 2, 5);
        queue_share_look(&share, 3, 4);
        queue_share_look(&share, 3, 4);
        queue_share_look(&share, 9, 1000); /* has nothing in the queue: ignored */
    }
    check_wait("all of it for who has most", 1, 30 + 5 + 8);
    check_wait("of the others as much as its own", 2, 5 + 5 + 5);
    check_wait("of one all, of the other so much", 3, 8 + 5 + 8);
    check_wait("who has nothing there waits for nobody", 4, 0);
    enter(3, 1);
    check_wait("and one that came since", 3, (8 + 2) + 5 + (8 + 2));
    queue_share_finish(&share);
}

int main(void) {
    places();
    a_crowd();
    others();
    waits();
    return check_done();
}
