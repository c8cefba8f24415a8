/* The loss scale after each step, compared with recorded runs of torch's GradScaler and DeepSpeed's
 * scaler. */
#include "train/optimizer/loss_scaler.h"

#include "tests/train/recorded.h"

int main(int argc, char **argv) {
    json_t *cases = recorded_load(argc, argv), *item, *row;
    size_t i, k, steps = 0, skipped = 0;
    json_array_foreach(cases, i, item) {
        struct loss_scaler scaler = loss_scaler_torch();
        scaler.scale = recorded_number(item, "scale");
        scaler.growth_interval = recorded_integer(item, "window");
        scaler.hysteresis = (int)recorded_integer(item, "hysteresis");
        scaler.min_scale = recorded_number(item, "min_scale");
        json_array_foreach(json_object_get(item, "table"), k, row) {
            const bool taken = loss_scaler_update(&scaler, recorded_at(row, 0) != 0);
            steps++;
            skipped += !taken;
            CHECK(scaler.scale == recorded_at(row, 1), "case %zu step %zu: scale %g is not %g", i,
                k, scaler.scale, recorded_at(row, 1));
            CHECK(taken == (recorded_at(row, 2) != 0), "case %zu step %zu: taken %d", i, k, taken);
        }
    }
    CHECK(steps > 300, "%zu steps", steps);
    printf("%zu runs, %zu steps, %zu skipped: every scale agrees\n", json_array_size(cases), steps,
        skipped);
    json_decref(cases);
    const struct loss_scaler torchs = loss_scaler_torch();
    CHECK(torchs.scale == 65536 && torchs.growth_interval == 2000, "%g", torchs.scale);
    struct loss_scaler none = loss_scaler_none();
    CHECK(loss_scaler_update(&none, false) && !loss_scaler_update(&none, true) && none.scale == 1,
        "a scaler that scales nothing still tells an overflow");
    return check_done();
}
