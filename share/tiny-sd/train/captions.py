"""Describes a scene in words.

The side of the sun or moon ("in the upper left") and the place of the object ("on the left") are
worded differently, so that it is clear which of the two a "left" belongs to. Some captions leave
out attributes, as people do. caption() also returns the attributes that its text names.
"""
ATTRIBUTES = ('sky', 'ground', 'object', 'colour', 'place', 'body', 'side', 'trees', 'clouds',
              'mountains')

NUMBERS = ('no', 'one', 'two', 'three')
OBJECTS = {
    'house': ('house', 'house', 'cottage', 'little house'),
    'castle': ('castle',),
    'boat': ('boat', 'boat', 'sailing boat', 'sailboat', 'ship'),
    'lighthouse': ('lighthouse',),
    'balloon': ('balloon', 'hot air balloon'),
}
PLACES = {
    'left': ('on the left', 'on the left', 'on the left side'),
    'middle': ('in the middle', 'in the middle', 'in the centre'),
    'right': ('on the right', 'on the right', 'on the right side'),
}
# For each ground: its bare names, and phrases for where something on it stands.
GROUNDS = {
    'hills': (('green hills', 'green fields', 'a green meadow'),
              ('on green hills', 'in the green hills', 'in a green meadow')),
    'desert': (('a desert', 'the desert', 'yellow sand'),
               ('in the desert', 'in a desert', 'on yellow sand')),
    'snow': (('snow', 'a snowy field', 'a winter landscape'),
             ('in the snow', 'on a snowy field', 'in winter snow')),
    'sea': (('the sea', 'the ocean', 'blue water'),
            ('on the sea', 'at sea', 'on the water', 'on the ocean')),
}
SKIES = {
    'dawn': ('at dawn', 'at sunrise', 'in the early morning'),
    'noon': ('at noon', 'by day', 'under a blue sky'),
    'sunset': ('at sunset', 'at sunset', 'in the evening', 'at dusk'),
    'night': ('at night', 'at night', 'under the stars', 'on a starry night'),
    'grey': ('on a grey day', 'under a grey sky', 'on a rainy day'),
}
SIDES = ('in the upper {}', 'in the upper {}', 'in the upper {} corner', 'high on the {}',
         'up in the sky on the {}')
TREES = (('tree', 'trees'), ('tree', 'trees'), ('pine tree', 'pine trees'))
MOUNTAINS = ('mountains behind', 'mountains in the distance', 'distant mountains',
             'snowy mountains behind')


def count(number, one, many):
    return f'{NUMBERS[number]} {one if number == 1 else many}'


def thing(a, r, said):
    name = r.choice(OBJECTS[a['object']])
    if 'colour' not in said:
        return f'a {name}'
    return f"{'an' if a['colour'] == 'orange' else 'a'} {a['colour']} {name}"


def where(a, r):
    """Says on which ground the object stands; a balloon is over the ground."""
    names, stands = GROUNDS[a['ground']]
    if a['object'] == 'balloon':
        return f"{r.choice(('over', 'above'))} {r.choice(names)}"
    return r.choice(stands)


def body(a, r, said):
    name = {'sun': 'the sun', 'full moon': r.choice(('a full moon', 'the full moon')),
            'crescent moon': r.choice(('a crescent moon', 'a thin moon'))}[a['body']]
    if 'moon' in name and r.random() < .3:
        name, said['body'] = 'the moon', 'moon'  # the caption does not say full or crescent
    return f"{name} {r.choice(SIDES).format(a['side'])}" if 'side' in said else name


def extras(a, r, said):
    """Everything besides the object, the ground and the sky, in any order."""
    out = []
    if 'body' in said and a['body'] != 'none':
        out.append(body(a, r, said))
    if 'trees' in said and a['trees']:
        kind = r.choice(TREES) if a['ground'] != 'desert' else ('cactus', 'cacti')
        out.append(count(a['trees'], *kind))
    if 'clouds' in said and a['clouds']:
        out.append(count(a['clouds'], 'cloud', 'clouds'))
    if 'mountains' in said and a['mountains']:
        out.append(r.choice(MOUNTAINS))
    r.shuffle(out)
    return out


def choose(a, r, whole):
    """Chooses the attributes that a caption will name: all, most, or very few of them."""
    said = {k: a[k] for k in ATTRIBUTES}
    if whole:
        return said
    dice = r.random()
    if dice < .68:
        return said
    if dice < .9:
        keep = {k for k in ATTRIBUTES if r.random() < .65} | {'object'}
    else:
        keep = {'object'} | {k for k in ('colour', 'place', 'ground', 'sky') if r.random() < .4}
        if r.random() < .25:
            keep -= {'object', 'colour', 'place'}
            keep |= {r.choice(('sky', 'ground'))}
    if 'body' not in keep:
        keep.discard('side')
    return {k: v for k, v in said.items() if k in keep}


def join(lead, parts):
    return ', '.join([' '.join(x for x in lead if x)] + parts)


def caption(a, r, whole=False):
    """Returns a caption, and the attributes that it names."""
    said = choose(a, r, whole)
    sky = r.choice(SKIES[a['sky']]) if 'sky' in said else ''
    if 'object' not in said:
        ground = r.choice(GROUNDS[a['ground']][0]) if 'ground' in said else ''
        return join((ground, sky), extras(a, r, said)), said
    name = thing(a, r, said)
    place = r.choice(PLACES[a['place']]) if 'place' in said else ''
    ground = where(a, r) if 'ground' in said else ''
    more = extras(a, r, said)
    form = r.random()
    if form < .4:
        return join((name, place, ground, sky), more), said
    if form < .55:
        return join((name, ground, place, sky), more), said
    if form < .7 and sky:
        return join((sky + ',', name, place, ground), more), said
    if form < .85 and sky:
        more.insert(r.randrange(len(more) + 1), sky)
        return join((name, place, ground), more), said
    if ground and a['object'] != 'balloon':
        return join((r.choice(GROUNDS[a['ground']][0]), sky, 'with', name, place), more), said
    return join((name, place, ground), [sky] * bool(sky) + more), said


FILLERS = ('a picture of', 'a painting of', 'a photo of', 'a drawing of',
           'a beautiful picture of', 'beautiful')
STRAY = ('beautiful', 'bright', 'dark', 'big', 'small', 'pretty', 'scenery', 'landscape', 'art',
         'nice', 'very')


def clutter(text, r):
    """Makes a caption look as a beginner may type it: with filler words, without commas, or with
    a stray word."""
    if r.random() < .2:
        text = f'{r.choice(FILLERS)} {text}'
    if r.random() < .15:
        text = text.replace(',', '')
    if r.random() < .15:
        words = text.split(' ')
        words.insert(r.randrange(len(words) + 1), r.choice(STRAY))
        text = ' '.join(words)
    return text
