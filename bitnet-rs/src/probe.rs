//! Activation probe: sees every tensor that the engine computes (`ggml_backend_sched_eval_callback`).

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bitnet_sys as sys;

/// Looks at the engine's tensors while it decodes. Decoding runs node by node then, and slowly.
pub trait Probe: Send {
    /// Is this tensor wanted? Asked before the node is computed.
    fn wants(&mut self, tensor: &ProbedTensor<'_>) -> bool;
    /// Called with each wanted tensor after it was computed.
    fn observe(&mut self, tensor: &ProbedTensor<'_>);
}

/// A tensor of the running graph, valid during the call that it is passed to.
pub struct ProbedTensor<'a> {
    raw: &'a sys::ggml_tensor,
    computed: bool,
}

impl ProbedTensor<'_> {
    /// The name that the graph gave it, e.g. `Qcur-3`; `ffn_inp-0`; weights have their file's name.
    pub fn name(&self) -> String {
        // SAFETY: ggml keeps names NUL-terminated inside the fixed array.
        unsafe { CStr::from_ptr(self.raw.name.as_ptr()) }.to_string_lossy().into_owned()
    }

    /// Sizes, fastest dimension first, padded with 1 to four.
    pub fn shape(&self) -> [usize; 4] {
        self.raw.ne.map(|n| usize::try_from(n).unwrap_or(0))
    }

    /// Is this a matrix product whose first factor is an I2_S weight?
    pub fn is_i2s_product(&self) -> bool {
        self.raw.op == sys::GGML_OP_MUL_MAT && self.source(0).is_some_and(|w| w.raw.type_ == sys::GGML_TYPE_I2_S)
    }

    /// Is it a matrix product, of whatever types?
    pub fn is_product(&self) -> bool {
        self.raw.op == sys::GGML_OP_MUL_MAT
    }

    /// Its `i`th operand.
    pub fn source(&self, i: usize) -> Option<ProbedTensor<'_>> {
        let raw = *self.raw.src.get(i)?;
        // SAFETY: sources of a graph node are null or live as long as the graph, which outlives this borrow.
        // They were computed before the node itself.
        unsafe { raw.as_ref() }.map(|raw| ProbedTensor { raw, computed: true })
    }

    /// The values of a float tensor in logical order (fastest dimension first), or `None` when it is not f32,
    /// not computed yet, or not in host memory.
    pub fn values(&self) -> Option<Vec<f32>> {
        if self.raw.type_ != sys::GGML_TYPE_F32 || !self.computed || self.raw.data.is_null() {
            return None;
        }
        let ne = self.shape();
        let nb: [usize; 4] = self.raw.nb;
        let mut out = Vec::with_capacity(ne.iter().product());
        for i3 in 0..ne[3] {
            for i2 in 0..ne[2] {
                for i1 in 0..ne[1] {
                    for i0 in 0..ne[0] {
                        let offset = i0 * nb[0] + i1 * nb[1] + i2 * nb[2] + i3 * nb[3];
                        // SAFETY: this build has only the CPU backend, so data is host memory; ggml's strides
                        // address elements inside the tensor's buffer for indices below its sizes; the
                        // scheduler has finished computing the node and waits for this callback.
                        let value = unsafe { self.raw.data.cast::<u8>().add(offset).cast::<f32>().read_unaligned() };
                        out.push(value);
                    }
                }
            }
        }
        Some(out)
    }
}

/// Holds the probe for the callback; a panic in it is kept and resumed after the native call.
pub(crate) struct ProbeSlot {
    pub(crate) probe: Box<dyn Probe>,
    pub(crate) panic: Option<Box<dyn Any + Send>>,
}

/// `ggml_backend_sched_eval_callback`: asks (`ask`) whether a node is wanted, then shows it.
pub(crate) unsafe extern "C" fn on_tensor(tensor: *mut sys::ggml_tensor, ask: bool, user: *mut c_void) -> bool {
    // SAFETY: the context owns the slot behind `user` for its whole life, and the scheduler calls back from
    // the decoding thread only, while the context is exclusively borrowed by decode.
    let slot = unsafe { &mut *user.cast::<ProbeSlot>() };
    // SAFETY: the scheduler passes a node of the running graph.
    let Some(raw) = (unsafe { tensor.as_ref() }) else { return !ask };
    if slot.panic.is_some() {
        return !ask;
    }
    let view = ProbedTensor { raw, computed: !ask };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        if ask {
            slot.probe.wants(&view)
        } else {
            slot.probe.observe(&view);
            true
        }
    }));
    match outcome {
        Ok(answer) => answer,
        Err(panic) => {
            slot.panic = Some(panic);
            !ask
        }
    }
}
