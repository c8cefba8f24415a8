/* The commands of the executable. Each takes argv with its own name first and returns the exit
 * status: 0, 1 for a failure, 2 for a wrong command line, EXIT_ENGINE_FAILED or
 * EXIT_RUN_AGAIN. */
#ifndef COMMAND_COMMAND_H
#define COMMAND_COMMAND_H

/* The exit status when the device was lost. The same command may succeed in a new process, which a
 * supervisor starts. */
#define EXIT_ENGINE_FAILED 70
/* The exit status when a signal stopped the work and what was done is saved: the same command goes
 * on from there. It is EX_TEMPFAIL of sysexits.h. */
#define EXIT_RUN_AGAIN 75

int key_main(int argc, char **argv);
int serve_main(int argc, char **argv);
int generate_main(int argc, char **argv);
int inspect_main(int argc, char **argv);
int lora_main(int argc, char **argv);
int train_main(int argc, char **argv);
int bench_main(int argc, char **argv);
int tune_main(int argc, char **argv);

#endif
