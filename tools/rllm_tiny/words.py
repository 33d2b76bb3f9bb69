"""The words and numbers of rllm-tiny's pre-training data."""

__all__ = ["CITIES", "THINGS", "WEATHER", "made_up_word", "maybe_made_up", "number"]

from random import Random


def _words(text: str) -> list[str]:
    return text.split()


CITIES = _words(
    "Paris London Rome Berlin Madrid Oslo Tokyo Cairo Lima Delhi Boston Chicago Vienna Prague Athens Dublin Lisbon "
    "Warsaw Zurich Sydney Toronto Seoul Bangkok Nairobi Denver Austin Seattle Munich Milan Geneva"
)
THINGS = _words(
    "apple bread car dog cat house tree river book lamp chair stone cloud bird fish horse ship train road bridge "
    "flower garden window door table cup plate shoe coat hat ring clock map letter paper pen box bag ball kite"
)
WEATHER = _words("sunny rainy cloudy windy snowy foggy warm cold stormy dry")

_CONSONANTS, _VOWELS = "bcdfghjklmnpqrstvwxyz", "aeiou"


def made_up_word(random: Random) -> str:
    """One to three syllables, so that what has to be copied can't be guessed."""
    syllables = [random.choice(_CONSONANTS) + random.choice(_VOWELS) for _ in range(random.randint(1, 3))]
    return "".join(syllables) + random.choice(["", random.choice(_CONSONANTS)])


def maybe_made_up(random: Random, words: list[str]) -> str:
    """A real word of the list, as often a made-up one, at times a single letter."""
    draw = random.random()
    if draw < 0.5:
        return random.choice(words)
    return made_up_word(random) if draw < 0.9 else random.choice(_CONSONANTS + _VOWELS)


def number(random: Random) -> int:
    """0 to 99, as often with one digit as with two."""
    return random.randrange(10) if random.random() < 0.5 else random.randrange(10, 100)
