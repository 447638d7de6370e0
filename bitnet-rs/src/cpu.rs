//! What the native code was compiled for, and what this CPU has.

use bitnet_sys::engine_info;

use crate::Error;

/// Instruction sets on both sides, as reports print them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuFeatures {
    /// Compiled into the native library.
    pub compiled: Vec<&'static str>,
    /// Of the compiled ones and a few that matter besides, those that this CPU has.
    pub present: Vec<&'static str>,
}

impl CpuFeatures {
    /// Asks the CPU.
    pub fn detect() -> Self {
        let known = ["sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c", "bmi1", "bmi2"];
        let wide = ["lzcnt", "avx512f", "avx512vnni", "avx512bf16"];
        let present = known.into_iter().chain(wide).filter(|name| has(name)).collect();
        Self { compiled: engine_info::COMPILED_FEATURES.to_vec(), present }
    }

    /// Compiled in but absent here.
    pub fn missing(&self) -> Vec<&'static str> {
        self.compiled.iter().copied().filter(|name| !self.present.contains(name)).collect()
    }

    /// Refuses to go on where the native code would fault or, without AVX2, silently compute nothing.
    pub(crate) fn require(&self) -> Result<(), Error> {
        let mut missing = self.missing();
        if !self.present.contains(&"avx2") && !missing.contains(&"avx2") {
            missing.push("avx2");
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::UnsupportedCpu {
            missing: missing.join(", ").to_uppercase(),
            march: format!("-march={}", engine_info::MARCH),
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn has(name: &str) -> bool {
    match name {
        "sse3" => is_x86_feature_detected!("sse3"),
        "ssse3" => is_x86_feature_detected!("ssse3"),
        "sse4.1" => is_x86_feature_detected!("sse4.1"),
        "sse4.2" => is_x86_feature_detected!("sse4.2"),
        "popcnt" => is_x86_feature_detected!("popcnt"),
        "avx" => is_x86_feature_detected!("avx"),
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        "f16c" => is_x86_feature_detected!("f16c"),
        "bmi1" => is_x86_feature_detected!("bmi1"),
        "bmi2" => is_x86_feature_detected!("bmi2"),
        "lzcnt" => is_x86_feature_detected!("lzcnt"),
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512vnni" => is_x86_feature_detected!("avx512vnni"),
        "avx512bf16" => is_x86_feature_detected!("avx512bf16"),
        _ => false,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn has(_name: &str) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_without_avx2_is_refused_by_name() {
        let features = CpuFeatures { compiled: vec!["avx", "avx2"], present: vec!["avx"] };
        assert_eq!(features.missing(), ["avx2"]);
        let message = features.require().map_or_else(|e| e.to_string(), |()| String::new());
        assert!(message.contains("AVX2"), "{message}");
        let no_avx2_at_all = CpuFeatures { compiled: vec!["avx"], present: vec!["avx"] };
        assert!(no_avx2_at_all.require().is_err());
    }
}
