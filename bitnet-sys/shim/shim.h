/* C surface of the shim: every engine call that may throw, as a function that returns a status and a
 * message instead. A C++ exception that crosses the C ABI ends the process, so nothing else of the
 * engine's throwing surface is bound (see docs/decisions/0002-shim.md). */
#ifndef BITNET_SYS_SHIM_H
#define BITNET_SYS_SHIM_H

#include "ggml.h"
#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BN_OK 0         /* the call returned */
#define BN_EXCEPTION 1  /* a std::exception was caught: message is its what() */
#define BN_UNKNOWN 2    /* something else was thrown */
#define BN_NULL 3       /* the engine answered with a null pointer */
#define BN_MISUSE 4     /* an argument that the shim itself refuses */

typedef struct bn_status {
    int32_t code;
    char    message[1020]; /* NUL-terminated, possibly cut */
} bn_status;

void bn_backend_init(bn_status * st);

struct llama_model   * bn_model_load(const char * path, struct llama_model_params params, bn_status * st);
struct llama_context * bn_context_new(struct llama_model * model, struct llama_context_params params, bn_status * st);

/* *ret receives what llama_decode returned. */
void bn_decode(struct llama_context * ctx, struct llama_batch batch, int32_t * ret, bn_status * st);

/* Two-call pattern: *n is the number of tokens, negative when cap was too small (then -*n are needed). */
void bn_tokenize(const struct llama_model * model, const char * text, int32_t text_len,
                 llama_token * tokens, int32_t cap, bool add_special, bool parse_special,
                 int32_t * n, bn_status * st);
void bn_token_to_piece(const struct llama_model * model, llama_token token, char * buf, int32_t cap,
                       bool special, int32_t * n, bn_status * st);

void bn_state_seq_size(struct llama_context * ctx, llama_seq_id seq, size_t * n, bn_status * st);
void bn_state_seq_get(struct llama_context * ctx, uint8_t * dst, size_t size, llama_seq_id seq, size_t * n, bn_status * st);
void bn_state_seq_set(struct llama_context * ctx, const uint8_t * src, size_t size, llama_seq_id seq, size_t * n, bn_status * st);

void bn_kv_clear(struct llama_context * ctx, bn_status * st);
void bn_kv_seq_rm(struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, bool * removed, bn_status * st);
void bn_kv_seq_cp(struct llama_context * ctx, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1, bn_status * st);
void bn_kv_seq_keep(struct llama_context * ctx, llama_seq_id seq, bn_status * st);

void bn_sampler_apply(struct llama_sampler * s, llama_token_data_array * candidates, bn_status * st);
void bn_sampler_accept(struct llama_sampler * s, llama_token token, bn_status * st);

void bn_model_quantize(const char * in, const char * out, const llama_model_quantize_params * params, uint32_t * ret, bn_status * st);

/* Rows of floats to blocks of a tensor type (ggml_quantize_chunk) and back (to_float of the type traits).
 * BN_MISUSE for types that need an importance matrix, have no such function, or whose block does not divide
 * n_per_row; *written receives the bytes written. */
void bn_quantize_rows(int32_t type, const float * src, void * dst, int64_t nrow, int64_t n_per_row, size_t * written, bn_status * st);
void bn_dequantize_row(int32_t type, const void * src, float * dst, int64_t n, bn_status * st);

/* I2_S kernel entry points, as the engine's own callers reach them. n is the row length in weights,
 * x points at packed rows, y at int8 activations. */
void bn_i2s_dot_1x1(int n, float * s, size_t bs, const void * x, size_t bx, const void * y, size_t by, int nrc);
void bn_i2s_dot_1xN(int n, float * s, size_t bs, const void * x, size_t bx, const void * y, size_t by, int nrc);
void bn_i2s_dot_Nx1(int n, float * s, size_t bs, const void * x, size_t bx, const void * y, size_t by, int nrc);
void bn_i2s_dot(int n, float * s, size_t bs, const void * x, size_t bx, const void * y, size_t by, int nrc);
void bn_i2s_gemv(int n, float * s, size_t bs, const void * x, const void * y, int nr, int nc);
void bn_i2s_gemm(int n, float * s, size_t bs, const void * x, const void * y, int nr, int nc);
size_t bn_i2s_quantize(const float * src, void * dst, int64_t nrow, int64_t n_per_row);
void bn_i2s_dequantize_row(const uint8_t * x, float * y, int64_t n, float scale);
void bn_i8s_quantize_row(const float * x, void * y, int64_t n, float * scale, int32_t * sum);
void bn_i8s_quantize_row_4x1(const float * x, void * y, int64_t n, float * scale, int32_t * sum);
/* ROW_BLOCK_SIZE, COL_BLOCK_SIZE, PARALLEL_SIZE and QK of this build (gemm-config.h). */
void bn_i2s_config(int32_t * row_block, int32_t * col_block, int32_t * parallel, int32_t * qk);

#ifdef __cplusplus
}
#endif
#endif
