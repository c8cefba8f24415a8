/* The chip's utilisation. The CUDA runtime does not report it, so it is read from the driver's
 * management library, if present. The library's few functions are declared here, as its ABI defines
 * them. */
#include "kernels/cuda/device.h"

#include <dlfcn.h>
#include <pthread.h>

typedef struct nvml_device *nvml_device_t;
struct nvml_utilisation {
    unsigned gpu, memory;
};

static struct {
    int (*init)(void);
    int (*by_bus_id)(const char *bus_id, nvml_device_t *out);
    int (*utilisation)(nvml_device_t device, struct nvml_utilisation *out);
    bool usable;
} nvml;

static void load() {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    *(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml.by_bus_id = dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&nvml.utilisation = dlsym(library, "nvmlDeviceGetUtilizationRates");
    nvml.usable = nvml.init && nvml.by_bus_id && nvml.utilisation && nvml.init() == 0;
    if (!nvml.usable)
        dlclose(library);
}

void cuda_utilisation(const char *bus_id, int *percent, int *memory_percent) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    nvml_device_t device;
    struct nvml_utilisation rates;
    *percent = *memory_percent = -1;
    pthread_once(&once, load);
    if (!nvml.usable || nvml.by_bus_id(bus_id, &device) != 0 ||
        nvml.utilisation(device, &rates) != 0)
        return;
    *percent = (int)rates.gpu;
    *memory_percent = (int)rates.memory;
}
