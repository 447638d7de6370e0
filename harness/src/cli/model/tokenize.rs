//! `harness model tokenize`: the engine's token ids of a text.

use std::path::PathBuf;

use bitnet_rs::{Model, ModelParams, Special};
use clap::Args;
use serde::Serialize;

use super::super::CliError;
use super::super::output::{self, TextOrJson};
use crate::exit::Exit;
use crate::model::hf_folder;
use crate::model::source::ModelSource;

/// Largest file of texts, bytes.
const MAX_TEXTS: u64 = 64 << 20;

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
struct Tokens {
    schema: &'static str,
    model: String,
    tokenizer_hash: String,
    pre: Option<String>,
    texts: Vec<TextTokens>,
}

#[derive(Serialize)]
struct TextTokens {
    ids: Vec<i32>,
    /// Bytes of each token as text, U+FFFD where it is part of a character.
    pieces: Vec<String>,
}

pub(super) fn run(args: TokenizeArgs) -> Result<Exit, CliError> {
    let texts = match (&args.text, &args.texts) {
        (Some(text), _) => vec![text.clone()],
        (None, Some(path)) => {
            let bytes = hf_folder::bytes(path, MAX_TEXTS).map_err(|e| CliError::Usage(format!("--texts {e}")))?;
            serde_json::from_slice(&bytes).map_err(|e| CliError::Refused(format!("--texts {}: {e}", path.display())))?
        }
        (None, None) => Vec::new(),
    };
    let source = ModelSource::from_option(args.model);
    let refused = |e: &dyn std::fmt::Display| CliError::Refused(format!("model {}: {e}", source.name()));
    let path = source.path().map_err(|e| refused(&e))?;
    let model = Model::load(path.as_path(), ModelParams { strict: args.strict, ..ModelParams::default() })
        .map_err(|e| refused(&e))?;
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
    let mut out = Vec::with_capacity(texts.len());
    for text in &texts {
        let tokens = model.tokenize(text, special).map_err(failed)?;
        let mut pieces = Vec::with_capacity(tokens.len());
        for &token in &tokens {
            let bytes = model.token_bytes(token, true).map_err(failed)?;
            pieces.push(String::from_utf8_lossy(&bytes).into_owned());
        }
        out.push(TextTokens { ids: tokens.iter().map(|t| t.get()).collect(), pieces });
    }
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
