"""Shorthand for tests of the prefix tree: a path of pages is a word, each page a letter."""

from sightline.cache.pages import Node, PageCache


def keys_of(word: str) -> list[bytes]:
    """Each page's key contains those before it, as real ones do: "abc" has the keys a, ab, abc."""
    return [word[: end + 1].encode() for end in range(len(word))]


def grow(cache: PageCache, word: str) -> list[Node]:
    """What a sequence does: lock what is known of the word, compute and insert the rest. All nodes come back locked."""
    keys = keys_of(word)
    nodes = cache.match(keys)
    cache.lock(nodes)
    for key in keys[len(nodes) :]:
        nodes.append(cache.insert(nodes[-1] if nodes else None, key, cache.allocate(1)[0]))
    return nodes


def remember(cache: PageCache, *words: str) -> None:
    """Sequences that ran and ended, one after another."""
    for word in words:
        cache.unlock(grow(cache, word))


def known(cache: PageCache, *words: str) -> list[str]:
    """The longest known prefix of each word."""
    return [word[: len(cache.match(keys_of(word)))] for word in words]
