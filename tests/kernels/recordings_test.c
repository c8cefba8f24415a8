/* compute_recorded with a fake recorder. A sequence runs normally at the first call, is recorded at
 * the second, and is replayed from the third on, with the current contents of its tensors. Another
 * key, another place in the arena or new arena memory makes it another sequence. */
#include "kernels/compute/recordings.h"
#include "tests/check.h"

#include <stdlib.h>

#define CALLS_MAX 8

/* In this test a recording is a list of add calls. */
struct recording {
    struct add_args args[CALLS_MAX];
    struct tensor tensors[CALLS_MAX][2];
    int count;
};

static struct {
    struct recording *now; /* the recording between begin and end, or NULL */
    bool refuse_begin, refuse_end, lose_end, full_end, fail_add, fail_recorded_add;
    int begun, ended, replayed, live, added;
} fake;

static struct kernels table;

static bool fake_add(const struct add_args *args, struct error *err) {
    if (fake.fail_add || (fake.fail_recorded_add && fake.now))
        return error_set(err, ERROR_DEVICE, "the kernel was refused");
    fake.added++;
    if (!fake.now)
        return kernels_reference()->add(args, err);
    struct recording *r = fake.now;
    r->tensors[r->count][0] = *args->a;
    r->tensors[r->count][1] = *args->y;
    r->args[r->count++] = *args;
    return true;
}

static bool fake_begin(struct error *err) {
    if (fake.refuse_begin)
        return error_set(err, ERROR_DEVICE, "no capture");
    fake.now = calloc(1, sizeof(*fake.now));
    fake.begun++;
    return true;
}

static bool fake_end(struct recording **out, struct error *err) {
    struct recording *r = fake.now;
    fake.now = NULL;
    fake.ended++;
    if (!out || fake.refuse_end || fake.lose_end || fake.full_end) {
        free(r);
        return !out || error_set(err,
                           fake.lose_end   ? ERROR_DEVICE_LOST
                           : fake.full_end ? ERROR_NO_MEMORY
                                           : ERROR_DEVICE,
                           "no graph");
    }
    fake.live++;
    *out = r;
    return true;
}

static bool fake_replay(const struct recording *r, struct error *err) {
    fake.replayed++;
    for (int i = 0; i < r->count; i++) {
        struct tensor a = r->tensors[i][0], y = r->tensors[i][1];
        const struct add_args args = { .a = &a, .activation = r->args[i].activation, .y = &y };
        if (!kernels_reference()->add(&args, err))
            return false;
    }
    return true;
}

static int fake_launches(const struct recording *r) {
    return r->count;
}

static void fake_destroy(struct recording *r) {
    fake.live -= r != NULL;
    free(r);
}

static const struct recorder recorder = { fake_begin, fake_end, fake_replay, fake_launches,
    fake_destroy };

/* Computes y = silu(silu(x)) with a temporary in the arena. */
struct twice {
    struct tensor x, y;
};

static void run_twice(struct compute *c, const void *user) {
    const struct twice *t = user;
    size_t mark = arena_mark(c->arena);
    struct tensor y = t->y, hidden = compute_tensor_2d(c, DTYPE_F32, 1, 4);
    op_add(c, &(struct add_args){ .a = &t->x, .activation = ACTIVATION_SILU, .y = &hidden });
    op_add(c, &(struct add_args){ .a = &hidden, .activation = ACTIVATION_SILU, .y = &y });
    arena_release(c->arena, mark);
}

static void run_other(struct compute *c, const void *user) {
    run_twice(c, user);
}

struct stage {
    struct compute c;
    float x[4], y[4];
    struct twice twice;
    int64_t key[2];
};

static void stage_init(struct stage *s) {
    struct error err = { 0 };
    memset(s, 0, sizeof(*s));
    memset(&fake, 0, sizeof(fake));
    table = *kernels_reference();
    table.add = fake_add;
    table.recorder = &recorder;
    s->c.kernels = &table;
    CHECK(arena_create(table.memory, &s->c.arena, &err) &&
              arena_reserve(s->c.arena, 1 << 12, &err) &&
              recordings_create(&table, &s->c.recordings, &err),
        "%s", err.message);
    s->twice = (struct twice){ tensor_2d(s->x, DTYPE_F32, 1, 4), tensor_2d(s->y, DTYPE_F32, 1, 4) };
}

static void stage_finish(struct stage *s) {
    recordings_destroy(s->c.recordings);
    arena_destroy(s->c.arena);
    CHECK(fake.live == 0 && fake.begun == fake.ended, "%d recordings left, %d begun, %d ended",
        fake.live, fake.begun, fake.ended);
}

/* Runs with x = `value` everywhere and checks y. */
static void call(struct stage *s, void (*run)(struct compute *, const void *), float value) {
    for (int i = 0; i < 4; i++) {
        s->x[i] = value;
        s->y[i] = -1;
    }
    compute_recorded(&s->c, s->key, sizeof(s->key), run, &s->twice);
    double hidden = value / (1 + exp(-value)), want = hidden / (1 + exp(-hidden));
    if (compute_ok(&s->c))
        CHECK_NEAR(s->y[3], want, 1e-6);
}

static void run_record_replay(void) {
    struct stage s;
    struct recordings_figures figures;
    stage_init(&s);
    call(&s, run_twice, 1);
    CHECK(fake.begun == 0 && fake.added == 2, "the first call runs");
    call(&s, run_twice, 2);
    CHECK(fake.begun == 1 && fake.added == 4 && fake.replayed == 1, "the second is recorded");
    double flops = s.c.flops;
    for (int i = 3; i < 6; i++)
        call(&s, run_twice, (float)i);
    CHECK(fake.begun == 1 && fake.added == 4 && fake.replayed == 4, "%d replayed", fake.replayed);
    CHECK(s.c.flops == flops, "an add has no flops");
    recordings_get_figures(s.c.recordings, &figures);
    CHECK(figures.kept == 1 && figures.launches == 2 && figures.recorded == 1 &&
              figures.replayed == 4,
        "%d kept, %d launches", figures.kept, figures.launches);
    stage_finish(&s);
}

/* Each difference makes another sequence, which runs first and is then recorded. */
static void what_makes_a_sequence(void) {
    struct stage s;
    stage_init(&s);
    for (int i = 0; i < 3; i++)
        call(&s, run_twice, 1);
    s.key[1] = 7;
    for (int i = 0; i < 3; i++)
        call(&s, run_twice, 2);
    CHECK(fake.begun == 2, "another key: %d recorded", fake.begun);
    for (int i = 0; i < 3; i++)
        call(&s, run_other, 3);
    CHECK(fake.begun == 3, "another function: %d recorded", fake.begun);
    CHECK(arena_alloc(s.c.arena, 1) != NULL, "the arena is full");
    for (int i = 0; i < 3; i++)
        call(&s, run_other, 4);
    CHECK(fake.begun == 4, "another place in the arena: %d recorded", fake.begun);
    arena_release(s.c.arena, 0);
    int replayed = fake.replayed;
    call(&s, run_twice, 5);
    CHECK(fake.begun == 4 && fake.replayed == replayed + 1, "the second is still known");
    struct error err = { 0 };
    CHECK(fake.live == 4 && arena_reserve(s.c.arena, 64 << 20, &err), "%s", err.message);
    call(&s, run_twice, 6);
    CHECK(fake.live == 0 && fake.begun == 4, "new memory: all are dropped, %d live", fake.live);
    call(&s, run_twice, 6);
    CHECK(fake.live == 1, "recorded again in the new memory: %d live", fake.live);
    recordings_clear(s.c.recordings);
    recordings_clear(NULL);
    CHECK(fake.live == 0, "dropped when asked to");
    call(&s, run_twice, 7);
    CHECK(fake.begun == 5, "and run before they are recorded again");
    stage_finish(&s);
}

static void the_longest_unused_goes(void) {
    struct stage s;
    stage_init(&s);
    for (int64_t k = 0; k < 40; k++) {
        s.key[0] = k;
        for (int i = 0; i < 2; i++)
            call(&s, run_twice, 1);
        s.key[0] = 0;
        call(&s, run_twice, 2);
    }
    CHECK(fake.live <= 16, "%d are kept", fake.live);
    CHECK(fake.begun == 40, "the first is never recorded again: %d", fake.begun);
    stage_finish(&s);
}

static void failures(void) {
    struct stage s;
    stage_init(&s);
    call(&s, run_twice, 1);
    fake.refuse_begin = true;
    call(&s, run_twice, 2);
    call(&s, run_twice, 3);
    fake.refuse_begin = false;
    call(&s, run_twice, 4);
    CHECK(compute_ok(&s.c) && fake.replayed == 0, "a device that refuses runs call by call");
    s.key[0]++;
    call(&s, run_twice, 1);
    fake.refuse_end = true;
    call(&s, run_twice, 2);
    CHECK(compute_ok(&s.c) && fake.live == 0, "%s", s.c.error.message);
    fake.refuse_end = false;

    /* a graph that does not fit; then a call that cannot be captured and leaves a tensor in the
     * arena */
    for (int i = 0; i < 2; i++) {
        s.key[0]++;
        call(&s, run_twice, 1);
        *(i ? &fake.fail_recorded_add : &fake.full_end) = true;
        const int added = fake.added;
        for (int j = 0; j < 3; j++)
            call(&s, run_twice, 2);
        CHECK(compute_ok(&s.c) && fake.live == 0 && !fake.now, "%s", s.c.error.message);
        CHECK(fake.added - added == (i ? 6 : 8), "%d calls: tried once", fake.added - added);
        CHECK(arena_mark(s.c.arena) == 0, "%zu", arena_mark(s.c.arena));
        fake.fail_recorded_add = fake.full_end = false;
    }

    s.key[0]++;
    call(&s, run_twice, 1);
    fake.fail_add = true;
    call(&s, run_twice, 2);
    CHECK(s.c.error.code == ERROR_DEVICE && !fake.now, "a call that fails ends the recording");
    CHECK_CONTAINS(s.c.error.message, "the kernel was refused");
    call(&s, run_twice, 2);
    CHECK(s.c.error.code == ERROR_DEVICE, "and the error sticks");
    fake.fail_add = false;
    s.c.error = (struct error){ 0 };
    s.key[0]++;
    call(&s, run_twice, 1);
    fake.lose_end = true;
    call(&s, run_twice, 2);
    CHECK(s.c.error.code == ERROR_DEVICE_LOST, "a lost device is no refusal");
    fake.lose_end = false;
    s.c.error = (struct error){ 0 };

    unsigned char big[RECORDING_KEY_MAX + 1] = { 0 };
    compute_recorded(&s.c, big, sizeof(big), run_twice, &s.twice);
    CHECK(s.c.error.code == ERROR_INTERNAL, "a key that is too long");
    stage_finish(&s);
}

static void without_a_recorder_and_dry(void) {
    struct stage s;
    stage_init(&s);
    s.c.dry_run = true;
    compute_recorded(&s.c, s.key, sizeof(s.key), run_twice, &s.twice);
    compute_recorded(&s.c, s.key, sizeof(s.key), run_twice, &s.twice);
    CHECK(compute_ok(&s.c) && fake.added == 0 && fake.begun == 0, "a dry run");
    s.c.dry_run = false;
    struct recordings *kept = s.c.recordings;
    s.c.recordings = NULL;
    for (int i = 0; i < 3; i++)
        call(&s, run_twice, 1);
    s.c.recordings = kept;
    CHECK(fake.begun == 0 && fake.added == 6, "nobody to keep it");
    stage_finish(&s);
    recordings_destroy(NULL);
}

int main(void) {
    run_record_replay();
    what_makes_a_sequence();
    the_longest_unused_goes();
    failures();
    without_a_recorder_and_dry();
    return check_done();
}
