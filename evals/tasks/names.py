"""Words that facts are made of: common ones, of one or two tokens in any vocabulary."""

from itertools import product
from random import Random

ADJECTIVES = tuple(
    """
    ancient bare beautiful bitter black blue blunt bold brave bright broad broken brown calm clean
    clear clever cold cool curious damp dark dead deep dry dull dusty early empty fair false
    famous fine first flat foreign free fresh friendly gentle golden good grand grave gray great
    green half happy hard heavy hidden high hollow holy honest huge humble idle iron kind large
    last late lean light little lively lonely long lost loud low lucky merry mild modern narrow
    neat new noble old open pale perfect plain pleasant polite poor pretty private proud pure
    quick quiet rare ready red rich rough round royal rude rusty sacred sad safe secret separate
    serious severe sharp short silent silver simple slender slight slow small smooth soft solid
    solemn sorry special splendid steady steep stern stiff still stout straight strange strong
    sudden sweet swift tall tender thick thin third tidy tiny tired tough true ugly upper useful
    usual vague vast violent warm weak wet white whole wide wild wise wonderful wooden worthy
    yellow young
    """.split()
)
NOUNS = tuple(
    """
    anchor apple apron arm arrow bag ball band bank barn basin basket bay bed bell bench bird
    blade blanket board boat bone book boot bottle bow bowl box branch bread bridge broom brush
    bucket button cabin cage cake candle cap card carpet carriage cart castle chain chair chamber
    chapel chest church clock cloak cloth cloud coach coat coin collar corner cottage couch cow
    cradle cross crown cup curtain desk dish dog doll door drawer dress drum engine eye face fan
    farm feather fence field finger fire fish flag floor flower foot forest fork fountain frame
    fruit garden gate glass glove goat grave gun hall hammer hand harbour hat head heart hedge
    hill hook horn horse house inn island jacket jar jewel key kitchen knife knot lake lamp lane
    lantern leaf letter lion loaf lock log map market mask meadow mill mirror moon mountain mouth
    nail neck needle nest net nose oak oar orchard organ oven packet page painting palace paper
    parcel park path pearl pen pencil picture pillow pipe plant plate pocket pole pond pool porch
    pot pound purse rabbit rail ribbon ring river road rock roof room root rope rose row ruin
    saddle sail school screen sea seat sheep shell shelf ship shirt shoe shop shoulder sign song
    spear spoon spring square stable stair star station stick stone stool storm stove stream
    street sword table tail tea temple tent thread throne tongue tool tooth tower town train tray
    treasure tree trumpet trunk umbrella valley vessel village violin wagon wall watch wave well
    wheel whip whistle window wing wolf wood yard
    """.split()
)
FIRST_NAMES = tuple(
    """
    Adam Agnes Albert Alice Amy Andrew Anna Arthur Barbara Ben Caroline Catherine Charles
    Charlotte Clara Daniel David Dick Dora Edith Edward Elizabeth Ellen Emily Emma Felix Frances
    Frank George Grace Hannah Harry Helen Henry Hester Hugh Isabel Jack Jacob James Jane Jim John
    Joseph Julia Kate Laura Lucy Margaret Maria Mark Martha Martin Mary Michael Miles Nancy Ned
    Nelly Oliver Owen Paul Peter Philip Rachel Ralph Richard Robert Roger Rose Ruth Sam Sarah
    Simon Sophia Stephen Susan Thomas Tom Walter William
    """.split()
)
SURNAMES = tuple(
    """
    Archer Bailey Baker Barnes Bell Bennett Bishop Black Brook Brown Butler Carter Chambers Clark
    Cole Cook Cooper Cross Dale Dawson Dean Doyle Drake Fisher Fletcher Ford Foster Fox Gardner
    Gray Green Hale Hall Harper Hart Hill Holmes Hope Hunter Jackson Jordan King Knight Lake Lane
    Lee Long Marsh Marshall Martin Mason Miller Moore Morris Newman North Page Palmer Parker
    Peters Porter Price Reed Richards Rivers Rose Russell Sharp Shaw Short Singer Smith Stone
    Taylor Temple Turner Vincent Walker Waters Webb Wells West White Wood Woods Young
    """.split()
)
JOBS = tuple(
    """
    actor baker banker captain carpenter clerk coachman cook dentist doctor driver farmer
    fisherman gardener guide hunter judge lawyer merchant miller miner musician nurse painter
    pilot poet policeman porter preacher printer professor sailor servant shepherd shoemaker
    singer smith soldier student tailor teacher waiter weaver writer
    """.split()
)
RELATIONS = ("brother", "sister", "friend", "uncle", "aunt", "cousin", "teacher", "neighbour")
_BEGINNINGS = """
    Ash Bad Bar Black Bran Brook Cal Castle Clay Cold Dun East Fair Farn Green Har Haw Hol King
    Lang Long Mar Mel Mill New North Nor Oak Rad Red Sand Ship South Stan Stone Sut Thorn Wal War
    West Whit Win Wood
""".split()
_ENDINGS = """
    bridge bury by dale field ford ham land ley mouth port stead ton wick worth
""".split()
PLACES = tuple(a + b for a, b in product(_BEGINNINGS, _ENDINGS))
PLAIN_FORMS = (
    "The {n} stood near the {m}.",
    "There was a {a} {n} behind the {b} {m}.",
    "She went from the {n} to the {m} and came back late.",
    "In {p} they sell {a} things made of {m}.",
    "Nobody in {p} had seen the {a} {n} before.",
    "He looked at the {n}, then at the {a} {m}, and said nothing.",
    "The road to {p} was {a} and {b}.",
    "It was a {a} day, and the {n} was {b}.",
    "They talked about the {n} until the {m} was {a}.",
    "A {a} {n} is better than a {b} one.",
    "When the {m} is {a}, the {n} looks {b}.",
    "Most people of {p} like a {a} {n}.",
)


def things(rng: Random, n: int) -> list[str]:
    """n different things, such as `silver lantern`; with two adjectives where there are too few."""
    pairs = len(ADJECTIVES) * len(NOUNS)
    if n > pairs * (1 + len(ADJECTIVES)):
        raise ValueError(f"{n} different things: there are words for fewer")
    with_two_adjectives = n > pairs // 2
    names: dict[str, None] = {}
    while len(names) < n:
        words = [rng.choice(ADJECTIVES), rng.choice(NOUNS)]
        if with_two_adjectives:
            words.insert(0, rng.choice(ADJECTIVES))
        names[" ".join(words)] = None
    return list(names)


def people(rng: Random, n: int) -> list[str]:
    """n different people, such as `Edith Hale`; with a middle initial where there are too few."""
    with_initial = n > len(FIRST_NAMES) * len(SURNAMES) // 2
    names: dict[str, None] = {}
    while len(names) < n:
        middle = f" {rng.choice('ABCDEFGHIJKLMNOPRSTW')}." if with_initial else ""
        if with_initial and len(names) > len(FIRST_NAMES) * len(SURNAMES) * 10:
            raise ValueError(f"{n} different people: there are names for fewer")
        names[f"{rng.choice(FIRST_NAMES)}{middle} {rng.choice(SURNAMES)}"] = None
    return list(names)


def numbers(rng: Random, n: int) -> list[str]:
    """n different numbers of five digits; of seven where there are too few."""
    low, high = (10_000, 100_000) if n <= 20_000 else (1_000_000, 10_000_000)
    return [str(number) for number in rng.sample(range(low, high), n)]
