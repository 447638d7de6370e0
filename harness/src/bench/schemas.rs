//! What schemas of other people cost: accepted, exact, compiled, masked.
//!
//! Files are as MaskBench has them, one JSON document a line: `schema`, and `tests` of which each has `data` and
//! `valid`. Times are of this thread's CPU, so that neighbours don't show in them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bitnet_rs::{Model, Special, vocabulary_trie};
use cpu_time::ThreadTime;
use grammar::schema::{Exactness, Mode, Schema, SchemaOptions};
use grammar::{TokenMatcher as _, TokenTrie};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::BenchError;
use super::table::Table;

/// Largest file of schemas.
const MAX_FILE: u64 = 256 << 20;

/// A line of a file.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    schema: &'a RawValue,
    #[serde(borrow, default)]
    tests: Vec<Instance<'a>>,
}

#[derive(Deserialize)]
struct Instance<'a> {
    #[serde(borrow)]
    data: &'a RawValue,
    valid: bool,
}

/// Times in microseconds of CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// How many.
    pub count: usize,
    /// Average.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95 of 100 are at most this.
    pub p95: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Times {
    fn of(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let max = *times.last()?;
        let at = |share: f64| times[((times.len() as f64 * share).ceil() as usize).clamp(1, times.len()) - 1];
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        Some(Self { count: times.len(), mean, p50: at(0.5), p95: at(0.95), p99: at(0.99), max })
    }
}

/// What came of one set of schemas in one mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SchemasRow {
    /// Which values were asked for.
    pub mode: Mode,
    /// Schemas.
    pub schemas: usize,
    /// Of those, the ones that are not refused.
    pub accepted: usize,
    /// Of those, the ones whose grammar is exact.
    pub by_grammar: usize,
    /// Valid instances of accepted schemas, as the data has them.
    pub valid: usize,
    /// Of those, the ones that can come out.
    pub valid_matched: usize,
    /// Invalid instances of accepted schemas.
    pub invalid: usize,
    /// Of those, the ones that would come out as answers.
    pub invalid_accepted: usize,
    /// Instances that the engine gave up on.
    pub gave_up: usize,
    /// Reading a schema and compiling its grammar for the vocabulary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compile_us: Option<Times>,
    /// One mask before each token of the matched instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_us: Option<Times>,
    /// Accepting those tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept_us: Option<Times>,
}

/// The files of a folder that hold schemas, or the file itself.
///
/// # Errors
/// What the system says of the folder.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let io = |source| BenchError::Io { what: path.display().to_string(), source };
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|extension| extension == "jsonl") {
            found.push(file);
        }
    }
    found.sort();
    Ok(found)
}

/// Runs all schemas of a file in one mode over a model's vocabulary.
///
/// # Errors
/// The engine's, and [`BenchError::Schemas`] for a file that is not as it has to be.
pub fn measure(
    model: &Model,
    path: &Path,
    mode: Mode,
    progress: &mut dyn FnMut(&str),
    stop: &AtomicBool,
) -> Result<SchemasRow, BenchError> {
    let bad = |line: usize, problem: String| BenchError::Schemas { path: path.display().to_string(), line, problem };
    let text = files::input_file::read_text(path, MAX_FILE)
        .map_err(|e| BenchError::Io { what: path.display().to_string(), source: e.into() })?;
    let trie = vocabulary_trie(model)?;
    let mut row = SchemasRow {
        mode,
        schemas: 0,
        accepted: 0,
        by_grammar: 0,
        valid: 0,
        valid_matched: 0,
        invalid: 0,
        invalid_accepted: 0,
        gave_up: 0,
        compile_us: None,
        mask_us: None,
        accept_us: None,
    };
    let mut times = Clocks::default();
    let options = SchemaOptions::default().mode(mode);
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        if number % 100 == 1 {
            progress(&format!("{}: {number}", path.display()));
        }
        let line: Line<'_> = serde_json::from_str(line).map_err(|e| bad(number, e.to_string()))?;
        row.schemas += 1;
        let started = ThreadTime::now();
        let Ok(schema) = Schema::parse(line.schema.get(), &options) else { continue };
        let Ok(_) = schema.matcher(&trie) else { continue };
        times.compile.push(micros(started));
        row.accepted += 1;
        row.by_grammar += usize::from(*schema.exactness() == Exactness::ByGrammar);
        for test in line.tests {
            let value: serde_json::Value =
                serde_json::from_str(test.data.get()).map_err(|e| bad(number, e.to_string()))?;
            // Compact, with the keys in the data's own order.
            let text = value.to_string();
            let comes_out = schema.matches(&text);
            if !test.valid {
                row.invalid += 1;
                row.invalid_accepted += usize::from(comes_out);
                continue;
            }
            row.valid += 1;
            row.valid_matched += usize::from(comes_out);
            if comes_out && !write(model, &trie, &schema, &text, &mut times)? {
                row.gave_up += 1;
            }
        }
    }
    row.compile_us = Times::of(times.compile);
    row.mask_us = Times::of(times.mask);
    row.accept_us = Times::of(times.accept);
    Ok(row)
}

#[derive(Default)]
struct Clocks {
    compile: Vec<f64>,
    mask: Vec<f64>,
    accept: Vec<f64>,
}

fn micros(started: ThreadTime) -> f64 {
    started.elapsed().as_secs_f64() * 1e6
}

/// Writes an instance token by token; `false`: the engine gave up, or a mask lacked the token.
fn write(model: &Model, trie: &TokenTrie, schema: &Schema, text: &str, times: &mut Clocks) -> Result<bool, BenchError> {
    let Ok(mut matcher) = schema.matcher(trie) else { return Ok(false) };
    for token in model.tokenize(text, Special::Content)? {
        let token = u32::try_from(token.get()).unwrap_or(u32::MAX);
        let started = ThreadTime::now();
        let mask = matcher.mask();
        times.mask.push(micros(started));
        if !mask.is_ok_and(|mask| mask.allows(token)) {
            return Ok(false);
        }
        let started = ThreadTime::now();
        let accepted = matcher.accept(token);
        times.accept.push(micros(started));
        if accepted.is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What MaskBench publishes of others on all of its 8,845 schemas (on another machine, at the same vocabulary):
/// name, share that passes, invalid instances accepted, microseconds for a mask (average), p50 and p99.
const PUBLISHED: [[&str; 4]; 2] =
    [["LLGuidance 0.7 (published)", "79 %", "0", "64"], ["llama.cpp (published)", "58 %", "649", ""]];

/// The table of a run.
pub fn table(rows: &[(String, SchemasRow)]) -> Table {
    let mut table = Table::new([
        "schemas",
        "accepted",
        "exact by grammar",
        "valid matched",
        "invalid accepted",
        "compile p50 us",
        "p95",
        "max",
        "mask p50 us",
        "p99",
        "average",
        "max",
    ]);
    let of = |times: &Option<Times>, read: fn(&Times) -> f64| {
        times.as_ref().map_or_else(String::new, |times| format!("{:.0}", read(times)))
    };
    for (name, row) in rows {
        table.row([
            name.clone(),
            format!("{} of {} ({:.1} %)", row.accepted, row.schemas, percent(row.accepted, row.schemas)),
            row.by_grammar.to_string(),
            format!("{} of {} ({:.2} %)", row.valid_matched, row.valid, percent(row.valid_matched, row.valid)),
            format!("{} of {}", row.invalid_accepted, row.invalid),
            of(&row.compile_us, |t| t.p50),
            of(&row.compile_us, |t| t.p95),
            of(&row.compile_us, |t| t.max),
            of(&row.mask_us, |t| t.p50),
            of(&row.mask_us, |t| t.p99),
            of(&row.mask_us, |t| t.mean),
            of(&row.mask_us, |t| t.max),
        ]);
    }
    for [name, passes, invalid, mask] in PUBLISHED {
        let blank = String::new;
        table.row([
            name.to_owned(),
            format!("passes {passes}"),
            blank(),
            blank(),
            invalid.to_owned(),
            blank(),
            blank(),
            blank(),
            blank(),
            blank(),
            mask.to_owned(),
            blank(),
        ]);
    }
    table
}

fn percent(part: usize, whole: usize) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::Times;

    #[test]
    fn shares_of_times_are_values_that_were_measured() {
        let times = Times::of((1..=200).rev().map(f64::from).collect()).unwrap();
        assert_eq!((times.count, times.p50, times.p95, times.p99, times.max), (200, 100.0, 190.0, 198.0, 200.0));
        assert!((times.mean - 100.5).abs() < 1e-9);
        let one = Times::of(vec![7.0]).unwrap();
        assert_eq!((one.p50, one.p99, one.max), (7.0, 7.0, 7.0));
        assert_eq!(Times::of(Vec::new()), None);
    }
}
