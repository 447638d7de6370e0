/// Key to switching off a gate.
#[derive(Debug)]
pub(crate) struct SelfCheck(());
