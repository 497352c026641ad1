"""Damage to valid inputs, small enough that most of it gets past the first check."""

import random
from collections.abc import Sequence

ODD_NUMBERS = (
    "0", "-1", "1", "255", "65536", "4294967295", "4294967296", "9223372036854775807", "18446744073709551616",
    "1" + "0" * 400, "9" * 5000, "0x", "0xffffffffffffffff", "1e400", "nan", "-inf", "007", "1.5", "\u0663", "\u00b2",
)  # fmt: skip
ODD_TEXTS = (
    "", " ", "\n", "\0", "\t" * 50, "\r", "\u2028", "\u202e", "\ufeff", "\x1b[31m", "\U0001f4a9", "e\u0301" * 20,
    "/*", "*/", "//", "{", "}", "[", "]", "(", ")", ":", ";", ",", "@", ".", "%", "$", "\\", "'", '"',
    "${HOME}", "../../x",
)  # fmt: skip
_MAX_REPEATED = 200_000
_BOUNDARIES = (0, 1, 0x7F, 0x80, 0xFF)


def mutate_bytes(rng: random.Random, content: bytes, *, others: Sequence[bytes] = ()) -> bytes:
    """Return `content` with one to six changes of bytes, words, or whole parts.

    Args:
        rng: what decides.
        content: valid, and not empty.
        others: inputs of which parts may be spliced in.
    """
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if not data:
            break
        at = rng.randrange(len(data))
        end = min(len(data), at + rng.choice((1, 2, 4, 8, 16, 64, 1024)))
        match rng.randrange(9):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice((*_BOUNDARIES, rng.randrange(256)))
            case 2:
                width = rng.choice((2, 4, 8))
                number = rng.choice((0, 1, (1 << 8 * width) - 1, 1 << 8 * width - 1, len(data), rng.getrandbits(16)))
                start = at - at % width
                data[start : start + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
            case 3:
                del data[at:end]
            case 4:
                del data[at:]
            case 5:
                data[at:at] = data[at:end] * rng.choice((1, 2, 100))
            case 6:
                data[at:end] = bytes(end - at)
            case 7:
                other = rng.choice((*others, content))
                start = rng.randrange(len(other) or 1)
                data[at : at + 256] = other[start : start + rng.choice((16, 256, 4096))]
            case 8 if rng.random() < 0.1:
                data[at:at] = data[at:end] * (_MAX_REPEATED // (end - at))
            case _:
                data[at:end] = rng.randbytes(end - at)
    return bytes(data)


def mutate_text(rng: random.Random, text: str, *, words: Sequence[str] = (), others: Sequence[str] = ()) -> str:
    """Return `text` with one to six changes of characters, numbers, lines, or whole parts.

    Args:
        rng: what decides.
        text: valid, and not empty.
        words: of its language, put in at random places.
        others: texts of which lines may be spliced in.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if not text:
            break
        at = rng.randrange(len(text))
        end = min(len(text), at + rng.choice((1, 2, 8, 64, 1024)))
        odd = rng.choice((rng.choice(ODD_NUMBERS), rng.choice(ODD_TEXTS), rng.choice(words or ODD_TEXTS)))
        match rng.randrange(10):
            case 0:
                text = text[:at] + odd + text[end:]
            case 1:
                text = text[:at] + odd + text[at:]
            case 2:
                text = text[:at] + text[end:]
            case 3:
                text = text[:at]
            case 4:
                text = text[:at] + text[at:end] * rng.choice((2, 3, 100)) + text[end:]
            case 5:
                lines = text.splitlines(keepends=True)
                i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
                lines[i], lines[j] = lines[j], lines[i]
                text = "".join(lines)
            case 6:
                lines = text.splitlines(keepends=True)
                lines.insert(
                    rng.randrange(len(lines)), rng.choice(rng.choice((*others, text)).splitlines(True) or [""])
                )
                text = "".join(lines)
            case 7 | 8:
                text = _with_odd_number(rng, text, at)
            case _ if rng.random() < 0.1:
                text = text[:at] + (odd or text[at]) * (_MAX_REPEATED // len(odd or text[at])) + text[at:]
            case _:
                text = text[:at] + chr(rng.choice((rng.randrange(128), rng.randrange(0xD800)))) + text[at + 1 :]
    return text


def _with_odd_number(rng: random.Random, text: str, at: int) -> str:
    """`text` with another number where the first one from `at` on stands."""
    start = next((i for i in range(at, len(text)) if text[i].isdecimal()), None)
    if start is None:
        return text
    end = next((i for i in range(start, len(text)) if not text[i].isdecimal()), len(text))
    return text[:start] + rng.choice((*ODD_NUMBERS, str(rng.randrange(1 << 20)))) + text[end:]
