/* Gradients of small programs (tape_programs.c) against differences of their outputs, with each
 * parameter moved in two directions. Checkpointing does not change a bit. The plan's memory is
 * compared with the memory taken, and the number of operations in one advance is checked. On a CUDA
 * device the gradients must be the reference's. Hooks come where tape.h says, and weights are
 * needed only between theirs.
 *
 * usage: tape_test [cuda] */
#include "kernels/devices.h"
#include "kernels/tape/plan.h"
#include "tests/check.h"
#include "tests/kernels/tape/hook_watch.h"
#include "tests/kernels/tape/tape_programs.h"

#include <stdlib.h>

/* The loss is <out, weights>. */
static float loss_weights[1024];

static double loss_of(const struct program *p) {
    struct error err = { 0 };
    const float *out = p->kernels->memory->view(p->out.data, tensor_bytes(&p->out), &err);
    double sum = 0;
    CHECK(out, "%s", err.message);
    for (int64_t i = 0; out && i < tensor_elements(&p->out); i++)
        sum += (double)out[i] * (double)loss_weights[i];
    return sum;
}

/* --- a program under a tape --- */

struct taped {
    struct tape_parameter parameters[2 * MOST];
    size_t bytes[2 * MOST][2]; /* of the gradients, by parameter and part */
    int count;
    struct arena *arena; /* shared with other tapes, or NULL */
    struct tape *tape;
    struct hook_watch watch; /* if `watched` */
};

static int64_t panels(int64_t count) {
    return (count + LOW_RANK_PANEL - 1) / LOW_RANK_PANEL * LOW_RANK_PANEL;
}

/* Allocates zeros for a part's gradient, in the layout that the operation uses. */
static float *room_for(const struct kernels *k, const struct variable *v, int part, size_t *bytes) {
    int64_t count = v->count[part];
    struct error err = { 0 };
    void *room;
    if (v->kind == TAPE_PAIR)
        count = panels(v->outer[part]) * v->inner[part] * (part ? 1 : v->taps);
    *bytes = (size_t)(count ? count : 1) * sizeof(float);
    CHECK(k->memory->alloc(MEMORY_WEIGHTS, *bytes, &room, &err) &&
              k->memory->zero(room, *bytes, &err),
        "%s", err.message);
    return room;
}

static struct arena *shared; /* the arena for new tapes, or NULL */
static bool watched;         /* whether new tapes have hooks */

static size_t gradient_bytes(const void *user, int parameter, int part) {
    return ((const struct taped *)user)->bytes[parameter][part];
}

static void tape_start(struct taped *t, struct program *p, const struct program_case *of,
    bool checkpointing, bool dropout) {
    struct error err = { 0 };
    *t = (struct taped){ .count = p->variable_count, .arena = shared };
    for (int i = 0; i < t->count; i++) {
        const struct variable *v = &p->variables[i];
        t->parameters[i] = (struct tape_parameter){ .kind = v->kind,
            .what = v->what,
            .dropout = dropout ? v->dropout : 0,
            .layer = (uint32_t)i,
            .seed = &program_seed,
            .step = &program_step };
        for (int part = 0; part < 2; part++)
            t->parameters[i].gradient[part] = room_for(p->kernels, v, part, &t->bytes[i][part]);
    }
    const struct compute like = { .kernels = p->kernels, .overlay = &p->overlay };
    t->watch = (struct hook_watch){ .kernels = p->kernels,
        .parameters = t->parameters,
        .count = t->count,
        .gradient_bytes = gradient_bytes,
        .user = t,
        .exact = true };
    const struct tape_options options = { t->parameters, t->count, checkpointing, t->arena,
        watched ? hook_watch_call : NULL, &t->watch };
    CHECK(tape_create(&like, of->forward, p, &p->out, &options, &t->tape, &err), "%s: %s", of->name,
        err.message);
}

static void tape_finish(struct taped *t, const struct program *p) {
    for (int i = 0; i < t->count; i++)
        for (int part = 0; part < 2; part++)
            p->kernels->memory->release(
                MEMORY_WEIGHTS, t->parameters[i].gradient[part], t->bytes[i][part]);
    tape_destroy(t->tape);
}

/* Advances until `point`. Returns the number of advances. */
static int go_on(struct taped *t, enum tape_point point) {
    enum tape_point reached = TAPE_BETWEEN;
    struct error err = { 0 };
    int advances = 0;
    do {
        const bool ok = tape_advance(t->tape, &reached, &err);
        CHECK(ok, "%s", err.message);
        if (!ok)
            break;
        advances++;
    } while (reached == TAPE_BETWEEN);
    CHECK(reached == point, "point %d, not %d", (int)reached, (int)point);
    return advances;
}

static int run_pass(struct taped *t, const struct program *p) {
    tape_begin(t->tape);
    const int forward = go_on(t, TAPE_MIDDLE);
    const struct tensor seed = tape_gradient(t->tape, &p->out);
    struct error err = { 0 };
    CHECK(p->kernels->memory->upload(seed.data, loss_weights, tensor_bytes(&seed), &err), "%s",
        err.message);
    return forward + go_on(t, TAPE_END);
}

/* Reads a part's gradient, in the order of the program's numbers. */
static void read_gradient(
    const struct taped *t, const struct program *p, int index, int part, float *to) {
    const struct variable *v = &p->variables[index];
    const float *from = t->parameters[index].gradient[part];
    size_t bytes = t->bytes[index][part];
    struct error err = { 0 };
    if (v->kind == TAPE_INPUT) {
        from = tape_gradient(t->tape, v->what).data;
        bytes = (size_t)v->count[part] * sizeof(float);
    }
    from = p->kernels->memory->view(from, bytes, &err);
    CHECK(from, "%s", err.message);
    if (!from)
        return;
    if (v->kind == TAPE_INPUT || v->taps == 0 || (v->kind == TAPE_WEIGHT && part == 1)) {
        memcpy(to, from, (size_t)v->count[part] * sizeof(float));
        return;
    }
    const int64_t taps = part ? 1 : v->taps, inner = v->inner[part];
    for (int64_t o = 0; o < v->outer[part]; o++)
        for (int64_t i = 0; i < inner; i++)
            for (int64_t tap = 0; tap < taps; tap++) {
                const int64_t at = tap * inner + i; /* taps first */
                to[(o * inner + i) * taps + tap] =
                    v->kind == TAPE_WEIGHT
                        ? from[o * taps * inner + at]
                        : from[(o / LOW_RANK_PANEL * taps * inner + at) * LOW_RANK_PANEL +
                               o % LOW_RANK_PANEL];
            }
}

/* --- against differences --- */

static const struct kernels *kernels;
static float *numbers;

/* Returns the loss with the current numbers, from the plain forward or, with dropout, from the
 * tape's. */
static double loss_with(const struct program_case *of, bool dropout) {
    struct program p;
    double loss;
    program_start(&p, of, kernels, numbers, false);
    if (dropout) {
        struct taped t;
        tape_start(&t, &p, of, false, true);
        tape_begin(t.tape);
        go_on(&t, TAPE_MIDDLE);
        tape_finish(&t, &p);
    } else {
        struct error err = { 0 };
        struct compute c = { .kernels = kernels, .overlay = &p.overlay };
        CHECK(arena_create(kernels->memory, &c.arena, &err) &&
                  compute_plan(&c, of->forward, &p, &err),
            "%s", err.message);
        of->forward(&c, &p);
        CHECK(compute_ok(&c), "%s: %s", of->name, c.error.message);
        arena_destroy(c.arena);
    }
    loss = loss_of(&p);
    program_finish(&p);
    return loss;
}

/* Returns the derivative of the loss by h, at numbers + h direction, with a fourth-order
 * difference. */
static double difference(const struct program_case *of, bool dropout, int64_t first, int64_t count,
    const float *direction, float h) {
    static float before[PROGRAM_NUMBERS];
    static const float steps[] = { 1, -1, 2, -2 };
    static const double weights[] = { 8, -8, -1, 1 };
    double sum = 0;
    memcpy(before, numbers + first, (size_t)count * sizeof(float));
    for (int s = 0; s < 4; s++) {
        for (int64_t i = 0; i < count; i++)
            numbers[first + i] = before[i] + steps[s] * h * direction[i];
        sum += weights[s] * loss_with(of, dropout);
    }
    memcpy(numbers + first, before, (size_t)count * sizeof(float));
    return sum / (12.0 * (double)h);
}

/* Returns the distance of <gradient, direction> from the difference, relative to the gradient's
 * length. */
static double error_along(const struct program_case *of, bool dropout, const struct variable *v,
    int part, const float *gradient, const float *direction, double size) {
    double along = 0;
    for (int64_t i = 0; i < v->count[part]; i++)
        along += (double)gradient[i] * (double)direction[i];
    const double want = difference(of, dropout, v->first[part], v->count[part], direction, 2e-3f);
    return fabs(along - want) / size;
}

static void is_the_slope(
    const struct program_case *of, bool dropout, const struct taped *t, const struct program *p) {
    double worst = 0;
    int parts = 0;
    for (int index = 0; index < p->variable_count; index++) {
        const struct variable *v = &p->variables[index];
        for (int part = 0; part < 2 && v->count[part]; part++, parts++) {
            static float gradient[PROGRAM_NUMBERS], direction[PROGRAM_NUMBERS];
            double square = 0, error[2];
            read_gradient(t, p, index, part, gradient);
            for (int64_t i = 0; i < v->count[part]; i++)
                square += (double)gradient[i] * (double)gradient[i];
            for (int64_t i = 0; i < v->count[part]; i++)
                direction[i] = program_random() < 0 ? -1 : 1;
            error[0] = error_along(of, dropout, v, part, gradient, direction, sqrt(square));
            for (int64_t i = 0; i < v->count[part]; i++)
                direction[i] = (float)((double)gradient[i] / sqrt(square / (double)v->count[part]));
            error[1] = error_along(
                of, dropout, v, part, gradient, direction, sqrt(square * (double)v->count[part]));
            for (int k = 0; k < 2; k++) {
                CHECK(error[k] <= 2e-3,
                    "%s, %s, dropout %d: parameter %d.%d (kind %d) is off by "
                    "%.1e of %.3g in direction %d",
                    kernels->name, of->name, dropout, index, part, (int)v->kind, error[k],
                    sqrt(square), k);
                worst = error[k] > worst ? error[k] : worst;
            }
        }
    }
    printf("%s, %s, dropout %d: %d parameters, at most %.1e from differences\n", kernels->name,
        of->name, dropout, parts, worst);
}

/* --- what a tape promises --- */

static bool same_gradients(const struct program *p, const struct taped *a, const struct taped *b) {
    static float one[PROGRAM_NUMBERS], two[PROGRAM_NUMBERS];
    bool same = true;
    for (int i = 0; i < p->variable_count; i++)
        for (int part = 0; part < 2 && p->variables[i].count[part]; part++) {
            read_gradient(a, p, i, part, one);
            read_gradient(b, p, i, part, two);
            same = same &&
                   memcmp(one, two, (size_t)p->variables[i].count[part] * sizeof(float)) == 0;
        }
    return same;
}

/* Compares the gradients with the reference's for the same numbers. */
static void is_the_reference(
    const struct program_case *of, bool dropout, const struct taped *t, const struct program *p) {
    struct program same;
    struct taped truth;
    double worst = 0;
    int parts = 0;
    program_start(&same, of, kernels_reference(), numbers, false);
    tape_start(&truth, &same, of, false, dropout);
    run_pass(&truth, &same);
    for (int index = 0; index < p->variable_count; index++)
        for (int part = 0; part < 2 && p->variables[index].count[part]; part++, parts++) {
            static float got[PROGRAM_NUMBERS], want[PROGRAM_NUMBERS];
            double square = 0, error = 0;
            read_gradient(t, p, index, part, got);
            read_gradient(&truth, &same, index, part, want);
            for (int64_t i = 0; i < p->variables[index].count[part]; i++) {
                const double w = (double)want[i], d = (double)got[i] - w;
                square += w * w;
                error += d * d;
            }
            error = sqrt(error / square);
            CHECK(error <= 1e-5, "%s, %s, dropout %d: parameter %d.%d is off by %.1e of %.3g",
                kernels->name, of->name, dropout, index, part, error, sqrt(square));
            worst = error > worst ? error : worst;
        }
    printf("%s, %s, dropout %d: %d parameters, at most %.1e from the reference's\n", kernels->name,
        of->name, dropout, parts, worst);
    tape_finish(&truth, &same);
    program_finish(&same);
}

static const struct device_memory *counted; /* the memory that counting_alloc uses */
static size_t taken;                        /* bytes of activations allocated now */

static bool counting_alloc(enum memory_pool pool, size_t bytes, void **out, struct error *err) {
    taken += pool == MEMORY_ACTIVATIONS ? bytes : 0;
    return counted->alloc(pool, bytes, out, err);
}

static void keeps_its_promises(const struct program_case *of, bool dropout) {
    struct program p;
    struct taped whole, cut;
    program_start(&p, of, kernels, numbers, false);
    tape_start(&whole, &p, of, false, dropout);
    taken = 0;
    tape_start(&cut, &p, of, true, dropout);
    const size_t bytes = taken;
    const struct tape_figures f = whole.tape->figures, g = cut.tape->figures;
    CHECK(bytes == tape_bytes(cut.tape), "%s: %zu bytes said, %zu taken", of->name,
        tape_bytes(cut.tape), bytes);
    const int advances = run_pass(&whole, &p), again = run_pass(&cut, &p);
    CHECK(bytes == taken, "%s: %zu bytes more were taken in a pass", of->name, taken - bytes);
    CHECK(advances == f.advances && again == g.advances, "%d and %d advances, not %d and %d",
        advances, again, f.advances, g.advances);
    CHECK(f.advance_flops <= fmax(f.call_flops, f.forward_flops / 32) &&
              g.advance_flops <= fmax(g.call_flops, g.forward_flops / 32),
        "%s: an advance of %.3g", of->name, f.advance_flops);
    CHECK(same_gradients(&p, &whole, &cut), "%s, %s: checkpointing changes bits", kernels->name,
        of->name);
    CHECK(f.segments == 1 && f.again == 0 && g.saved_bytes <= f.saved_bytes,
        "%s: %zu and %zu bytes", of->name, f.saved_bytes, g.saved_bytes);
    printf("%s, %s: %d calls, %d adjoints, saved %zu bytes; cut in %d: %d calls again, %zu bytes\n",
        kernels->name, of->name, f.calls, f.adjoints, f.saved_bytes, g.segments, g.again,
        g.saved_bytes);
    (kernels->device == DEVICE_CPU ? is_the_slope : is_the_reference)(
        of, dropout, dropout ? &cut : &whole, &p);
    tape_finish(&cut, &p);
    tape_finish(&whole, &p);
    program_finish(&p);
}

static bool call_writes(const struct call *call, const struct tape_parameter *to) {
    bool writes = false;
    for (int part = 0; part < 2; part++) {
        for (int i = 0; i < call->tensor_count; i++)
            writes |= call->tensors[i].data && call->tensors[i].data == to->gradient[part];
        const struct low_rank_backward_args *a = &call->args.low_rank_backward;
        for (int i = 0; call->operation == OPERATION_low_rank_backward && i < a->count; i++)
            writes |= to->gradient[part] && (a->gradients[i].down == to->gradient[part] ||
                                                a->gradients[i].up == to->gradient[part]);
    }
    return writes;
}

/* The item before a TAPE_GRADIENT_DONE, other hooks apart, is the last call that writes the
 * gradient; if none does, the item is the first of the backward. */
static void hooks_follow_at_once(const struct taped *t, const char *name) {
    const struct works *program = &t->tape->program;
    for (size_t i = 0; i < program->count; i++) {
        if (program->items[i].hook != TAPE_GRADIENT_DONE)
            continue;
        const struct tape_parameter *of = &t->parameters[program->items[i].index];
        size_t last = i, writer = program->count;
        while (last > t->tape->middle && program->items[last].hook)
            last--;
        for (size_t k = t->tape->middle; k < program->count; k++)
            if (program->items[k].call && call_writes(program->items[k].call, of))
                writer = k;
        CHECK(writer == last || (writer == program->count && last == t->tape->middle),
            "%s: gradient %d is done behind item %zu, not %zu", name, program->items[i].index, last,
            writer);
    }
}

/* Runs two passes with hooks and compares the gradients with those of a pass without. */
static void hooks_keep_their_promises(
    const struct program_case *of, bool checkpointing, bool dropout) {
    struct program p;
    struct taped plain, hooked;
    program_start(&p, of, kernels, numbers, false);
    tape_start(&plain, &p, of, checkpointing, dropout);
    watched = true;
    tape_start(&hooked, &p, of, checkpointing, dropout);
    watched = false;
    int weights;
    (void)tape_weights(plain.tape, &weights);
    CHECK(weights == 0 && plain.tape->figures.advances == hooked.tape->figures.advances,
        "%s: %d weights without hooks, %d and %d advances", of->name, weights,
        plain.tape->figures.advances, hooked.tape->figures.advances);
    (void)tape_weights(hooked.tape, &weights);
    CHECK(weights == p.weight_count, "%s: %d weights of %d", of->name, weights, p.weight_count);
    hooks_follow_at_once(&hooked, of->name);
    int hooks = 0;
    for (int pass = 0; pass < 2; pass++) {
        run_pass(&plain, &p);
        hook_watch_begin(&hooked.watch, hooked.tape);
        run_pass(&hooked, &p);
        hook_watch_end(&hooked.watch, of->name);
        CHECK(pass == 0 || hooks == hooked.watch.hooks, "%s: %d hooks, then %d", of->name, hooks,
            hooked.watch.hooks);
        hooks = hooked.watch.hooks;
    }
    CHECK(
        same_gradients(&p, &plain, &hooked), "%s, %s: hooks change bits", kernels->name, of->name);
    CHECK(hooked.watch.runs >= weights, "%s: %d runs of %d weights", of->name, hooked.watch.runs,
        weights);
    printf("%s, %s, checkpointing %d, dropout %d: %d hooks, %d weights needed %d times; the same "
           "bits with weights poisoned between\n",
        kernels->name, of->name, checkpointing, dropout, hooks, weights, hooked.watch.runs);
    tape_finish(&hooked, &p);
    tape_finish(&plain, &p);
    program_finish(&p);
}

/* Writes numbers to the device memory at `to`. */
static void put(const float *from, size_t bytes, float *to) {
    struct error err = { 0 };
    CHECK(kernels->memory->upload(to, from, bytes, &err), "%s", err.message);
}

/* A pass adds to each gradient once: contents = fl(contents + g), where g is what the pass leaves
 * in zeros. g is the same for any contents only if no call of the pass rounds a part of it. */
static void a_pass_adds_once(bool dropout) {
    static float zeros[PROGRAM_NUMBERS], before[PROGRAM_NUMBERS], g[MOST][2][4096];
    struct program p;
    struct taped t;
    int64_t compared = 0, wrong = 0;
    program_start(&p, program_many_rows, kernels, numbers, true);
    tape_start(&t, &p, program_many_rows, false, dropout);
    for (int64_t i = 0; i < PROGRAM_NUMBERS; i++)
        before[i] = 3 * program_random();
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < t.count; i++)
            for (int part = 0; part < 2; part++)
                if (t.bytes[i][part])
                    put(pass ? before : zeros, t.bytes[i][part], t.parameters[i].gradient[part]);
        run_pass(&t, &p);
        for (int i = 0; i < t.count; i++)
            for (int part = 0; part < 2; part++) {
                struct error err = { 0 };
                const float *now = t.parameters[i].gradient[part]
                                       ? kernels->memory->view(
                                             t.parameters[i].gradient[part], t.bytes[i][part], &err)
                                       : NULL;
                const int64_t count = now ? (int64_t)(t.bytes[i][part] / sizeof(float)) : 0;
                CHECK(count <= 4096, "%lld numbers", (long long)count);
                for (int64_t k = 0; k < count; k++) {
                    wrong += pass && now[k] != before[k] + g[i][part][k];
                    compared += pass;
                    g[i][part][k] = now[k];
                }
            }
    }
    CHECK(!wrong, "%s, dropout %d: %lld of %lld numbers are not fl(contents + g)", kernels->name,
        dropout, (long long)wrong, (long long)compared);
    printf("%s, dropout %d, %d rows: %lld numbers of gradients are fl(contents + g)\n",
        kernels->name, dropout, program_many_rows->rows, (long long)compared);
    tape_finish(&t, &p);
    program_finish(&p);
}

/* All rows have the same input. Without dropout they have the same output. With dropout no two do,
 * because each element of a batch has its own random number. */
static void rows_have_masks_of_their_own(bool dropout) {
    static float kept[PROGRAM_NUMBERS];
    struct error err = { 0 };
    struct program p;
    struct taped t;
    program_start(&p, program_many_rows, kernels, numbers, true);
    program_finish(&p);
    memcpy(kept, numbers, sizeof(kept));
    const int rows = program_many_rows->rows;
    const int64_t row = p.variables[0].count[0] / rows;
    for (int64_t i = row; i < p.variables[0].count[0]; i++)
        numbers[p.variables[0].first[0] + i] = numbers[p.variables[0].first[0] + i % row];
    program_start(&p, program_many_rows, kernels, numbers, false);
    tape_start(&t, &p, program_many_rows, false, dropout);
    tape_begin(t.tape);
    go_on(&t, TAPE_MIDDLE);
    const size_t bytes = tensor_bytes(&p.out) / (size_t)rows;
    const char *out = kernels->memory->view(p.out.data, tensor_bytes(&p.out), &err);
    int same = 0;
    for (int a = 0; out && a < rows; a++)
        for (int b = 0; b < a; b++)
            same += memcmp(out + (size_t)a * bytes, out + (size_t)b * bytes, bytes) == 0;
    CHECK(same == (dropout ? 0 : rows * (rows - 1) / 2), "%s, dropout %d: %d pairs of rows agree",
        kernels->name, dropout, same);
    printf("%s, dropout %d: %d pairs of %d rows agree\n", kernels->name, dropout, same, rows);
    tape_finish(&t, &p);
    program_finish(&p);
    memcpy(numbers, kept, sizeof(kept));
}

/* Every allocation gets a new address: memory is not freed until the end. */
static struct block {
    char *begin;
    size_t bytes;
} blocks[16];
static int block_count;

static bool other_alloc(enum memory_pool pool, size_t bytes, void **out, struct error *err) {
    if (!host_memory.alloc(pool, bytes, out, err))
        return false;
    if (pool == MEMORY_ACTIVATIONS)
        blocks[block_count++] = (struct block){ *out, bytes };
    return true;
}

static void late_release(enum memory_pool pool, void *block, size_t bytes) {
    if (pool != MEMORY_ACTIVATIONS)
        host_memory.release(pool, block, bytes);
}

/* A small and a large tape share an arena. The large tape enlarges the arena, which may move it.
 * The small tape's passes must give the same bits before and after that. */
static void tapes_share_an_arena(void) {
    struct program p[2];
    struct taped alone[2], together[2];
    struct error err = { 0 };
    const struct kernels *before = kernels;
    struct kernels moving = *kernels_cpu();
    struct device_memory memory = host_memory;
    memory.alloc = other_alloc;
    memory.release = late_release;
    moving.memory = &memory;
    kernels = &moving;
    CHECK(arena_create(kernels->memory, &shared, &err), "%s", err.message);
    struct arena *const arena = shared;
    for (int i = 0; i < 2; i++) {
        const struct program_case *of = &program_cases[i ? 0 : 2];
        program_start(&p[i], of, kernels, numbers, true);
        shared = NULL;
        tape_start(&alone[i], &p[i], of, true, true);
        shared = arena;
        tape_start(&together[i], &p[i], of, true, true);
        if (i == 0) {
            /* pretends that the first tape is much larger */
            const size_t bytes = arena_reserved_bytes(arena);
            arena_release(arena, 0);
            CHECK(arena_reserve(arena, 8 * bytes, &err), "%s", err.message);
        }
        run_pass(&alone[i], &p[i]);
        run_pass(&together[i], &p[i]);
    }
    run_pass(&alone[0], &p[0]);
    run_pass(&together[0], &p[0]);
    const char *at = tape_gradient(together[0].tape, &p[0].out).data;
    bool is_in_the_last = false;
    for (int i = 0; i < block_count; i++)
        if (at >= blocks[i].begin && at < blocks[i].begin + blocks[i].bytes)
            is_in_the_last = blocks[i].bytes == arena_reserved_bytes(arena);
    CHECK(is_in_the_last, "the first tape computes in memory that it does not have");
    for (int i = 0; i < 2; i++) {
        CHECK(same_gradients(&p[i], &alone[i], &together[i]), "sharing an arena changes bits");
        tape_finish(&alone[i], &p[i]);
        tape_finish(&together[i], &p[i]);
        program_finish(&p[i]);
    }
    arena_destroy(arena);
    for (int i = 0; i < block_count; i++)
        host_memory.release(MEMORY_ACTIVATIONS, blocks[i].begin, blocks[i].bytes);
    shared = NULL;
    kernels = before;
}

/* --- refusals --- */

struct simple {
    struct tensor x, y;
    bool noise;
};

static void forward_simple(struct compute *c, void *user) {
    struct simple *s = user;
    const uint64_t zeros[1] = { 0 };
    if (s->noise)
        op_noise(c, &(struct noise_args){ .seeds = zeros, .offsets = zeros, .y = &s->x });
    op_add(c, &(struct add_args){ .a = &s->x, .activation = ACTIVATION_SILU, .y = &s->y });
}

static void little_memory(struct available *out) {
    *out = (struct available){ .bytes = 1000 };
    snprintf(out->why, sizeof(out->why), "the test");
}

static void refuse(const struct compute *like, struct simple *s,
    const struct tape_parameter *parameter, enum error_code code, const char *words) {
    struct error err = { 0 };
    struct tape *tape = NULL;
    const struct tape_options options = { parameter, 1, false };
    CHECK(!tape_create(like, forward_simple, s, &s->y, &options, &tape, &err) && !tape &&
              err.code == code,
        "taken, or refused as %d", (int)err.code);
    CHECK_CONTAINS(err.message, words);
}

/* Without parameters a pass is only the forward, and ends there. */
static void a_forward_needs_no_parameters(void) {
    float x[4] = { 1, 2, 3, 4 }, y[4] = { 0 }, want[4] = { 0 };
    struct simple alone = { tensor_1d(x, DTYPE_F32, 4), tensor_1d(y, DTYPE_F32, 4), false },
                  trained = { tensor_1d(x, DTYPE_F32, 4), tensor_1d(want, DTYPE_F32, 4), false };
    const struct tape_parameter parameter = { .kind = TAPE_INPUT, .what = &trained.x };
    const struct tape_options none = { NULL, 0, false }, one = { &parameter, 1, false };
    const struct compute like = { .kernels = kernels_cpu() };
    struct error err = { 0 };
    struct tape *tape;
    enum tape_point reached = TAPE_BETWEEN;
    CHECK(tape_create(&like, forward_simple, &alone, &alone.y, &none, &tape, &err), "%s",
        err.message);
    tape_begin(tape);
    while (reached == TAPE_BETWEEN && tape_advance(tape, &reached, &err))
        ;
    CHECK(reached == TAPE_END, "it ends at %d: %s", (int)reached, err.message);
    tape_destroy(tape);
    CHECK(tape_create(&like, forward_simple, &trained, &trained.y, &one, &tape, &err), "%s",
        err.message);
    tape_begin(tape);
    for (reached = TAPE_BETWEEN; reached == TAPE_BETWEEN;)
        CHECK(tape_advance(tape, &reached, &err), "%s", err.message);
    CHECK(
        reached == TAPE_MIDDLE && memcmp(y, want, sizeof(y)) == 0 && y[0] != 0, "the same output");
    tape_destroy(tape);
}

static void wrong_uses_are_refused(void) {
    float numbers_of_x[8] = { 1, 2, 3, 4 }, numbers_of_y[8], other[4];
    struct simple s = { tensor_1d(numbers_of_x, DTYPE_F32, 4),
        tensor_1d(numbers_of_y, DTYPE_F32, 4), false };
    const struct tensor unused = tensor_1d(other, DTYPE_F32, 4);
    const struct tape_parameter x = { .kind = TAPE_INPUT, .what = &s.x },
                                nothing = { .kind = TAPE_INPUT, .what = &unused };
    struct compute like = { .kernels = kernels_cpu() };
    refuse(&like, &s, &nothing, ERROR_INVALID, "nothing that is trained reaches the output");
    s.noise = true;
    refuse(&like, &s, &x, ERROR_UNSUPPORTED, "noise cannot be part of a training pass");
    s.noise = false;
    struct device_memory memory = host_memory;
    struct kernels poor = *kernels_cpu();
    memory.available = little_memory;
    poor.memory = &memory;
    like.kernels = &poor;
    refuse(&like, &s, &x, ERROR_NO_MEMORY, "2 MiB of activations are needed and 0 MiB are");

    struct error err = { 0 };
    struct taped t = { 0 };
    enum tape_point point;
    like.kernels = kernels_cpu();
    CHECK(tape_create(&like, forward_simple, &s, &s.y, &(struct tape_options){ &x, 1, false },
              &t.tape, &err),
        "%s", err.message);
    CHECK(!tape_advance(t.tape, &point, &err), "a pass went on that had not begun");
    for (int pass = 0; pass < 2; pass++) {
        tape_begin(t.tape);
        go_on(&t, TAPE_MIDDLE);
        const struct tensor dy = tape_gradient(t.tape, &s.y), dx = tape_gradient(t.tape, &s.x);
        for (int i = 0; i < 4; i++)
            ((float *)dy.data)[i] = 1;
        go_on(&t, TAPE_END);
        CHECK_NEAR(((const float *)dx.data)[0], 0.9276705118714867, 1e-6); /* torch's */
    }
    CHECK(!tape_gradient(t.tape, &unused).data, "a tensor without a gradient has one");
    tape_destroy(t.tape);
    tape_destroy(NULL);
}

static bool silent_hook(void *user, enum tape_hook hook, int index, struct error *err) {
    (void)user;
    (void)hook;
    (void)index;
    (void)err;
    return false;
}

static bool refusing_hook(void *user, enum tape_hook hook, int index, struct error *err) {
    int *left = user;
    (void)hook;
    (void)index;
    return (*left)-- > 0 || error_set(err, ERROR_IO, "the test refuses");
}

/* A hook that returns false ends the pass even if it sets no error. */
static void a_hook_may_fail_silently(void) {
    struct program p;
    struct error err = { 0 };
    struct tape *tape;
    enum tape_point reached = TAPE_BETWEEN;
    program_start(&p, &program_cases[0], kernels_cpu(), numbers, false);
    const struct compute like = { .kernels = kernels_cpu(), .overlay = &p.overlay };
    const struct tape_parameter x = { .kind = TAPE_INPUT, .what = &p.inputs[0] };
    const struct tape_options options = { &x, 1, false, NULL, silent_hook, NULL };
    CHECK(tape_create(&like, program_cases[0].forward, &p, &p.out, &options, &tape, &err), "%s",
        err.message);
    tape_begin(tape);
    while (reached == TAPE_BETWEEN && tape_advance(tape, &reached, &err))
        ;
    CHECK(err.code == ERROR_INTERNAL, "the pass reaches %d: %s", (int)reached, err.message);
    CHECK_CONTAINS(err.message, "failed without an error");
    tape_destroy(tape);
    program_finish(&p);
}

/* A hook that fails ends the pass, at whichever point of it; the next pass is whole. */
static void a_hook_may_fail(void) {
    struct program p;
    struct error err;
    struct tape *tape;
    int left = 0, failed = 0;
    program_start(&p, &program_cases[0], kernels_cpu(), numbers, false);
    struct taped t;
    tape_start(&t, &p, &program_cases[0], true, false);
    const struct compute like = { .kernels = kernels_cpu(), .overlay = &p.overlay };
    const struct tape_options options = { t.parameters, t.count, true, NULL, refusing_hook, &left };
    CHECK(tape_create(&like, program_cases[0].forward, &p, &p.out, &options, &tape, &err), "%s",
        err.message);
    for (bool ended = false; !ended && failed < 1000; failed += !ended) {
        enum tape_point reached = TAPE_BETWEEN;
        left = failed;
        err = (struct error){ 0 };
        tape_begin(tape);
        while (reached != TAPE_END && tape_advance(tape, &reached, &err))
            ;
        ended = reached == TAPE_END && !err.code;
        CHECK(ended || (err.code == ERROR_IO && left < 0), "hook %d: %s", failed, err.message);
        CHECK(ended || !tape_advance(tape, &reached, &err), "a pass goes on that has failed");
    }
    int weights;
    (void)tape_weights(tape, &weights);
    printf("a pass ended at each of its %d hooks\n", failed);
    CHECK(failed > 2 * weights + t.count && failed < 1000, "%d hooks", failed);
    tape_destroy(tape);
    tape_finish(&t, &p);
    program_finish(&p);
}

/* In training all rows of a batch must have the same changes. */
static void rows_must_not_differ(void) {
    struct program p;
    struct error err = { 0 };
    struct tape *tape = NULL;
    program_start(&p, &program_cases[0], kernels_cpu(), numbers, false);
    p.rows[1] = NULL;
    const struct compute like = { .kernels = kernels_cpu(), .overlay = &p.overlay };
    const struct tape_parameter x = { .kind = TAPE_INPUT, .what = &p.inputs[0] };
    CHECK(!tape_create(&like, program_cases[0].forward, &p, &p.out,
              &(struct tape_options){ &x, 1, false }, &tape, &err),
        "rows that differ were taken");
    CHECK_CONTAINS(err.message, "row 1 of a batch in training has other terms than row 0");
    program_finish(&p);
}

/* Tables that count their memory. The reference's attention_backward does not read y, but those of
 * other tables do, so the one here checks that it is given the forward's y. */
static struct kernels reference, cpu;

static bool careful_attention_backward(
    const struct attention_backward_args *args, struct error *err) {
    struct tensor y = *args->y;
    y.data = malloc(tensor_bytes(&y));
    const struct attention_args forward = { .q = args->q,
        .k = args->k,
        .v = args->v,
        .q_offset = args->q_offset,
        .k_offset = args->k_offset,
        .v_offset = args->v_offset,
        .heads = args->heads,
        .head_dim = args->head_dim,
        .scale = args->scale,
        .causal = args->causal,
        .y = &y,
        .lengths = args->lengths };
    CHECK(y.data && kernels_reference()->attention(&forward, err) &&
              memcmp(y.data, args->y->data, tensor_bytes(&y)) == 0,
        "attention_backward was given another y");
    free(y.data);
    return kernels_reference()->attention_backward(args, err);
}

static void all_programs(const struct kernels *table) {
    kernels = table;
    for (int i = 0; i < program_case_count; i++) {
        struct program p;
        program_start(&p, &program_cases[i], kernels, numbers, true);
        program_finish(&p);
        keeps_its_promises(&program_cases[i], false);
        keeps_its_promises(&program_cases[i], true);
        for (int which = 0; which < 4; which++)
            hooks_keep_their_promises(&program_cases[i], which & 1, which & 2);
    }
    for (int dropout = 0; dropout < 2; dropout++) {
        a_pass_adds_once(dropout);
        rows_have_masks_of_their_own(dropout);
    }
}

static bool (*device_low_rank)(const struct low_rank_args *args, struct error *err);

static bool low_rank_without_an_upload(const struct low_rank_args *args, struct error *err) {
    CHECK(args->spans && args->terms, "a pass uploads the terms of a low_rank");
    return device_low_rank(args, err);
}

static int on_cuda(void) {
    struct error err = { 0 };
    const struct kernels *device = devices_open(
        &(struct device_choice){ .kind = DEVICE_CUDA }, &err);
    if (!device)
        return check_no_device(err.message);
    struct kernels cuda = *device;
    struct device_memory counting = *device->memory;
    counted = device->memory;
    counting.alloc = counting_alloc;
    cuda.memory = &counting;
    device_low_rank = device->low_rank;
    cuda.low_rank = low_rank_without_an_upload;
    all_programs(&cuda);
    return check_done();
}

int main(int argc, char **argv) {
    numbers = calloc(PROGRAM_NUMBERS, sizeof(float));
    for (size_t i = 0; i < sizeof(loss_weights) / sizeof(loss_weights[0]); i++)
        loss_weights[i] = program_random();
    if (argc > 1 && strcmp(argv[1], "cuda") == 0) {
        const int status = on_cuda();
        free(numbers);
        return status;
    }
    struct device_memory counting = host_memory;
    counted = &host_memory;
    counting.alloc = counting_alloc;
    reference = *kernels_reference();
    reference.attention_backward = careful_attention_backward;
    cpu = *kernels_cpu();
    reference.memory = cpu.memory = &counting;
    all_programs(&reference);
    all_programs(&cpu);
    a_forward_needs_no_parameters();
    wrong_uses_are_refused();
    rows_must_not_differ();
    a_hook_may_fail();
    a_hook_may_fail_silently();
    tapes_share_an_arena();
    free(numbers);
    return check_done();
}
