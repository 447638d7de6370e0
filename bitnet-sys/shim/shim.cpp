// Exceptions stop here: each function runs one engine call inside `guarded`; see shim.h for the contracts.
#include "shim.h"

#include "gemm-config.h"
#include "guarded.h"

// The layout that the Rust side counts on.
#include "layout.h"

// Kernel entry points that no engine header declares. They have C++ linkage in ggml-bitnet-mad.cpp.
void ggml_vec_dot_i2_i8_s_1x1(int n, float * s, size_t bs, const void * vx, size_t bx, const void * vy, size_t by, int nrc);
void ggml_vec_dot_i2_i8_s_1xN(int n, float * s, size_t bs, const void * vx, size_t bx, const void * vy, size_t by, int nrc);
void ggml_vec_dot_i2_i8_s_Nx1(int n, float * s, size_t bs, const void * vx, size_t bx, const void * vy, size_t by, int nrc);

extern "C" {
#include "ggml-quants.h"
void ggml_gemv_i2_i8_s(int n, float * s, size_t bs, const void * vx, const void * vy, int nr, int nc);
void ggml_gemm_i2_i8_s(int n, float * s, size_t bs, const void * vx, const void * vy, int nr, int nc);
}

extern "C" {

void bn_backend_init(bn_status * st) {
    guarded(st, [&] { llama_backend_init(); });
}

struct llama_model * bn_model_load(const char * path, struct llama_model_params params, bn_status * st) {
    llama_model * model = nullptr;
    guarded(st, [&] { model = llama_load_model_from_file(path, params); });
    return not_null(model, st, "llama_load_model_from_file returned null");
}

struct llama_context * bn_context_new(struct llama_model * model, struct llama_context_params params, bn_status * st) {
    llama_context * ctx = nullptr;
    guarded(st, [&] { ctx = llama_new_context_with_model(model, params); });
    return not_null(ctx, st, "llama_new_context_with_model returned null");
}

void bn_decode(struct llama_context * ctx, struct llama_batch batch, int32_t * ret, bn_status * st) {
    *ret = -3;
    guarded(st, [&] { *ret = llama_decode(ctx, batch); });
}

void bn_tokenize(const struct llama_model * model, const char * text, int32_t text_len, llama_token * tokens,
                 int32_t cap, bool add_special, bool parse_special, int32_t * n, bn_status * st) {
    *n = 0;
    guarded(st, [&] { *n = llama_tokenize(model, text, text_len, tokens, cap, add_special, parse_special); });
}

void bn_token_to_piece(const struct llama_model * model, llama_token token, char * buf, int32_t cap, bool special,
                       int32_t * n, bn_status * st) {
    *n = 0;
    guarded(st, [&] { *n = llama_token_to_piece(model, token, buf, cap, 0, special); });
}

void bn_state_seq_size(struct llama_context * ctx, llama_seq_id seq, size_t * n, bn_status * st) {
    *n = 0;
    guarded(st, [&] { *n = llama_state_seq_get_size(ctx, seq); });
}

void bn_state_seq_get(struct llama_context * ctx, uint8_t * dst, size_t size, llama_seq_id seq, size_t * n, bn_status * st) {
    *n = 0;
    guarded(st, [&] { *n = llama_state_seq_get_data(ctx, dst, size, seq); });
}

void bn_state_seq_set(struct llama_context * ctx, const uint8_t * src, size_t size, llama_seq_id seq, size_t * n, bn_status * st) {
    *n = 0;
    guarded(st, [&] { *n = llama_state_seq_set_data(ctx, src, size, seq); });
}

void bn_kv_clear(struct llama_context * ctx, bn_status * st) {
    guarded(st, [&] { llama_kv_cache_clear(ctx); });
}

void bn_kv_seq_rm(struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, bool * removed, bn_status * st) {
    *removed = false;
    guarded(st, [&] { *removed = llama_kv_cache_seq_rm(ctx, seq, p0, p1); });
}

void bn_kv_seq_cp(struct llama_context * ctx, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1, bn_status * st) {
    guarded(st, [&] { llama_kv_cache_seq_cp(ctx, src, dst, p0, p1); });
}

void bn_kv_seq_keep(struct llama_context * ctx, llama_seq_id seq, bn_status * st) {
    guarded(st, [&] { llama_kv_cache_seq_keep(ctx, seq); });
}

void bn_sampler_apply(struct llama_sampler * s, llama_token_data_array * candidates, bn_status * st) {
    guarded(st, [&] { llama_sampler_apply(s, candidates); });
}

void bn_sampler_accept(struct llama_sampler * s, llama_token token, bn_status * st) {
    guarded(st, [&] { llama_sampler_accept(s, token); });
}

void bn_model_quantize(const char * in, const char * out, const llama_model_quantize_params * params, uint32_t * ret, bn_status * st) {
    *ret = 1;
    guarded(st, [&] { *ret = llama_model_quantize(in, out, params); });
}

static bool bn_block_type(int32_t type, int64_t n) {
    // Everything else ends the process inside ggml: I2_S is a tensor's format and not a row's.
    return type >= 0 && type < GGML_TYPE_I2_S && !ggml_quantize_requires_imatrix((ggml_type) type) && n > 0 &&
           ggml_get_type_traits((ggml_type) type)->blck_size > 0 &&
           n % ggml_get_type_traits((ggml_type) type)->blck_size == 0;
}
void bn_quantize_rows(int32_t type, const float * src, void * dst, int64_t nrow, int64_t n_per_row, size_t * written, bn_status * st) {
    *written = 0;
    if (!bn_block_type(type, n_per_row) || nrow <= 0) {
        set_status(st, BN_MISUSE, "no rows of this type can be made");
        return;
    }
    guarded(st, [&] { *written = ggml_quantize_chunk((ggml_type) type, src, dst, 0, nrow, n_per_row, nullptr); });
}
void bn_dequantize_row(int32_t type, const void * src, float * dst, int64_t n, bn_status * st) {
    if (!bn_block_type(type, n) || !ggml_get_type_traits((ggml_type) type)->to_float) {
        set_status(st, BN_MISUSE, "no rows of this type can be read");
        return;
    }
    guarded(st, [&] { ggml_get_type_traits((ggml_type) type)->to_float(src, dst, n); });
}

void bn_i2s_dot_1x1(int n, float * s, size_t bs, const void * x, size_t bx, const void * y, size_t by, int nrc) {
    ggml_vec_dot_i2_i8_s_1x1(n, s, bs, x, bx, y, by, nrc);
}
void bn_i2s_dot_1xN(int n, float * s, size_t bs, const void * x, size_t bx, const void * y, size_t by, int nrc) {
    ggml_vec_dot_i2_i8_s_1xN(n, s, bs, x, bx, y, by, nrc);
}
void bn_i2s_dot_Nx1(int n, float * s, size_t bs, const void * x, size_t bx, const void * y, size_t by, int nrc) {
    ggml_vec_dot_i2_i8_s_Nx1(n, s, bs, x, bx, y, by, nrc);
}
void bn_i2s_dot(int n, float * s, size_t bs, const void * x, size_t bx, const void * y, size_t by, int nrc) {
    ggml_vec_dot_i2_i8_s(n, s, bs, x, bx, y, by, nrc);
}
void bn_i2s_gemv(int n, float * s, size_t bs, const void * x, const void * y, int nr, int nc) {
    ggml_gemv_i2_i8_s(n, s, bs, x, y, nr, nc);
}
void bn_i2s_gemm(int n, float * s, size_t bs, const void * x, const void * y, int nr, int nc) {
    ggml_gemm_i2_i8_s(n, s, bs, x, y, nr, nc);
}
size_t bn_i2s_quantize(const float * src, void * dst, int64_t nrow, int64_t n_per_row) {
    return quantize_i2_s(src, dst, nrow, n_per_row, nullptr);
}
void bn_i2s_dequantize_row(const uint8_t * x, float * y, int64_t n, float scale) {
    dequantize_row_i2_s(x, y, n, scale);
}
void bn_i8s_quantize_row(const float * x, void * y, int64_t n, float * scale, int32_t * sum) {
    quantize_row_i8_s(x, y, n, scale, sum);
}
void bn_i8s_quantize_row_4x1(const float * x, void * y, int64_t n, float * scale, int32_t * sum) {
    quantize_row_i8_s_4x1(x, y, n, scale, sum);
}
void bn_i2s_config(int32_t * row_block, int32_t * col_block, int32_t * parallel, int32_t * qk) {
    *row_block = ROW_BLOCK_SIZE;
    *col_block = COL_BLOCK_SIZE;
    *parallel  = PARALLEL_SIZE;
#if defined(__AVX2__)
    *qk = 128;
#else
    *qk = 0; // no AVX2: the x86 kernels of this engine compile to empty loops
#endif
}

} // extern "C"
