//! `harness model quantize` and `harness model repack`: other tensor types.

use std::path::PathBuf;

use clap::Args;
use gguf::{GgmlType, GgufFile, Limits};
use serde_json::json;

use super::super::output::{self, Target, TextOrJson};
use super::super::{CliError, check_target, model_error, model_path, not_an_input, output_error, progress};
use crate::exit::Exit;
use crate::interrupt;
use models::packing_evidence::{self, PackingEvidence, PackingVerdict};
use models::repack::{self, RepackError, Repacked, Targets};
use models::source::{ModelPath, ModelSource};
use reference::i2s::Packing;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  harness model quantize --model m.gguf --embedding q6_k --out m-q6k.gguf")]
pub(super) struct QuantizeArgs {
    /// GGUF file; without it the embedded model.
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Type of the token embedding: f32, f16, bf16, q8_0, q6_k, q5_k, q4_k, …
    #[arg(long, value_name = "TYPE", value_parser = ggml_type)]
    embedding: Option<GgmlType>,
    /// Type of a separate output matrix.
    #[arg(long, value_name = "TYPE", value_parser = ggml_type)]
    output: Option<GgmlType>,
    /// Type of the blocks' matrices; i2_s, tq2_0 and tq1_0 take ternary values only.
    #[arg(long, value_name = "TYPE", value_parser = ggml_type)]
    matrices: Option<GgmlType>,
    /// Name the pre-tokenizer of a file without one (tokenizer.ggml.pre), e.g. llama-bpe for Llama 3's vocabulary.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pre: Option<String>,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness model repack --model m.gguf --to tq2_0 --out m-tq2.gguf\n  harness model repack --model from-arm.gguf --from-packing arm --to i2_s --out m.gguf\n  harness model repack --model m.gguf --dry-run"
)]
pub(super) struct RepackArgs {
    /// GGUF file; without it the embedded model.
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Ternary type: i2_s, tq2_0 or tq1_0.
    #[arg(long, value_name = "TYPE", value_parser = ternary_type, required_unless_present = "dry_run")]
    to: Option<GgmlType>,
    /// How the input's I2_S tensors are packed, where the file does not say and the weights do not show it.
    #[arg(long, value_enum)]
    from_packing: Option<PackingName>,
    /// How to pack I2_S tensors of the output; this engine reads x86 on x86.
    #[arg(long, value_enum, default_value = "x86")]
    to_packing: PackingName,
    /// File to write.
    #[arg(long, value_name = "FILE", required_unless_present = "dry_run")]
    out: Option<PathBuf>,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
    /// Only say which packing the weights show.
    #[arg(long)]
    dry_run: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PackingName {
    /// 128 weights in 32 bytes.
    X86,
    /// 64 weights in 16 bytes.
    Arm,
}

impl PackingName {
    fn packing(self) -> Packing {
        match self {
            Self::X86 => Packing::X86,
            Self::Arm => Packing::Neon,
        }
    }
}

pub(super) fn ggml_type(name: &str) -> Result<GgmlType, String> {
    GgmlType::from_name(name).ok_or_else(|| format!("no tensor type has this name; {}", known()))
}

fn ternary_type(name: &str) -> Result<GgmlType, String> {
    ggml_type(name)
        .ok()
        .filter(|ty| matches!(ty, GgmlType::I2_S | GgmlType::TQ1_0 | GgmlType::TQ2_0))
        .ok_or_else(|| "i2_s, tq2_0 or tq1_0 is needed; other types are what `harness model quantize` makes".to_owned())
}

fn known() -> String {
    let names: Vec<&str> = [GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::I2_S]
        .iter()
        .chain(&bitnet_rs::quantize::TYPES)
        .map(|ty| ty.name())
        .collect();
    format!("known: {}", names.join(", "))
}

pub(super) fn failure(e: RepackError) -> CliError {
    match e {
        RepackError::Cancelled => CliError::Interrupted,
        RepackError::NothingToDo { .. } => CliError::Usage(e.to_string()),
        RepackError::File(e) => output_error(e),
        RepackError::Write(_) | RepackError::Verify { .. } => CliError::Failed(e.to_string()),
        other => CliError::Refused(other.to_string()),
    }
}

fn open(source: &ModelSource) -> Result<(ModelPath, GgufFile), CliError> {
    let path = model_path(source)?;
    let file = GgufFile::open(path.as_path(), &Limits::default()).map_err(|e| model_error(source, e))?;
    Ok((path, file))
}

fn write(file: &GgufFile, out: &std::path::Path, targets: &Targets, force: bool) -> Result<Repacked, CliError> {
    let interrupted = interrupt::cooperate(|| {});
    let bar = progress::bytes("writing", 0);
    let result = repack::write(
        file,
        out,
        targets,
        force,
        &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        },
        &interrupted,
    );
    bar.finish_and_clear();
    result.map_err(failure)
}

fn text(out: &std::path::Path, done: &Repacked) -> String {
    let mut text = String::new();
    // Many tensors of one kind are one line.
    let mut groups: Vec<(&str, &str, usize, u64, u64, f64, f64)> = Vec::new();
    for c in &done.changed {
        match groups.iter_mut().find(|g| g.0 == c.from && g.1 == c.to) {
            Some(g) => {
                g.2 += 1;
                g.3 += c.bytes_from;
                g.4 += c.bytes_to;
                g.5 = g.5.max(c.max_relative_error);
                g.6 = g.6.max(c.rms_relative_error);
            }
            None => {
                groups.push((c.from, c.to, 1, c.bytes_from, c.bytes_to, c.max_relative_error, c.rms_relative_error))
            }
        }
    }
    for (from, to, n, before, after, worst, rms) in groups {
        text += &format!(
            "{n} x {from} -> {to}: {before} -> {after} bytes, largest error {worst:.3e} of the largest value, rms {rms:.3e}\n"
        );
    }
    text + &format!("{} tensors copied; wrote {} bytes to {}\n", done.copied, done.bytes, out.display())
}

pub(super) fn quantize(args: QuantizeArgs) -> Result<Exit, CliError> {
    if args.embedding.is_none() && args.output.is_none() && args.matrices.is_none() && args.pre.is_none() {
        return Err(CliError::Usage("nothing to do: pass --embedding, --output, --matrices or --pre".into()));
    }
    args.target.check(&args.model)?;
    let source = ModelSource::from_option(args.model);
    let (_path, file) = open(&source)?;
    if args.matrices.is_some() {
        let evidence = packing_evidence::gather(&file).map_err(|e| CliError::Refused(e.to_string()))?;
        refuse_other_packing(&source, &evidence, repack::stated_packing(file.gguf()))?;
    }
    let targets = Targets {
        embedding: args.embedding,
        output: args.output,
        matrices: args.matrices,
        pre: args.pre,
        ..Targets::default()
    };
    let done = write(&file, &args.target.out, &targets, args.target.force)?;
    output::print(&match args.target.format {
        TextOrJson::Json => output::json(&json!({"out": args.target.out.display().to_string(), "result": done}))?,
        TextOrJson::Text => text(&args.target.out, &done),
    })?;
    Ok(Exit::Success)
}

fn evidence_text(e: &PackingEvidence) -> String {
    let numbers = format!(
        "{} comparisons, {:.1} standard deviations as x86, {:.1} as arm",
        e.comparisons, e.deviations_x86, e.deviations_arm
    );
    match e.verdict {
        PackingVerdict::X86 => format!("the weights are packed x86 ({numbers})"),
        PackingVerdict::Arm => format!("the weights are packed arm ({numbers})"),
        PackingVerdict::NoTernary => "the file has no I2_S tensor".to_owned(),
        PackingVerdict::CannotTell => format!(
            "the weights do not show how they are packed ({numbers}); x86 is assumed. If text comes out as noise, \
             compare `harness model perplexity` of this file and of `repack --from-packing arm --to i2_s`"
        ),
    }
}

/// Refuses a file whose weights contradict what it says, or what is assumed where it says nothing.
fn refuse_other_packing(
    source: &ModelSource,
    evidence: &PackingEvidence,
    stated: Option<Packing>,
) -> Result<(), CliError> {
    match (evidence.verdict, stated) {
        (PackingVerdict::Arm, None | Some(Packing::X86)) | (PackingVerdict::X86, Some(Packing::Neon)) => {
            Err(CliError::Refused(format!(
                "model {}: {}, which is not what the file says or this engine assumes; state it with `harness model repack --from-packing`",
                source.name(),
                evidence_text(evidence)
            )))
        }
        (PackingVerdict::CannotTell, None) => {
            eprintln!("warning: {}", evidence_text(evidence));
            Ok(())
        }
        _ => Ok(()),
    }
}

pub(super) fn repack_command(args: RepackArgs) -> Result<Exit, CliError> {
    if let Some(out) = args.out.as_ref().filter(|_| !args.dry_run) {
        check_target(out, args.force)?;
        not_an_input("--out", out, &args.model)?;
    }
    let source = ModelSource::from_option(args.model);
    let (_path, file) = open(&source)?;
    let stated = repack::stated_packing(file.gguf());
    let evidence = packing_evidence::gather(&file).map_err(|e| CliError::Refused(e.to_string()))?;
    if args.dry_run {
        output::print(&match args.format {
            TextOrJson::Json => output::json(&json!({
                "model": source.name(), "stated": stated.map(repack::packing_name), "evidence": evidence,
            }))?,
            TextOrJson::Text => {
                let word = stated.map_or("nothing".to_owned(), |p| repack::packing_name(p).to_owned());
                format!("the file states {word}; {}\n", evidence_text(&evidence))
            }
        })?;
        return Ok(Exit::Success);
    }
    let (Some(to), Some(out)) = (args.to, &args.out) else {
        return Err(CliError::Usage("--to and --out are needed".into()));
    };
    if args.from_packing.is_none() {
        refuse_other_packing(&source, &evidence, stated)?;
    }
    let targets = Targets {
        matrices: Some(to),
        from_packing: args.from_packing.map(PackingName::packing),
        to_packing: Some(args.to_packing.packing()),
        ..Targets::default()
    };
    let done = write(&file, out, &targets, args.force)?;
    output::print(&match args.format {
        TextOrJson::Json => {
            output::json(&json!({"out": out.display().to_string(), "evidence": evidence, "result": done}))?
        }
        TextOrJson::Text => text(out, &done),
    })?;
    Ok(Exit::Success)
}
