//! Round trips.

use super::*;
use proptest::prelude::*;
use proptest::sample::select;

const FLOATS: [KvType; 3] = [KvType::F16, KvType::Bf16, KvType::F32];

#[derive(Debug, Clone)]
struct Case {
    geometry: StateGeometry,
    first: i32,
    p: usize,
    seed: u64,
}

impl Case {
    fn state(&self) -> SequenceState {
        let positions: Vec<i32> = (self.first..).take(self.p).collect();
        state(&self.geometry, &positions, self.seed)
    }
}

fn cases(types: &'static [KvType]) -> impl Strategy<Value = Case> {
    (
        (1usize..4, 1u32..4, 1u32..3),
        (select(types), select(types), any::<bool>()),
        (0i32..4000, 1usize..20, any::<u32>()),
    )
        .prop_map(|((n_layer, heads, dim), (type_k, type_v, transposed), (first, p, seed))| {
            let (type_v, layout) =
                if transposed { (KvType::F16, ValueLayout::Transposed) } else { (type_v, ValueLayout::Rows) };
            let geometry = shape(n_layer, heads, dim * 32, type_k, type_v, layout);
            Case { geometry, first, p, seed: u64::from(seed) }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn blob_to_native_file_to_blob(case in cases(&KvType::ALL)) {
        let s = case.state();
        let tokens = tokens(case.p);
        let file = native(&s, &tokens);
        let c = Cartridge::from_bytes(file.clone()).unwrap();
        c.validate(Level::Full).unwrap();
        prop_assert!(c.holds_blob());
        prop_assert_eq!(c.tokens().collect::<Vec<_>>(), tokens);
        let mounted = c.state(&case.geometry, RopeType::Neox, Rounding::Exact).unwrap();
        prop_assert!(mounted.is_borrowed());
        prop_assert_eq!(mounted.blob().as_bytes(), s.as_bytes());
        let own = c.to_blob().unwrap();
        prop_assert_eq!(own.blob().as_bytes(), s.as_bytes());

        // Sorted by the library, and without the pieces between the rows.
        let parts = Parts::of(&file);
        let mut bare = parts.clone();
        bare.tensors.retain(|t| !t.0.starts_with("blob."));
        for other in [parts.rewritten(), bare.file(), bare.rewritten()] {
            let c = Cartridge::from_bytes(other).unwrap();
            c.validate(Level::Full).unwrap();
            let mounted = c.state(&case.geometry, RopeType::Neox, Rounding::Exact).unwrap();
            prop_assert!(!mounted.is_borrowed());
            prop_assert_eq!(mounted.blob().as_bytes(), s.as_bytes());
        }
    }

    #[test]
    fn blob_to_head_major_file_to_blob(case in cases(&FLOATS)) {
        let s = case.state();
        let file = head_major(&s, &tokens(case.p));
        for bytes in [file.clone(), Parts::of(&file).rewritten()] {
            let c = Cartridge::from_bytes(bytes).unwrap();
            c.validate(Level::Full).unwrap();
            let mounted = c.state(&case.geometry, RopeType::Neox, Rounding::Exact).unwrap();
            prop_assert_eq!(mounted.blob().as_bytes(), s.as_bytes());
        }
    }

    #[test]
    fn conversions_there_and_back(case in cases(&FLOATS), layout in any::<bool>()) {
        let s = case.state();
        let g = &case.geometry;
        let dir = Scratch::new();
        let (there, back) = (dir.path("there"), dir.path("back"));
        let c = Cartridge::from_bytes(native(&s, &tokens(case.p))).unwrap();
        // f32 holds every f16 and bf16; layouts are permutations.
        let f32s = (KvType::F32, KvType::F32);
        let to = if layout {
            ConvertTo::HeadMajor { type_k: f32s.0, type_v: f32s.1 }
        } else {
            ConvertTo::Native {
                type_k: f32s.0, type_v: f32s.1, value_layout: ValueLayout::Rows, engine: "x".into()
            }
        };
        convert(&c, &there, &to, Rounding::Exact, Overwrite::Refuse).unwrap();
        let there = Cartridge::open(&there).unwrap();
        there.validate(Level::Full).unwrap();
        prop_assert!(diff(&c, &there).unwrap().same_content());
        let to = ConvertTo::Native {
            type_k: g.type_k(), type_v: g.type_v(), value_layout: g.value_layout(), engine: model().engine
        };
        convert(&there, &back, &to, Rounding::Exact, Overwrite::Refuse).unwrap();
        let back = Cartridge::open(&back).unwrap();
        let own = back.to_blob().unwrap();
        prop_assert_eq!(own.blob().as_bytes(), s.as_bytes());
        prop_assert_eq!(&back.fields().payload_hash, &c.fields().payload_hash);
    }

    #[test]
    fn the_crate_reads_what_we_write(case in cases(&KvType::ALL)) {
        let s = case.state();
        let file = native(&s, &tokens(case.p));
        let parts = Parts::of(&file);
        let blob = s.blob();
        for l in 0..case.geometry.n_layer() {
            for (letter, tensor) in [("k", KvTensor::Keys), ("v", KvTensor::Values)] {
                let t = parts.tensors.iter().find(|t| t.0 == format!("layer.{l}.{letter}")).unwrap();
                prop_assert_eq!(&t.3[..], blob.payload(l, tensor));
            }
        }
    }
}
