//! Model tools: synthetic models, inspection.
