"""What every training here has in common: a budget, averaged weights, a checkpoint.

A run has a number of minutes. Its clock is part of the checkpoint, so a run
that was killed goes on where it stood, the learning rate included; at most
five minutes are lost.
"""
import math
import os
import time

import torch

SEED = 15
SAVE_EVERY = 240  # seconds


def threads():
    torch.set_num_threads(int(os.environ.get('TINY_THREADS', '2')))


class Run:
    def __init__(self, path, parameters, minutes, rate, warm_up, betas=(.9, .99)):
        self.path, self.budget, self.rate, self.warm_up = path, minutes * 60, rate, warm_up
        self.parameters = list(parameters)
        self.average = [p.detach().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=rate, betas=betas,
                                           weight_decay=.01, fused=True)
        self.step, self.used, self.mean_loss = 0, 0.0, None
        torch.manual_seed(SEED)
        if os.path.exists(path):
            self.load()
        self.last = self.saved = time.time()

    @property
    def part(self):
        """How much of the budget is used, from 0 to 1."""
        return self.used / self.budget

    def done(self):
        return self.part >= 1

    def learn(self, loss, clip=1.0):
        """One step: cosine rate after a warm-up, clipped gradients, averaged weights."""
        rate = self.rate * min(1, (self.step + 1) / self.warm_up)
        rate *= .5 * (1 + math.cos(math.pi * min(1, self.part))) * .99 + .01
        for group in self.optimizer.param_groups:
            group['lr'] = rate
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, clip)
        self.optimizer.step()
        self.step += 1
        # The average forgets fast at first and ever more slowly later.
        with torch.no_grad():
            torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters],
                                 max(.0015, 1 / (1 + self.step / 8)))
        value = loss.item()
        self.mean_loss = value if self.mean_loss is None else .98 * self.mean_loss + .02 * value
        now = time.time()
        self.used += min(now - self.last, 5)  # a stopped process uses nothing up
        self.last = now
        if self.step % 50 == 0:
            print(f'step {self.step}  {self.used / 60:.1f} min  rate {rate:.5f}  '
                  f'loss {self.mean_loss:.4f}', flush=True)
        if now - self.saved > SAVE_EVERY:
            self.save()

    def save(self):
        state = {'parameters': [p.detach() for p in self.parameters], 'average': self.average,
                 'optimizer': self.optimizer.state_dict(), 'step': self.step, 'used': self.used,
                 'mean_loss': self.mean_loss, 'random': torch.get_rng_state()}
        torch.save(state, self.path + '.part')
        os.replace(self.path + '.part', self.path)
        self.last = self.saved = time.time()

    def load(self):
        state = torch.load(self.path, weights_only=True)
        with torch.no_grad():
            stored_ones = state['parameters'] + state['average']
            for mine, stored in zip(self.parameters + self.average, stored_ones):
                mine.copy_(stored)
        self.optimizer.load_state_dict(state['optimizer'])
        torch.set_rng_state(state['random'])
        self.step, self.used, self.mean_loss = state['step'], state['used'], state['mean_loss']
        print(f'goes on at step {self.step}, {self.used / 60:.1f} min', flush=True)

    def put_average(self):
        """Puts the averaged weights into the model; call it after the last step."""
        with torch.no_grad():
            for p, mean in zip(self.parameters, self.average):
                p.copy_(mean)
