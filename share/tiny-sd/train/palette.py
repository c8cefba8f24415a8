"""The colours of the scenes, and how each sky changes them.

Scenes are drawn (scenes.py) and judged (score.py) by the same tables, so each colour is written in
one place only.
"""

# The colours of each sky: at the top, half-way down, and at the horizon.
SKIES = {
    'dawn': ((122, 136, 204), (222, 178, 208), (255, 216, 182)),
    'noon': ((48, 126, 226), (120, 190, 246), (208, 235, 252)),
    'sunset': ((84, 44, 122), (212, 84, 104), (255, 178, 92)),
    'night': ((8, 10, 40), (20, 25, 70), (34, 42, 96)),
    'grey': ((108, 118, 132), (150, 160, 170), (198, 204, 208)),
}

# The colours of each ground: far away, and near.
GROUNDS = {
    'hills': ((70, 138, 84), (116, 180, 76)),
    'desert': ((206, 156, 94), (230, 190, 118)),
    'snow': ((194, 211, 232), (238, 244, 250)),
    'sea': ((58, 138, 192), (20, 80, 146)),
}

COLOURS = {
    'red': (214, 42, 44),
    'blue': (40, 82, 216),
    'yellow': (250, 208, 40),
    'green': (14, 150, 86),
    'white': (245, 243, 238),
    'purple': (138, 54, 178),
    'orange': (244, 126, 30),
}

# The factors by which the light of each sky darkens a ground's red, green and blue.
LIGHT = {
    'dawn': (.93, .85, .88),
    'noon': (1, 1, 1),
    'sunset': (.88, .70, .64),
    'night': (.38, .44, .60),
    'grey': (.80, .83, .85),
}

# The same factors for objects. They are larger than those of the ground, so that red stays red even
# at night.
OBJECT_LIGHT = {
    'dawn': (.98, .94, .95),
    'noon': (1, 1, 1),
    'sunset': (.95, .86, .84),
    'night': (.84, .84, .92),
    'grey': (.93, .94, .94),
}

BODY = {
    'dawn': (255, 226, 150),
    'noon': (255, 232, 96),
    'sunset': (255, 206, 92),
    'night': (242, 240, 222),
}

PLACES = {'left': .22, 'middle': .5, 'right': .78}


def mix(a, b, t):
    """Returns the colour between a (t = 0) and b (t = 1)."""
    return tuple(int(round(x + (y - x) * t)) for x, y in zip(a, b))


def times(colour, factor):
    """Multiplies a colour by one factor, or by one factor per channel."""
    if not isinstance(factor, tuple):
        factor = (factor,) * 3
    return tuple(max(0, min(255, int(round(c * f)))) for c, f in zip(colour, factor))


def ground_colours(ground, sky):
    """Returns the far and the near colour of a ground under the light of this sky."""
    return tuple(times(c, LIGHT[sky]) for c in GROUNDS[ground])


def object_colour(colour, sky):
    return times(COLOURS[colour], OBJECT_LIGHT[sky])
