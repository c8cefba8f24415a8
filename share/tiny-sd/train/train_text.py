"""Trains the text encoder to recognize the attributes that a caption names. It does not change
afterwards, while the UNet is trained.

(Stable Diffusion's own text encoder, too, was finished before its UNet was trained.) Ten small
heads, used in this training only, read the encoder's states at the end of the text and after it.
Each head must name one attribute of the scene, or tell that the caption does not mention it. So the
states that the UNet attends to contain the attributes plainly, and the UNet need not learn to read
captions.
"""
import os
import random
import sys

import torch
import torch.nn.functional as F
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from captions import ATTRIBUTES, caption, clutter
from palette import COLOURS, GROUNDS, PLACES, SKIES
from run import Run, in_parallel
from scenes import sample

WIDTH, LENGTH, BATCH = 128, 77, 32
SAID = {
    'sky': list(SKIES), 'ground': list(GROUNDS), 'colour': list(COLOURS), 'place': list(PLACES),
    'object': ['house', 'castle', 'boat', 'lighthouse', 'balloon'],
    'body': ['none', 'sun', 'full moon', 'crescent moon', 'moon'],
    'side': ['none', 'left', 'right'],
    'trees': [0, 1, 2, 3], 'clouds': [0, 1, 2, 3], 'mountains': [0, 1],
}


def new_text_encoder(tokens):
    return CLIPTextModel(CLIPTextConfig(
        vocab_size=tokens, hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=LENGTH, hidden_act='quick_gelu',
        bos_token_id=tokens - 2, eos_token_id=tokens - 1, pad_token_id=tokens - 1))


def labels(said):
    """Returns one class for each attribute; the last class means "not said"."""
    return [SAID[k].index(said[k]) if k in said else len(SAID[k]) for k in ATTRIBUTES]


def any_scene(r):
    """Returns a scene that could be drawn, or a mix of the attributes of two scenes."""
    a = sample(r)
    if r.random() < .4:
        b = sample(r)
        for k in ('sky', 'colour', 'place', 'trees', 'clouds', 'mountains'):
            if r.random() < .5:
                a[k] = b[k]
        if r.random() < .5:
            a['body'], a['side'] = b['body'], b['side']
    return a


def batch(tokenizer, r, count=BATCH):
    texts, said = zip(*(caption(any_scene(r), r) for _ in range(count)))
    texts = [clutter(t, r) if r.random() < .5 else t for t in texts]
    ids = tokenizer(texts, padding='max_length', max_length=LENGTH, truncation=True).input_ids
    return torch.tensor(ids), torch.tensor([labels(s) for s in said])


def losses(text, heads, ids, said):
    """Returns the sum of the heads' cross entropies, averaged over the end-of-text token and all
    positions after it, and how often each head is right."""
    states = text(ids)[0]
    after = (ids == ids[0, -1]).float()
    weight = after / after.sum(1, keepdim=True)
    loss, right = 0, []
    for k, head in enumerate(heads):
        scores = head(states)
        target = said[:, k:k + 1].expand(ids.shape)
        each = F.cross_entropy(scores.transpose(1, 2), target, reduction='none')
        loss = loss + (each * weight).sum(1).mean()
        right.append(scores[:, -1].argmax(-1) == said[:, k])
    return loss, torch.stack(right).float().mean(1)


def named(shares):
    return ' '.join(f'{k} {v:.3f}' for k, v in zip(ATTRIBUTES, shares.tolist()))


def train(folder, minutes):
    torch.manual_seed(2)
    tokenizer = CLIPTokenizer.from_pretrained(os.path.join(folder, 'tokenizer'))
    text = new_text_encoder(len(tokenizer)).train()
    heads = torch.nn.ModuleList(torch.nn.Linear(WIDTH, len(SAID[k]) + 1) for k in ATTRIBUTES)
    run = Run(os.path.join(folder, 'text.pt'), [*text.parameters(), *heads.parameters()], minutes,
              1.5e-3, 50)
    r = random.Random(2 * run.step + run.rank)
    while not run.done():
        ids, said = batch(tokenizer, r)
        # Positions far behind the end of the text need less training, so only every fourth step
        # includes them.
        length = LENGTH if run.step % 4 == 0 else 52
        loss, right = losses(text, heads, ids[:, :length], said)
        run.learn(loss)
        if run.step % 50 == 0:
            print('  right:', named(right), flush=True)
    run.save()
    if run.rank:
        return
    run.put_average()
    text.eval()
    with torch.no_grad():
        each = [losses(text, heads, *batch(tokenizer, r))[1] for _ in range(10)]
    right = torch.stack(each).mean(0)
    print('heard right:', named(right))
    text.save_pretrained(os.path.join(folder, 'text_encoder'))


def main(folder, minutes):
    in_parallel(train, folder, minutes)


if __name__ == '__main__':
    main(sys.argv[1], float(sys.argv[2]))
