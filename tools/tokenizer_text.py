"""Endless text from a seed, the same as tests/text/tokenizer_text.h makes: pieces that tokenizers
care about, words, white space, marks, and characters of every plane."""

MASK = (1 << 64) - 1
RUNS = " \n\t\r'\u2581\u00a0\u3000"


class Draws:
    """splitmix64"""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % n


def scalar(c):
    """No surrogates: they are no characters."""
    return chr(c - 0x1000 if 0xD800 <= c < 0xE000 else c)


def unit(d, pieces):
    kind = d.below(16)
    if kind < 6:
        return pieces[d.below(len(pieces))]
    n = 1 + d.below(7)
    if kind < 8:
        return "".join(chr(d.below(128)) for _ in range(n))
    if kind < 10:
        return " " + "".join(chr(97 + d.below(26)) for _ in range(n))
    if kind == 10:
        plane = d.below(17)
        return scalar(plane * 0x10000 + d.below(0x10000))
    if kind == 11:
        return chr(d.below(0x3000))
    if kind == 12:
        return "".join(chr(0x300 + d.below(0x70)) for _ in range(n))
    if kind == 13:
        return RUNS[d.below(len(RUNS))] * n
    if kind == 14:
        page = d.below(0x1F0) * 256
        return "".join(scalar(page + d.below(256)) for _ in range(n))
    return "".join(chr(48 + d.below(10)) for _ in range(n))


def chunk(index, pieces, least_bytes):
    """A long text."""
    d, parts, n_bytes = Draws(index), [], 0
    while n_bytes < least_bytes:
        parts.append(unit(d, pieces))
        n_bytes += len(parts[-1].encode())
    return "".join(parts)


def string(index, pieces):
    """A short text."""
    d = Draws((1 << 32) + index)
    return "".join(unit(d, pieces) for _ in range(1 + d.below(12)))


def random_ids(index, n_vocab):
    """Ids that no text gives; some are not in the vocabulary."""
    d = Draws((2 << 32) + index)
    return [d.below(n_vocab + 2) for _ in range(1 + d.below(12))]
