/* Compares what the ranks of a job train and what they train on. Ranks that differ would not fail:
 * they would drift apart, each with its own copy of the parameters. */
#include "engine/training_job/internal.h"

#include <stdio.h>

static bool same_digest(
    struct training_job *t, const char *what, const struct digest *digest, struct error *err) {
    char text[DIGEST_TEXT_BYTES];
    digest_to_text(digest, text);
    text[16] = 0; /* enough to tell two apart */
    return agreement_compare(t->options.ranks, what, text, err);
}

static struct digest digest_of_pictures(const struct training_job *t) {
    const struct train_source *s = &t->source;
    struct sha256 sha;
    sha256_begin(&sha);
    for (int64_t i = 0; i < train_source_all(s); i++) {
        const struct placement *p = s->placement(s->user, i);
        const int32_t sizes[] = { p->resized_width, p->resized_height, p->bucket.width,
            p->bucket.height };
        sha256_add(&sha, sizes, sizeof(sizes));
        s->name(s->user, i, &sha);
        for (int which = 0; which < s->captions(s->user, i); which++)
            sha256_add_text(&sha, s->caption(s->user, i, which));
    }
    return sha256_end(&sha);
}

static struct digest digest_of_weights(const struct training_job *t) {
    const struct digest all[] = { t->unet_weights, t->text_encoder_weights, t->vae_weights };
    return sha256_of(all, sizeof(all));
}

bool training_job_ranks_are_alike(struct training_job *t, struct error *err) {
    if (!t->options.ranks)
        return true;
    const struct digest pictures = digest_of_pictures(t), weights = digest_of_weights(t);
    return same_digest(t, "the digest of the data set", &pictures, err) &&
           same_digest(t, "the digest of the base checkpoint", &weights, err);
}
