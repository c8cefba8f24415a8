"""Paints a scene's object (house, castle, boat, lighthouse or balloon).

Each painter takes the object's position (x, and y of its foot; of a balloon, y of its middle), its
colour, the factors by which the light darkens its other colours, and whether its windows are lit.
"""
from palette import times

LAMP = (255, 226, 122)
GLASS = (188, 222, 242)


def house(brush, x, y, colour, light, lit):
    w, h = .115, .135
    roof, wood = times((104, 66, 70), light), times((92, 58, 42), light)
    brush.box(x + .05, y - h - .095, x + .078, y - h - .01, times((120, 92, 88), light))
    brush.box(x - w, y - h, x + w, y, colour)
    brush.box(x - w, y - .016, x + w, y, times(colour, .82))
    brush.shape([(x - w - .03, y - h), (x + w + .03, y - h), (x, y - h - .105)], roof)
    brush.box(x - .08, y - .1, x - .022, y - .048, LAMP if lit else GLASS)
    brush.box(x + .026, y - .09, x + .078, y, wood)


def castle(brush, x, y, colour, light, lit):
    roof = times((86, 84, 112), light)
    window = LAMP if lit else times((60, 58, 78), light)
    brush.box(x - .09, y - .115, x + .09, y, times(colour, .9))
    for i in range(4):
        brush.box(x - .078 + i * .045, y - .137, x - .054 + i * .045, y - .11, times(colour, .9))
    for side in (-1, 1):
        tower = x + side * .1
        brush.box(tower - .034, y - .165, tower + .034, y, colour)
        brush.shape([(tower - .046, y - .165), (tower + .046, y - .165), (tower, y - .25)], roof)
        brush.box(tower - .011, y - .13, tower + .011, y - .09, window)
    brush.box(x - .026, y - .06, x + .026, y, times((78, 52, 44), light))
    brush.disc(x, y - .06, .026, .022, times((78, 52, 44), light))


def boat(brush, x, y, colour, light, lit):
    hull, mast = times((124, 76, 48), light), times((88, 60, 44), light)
    brush.box(x - .007, y - .235, x + .007, y, mast)
    brush.shape([(x + .016, y - .235), (x + .016, y - .022), (x + .125, y - .022)], colour)
    brush.shape([(x - .016, y - .2), (x - .016, y - .022), (x - .1, y - .022)], times(colour, .86))
    brush.shape([(x - .13, y - .006), (x + .13, y - .006),
                 (x + .09, y + .054), (x - .09, y + .054)], hull)
    brush.shape([(x - .13, y - .006), (x + .13, y - .006),
                 (x + .12, y + .01), (x - .12, y + .01)], times(hull, 1.3))


def lighthouse(brush, x, y, colour, light, lit):
    rock, dark = times((104, 100, 108), light), times((62, 60, 74), light)
    y += .03
    brush.disc(x, y, .125, .032, times(rock, .82))
    brush.shape([(x - .1, y), (x - .07, y - .04), (x - .01, y - .055), (x + .06, y - .045),
                 (x + .1, y)], rock)
    y -= .04

    def half(t):
        """Returns half the tower's width at t of its height (0: foot, 1: top)."""
        return .062 - .022 * t

    for i in range(5):
        low, high = i / 5, (i + 1) / 5
        tone = colour if i % 2 == 0 else times(colour, .86)
        brush.shape([(x - half(low), y - .24 * low), (x + half(low), y - .24 * low),
                     (x + half(high), y - .24 * high), (x - half(high), y - .24 * high)], tone)
    top = y - .24
    brush.box(x - .052, top - .012, x + .052, top + .004, dark)
    brush.box(x - .028, top - .055, x + .028, top - .012, LAMP)
    brush.shape([(x - .042, top - .055), (x + .042, top - .055), (x, top - .1)], dark)


def balloon(brush, x, y, colour, light, lit):
    rope, basket = times((92, 72, 60), light), times((140, 92, 54), light)
    y -= .045
    brush.shape([(x - .078, y + .07), (x + .078, y + .07),
                 (x + .03, y + .142), (x - .03, y + .142)], times(colour, .9))
    brush.disc(x, y, .112, .12, colour)
    brush.disc(x, y, .07, .12, times(colour, .86))
    brush.disc(x, y, .03, .12, colour)
    brush.box(x - .024, y + .142, x - .014, y + .172, rope)
    brush.box(x + .014, y + .142, x + .024, y + .172, rope)
    brush.box(x - .03, y + .165, x + .03, y + .205, basket)


PAINTERS = {'house': house, 'castle': castle, 'boat': boat, 'lighthouse': lighthouse,
            'balloon': balloon}
