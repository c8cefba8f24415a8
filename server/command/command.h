/* The commands of the executable. Each takes argv with its own name first and returns the exit
 * status: 0, 1 for a failure, 2 for a wrong command line. */
#ifndef SERVER_COMMAND_COMMAND_H
#define SERVER_COMMAND_COMMAND_H

int serve_main(int argc, char **argv);
int generate_main(int argc, char **argv);
int inspect_main(int argc, char **argv);
int bench_main(int argc, char **argv);

#endif
