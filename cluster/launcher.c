#include "cluster/launcher.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

/* One row for each launcher; an inner one before those that may have started it. A row counts if
 * all variables marked `needed` are set. */
static const struct {
    const char *name;
    const char *rank, *world; /* needed; without a name of its variable the world is unknown */
} rows[] = {
    { "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
    { "mpiexec", "PMI_RANK", "PMI_SIZE" },
    /* SLURM_NTASKS and SLURM_PROCID are set for sbatch's script too, SLURM_STEP_* only by srun. */
    { "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS" },
    { "a PMIx launcher", "PMIX_RANK", NULL },
};

const char *launcher_environment(void *user, const char *name) {
    (void)user;
    return getenv(name);
}

/* Reads a whole number from `least` on. Leaves *out at -1 if there is no such variable. */
static bool read_variable(
    launcher_get get, void *user, const char *name, int least, int *out, struct error *err) {
    *out = -1;
    const char *text = name ? get(user, name) : NULL;
    char *end;
    if (!text)
        return true;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < least || value > INT_MAX)
        return error_field(err, name, text, "a whole number from %d on", least);
    *out = (int)value;
    return true;
}

bool launcher_read(launcher_get get, void *user, struct launcher *out, struct error *err) {
    *out = (struct launcher){ 0 };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (!get(user, rows[i].rank) || (rows[i].world && !get(user, rows[i].world)))
            continue;
        if (!read_variable(get, user, rows[i].rank, 0, &out->rank, err) ||
            !read_variable(get, user, rows[i].world, 1, &out->world, err))
            return false;
        if (out->world >= 0 && out->rank >= out->world)
            return error_field(err, rows[i].rank, get(user, rows[i].rank),
                "less than %s, which is %d", rows[i].world, out->world);
        out->name = rows[i].name;
        return true;
    }
    return true;
}
