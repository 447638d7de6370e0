//! `harness model convert`: HuggingFace checkpoints as GGUF.

use std::path::PathBuf;

use clap::Args;
use gguf::GgmlType;
use serde_json::json;

use super::super::output::{self, TextOrJson};
use super::super::{CliError, check_target, not_an_input, output_error, progress};
use super::quantize::ggml_type;
use crate::exit::Exit;
use crate::interrupt;
use models::convert::{self, ConvertError, ConvertOptions};
use session::{ChatTemplate, TemplateSandbox};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness model convert bitnet-b1.58-2B-4T-bf16 --out 2b.gguf\n  harness model convert Falcon3-1B-Instruct-1.58bit --embedding q6_k --out falcon3.gguf"
)]
pub(super) struct ConvertArgs {
    /// Folder with config.json, tokenizer.json and model.safetensors (or shards with their index).
    folder: PathBuf,
    /// File to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Type of the linears: i2_s, tq1_0, tq2_0, f16 or f32.
    #[arg(long = "type", value_name = "TYPE", default_value = "i2_s", value_parser = matrix_type)]
    ty: GgmlType,
    /// Type of the embedding (and of an output matrix of its own): f16 unless the linears are f32.
    #[arg(long, value_name = "TYPE", value_parser = ggml_type)]
    embedding: Option<GgmlType>,
    /// tokenizer.ggml.pre, where it cannot be recognised from tokenizer.json.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pre: Option<String>,
    /// general.name; the folder's name without.
    #[arg(long)]
    name: Option<String>,
    /// Weights without quantization_config are master weights of a ternary model: round them.
    #[arg(long)]
    ternarize: bool,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

fn matrix_type(name: &str) -> Result<GgmlType, String> {
    ggml_type(name)
        .ok()
        .filter(|ty| matches!(ty, GgmlType::I2_S | GgmlType::TQ1_0 | GgmlType::TQ2_0 | GgmlType::F16 | GgmlType::F32))
        .ok_or_else(|| "i2_s, tq1_0, tq2_0, f16 or f32 is needed".to_owned())
}

fn failure(e: ConvertError) -> CliError {
    match e {
        ConvertError::Cancelled => CliError::Interrupted,
        ConvertError::File(e) => output_error(e),
        ConvertError::Write(_) => CliError::Failed(e.to_string()),
        other => CliError::Refused(other.to_string()),
    }
}

pub(super) fn run(args: ConvertArgs) -> Result<Exit, CliError> {
    if !args.folder.is_dir() {
        return Err(CliError::Usage(format!("{}: no such folder", args.folder.display())));
    }
    check_target(&args.out, args.force)?;
    not_an_input("--out", &args.out, [&args.folder])?;
    let options = ConvertOptions {
        matrices: args.ty,
        embedding: args.embedding,
        pre: args.pre,
        name: args.name,
        ternarize: args.ternarize,
    };
    let interrupted = interrupt::cooperate(|| {});
    let bar = progress::bytes("converting", 0);
    let result = convert::convert(
        &args.folder,
        &args.out,
        &options,
        args.force,
        &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        },
        &interrupted,
    );
    bar.finish_and_clear();
    let mut done = result.map_err(failure)?;
    if let Some(template) = &done.chat_template
        && let Err(e) = ChatTemplate::new(template.clone(), "model", &TemplateSandbox::InProcess)
    {
        done.warnings
            .push(format!("chat_template: {e}; conversations will be refused until --chat-template gives another"));
    }
    for warning in &done.warnings {
        eprintln!("warning: {warning}");
    }
    output::print(&match args.format {
        TextOrJson::Json => output::json(&json!({"out": args.out.display().to_string(), "result": done}))?,
        TextOrJson::Text => format!(
            "{}, {} tensors, pre-tokenizer {}; wrote {} bytes to {}\n",
            done.architecture,
            done.tensors,
            done.pre.as_deref().unwrap_or("none"),
            done.bytes,
            args.out.display()
        ),
    })?;
    Ok(Exit::Success)
}
