//! `harness model tokenize`: the engine's token ids of a text.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

use bitnet_rs::{Model, ModelParams, Special};
use clap::Args;
use serde::Serialize;

use super::super::output::{self, TextOrJson};
use super::super::{CliError, input_error, load_error, model_path};
use crate::exit::Exit;
use files::input_file;
use models::source::ModelSource;

/// Largest file of texts, bytes. Every token is named in the result.
const MAX_TEXTS: u64 = 8 << 20;

/// Most texts.
const MAX_COUNT: usize = 100_000;

/// Longest text, bytes. The engine splits each as a whole and takes a hundred times its length for that.
const MAX_TEXT: usize = 2 << 20;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  harness model tokenize --model model.gguf 'I have 12345 lights'")]
pub(super) struct TokenizeArgs {
    /// The text.
    #[arg(required_unless_present = "texts", conflicts_with = "texts")]
    text: Option<String>,
    /// JSON list of texts instead.
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
    /// GGUF file; without it the embedded model.
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Markers such as <|eot_id|> become their tokens instead of plain characters.
    #[arg(long)]
    markup: bool,
    /// Put bos (and eos) where the model asks for it.
    #[arg(long)]
    add_special: bool,
    /// Refuse a model that is only warned of otherwise, e.g. without tokenizer.ggml.pre.
    #[arg(long)]
    strict: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

#[derive(Serialize)]
struct Tokens<'p> {
    schema: &'static str,
    model: String,
    tokenizer_hash: String,
    pre: Option<String>,
    texts: Vec<TextTokens<'p>>,
}

#[derive(Serialize)]
struct TextTokens<'p> {
    ids: Vec<i32>,
    /// Bytes of each token as text, U+FFFD where it is part of a character.
    pieces: Vec<&'p str>,
}

pub(super) fn run(args: TokenizeArgs) -> Result<Exit, CliError> {
    let texts: Vec<String> = match (&args.text, &args.texts) {
        (Some(text), _) => vec![text.clone()],
        (None, Some(path)) => {
            let text = input_file::read_text(path, MAX_TEXTS).map_err(|e| input_error("--texts", path, e.into()))?;
            serde_json::from_str(&text).map_err(|e| CliError::Refused(format!("--texts {}: {e}", path.display())))?
        }
        (None, None) => Vec::new(),
    };
    let long = texts.iter().map(String::len).find(|len| *len > MAX_TEXT);
    if long.is_some() || texts.len() > MAX_COUNT {
        let what = long.map_or(format!("{} texts", texts.len()), |len| format!("a text of {len} bytes"));
        return Err(CliError::Refused(format!(
            "--texts: {what}; at most {MAX_COUNT} texts of at most {MAX_TEXT} bytes each are split"
        )));
    }
    let source = ModelSource::from_option(args.model);
    let path = model_path(&source)?;
    let model = Model::load(path.as_path(), ModelParams { strict: args.strict, ..ModelParams::default() })
        .map_err(|e| load_error(&source, e))?;
    for warning in model.info().warnings() {
        eprintln!("warning: {warning}");
    }
    let special = match (args.markup, args.add_special) {
        (false, false) => Special::Content,
        (false, true) => Special::ContentWithBos,
        (true, false) => Special::Markup,
        (true, true) => Special::MarkupWithBos,
    };
    let failed = |e: bitnet_rs::Error| CliError::Failed(e.to_string());
    let mut ids: Vec<Vec<i32>> = Vec::with_capacity(texts.len());
    // Each token's text once, however often it occurs.
    let mut pieces = BTreeMap::new();
    for text in &texts {
        let tokens = model.tokenize(text, special).map_err(failed)?;
        for &token in &tokens {
            if let Entry::Vacant(place) = pieces.entry(token.get()) {
                let bytes = model.token_bytes(token, true).map_err(failed)?;
                place.insert(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        ids.push(tokens.iter().map(|t| t.get()).collect());
    }
    let of = |ids: Vec<i32>| {
        let pieces = ids.iter().filter_map(|id| pieces.get(id).map(String::as_str)).collect();
        TextTokens { ids, pieces }
    };
    let out = ids.into_iter().map(of).collect();
    let tokens = Tokens {
        schema: "bitnet-harness.tokens/1",
        model: source.name(),
        tokenizer_hash: model.info().tokenizer_hash().to_string(),
        pre: model.info().tokenizer().pre.clone(),
        texts: out,
    };
    output::print(&match args.format {
        TextOrJson::Json => output::json(&tokens)?,
        TextOrJson::Text => {
            let mut text = String::new();
            for tokens in &tokens.texts {
                for (id, piece) in tokens.ids.iter().zip(&tokens.pieces) {
                    text += &format!("{id:>7} {piece:?}\n");
                }
            }
            text
        }
    })?;
    Ok(Exit::Success)
}
