//! `harness model perplexity`: perplexity of a text, for one model or for several types of its embedding.

use std::path::PathBuf;

use bitnet_rs::{Model, ModelParams};
use clap::Args;
use gguf::{GgmlType, GgufFile, Limits};
use serde::Serialize;

use super::super::output::{self, TextOrJson};
use super::super::{CliError, input_error, load_error, model_error, model_path, progress};
use super::quantize;
use crate::exit::Exit;
use crate::interrupt;
use files::input_file;
use files::scratch::Scratch;
use models::perplexity::{self, Perplexity, PerplexityError, PerplexityOptions};
use models::repack::{self, RepackError, Targets};
use models::source::ModelSource;

/// Longest text, bytes: six times the usual one. The engine splits it as a whole and takes a hundred times its length
/// for that.
const MAX_TEXT: u64 = 8 << 20;

/// Tokens of a decoding run.
const DECODED: usize = 64;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness model perplexity --model m.gguf --text wiki.test.raw\n  harness model perplexity --text text.txt --embedding-types f32,f16,q8_0,q6_k,q4_k"
)]
pub(super) struct PerplexityArgs {
    /// GGUF file; without it the embedded model.
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Text file, UTF-8.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Tokens in a window; the second half of each is counted.
    #[arg(long, default_value_t = 512)]
    n_ctx: u32,
    /// Windows at most.
    #[arg(long, value_name = "N")]
    windows: Option<usize>,
    /// Compute threads; clamped to the CPUs that this process may use. Default: all of those.
    #[arg(long, value_name = "N")]
    threads: Option<u32>,
    /// Measure copies of the model with these types of the token embedding, and their decoding speed.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = quantize::ggml_type)]
    embedding_types: Vec<GgmlType>,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

#[derive(Serialize)]
struct Row {
    embedding: &'static str,
    file_bytes: u64,
    #[serde(flatten)]
    result: Perplexity,
    decode_tokens_per_second: Option<f64>,
}

#[derive(Serialize)]
struct Table {
    schema: &'static str,
    model: String,
    threads: u32,
    rows: Vec<Row>,
}

fn failure(e: PerplexityError) -> CliError {
    match e {
        PerplexityError::Cancelled => CliError::Interrupted,
        PerplexityError::Engine(_) | PerplexityError::NotFinite { .. } => CliError::Failed(e.to_string()),
        other => CliError::Usage(other.to_string()),
    }
}

pub(super) fn run(args: PerplexityArgs) -> Result<Exit, CliError> {
    let text = input_file::read_text(&args.text, MAX_TEXT).map_err(|e| input_error("--text", &args.text, e.into()))?;
    let threads = super::super::gates::threads(args.threads)?;
    let options = PerplexityOptions { n_ctx: args.n_ctx, windows: args.windows, threads };
    let source = ModelSource::from_option(args.model);
    let path = model_path(&source)?;
    let interrupted = interrupt::cooperate(|| {});
    let mut rows = Vec::new();
    let mut measure = |path: &std::path::Path, speed: bool| -> Result<(), CliError> {
        let model = Model::load(path, ModelParams::default()).map_err(|e| load_error(&source, e))?;
        let gguf = model.file().gguf();
        let embedding = gguf.tensor("token_embd.weight").map_or("none", |t| t.ggml_type().name());
        let spinner = progress::spinner(embedding);
        let result = perplexity::measure(
            &model,
            &text,
            &options,
            &mut |done, total, so_far| spinner.set_message(format!("window {done} of {total}, {so_far:.4}")),
            &interrupted,
        );
        spinner.finish_and_clear();
        let result = result.map_err(failure)?;
        let decode_tokens_per_second = if speed {
            Some(perplexity::decode_speed(&model, threads, DECODED).map_err(|e| CliError::Failed(e.to_string()))?)
        } else {
            None
        };
        let file_bytes = gguf.file_len();
        rows.push(Row { embedding, file_bytes, result, decode_tokens_per_second });
        Ok(())
    };
    if args.embedding_types.is_empty() {
        measure(path.as_path(), false)?;
    } else {
        let original = GgufFile::open(path.as_path(), &Limits::default()).map_err(|e| model_error(&source, e))?;
        let folder = Scratch::new().map_err(|e| CliError::Failed(e.to_string()))?;
        for &ty in &args.embedding_types {
            let targets = Targets { embedding: Some(ty), ..Targets::default() };
            let copy = folder.path().join("copy.gguf");
            match repack::write(&original, &copy, &targets, true, &mut |_, _| (), &interrupted) {
                Ok(_) => measure(&copy, true)?,
                Err(RepackError::NothingToDo { .. }) => measure(path.as_path(), true)?,
                Err(e) => return Err(quantize::failure(e)),
            }
        }
    }
    let table = Table { schema: "bitnet-harness.perplexity/1", model: source.name(), threads, rows };
    output::print(&match args.format {
        TextOrJson::Json => output::json(&table)?,
        TextOrJson::Text => text_of(&table),
    })?;
    Ok(Exit::Success)
}

fn text_of(table: &Table) -> String {
    let mut text = String::new();
    let base = table.rows.first().map_or(1.0, |r| r.result.perplexity);
    for (i, row) in table.rows.iter().enumerate() {
        let r = &row.result;
        if i == 0 {
            text += &format!(
                "{}: {} windows of {} tokens, {} tokens counted, {} threads\n",
                table.model, r.windows, r.n_ctx, r.counted, table.threads
            );
        }
        text += &format!(
            "embedding {:<8} {:>13} bytes  perplexity {:.4} +/- {:.5}",
            row.embedding, row.file_bytes, r.perplexity, r.uncertainty
        );
        if table.rows.len() > 1 {
            text += &format!(" ({:+.3} %)", (r.perplexity / base - 1.0) * 100.0);
        }
        text += &format!("  {:.0} tokens/s", r.tokens_per_second);
        if let Some(speed) = row.decode_tokens_per_second {
            text += &format!(", decoding {speed:.1}");
        }
        text += "\n";
    }
    text
}
