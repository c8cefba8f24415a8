/* min-SNR weights, compared with diffusers', and how the pictures of a batch share the loss. */
#include "train/loss.h"

#include "tests/train/recorded.h"

#define MAX 16

static double min_snr(const json_t *item, bool v_prediction) {
    const json_t *alphas = json_object_get(item, "alphas_cumprod");
    const json_t *expected = json_object_get(item, v_prediction ? "v" : "epsilon");
    const size_t rows = json_array_size(alphas);
    float table[MAX], weights[MAX];
    int32_t timesteps[MAX];
    for (size_t i = 0; i < rows; i++) {
        table[i] = (float)recorded_at(alphas, i);
        timesteps[i] = (int32_t)i;
    }
    const struct loss_options options = { .v_prediction = v_prediction,
        .snr_gamma = recorded_number(item, "gamma") };
    loss_weights(&options, table, timesteps, (int)rows, weights);
    double worst = 0;
    for (size_t i = 0; i < rows; i++) {
        const double difference = fabs(weights[i] * (double)rows / recorded_at(expected, i) - 1);
        worst = fmax(worst, difference);
        CHECK(difference <= 5e-7, "row %zu: %.9g is not %.9g", i, weights[i] * (double)rows,
            recorded_at(expected, i));
    }
    return worst;
}

static void a_batch_shares_one(void) {
    const float alphas[] = { 0.5f, 0.25f, 0 };
    const int32_t timesteps[] = { 0, 1, 0, 2 };
    float weights[4];
    loss_weights(&(struct loss_options){ 0 }, alphas, timesteps, 4, weights);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(weights[i], 0.25, 0);
    loss_weights(&(struct loss_options){ .prior = true, .prior_loss_weight = 0.5 }, alphas,
        timesteps, 4, weights);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(weights[i], i < 2 ? 0.5 : 0.25, 0);
    /* At zero terminal SNR the weight must be the limit, not 0 / 0. */
    loss_weights(&(struct loss_options){ .snr_gamma = 5 }, alphas, timesteps, 4, weights);
    CHECK_NEAR(weights[3], 0.25, 0);
    loss_weights(&(struct loss_options){ .snr_gamma = 5, .v_prediction = true }, alphas, timesteps,
        4, weights);
    CHECK_NEAR(weights[3], 0, 0);
}

int main(int argc, char **argv) {
    json_t *cases = recorded_load(argc, argv), *item;
    size_t i;
    double worst = 0;
    json_array_foreach(cases, i, item) {
        worst = fmax(worst, min_snr(item, false));
        worst = fmax(worst, min_snr(item, true));
    }
    CHECK(json_array_size(cases) == 6, "%zu cases", json_array_size(cases));
    printf("min-SNR weights of 96 timesteps, worst relative difference %.2g\n", worst);
    json_decref(cases);
    a_batch_shares_one();
    return check_done();
}
