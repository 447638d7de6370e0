//! Compares the engine's token ids (`harness model tokenize`) with HuggingFace `tokenizers` on the same vocabulary.
//!
//! `tokenizer-parity HARNESS MODEL.gguf tokenizer.json [RANDOM_TEXTS [SEED]]`: exit code 0 if all ids
//! are equal, 1 if some text differs.

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
    let number = |i: usize, default: u64| rest.get(i).map_or(Ok(default), |t| t.parse().map_err(|e| format!("{t}: {e}")));
    let texts = texts::all(number(0, 4000)? as usize, number(1, 20_261_129)?);
    let mut reference = Tokenizer::from_file(tokenizer).map_err(|e| format!("{tokenizer}: {e}"))?;
    let folder = std::env::temp_dir().join(format!("tokenizer-parity-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let mut good = true;
    let characters = texts::every_character();
    for (mode, texts, markup) in [
        ("texts, special tokens are plain text", &texts, false),
        ("texts, special tokens are tokens", &texts, true),
        ("every character", &characters, false),
    ] {
        reference.set_encode_special_tokens(!markup);
        let engine = engine_ids(harness, model, texts, markup, &folder)?;
        good &= compare(mode, texts, &engine, &reference)?;
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(good)
}

fn engine_ids(harness: &str, model: &str, texts: &[String], markup: bool, folder: &Path) -> Result<Vec<Vec<u32>>, String> {
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

fn compare(mode: &str, texts: &[String], engine: &[Vec<u32>], reference: &Tokenizer) -> Result<bool, String> {
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
    Ok(different.is_empty())
}
