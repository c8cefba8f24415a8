/* How long an answer is kept for the same Idempotency-Key, and for whom. The test moves the clock
 * forward instead of sleeping. */
#include "server/generation/repeats.h"

#include "tests/check.h"

#include <stdlib.h>
#include <time.h>

static int64_t put_forward_s;

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    const int result = __real_clock_gettime(clock, out);
    out->tv_sec += put_forward_s;
    return result;
}

static struct repeats *make(void) {
    struct error err = { 0 };
    struct repeats *repeats = NULL;
    CHECK(repeats_create(&repeats, &err), "%s", err.message);
    put_forward_s = 0;
    return repeats;
}

/* Returns a reference, or NULL if the request was refused. `what` represents the request. */
static struct repeat *begin(
    struct repeats *repeats, const char *caller, const char *key, char what, bool *known) {
    const struct digest request = { .bytes = { (uint8_t)what } };
    struct error err = { 0 };
    struct repeat *repeat = NULL;
    if (!repeats_begin(repeats, caller, key, &request, &repeat, known, &err))
        CHECK(err.code == ERROR_CONFLICT, "%s: %s", error_code_name(err.code), err.message);
    return repeat;
}

static void answer(struct repeat *repeat) {
    char bytes[] = "an answer";
    const struct generation_body body = { .bytes = bytes, .size = sizeof(bytes) };
    if (!repeat)
        return; /* refused; begin() has checked the error */
    repeat_end(repeat, &body, NULL);
    repeat_unref(repeat);
}

static bool is_known(struct repeats *repeats, const char *caller, const char *key, char what) {
    bool known = false;
    struct repeat *repeat = begin(repeats, caller, key, what, &known);
    CHECK(repeat, "%s's %s was refused", caller, key);
    if (repeat && !known) { /* forgotten, as if it was cancelled */
        struct error why;
        error_set(&why, ERROR_CANCELLED, "cancelled");
        repeat_end(repeat, NULL, &why);
    }
    repeat_unref(repeat);
    return known;
}

/* README: "the same key and body get the same answer, drawn once, for ten minutes". */
static void an_answer_is_kept_for_ten_minutes(void) {
    static const int64_t minutes[] = { 0, 1, 9, 11, 99, 101 };
    for (size_t i = 0; i < sizeof(minutes) / sizeof(minutes[0]); i++)
        for (int drawing_s = 0; drawing_s <= 3600; drawing_s += 3600) {
            struct repeats *repeats = make();
            bool known = true;
            struct repeat *repeat = begin(repeats, "", "k", 'a', &known);
            CHECK(repeat && !known, "a new key is refused or known");
            put_forward_s += drawing_s;
            CHECK(is_known(repeats, "", "k", 'a'),
                "the key is forgotten while its request is drawn, after %d s", drawing_s);
            answer(repeat);
            put_forward_s += minutes[i] * 60;
            known = is_known(repeats, "", "k", 'a');
            CHECK(known == (minutes[i] < 10), "drawn for %d s, %d minutes after the answer: %s",
                drawing_s, (int)minutes[i], known ? "known" : "forgotten");
            printf("drawn for %4d s, %3d minutes after the answer: %s\n", drawing_s,
                (int)minutes[i], known ? "known" : "forgotten");
            repeats_destroy(repeats);
        }
}

static void a_key_is_its_caller_s_own(void) {
    static const char *const callers[] = { "alice", "bob", "" };
    struct repeats *repeats = make();
    struct repeat *first[3];
    bool known;
    for (int i = 0; i < 3; i++) {
        first[i] = begin(repeats, callers[i], "k", (char)('a' + i), &known);
        CHECK(first[i] && !known, "\"%s\": the key of another caller is known", callers[i]);
    }
    CHECK(first[0] != first[1] && first[1] != first[2], "one drawing for two callers");
    for (int i = 0; i < 3; i++) {
        struct repeat *again = begin(repeats, callers[i], "k", (char)('a' + i), &known);
        CHECK(again == first[i] && known, "\"%s\": the same request is not known", callers[i]);
        repeat_unref(again);
        again = begin(repeats, callers[i], "k", (char)('b' + i), &known);
        CHECK(!again, "\"%s\": another request with the key was accepted", callers[i]);
        repeat_unref(again);
    }
    for (int i = 0; i < 3; i++)
        answer(first[i]);
    for (int i = 0; i < 3; i++)
        CHECK(is_known(repeats, callers[i], "k", (char)('a' + i)),
            "\"%s\": the key is not known after the answer", callers[i]);
    CHECK(!is_known(repeats, "Alice", "k", 'a'), "callers whose names differ in case share a key");
    repeats_destroy(repeats);
    printf("one key, three callers: three drawings\n");
}

int main(void) {
    an_answer_is_kept_for_ten_minutes();
    a_key_is_its_caller_s_own();
    return check_done();
}
