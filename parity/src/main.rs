//! Compares the engine's token ids (`harness model tokenize`) with HuggingFace `tokenizers` on the same vocabulary.
//!
//! `tokenizer-parity HARNESS MODEL.gguf tokenizer.json [RANDOM_TEXTS [SEED]]`: exit code 0 if all ids
//! are equal but those of characters that are known to differ, 1 otherwise.

mod texts;

use std::path::Path;
use std::process::{Command, ExitCode};

use serde::Deserialize;
use tokenizers::Tokenizer;

#[derive(Deserialize)]
struct Tokens {
    texts: Vec<TextTokens>,
}

#[derive(Deserialize)]
struct TextTokens {
    ids: Vec<u32>,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [harness, model, tokenizer, rest @ ..] = args.as_slice() else {
        return Err("usage: tokenizer-parity HARNESS MODEL.gguf tokenizer.json [RANDOM_TEXTS [SEED]]".into());
    };
    let number =
        |i: usize, default: u64| rest.get(i).map_or(Ok(default), |t| t.parse().map_err(|e| format!("{t}: {e}")));
    let texts = texts::all(number(0, 4000)? as usize, number(1, 20_261_129)?);
    let mut reference = Tokenizer::from_file(tokenizer).map_err(|e| format!("{tokenizer}: {e}"))?;
    let folder = std::env::temp_dir().join(format!("tokenizer-parity-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let mut good = true;
    for (mode, markup) in [("texts, special tokens are plain text", false), ("texts, special tokens are tokens", true)]
    {
        reference.set_encode_special_tokens(!markup);
        let engine = engine_ids(harness, model, &texts, markup, &folder)?;
        good &= compare(mode, &texts, &engine, &reference)?.is_empty();
    }
    reference.set_encode_special_tokens(true);
    good &= every_character(harness, model, &folder, &reference)?;
    let _ = std::fs::remove_dir_all(&folder);
    Ok(good)
}

/// Digits that Unicode 16.0 (September 2024) added. The engine's table of numbers is older and takes them for
/// unassigned; `\p{N}` of the reference's regular expressions knows them.
const NEWER_DIGITS: [(u32, u32); 7] = [
    (0x10d40, 0x10d49), // Garay
    (0x116d0, 0x116e3), // Myanmar Extended-C
    (0x11bf0, 0x11bf9), // Sunuwar
    (0x16130, 0x16139), // Gurung Khema
    (0x16d70, 0x16d79), // Kirat Rai
    (0x1ccf0, 0x1ccf9), // outlined
    (0x1e5f1, 0x1e5fa), // Ol Onal
];

/// Compares in blocks of 32 characters, then looks at each character of a block that differs.
fn every_character(harness: &str, model: &str, folder: &Path, reference: &Tokenizer) -> Result<bool, String> {
    let characters = texts::characters();
    let blocks: Vec<&[char]> = characters.chunks(32).collect();
    let texts: Vec<String> = blocks.iter().map(|b| b.iter().map(|&c| texts::around(c)).collect()).collect();
    let engine = engine_ids(harness, model, &texts, false, folder)?;
    let mut suspects = Vec::new();
    for ((text, ours), block) in texts.iter().zip(&engine).zip(&blocks) {
        let theirs = reference.encode(text.as_str(), false).map_err(|e| e.to_string())?;
        if theirs.get_ids() != ours {
            suspects.extend_from_slice(block);
        }
    }
    let texts: Vec<String> = suspects.iter().map(|&c| texts::around(c)).collect();
    let engine = engine_ids(harness, model, &texts, false, folder)?;
    let known = |c: char| NEWER_DIGITS.iter().any(|&(a, b)| (a..=b).contains(&u32::from(c)));
    let (mut explained, mut others) = (0, Vec::new());
    for ((text, ours), &c) in texts.iter().zip(&engine).zip(&suspects) {
        let theirs = reference.encode(text.as_str(), false).map_err(|e| e.to_string())?;
        match theirs.get_ids() == ours {
            true => {}
            false if known(c) => explained += 1,
            false => others.push(format!("U+{:04X}", u32::from(c))),
        }
    }
    let differ = explained + others.len();
    println!("characters: {} compared, {} equal, {differ} differ", characters.len(), characters.len() - differ);
    println!("  {explained} are digits of Unicode 16.0, which the engine's table does not have");
    if !others.is_empty() {
        println!("  {} others: {}", others.len(), others[..others.len().min(20)].join(" "));
    }
    Ok(others.is_empty())
}

fn engine_ids(
    harness: &str,
    model: &str,
    texts: &[String],
    markup: bool,
    folder: &Path,
) -> Result<Vec<Vec<u32>>, String> {
    let path = folder.join("texts.json");
    let json = serde_json::to_string(texts).map_err(|e| e.to_string())?;
    std::fs::write(&path, json).map_err(|e| e.to_string())?;
    let mut command = Command::new(harness);
    command.args(["model", "tokenize", "--format", "json", "--model", model, "--texts"]).arg(&path);
    if markup {
        command.arg("--markup");
    }
    let output = command.output().map_err(|e| format!("{harness}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{harness}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let tokens: Tokens = serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?;
    if tokens.texts.len() != texts.len() {
        return Err(format!("{} texts went out, {} came back", texts.len(), tokens.texts.len()));
    }
    Ok(tokens.texts.into_iter().map(|t| t.ids).collect())
}

fn compare(mode: &str, texts: &[String], engine: &[Vec<u32>], reference: &Tokenizer) -> Result<Vec<usize>, String> {
    let (mut equal, mut tokens) = (0, 0);
    let mut different = Vec::new();
    for (index, (text, ours)) in texts.iter().zip(engine).enumerate() {
        let theirs = reference.encode(text.as_str(), false).map_err(|e| e.to_string())?;
        let theirs = theirs.get_ids();
        tokens += theirs.len();
        if ours == theirs {
            equal += 1;
        } else {
            different.push((index, ours.clone(), theirs.to_vec()));
        }
    }
    println!("{mode}: {} texts, {tokens} tokens, {equal} texts equal, {} differ", texts.len(), texts.len() - equal);
    for (index, ours, theirs) in different.iter().take(8) {
        let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
        let piece = |ids: &[u32]| -> Vec<String> {
            let end = ids.len().min(at + 4);
            ids[at..end].iter().map(|&id| format!("{id} {:?}", reference.id_to_token(id).unwrap_or_default())).collect()
        };
        let shown: String = texts[*index].chars().take(60).flat_map(char::escape_default).collect();
        println!("  text {index} \"{shown}\": token {at}");
        println!("    engine     {}", piece(ours).join(", "));
        println!("    tokenizers {}", piece(theirs).join(", "));
    }
    Ok(different.into_iter().map(|(index, ..)| index).collect())
}
