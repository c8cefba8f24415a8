/* What Retry-After says to a client that a full queue refuses: when the next request ends, whatever
 * those that are there have waited. */
#include "server/server.h"
#include "tests/check.h"

#define SOME 100.0 /* when the clock's first second was does not matter */

/* Ends of `count` requests that came at once, `each_s` apart. */
static void end_some(struct request_ends *ends, double begun_s, int count, double each_s) {
    for (int i = 1; i <= count; i++)
        request_ends_add(ends, begun_s + i * each_s, i * each_s);
}

int main(void) {
    struct request_ends ends = { 0 };
    CHECK(request_ends_wait_s(&ends) == 1, "%d s before any has ended", request_ends_wait_s(&ends));
    end_some(&ends, SOME, 9, 2);
    CHECK(request_ends_wait_s(&ends) == 2,
        "%d s where one ends every 2 s, and the last had waited 16", request_ends_wait_s(&ends));
    request_ends_add(&ends, SOME + 1000, 2); /* nothing was asked for meanwhile */
    CHECK(request_ends_wait_s(&ends) == 2, "%d s after a pause", request_ends_wait_s(&ends));
    end_some(&ends, SOME + 1000, 40, 0.1);
    CHECK(
        request_ends_wait_s(&ends) == 1, "%d s where ten end a second", request_ends_wait_s(&ends));
    end_some(&ends, SOME + 2000, 40, 20);
    CHECK(request_ends_wait_s(&ends) == 20, "%d s where each takes 20", request_ends_wait_s(&ends));
    end_some(&ends, SOME + 9000, 40, 500);
    CHECK(request_ends_wait_s(&ends) == 60, "%d s at most", request_ends_wait_s(&ends));
    return check_done();
}
