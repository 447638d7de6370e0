//! The gate suite.
