#include "cluster/launcher.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

/* One row for each launcher; an inner one before those that may have started it. A row counts if
 * all variables marked `needed` are set. */
static const struct {
    const char *name;
    const char *rank, *world; /* needed; without a name of its variable the world is unknown */
    const char *local_rank, *local_world, *node, *nodes;
    const char *tasks_per_node; /* Slurm's list "2(x3),1" in place of local_world */
} rows[] = {
    { "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL, NULL },
    { "mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL, NULL },
    /* SLURM_NTASKS and SLURM_PROCID are set for sbatch's script too, SLURM_STEP_* only by srun. */
    { "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_NODEID",
        "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE" },
    { "a PMIx launcher", "PMIX_RANK", NULL, NULL, NULL, NULL, NULL, NULL },
};

const char *launcher_environment(void *user, const char *name) {
    (void)user;
    return getenv(name);
}

/* Reads a whole number from `least` on. *end is what follows it. */
static bool read_number(const char *text, int least, int *out, char **end) {
    errno = 0;
    const long value = strtol(text, end, 10);
    if (*end == text || errno || value < least || value > INT_MAX)
        return false;
    *out = (int)value;
    return true;
}

/* Leaves *out at -1 if there is no such variable. */
static bool read_variable(
    launcher_get get, void *user, const char *name, int least, int *out, struct error *err) {
    *out = -1;
    const char *text = name ? get(user, name) : NULL;
    char *end;
    if (!text || (read_number(text, least, out, &end) && !*end))
        return true;
    return error_field(err, name, text, "a whole number from %d on", least);
}

/* Reads entry `node` of Slurm's list, in which "2(x3),1" is 2, 2, 2, 1. */
static bool read_tasks(
    launcher_get get, void *user, const char *name, int node, int *out, struct error *err) {
    const char *text = name ? get(user, name) : NULL;
    if (!text || node < 0)
        return true;
    char *at = (char *)text; /* strtol's end is not const */
    for (int first = 0, times; *at; first += times) {
        int tasks;
        times = 1;
        if (!read_number(at, 1, &tasks, &at))
            break;
        if (at[0] == '(' && at[1] == 'x' && (!read_number(at + 2, 1, &times, &at) || *at++ != ')'))
            break;
        if (node - first < times) {
            *out = tasks;
            return true;
        }
        if (*at++ != ',')
            break;
    }
    return error_field(err, name, text, "a list such as 2(x3),1 with an entry for node %d", node);
}

bool launcher_read(launcher_get get, void *user, struct launcher *out, struct error *err) {
    *out = (struct launcher){ 0 };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct cluster_place *p = &out->place;
        if (!get(user, rows[i].rank) || (rows[i].world && !get(user, rows[i].world)))
            continue;
        if (!read_variable(get, user, rows[i].rank, 0, &p->rank, err) ||
            !read_variable(get, user, rows[i].world, 1, &p->world, err) ||
            !read_variable(get, user, rows[i].local_rank, 0, &p->local_rank, err) ||
            !read_variable(get, user, rows[i].local_world, 1, &p->local_world, err) ||
            !read_variable(get, user, rows[i].node, 0, &p->node, err) ||
            !read_variable(get, user, rows[i].nodes, 1, &p->nodes, err) ||
            !read_tasks(get, user, rows[i].tasks_per_node, p->node, &p->local_world, err))
            return false;
        if (p->world >= 0 && p->rank >= p->world)
            return error_field(err, rows[i].rank, get(user, rows[i].rank),
                "less than %s, which is %d", rows[i].world, p->world);
        out->name = rows[i].name;
        return true;
    }
    return true;
}
