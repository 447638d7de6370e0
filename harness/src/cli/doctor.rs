//! `harness doctor`: is this machine and this build fit to run?

use std::process::Command;

use bitnet_rs::{CpuFeatures, engine_info, kernels, memory, threads};
use clap::Args;
use serde::Serialize;

use super::CliError;
use super::output::{self, TextOrJson};
use crate::exit::Exit;

/// Options of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  harness doctor --format json")]
pub(crate) struct DoctorArgs {
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

#[derive(Debug, Serialize)]
struct Line {
    topic: &'static str,
    ok: bool,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

pub(crate) fn run(args: DoctorArgs) -> Result<Exit, CliError> {
    let lines =
        [cpu(), kernel(), cores(), stack(), available_memory(), pin(), compiler(), tool("cmake"), tool("ninja")];
    let text = match args.format {
        TextOrJson::Json => output::json(&lines)?,
        TextOrJson::Text => lines
            .iter()
            .map(|l| {
                let advice = l.advice.as_ref().map(|a| format!("\n             {a}")).unwrap_or_default();
                format!("{} {:<10} {}{advice}\n", if l.ok { "ok " } else { "BAD" }, l.topic, l.found)
            })
            .collect(),
    };
    output::print(&text)?;
    // Build tools are only missed by the next build; the rest decides.
    let fit = lines.iter().filter(|l| !["cmake", "ninja"].contains(&l.topic)).all(|l| l.ok);
    Ok(if fit { Exit::Success } else { Exit::Fail })
}

fn cpu() -> Line {
    let features = CpuFeatures::detect();
    let missing = features.missing();
    Line {
        topic: "cpu",
        ok: missing.is_empty() && features.present.contains(&"avx2"),
        found: format!("has {}; compiled for {}", features.present.join(" "), features.compiled.join(" ")),
        advice: (!missing.is_empty())
            .then(|| format!("missing {}: rebuild with BITNET_MARCH=x86-64-v3", missing.join(" "))),
    }
}

fn kernel() -> Line {
    let started = bitnet_rs::backend::start();
    let c = kernels::config();
    Line {
        topic: "kernel",
        ok: started.is_ok(),
        found: match &started {
            Ok(()) => format!("self-test passed; {} weights per block, {} columns at once", c.block, c.parallel),
            Err(e) => e.to_string(),
        },
        advice: None,
    }
}

fn cores() -> Line {
    Line { topic: "threads", ok: true, found: format!("{} CPUs for this process", threads::available()), advice: None }
}

fn stack() -> Line {
    let bytes = threads::worker_stack();
    Line {
        topic: "stack",
        ok: bytes >= 1 << 20,
        found: format!("{} KiB per engine thread", bytes / 1024),
        advice: (bytes < 8 << 20)
            .then(|| "micro-batches are bounded by it; `ulimit -s 8192` allows 512 tokens on the 2B shape".into()),
    }
}

fn available_memory() -> Line {
    let bytes = memory::available();
    Line {
        topic: "memory",
        ok: bytes.is_some_and(|b| b > 1 << 30),
        found: bytes.map_or("unknown".into(), |b| format!("{:.1} GiB available", b as f64 / (1u64 << 30) as f64)),
        advice: bytes
            .filter(|b| *b < 3 << 30)
            .map(|_| "the 2B model needs about 1.2 GB and 75 KiB per token of context".into()),
    }
}

fn pin() -> Line {
    Line {
        topic: "engine",
        ok: engine_info::SANITIZE.is_empty(),
        found: format!(
            "bitnet.cpp {} (llama.cpp {}), sources verified against {}…, {}",
            &engine_info::ENGINE_COMMIT[..9],
            engine_info::LLAMA_CPP_COMMIT,
            &engine_info::SOURCE_DIGEST[..12],
            engine_info::THREADING
        ),
        advice: (!engine_info::SANITIZE.is_empty())
            .then(|| format!("built with -fsanitize={}: slow", engine_info::SANITIZE)),
    }
}

fn compiler() -> Line {
    Line {
        topic: "compiler",
        ok: true,
        found: format!("{} {}", engine_info::COMPILER, engine_info::COMPILER_FLAGS),
        advice: None,
    }
}

fn tool(name: &'static str) -> Line {
    let version = Command::new(name).arg("--version").output().ok().filter(|o| o.status.success());
    let found = version.map(|o| String::from_utf8_lossy(&o.stdout).lines().next().unwrap_or_default().to_owned());
    Line {
        topic: name,
        ok: found.is_some(),
        advice: found.is_none().then(|| "needed to build only; scripts/setup.sh installs it".into()),
        found: found.unwrap_or_else(|| "not installed".into()),
    }
}
