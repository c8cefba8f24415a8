"""The common part of all trainings: a budget of time, averaged weights, and a checkpoint.

A run lasts a given number of minutes. Its checkpoint contains the time used so far. So a run that
was killed continues from its last checkpoint, with the learning rate of that time; at most five
minutes are lost.

A training runs as several processes of one thread each, which learn from
different scenes and average their gradients after each step. On a machine that also does other work
this is far faster than one process of many threads, because at every operator all threads wait for
the slowest one.
"""
import math
import os
import tempfile
import time

import torch
from torch import distributed as dist
from torch import multiprocessing

SEED = 15
SAVE_EVERY = 240  # seconds


WORKERS = int(os.environ.get('TINY_WORKERS', '2'))


def worker(rank, train, meeting, arguments):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method='file://' + meeting, rank=rank, world_size=WORKERS)
    train(*arguments)
    dist.destroy_process_group()


def in_parallel(train, *arguments):
    """Runs train(*arguments) in WORKERS processes that are connected by torch.distributed."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(worker, (train, os.path.join(folder, 'meeting'), arguments), WORKERS)


class Run:
    def __init__(self, path, parameters, minutes, rate, warm_up, betas=(.9, .99)):
        self.path, self.budget, self.rate, self.warm_up = path, minutes * 60, rate, warm_up
        self.parameters = list(parameters)
        self.average = [p.detach().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=rate, betas=betas,
                                           weight_decay=.01, fused=True)
        self.step, self.used, self.mean_loss = 0, 0.0, None
        if os.path.exists(path):
            self.load()
        self.rank = dist.get_rank()
        torch.manual_seed(SEED + 100 * self.step + self.rank)
        self.last = self.saved = time.time()

    @property
    def part(self):
        """The fraction of the budget that is used, from 0 to 1."""
        return self.used / self.budget

    def done(self):
        return self.part >= 1

    def learn(self, loss, clip=1.0):
        """Makes one optimizer step: the rate follows a cosine after a warm-up, gradients are
        clipped, and the average of the weights is updated."""
        rate = self.rate * min(1, (self.step + 1) / self.warm_up)
        rate *= .5 * (1 + math.cos(math.pi * min(1, self.part))) * .99 + .01
        for group in self.optimizer.param_groups:
            group['lr'] = rate
        self.optimizer.zero_grad()
        loss.backward()
        value = self.share(loss.item())
        torch.nn.utils.clip_grad_norm_(self.parameters, clip)
        self.optimizer.step()
        self.step += 1
        # At first the average quickly forgets older weights, later more and more slowly.
        with torch.no_grad():
            torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters],
                                 max(.0015, 1 / (1 + self.step / 8)))
        self.mean_loss = value if self.mean_loss is None else .98 * self.mean_loss + .02 * value
        now = time.time()
        self.used += min(now - self.last, 5)  # a pause of the process costs 5 s at most
        self.last = now
        if self.rank == 0:
            self.report(rate)

    def share(self, loss):
        """Averages gradients, clock and loss over the workers; returns the average loss."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients] + [torch.tensor([self.used, loss])])
        dist.all_reduce(flat)
        flat /= WORKERS
        parts = flat[:-2].split([g.numel() for g in gradients])
        torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(parts, gradients)])
        self.used = flat[-2].item()
        return flat[-1].item()

    def report(self, rate):
        if self.step % 50 == 0:
            print(f'step {self.step}  {self.used / 60:.1f} min  rate {rate:.5f}  '
                  f'loss {self.mean_loss:.4f}', flush=True)
        if self.last - self.saved > SAVE_EVERY:
            self.save()

    def save(self):
        if self.rank:
            return
        state = {'parameters': [p.detach() for p in self.parameters], 'average': self.average,
                 'optimizer': self.optimizer.state_dict(), 'step': self.step, 'used': self.used,
                 'mean_loss': self.mean_loss}
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
        self.step, self.used, self.mean_loss = state['step'], state['used'], state['mean_loss']
        print(f'goes on at step {self.step}, {self.used / 60:.1f} min', flush=True)

    def put_average(self):
        """Puts the averaged weights into the model; call it after the last step."""
        with torch.no_grad():
            for p, mean in zip(self.parameters, self.average):
                p.copy_(mean)
