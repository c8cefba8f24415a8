#include "cluster/cluster.h"
#include "cluster/launcher.h"
#include "cluster/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where the module is: a path that replaces the usual places. */
#define MODULE_VARIABLE "LATENTD_CLUSTER_MODULE"
#define MODULE_FILE "cluster-mpi.so"

/* Writes the path of the module. Looks beside the executable (a build folder), in libexec beside
 * the executable's folder (an installation that was moved), and where it was installed. If it is
 * in none of these, the path is the last one. */
static void find_module(char out[PATH_MAX]) {
    const char *given = getenv(MODULE_VARIABLE);
    char program[PATH_MAX - 64];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[length > 0 ? length : 0] = 0;
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = 0;
    if (given) {
        snprintf(out, PATH_MAX, "%s", given);
        return;
    }
    static const char *const beside[] = { "cluster", "../libexec/latentd" };
    for (size_t i = 0; i < 2; i++) {
        snprintf(out, PATH_MAX, "%s/%s/" MODULE_FILE, program, beside[i]);
        if (access(out, R_OK) == 0)
            return;
    }
    snprintf(out, PATH_MAX, "%s/" MODULE_FILE, CLUSTER_MODULE_FOLDER);
}

typedef struct cluster *mpi_opener(double timeout_s, struct error *err);

/* Returns cluster_mpi_open of the module. The module stays loaded: MPI libraries cannot be relied
 * on to unload. */
static mpi_opener *load_module(struct error *err) {
    mpi_opener *open = NULL;
    char path[PATH_MAX];
    find_module(path);
    if (access(path, R_OK) != 0) {
        error_set(err, ERROR_UNSUPPORTED,
            "ranks need %s, which is not installed (latentd builds it where Open MPI's "
            "development files are: -Dmpi=enabled)",
            path);
        return NULL;
    }
    /* Global: plugins of MPI libraries use symbols of the library without being linked to it. */
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!module) {
        error_set(err, ERROR_UNSUPPORTED,
            "ranks need an MPI library (Debian: openmpi-bin); the module cannot be loaded: %s",
            dlerror());
        return NULL;
    }
    const char *version = dlsym(module, "cluster_mpi_version");
    void *symbol = dlsym(module, "cluster_mpi_open");
    if (!version || !symbol || strcmp(version, LATENTD_VERSION) != 0) {
        error_set(err, ERROR_UNSUPPORTED, "%s is of latentd %s; this is latentd %s", path,
            version ? version : "(unknown)", LATENTD_VERSION);
        return NULL;
    }
    memcpy(&open, &symbol, sizeof(open));
    return open;
}

static struct cluster *start_mpi(
    const struct launcher *launcher, double timeout_s, struct error *err) {
    mpi_opener *open = load_module(err);
    struct cluster *c = open ? open(timeout_s, err) : NULL;
    char of[24] = "";
    if (!c || !launcher->name ||
        (launcher->rank == c->place.rank &&
            (launcher->world < 0 || launcher->world == c->place.world)))
        return c;
    if (launcher->world > 0)
        snprintf(of, sizeof(of), " of %d", launcher->world);
    /* Each process alone would do the whole job, in the same folder. */
    error_set(err, ERROR_CONFLICT,
        "%s started this process as rank %d%s, but the MPI library sees rank %d of %d: they do "
        "not belong together (srun needs --mpi=pmix; mpirun must be Open MPI's)",
        launcher->name, launcher->rank, of, c->place.rank, c->place.world);
    c->ops->end(c);
    return NULL;
}

struct cluster *cluster_start(const char *kind, double timeout_s, struct error *err) {
    const bool is_auto = strcmp(kind, "auto") == 0;
    struct launcher launcher;
    if (strcmp(kind, "alone") == 0)
        return cluster_alone(err);
    if (!is_auto && strcmp(kind, "mpi") != 0) {
        error_field(err, "cluster", kind, "one of alone, mpi, auto");
        return NULL;
    }
    if (!launcher_read(launcher_environment, NULL, &launcher, err))
        return NULL;
    if (is_auto && (!launcher.name || launcher.world == 1))
        return cluster_alone(err);
    return start_mpi(&launcher, timeout_s, err);
}
