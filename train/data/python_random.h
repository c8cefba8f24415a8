/* The parts of Python's random module that diffusers' training scripts use: for captions
 * (random.choice) and inpainting masks (random.randint). */
#ifndef TRAIN_DATA_PYTHON_RANDOM_H
#define TRAIN_DATA_PYTHON_RANDOM_H

#include "kernels/random/mt19937.h"

/* Does what random.seed(seed) does. */
void python_random_seed(struct mt19937 *mt, uint64_t seed);
/* Does what random.choice(range(count)) does, for a count from 1 to 2^31 - 1. random.randint(a, b)
 * is a + python_random_below(mt, b - a + 1). */
int python_random_below(struct mt19937 *mt, int count);

#endif
