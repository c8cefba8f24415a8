/* A trainer's sums, compared with sums computed here:
 *
 *   the average of the weights equals diffusers' EMAModel over the values after each step;
 *   the loss of held-out pictures is the mean of the training losses with the same random draws;
 *   a step that is restarted counts only the losses since its last start;
 *   the captions of a picture are drawn about equally often.
 *
 * usage: trainer_sums_test train_losses.json CHECKPOINT */
#include "tests/train/rule_job.h"

#define CAPTIONS 3

static const char *const captions[CAPTIONS] = { "a red house", "a blue boat at night",
    "three trees by the sea" };

static struct rule_checkpoint shared;
static const json_t *recorded; /* train_losses.json */
static char cache_path[] = "/tmp/latentd-sums-XXXXXX";

struct job {
    struct train_config config;
    struct rule_pictures pictures; /* the user of `source` */
    struct train_source source;
    struct weights unet_source, text_source;
    struct unet *unet;
    struct text_encoder *text_encoder;
    struct trainer *trainer;
    struct rule_steps steps;
};

/* Releases `fields`. The trainer is made by begin(). */
static void init(struct job *job, json_t *fields) {
    struct error err = { 0 };
    struct checkpoint *c = shared.checkpoint;
    const int size = (int)recorded_integer(recorded, "size");
    *job = (struct job){ 0 };
    json_object_update_new(fields, json_pack("{s:s, s:s, s:i, s:i}", "name", "test", "dataset",
                                       "test", "seed", 7, "train_batch_size", 1));
    must(train_config_parse(fields, &job->config, &err), &err);
    json_decref(fields);
    job->pictures = rule_pictures_of(recorded, size, size);
    job->source = rule_source_of(&job->pictures);
    job->unet_source = weights_from_checkpoint(c, COMPONENT_UNET, kernels_cpu(), DTYPE_F32);
    job->text_source = weights_from_checkpoint(c, COMPONENT_TEXT_ENCODER, kernels_cpu(), DTYPE_F32);
    must(unet_create(checkpoint_unet_config(c), &job->unet_source, &job->unet, &err) &&
             text_encoder_create(
                 checkpoint_text_encoder_config(c), &job->text_source, &job->text_encoder, &err),
        &err);
}

static void begin(struct job *job) {
    struct error err = { 0 };
    struct trainer_options options = {
        .config = &job->config,
        .source = &job->source,
        .models = rule_checkpoint_models(&shared, job->unet, job->text_encoder),
        .cache = cache_path,
        .stepped = rule_stepped,
        .user = &job->steps,
    };
    options.models.unet_source = &job->unet_source;
    options.models.text_encoder_source = &job->text_source;
    must(trainer_create(&options, &job->trainer, &err), &err);
}

static void advance(struct job *job) {
    struct error err = { 0 };
    must(trainer_advance(job->trainer, &err), &err);
}

static void run(struct job *job) {
    begin(job);
    while (trainer_get_phase(job->trainer) != TRAINER_DONE)
        advance(job);
}

static void finish(struct job *job) {
    trainer_destroy(job->trainer);
    unet_destroy(job->unet);
    text_encoder_destroy(job->text_encoder);
    train_config_finish(&job->config);
}

/* --- the average of the weights --- */

/* The decay of diffusers' EMAModel.get_decay without warm-up. */
static double decay_at(int step, int update_after_step, double most) {
    const int x = step - update_after_step - 1;
    return x <= 0 ? 0 : fmin((1.0 + x) / (10.0 + x), most);
}

/* `steps` [count][floats]: the values after each step. out: their average. */
static void average_of(
    const float *steps, int count, int64_t floats, int update_after_step, double *out) {
    for (int s = 1; s <= count; s++) {
        const double decay = decay_at(s, update_after_step, 0.3);
        for (int64_t i = 0; i < floats; i++)
            out[i] = decay * out[i] + (1 - decay) * (double)steps[(s - 1) * floats + i];
    }
}

static double distance(const float *a, const double *b, int64_t count) {
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)a[i] - b[i]));
    return most;
}

static void the_average_is_that_of_ema_model(int update_after_step) {
    enum { AVERAGED = 7 };
    struct error err = { 0 };
    struct job job;
    init(&job,
        json_pack("{s:f, s:i, s:b, s:f, s:i}", "learning_rate", 1e-2, "max_train_steps", AVERAGED,
            "use_ema", 1, "ema_decay", 0.3, "ema_update_after_step", update_after_step));
    begin(&job);
    const struct parameters *p = trainer_parameters(job.trainer);
    const int64_t floats = p->floats;
    float *values = malloc(sizeof(float) * (size_t)floats * AVERAGED);
    double *average = calloc((size_t)floats, sizeof(*average));
    double *early = calloc((size_t)floats, sizeof(*early));
    for (int step = 1; step <= AVERAGED; step++) {
        while (trainer_step(job.trainer) < step)
            advance(&job);
        memcpy(values + (step - 1) * floats, p->values, sizeof(float) * (size_t)floats);
    }
    average_of(values, AVERAGED, floats, update_after_step, average);
    average_of(values, AVERAGED, floats, update_after_step - 1, early);
    const float *own = trainer_values(job.trainer, &err);
    must(own, &err);
    const double gap = distance(own, average, floats), shift = distance(own, early, floats);
    printf("the average of %d steps, from step %d on: %.2g from EMAModel's; one step early it "
           "would be %.2g\n",
        AVERAGED, update_after_step, gap, shift);
    CHECK(gap <= 1e-7, "the average differs by %g", gap);
    CHECK(shift >= 1e-5, "a step more would not show: %g", shift);
    free(values);
    free(average);
    free(early);
    finish(&job);
}

/* --- held-out pictures --- */

/* Returns the first picture for every item. */
static bool first_pixels(
    void *user, int64_t item, const struct crop *crop, float *out, float *mask, struct error *err) {
    (void)item;
    return rule_pixels(user, 0, crop, out, mask, err);
}

static void first_name(void *user, int64_t item, struct sha256 *to) {
    (void)item;
    rule_name(user, 0, to);
}

static const char *one_caption(void *user, int64_t item, int which) {
    (void)user, (void)item, (void)which;
    return captions[0];
}

/* A full fine-tune draws no random numbers before its first batch, so its first steps use the same
 * draws as the held-out pictures. With a learning rate of 0 the weights do not change. */
static void held_out_loss_is_the_mean_of_its_draws(void) {
    enum { HELD_OUT = 2, DRAWS = 4 * HELD_OUT };
    struct error err = { 0 };
    struct job job;
    init(&job, json_pack("{s:s, s:f, s:i, s:i, s:f}", "method", "full", "learning_rate", 0.0,
                   "max_train_steps", DRAWS, "validation_steps", DRAWS, "validation_share", 0.5));
    job.source.count = 1;
    job.source.held_out = HELD_OUT;
    job.source.pixels = first_pixels;
    job.source.name = first_name;
    job.source.caption = one_caption;
    run(&job);
    double mean = 0, loss = NAN;
    bool done = false;
    for (int i = 0; i < DRAWS; i++)
        mean += job.steps.losses[i] / DRAWS;
    while (!done)
        must(trainer_measure(job.trainer, &done, &loss, &err), &err);
    printf("%d draws of %d held-out pictures: a loss of %.9g, and %.9g in training\n", DRAWS,
        HELD_OUT, loss, mean);
    CHECK(fabs(loss / mean - 1) <= 1e-6, "%.9g is not %.9g", loss, mean);
    finish(&job);
}

/* --- a step that is restarted --- */

/* Reads the values in the middle of every step, each time further into the step than in the step
 * before. Reading them restarts the step. */
static void run_disturbed(struct job *job) {
    struct error err = { 0 };
    begin(job);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 2 * step + 1 && trainer_step(job->trainer) == step; i++)
            advance(job);
        must(trainer_values(job->trainer, &err), &err);
        while (trainer_step(job->trainer) == step)
            advance(job);
    }
}

static void a_step_counts_its_last_beginning(void) {
    struct job jobs[2];
    for (int i = 0; i < 2; i++) {
        init(&jobs[i], json_pack("{s:s, s:f, s:i, s:i}", "method", "full", "learning_rate", 1e-4,
                           "max_train_steps", STEPS, "gradient_accumulation_steps", 2));
        (i ? run_disturbed : run)(&jobs[i]);
    }
    double worst = 0;
    for (int i = 0; i < STEPS; i++)
        worst = fmax(worst, fabs(jobs[1].steps.losses[i] / jobs[0].steps.losses[i] - 1));
    printf("%d steps of two batches, each begun anew after 1 to %d pieces: losses %.2g away\n",
        STEPS, 2 * STEPS - 1, worst);
    CHECK(worst == 0, "losses differ by %g", worst);
    for (int i = 0; i < 2; i++)
        finish(&jobs[i]);
}

/* --- captions --- */

static int several_captions(void *user, int64_t item) {
    (void)user, (void)item;
    return CAPTIONS;
}

static const char *caption_by_number(void *user, int64_t item, int which) {
    (void)user, (void)item;
    return captions[which];
}

static int only_caption; /* used by always_caption */

static const char *always_caption(void *user, int64_t item, int which) {
    (void)user, (void)item, (void)which;
    return captions[only_caption];
}

/* With a learning rate of 0 a step's loss shows which caption was drawn: it equals the loss of a
 * job in which every caption is this one and all other draws are the same. */
static void captions_are_drawn_alike(void) {
    double losses[CAPTIONS][STEPS];
    int drawn[CAPTIONS] = { 0 };
    struct job job;
    for (int i = 0; i <= CAPTIONS; i++) {
        init(&job, json_pack("{s:f, s:i}", "learning_rate", 0.0, "max_train_steps", STEPS));
        job.source.captions = several_captions;
        job.source.caption = i < CAPTIONS ? always_caption : caption_by_number;
        only_caption = i;
        run(&job);
        if (i < CAPTIONS)
            memcpy(losses[i], job.steps.losses, sizeof(losses[i]));
        else
            break;
        finish(&job);
    }
    for (int step = 0; step < STEPS; step++) {
        int equal = 0;
        for (int i = 0; i < CAPTIONS; i++)
            if (losses[i][step] == job.steps.losses[step]) {
                equal++;
                drawn[i]++;
            }
        CHECK(equal == 1, "step %d has the loss of %d captions", step, equal);
    }
    finish(&job);
    printf("%d captions in %d steps: drawn %d, %d and %d times\n", CAPTIONS, STEPS, drawn[0],
        drawn[1], drawn[2]);
    for (int i = 0; i < CAPTIONS; i++)
        CHECK(drawn[i] >= STEPS / CAPTIONS / 2, "caption %d is drawn %d times", i, drawn[i]);
}

int main(int argc, char **argv) {
    json_error_t why = { .text = "usage: trainer_sums_test train_losses.json CHECKPOINT" };
    json_t *file = argc == 3 ? json_load_file(argv[1], 0, &why) : NULL;
    must(file, &(struct error){ .message = "no recorded losses" });
    recorded = file;
    must_make(cache_path);
    rule_checkpoint_open(&shared, argv[2], kernels_cpu());
    the_average_is_that_of_ema_model(0);
    the_average_is_that_of_ema_model(2);
    held_out_loss_is_the_mean_of_its_draws();
    a_step_counts_its_last_beginning();
    captions_are_drawn_alike();
    rule_checkpoint_close(&shared);
    remove_folder(cache_path);
    json_decref(file);
    return check_done();
}
