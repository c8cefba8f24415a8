/* Previews on the bundled checkpoint. They change no pixel of their own picture, nor of pictures
 * that share its calls, and they resemble the finished picture. A preview by the linear map must
 * show the mean colour of the area that each latent covers; a preview by the VAE must show the
 * whole picture.
 *
 * usage: preview_test MODEL_FOLDER */
#include "engine/loop/pipeline.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>

#define STEPS 12
#define EVERY 5
#define IMAGES 2

struct client {
    struct resolved_request request;
    struct generate_result result;
    bool done;
    int previews, width, height, last_step;
    uint8_t *last[IMAGES];
};

static void on_preview(const struct studio_preview *preview, void *user) {
    struct client *client = user;
    const size_t bytes = (size_t)preview->width * (size_t)preview->height * 3;
    client->previews++;
    client->width = preview->width;
    client->height = preview->height;
    client->last_step = preview->step;
    CHECK(preview->step % EVERY == 0 && preview->steps >= STEPS, "%d of %d", preview->step,
        preview->steps);
    free(client->last[preview->image]);
    client->last[preview->image] = malloc(bytes);
    memcpy(client->last[preview->image], preview->pixels, bytes);
}

static void on_done(struct generate_result *result, const struct error *err, void *user) {
    struct client *client = user;
    CHECK(result, "%s", err ? err->message : "");
    if (result)
        client->result = *result;
    client->done = true;
}

static void begin(struct pipeline *pipeline, struct client *client, enum scheduler_kind scheduler,
    int every, bool decodes) {
    struct error err = { 0 };
    struct generate_request request;
    char prompt[] = "a red house on green hills", *prompts[1] = { prompt };
    generate_request_init(&request);
    request.prompts = prompts;
    request.prompt_count = 1;
    request.num_images = IMAGES;
    request.seed = 7;
    request.seed_given = true;
    request.guidance_scale = 2.5;
    request.num_inference_steps = STEPS;
    request.scheduler.has_kind = true;
    request.scheduler.kind = scheduler;
    *client = (struct client){ 0 };
    const struct studio_hooks hooks = { .done = on_done,
        .preview = on_preview,
        .preview_every = every,
        .preview_decodes = decodes,
        .user = client };
    CHECK(pipeline_resolve(pipeline, &request, &client->request, &err), "%s", err.message);
    CHECK(studio_admit(pipeline_studio(pipeline), &client->request, &hooks, 0, &err), "%s",
        err.message);
}

static void draw(struct pipeline *pipeline) {
    struct error err = { 0 };
    while (!studio_is_idle(pipeline_studio(pipeline)))
        CHECK(studio_work(pipeline_studio(pipeline), &err), "%s", err.message);
}

static void finish(struct client *client) {
    for (int i = 0; i < IMAGES; i++)
        free(client->last[i]);
    generate_result_finish(&client->result);
    resolved_request_finish(&client->request);
}

static bool are_equal(const struct client *a, const struct client *b) {
    const size_t bytes = (size_t)a->result.width * (size_t)a->result.height * 3;
    bool equal = true;
    for (int i = 0; i < IMAGES; i++)
        equal = equal && memcmp(a->result.images[i], b->result.images[i], bytes) == 0;
    return equal;
}

/* Computes the mean difference between the last previews and the finished pictures, scaled down to
 * the previews' size. *grey is what the difference would be if each preview had one flat colour,
 * the picture's mean. */
static void compare(const struct client *client, double *difference, double *grey) {
    const int w = client->width, h = client->height, px = client->result.width / w;
    double sum = 0, flat = 0;
    for (int i = 0; i < IMAGES; i++) {
        const uint8_t *picture = client->result.images[i];
        for (int k = 0; k < 3; k++) {
            double all = 0;
            for (int p = 0; p < client->result.width * client->result.height; p++)
                all += picture[p * 3 + k];
            all /= client->result.width * client->result.height;
            for (int y = 0; y < h; y++)
                for (int x = 0; x < w; x++) {
                    double mean = 0;
                    for (int v = y * px; v < (y + 1) * px; v++)
                        for (int u = x * px; u < (x + 1) * px; u++)
                            mean += picture[(v * client->result.width + u) * 3 + k];
                    mean /= px * px;
                    sum += fabs(mean - client->last[i][(y * w + x) * 3 + k]);
                    flat += fabs(mean - all);
                }
        }
    }
    *difference = sum / (IMAGES * 3 * w * h);
    *grey = flat / (IMAGES * 3 * w * h);
}

int main(int argc, char **argv) {
    static const struct {
        enum scheduler_kind scheduler;
        bool decodes;
    } rows[] = { { SCHEDULER_DDIM, false }, { SCHEDULER_DDIM, true }, { SCHEDULER_EULER, false },
        { SCHEDULER_EULER_ANCESTRAL, true }, { SCHEDULER_DPMPP_2M, false } };
    struct error err = { 0 };
    struct pipeline *pipeline;
    if (argc != 2) {
        printf("usage: preview_test MODEL_FOLDER\n");
        return 2;
    }
    struct pipeline_options options = { .model_path = argv[1] };
    options.device.kind = DEVICE_CPU;
    CHECK(pipeline_create(&options, &pipeline, &err), "%s", err.message);
    for (size_t i = 0; pipeline && i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct client plain, with, beside;
        double difference, grey;
        begin(pipeline, &plain, rows[i].scheduler, 0, false);
        draw(pipeline);
        begin(pipeline, &with, rows[i].scheduler, EVERY, rows[i].decodes);
        begin(pipeline, &beside, rows[i].scheduler, 0, false);
        draw(pipeline);
        CHECK(plain.done && with.done && beside.done, "not all three requests are drawn");
        CHECK(are_equal(&plain, &with), "previews change the picture");
        CHECK(are_equal(&plain, &beside),
            "previews change the picture of another request in the same calls");
        CHECK(plain.previews == 0 && with.previews == IMAGES * ((STEPS - 1) / EVERY), "%d previews",
            with.previews);
        compare(&with, &difference, &grey);
        printf("%s by %s, %dx%d after %d of %d: %.1f of 255 off, where grey is %.1f\n",
            scheduler_get_info(rows[i].scheduler)->name, rows[i].decodes ? "the VAE" : "the map",
            with.width, with.height, with.last_step, STEPS, difference, grey);
        CHECK(
            difference < (rows[i].decodes ? 0.08 : 0.35) * grey, "%.1f of %.1f", difference, grey);
        finish(&plain);
        finish(&with);
        finish(&beside);
    }
    /* No preview is made after the last step: the picture itself follows. */
    struct client at_the_end;
    begin(pipeline, &at_the_end, SCHEDULER_DDIM, STEPS, false);
    draw(pipeline);
    CHECK(at_the_end.done && at_the_end.previews == 0, "%d previews", at_the_end.previews);
    finish(&at_the_end);
    pipeline_destroy(pipeline);
    return check_done();
}
