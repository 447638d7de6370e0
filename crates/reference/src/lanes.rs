//! The 16-bit accumulators of the AVX2 kernel.
//!
//! `_mm256_maddubs_epi16` multiplies 32 codes with 32 activations and adds neighbours, giving
//! sixteen 16-bit lanes; `_mm256_add_epi16` adds such vectors, wrapping. Sums are widened to 32 bits
//! (`_mm256_madd_epi16`) after each group of 32 blocks and after the last, shorter group. In a block
//! of 128 weights, lane t meets the eight products of columns 2t, 2t+1 and those 32, 64 and 96
//! farther on; in a whole group, 256 products.
//!
//! Three things follow. Codes reach 2 and activations 128, so `maddubs` itself never saturates
//! (2·2·128 = 512). Wrapping addition is associative, so only the final sum of a lane matters: a
//! lane is wrong exactly when that sum leaves `i16`. And a lane bound computed from the activations
//! alone holds for every ternary matrix.
//!
//! All entry points meet the same products in the same lane, whatever their loop order; see
//! [`KernelPath`].

use files::threads::in_parallel;

use super::i2s::{BLOCK, I2sError, I2sMatrix, QuantizedRow, worth_threads};

/// 16-bit lanes of a 256-bit register.
pub const LANES: usize = 16;

/// Blocks added up in 16 bits before widening.
pub const GROUP_BLOCKS: usize = 32;

/// Weights of a whole group: 4096.
pub const GROUP: usize = GROUP_BLOCKS * BLOCK;

/// Products that a lane adds up per block.
pub const PRODUCTS_PER_BLOCK: usize = BLOCK / LANES;

/// The loops that the engine runs for a ternary product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelPath {
    /// `ggml_vec_dot_i2_i8_s_1x1`: one row, one column; `gemv` and the rest of a batch.
    Single,
    /// `ggml_vec_dot_i2_i8_s_Nx1`: one weight row against four columns; `gemm` with ACT_PARALLEL.
    FourColumns,
    /// `ggml_vec_dot_i2_i8_s_1xN`: four weight rows against one column; without ACT_PARALLEL.
    FourRows,
    /// `ggml_vec_dot_i2_i8_s_1x4_32W`: four rows packed in each byte; never called by the engine.
    FourRowsInterleaved,
}

impl KernelPath {
    /// Every path.
    pub const ALL: [KernelPath; 4] =
        [KernelPath::Single, KernelPath::FourColumns, KernelPath::FourRows, KernelPath::FourRowsInterleaved];

    /// Blocks between widenings. The same everywhere: the interleaved path runs 128 short steps where
    /// the others run 32 of four, over the same 4096 columns.
    pub const fn group_blocks(self) -> usize {
        match self {
            KernelPath::Single | KernelPath::FourColumns | KernelPath::FourRows | KernelPath::FourRowsInterleaved => {
                GROUP_BLOCKS
            }
        }
    }

    /// Lane that meets the product of a column. The same everywhere.
    pub const fn lane(self, col: usize) -> usize {
        match self {
            KernelPath::Single | KernelPath::FourColumns | KernelPath::FourRows | KernelPath::FourRowsInterleaved => {
                col % 32 / 2
            }
        }
    }
}

/// Lane sums of one row and one activation vector, one entry per group.
///
/// # Errors
/// [`I2sError::RowLength`], and [`I2sError::Length`] when the two differ in length.
pub fn lane_sums(codes: &[u8], activations: &[i8]) -> Result<Vec<[i32; LANES]>, I2sError> {
    check_lengths(codes.len(), activations.len())?;
    Ok(codes
        .chunks(GROUP)
        .zip(activations.chunks(GROUP))
        .map(|(codes, activations)| {
            let mut by_column = [0_i32; 2 * LANES];
            for (codes, activations) in codes.chunks_exact(2 * LANES).zip(activations.chunks_exact(2 * LANES)) {
                for ((sum, &c), &a) in by_column.iter_mut().zip(codes).zip(activations) {
                    *sum += i32::from(c) * i32::from(a);
                }
            }
            std::array::from_fn(|lane| by_column[2 * lane] + by_column[2 * lane + 1])
        })
        .collect())
}

/// What the kernel returns for one row: the lane sums wrapped to 16 bits, widened and added.
///
/// Equal to the exact sum when no lane wraps, and to the kernel's wrong answer when one does.
///
/// # Errors
/// As [`lane_sums`].
pub fn wrapped_dot(codes: &[u8], activations: &[i8]) -> Result<i32, I2sError> {
    Ok(lane_sums(codes, activations)?
        .iter()
        .flatten()
        .fold(0_i32, |sum, &lane| sum.wrapping_add(i32::from(lane as i16))))
}

/// The range of lane sums met, and where its extremes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneHeadroom {
    /// Largest lane sum (0 when none is positive).
    pub max: i32,
    /// Smallest lane sum (0 when none is negative).
    pub min: i32,
    /// Where the sum nearest to its limit was met.
    pub at: LanePosition,
    /// Lane sums that left `i16`.
    pub wrapped: u64,
    /// Lane sums looked at.
    pub lanes: u64,
}

/// Place of a lane sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LanePosition {
    /// Weight row.
    pub row: usize,
    /// Activation row.
    pub token: usize,
    /// Group of 4096 columns.
    pub group: usize,
    /// Lane of the register.
    pub lane: usize,
}

impl LaneHeadroom {
    const EMPTY: LaneHeadroom =
        LaneHeadroom { max: 0, min: 0, at: LanePosition { row: 0, token: 0, group: 0, lane: 0 }, wrapped: 0, lanes: 0 };

    /// Whether the kernel's answer differs from the exact one somewhere.
    pub fn wraps(&self) -> bool {
        self.wrapped > 0
    }

    /// Share of the 16-bit range used by the lane nearest to its limit; above 1 it wrapped.
    pub fn used(&self) -> f64 {
        (f64::from(self.max) / f64::from(i16::MAX)).max(f64::from(self.min) / f64::from(i16::MIN))
    }

    /// Joins two measurements; the place is that of the fuller one.
    pub fn merge(self, other: LaneHeadroom) -> LaneHeadroom {
        LaneHeadroom {
            max: self.max.max(other.max),
            min: self.min.min(other.min),
            at: if other.used() > self.used() { other.at } else { self.at },
            wrapped: self.wrapped + other.wrapped,
            lanes: self.lanes + other.lanes,
        }
    }

    fn add(&mut self, sums: &[[i32; LANES]], row: usize, token: usize) {
        let mut used = self.used();
        for (group, lanes) in sums.iter().enumerate() {
            for (lane, &sum) in lanes.iter().enumerate() {
                self.max = self.max.max(sum);
                self.min = self.min.min(sum);
                self.wrapped += u64::from(i16::try_from(sum).is_err());
                self.lanes += 1;
                if self.used() > used {
                    used = self.used();
                    self.at = LanePosition { row, token, group, lane };
                }
            }
        }
    }
}

/// Exact headroom of a whole product: every row against every activation vector.
///
/// Costs as much as the product itself and uses all processors. [`lane_bound`] first tells which activation vectors can wrap
/// at all.
///
/// # Errors
/// [`I2sError::Length`] when an activation row has another length than the matrix rows.
pub fn lane_headroom(matrix: &I2sMatrix<'_>, activations: &[QuantizedRow]) -> Result<LaneHeadroom, I2sError> {
    let run = |rows: std::ops::Range<usize>| -> Result<LaneHeadroom, I2sError> {
        let mut codes = vec![0; matrix.cols()];
        let mut headroom = LaneHeadroom::EMPTY;
        for row in rows {
            matrix.row_codes(row, &mut codes);
            for (token, activation) in activations.iter().enumerate() {
                headroom.add(&lane_sums(&codes, &activation.values)?, row, token);
            }
        }
        Ok(headroom)
    };
    let rows = matrix.rows();
    let threads = worth_threads(rows * matrix.cols() * activations.len()).min(rows);
    let share = rows.div_ceil(threads);
    let parts = in_parallel((0..rows).step_by(share).map(|first| {
        let run = &run;
        move || run(first..(first + share).min(rows))
    }));
    let mut headroom = LaneHeadroom::EMPTY;
    for part in parts {
        headroom = headroom.merge(part?);
    }
    Ok(headroom)
}

/// Lane sums that no ternary matrix can exceed with these activations: all codes 2 where the
/// activation is positive (largest sum) or negative (smallest sum), else 0.
///
/// When [`LaneHeadroom::wraps`] is false here, the kernel is exact for this vector with any weights.
///
/// # Errors
/// [`I2sError::RowLength`].
pub fn lane_bound(activations: &[i8]) -> Result<LaneHeadroom, I2sError> {
    let mut headroom = LaneHeadroom::EMPTY;
    for positive in [true, false] {
        let codes: Vec<u8> = activations.iter().map(|&a| if (a > 0) == positive { 2 } else { 0 }).collect();
        headroom.add(&lane_sums(&codes, activations)?, 0, 0);
    }
    Ok(headroom)
}

/// The largest magnitude that all activations of a row may have at once without any lane wrapping,
/// whatever the ternary weights: `⌊32767 / (2·8·min(K/128, 32))⌋`, at most 127.
///
/// 127 (all of int8) up to K = 2048, 102 at K = 2560, 63 from K = 3968 on.
///
/// # Errors
/// [`I2sError::RowLength`].
pub fn safe_domain(cols: usize) -> Result<u8, I2sError> {
    check_lengths(cols, cols)?;
    let blocks = (cols / BLOCK).min(GROUP_BLOCKS);
    let per_unit = 2 * PRODUCTS_PER_BLOCK * blocks;
    Ok((i16::MAX as usize / per_unit).min(127) as u8)
}

fn check_lengths(cols: usize, activations: usize) -> Result<(), I2sError> {
    if cols == 0 || !cols.is_multiple_of(BLOCK) {
        return Err(I2sError::RowLength { cols });
    }
    if activations != cols {
        return Err(I2sError::Length { what: "activations", expected: cols, actual: activations });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::i2s::{Packing, dot_codes, pack};
    use super::*;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn the_adversarial_values_measured_on_the_engine() {
        // All weights +1 (code 2), all activations 127, K = 2560: the engine returned −398336
        // where 650240 is right.
        let codes = vec![2_u8; 2560];
        let activations = vec![127_i8; 2560];
        assert_eq!(dot_codes(&codes, &activations), 650_240);
        assert_eq!(wrapped_dot(&codes, &activations).unwrap(), -398_336);
    }

    #[test]
    fn exact_and_wrong_shapes_measured_on_the_engine() {
        for (activation, cols, exact) in [
            (127_i8, 128, true),
            (127, 2560, false),
            (127, 4096, false),
            (127, 6912, false),
            (64, 2560, true),
            (64, 4096, false),
            (64, 6912, false),
        ] {
            let codes = vec![2_u8; cols];
            let activations = vec![activation; cols];
            let right = dot_codes(&codes, &activations);
            let kernel = i64::from(wrapped_dot(&codes, &activations).unwrap());
            assert_eq!(kernel == right, exact, "a = {activation}, K = {cols}");
            let inside = activation as u8 <= safe_domain(cols).unwrap();
            assert_eq!(inside, exact, "domain of a = {activation}, K = {cols}");
            assert_eq!(lane_bound(&activations).unwrap().wraps(), !exact);
        }
    }

    #[test]
    fn the_domain_by_hand() {
        // 16 per block and unit of activation: 32767/16 = 2047, /320 = 102.4, /512 = 63.99.
        assert_eq!(safe_domain(128).unwrap(), 127);
        assert_eq!(safe_domain(2048).unwrap(), 127); // 16·16·127 = 32512
        assert_eq!(safe_domain(2176).unwrap(), 120); // 32767/272 = 120.5
        assert_eq!(safe_domain(2560).unwrap(), 102);
        assert_eq!(safe_domain(3968).unwrap(), 66); // 31 blocks: 32767/496 = 66.06
        assert_eq!(safe_domain(4096).unwrap(), 63);
        assert_eq!(safe_domain(6912).unwrap(), 63);
        assert_eq!(safe_domain(2592), Err(I2sError::RowLength { cols: 2592 }));
    }

    #[test]
    fn the_domain_is_tight() {
        for cols in (BLOCK..=5120).step_by(BLOCK) {
            let safe = safe_domain(cols).unwrap() as i8;
            let codes = vec![2_u8; cols];
            for activation in [safe, -safe] {
                let activations = vec![activation; cols];
                let kernel = i64::from(wrapped_dot(&codes, &activations).unwrap());
                assert_eq!(kernel, dot_codes(&codes, &activations), "K = {cols}");
            }
            if safe < 127 {
                let activations = vec![safe + 1; cols];
                let kernel = i64::from(wrapped_dot(&codes, &activations).unwrap());
                assert_ne!(kernel, dot_codes(&codes, &activations), "K = {cols}");
            }
        }
    }

    #[test]
    fn a_single_lane_is_named() {
        // Weights +1 in columns 6 and 7 of every 32 only: lane 3.
        let cols = 4096;
        let weights: Vec<i8> = (0..4 * cols).map(|j| if j / cols == 2 && (j % 32) / 2 == 3 { 1 } else { -1 }).collect();
        let bytes = pack(&weights, 4, cols, 1.0, Packing::X86).unwrap();
        let matrix = I2sMatrix::new(&bytes, 4, cols, Packing::X86).unwrap();
        let row = QuantizedRow { values: vec![100; cols], scale: 1.0, sum: 409_600 };
        let headroom = lane_headroom(&matrix, &[row]).unwrap();
        assert_eq!(headroom.max, 256 * 2 * 100);
        assert_eq!(headroom.min, 0);
        assert_eq!(headroom.wrapped, 1);
        assert_eq!(headroom.lanes, 4 * 16);
        assert_eq!(headroom.at, LanePosition { row: 2, token: 0, group: 0, lane: 3 });
        assert!(headroom.used() > 1.5 && headroom.used() < 1.6);
    }

    /// The instructions of `ggml_vec_dot_i2_i8_s_1x1`, one by one, on the packed bytes.
    fn emulate_single(packed: &[u8], y: &[i8]) -> i32 {
        let maddubs = |x: &[u8; 32], y: &[i8]| -> [i16; 16] {
            std::array::from_fn(|t| {
                let a = i32::from(x[2 * t]) * i32::from(y[2 * t]);
                let b = i32::from(x[2 * t + 1]) * i32::from(y[2 * t + 1]);
                (a + b).clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
            })
        };
        let add16 = |a: [i16; 16], b: [i16; 16]| -> [i16; 16] { std::array::from_fn(|t| a[t].wrapping_add(b[t])) };
        let mut accu = [0_i32; 8];
        for (packed, y) in packed.chunks(1024).zip(y.chunks(4096)) {
            let mut accu16 = [0_i16; 16];
            for (packed, y) in packed.chunks(32).zip(y.chunks(128)) {
                let codes = |shift: u32| -> [u8; 32] {
                    // srli_epi16 shifts 16-bit lanes; the mask removes what crossed the byte.
                    std::array::from_fn(|i| {
                        let lane = u16::from_le_bytes([packed[i & !1], packed[i | 1]]);
                        (lane >> shift).to_le_bytes()[i & 1] & 3
                    })
                };
                let (p0, p1) = (maddubs(&codes(6), &y[..32]), maddubs(&codes(4), &y[32..64]));
                let (p2, p3) = (maddubs(&codes(2), &y[64..96]), maddubs(&codes(0), &y[96..]));
                accu16 = add16(accu16, add16(p0, p1));
                accu16 = add16(accu16, add16(p2, p3));
            }
            for (i, sum) in accu.iter_mut().enumerate() {
                *sum += i32::from(accu16[2 * i]) + i32::from(accu16[2 * i + 1]);
            }
        }
        accu.iter().sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn wrapped_dot_follows_the_instructions(seed: u64, blocks in 1_usize..70, low in -128_i16..128) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let cols = blocks * BLOCK;
            // Skewed weights and one-sided activations wrap often.
            let weights: Vec<i8> = (0..4 * cols)
                .map(|_| if rng.random_bool(0.7) { 1 } else { rng.random_range(-1..=1) })
                .collect();
            let activations: Vec<i8> =
                (0..cols).map(|_| rng.random_range(low..128) as i8).collect();
            let bytes = pack(&weights, 4, cols, 1.0, Packing::X86).unwrap();
            let matrix = I2sMatrix::new(&bytes, 4, cols, Packing::X86).unwrap();
            let mut codes = vec![0; cols];
            for row in 0..4 {
                matrix.row_codes(row, &mut codes);
                let emulated = emulate_single(&bytes[row * cols / 4..][..cols / 4], &activations);
                prop_assert_eq!(wrapped_dot(&codes, &activations).unwrap(), emulated);
                let exact = dot_codes(&codes, &activations);
                let sums = lane_sums(&codes, &activations).unwrap();
                let wraps = sums.iter().flatten().any(|&s| i16::try_from(s).is_err());
                if !wraps {
                    prop_assert_eq!(i64::from(emulated), exact);
                }
                let bound = lane_bound(&activations).unwrap();
                for &sum in sums.iter().flatten() {
                    prop_assert!(bound.min <= sum && sum <= bound.max);
                }
            }
        }

        #[test]
        fn inside_the_domain_nothing_wraps(seed: u64, blocks in 1_usize..60) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let cols = blocks * BLOCK;
            let safe = i16::from(safe_domain(cols).unwrap());
            let activations: Vec<i8> =
                (0..cols).map(|_| rng.random_range(-safe..=safe) as i8).collect();
            prop_assert!(!lane_bound(&activations).unwrap().wraps());
        }
    }
}
