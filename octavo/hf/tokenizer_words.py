"""How byte-level BPE vocabularies split text into words: a table from the names that GGUF files use.

Each pattern splits what the patterns before it left; both the matches and what is between them become words.
Source: the tokenizer.json of each model family, whose patterns these are, by way of the names in llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tokenizers import Regex, pre_tokenizers

__all__ = ["WORD_RULES", "WordRules", "pre_tokenizer"]

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_SEED = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_UPPER, _LOWER, _BEFORE = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}", r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_BEFORE}[{_UPPER}]*[{_LOWER}]+|{_BEFORE}[{_UPPER}]+[{_LOWER}]*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"{_BEFORE}[{_UPPER}]*[{_LOWER}]+{_ENDINGS}?|{_BEFORE}[{_UPPER}]+[{_LOWER}]*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_NO_HAN = r"&&[^\p{Han}]"
_KIMI = (
    rf"[\p{{Han}}]+|{_BEFORE}[{_UPPER}{_NO_HAN}]*[{_LOWER}{_NO_HAN}]+{_ENDINGS}?"
    rf"|{_BEFORE}[{_UPPER}{_NO_HAN}]+[{_LOWER}{_NO_HAN}]*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# The cased letters of DeepSeek LLM, as pairs of first and last character.
_CASED_RANGES = (
    "AZaz\u00b5\u00b5\u00c0\u00d6\u00d8\u00f6\u00f8\u01ba\u01bc\u01bf\u01c4\u0293\u0295\u02af\u0370\u0373\u0376\u0377"
    "\u037b\u037d\u037f\u037f\u0386\u0386\u0388\u038a\u038c\u038c\u038e\u03a1\u03a3\u03f5\u03f7\u0481\u048a\u052f"
    "\u0531\u0556\u10a0\u10c5\u13a0\u13f5\u13f8\u13fd\u1c90\u1cba\u1cbd\u1cbf\u1d00\u1d2b\u1d6b\u1d77\u1d79\u1d9a"
    "\u1e00\u1f15\u1f18\u1f1d\u1f20\u1f45\u1f48\u1f4d\u1f50\u1f57\u1f59\u1f59\u1f5b\u1f5b\u1f5d\u1f5d\u1f5f\u1f7d"
    "\u1f80\u1fb4\u1fb6\u1fbc\u1fbe\u1fbe\u1fc2\u1fc4\u1fc6\u1fcc\u1fd0\u1fd3\u1fd6\u1fdb\u1fe0\u1fec\u1ff2\u1ff4"
    "\u1ff6\u1ffc\u2102\u2102\u2107\u2107\u210a\u2113\u2115\u2115\u2119\u211d\u2124\u2124\u2126\u2126\u2128\u2128"
    "\u212a\u212d\u212f\u2134\u2139\u2139\u213c\u213f\u2145\u2149\u214e\u214e\u2183\u2184\u2c00\u2c7b\u2c7e\u2ce4"
    "\u2ceb\u2cee\u2cf2\u2cf3\ua640\ua66d\ua680\ua69b\ua722\ua76f\ua771\ua787\ua78b\ua78e\uab70\uabbf\ufb00\ufb06"
    "\ufb13\ufb17\uff21\uff3a\uff41\uff5a\U00010400\U0001044f\U000104b0\U000104d3\U000104d8\U000104fb"
    "\U00010c80\U00010cb2\U00010cc0\U00010cf2\U000118a0\U000118df\U0001e900\U0001e943"
)
_CASED = "".join(f"{first}-{last}" for first, last in zip(_CASED_RANGES[::2], _CASED_RANGES[1::2], strict=True))
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_SPACES}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WordRules:
    """The rules of one family.

    patterns: regular expressions, in order.   ignore_merges: a word in the vocabulary is one token, whatever the merges
    say.   is_nfc: text is normalized to NFC.   adds_bos: if the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    is_nfc: bool = False
    adds_bos: bool = False


_PLAIN = WordRules(patterns=(_GPT2,))
_PLAIN_NFC = WordRules(patterns=(_GPT2,), is_nfc=True)
_DIGITS = WordRules(patterns=(r"\p{N}", _GPT2))
_DIGITS_NFC = WordRules(patterns=(r"\p{N}", _GPT2), is_nfc=True)
_LLAMA = WordRules(patterns=(_LLAMA3,))
_LLAMA_IGNORING = WordRules(patterns=(_LLAMA3,), ignore_merges=True, adds_bos=True)
_QWEN = WordRules(patterns=(_QWEN2,))
_QWEN_NFC = WordRules(patterns=(_QWEN2,), is_nfc=True)
_O200K = WordRules(patterns=(_GPT4O,))
_DEEPSEEK3 = WordRules(patterns=(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_WORDS))
_BLOOM_RULES = WordRules(patterns=(_BLOOM,))

WORD_RULES: dict[str, WordRules] = {
    # a file without a name, made before there were names
    "default": WordRules(patterns=(r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA_IGNORING),
    **dict.fromkeys(("midm-2.0",), _LLAMA_IGNORING),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA),
    **dict.fromkeys(("gpt-2", "phi-2", "jais", "gigachat", "mellum", "a.x-4.0", "exaone4", "modern-bert"), _PLAIN),
    **dict.fromkeys(("jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "trillion", "granite-docling"), _PLAIN),
    **dict.fromkeys(("mpt", "olmo"), _PLAIN_NFC),
    **dict.fromkeys(("starcoder", "refact", "smollm", "codeshell", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("command-r", "exaone"), _DIGITS_NFC),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN_NFC),
    **dict.fromkeys(("stablelm2", "kormo", "hunyuan", "grok-2"), _QWEN),
    "qwen35": WordRules(patterns=(_QWEN35,), is_nfc=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _O200K),
    "kimi-k2": WordRules(patterns=(_KIMI,)),
    "tekken": WordRules(patterns=(_TEKKEN,), ignore_merges=True, adds_bos=True),
    "seed-coder": WordRules(patterns=(_SEED,)),
    "bailingmoe": WordRules(patterns=(_BAILING,)),
    "deepseek-llm": WordRules(
        patterns=(
            r"[\r\n]",
            rf"\s?[{_CASED}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": WordRules(patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    "youtu": replace(_DEEPSEEK3, ignore_merges=True),
    "falcon": WordRules(patterns=(r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _BLOOM_RULES),
    "viking": WordRules(patterns=(_BLOOM, r"\p{N}")),
}


def pre_tokenizer(rules: WordRules, *, add_prefix_space: bool) -> pre_tokenizers.PreTokenizer:
    """Return what splits text by these rules and writes the words in the byte-level alphabet."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False)]
    )
