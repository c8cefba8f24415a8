/* What a device's tuner measures, for kcheck --bench. */
#include "tests/kernels/kcheck.h"

#include <string.h>

double measure_cublaslt(const struct kcheck *k, int first, double *ours) {
    const struct tuner *tuner = k->table->tuner;
    double best = 0;
    *ours = 0;
    for (int problem = first; tuner && problem < tuner->problem_count(); problem++)
        for (int i = 0; i < tuner->candidate_count(problem); i++) {
            char name[TUNER_NAME_BYTES];
            struct tuner_result result;
            struct error err = { 0 };
            tuner->candidate_name(problem, i, name);
            if (strncmp(name, "cublaslt ", 9) != 0)
                continue;
            if (!tuner->try_candidate(problem, i, &result, &err))
                printf("%s: %s\n", name, err.message);
            else if (result.verdict != TUNER_RIGHT)
                printf("%s is not right: %s\n", name, result.why);
            else if (best == 0 || result.us * 1e-6 < best)
                best = result.us * 1e-6;
            if (best > 0 && *ours == 0 && tuner->try_candidate(problem, 0, &result, &err) &&
                result.verdict == TUNER_RIGHT)
                *ours = result.us * 1e-6;
        }
    if (tuner)
        tuner->end();
    return best;
}
