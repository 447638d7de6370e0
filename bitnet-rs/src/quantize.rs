//! ggml's block quantizers, row by row.
//!
//! For the types a table of embeddings or an output matrix is stored in. I2_S has one scale for a whole tensor
//! and is packed elsewhere.

use bitnet_sys as sys;

use crate::{Error, backend, status};
use gguf::GgmlType;

/// Types that rows can be quantized to without an importance matrix.
pub const TYPES: [GgmlType; 14] = [
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::TQ1_0,
    GgmlType::TQ2_0,
];

/// Most that a value may be: no block type stores more (Q6_K: a half-precision scale, times a scale below 128, times a
/// code of at most 32). Beyond it differences of two values overflow, and the quantizers cast what is no number.
pub const LARGEST: f32 = 268_435_456.0;

fn check(ty: GgmlType, row_len: usize, argument: usize, what: &'static str) -> Result<u64, Error> {
    let refuse = |argument: &'static str, value: usize, reason: String| {
        Err(Error::KernelArgument { field: argument, value: value as i64, limit: reason })
    };
    if !TYPES.contains(&ty) {
        return refuse("type", ty.number() as usize, format!("{ty} has no row quantizer"));
    }
    let Some(bytes) = ty.row_bytes(row_len as u64).filter(|bytes| *bytes > 0) else {
        return refuse("row length", row_len, format!("a row of {ty} is a multiple of {}", ty.block_len()));
    };
    if argument == 0 {
        return refuse(what, argument, "at least one row is needed".into());
    }
    Ok(bytes)
}

/// Quantizes whole rows of `row_len` floats (`ggml_quantize_chunk`).
///
/// # Errors
/// [`Error::KernelArgument`] for a type outside [`TYPES`], a row that is no whole number of blocks, a value that is not
/// finite or beyond ±[`LARGEST`] (the quantizers' results would depend on the compiler), and floats that are no whole
/// number of rows.
pub fn rows(ty: GgmlType, values: &[f32], row_len: usize) -> Result<Vec<u8>, Error> {
    backend::start()?;
    let row_bytes = check(ty, row_len, values.len(), "values")?;
    if !values.len().is_multiple_of(row_len) {
        let limit = format!("a multiple of the row length {row_len}");
        return Err(Error::KernelArgument { field: "values", value: values.len() as i64, limit });
    }
    if let Some(index) = values.iter().position(|v| !v.is_finite()) {
        let limit = format!("it is {}, and only finite values can be quantized", values[index]);
        return Err(Error::KernelArgument { field: "element", value: index as i64, limit });
    }
    if let Some(index) = values.iter().position(|v| v.abs() > LARGEST) {
        let limit = format!("it is {:e}, and {ty} holds no more than ±{LARGEST:e}", values[index]);
        return Err(Error::KernelArgument { field: "element", value: index as i64, limit });
    }
    let n_rows = values.len() / row_len;
    let size = usize::try_from(row_bytes).ok().and_then(|bytes| bytes.checked_mul(n_rows)).ok_or_else(|| {
        Error::KernelArgument { field: "values", value: values.len() as i64, limit: "too large".into() }
    })?;
    let mut out = vec![0u8; size];
    let mut written = 0;
    status::checked("ggml_quantize_chunk", |st| {
        // SAFETY: `values` has n_rows × row_len floats and `out` room for n_rows rows of this type, whose block
        // divides the row length; the type is one of TYPES, none of which needs an importance matrix.
        unsafe {
            sys::bn_quantize_rows(
                ty.number() as i32,
                values.as_ptr(),
                out.as_mut_ptr().cast(),
                n_rows as i64,
                row_len as i64,
                &raw mut written,
                st,
            );
        }
    })?;
    if written != size {
        let message = format!("wrote {written} bytes of {size}");
        return Err(Error::Native { function: "ggml_quantize_chunk", message });
    }
    Ok(out)
}

/// Floats of one row or several (the type's `to_float`).
///
/// # Errors
/// [`Error::KernelArgument`] for a type outside [`TYPES`] and bytes that are no whole number of blocks.
pub fn floats(ty: GgmlType, bytes: &[u8]) -> Result<Vec<f32>, Error> {
    // Half-precision numbers are looked up in a table that the engine fills when it starts: without it, all are 0.
    backend::start()?;
    let (block_len, block_bytes) = (ty.block_len() as usize, ty.block_bytes() as usize);
    if !TYPES.contains(&ty) || bytes.is_empty() || !bytes.len().is_multiple_of(block_bytes) {
        let limit = format!("a multiple of {block_bytes}, and {ty} must have a row quantizer");
        return Err(Error::KernelArgument { field: "bytes", value: bytes.len() as i64, limit });
    }
    let mut out = vec![0f32; bytes.len() / block_bytes * block_len];
    status::checked("to_float", |st| {
        // SAFETY: `bytes` holds out.len() / block_len blocks of this type, and `out` has room for their floats.
        unsafe {
            sys::bn_dequantize_row(ty.number() as i32, bytes.as_ptr().cast(), out.as_mut_ptr(), out.len() as i64, st);
        }
    })?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q8_0_of_a_row_by_hand() {
        // The largest magnitude is 127 · 0.5, so the block's scale is 0.5 and every value is a whole multiple.
        let values: Vec<f32> = (0..32).map(|i| (i as f32 - 15.0) * 0.5).chain([63.5]).skip(1).collect();
        let bytes = rows(GgmlType::Q8_0, &values, 32).unwrap();
        assert_eq!(bytes.len(), 34);
        assert_eq!(bytes[..2], 0x3800u16.to_le_bytes(), "0.5 in half precision");
        let codes: Vec<i8> = bytes[2..].iter().map(|&b| b as i8).collect();
        assert_eq!(codes, (-14..=16).chain([127]).collect::<Vec<i8>>());
        assert_eq!(floats(GgmlType::Q8_0, &bytes).unwrap(), values);
    }

    #[test]
    fn every_type_comes_back_near() {
        let values: Vec<f32> = (0..512).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        for ty in TYPES {
            if matches!(ty, GgmlType::TQ1_0 | GgmlType::TQ2_0) {
                continue;
            }
            let back = floats(ty, &rows(ty, &values, 256).unwrap()).unwrap();
            let error: f32 = values.iter().zip(&back).map(|(a, b)| (a - b).powi(2)).sum();
            let power: f32 = values.iter().map(|a| a * a).sum();
            // Four levels lose a ninth of the power of evenly spread values; more levels lose less.
            assert!(error / power < 0.15, "{ty}: {}", error / power);
        }
    }

    /// The largest half-precision number, times a scale of 127, times a code of 31: Q6_K keeps its order of magnitude.
    #[test]
    fn the_largest_that_a_type_holds_is_taken() {
        let value = 65504.0 * 127.0 * 31.0;
        let back = floats(GgmlType::Q6_K, &rows(GgmlType::Q6_K, &[value; 256], 256).unwrap()).unwrap();
        assert!(back.iter().all(|b| (b / value - 1.0).abs() < 0.05), "{:?}", &back[..4]);
    }

    #[test]
    fn what_ggml_would_abort_on_is_refused() {
        let zeros = [0f32; 256];
        for (ty, values, row) in [
            (GgmlType::I2_S, &zeros[..], 256),
            (GgmlType::IQ2_XXS, &zeros[..], 256),
            (GgmlType::Q6_K, &zeros[..], 128),
            (GgmlType::Q6_K, &zeros[..], 0),
            (GgmlType::Q8_0, &zeros[..0], 32),
            (GgmlType::Q8_0, &zeros[..48], 32),
        ] {
            assert!(matches!(rows(ty, values, row), Err(Error::KernelArgument { .. })), "{ty} {row}");
        }
        let mut bad = zeros;
        bad[77] = f32::NAN;
        assert!(rows(GgmlType::Q8_0, &bad, 256).unwrap_err().to_string().contains("77"));
        for ty in TYPES {
            bad[77] = -3e8;
            let refused = rows(ty, &bad, 256).unwrap_err().to_string();
            assert!(refused.contains("77") && refused.contains("-3e8"), "{ty}: {refused}");
        }
        assert!(floats(GgmlType::Q8_0, &[0; 33]).is_err());
        assert!(floats(GgmlType::I2_S, &[0; 32]).is_err());
    }
}
