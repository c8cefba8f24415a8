/* Who started this process, by tables of environments, and what cluster_start makes of it. */
#include "cluster/cluster.h"
#include "cluster/launcher.h"
#include "tests/check.h"

/* "NAME=VALUE NAME=VALUE" */
static const char *get(void *user, const char *name) {
    static char value[64];
    const size_t length = strlen(name);
    for (const char *at = user; at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && at[length] == '=') {
            snprintf(
                value, sizeof(value), "%.*s", (int)strcspn(at + length + 1, " "), at + length + 1);
            return value;
        }
    return NULL;
}

#define MPIRUN                                                                                     \
    "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 "                  \
    "OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=5"
#define BATCH                                                                                      \
    "SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "                 \
    "SLURM_TASKS_PER_NODE=4(x2)"
#define SRUN(rank)                                                                                 \
    "SLURM_JOB_ID=7 SLURM_NTASKS=7 SLURM_PROCID=" rank " SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=0 "  \
    "SLURM_NODEID=0 SLURM_STEP_NUM_NODES=4 SLURM_STEP_TASKS_PER_NODE=odd"

static void launchers(void) {
    static const struct {
        const char *variables, *name;
        int rank, world;
    } rows[] = {
        { "", NULL, 0, 0 },
        { "HOME=/root PATH=/bin", NULL, 0, 0 },
        { MPIRUN, "mpirun", 5, 8 },
        /* mpirun starts its daemons with srun, whose ranks are not the program's. */
        { MPIRUN " " SRUN("0"), "mpirun", 5, 8 },
        { SRUN("6"), "srun", 6, 7 },
        { SRUN("4"), "srun", 4, 7 },
        { SRUN("0") " PMIX_RANK=0", "srun", 0, 7 },
        { BATCH, NULL, 0, 0 },
        { "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", "mpiexec", 1, 2 },
        { "PMIX_RANK=3 PMIX_NAMESPACE=a", "a PMIx launcher", 3, -1 },
        { "OMPI_COMM_WORLD_RANK=5", NULL, 0, 0 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct launcher launcher;
        struct error err = { 0 };
        CHECK(launcher_read(get, (void *)rows[i].variables, &launcher, &err), "%s", err.message);
        CHECK(!launcher.name == !rows[i].name &&
                  (!rows[i].name || strcmp(launcher.name, rows[i].name) == 0),
            "%s: %s", rows[i].variables, launcher.name);
        CHECK(launcher.rank == rows[i].rank && launcher.world == rows[i].world, "%s: rank %d of %d",
            rows[i].variables, launcher.rank, launcher.world);
    }
    printf("%zu environments\n", sizeof(rows) / sizeof(rows[0]));
}

static void senseless_variables_are_named(void) {
    static const char *const rows[][2] = {
        { "OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK: x" },
        { "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=0", "OMPI_COMM_WORLD_SIZE: 0" },
        { "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK: 2" },
        { "OMPI_COMM_WORLD_RANK=-1 OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK: -1" },
        { "PMI_RANK=99999999999 PMI_SIZE=2", "PMI_RANK: 99999999999" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct launcher launcher;
        struct error err = { 0 };
        CHECK(!launcher_read(get, (void *)rows[i][0], &launcher, &err), "%s", rows[i][0]);
        CHECK(err.code == ERROR_INVALID, "%s", error_code_name(err.code));
        CHECK_CONTAINS(err.message, rows[i][1]);
    }
}

static void set_launcher(const char *rank, const char *world) {
    unsetenv("PMIX_RANK");
    unsetenv("SLURM_STEP_NUM_TASKS");
    unsetenv("PMI_RANK");
    unsetenv("OMPI_COMM_WORLD_RANK");
    if (rank) {
        setenv("OMPI_COMM_WORLD_RANK", rank, 1);
        setenv("OMPI_COMM_WORLD_SIZE", world, 1);
    }
}

static void kinds(void) {
    static const struct {
        const char *kind, *rank, *world, *module;
        enum error_code code;
        const char *says; /* the implementation's name, or a part of the error */
    } rows[] = {
        { "alone", NULL, NULL, "/none.so", ERROR_NONE, "alone" },
        { "alone", "1", "2", "/none.so", ERROR_NONE, "alone" },
        { "auto", NULL, NULL, "/none.so", ERROR_NONE, "alone" },
        { "auto", "0", "1", "/none.so", ERROR_NONE, "alone" },
        { "auto", "1", "2", "/none.so", ERROR_UNSUPPORTED, "ranks need /none.so" },
        { "auto", "1", "x", "/none.so", ERROR_INVALID, "OMPI_COMM_WORLD_SIZE: x" },
        { "mpi", NULL, NULL, "/none.so", ERROR_UNSUPPORTED, "ranks need /none.so" },
        { "mpi", NULL, NULL, "/dev/null", ERROR_UNSUPPORTED, "MPI library (Debian: openmpi-bin)" },
        { "gloo", NULL, NULL, "/none.so", ERROR_INVALID, "one of alone, mpi, auto" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err = { 0 };
        set_launcher(rows[i].rank, rows[i].world);
        setenv("LATENTD_CLUSTER_MODULE", rows[i].module, 1);
        struct cluster *c = cluster_start(rows[i].kind, 1, &err);
        CHECK(!c == (rows[i].code != ERROR_NONE) && err.code == rows[i].code, "%s, row %zu: %s",
            rows[i].kind, i, err.message);
        if (c) {
            CHECK_STRING(c->ops->name, rows[i].says);
            CHECK(c->place.rank == 0 && c->place.world == 1 && c->place.nodes == 1, "alone");
            c->ops->end(c);
        } else {
            CHECK_CONTAINS(err.message, rows[i].says);
            printf("%s\n", err.message);
        }
    }
}

int main(void) {
    launchers();
    senseless_variables_are_named();
    kinds();
    return check_done();
}
