//! Texts that tokenizers like to disagree on.

/// A small generator of our own, so that the texts never change with a library.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Written by hand, each for a reason.
const HAND: &[&str] = &[
    "",
    " ",
    "  ",
    "   a",
    "a   ",
    "a  b   c    d",
    "\n",
    "\n\n\n",
    " \n \n ",
    "a\n",
    "a\r\nb\r\rc\n\r",
    "\t\tx\t \ty",
    "\u{b}\u{c}\u{85}\u{a0}\u{1680}\u{2003}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}x",
    "a\u{a0}b \u{a0}c\u{a0} d",
    "a\u{3000}b",
    "Hello, world!",
    "1",
    "12",
    "123",
    "1234",
    "12345",
    "1234567",
    "3.14159265358979",
    "1,000,000 and 0x1F600 and 1e-10",
    "٠١٢٣٤٥٦٧٨٩ ०१२३ ⅷ ½ ² ① 〇 一二三",
    "2026-11-29T15:20:00Z",
    "I'm you're he'll we've they'd it's don't 'tis",
    "I'M YOU'RE HE'LL WE'VE THEY'D IT'S DON'T I'LL",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'VE 'M 'LL 'D 'rE 'Ve 'lL",
    "'\u{17f} \u{2019}s it\u{2019}s it\u{2019}ll",
    "1234567 I'LL\n\n漢字",
    "漢字かな交じり文、句読点。「引用」！",
    "打开客厅的灯，把温度调到二十三度。",
    "한국어 형태소 분석 ㄱㄴㄷ",
    "ภาษาไทยไม่มีช่องว่าง",
    "हिन्दी में संयुक्ताक्षर क्ष्म",
    "தமிழ் மொழி",
    "မြန်မာဘာသာ",
    "ខ្មែរ ລາວ བོད་སྐད",
    "שלום עולם, מה שלומך?",
    "مرحبا بالعالم، كيف حالك؟ لِمَاذَا",
    "\u{202e}rtl\u{202c} \u{200f}x\u{200e}",
    "👋 🌍 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇯🇵 1️⃣ ❤️ 🧑🏿‍🚀",
    "e\u{301} é a\u{308}\u{323} n\u{303} Z\u{351}\u{35b}a\u{36f}lgo",
    "\u{301}\u{301}\u{301}",
    "ﬁ ﬀ Ǆ ß ẞ İ ı ŉ ΐ",
    "naïve café Straße ÅNGSTRÖM Łódź İstanbul",
    "Привет, мир! Ё Ђ Ѣ",
    "Ελληνικά ἀρχαῖα ΣΊΣΥΦΟΣ ς",
    "Հայերեն ქართული አማርኛ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ",
    "\u{0}",
    "a\u{0}b\u{0}\u{0}c",
    "\u{1}\u{2}\u{7f}\u{80}\u{9f}\u{ad}",
    "\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}",
    "\u{e000}\u{f8ff}\u{f0000}\u{10fffd}",
    "\u{fffd}\u{fffe}\u{ffff}\u{10ffff}\u{d7ff}\u{e000}",
    "𝕳𝖊𝖑𝖑𝖔 𝟙𝟚𝟛𝟜 𐍈 𒀀 𓀀 🂡",
    "\u{1f1e6}\u{1f1e6}\u{1f1e6}",
    "fn main() { println!(\"{:>8}\", x << 2 | 0b1010); } // done",
    "def f(x):\n    if x:\n\t\treturn {'a': [1, 2, 3]}\n\n\n    return None\n",
    "<html><body class=\"a b\">&nbsp;&#x1F600;</body></html>",
    "SELECT * FROM t WHERE a!='b' AND c<>d;--",
    "{\"name\":\"light_on\",\"arguments\":{\"room\":\"kitchen\",\"level\":100}}",
    "https://example.org/a%20b?c=d&e=f#g user@example.org",
    "C:\\Users\\x\\n.txt /usr/local/bin/../lib",
    "#!/bin/sh\nset -euo pipefail\r\n",
    "$100 €99.99 ¥1000 £5 ₿0.1 50% ±3°C",
    "x^2+y^2=z^2 ∑∫√∞≠≤ →←↔⇒ ∀∃",
    "`code` ~~x~~ **b** _i_ # h\n- a\n- b\n1. c",
    "!!!???...,,,;;;:::---===___***",
    "...\n\n...\r\n!!\n",
    "!\n\n\n a",
    " !\r\n\r\n  b",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "a<|eot_id|>b",
    "<|eot_id|><|eot_id|>\n<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
    "<|eot_id|",
    "<| eot_id |> <|EOT_ID|> <|eot_id|>>",
    "<|reserved_special_token_0|> <|reserved_special_token_250|> <|reserved_special_token_251|>",
    " <|end_of_text|> ",
    "<s></s><unk>[INST][/INST]<|im_start|><|im_end|>",
];

/// Ranges of scripts and oddities that the random texts draw from.
const RANGES: &[(u32, u32)] = &[
    (0x20, 0x7e),
    (0x20, 0x7e),
    (0x61, 0x7a),
    (0x30, 0x39),
    (0x00, 0x1f),
    (0xa0, 0xff),
    (0x100, 0x24f),
    (0x300, 0x36f),
    (0x370, 0x3ff),
    (0x400, 0x4ff),
    (0x590, 0x5ff),
    (0x600, 0x6ff),
    (0x900, 0x97f),
    (0xe00, 0xe7f),
    (0x1100, 0x11ff),
    (0x1e00, 0x1fff),
    (0x2000, 0x206f),
    (0x2070, 0x218f),
    (0x2190, 0x2bff),
    (0x3000, 0x30ff),
    (0x4e00, 0x9fff),
    (0xac00, 0xd7a3),
    (0xe000, 0xf8ff),
    (0xfe00, 0xfe0f),
    (0xff00, 0xffef),
    (0x10000, 0x107ff),
    (0x12000, 0x123ff),
    (0x1d400, 0x1d7ff),
    (0x1f300, 0x1faff),
    (0x20000, 0x2a6df),
    (0xe0100, 0xe01ef),
    (0x0, 0x10ffff),
];

/// Short pieces that matter to the pre-tokenizer, mixed into the random texts.
const PIECES: &[&str] = &[
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "'s",
    "'LL",
    "'re",
    "1",
    "123",
    "4567",
    " the",
    "ing",
    "<|eot_id|>",
    "\u{200d}",
    "\u{fe0f}",
    "\u{0}",
    "...",
    "!\n",
    "_",
    "-",
    "\u{3000}",
    "\u{a0}",
    "é",
    "e\u{301}",
    "漢",
    "👍🏽",
];

/// Every character of Unicode, assigned or not; of the planes 4 to 16 those that are anything but unassigned or private
/// throughout.
pub fn characters() -> Vec<char> {
    let codes = (0..0x4_0000u32).chain(0xe_0000..0xe_0200).chain(0xf_0000..0xf_0040).chain(0x10_ffc0..0x11_0000);
    codes.filter_map(char::from_u32).collect()
}

/// A character after a letter, after a digit, after a space, after an apostrophe and at an end of line.
pub fn around(c: char) -> String {
    format!("x{c}1{c} {c}{c}'{c}\n")
}

/// Every text of the comparison, in a fixed order.
pub fn all(random: usize, seed: u64) -> Vec<String> {
    let mut texts: Vec<String> = HAND.iter().map(|&t| t.to_owned()).collect();
    // Every one-byte character, and the first 0x250 characters between letters.
    texts.extend((0u8..=0x7f).map(|b| char::from(b).to_string()));
    texts.extend((0x80u32..0x250).filter_map(char::from_u32).map(|c| format!("a{c} {c}b{c}{c}1")));
    // Long runs.
    for piece in ["a", " ", "\n", "1", "!", "漢", "👍", "ab ", "\t", "a\u{301}", "\u{0}", "= "] {
        texts.push(piece.repeat(3000));
    }
    let mut draw = Random::new(seed);
    for _ in 0..random {
        let len = 1 + draw.below(40);
        // A text stays with a few scripts, as real ones do.
        let scripts: Vec<(u32, u32)> = (0..1 + draw.below(3)).map(|_| RANGES[draw.below(RANGES.len())]).collect();
        let mut text = String::new();
        for _ in 0..len {
            if draw.below(4) == 0 {
                text.push_str(PIECES[draw.below(PIECES.len())]);
                continue;
            }
            let (first, last) = scripts[draw.below(scripts.len())];
            let code = first + draw.below((last - first + 1) as usize) as u32;
            // Surrogates are no characters.
            if let Some(c) = char::from_u32(code) {
                text.push(c);
            }
        }
        texts.push(text);
    }
    texts
}
