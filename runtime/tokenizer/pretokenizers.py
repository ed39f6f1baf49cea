"""The pre-tokenizers that llama.cpp names (`tokenizer.ggml.pre`).

A name stands for the regular expressions that cut a text into words, and for a few defaults. The
expressions are those of the models' own `tokenizer.json` files with llama.cpp's simplification (it
tells upper and lower case apart only in ASCII), in the notation of `unicode_table`.
"""

from dataclasses import dataclass

from .split import DigitGroups, Step
from .unicode_table import HAN_LETTER, HAN_OTHER, LOWER, UPPER, L, M, N, P, S


@dataclass(frozen=True)
class PreTokenizer:
    """The rules by which one family of BPE vocabularies cuts a text into words, and its defaults.

    steps: the cuts, applied one after the other.
    ignore_merges: a word that is itself a token is taken as such; its merges are not applied.
    add_bos: the default where the file does not say; force_bos: whatever the file says.
    default_bos: False where there is no BOS unless the file names one.
    byte_level: words are written in GPT-2's byte alphabet; else raw UTF-8 with <0xXX> tokens.
    escape_spaces: a space is written as U+2581.
    newline_words: a run of newlines that is a token is taken whole.
    """

    steps: tuple[Step | DigitGroups, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    force_bos: bool = False
    default_bos: bool = True
    byte_level: bool = True
    escape_spaces: bool = False
    newline_words: bool = False


_ANY_CASE = "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHERS = rf" ?[^\s{L}{N}]+"


def _words(letters: str, digits: str, others: str = _OTHERS + r"[\r\n]*", tail: str = _TAIL) -> str:
    return f"{letters}|{digits}|{others}|{tail}"


_LETTERS = rf"[^\r\n{L}{N}]?[{L}]+"
_MARKED = rf"[^\r\n{L}{N}]?[{L}{M}]+(?:{_ANY_CASE})?"
_DIGIT, _DIGITS3 = f"[{N}]", f"[{N}]{{1,3}}"


def _cased(upper: str, lower: str, suffix: str) -> str:
    """Capitals followed by small letters: `UPPER*LOWER+` or `UPPER+LOWER*`."""
    before = rf"[^\r\n{L}{N}]?"
    return f"{before}[{upper}]*[{lower}]+{suffix}|{before}[{upper}]+[{lower}]*{suffix}"


_SLASHED = _OTHERS + r"[\r\n/]*"
_GPT2 = Step(rf"'(?:[stmd]|re|ve|ll)| ?[{L}]+| ?[{N}]+|{_OTHERS}|\s+(?!\S)|\s+")
_LLAMA3 = Step(_words(f"{_ANY_CASE}|{_LETTERS}", _DIGITS3))
_QWEN2 = Step(_words(f"{_ANY_CASE}|{_LETTERS}", _DIGIT))
_GPT4O = Step(_words(_cased(UPPER, LOWER, f"(?:{_ANY_CASE})?"), _DIGITS3, _SLASHED))
_ONE_DIGIT = Step(_DIGIT)
_LINES = Step(r"[^\n]+|\n+", "text")
_NEWLINE = Step(r"[\r\n]", "text")
_CJK_KANA = Step("[一-龥぀-ゟ゠-ヿ]+", "text")
_CJK_HANGUL = Step("[一-龥ࠀ-一가-퟿]+", "text")
_BLOOM = Step(r" ?[^(\s|.,!?…。，、।۔،)]+", "text")
_PUNCTUATED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    rf"|[^\r\n{L}{P}{S}]?[{L}{M}]+| ?[{P}{S}]+"
)
_DEEPSEEK3 = (Step(_DIGITS3), _CJK_KANA, Step(rf"{_PUNCTUATED}[\r\n]*|{_TAIL}"))
# Cased letters of DeepSeek-LLM, as code points: editors that normalise Unicode would change some.
_CASED = """
41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386
388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba
1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59
1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec
1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139
213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b
a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f
104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943
"""
_CASED_LETTERS = "".join(
    "-".join(chr(int(end, 16)) for end in span.split("-")) for span in _CASED.split()
)
_HALVED_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
_ASIAN = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_YOUTU = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_HAN = HAN_LETTER + HAN_OTHER
_KIMI = _words(
    rf"[{_HAN}]+|[^\r\n{L}{N}{_HAN}]?[{L}]+(?:{_ANY_CASE})?",
    _DIGITS3,
    rf" ?[^\s{L}{N}{HAN_LETTER}]+[\r\n]*",
)


def _family(names: str, *steps: Step | DigitGroups, **rules: bool) -> dict[str, PreTokenizer]:
    """Names that mean the same pre-tokenizer, with spaces between them."""
    return dict.fromkeys(names.split(), PreTokenizer(steps, **rules))


_FAMILIES = (
    _family(
        "default",
        Step(rf"[{P}$+<=>\^~|]+"),
        _GPT2,
        Step(f"[{N}]+"),
        Step("[0-9][0-9][0-9]", "text"),
    ),
    _family(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        _LLAMA3,
        ignore_merges=True,
        add_bos=True,
    ),
    _family("dbrx smaug-bpe", _LLAMA3),
    _family("chatglm-bpe", _LLAMA3, default_bos=False),
    _family("glm4 glm5", _LLAMA3, ignore_merges=True, default_bos=False),
    _family(
        "minicpm5",
        Step(_DIGITS3),
        Step(_words(f"{_ANY_CASE}|{_LETTERS}", f"[{N}]+")),
        ignore_merges=True,
    ),
    _family(
        "jais-2",
        Step(
            _words(
                f"{_ANY_CASE}|{_LETTERS}",
                _DIGITS3,
                tail=rf"\s*[\r\n]+|{_HALVED_SPACES}|\s{{1,2}}(?!\S)|\s",
            )
        ),
    ),
    _family(
        "deepseek-llm",
        _NEWLINE,
        Step(rf"\s?[{_CASED_LETTERS}]+", "text"),
        Step(r"\s?[!-/:-~！-／：-～‘-‟　-。]+", "text"),
        Step(r"\s+\Z", "text"),
        _CJK_HANGUL,
        Step(f"[{N}]+"),
    ),
    _family(
        "deepseek-coder",
        _NEWLINE,
        Step(rf"\s?[{L}]+"),
        Step(rf"\s?[{P}]+"),
        _CJK_HANGUL,
        _ONE_DIGIT,
    ),
    _family("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", *_DEEPSEEK3),
    _family(
        "spark2_5",
        Step(_DIGITS3),
        _CJK_KANA,
        Step(rf"{_PUNCTUATED}|[\r\n]|\s+(?!\S)|\s+"),
        _ONE_DIGIT,
    ),
    _family(
        "youtu", Step(_YOUTU, "text"), Step(_words(_MARKED, _DIGIT, _SLASHED)), ignore_merges=True
    ),
    _family("falcon", Step(rf"[{P}$+<=>\^~|`]+"), _GPT2, Step("[0-9][0-9][0-9]", "text")),
    _family(
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", _ONE_DIGIT, _GPT2
    ),
    _family(
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
        "mpt olmo jais exaone4 trillion granite-docling jina-v1-en jina-v2-code roberta-bpe",
        _GPT2,
    ),
    _family(
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan grok-2 solar-open", _QWEN2
    ),
    _family(
        "qwen35",
        Step(_words(rf"{_ANY_CASE}|[^\r\n{L}{N}]?[{L}{M}]+", _DIGIT, rf" ?[^\s{L}{M}{N}]+[\r\n]*")),
    ),
    _family("ufakzeka", Step(_words(_LETTERS, _DIGIT))),
    _family("laguna", _LINES, _QWEN2),
    _family("poro-chat bloom gpt3-finnish", _BLOOM),
    _family("viking", _BLOOM, _ONE_DIGIT),
    _family(
        "tekken",
        Step(_words(_cased(UPPER, LOWER, ""), _DIGIT, _SLASHED)),
        ignore_merges=True,
        add_bos=True,
    ),
    _family(
        "chameleon",
        Step("<sentinel:[0-9]+>", "text"),
        Step("IMGIMG[A-I]{1,4}Z", "text"),
        Step(r"[\t\n]|    |  ", "text"),
        _ONE_DIGIT,
        Step(rf"[{P}!-/:-@\[-`{{-~]"),
        _GPT2,
        add_bos=True,
    ),
    _family("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O),
    _family(
        "granite-embed-multi-97m",
        Step(_words(_cased(UPPER + M, LOWER + M, f"(?:{_ANY_CASE})?"), _DIGITS3, _SLASHED)),
        ignore_merges=True,
    ),
    _family("tiny_aya cohere2moe", DigitGroups(), Step(_words(_MARKED, _DIGITS3, _SLASHED))),
    _family("kimi-k2", Step(_KIMI, "han")),
    _family("superbpe", Step(f"[{N}]+"), Step(r"(?=(?:\d{3})+(?!\d))", "text")),
    _family(
        "bailingmoe bailingmoe2 llada-moe",
        Step(_words(f"{_ANY_CASE}|{_LETTERS}", _DIGIT, tail=r"\s*[\r\n]|\s+(?!\S)|\s+")),
    ),
    _family("seed-coder", Step(_words(f"{_ANY_CASE}|{_LETTERS}", _DIGIT, rf" ?[^\s{L}{N}\r\n]+"))),
    _family("afmoe", DigitGroups(), Step(_ASIAN, "text"), _DEEPSEEK3[2]),
    _family(
        "exaone-moe",
        Step(
            _words(
                rf"{_ANY_CASE}|[^\r\n{L}{N}]?(?:[{L}][{M}]*(?: [{L}][{M}]*)*)+",
                _DIGIT,
                rf"{_OTHERS}[\r\n/]?",
                r"\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    _family(
        "gemma4 granite-embed-multi-311m",
        _LINES,
        force_bos=True,
        byte_level=False,
        escape_spaces=True,
        newline_words=True,
    ),
    _family("sarvam-moe", _LINES, byte_level=False, escape_spaces=True),
    _family("whitespace", Step(r"\S+", "text"), byte_level=False),
)

PRE_TOKENIZERS = {name: rules for family in _FAMILIES for name, rules in family.items()}
