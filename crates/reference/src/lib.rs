//! Independent reference: I2_S arithmetic and a forward pass, no engine code.
//!
//! What is integer in the engine is exact here ([`i2s`]); what is floating point is computed with
//! wider accumulators, and every comparison states its bound. The 16-bit accumulators of the AVX2
//! kernel are modelled apart ([`lanes`]), so that a gate can say beforehand where the kernel and
//! the exact sum must differ, and by how much. [`forward`] runs a whole model from its GGUF;
//! [`trace`] compares its tensors with the engine's and names the first that departs.
#![forbid(unsafe_code)]

pub mod agreement;
pub mod float_matrix;
pub mod forward;
pub mod i2s;
pub mod identity;
pub mod lanes;
pub mod likelihood;
pub mod reference_file;
pub mod trace;
