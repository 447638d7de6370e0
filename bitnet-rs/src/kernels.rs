//! The engine's I2_S entry points, for a gate that compares them with a reference.
//!
//! Every function checks shapes and lengths first: the kernels read and write past their buffers when those do
//! not fit, drop the tail of rows that are no multiple of 128 and, through `ggml_mul_mat`, corrupt results for
//! row counts that are no multiple of 4. Weights are *packed*: `rows × k / 4` bytes as the engine lays them out.

use bitnet_sys as sys;

use crate::{Error, threads};

/// Weights per block of the packing (x86, `ACT_PARALLEL`).
pub const BLOCK: usize = 128;

/// Constants of this build (`gemm-config.h`): rows and columns per gemm block, columns per kernel call, weights
/// per packed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelConfig {
    /// `ROW_BLOCK_SIZE`.
    pub row_block: i32,
    /// `COL_BLOCK_SIZE`.
    pub col_block: i32,
    /// `PARALLEL_SIZE`.
    pub parallel: i32,
    /// `QK_I2_S`; 0 in a build without AVX2.
    pub block: i32,
}

/// Reads the constants of this build.
pub fn config() -> KernelConfig {
    let mut c = KernelConfig { row_block: 0, col_block: 0, parallel: 0, block: 0 };
    // SAFETY: writes four integers.
    unsafe { sys::bn_i2s_config(&raw mut c.row_block, &raw mut c.col_block, &raw mut c.parallel, &raw mut c.block) };
    c
}

/// One activation vector as the engine quantizes it.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedActivations {
    /// One int8 per value.
    pub values: Vec<i8>,
    /// `127 / max(|x|, 1e-5)`.
    pub scale: f32,
    /// Sum of `values`.
    pub sum: i32,
}

/// A kernel that multiplies packed rows with int8 activations; results are `Σ code · a` with code = weight + 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DotKernel {
    /// `ggml_vec_dot_i2_i8_s_1x1`: several rows, one column, a row at a time.
    OneByOne,
    /// `ggml_vec_dot_i2_i8_s_1xN`: several rows (a multiple of 4), one column, four rows at a time.
    OneByN,
    /// `ggml_vec_dot_i2_i8_s_Nx1`: one row, several columns (a multiple of 4), four columns at a time.
    NByOne,
}

fn check_k(k: usize) -> Result<i32, Error> {
    if k == 0 || !k.is_multiple_of(BLOCK) || k > 1 << 24 {
        return Err(Error::KernelArgument {
            field: "row length",
            value: i64::try_from(k).unwrap_or(i64::MAX),
            limit: format!("I2_S rows are a positive multiple of {BLOCK}; the kernels drop the rest silently"),
        });
    }
    Ok(k as i32)
}

fn check_multiple(field: &'static str, n: usize, of: usize) -> Result<(), Error> {
    if n == 0 || !n.is_multiple_of(of) || n > 1 << 24 {
        return Err(Error::KernelArgument {
            field,
            value: i64::try_from(n).unwrap_or(i64::MAX),
            limit: format!("must be a positive multiple of {of}"),
        });
    }
    Ok(())
}

fn check_len(field: &'static str, found: usize, needed: usize) -> Result<(), Error> {
    if found == needed {
        return Ok(());
    }
    Err(Error::KernelArgument {
        field,
        value: i64::try_from(found).unwrap_or(i64::MAX),
        limit: format!("exactly {needed} elements are needed"),
    })
}

/// `quantize_row_i8_s`.
///
/// # Errors
/// [`Error::KernelArgument`] unless the length is a positive multiple of 128.
pub fn quantize_activations(x: &[f32]) -> Result<QuantizedActivations, Error> {
    let n = check_k(x.len())?;
    let mut q = QuantizedActivations { values: vec![0; x.len()], scale: 0.0, sum: 0 };
    let out = q.values.as_mut_ptr().cast();
    // SAFETY: reads n floats, writes n bytes, one scale, one sum.
    unsafe { sys::bn_i8s_quantize_row(x.as_ptr(), out, i64::from(n), &raw mut q.scale, &raw mut q.sum) };
    Ok(q)
}

/// `quantize_row_i8_s_4x1`: as [`quantize_activations`], with the blocks of 128 spread to every fourth block of
/// a buffer of `4 × len`; returned gathered again. Bytes between the blocks must stay untouched, which is checked.
///
/// # Errors
/// As [`quantize_activations`]; [`Error::Native`] when bytes between the blocks were written.
pub fn quantize_activations_4x1(x: &[f32]) -> Result<QuantizedActivations, Error> {
    let n = check_k(x.len())?;
    const UNTOUCHED: i8 = -128;
    let mut wide = vec![UNTOUCHED; x.len() * 4];
    let (mut scale, mut sum) = (0.0, 0);
    // SAFETY: reads n floats, writes within 4 n bytes, one scale, one sum; n is a multiple of 128, which the
    // function asserts.
    unsafe {
        let out = wide.as_mut_ptr().cast();
        sys::bn_i8s_quantize_row_4x1(x.as_ptr(), out, i64::from(n), &raw mut scale, &raw mut sum);
    }
    let mut values = Vec::with_capacity(x.len());
    for block in wide.chunks(4 * BLOCK) {
        let (own, other) = block.split_at(BLOCK);
        values.extend_from_slice(own);
        if other.iter().any(|&b| b != UNTOUCHED) {
            let message = "wrote between its blocks".into();
            return Err(Error::Native { function: "quantize_row_i8_s_4x1", message });
        }
    }
    Ok(QuantizedActivations { values, scale, sum })
}

/// `quantize_i2_s`: `rows × k` floats to packed codes and the scale (the largest magnitude).
///
/// # Errors
/// [`Error::KernelArgument`] for shapes that do not fit.
pub fn quantize_weights(w: &[f32], rows: usize, k: usize) -> Result<(Vec<u8>, f32), Error> {
    check_k(k)?;
    check_multiple("rows", rows, 1)?;
    check_len("weights", w.len(), rows.saturating_mul(k))?;
    let mut out = vec![0u8; w.len() / 4 + 32];
    // SAFETY: reads rows·k floats, writes rows·k/4 bytes, one f32 and padding up to 32 bytes more.
    unsafe { sys::bn_i2s_quantize(w.as_ptr(), out.as_mut_ptr().cast(), rows as i64, k as i64) };
    let tail = out.split_off(w.len() / 4);
    let scale = f32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    Ok((out, scale))
}

/// `dequantize_row_i2_s`: one packed row to `−scale, 0, scale`.
///
/// # Errors
/// [`Error::KernelArgument`] for shapes that do not fit.
pub fn dequantize_row(packed: &[u8], scale: f32) -> Result<Vec<f32>, Error> {
    let n = check_k(packed.len().saturating_mul(4))?;
    let mut out = vec![0.0; packed.len() * 4];
    // SAFETY: reads n/4 bytes, writes n floats.
    unsafe { sys::bn_i2s_dequantize_row(packed.as_ptr(), out.as_mut_ptr(), i64::from(n), scale) };
    Ok(out)
}

/// Runs a dot kernel: `rows` packed rows of length `k` and `columns` activation vectors. Exactly one of the two
/// counts may differ from 1, as the kernel asks. Returns one sum per row or per column.
///
/// # Errors
/// [`Error::KernelArgument`] for shapes that do not fit.
pub fn dot(kernel: DotKernel, packed: &[u8], k: usize, activations: &[i8]) -> Result<Vec<f32>, Error> {
    let n = check_k(k)?;
    let rows = packed.len() / (k / 4);
    let columns = activations.len() / k;
    check_len("packed weights", packed.len(), rows * (k / 4))?;
    check_len("activations", activations.len(), columns * k)?;
    let (row_step, column_step) = match kernel {
        DotKernel::OneByOne => (1, 0),
        DotKernel::OneByN => (4, 0),
        DotKernel::NByOne => (0, 4),
    };
    let count = if row_step > 0 {
        check_multiple("rows", rows, row_step)?;
        check_len("columns", columns, 1)?;
        rows
    } else {
        check_multiple("columns", columns, column_step)?;
        check_len("rows", rows, 1)?;
        columns
    };
    let mut out = vec![0.0f32; count];
    let (s, x, y, c) = (out.as_mut_ptr(), packed.as_ptr().cast(), activations.as_ptr().cast(), count as i32);
    // SAFETY: `count` results are written at stride 1; rows lie k/4 bytes apart (the kernels divide the row
    // stride `k` by 4), columns k bytes apart, and both buffers hold exactly that many.
    unsafe {
        match kernel {
            DotKernel::OneByOne => sys::bn_i2s_dot_1x1(n, s, 1, x, k, y, 0, c),
            DotKernel::OneByN => sys::bn_i2s_dot_1xN(n, s, 1, x, k, y, 0, c),
            DotKernel::NByOne => sys::bn_i2s_dot_Nx1(n, s, 1, x, k, y, k, c),
        }
    }
    Ok(out)
}

/// `ggml_vec_dot_i2_i8_s`, the dispatcher: `count` = 16 rows against one column is what the fallback path asks
/// for, but this build's dispatcher treats multiples of 4 as columns. Called here with one row and `columns`
/// vectors (a multiple of 4), or with one row and one column.
///
/// # Errors
/// [`Error::KernelArgument`] for shapes that do not fit.
pub fn vec_dot(packed: &[u8], k: usize, activations: &[i8]) -> Result<Vec<f32>, Error> {
    let n = check_k(k)?;
    check_len("packed weights", packed.len(), k / 4)?;
    let columns = activations.len() / k;
    check_len("activations", activations.len(), columns * k)?;
    if columns != 1 {
        check_multiple("columns", columns, 4)?;
    }
    let mut out = vec![0.0f32; columns];
    // SAFETY: one row of k/4 bytes; `columns` vectors k bytes apart; as many results at stride 1.
    unsafe {
        let (x, y) = (packed.as_ptr().cast(), activations.as_ptr().cast());
        sys::bn_i2s_dot(n, out.as_mut_ptr(), 1, x, k, y, k, columns as i32);
    }
    Ok(out)
}

/// `ggml_gemv_i2_i8_s`: all rows against one column.
///
/// # Errors
/// [`Error::KernelArgument`] for shapes that do not fit.
pub fn gemv(packed: &[u8], k: usize, activations: &[i8]) -> Result<Vec<f32>, Error> {
    let n = check_k(k)?;
    let rows = packed.len() / (k / 4);
    check_multiple("rows", rows, 1)?;
    check_len("packed weights", packed.len(), rows * (k / 4))?;
    check_len("activations", activations.len(), k)?;
    let mut out = vec![0.0f32; rows];
    // SAFETY: `rows` rows k/4 bytes apart, one column, as many results.
    unsafe {
        let (x, y) = (packed.as_ptr().cast(), activations.as_ptr().cast());
        sys::bn_i2s_gemv(n, out.as_mut_ptr(), rows, x, y, 1, rows as i32);
    }
    Ok(out)
}

/// `ggml_gemm_i2_i8_s`: all rows against `columns` (a multiple of 4) columns; result `[column][row]`.
///
/// # Errors
/// [`Error::KernelArgument`] for shapes that do not fit.
pub fn gemm(packed: &[u8], k: usize, activations: &[i8]) -> Result<Vec<f32>, Error> {
    let n = check_k(k)?;
    let rows = packed.len() / (k / 4);
    check_multiple("rows", rows, 1)?;
    check_len("packed weights", packed.len(), rows * (k / 4))?;
    let columns = activations.len() / k;
    check_multiple("columns", columns, 4)?;
    check_len("activations", activations.len(), columns * k)?;
    let mut out = vec![0.0f32; rows * columns];
    // SAFETY: results of column c, row r go to c·rows + r (the stride argument is rows); buffers as above.
    unsafe {
        let (x, y) = (packed.as_ptr().cast(), activations.as_ptr().cast());
        sys::bn_i2s_gemm(n, out.as_mut_ptr(), rows, x, y, columns as i32, rows as i32);
    }
    Ok(out)
}

/// A whole `ggml_mul_mat` on `threads` threads: packed weights `rows × k` with their scale, f32 activations
/// `[column][k]`; result `[column][row]`. This is what a model's layer runs: quantize, gemm for columns in fours
/// when there are more than 3, gemv for the rest.
///
/// # Errors
/// [`Error::KernelArgument`] for shapes that do not fit, row counts that are not a multiple of 4 included;
/// [`Error::HostShortage`].
pub fn mul_mat(
    packed: &[u8],
    scale: f32,
    rows: usize,
    k: usize,
    activations: &[f32],
    n_threads: u32,
) -> Result<Vec<f32>, Error> {
    check_k(k)?;
    check_multiple("rows", rows, 4)?;
    check_len("packed weights", packed.len(), rows.saturating_mul(k / 4))?;
    let columns = activations.len() / k;
    check_multiple("columns", columns, 1)?;
    check_len("activations", activations.len(), columns * k)?;
    if n_threads == 0 || n_threads > threads::MAX_THREADS {
        return Err(Error::KernelArgument {
            field: "threads",
            value: i64::from(n_threads),
            limit: format!("1 to {}", threads::MAX_THREADS),
        });
    }
    // Worker threads keep rows / threads × columns floats on stacks that we do not size.
    let fits = threads::max_columns(rows, columns as u32, n_threads) as usize;
    if columns > 4 && fits < columns {
        return Err(Error::KernelArgument {
            field: "columns",
            value: columns as i64,
            limit: format!("at most {fits} fit the worker threads' stacks for {rows} rows on {n_threads} threads"),
        });
    }
    // The engine counts an I2_S element as one byte: four times what it needs.
    let memory = rows * k + 4096 + columns * (k + rows) * 4 + (1 << 20);
    threads::room(memory).map_err(|source| Error::HostShortage {
        what: format!("{memory} bytes for a product of {rows} rows"),
        source,
    })?;
    threads::with_stack(rows, columns, n_threads, || {
        // SAFETY: one ggml context of `memory` bytes holds the three tensors and the graph with room to spare;
        // the data is copied into tensors of exactly the sizes checked above (packed bytes, then the scale);
        // work memory is what the plan asks for; nothing of it is used after ggml_free.
        unsafe {
            let params = sys::ggml_init_params { mem_size: memory, mem_buffer: std::ptr::null_mut(), no_alloc: false };
            let ctx = sys::ggml_init(params);
            if ctx.is_null() {
                return Err(Error::Native { function: "ggml_init", message: format!("no {memory} bytes") });
            }
            let w = sys::ggml_new_tensor_2d(ctx, sys::GGML_TYPE_I2_S, k as i64, rows as i64);
            let x = sys::ggml_new_tensor_2d(ctx, sys::GGML_TYPE_F32, k as i64, columns as i64);
            let w_data = (*w).data.cast::<u8>();
            std::ptr::copy_nonoverlapping(packed.as_ptr(), w_data, packed.len());
            w_data.add(packed.len()).cast::<f32>().write_unaligned(scale);
            std::ptr::copy_nonoverlapping(activations.as_ptr(), (*x).data.cast::<f32>(), activations.len());
            let y = sys::ggml_mul_mat(ctx, w, x);
            let graph = sys::ggml_new_graph(ctx);
            sys::ggml_build_forward_expand(graph, y);
            let mut plan = sys::ggml_graph_plan(graph, n_threads as i32, std::ptr::null_mut());
            let mut work = vec![0u8; plan.work_size + 64];
            plan.work_data = work.as_mut_ptr();
            let code = sys::ggml_graph_compute(graph, &raw mut plan);
            let result = if code == sys::GGML_STATUS_SUCCESS {
                let data = (*y).data.cast::<f32>();
                Ok(std::slice::from_raw_parts(data, rows * columns).to_vec())
            } else if code == sys::GGML_STATUS_ALLOC_FAILED {
                Err(Error::HostShortage {
                    what: format!("{n_threads} threads for a product"),
                    source: std::io::Error::last_os_error(),
                })
            } else {
                Err(Error::Native { function: "ggml_graph_compute", message: format!("returned {code}") })
            };
            sys::ggml_free(ctx);
            result
        }
    })?
}

/// The start-up self-test: one block with weights −1, 0, 1, −1, … and activations 1, 2, 3, …; returns the sum of
/// code · activation by hand and as the kernel has it. Empty kernels (no AVX2) and another packing both fail it.
pub(crate) fn known_row() -> (i64, i64) {
    let mut packed = [0u8; BLOCK / 4];
    let mut activations = [0i8; BLOCK];
    let mut expected = 0;
    for j in 0..BLOCK {
        let code = (j * 7 % 3) as u8;
        packed[j % 32] |= code << (6 - 2 * (j / 32));
        activations[j] = (j % 120) as i8;
        expected += i64::from(code) * i64::from(activations[j]);
    }
    let found = dot(DotKernel::OneByOne, &packed, BLOCK, &activations).map_or(i64::MIN, |v| v[0] as i64);
    (expected, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_the_kernels_drop_or_corrupt_are_refused() {
        for k in [0, 64, 127, 129, 2592] {
            assert!(matches!(dot(DotKernel::OneByOne, &[], k, &[]), Err(Error::KernelArgument { .. })), "K = {k}");
        }
        let x = vec![0.0; 128 * 8];
        let refused = mul_mat(&vec![0; 258 * 32], 1.0, 258, 128, &x, 3);
        assert!(matches!(refused, Err(Error::KernelArgument { field: "rows", .. })));
        assert!(mul_mat(&[0; 128], 1.0, 4, 128, &x, 0).is_err());
        assert!(gemm(&[0; 128], 128, &[0; 128 * 3]).is_err());
    }

    #[test]
    fn the_known_row_is_known() {
        let (expected, found) = known_row();
        assert_eq!(expected, found);
        assert_ne!(expected, 0);
    }
}
