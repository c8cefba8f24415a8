#include "kernels/cpu/cpu.h"

#include <pthread.h>

static struct kernels table;

static void fill_table(void) {
    table = *kernels_reference();
    table.name = "cpu";
    layers_register(&table);
}

const struct kernels *kernels_cpu(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_table);
    return &table;
}
