//! `harness doctor`: is this machine and this build fit to run?

use std::process::Command;

use bitnet_rs::{CpuFeatures, engine_info, kernels, memory, threads};
use clap::Args;
use serde::Serialize;

use super::CliError;
use super::output::{self, TextOrJson};
use crate::bench::profile::{Place, Profile};
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
    let mut lines = vec![cpu(), kernel(), cores(), stack(), available_memory(), pin(), compiler()];
    lines.extend(profiles(&Place::from_env(), &super::gates::cpu_model()));
    lines.extend([tool("cmake"), tool("ninja")]);
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

/// The settings that a sweep found best, or how to find them.
fn profiles(place: &Place, cpu: &str) -> Vec<Line> {
    let line =
        |ok, found: String, advice: Option<&str>| Line { topic: "profile", ok, found, advice: advice.map(Into::into) };
    let measure = "`harness bench --sweep --save-profile [--model GGUF]` measures the best settings";
    if *place == Place::Off {
        return vec![line(true, "not used (BITNET_PROFILE=off)".into(), None)];
    }
    let lines: Vec<Line> = place
        .files()
        .iter()
        .map(|file| match Profile::read(file) {
            Err(e) => line(false, e.to_string(), None),
            Ok(p) if p.cpu != cpu => {
                line(true, format!("{}: for {}, not used on this CPU", file.display(), p.cpu), Some(measure))
            }
            Ok(p) => {
                let found = format!(
                    "{}: --threads {}, micro-batch {} (prefill {:.1} t/s, decode {:.1} t/s)",
                    p.model, p.threads, p.n_ubatch, p.prefill_tokens_per_second, p.decode_tokens_per_second
                );
                let cpus = threads::available();
                let other =
                    (p.cpus != cpus).then(|| format!("measured with {} CPUs, {cpus} are here; {measure}", p.cpus));
                line(true, found, other.as_deref())
            }
        })
        .collect();
    if lines.is_empty() { vec![line(true, "none".into(), Some(measure))] } else { lines }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recommends_what_the_sweep_found_and_says_what_is_wrong_with_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::Folder(Some(folder.path().to_owned()));
        let lines = profiles(&place, "A");
        assert!(lines.len() == 1 && lines[0].ok && lines[0].advice.as_ref().unwrap().contains("--sweep"));
        let text = |cpu: &str| {
            format!(
                "format = \"bitnet-harness.profile/1\"\ncpu = \"{cpu}\"\ncpus = 9999\nmodel = \"m\"\n\
                 model_hash = \"sha256:{}\"\nmodel_bytes = 1\nengine = \"e\"\nthreads = 7\nn_ubatch = 96\n\
                 prefill_tokens_per_second = 41.0\ndecode_tokens_per_second = 28.0\n",
                "0".repeat(64)
            )
        };
        std::fs::write(folder.path().join("1.toml"), text("A")).unwrap();
        std::fs::write(folder.path().join("2.toml"), text("B")).unwrap();
        std::fs::write(folder.path().join("3.toml"), text("A") + "temperature = 1\n").unwrap();
        let lines = profiles(&place, "A");
        assert_eq!(lines.iter().map(|l| l.ok).collect::<Vec<_>>(), [true, true, false]);
        assert!(lines[0].found.contains("--threads 7, micro-batch 96"), "{}", lines[0].found);
        assert!(lines[0].advice.as_ref().unwrap().contains("9999 CPUs"));
        assert!(lines[1].found.contains("for B, not used"), "{}", lines[1].found);
        assert!(lines[2].found.contains("temperature"), "{}", lines[2].found);
        assert!(profiles(&Place::Off, "A")[0].found.contains("off"));
    }
}
