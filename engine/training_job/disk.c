/* Checks before a full fine-tune begins whether the disk has room for its checkpoints, which take
 * gigabytes each. */
#include "engine/training_job/internal.h"

#include "base/file.h"
#include "train/checkpoint.h"
#include "train/optimizer/optimizer.h"

#include <stdlib.h>

static struct checkpoint_stats stats_of(const struct checkpoint *c, enum component component) {
    struct checkpoint_stats stats;
    checkpoint_get_stats(c, component, &stats);
    return stats;
}

struct training_disk training_disk_of(
    const struct train_config *config, const struct checkpoint *checkpoint) {
    const struct checkpoint_stats unet = stats_of(checkpoint, COMPONENT_UNET);
    const struct checkpoint_stats text = stats_of(checkpoint, COMPONENT_TEXT_ENCODER);
    const bool with_text = config->train_text_encoder;
    const uint64_t numbers = unet.parameters + (with_text ? text.parameters : 0);
    const uint64_t averages = config->use_ema ? numbers * sizeof(float) : 0;
    return (struct training_disk){
        .checkpoint_bytes = numbers * sizeof(float) + averages +
                            optimizer_measure_most(config, (int64_t)numbers),
        .model_bytes = numbers * dtype_size(train_save_dtype(config)) +
                       (with_text ? 0 : text.bytes) + stats_of(checkpoint, COMPONENT_VAE).bytes,
    };
}

/* Returns how many multiples of `every` are above `step` and at most `steps`; 0: of none. */
static int64_t multiples(int64_t every, int64_t step, int64_t steps) {
    return every ? steps / every - step / every : 0;
}

/* Returns how many more checkpoints will exist at the same time besides the `kept` ones, at most. A
 * new checkpoint is written before the oldest is deleted. `epoch`: steps in an epoch; 0: not
 * known. */
static int64_t checkpoints_to_come(
    const struct train_config *config, int64_t step, int64_t steps, int64_t epoch, int64_t kept) {
    const int64_t limit = config->checkpoints_total_limit;
    const int64_t every[] = { config->checkpointing_steps, config->checkpointing_epochs * epoch };
    if (step == steps)
        return 0;
    const bool ends_on_one = (every[0] && steps % every[0] == 0) ||
                             (every[1] && steps % every[1] == 0);
    const int64_t all = multiples(every[0], step, steps) + multiples(every[1], step, steps) +
                        !ends_on_one;
    const int64_t room = limit + 1 > kept ? limit + 1 - kept : 1;
    return limit && all > room ? room : all;
}

/* Rounds up, so that an error never shows a size that seems to fit. */
static unsigned long long mebibytes(double bytes) {
    return (unsigned long long)(bytes / (1 << 20)) + 1;
}

static bool fits(
    const struct training_disk *disk, int64_t checkpoints, const char *folder, struct error *err) {
    const double bytes = (double)disk->checkpoint_bytes * (double)checkpoints +
                         (double)disk->model_bytes;
    uint64_t free_bytes;
    return file_free_bytes(folder, &free_bytes, err) &&
           (bytes <= (double)free_bytes ||
               error_set(err, ERROR_NO_SPACE,
                   "the job writes %llu MiB (checkpoints of %llu MiB: %lld, the model: %llu MiB), "
                   "and %llu MiB are free in %.200s; fewer are kept with checkpoints_total_limit",
                   mebibytes(bytes), mebibytes((double)disk->checkpoint_bytes),
                   (long long)checkpoints, mebibytes((double)disk->model_bytes),
                   (unsigned long long)(free_bytes >> 20), folder));
}

bool training_disk_would_fit(const struct train_config *config, const struct checkpoint *checkpoint,
    const char *folder, struct error *err) {
    const struct training_disk disk = training_disk_of(config, checkpoint);
    const int64_t steps = config->max_train_steps ? config->max_train_steps : 1;
    return fits(&disk, checkpoints_to_come(config, 0, steps, 0, 0), folder, err);
}

bool training_job_disk_fits(const struct training_job *t, struct error *err) {
    const struct train_config *config = t->options.config;
    const char *folder = t->options.folder;
    int64_t *steps;
    size_t kept;
    if (config->method != TRAIN_FULL || !training_job_is_first(t))
        return true;
    if (!checkpoint_list(folder, &steps, &kept, err))
        return false;
    free(steps);
    const int64_t to_come = checkpoints_to_come(config, trainer_step(t->trainer),
        trainer_steps(t->trainer), trainer_epoch_steps(t->trainer), (int64_t)kept);
    return fits(&t->disk, to_come, folder, err);
}
