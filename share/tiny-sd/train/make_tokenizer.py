"""Builds a CLIP tokenizer whose merges are learnt from the captions.

All 256 bytes are in the vocabulary, each also as the end of a word, so that any text can be
tokenized. Every word of the captions becomes a single token.
"""
import json
import os
import random
import re
from collections import Counter

from captions import caption
from scenes import sample

# Words that the captions do not use but people may well type. Each becomes one token.
MORE = ('pretty scenery art nice very near by under behind picture painting drawing photo of and '
        'with beautiful small big large tiny dark bright '
        'pink black brown grey golden forest beach island river lake city sky cloud star stars '
        'tree sun moon mountain landscape scene summer autumn windmill dog cat').split()


def byte_letters():
    """Returns the printable letter by which CLIP represents each byte."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    letters = {b: chr(b) for b in printable}
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + len(letters) - len(printable))
    return {b: letters[b] for b in printable + [b for b in range(256) if b not in printable]}


def learn(counts, letters):
    """Merges pairs, most frequent first, until each word is one token. Returns the merges."""
    words = {}
    for word in counts:
        pieces = [letters[b] for b in word.encode()]
        words[word] = pieces[:-1] + [pieces[-1] + '</w>']
    merges = []
    while True:
        pairs = Counter()
        for word, pieces in words.items():
            for pair in zip(pieces, pieces[1:]):
                pairs[pair] += counts[word]
        if not pairs:
            return merges
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        for word, pieces in words.items():
            merged, i = [], 0
            while i < len(pieces):
                if tuple(pieces[i:i + 2]) == best:
                    merged.append(best[0] + best[1])
                    i += 2
                else:
                    merged.append(pieces[i])
                    i += 1
            words[word] = merged


def build(folder):
    if os.path.exists(os.path.join(folder, 'vocab.json')):
        return
    r = random.Random(0)
    counts = Counter()
    for _ in range(20000):
        counts.update(re.findall(r'[a-z]+|[^\sa-z]+', caption(sample(r), r)[0]))
    for word in MORE:
        counts[word] += 1
    letters = byte_letters()
    merges = learn(counts, letters)
    base = list(letters.values())
    tokens = base + [x + '</w>' for x in base] + [a + b for a, b in merges]
    tokens += ['<|startoftext|>', '<|endoftext|>']
    assert len(tokens) == len(set(tokens))
    os.makedirs(folder, exist_ok=True)

    def write(name, value):
        if not isinstance(value, str):
            value = json.dumps(value, ensure_ascii=False, indent=1) + '\n'
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
            f.write(value)

    write('merges.txt', '#version: 0.2\n' + ''.join(f'{a} {b}\n' for a, b in merges))
    special = {'bos_token': '<|startoftext|>', 'eos_token': '<|endoftext|>',
               'unk_token': '<|endoftext|>', 'pad_token': '<|endoftext|>'}
    write('special_tokens_map.json', special)
    write('tokenizer_config.json', dict(
        special, tokenizer_class='CLIPTokenizer', model_max_length=77, add_prefix_space=False,
        do_lower_case=True, errors='replace'))
    write('vocab.json', {t: i for i, t in enumerate(tokens)})
    print(len(counts), 'words,', len(tokens), 'tokens')
