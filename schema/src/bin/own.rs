//! The own front on MaskBench-like files: `own FILE [declared] [v]`.
use schema::schema::{Exactness, Mode, Schema, SchemaOptions, Verdict, Vocabulary};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::mpsc;
use std::time::{Duration, Instant};

#[derive(serde::Deserialize)]
struct Row<'a> {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(borrow)]
    schema: &'a RawValue,
    tests: Vec<Test>,
}
#[derive(serde::Deserialize)]
struct Test {
    data: Value,
    valid: bool,
}

#[derive(Default)]
struct Out {
    refused: Option<(String, String)>,
    by_grammar: bool,
    lines: Vec<String>,
    valid: usize,
    matched: usize,
    judged_valid: usize,
    invalid: usize,
    accepted: usize,
    unsound_grammar: usize,
    undecided: usize,
    parse_us: f64,
}

fn one(name: &str, text: &str, tests: &[Test], mode: Mode) -> Out {
    let mut out = Out::default();
    let t = Instant::now();
    let schema = Schema::parse(text, &SchemaOptions::default().mode(mode));
    out.parse_us = t.elapsed().as_secs_f64() * 1e6;
    let schema = match schema {
        Ok(s) => s,
        Err(e) => {
            out.refused =
                Some((format!("{:?} {}", e.kind, e.keyword.chars().take(40).collect::<String>()), format!("{e}")));
            return out;
        }
    };
    if let Err(e) = schema.constraint(Vocabulary::bytes()) {
        out.refused = Some((format!("{:?} {}", e.kind, e.keyword), format!("{e}")));
        return out;
    }
    out.by_grammar = *schema.exactness() == Exactness::ByGrammar;
    for t in tests {
        let text = serde_json::to_string(&t.data).unwrap();
        let short: String = text.chars().take(300).collect();
        let grammar = schema.grammar_accepts(&text);
        let verdict = schema.judge(&text);
        let ok = verdict == Verdict::Valid;
        out.undecided += usize::from(matches!(verdict, Verdict::Undecided { .. }));
        if t.valid {
            out.valid += 1;
            out.judged_valid += usize::from(ok);
            out.matched += usize::from(ok && grammar);
            if !ok {
                out.lines.push(format!("JUDGE {name} {verdict:?} {short}"));
            } else if !grammar {
                let mut c = schema.constraint(Vocabulary::bytes()).unwrap();
                let at = text.bytes().position(|b| c.accept(u32::from(b)).is_err());
                let here = at.map_or("(end)".to_owned(), |at| {
                    String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(60)..(at + 20).min(text.len())])
                        .into_owned()
                });
                out.lines.push(format!("MISS {name} at {at:?} ..{here}.. {:?}", c.accept(0)));
            }
        } else {
            out.invalid += 1;
            out.accepted += usize::from(ok && grammar);
            if ok {
                out.lines.push(format!("UNSOUND grammar={grammar} {name} {short}"));
            } else if grammar && out.by_grammar {
                out.unsound_grammar += 1;
                out.lines.push(format!("GRAMMAR {name} {verdict:?} {short}"));
            }
        }
    }
    out
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mode = if args.iter().any(|a| a == "declared") { Mode::Declared } else { Mode::Open };
    let verbose = args.iter().any(|a| a == "v");
    let only = args.iter().find_map(|a| a.strip_prefix("only=")).map(str::to_owned);
    let file = std::io::BufReader::new(std::fs::File::open(&args[1]).unwrap());
    let mut total = Out::default();
    let (mut n, mut acc, mut exact, mut panics, mut timeouts) = (0, 0, 0, 0, 0);
    let mut reasons = BTreeMap::<String, usize>::new();
    let mut times = Vec::new();
    for line in file.lines() {
        let line = line.unwrap();
        let (tx, rx) = mpsc::channel();
        let row: Row = serde_json::from_str(&line).unwrap();
        let name = row.name.or(row.description).unwrap_or_default();
        if only.as_ref().is_some_and(|o| !name.contains(o.as_str())) {
            continue;
        }
        n += 1;
        let (text, tests, label) = (row.schema.get().to_owned(), row.tests, name.clone());
        std::thread::spawn(move || {
            let out = one(&label, &text, &tests, mode);
            let _ = tx.send(out);
        });
        let out = match rx.recv_timeout(Duration::from_secs(20)) {
            Ok(out) => out,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                timeouts += 1;
                println!("TIMEOUT {name}");
                continue;
            }
            Err(_) => {
                panics += 1;
                println!("PANIC {name}");
                continue;
            }
        };
        times.push(out.parse_us);
        if let Some((key, full)) = out.refused {
            if verbose {
                println!("REFUSED {name} {full}");
            }
            *reasons.entry(key).or_default() += 1;
            continue;
        }
        acc += 1;
        exact += usize::from(out.by_grammar);
        for l in &out.lines {
            if verbose {
                println!("{l}");
            }
        }
        total.valid += out.valid;
        total.matched += out.matched;
        total.judged_valid += out.judged_valid;
        total.invalid += out.invalid;
        total.accepted += out.accepted;
        total.unsound_grammar += out.unsound_grammar;
        total.undecided += out.undecided;
    }
    times.sort_by(f64::total_cmp);
    let p = |q: f64| times.get(((times.len().max(1) - 1) as f64 * q) as usize).copied().unwrap_or(0.0);
    println!(
        "schemas {n} accepted {acc} by grammar {exact} | valid matched {}/{} (judge {}) | invalid accepted {}/{} | exact grammars that let an invalid one through {} | undecided {} | panics {panics} timeouts {timeouts}",
        total.matched,
        total.valid,
        total.judged_valid,
        total.accepted,
        total.invalid,
        total.unsound_grammar,
        total.undecided
    );
    println!("parse us p50 {:.0} p95 {:.0} p99 {:.0} max {:.0}", p(0.5), p(0.95), p(0.99), p(1.0));
    let mut r: Vec<_> = reasons.into_iter().collect();
    r.sort_by_key(|x| std::cmp::Reverse(x.1));
    for (e, c) in r.iter().take(20) {
        println!("{c:5} {e}");
    }
    std::process::exit(0);
}
