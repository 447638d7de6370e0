//! A permit, a flag and an operator configuration have no public fields.
use agent::permit::{ExecuteFlag, ExecutePermit, OperatorConfig};
use agent::vocabulary::Backend;

fn by_hand() -> ExecutePermit {
    ExecutePermit { backends: vec![Backend::Mock] }
}

fn flag() -> ExecuteFlag {
    ExecuteFlag { execute: true }
}

fn config() -> OperatorConfig {
    OperatorConfig { enabled: true, backends: vec![Backend::Mock] }
}

fn main() {}
