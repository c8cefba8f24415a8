/* The recorder. The kernels launched on the engine's stream between begin and end become a CUDA
 * graph, which a replay launches as a whole. */
#include "kernels/cuda/device.h"

#include <stdlib.h>

struct recording {
    cudaGraphExec_t exec; /* owned */
    int launches;
};

static bool recording_now;

bool cuda_is_recording(void) {
    return recording_now;
}

static bool graph_begin(struct error *err) {
    if (!cuda_enter(err))
        return false;
    cuda_forbid_overlap(); /* the kernel before the graph is not known */
    /* Thread-local mode, because other threads may query memory figures during the capture. */
    recording_now = cuda_ok(cudaStreamBeginCapture(cuda_stream(), cudaStreamCaptureModeThreadLocal),
        "starting a graph", err);
    return recording_now;
}

/* Counts the kernels among the graph's nodes. */
static bool count_launches(cudaGraph_t graph, int *out, struct error *err) {
    size_t count = 0;
    if (!cuda_ok(cudaGraphGetNodes(graph, NULL, &count), "counting a graph's nodes", err))
        return false;
    cudaGraphNode_t *nodes = (cudaGraphNode_t *)calloc(count ? count : 1, sizeof(*nodes));
    if (!nodes)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a graph of %zu nodes", count);
    bool ok = cuda_ok(cudaGraphGetNodes(graph, nodes, &count), "reading a graph's nodes", err);
    for (size_t i = 0; ok && i < count; i++) {
        cudaGraphNodeType type;
        ok = cuda_ok(cudaGraphNodeGetType(nodes[i], &type), "reading a graph's node", err);
        *out += ok && type == cudaGraphNodeTypeKernel;
    }
    free(nodes);
    return ok;
}

static bool graph_end(struct recording **out, struct error *err) {
    cudaGraph_t graph = NULL;
    cudaError_t ended = cudaStreamEndCapture(cuda_stream(), &graph);
    recording_now = false;
    if (!out) {
        if (graph)
            (void)cudaGraphDestroy(graph);
        (void)cudaGetLastError();
        return true;
    }
    *out = NULL;
    struct recording *r = (struct recording *)calloc(1, sizeof(*r));
    bool ok = r || error_set(err, ERROR_NO_MEMORY, "no memory for a graph");
    ok = ok && cuda_ok(ended, "ending a graph", err) && count_launches(graph, &r->launches, err) &&
         cuda_ok(cudaGraphInstantiate(&r->exec, graph, 0), "making a graph", err);
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (!ok) {
        free(r);
        return false;
    }
    *out = r;
    return true;
}

static bool graph_replay(const struct recording *recording, struct error *err) {
    cuda_forbid_overlap();
    return cuda_enter(err) &&
           cuda_ok(cudaGraphLaunch(recording->exec, cuda_stream()), "launching a graph", err);
}

static int graph_launches(const struct recording *recording) {
    return recording->launches;
}

static void graph_destroy(struct recording *recording) {
    if (!recording)
        return;
    if (cuda_enter(NULL))
        (void)cudaGraphExecDestroy(recording->exec); /* a queued replay still completes */
    free(recording);
}

const struct recorder cuda_recorder = {
    graph_begin,
    graph_end,
    graph_replay,
    graph_launches,
    graph_destroy,
};
