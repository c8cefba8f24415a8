/* The daemon as it is, on the fake engine: what the socket tests talk to. */
#include "server/command/command.h"

#include <jansson.h>

int main(int argc, char **argv) {
    json_object_seed(0);
    return serve_main(argc, argv);
}
