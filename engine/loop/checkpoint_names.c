#include "engine/loop/checkpoint_names.h"

#include "base/file.h"
#include "base/log.h"
#include "engine/training_job/folder.h"
#include "train/checkpoint.h"

#include <dirent.h>
#include <stdlib.h>

static void refer(
    struct adapters *adapters, const char *job_folder, const char *adapter, int64_t step) {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    char *path = job_folder_checkpoint_adapter(job_folder, step);
    struct error err = { 0 };
    /* A checkpoint of a full fine-tune has no adapter file. */
    if (path && file_exists(path) && job_folder_checkpoint_name(adapter, step, name) &&
        !adapters_refer(adapters, name, path, &err))
        log_warning("%s: %s", name, err.message);
    free(path);
}

void checkpoint_names_update(struct adapters *adapters, const char *job_folder) {
    char adapter[ADAPTER_NAME_MAX_BYTES + 1];
    int64_t *steps;
    size_t count;
    if (!job_folder_adapter_name(job_folder, adapter) ||
        !checkpoint_list(job_folder, &steps, &count, NULL))
        return;
    adapters_forget(adapters, job_folder, true);
    for (size_t i = 0; i < count; i++)
        refer(adapters, job_folder, adapter, steps[i]);
    free(steps);
}

void checkpoint_names_scan(struct adapters *adapters, const char *state_folder) {
    char *jobs = file_join(state_folder, "jobs");
    DIR *dir = jobs ? opendir(jobs) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char *folder = e->d_name[0] == '.' ? NULL : file_join(jobs, e->d_name);
        if (folder)
            checkpoint_names_update(adapters, folder);
        free(folder);
    }
    if (dir)
        closedir(dir);
    free(jobs);
}
