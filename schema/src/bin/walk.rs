//! Random walks through exact grammars: what comes out must be valid. `walk FILE [declared]`, 45 s.
use schema::schema::{ConstraintState, Exactness, Mode, Schema, SchemaOptions, Verdict, Vocabulary};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io::BufRead;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mode = if args.iter().any(|a| a == "declared") { Mode::Declared } else { Mode::Open };
    let start = std::time::Instant::now();
    let mut seed = 88_172_645_463_325_252_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let (mut schemas, mut ended, mut cut, mut bad, mut dead) = (0, 0, 0, 0, 0);
    for line in std::io::BufReader::new(std::fs::File::open(&args[1]).unwrap()).lines() {
        if start.elapsed().as_secs() > 45 {
            break;
        }
        let line = line.unwrap();
        let row: BTreeMap<String, &RawValue> = serde_json::from_str(&line).unwrap();
        let Ok(schema) = Schema::parse(row["schema"].get(), &SchemaOptions::default().mode(mode)) else { continue };
        if *schema.exactness() != Exactness::ByGrammar {
            continue;
        }
        let Ok(mut c) = schema.constraint(Vocabulary::bytes()) else { continue };
        schemas += 1;
        for _ in 0..4 {
            c.reset();
            for step in 0..600 {
                if c.state() == ConstraintState::Complete || c.state() == ConstraintState::MayEnd && random() % 4 == 0 {
                    break;
                }
                let Ok(mask) = c.mask() else {
                    dead += 1;
                    println!(
                        "DEAD {} {}",
                        row["schema"].get().chars().take(200).collect::<String>(),
                        String::from_utf8_lossy(c.text())
                    );
                    break;
                };
                let mut all: Vec<u32> = mask.iter().filter(|&t| t < 256).collect();
                if all.is_empty() {
                    break;
                }
                let close: Vec<u32> =
                    all.iter().copied().filter(|&t| matches!(t as u8, b'"' | b'}' | b']' | b',')).collect();
                if !close.is_empty() && (step > 150 || random() % 3 == 0) {
                    all = close;
                }
                let t = all[random() as usize % all.len()];
                if let Err(e) = c.accept(t) {
                    dead += 1;
                    println!("ERR {e}");
                    break;
                }
            }
            if matches!(c.state(), ConstraintState::Complete | ConstraintState::MayEnd) {
                ended += 1;
                let verdict = c.finish();
                if verdict != Verdict::Valid {
                    bad += 1;
                    println!(
                        "BAD {verdict:?} {} {}",
                        String::from_utf8_lossy(c.text()).chars().take(200).collect::<String>(),
                        row["schema"].get().chars().take(300).collect::<String>()
                    );
                }
            } else {
                cut += 1
            }
        }
    }
    println!("schemas {schemas} ended {ended} cut {cut} bad {bad} dead {dead}");
}
