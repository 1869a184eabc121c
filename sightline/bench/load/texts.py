"""Text of a wanted number of tokens, without the model's tokenizer: common words, measured by the server where it can."""

import msgspec
import numpy as np

from sightline.bench.load.http import HttpClient, TransportError

# Short and common: one token each, with the space before it, in the usual tokenizers.
_WORDS = (
    "about above after again air all along also always and animal another answer any are around ask away back because been "
    "before began being below best better between big book both boy bring build but call came can car care carry change city "
    "close cold come could country cut day did different do does done door down draw each early earth eat end enough even "
    "every example eye face family far farm fast father feet few field find fire first fish five follow food form found four "
    "friend from gave get give go good got great green ground group grow had half hand hard has have head hear help here high "
    "him his hold home horse hot hour house how idea important inside keep kind king knew know land large last late learn "
    "leave left letter life light like line list little live long look made make man many map mark may mean might mile more "
    "morning most mother mountain move much music must name near need never new next night north not note nothing now number "
    "often old once one only open order other our over own page paper part people place plant play point power pull put read "
    "real red rest right river road rock room round rule run said same saw say school sea second see seem set she ship short "
    "should show side simple since sing sit six size sleep slow small snow some song soon sound south space stand star start "
    "state stay step still stop story street study such sun sure table take talk tell ten than that the their them then there "
    "these thing think this those thought three through time told took top town travel tree true try turn two under until use "
    "very voice walk want war warm was watch water way week weight well went west what wheel when where which while white who "
    "why will wind wish with wood word work world would write year yes you young your"
).split()
_PROBE_WORDS = 200


def random_text(tokens: int, tokens_per_word: float, seed: tuple[int, ...]) -> str:
    """Words drawn from a seed, about `tokens` tokens long."""
    return random_words(np.random.default_rng(seed), max(1, round(tokens / tokens_per_word)))


def random_words(random: np.random.Generator, count: int) -> str:
    return " ".join(random.choice(_WORDS, count))


async def tokens_per_word(client: HttpClient, model: str) -> float | None:
    """How many tokens one of our words is to this server's model, or None if it has no /tokenize."""
    text = random_text(_PROBE_WORDS, 1.0, (0,))
    try:
        reply = await client.request("POST", "/tokenize", [msgspec.json.encode({"model": model, "prompt": text})])
    except TransportError:
        return None
    if reply.status != 200:
        return None
    try:
        count = msgspec.json.decode(bytes(reply.body))["count"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
    return count / _PROBE_WORDS if isinstance(count, int) and count > 0 else None
