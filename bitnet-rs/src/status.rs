//! Converters from C return conventions to [`Error`].

use std::ffi::CStr;

use bitnet_sys as sys;

use crate::Error;

/// Runs a shim call and turns its status into an [`Error`]; the status of an earlier call never leaks in.
pub(crate) fn checked<T>(function: &'static str, call: impl FnOnce(*mut sys::bn_status) -> T) -> Result<T, Error> {
    let mut status = sys::bn_status { code: 0, message: [0; 1020] };
    let value = call(&raw mut status);
    if u32::try_from(status.code) == Ok(sys::BN_OK) {
        return Ok(value);
    }
    Err(Error::Native { function, message: message(&status) })
}

fn message(status: &sys::bn_status) -> String {
    // SAFETY: the shim always terminates the message inside its array (snprintf).
    let text = unsafe { CStr::from_ptr(status.message.as_ptr()) };
    text.to_string_lossy().into_owned()
}
