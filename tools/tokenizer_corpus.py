"""The strings that make_tokenizer_golden.py encodes: corpus() gives them in a fixed order.

Not here on purpose: U+0000 (C strings), U+180E (regex engines disagree whether it is a space) and
characters or combining marks younger than Unicode 10 (libraries carry different tables).
"""

import random

PLAIN = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\r", " \n", "\n ", " \n \n ", "a", " a", "a ",
    " a ", "  a  ", "ROMEO:", "ROMEO:\nWhat, ho!\n\nJULIET:\n", "Hello, world!", "hello  world",
    "hello   world", "hello\tworld", "hello\t\tworld", "a\r\nb\r\n\r\nc", "a\rb\r\rc", "a \r\n b",
    "line one\n    line two\n\n\n  line three   ", "trailing spaces   ", "   leading spaces",
    "trailing newline\n", "trailing newlines\n\n\n", "\n\nleading newlines", "tab\tat end\t",
    "a" * 300, "Donaudampfschifffahrtselektrizitaetenhauptbetriebswerkbauunterbeamtengesellschaft",
    "the" * 150, "ab" * 200 + "c", " " * 70 + "x", "\n" * 40, "-" * 80, "=" * 33 + "\n" + "=" * 33,
    "the quick brown fox jumps over the lazy dog", "THE QUICK BROWN FOX", "mIxEd CaSe WoRdS",
    "thou art the king of this", "what, shall we not, my lord?",
]

CONTRACTIONS = [
    "I'm you're he's we'll they've I'd don't", "I'M YOU'RE HE'S WE'LL THEY'VE I'D DON'T",
    "It'S 'tis 'Twas o'er ne'er", "'s 't 're 've 'm 'll 'd", "x'S'T'Re'Ve'M'Ll'D", "'sword 'them",
    "rock'n'roll", "the kings' men's", "can\u2019t won\u2019t it\u2019s", "a'\u017f b'\u017ft",
    "''s '''s ' s", "l'homme d'accord qu'il",
]

NUMBERS = [
    "1", "12", "123", "1234", "12345", "1234567890" * 3, "3.14159", "1,000,000", "-42", "1e-10",
    "0x1F", "2024-02-29T23:59:60Z", "a1b22c333d4444", "1 22 333 4444", "x=1;y=22", "\u0661\u0662\u0663\u0664",
    "\u0967\u0968\u0969\u096a", "\uff11\uff12\uff13\uff14", "\u00bd \u00b2 \u2167 \u2460\u2461",
    "\u4e00\u4e8c\u4e09", "1\u0301 2\u20e3", "$1.50 \u20ac2 \u00a33 50%",
]

SCRIPTS = [
    "Stra\u00dfe \u00fcber gr\u00f6\u00dfe \u00c4rger", "\u00c7a va tr\u00e8s bien, merci, \u0153uvre \u00e0 no\u00ebl",
    "\u00bfD\u00f3nde est\u00e1 el ni\u00f1o? \u00a1Aqu\u00ed!", "Za\u017c\u00f3\u0142\u0107 g\u0119\u015bl\u0105 ja\u017a\u0144",
    "P\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148", "\u0130stanbul \u0131\u015f\u0131k \u011f\u00fc",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0401\u043b\u043a\u0430 \u0438 \u0451\u0436\u0438\u043a",
    "\u041f\u0440\u0438\u0432\u0456\u0442 \u0457\u0436\u0430\u043a \u0454", "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5",
    "\u1f10\u03bd \u1f00\u03c1\u03c7\u1fc7 \u1f26\u03bd \u1f41 \u03bb\u03cc\u03b3\u03bf\u03c2",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0627\u0644\u0652\u0639\u064e\u0631\u064e\u0628\u0650\u064a\u064e\u0651\u0629",
    "\u0641\u0627\u0631\u0633\u06cc \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0995\u09cd\u09b7 \u09ac\u09be\u0982\u09b2\u09be",
    "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0ba8\u0bbe\u0b9f\u0bc1", "\u0c24\u0c46\u0c32\u0c41\u0c17\u0c41", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\u0e99\u0eb2\u0ea5\u0eb2\u0ea7", "\u1019\u103c\u1014\u103a\u1019\u102c", "\u1797\u17b6\u179f\u17b6\u1781\u17d2\u1798\u17c2\u179a",
    "\u0f56\u0f7c\u0f51\u0f0b\u0f66\u0f90\u0f51\u0f0b", "\u1230\u120b\u121d \u12d3\u1208\u121d", "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0",
    "\u0540\u0561\u0575\u0565\u0580\u0565\u0576", "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u7e41\u9ad4\u4e2d\u6587\u3002\u300c\u5f15\u865f\u300d",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \u30ab\u30bf\u30ab\u30ca \uff8a\uff9d\uff76\uff78", "\u304c\u304e\u3050 \u304b\u3099\u304d\u3099",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\u1112\u1161\u11ab\u1100\u1173\u11af", "Ti\u1ebfng Vi\u1ec7t \u0111\u01b0\u1ee3c",
    "\U0001d54f\U0001d552 \U0001d7d8\U0001d7d9", "\U00010348\U00010330", "\U00020000\U0002a6d6", "\u13e3\u13b3\u13a9 \uab70",
    "mixed \u4e2d\u6587 and English \u0440\u0443\u0441\u0441\u043a\u0438\u0439 123 \u0639\u0631\u0628\u064a",
]

MARKS = [
    "e\u0301 \u00e9", "cafe\u0301 caf\u00e9", "a\u0323\u0307 a\u0307\u0323", "\u1e69 s\u0323\u0307 s\u0307\u0323",
    "A\u030a \u00c5 \u212b", "\u2126 \u03a9 \u212a K", "\u0344 \u0308\u0301", "\ufb01 \ufb03 \ufb00", "\u0958 \u0915\u093c",
    "q\u0307\u0323q", "Z\u0351\u036b\u0343a\u0335\u0321l\u0322\u0489g\u0328o\u0337", "\u0301start with a mark",
    " \u0301 space and mark", "o\u0302\u0301 \u1ed1 \u00f4\u0301", "\uac00 \u1100\u1161 \u1100\u1161\u11a8", "\u2adc \u0390 \u1fd3",
    "\U0001d15e \U0001d157\U0001d165", "\uf900 \u8c48 \ufa0e", "x\u20d7 \u20d2", "\u0f73 \u0f71\u0f72",
]

EMOJI = [
    "\U0001f600", "\U0001f600\U0001f601\U0001f602", "hi \U0001f44b\U0001f3fd there",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7\U0001f1ef\U0001f1f5",
    "\u2764\ufe0f \u2764", "\U0001f3f3\ufe0f\u200d\U0001f308", "1\ufe0f\u20e3 #\ufe0f\u20e3", "\U0001f469\U0001f3fe\u200d\U0001f680 launches",
    "\u2603\u26c4 \u2122\u00ae\u00a9", "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "text\U0001f600text", "\U0001f600 \U0001f600  \U0001f600", "\u2192\u21d2\u2200x\u2208\u211d\u2203y", "\u2588\u2591 \u250c\u2500\u2510",
]

CODE = [
    "int main(void) { return 0; }\n", "def f(x):\n    return x ** 2  # square\n\n\nprint(f(3))\n",
    "for (size_t i = 0; i < n; i++)\n\t\ta[i] += b[i];\n", "#include <stdio.h>\n\n#define N 10\n",
    "{\"key\": [1, 2.5, null, true], \"s\": \"\\u00e9\\n\"}", "<div class=\"x\">&amp;</div>", "SELECT * FROM t WHERE a='b';",
    "https://example.org/a/b?c=d&e=%20f#g", "user.name+tag@example.org", "C:\\Users\\x\\file.txt", "/usr/local/bin",
    "a->b::c()[d]++", "!!!???...,,,;;;", "(((nested))) [[brackets]] {{braces}}", "a_b_c __init__ _x", "--flag=value -x",
    "\\begin{equation} E=mc^2 \\end{equation}", "**bold** _it_ `code` ~~s~~", "| a | b |\n|---|---|\n", "...\n...\r\n!!\n\n",
    " .\n ,\n", "$ % ^ & * ( )", "\u00ab\u00a0guillemets\u00a0\u00bb \u201cquotes\u201d \u2014 dash\u2026",
]

# What \s means is where regex engines differ most: each of these between letters and after a space.
SPACES = "\u000b\u000c\u001c\u001d\u001e\u001f\u0085\u00a0\u1680\u2000\u2003\u2009\u200a\u200b\u200c\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"

CONTROL = ["\u0001\u0002\u007f", "\u00ad soft\u00adhyphen", "\ufeffByte order mark", "\ufffd replaced \ufffd\ufffd",
           "\u202eright\u202c left", "\ufffe\uffff", "\ue000\uf8ff private", "\U0010ffff", "\u0378 not assigned"]

# The added tokens of all the tokenizers together; each tokenizer knows some of them.
ADDED = [
    "<|begin_of_text|>", "<|begin_of_text|>Hello", "<|begin_of_text|><|begin_of_text|>x<|end_of_text|>",
    "<|begin_of_text|", "begin_of_text|>", "<|begin_<|begin_of_text|>of_text|>",
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", "a <|eot_id|> b", "<|endoftext|>", "one<|endoftext|>two",
    "one <|endoftext|> two <|endoftext|>", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "<|IM_START|>",
    "<think>\nhm\n</think>\n\nok", "<tool>", "<tool>box", "<tool>boxes", "<tool><tool>box", "x<tool>y", "x <tool> y",
    "<mask>", "a <mask> b", "a  \t\n<mask>  b", "   <mask>", "<mask>   ", "a\u00a0<mask>\u00a0b", " <mask> <mask> ",
    "<tool> <mask>", "<fill>", "a <fill> b", "a  <fill>  \n\tb", "<fill>   <fill>   ", "<fill>\u3000x", "  <fill>", "<fill> <mask>",
    "thee", "thee and thee", "theesome", "athee", "thee.", "(thee)", "thee_", "_thee", "thee2", "2thee", "\u00e9thee", "thee\u00e9",
    "thee-thee", "theethee", "thee thee", "\u4e2dthee", "thee\u0301",
    "na\u00efve", "nai\u0308ve", "so na\u00efve!", "so nai\u0308ve!", "nai\u0308vete", "\u212b", "x \u212b y", "\u00c5", "A\u030a",
    "<tool>nai\u0308ve<mask>thee", "it's <tool>'s",
]

PIECES = [
    "a", "the", " the", "The", "ing", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "'s", "'ll", "'", "1", "23", "4567", ".", "...",
    "!?", "-", "_", "\u00e9", "e\u0301", "\u00df", "\u4e2d\u6587", "\u3042", "\u0430\u0431", "\u05d0", "\u0627\u0644", "\ud55c", "\u0915\u094d\u0937",
    "\U0001f600", "\u200d", "\ufe0f", "\u2028", "\u3000", "<|endoftext|>", "<|eot_id|>", "<|im_end|>", "<mask>", "<fill>", "<tool>", "thee",
    "ROMEO", ":\n", ",", " thou",
]


def spaces():
    return [s for c in SPACES for s in (f"a{c}b", f"a {c} {c}{c}b\n{c}")]


def mixtures(count=60, seed=7):
    """Random strings of pieces, always the same ones."""
    rng = random.Random(seed)
    return ["".join(rng.choices(PIECES, k=rng.randint(2, 14))) for _ in range(count)]


def corpus():
    every = (PLAIN + CONTRACTIONS + NUMBERS + SCRIPTS + MARKS + EMOJI + CODE + CONTROL + spaces()
             + ADDED + mixtures())
    assert not any(c in s for s in every for c in "\0\u180e")
    return list(dict.fromkeys(every))


def multilingual():
    """Text for the training, so that other scripts get merges as well."""
    return [s for s in SCRIPTS + MARKS + EMOJI + CODE + NUMBERS for _ in range(3)]
