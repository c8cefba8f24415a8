#include "command/jobs.h"

#include "base/log.h"

static bool start(struct jobs *jobs, const struct training_options *training, struct error *err) {
    if (!dispatcher_create(jobs->queue, &jobs->dispatcher, err))
        return false;
    struct training_options options = *training;
    options.dispatcher = jobs->dispatcher;
    return training_create(&options, &jobs->training, err);
}

bool jobs_open(struct jobs *jobs, const struct training_options *training, struct error *err) {
    if (!training->folder) {
        error_set(&jobs->none, ERROR_NOT_FOUND,
            "this daemon keeps no jobs; start it with --state-dir FOLDER");
        return true;
    }
    if (queue_open(training->folder, &jobs->queue, &jobs->none))
        return start(jobs, training, err);
    if (jobs->none.code == ERROR_IO || jobs->none.code == ERROR_NO_SPACE) {
        log_error("no jobs are taken: %s", jobs->none.message);
        return true;
    }
    if (err)
        *err = jobs->none;
    return error_prefix(err, "--state-dir");
}

void jobs_stop(struct jobs *jobs) {
    if (jobs->dispatcher)
        dispatcher_stop(jobs->dispatcher);
}

void jobs_close(struct jobs *jobs) {
    dispatcher_destroy(jobs->dispatcher);
    training_destroy(jobs->training);
    queue_destroy(jobs->queue);
}
