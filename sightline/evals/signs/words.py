"""What is written on signs: words, invented names, codes, numbers; and phone numbers.

A person must be able to tell what is written without knowing it before. Hence:
- I, l, O and o are written in words only, where their neighbours tell them from 1 and 0. Codes have none of them, and no 0.
- Letters whose small and capital forms differ by size alone need something beside them to compare with. Text without that is
  written in capitals (`written`).
"""

from random import Random

_WORDS = """
able about above acorn after again air alley alpha amber anchor angle apple april arch arena arrow art aspen august autumn
avenue baker bank barn bay beach beacon bear bell berry best big birch bird black blue boat book bottom bravo bread brick
bridge bright broad brook brown bus butter cabin cafe camp canal candle canyon car card castle cat cedar cellar center
chapel charlie cherry church cider circle city clay clear cliff clock closed cloud coast coffee cold college copper coral
corner court cove creek cross crown dairy dance danger dawn day deer delta desk detour diner dock dog door dove down dragon
drive duck dust eagle east easy echo eight elm empty end engine enter exit express fair falcon farm fast ferry field fire
fish five flag fleet flower food forest fort forward foundry four fox free fresh friday frog fruit garage garden gas gate
gift glass gold golf good grand grape grass gravel green grove guard guest gym half hall harbor hare harvest hat hawk hay
hazel heart heath hello help heron high hill hollow home honey hope horse hospital hotel house hunter ice info inn iron
island ivory jade january jazz jewel juice july june jungle junior kettle key king kiosk kite kiwi knight lab lady lake lamp
land lane large lark laundry lava lawn leaf left lemon level library lift light lily lime lion local lock lodge lotus low
lucky lunch magnet mail main maple march market marsh may meadow media medium melon menu metro mid mill mint mirror mist
modern monday moon motel motor mount museum music narrow needle nest new nine north notice nova oak oasis ocean office oil
old olive one only open opera orange orchard orchid otter owl paint palace palm panda paper park parking path peace peach
pearl pebble pepper photo piano pier pilot pine pink pizza place planet plaza plum point polar pond pool poppy port post
prairie press private public pull pump purple push quarry queen quick quiet rabbit radio rail rain ranch rapid raven ready
red reef rest rice ridge right ring river road robin rock room rose round route royal ruby safe sage sail salad salmon salt
sand school sea second security senior seven shade shell ship shop silver six ski sky slow small smoke snow soap solar sonic
south space spice spring spruce square stable staff stage star station steel stone stop store storm street studio summer
summit sun sunday sunset swan sweet swift table tailor tango tavern taxi tea temple tennis ten terrace theater three thunder
thursday ticket tiger toilet toll tower town toy track trail train tram tree trout tuesday tulip tunnel turn twelve two
under union upper urban valley vault velvet victor view villa village vine violet vista voyage walk wall warning water wave
way wednesday west wharf wheat white wide wild willow wind window winter wolf wood yard yellow yes yield young zebra zero
zone
""".split()

_STARTS = (
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k kr l m n p pl pr qu r s sh sk sl sm sn sp st sw t th tr v w y z".split()
)
_MIDDLES = "a e i o u a e i o u ai ay ea ee oa oo ou".split()
_ENDS = "b d dge ft ld ll lm lt m mp n nd ng nk r rd rk rm rn rt sh sk st th x ze".split()

_CAPITALS = "ABCDEFGHJKLMNPQRSTUVWXYZ"  # without I and O
_SMALL = "abcdefghijkmnpqrstuvwxyz"  # without l and o
_DIGITS = "0123456789"
_CODE_DIGITS = "123456789"
_INNER = "-/.:&+"
_LAST = "!?%#"
_SAME_SHAPE = frozenset("cosuvwxzp")  # small letters that look like their capitals

MAX_CHARACTERS = 12


def written(text: str) -> str:
    """The text, in capitals if only size could tell that it is not."""
    letters = [character for character in text if character.isalnum()]
    return text.upper() if all(character in _SAME_SHAPE for character in letters) else text


def glyph(random: Random) -> str:
    """One letter or digit."""
    return written(random.choice(_CAPITALS + _SMALL + _DIGITS))


def sign_lines(random: Random, most: int) -> tuple[str, ...]:
    """Text of at most `most` characters, on one line or (rarely) two. The blank between two lines counts."""
    if most < 3:
        return (glyph(random) if random.randint(1, most) == 1 else _code(random, 2),)
    kind = random.choices(("word", "name", "code", "number", "words"), (30, 18, 32, 8, 12))[0]
    if kind == "word":
        return (_word(random, most),)
    if kind == "name":
        return (_cased(random, _name(random, most)),)
    if kind == "code":
        return (_code(random, random.randint(1, most)),)
    if kind == "number":
        return (_number(random, random.randint(1, min(6, most))),)
    return _words(random, most)


def _word(random: Random, most: int) -> str:
    while len(word := random.choice(_WORDS)) > most:
        pass
    word = _cased(random, word)
    if len(word) < most and random.random() < 0.1:
        word += random.choice("!?")
    return word


def _name(random: Random, most: int) -> str:
    """A word that does not exist but could."""
    while True:
        parts = []
        for _ in range(random.choice((1, 2, 2, 3))):
            parts += [random.choice(_STARTS), random.choice(_MIDDLES)]
        parts.append(random.choice(_ENDS))
        if len(name := "".join(parts)) <= most:
            return name
        if most < 5:
            return name[:most]


def _cased(random: Random, word: str) -> str:
    style = random.choice(("upper", "title", "lower"))
    if style == "upper" or (style == "title" and word[0] == "i"):  # a capital I before small letters could be an l
        return word.upper()
    return written(word.capitalize() if style == "title" else word)


def _number(random: Random, count: int) -> str:
    return "".join(random.choice(_DIGITS) for _ in range(count))


def _code(random: Random, count: int) -> str:
    """Letters and digits in no order, with now and then a sign between or after them."""
    pool = random.choice(
        (
            _CAPITALS,
            _CAPITALS + _CODE_DIGITS,
            _CAPITALS + _CODE_DIGITS,
            _SMALL,
            _SMALL + _CODE_DIGITS,
            _CAPITALS + _SMALL + _CODE_DIGITS,
        )
    )
    text = [random.choice(pool) for _ in range(count)]
    if count >= 3 and random.random() < 0.4:
        text[random.randrange(1, count - 1)] = random.choice(_INNER)
    if count >= 3 and random.random() < 0.15:
        text[-1] = random.choice(_LAST)
    return written("".join(text))


def _words(random: Random, most: int) -> tuple[str, ...]:
    """Two words or a word and a number, together at most `most` characters."""
    for _ in range(8):
        first = random.choice(_WORDS)
        second = _number(random, random.randint(1, 3)) if random.random() < 0.4 else random.choice(_WORDS)
        if len(first) + 1 + len(second) > most:
            continue
        style = random.choice((str.upper, str.capitalize))
        if first[0] == "i" or second[0] == "i":
            style = str.upper
        lines = style(first), style(second)
        return lines if random.random() < 0.4 else (" ".join(lines),)
    return (_word(random, most),)


# Each # is a digit. Lengths from 3 to 16 characters, in the order in which a curriculum takes them up.
_PHONE_FORMATS = (
    "###",
    "####",
    "##-##",
    "### ###",
    "###-####",
    "#### ####",
    "0### ######",
    "###-###-####",
    "###.###.####",
    "(###) ###-####",
    "0## #### ####",
    "1-800-###-####",
    "+1 ### ### ####",
    "+44 20 #### ####",
)
_FIRST_FULL_PHONE = 4


def phone_number(random: Random, level: float) -> str:
    """At level 1 a whole number in any of ten formats; below, shorter ones from the start of the list."""
    last = 1 + round(level * (len(_PHONE_FORMATS) - 1))
    first = _FIRST_FULL_PHONE if last == len(_PHONE_FORMATS) else 0
    form = random.choice(_PHONE_FORMATS[first:last])
    return "".join(random.choice(_DIGITS) if character == "#" else character for character in form)
