"""Counts and lists in messages, with nouns and verbs that agree with them."""

import difflib
import heapq
import itertools
from collections.abc import Iterable, Sequence

#: Plural of the verbs that do not just lose their "s".
_PLURAL_VERBS = {"is": "are", "was": "were", "has": "have", "does": "do"}


def count(number: int, noun: str, verb: str = "") -> str:
    """Format ``1 partition``, ``2,000 partitions``; with the verb ``has`` ``1 partition has``."""
    text = f"{number:,} {_plural(noun, number)}"
    return f"{text} {_agreeing(verb, number)}" if verb else text


def numbered(noun: str, values: Iterable[int], verb: str = "") -> str:
    """Format ``broker 1`` or ``brokers 1, 2 and 4 more``; with ``verb`` ``broker 1 is``."""
    known = set(values)
    text = f"{_plural(noun, len(known))} {numbers(known)}"
    return f"{text} {_agreeing(verb, len(known))}" if verb else text


def them(values: Iterable[int]) -> str:
    """Return the pronoun for the things of :func:`numbered`: ``it`` or ``them``."""
    return "it" if len(set(values)) == 1 else "them"


def numbers(values: Iterable[int], *, shown: int = 8) -> str:
    """Format numbers as ``1, 2, 3 and 4 more``, short however many there are."""
    return names(list(map(str, sorted(values))), shown=shown)


def names(texts: Sequence[str], *, shown: int = 8) -> str:
    """Format texts as ``a, b, c and 4 more``, in their order."""
    head = ", ".join(texts[:shown])
    rest = len(texts) - shown
    return f"{head} and {rest:,} more" if rest > 0 else head


def quoted(text: str, *, shown: int = 80) -> str:
    """Return a person's text, short enough to be part of a message."""
    return text if len(text) <= shown else f"{text[:shown]}… ({len(text)} characters)"


#: Most names with which a misspelt one is compared.
_COMPARED_MAX = 20_000
#: Characters that are compared, and names that are compared in their order as well: comparing long
#: names that repeat themselves takes cubic time.
_COMPARED_CHARS = 64
_CANDIDATES_MAX = 200
#: Similarity from which a name is suggested, as in difflib.
_SIMILAR = 0.6


def closest(name: str, known: Iterable[str], *, shown: int = 3) -> list[str]:
    """Return the known names that a misspelt one may stand for, the most similar first.

    Upper and lower case count as equal. Names that a terminal could not print are left out.
    """
    spellings: dict[str, list[str]] = {}
    for text in filter(str.isprintable, itertools.islice(known, _COMPARED_MAX)):
        spellings.setdefault(text.casefold()[:_COMPARED_CHARS], []).append(text)
    # Most names are excluded by their letters in any order, which takes linear time.
    matcher = difflib.SequenceMatcher(b=name.casefold()[:_COMPARED_CHARS], autojunk=False)
    rough = []
    for folded in spellings:
        matcher.set_seq1(folded)
        if matcher.real_quick_ratio() >= _SIMILAR and matcher.quick_ratio() >= _SIMILAR:
            rough.append((matcher.quick_ratio(), folded))
    similar = []
    for _, folded in heapq.nlargest(_CANDIDATES_MAX, rough):
        matcher.set_seq1(folded)
        if matcher.ratio() >= _SIMILAR:
            similar.append((matcher.ratio(), folded))
    ordered = sorted(similar, key=lambda item: -item[0])
    return [text for _, folded in ordered for text in spellings[folded]][:shown]


def did_you_mean(close: Sequence[str]) -> str:
    """Return the sentence that suggests names, with a space before it; "" without any."""
    return f" Did you mean {' or '.join(close)}?" if close else ""


def clause(text: object) -> str:
    """Return the text of another program or of an error, without the full stop at its end.

    The message that contains it continues after it.
    """
    return str(text).rstrip().removesuffix(".")


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}s"


def _agreeing(verb: str, number: int) -> str:
    return verb if number == 1 else _PLURAL_VERBS.get(verb, verb.removesuffix("s"))
